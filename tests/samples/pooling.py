"""Pooling."""

from __future__ import annotations

from typing import Any

from openmps.kernels import pooling as kernels
from oracles import pooling
from samples.sample import BOTTOM_RIGHT, CLAMP, FULL, VALID, Array, GradientSample, Reading, Sample, Shape, configured


def _pooling(
    name: str,
    kernel: Any,
    gradient: Any,
    oracle: Any,
    size: tuple[int, ...],
    shape: Shape,
    domain: str = "normal",
    **properties: Any,
) -> Sample:
    """``size``: kernel width, kernel height, stride x, stride y."""
    forward, backward, pad_argument = oracle
    taken = tuple(properties.get(f"zero_pad_size_{axis}", 0) for axis in "xy")
    pad = (taken,) if pad_argument else ()

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        about = sources[0].shape if pad_argument else sources[0]
        return backward(g, about, *how[0], *pad)

    return Sample(
        name,
        lambda device: configured(kernel(device, *size), properties),
        (shape,),
        lambda sources, how: forward(sources[0], *how[0], *pad),
        (GradientSample(lambda device: gradient(device, *size), differentiate),),
        domain,
        frozenset({"affine"} if pad_argument else ()),
    )


def _max(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.maximum, pooling.maximum_gradient, False)
    pair = kernels.MPSCNNPoolingMax, kernels.MPSCNNPoolingMaxGradient
    return _pooling(f"max pooling {name}", *pair, oracle, size, shape, **properties)


def _average(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.average, pooling.average_gradient, True)
    pair = kernels.MPSCNNPoolingAverage, kernels.MPSCNNPoolingAverageGradient
    return _pooling(f"average pooling {name}", *pair, oracle, size, shape, **properties)


MAX_POOLINGS = [
    _max("2x2, stride 2", (2, 2, 2, 2), (4, 6, 8)),
    _max("3x2, stride 2x3, odd", (3, 2, 2, 3), (5, 7, 9)),
    _max("3x3, clamp", (3, 3), (3, 4, 5), edge_mode=CLAMP),
    _max("stride above size, clamp", (2, 2, 3, 3), (1, 8, 7), edge_mode=CLAMP, padding=VALID),
    _max("one pixel", (3, 3, 1, 1), (1, 1, 1), domain="positive"),
    _max("full", (4, 3, 2, 1), (8, 4, 3), padding=FULL),
]
AVERAGE_POOLINGS = [
    _average("2x2, stride 2", (2, 2, 2, 2), (4, 6, 8)),
    _average("3x3, zero", (3, 3), (5, 4, 5)),
    _average("3x3, clamp", (3, 3, 2, 1), (3, 4, 5), edge_mode=CLAMP),
    _average("4x3, zero pads", (4, 3, 2, 2), (4, 5, 6), edge_mode=CLAMP, zero_pad_size_x=1, zero_pad_size_y=1),
    _average("stride above size", (2, 2, 3, 3), (1, 8, 7), padding=BOTTOM_RIGHT),
    _average("one pixel, clamp", (3, 3), (1, 1, 1), edge_mode=CLAMP),
]
