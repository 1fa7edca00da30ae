"""Upsampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openmps.kernels import upsampling as kernels
from oracles import resample
from samples.sample import CLAMP, Array, GradientSample, Reading, Sample, Shape, configured

Matrices = Callable[[tuple[int, ...], Reading], tuple[Array, Array]]


def resampling(
    name: str, shape: Shape, make: Any, gradient: Any, matrices: Matrices, *, needs_state: bool = False
) -> Sample:
    """A kernel that is one matrix a row and one a column: `matrices` makes them of the source's shape."""

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return resample.apply(sources[0], *matrices(sources[0].shape, how[0]))

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        return resample.apply_adjoint(g, *matrices(sources[0].shape, how[0]))

    gradients = () if gradient is None else (GradientSample(gradient, differentiate, needs_state=needs_state),)
    return Sample(name, make, (shape,), forward, gradients, traits=frozenset({"affine", "resampled"}))


def _nearest(name: str, shape: Shape, across: int, down: int, **properties: Any) -> Sample:
    return resampling(
        f"nearest upsampling {name}",
        shape,
        lambda device: configured(kernels.MPSCNNUpsamplingNearest(device, across, down), properties),
        lambda device: kernels.MPSCNNUpsamplingNearestGradient(device, across, down),
        lambda size, how: resample.nearest(size, how.rows, how.columns, (down, across), how.edge),
    )


def _bilinear(name: str, shape: Shape, across: int, down: int, align: bool = False, **properties: Any) -> Sample:
    def matrices(size: tuple[int, ...], how: Reading) -> tuple[Array, Array]:
        return resample.linear(size, how.rows, how.columns, (size[2] * down, size[3] * across), align, how.edge)

    return resampling(
        f"bilinear upsampling {name}",
        shape,
        lambda device: configured(kernels.MPSCNNUpsamplingBilinear(device, across, down, align), properties),
        lambda device: kernels.MPSCNNUpsamplingBilinearGradient(device, across, down),
        matrices,
        needs_state=align,
    )


NEAREST = [
    _nearest("2x2", (4, 3, 5), 2, 2),
    _nearest("3x1, clamp", (5, 2, 4), 3, 1, edge_mode=CLAMP),
    _nearest("1x1", (3, 3, 3), 1, 1),
    _nearest("one pixel", (1, 1, 1), 2, 4),
]
BILINEAR = [
    _bilinear("2x2", (4, 3, 5), 2, 2),
    _bilinear("3x1, clamp", (5, 2, 4), 3, 1, edge_mode=CLAMP),
    _bilinear("2x3, corners", (3, 4, 3), 2, 3, align=True),
    _bilinear("3x2, corners, clamp", (1, 2, 5), 3, 2, align=True, edge_mode=CLAMP),
    _bilinear("1x1", (8, 3, 3), 1, 1),
    _bilinear("one pixel", (1, 1, 1), 2, 4),
    _bilinear("one pixel, corners", (4, 1, 1), 3, 1, align=True),
]
