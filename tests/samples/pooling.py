"""Pooling."""

from __future__ import annotations

from typing import Any

from openmps.kernels import pooling as kernels
from openmps.types import MPSImageEdgeMode
from oracles import pooling
from samples.sample import BOTTOM_RIGHT, CLAMP, FULL, VALID, Array, GradientSample, Reading, Sample, Shape, configured

ZERO = MPSImageEdgeMode.ZERO


def _pooling(
    name: str,
    kernel: Any,
    gradient: Any,
    oracle: Any,
    size: tuple[int, ...],
    shape: Shape,
    domain: str = "normal",
    is_smooth: bool = False,
    **properties: Any,
) -> Sample:
    """``size``: kernel width, kernel height, dilation x, dilation y if there is one, stride x, stride y."""
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
        frozenset(name for name, has in (("affine", pad_argument), ("smooth", is_smooth)) if has),
    )


def _max(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.maximum, pooling.maximum_gradient, False)
    pair = kernels.MPSCNNPoolingMax, kernels.MPSCNNPoolingMaxGradient
    return _pooling(f"max pooling {name}", *pair, oracle, size, shape, **properties)


def _dilated(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.maximum, pooling.maximum_gradient, False)
    pair = kernels.MPSCNNDilatedPoolingMax, kernels.MPSCNNDilatedPoolingMaxGradient
    return _pooling(f"dilated max pooling {name}", *pair, oracle, size, shape, **properties)


def _l2_norm(name: str, size: tuple[int, ...], shape: Shape, **properties: Any) -> Sample:
    oracle = (pooling.l2_norm, pooling.l2_norm_gradient, False)
    pair = kernels.MPSCNNPoolingL2Norm, kernels.MPSCNNPoolingL2NormGradient
    return _pooling(f"L2-norm pooling {name}", *pair, oracle, size, shape, is_smooth=True, **properties)


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
DILATED_MAX_POOLINGS = [
    _dilated("2x2, dilation 2", (2, 2, 2, 2), (4, 6, 8)),
    _dilated("3x2, dilation 1x3, stride 2", (3, 2, 1, 3, 2, 2), (5, 7, 9)),
    _dilated("3x3, dilation 2, clamp", (3, 3, 2, 2), (3, 6, 5), edge_mode=CLAMP),
    _dilated("2x3, dilation 3x2, stride 3x1, clamp", (2, 3, 3, 2, 3, 1), (1, 8, 7), edge_mode=CLAMP, padding=VALID),
    _dilated("one pixel", (3, 3, 2, 2, 1, 1), (1, 1, 1), domain="positive"),
    _dilated("full", (3, 2, 2, 3, 2, 1), (8, 4, 3), padding=FULL),
]
L2_NORM_POOLINGS = [
    _l2_norm("2x2, stride 2", (2, 2, 2, 2), (4, 6, 8)),
    _l2_norm("3x2, stride 2x3, odd", (3, 2, 2, 3), (5, 7, 9)),
    _l2_norm("3x3, clamp", (3, 3), (3, 4, 5), edge_mode=CLAMP),
    _l2_norm("stride above size", (2, 2, 3, 3), (1, 8, 7), padding=BOTTOM_RIGHT),
    _l2_norm("one pixel, clamp", (4, 3), (1, 1, 1), edge_mode=CLAMP, domain="positive"),
    _l2_norm("full", (4, 3, 2, 1), (8, 4, 3), padding=FULL, domain="positive"),
]
EXTREME_POOLINGS = [
    make(f"{what}, {edge.name.lower()}", size, (3, 3, 4), edge_mode=edge, **properties)
    for make in (_max, _average, _l2_norm)
    for edge in (ZERO, CLAMP)
    for what, size, properties in (
        ("larger than the image", (9, 12), {}),
        ("larger than the image, full", (6, 9), {"padding": FULL}),
        ("stride larger than the image", (2, 3, 40, 50), {}),
        ("stride larger than the image, full", (2, 3, 40, 50), {"padding": FULL}),
    )
] + [
    _average("zero pads beyond", (5, 4, 2, 2), (3, 4, 5), edge_mode=CLAMP, zero_pad_size_x=3, padding=FULL),
    _dilated("taps beside the image, zero", (2, 2, 40, 50), (3, 4, 5)),
    _dilated("taps beside the image, clamp", (2, 2, 40, 50), (3, 4, 5), edge_mode=CLAMP),
    _dilated("taps far apart, full", (2, 2, 7, 9), (3, 4, 5), padding=FULL),
]
"""Windows and images that hardly meet."""
