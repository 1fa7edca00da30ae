"""Filters of pictures, whose destination is always given: how to make each, pictures that suit it, its oracle."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from openmps.core.kernel.base import MPSKernel
from openmps.kernels.image_filters import (
    arithmetic,
    blur,
    canny,
    conversion,
    convolution,
    distance,
    equalization,
    guided_filter,
    histogram,
    integral,
    median,
    morphology,
    pyramid,
    reduction,
    statistics,
    threshold,
    transpose,
)
from openmps.metal.device import MTLDevice
from openmps.types import MPSAlphaType, MPSImageEdgeMode, MPSImageHistogramInfo, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from oracles import image_filters as oracle
from oracles.geometry import Axis
from samples.sample import Array, Reading, configured

Forward = Callable[[list[Array], list[Reading], int], Array]
"""Sources, how they are read, channels of the destination: the result."""
SIZE = (6, 7)
"""Rows and columns of the pictures."""


@dataclass(frozen=True)
class FilterSample:
    """One configuration of a filter."""

    name: str
    make: Callable[[MTLDevice], Any]
    forward: Forward
    channels: tuple[int, ...] = (3,)
    """Those of each source."""
    made: int | None = None
    """Channels of the destination; as many as the first source has unless said."""
    works_in_place: bool = True
    result: tuple[int, int] | None = None
    """Rows and columns of the destination, where they are not those of the source."""
    is_placed: bool = True
    """Whether offset and clip rectangle choose pixels."""
    in_bytes: bool = True
    """Whether pictures of bytes give numbers that are of use."""
    edge: int | None = None
    """The edge mode that it has whatever is set."""
    bytes_alone: bool = False
    """Whether it takes pictures of bytes, and makes such, alone."""
    window: tuple[int, int] | None = None
    """Rows and columns of the window, where no properties say them."""
    drawn: Callable[[list[Array]], list[Array]] = lambda sources: sources
    """What becomes of random pictures, for filters that ask for more."""
    tolerance: float = 2e-6

    @property
    def stored_as(self) -> Format:
        """The format of its pictures, unless another one is tried."""
        return Format.UNORM8 if self.bytes_alone else Format.FLOAT32

    @property
    def destination(self) -> tuple[int, int, int]:
        """Channels, rows and columns."""
        return (self.made or self.channels[0], *(self.result or SIZE))

    def sources(self, images: int = 1) -> list[Array]:
        """Pictures of 0 … 1, some of them 0 and 1, in steps that bytes have."""
        random = np.random.default_rng([*self.name.encode()])
        return self.drawn([random.integers(0, 256, (images, count, *SIZE)) / 255.0 for count in self.channels])

    def readings(self, kernel: Any, height: int, width: int) -> list[Reading]:
        """How a kernel reads its sources for so many result pixels."""
        prefixes = ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)
        return [self._reading(kernel, prefix, height, width) for prefix in prefixes]

    def _reading(self, kernel: Any, prefix: str, height: int, width: int) -> Reading:
        offset, edge = getattr(kernel, f"{prefix}offset"), getattr(kernel, f"{prefix}edge_mode")
        strides = getattr(kernel, f"{prefix}stride_in_pixels", None)
        down, across = (1, 1) if strides is None else (strides.height, strides.width)
        window = self.window or (getattr(kernel, "kernel_height", 1), getattr(kernel, "kernel_width", 1))
        rows, columns = Axis(height, window[0], down, 1, offset.y), Axis(width, window[1], across, 1, offset.x)
        return Reading(rows, columns, int(edge) if self.edge is None else self.edge)

    def __str__(self) -> str:
        return self.name


def _threshold(kind: str, channels: int, made: int, **values: Any) -> FilterSample:
    weights = values.get("linear_gray_color_transform") or oracle.GRAY

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        v = oracle.gray(how[0].region(sources[0]), weights)
        return oracle.spread(oracle.threshold(kind, v, 0.5, values.get("maximum_value", 0.0)), count)

    def make(device: MTLDevice) -> Any:
        return getattr(threshold, f"MPSImageThreshold{kind}")(device, threshold_value=0.5, **values)

    return FilterSample(f"threshold {kind} of {channels} channels to {made}", make, forward, (channels,), made)


THRESHOLDS: dict[type[MPSKernel], list[FilterSample]] = {
    threshold.MPSImageThresholdBinary: [
        _threshold("Binary", 1, 1, maximum_value=0.75),
        _threshold("Binary", 4, 4, maximum_value=1.0),
        _threshold("Binary", 2, 2, maximum_value=0.5, linear_gray_color_transform=[0.25, 0.75, 0.0]),
    ],
    threshold.MPSImageThresholdBinaryInverse: [_threshold("BinaryInverse", 3, 1, maximum_value=0.75)],
    threshold.MPSImageThresholdTruncate: [_threshold("Truncate", 1, 4), _threshold("Truncate", 4, 3)],
    threshold.MPSImageThresholdToZero: [_threshold("ToZero", 4, 4)],
    threshold.MPSImageThresholdToZeroInverse: [_threshold("ToZeroInverse", 1, 1)],
}


def _arithmetic(kind: str, channels: int = 4, **values: Any) -> FilterSample:
    scales = values.get("primary_scale", 1.0), values.get("secondary_scale", 1.0)

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x, y = (reading.region(source) for source, reading in zip(sources, how, strict=True))
        found = oracle.arithmetic(kind, x, y, scales, values.get("bias", 0.0))
        return np.clip(found, values.get("minimum_value", -np.inf), values.get("maximum_value", np.inf))

    return FilterSample(
        f"image {kind} {' '.join(values)}",
        lambda device: configured(getattr(arithmetic, f"MPSImage{kind}")(device), values),
        forward,
        (channels, channels),
        in_bytes=kind != "Divide",
    )


CLAMPED = {"primary_edge_mode": MPSImageEdgeMode.CLAMP, "secondary_edge_mode": MPSImageEdgeMode.CLAMP}
ARITHMETIC: dict[type[MPSKernel], list[FilterSample]] = {
    arithmetic.MPSImageAdd: [
        _arithmetic("Add"),
        _arithmetic("Add", 1, primary_scale=2.0, secondary_scale=-0.5, bias=0.25),
    ],
    arithmetic.MPSImageSubtract: [_arithmetic("Subtract", 3, minimum_value=-0.25, maximum_value=0.5)],
    arithmetic.MPSImageMultiply: [_arithmetic("Multiply", 5, primary_scale=0.5, bias=0.125)],
    arithmetic.MPSImageDivide: [_arithmetic("Divide", 2, secondary_scale=2.0, maximum_value=4.0, **CLAMPED)],
}


def _conversion(source: str, result: str, channels: int = 4, made: int | None = None, **values: Any) -> FilterSample:
    kinds = MPSAlphaType[source], MPSAlphaType[result]

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = how[0].region(sources[0])
        if channels == 4:
            x = oracle.convert_alpha(x, source, result, values.get("background_color", (0.0, 0.0, 0.0)))
        return oracle.textured(x, count)

    return FilterSample(
        f"conversion of {channels} channels from {source} to {result} {' '.join(values)} {made or ''}",
        lambda device: conversion.MPSImageConversion(device, *kinds, **values),
        forward,
        (channels,),
        made,
        in_bytes=source != "PREMULTIPLIED",  # a colour above its alpha has no byte
    )


_KINDS = ("NON_PREMULTIPLIED", "ALPHA_IS_ONE", "PREMULTIPLIED")
CONVERSIONS = [
    *(_conversion(source, result) for source in _KINDS for result in _KINDS),
    _conversion("NON_PREMULTIPLIED", "ALPHA_IS_ONE", background_color=(0.25, 0.5, 1.0)),
    _conversion("PREMULTIPLIED", "ALPHA_IS_ONE", 4, 2, background_color=(0.5, 0.0, 0.25)),
    _conversion("PREMULTIPLIED", "NON_PREMULTIPLIED", 1, 4),
]


def _transposed(sources: list[Array], how: list[Reading], count: int) -> Array:
    rows, columns, edge = how[0]
    turned = Reading(Axis(columns.result, offset=rows.offset), Axis(rows.result, offset=columns.offset), edge)
    return turned.region(sources[0]).transpose(0, 1, 3, 2)


TRANSPOSES = [
    FilterSample(
        "image transpose", transpose.MPSImageTranspose, _transposed, (4,), works_in_place=False, result=SIZE[::-1]
    ),
    FilterSample("image transpose of many channels", transpose.MPSImageTranspose, _transposed, (5,),
                 works_in_place=False, result=SIZE[::-1]),
]  # fmt: skip


def _windowed(name: str, make: Any, of: Callable[[Array], Array], channels: int = 3, **more: Any) -> FilterSample:
    """A filter of windows: ``of`` takes every tap of every window."""

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        return oracle.textured(of(oracle.windows(sources[0], *how[0])), count)

    return FilterSample(name, make, forward, (channels,), **more)


def _drawn(height: int, width: int) -> Array:
    return np.random.default_rng(height * width).normal(size=(height, width)).astype(np.float32).astype(np.float64)


def _convolution(width: int, height: int, channels: int, bias: float = 0.0) -> FilterSample:
    weights = _drawn(height, width)

    def make(device: MTLDevice) -> Any:
        kernel = convolution.MPSImageConvolution(device, width, height, weights)
        return configured(kernel, {"bias": bias})

    name = f"image convolution of {width}x{height}, {channels} channels, bias {bias}"
    return _windowed(name, make, lambda taps: oracle.correlate(taps, weights, bias), channels, tolerance=4e-6)


_LAPLACE = np.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])


def _laplacian(bias: float, channels: int) -> FilterSample:
    return _windowed(
        f"image Laplacian, bias {bias}",
        lambda device: configured(convolution.MPSImageLaplacian(device), {"bias": bias}),
        lambda taps: oracle.correlate(taps, _LAPLACE, bias),
        channels,
        window=(3, 3),
    )


def _sobel(channels: int, made: int) -> FilterSample:
    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = oracle.gray(sources[0]) if made == 1 else sources[0]
        return oracle.sobel(oracle.windows(x, *how[0]))

    name = f"image Sobel of {channels} channels to {made}"
    return FilterSample(name, convolution.MPSImageSobel, forward, (channels,), made, tolerance=4e-6, window=(3, 3))


def _profiled(name: str, make: Any, down: Array, across: Array, channels: int) -> FilterSample:
    weights = np.outer(down, across)
    return _windowed(name, make, lambda taps: oracle.correlate(taps, weights), channels, window=weights.shape)


def _box(kind: str, width: int, height: int, channels: int = 4) -> FilterSample:
    def profile(size: int) -> Array:
        return np.full(size, 1.0 / size) if kind == "Box" else oracle.triangle(size)

    return _profiled(
        f"image {kind} of {width}x{height}, {channels} channels",
        lambda device: getattr(blur, f"MPSImage{kind}")(device, width, height),
        profile(height),
        profile(width),
        channels,
    )


def _gaussian(sigma: float, channels: int = 4) -> FilterSample:
    weights = oracle.bell(sigma)
    name = f"image Gaussian blur, sigma {sigma}"
    return _profiled(name, lambda device: blur.MPSImageGaussianBlur(device, sigma), weights, weights, channels)


WINDOWS: dict[type[MPSKernel], list[FilterSample]] = {
    convolution.MPSImageConvolution: [
        _convolution(3, 5, 3, 0.25), _convolution(1, 1, 1), _convolution(9, 7, 2), _convolution(1, 3, 6, -0.5)
    ],
    convolution.MPSImageLaplacian: [
        _laplacian(0.0, 3), _laplacian(0.5, 1)
    ],
    convolution.MPSImageSobel: [_sobel(4, 4), _sobel(4, 1), _sobel(1, 1)],
    blur.MPSImageBox: [_box("Box", 3, 5), _box("Box", 1, 7, 1), _box("Box", 17, 1, 5), _box("Box", 15, 31, 2)],
    blur.MPSImageTent: [_box("Tent", 5, 3), _box("Tent", 1, 1, 3), _box("Tent", 7, 17, 2)],
    blur.MPSImageGaussianBlur: [_gaussian(0.8), _gaussian(1.3, 1), _gaussian(0.1, 6), _gaussian(6.0, 2)],
}  # fmt: skip


def _extreme(kind: str, width: int, height: int, values: Array | None = None, channels: int = 3) -> FilterSample:
    """An area's extreme; with values dilation or erosion."""
    is_largest = kind in ("AreaMax", "Dilate")
    heights = np.zeros((height, width)) if values is None else values
    given = [] if kind.startswith("Area") else [heights]
    return _windowed(
        f"image {kind} of {width}x{height}, values {np.any(heights)}",
        lambda device: getattr(morphology, f"MPSImage{kind}")(device, width, height, *given),
        lambda taps: oracle.morphology(taps, heights, is_largest),
        channels,
        edge=1,
    )


MORPHOLOGY: dict[type[MPSKernel], list[FilterSample]] = {
    morphology.MPSImageAreaMax: [_extreme("AreaMax", 3, 5), _extreme("AreaMax", 1, 1), _extreme("AreaMax", 101, 7)],
    morphology.MPSImageAreaMin: [_extreme("AreaMin", 7, 1), _extreme("AreaMin", 5, 23, channels=6)],
    morphology.MPSImageDilate: [_extreme("Dilate", 3, 5, _drawn(5, 3)), _extreme("Dilate", 3, 3)],
    morphology.MPSImageErode: [_extreme("Erode", 5, 3, _drawn(3, 5)), _extreme("Erode", 5, 1, channels=1)],
}


def _median(diameter: int, channels: int = 3, edge: MPSImageEdgeMode = MPSImageEdgeMode.ZERO) -> FilterSample:
    return _windowed(
        f"image median of {diameter}, {channels} channels",
        lambda device: configured(median.MPSImageMedian(device, diameter), {"edge_mode": edge}),
        oracle.median,
        channels,
        bytes_alone=True,
        window=(diameter, diameter),
    )


MEDIANS = [_median(3), _median(5, 1), _median(9, 4), _median(17, 1, MPSImageEdgeMode.CLAMP)]


def _measure(
    name: str,
    make: Any,
    of: Callable[[Array], Array],
    result: tuple[int, int],
    channels: int = 3,
    *,
    in_region: bool = True,
    **more: Any,
) -> FilterSample:
    """A measure of all pixels, or of those in a region of three rows and five columns."""
    regional = {"clip_rect_source": REGION} if in_region else {}

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = sources[0][:, :, 2:5, 1:6] if regional else sources[0]
        return of(oracle.textured(x, count))

    return FilterSample(
        f"{name}{' in a region' if regional else ''}, {channels} channels",
        lambda device: configured(make(device), regional),
        forward,
        (channels,),
        works_in_place=False,
        result=result,
        is_placed=False,
        **more,
    )


REGION = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(5, 3, 2**64 - 1))
_PIXELS = (2, 3)


def _reduced(kind: str) -> list[FilterSample]:
    axis, name = re.match(r"(Row|Column)(\w+)", kind).groups()  # type: ignore[union-attr]
    along = 3 if axis == "Row" else 2
    make = getattr(reduction, f"MPSImageReduce{kind}")

    def of(x: Array) -> Array:
        return getattr(np, name.lower())(x, axis=along, keepdims=True)

    results = ((SIZE[0], 1), (3, 1)) if axis == "Row" else ((1, SIZE[1]), (1, 5))
    return [
        _measure(f"image reduce {kind}", make, of, results[in_region], 3 + in_region, in_region=in_region)
        for in_region in (False, True)
    ]


def _pair(first: Callable[..., Array], second: Callable[..., Array]) -> Callable[[Array], Array]:
    return lambda x: np.concatenate([each(x, axis=_PIXELS, keepdims=True) for each in (first, second)], axis=3)


MEASURES: dict[type[MPSKernel], list[FilterSample]] = {
    statistics.MPSImageStatisticsMinAndMax: [
        _measure("image extremes", statistics.MPSImageStatisticsMinAndMax, _pair(np.min, np.max), (1, 2), 5)
    ],
    statistics.MPSImageStatisticsMeanAndVariance: [
        _measure("image moments", statistics.MPSImageStatisticsMeanAndVariance, _pair(np.mean, np.var), (1, 2)),
        _measure("image moments to RGBA", statistics.MPSImageStatisticsMeanAndVariance, _pair(np.mean, np.var), (1, 2),
                 made=4, in_region=False),
    ],
    statistics.MPSImageStatisticsMean: [
        _measure("image mean", statistics.MPSImageStatisticsMean,
                 lambda x: x.mean(axis=_PIXELS, keepdims=True), (1, 1))
    ],
    **{
        getattr(reduction, f"MPSImageReduce{axis}{name}"): _reduced(f"{axis}{name}")
        for axis in ("Row", "Column") for name in ("Min", "Max", "Mean", "Sum")
    },
}  # fmt: skip


def _integral(kind: str, channels: int, made: int | None = None) -> FilterSample:
    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = oracle.textured(how[0].region(sources[0]), count)
        return oracle.integral(x**2 if kind == "IntegralOfSquares" else x)

    make = getattr(integral, f"MPSImage{kind}")
    name = f"image {kind} of {channels} channels to {made or channels}"
    return FilterSample(name, make, forward, (channels,), made, works_in_place=False)


def _sparse(sources: list[Array]) -> list[Array]:
    """A few pixels that are not 0, one at least."""
    few = [np.where(each > 0.93, each, 0.0) for each in sources]
    for each in few:
        each[..., 3, 2] = 1.0
    return few


def _distance(channels: int) -> FilterSample:
    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        return oracle.distances(sources[0], *how[0])

    return FilterSample(
        f"image distances of {channels} channels", distance.MPSImageEuclideanDistanceTransform, forward, (channels,),
        drawn=_sparse,
    )  # fmt: skip


def _canny(channels: int, made: int, **values: Any) -> FilterSample:
    sigma = values.pop("sigma", 2.0**0.5)

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = oracle.gray(sources[0]) if made == 1 else sources[0]
        low, high = values.get("low_threshold", 0.2), values.get("high_threshold", 0.4)
        return how[0].region(oracle.canny(x, sigma, low, high, how[0].edge))

    def make(device: MTLDevice) -> Any:
        return configured(canny.MPSImageCanny(device, sigma=sigma), values)

    return FilterSample(
        f"image Canny of {channels} channels to {made}, sigma {sigma}", make, forward, (channels,), made
    )


TRANSFORMS: dict[type[MPSKernel], list[FilterSample]] = {
    integral.MPSImageIntegral: [_integral("Integral", 4), _integral("Integral", 2, 4)],
    integral.MPSImageIntegralOfSquares: [_integral("IntegralOfSquares", 1)],
    distance.MPSImageEuclideanDistanceTransform: [_distance(3), _distance(1)],
    canny.MPSImageCanny: [
        _canny(3, 3, sigma=0.6, low_threshold=0.5, high_threshold=1.25), _canny(4, 1, sigma=0.5), _canny(1, 1)
    ],
}  # fmt: skip


def _with_info(kind: Any, device: MTLDevice) -> Any:
    return kind(device, MPSImageHistogramInfo(16))


FILTERS: dict[type[MPSKernel], list[FilterSample]] = {
    **THRESHOLDS,
    **ARITHMETIC,
    conversion.MPSImageConversion: CONVERSIONS,
    transpose.MPSImageTranspose: TRANSPOSES,
    **MEASURES,
    **TRANSFORMS,
    **WINDOWS,
    **MORPHOLOGY,
    median.MPSImageMedian: MEDIANS,
}
"""Every filter that makes a picture of pictures."""

ALL_FILTERS = [sample for samples in FILTERS.values() for sample in samples]

GUIDED: dict[type[MPSKernel], Callable[[MTLDevice], Any]] = {
    guided_filter.MPSImageGuidedFilter: lambda device: guided_filter.MPSImageGuidedFilter(device, 3)
}

PYRAMIDS: dict[type[MPSKernel], Callable[[MTLDevice], Any]] = {
    pyramid.MPSImageGaussianPyramid: pyramid.MPSImageGaussianPyramid,
    pyramid.MPSImageLaplacianPyramidSubtract: pyramid.MPSImageLaplacianPyramidSubtract,
    pyramid.MPSImageLaplacianPyramidAdd: lambda device: pyramid.MPSImageLaplacianPyramidAdd(
        device, 1, 3, [0.5, 1, 0.25]
    ),
}
"""Pyramids, whose levels are those of textures."""

HISTOGRAMS: dict[type[MPSKernel], Callable[[MTLDevice], Any]] = {
    kind: partial(_with_info, kind)
    for kind in (
        histogram.MPSImageHistogram,
        histogram.MPSImageNormalizedHistogram,
        equalization.MPSImageHistogramEqualization,
        equalization.MPSImageHistogramSpecification,
    )
}
"""The kernels of histograms, whose bins lie in buffers."""
