"""Filters of pictures, each with the call of OpenCV that makes the same picture.

A case's call gets the source as an array ``[H, W]`` or ``[H, W, channels]`` and gives the result as one. OpenCV's
numbers differ by what `apart` allows: of bytes by one where it rounds, or computes in fixed point; of floats by the
rounding of its sums. Borders are those of the case: OpenCV's own default reflects them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[Any]
Channels = mps.MPSImageFeatureChannelFormat
Bytes, Floats = Channels.UNORM8, Channels.FLOAT32
Edge = mps.MPSImageEdgeMode
INFO = mps.MPSImageHistogramInfo(256)
SHARPEN = np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]], np.float32)
UNEVEN = np.random.default_rng(1).normal(0, 0.1, (5, 5)).astype(np.float32)


class Kind(NamedTuple):
    """How pixels are stored."""

    channels: int
    format: mps.MPSImageFeatureChannelFormat

    @property
    def dtype(self) -> Any:
        """Of the elements."""
        return np.uint8 if self.format is Bytes else np.float32


RGBA8, R8, R32, RGBA32 = Kind(4, Bytes), Kind(1, Bytes), Kind(1, Floats), Kind(4, Floats)
Encode = Callable[[Any, mps.MPSImage, mps.MPSImage], object]


class Case(NamedTuple):
    """One filter beside one call of OpenCV."""

    name: str
    make: Callable[[mps.MTLDevice], Encode]
    """What encodes the filter from an image into another one."""
    call: Callable[[Any, Array], Array]
    """Of the module `cv2` and a picture."""
    source: Kind = RGBA8
    result: Kind = RGBA8
    apart: float = 1.0
    """Largest difference of the numbers as they are stored; of floats as a share of the largest one. Infinite for what
    is no picture: a test of its own compares that."""
    size: Callable[[int, int], tuple[int, int]] = lambda height, width: (height, width)
    """Rows and columns of the result."""
    few: float = 0.0
    """Share of the pixels that may differ by more."""
    picture: Callable[[int, int, Kind], Array] | None = None
    """What is filtered; unless given a smooth picture with noise."""


@lru_cache(maxsize=8)
def noisy(height: int, width: int, kind: Kind) -> Array:
    """Waves with noise: neither flat nor noise alone, as photographs are."""
    generator = np.random.default_rng(height)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    waves = np.sin(rows / 37.0) * np.cos(columns / 53.0) / 3.0 + 0.5
    shape = (height, width, kind.channels)
    found = np.clip(waves[..., None] + generator.normal(0, 0.05, shape).astype(np.float32), 0.0, 1.0)
    return np.round(found * 255.0).astype(np.uint8) if kind.format is Bytes else found.astype(np.float32)


def inner(height: int, width: int, kind: Kind) -> Array:
    """Waves with noise without the smallest and the largest byte, by which extremes are found before the end."""
    return np.clip(noisy(height, width, kind), 10, 239)


def dots(height: int, width: int, kind: Kind) -> Array:
    """Black with one pixel in 500 set."""
    return np.where(np.random.default_rng(width).random((height, width, kind.channels)) < 0.002, 255, 0).astype(
        np.uint8
    )


# --- ours -------------------------------------------------------------------------------------------------------------


def filtered(kernel: str, *arguments: Any, edge: mps.MPSImageEdgeMode | None = Edge.CLAMP, **properties: Any) -> Any:
    """Encodes a filter of one picture."""

    def make(device: mps.MTLDevice) -> Encode:
        made = getattr(mps, kernel)(device, *arguments)
        for name, value in {**({} if edge is None else {"edge_mode": edge}), **properties}.items():
            setattr(made, name, value)
        return made.encode

    return make


def doubled(kernel: str, **properties: float) -> Any:
    """Encodes a filter of two pictures, which are one."""

    def make(device: mps.MTLDevice) -> Encode:
        made = getattr(mps, kernel)(device)
        for name, value in properties.items():
            setattr(made, name, value)
        return lambda command_buffer, source, result: made.encode(command_buffer, source, source, result)

    return make


def counted(device: mps.MTLDevice) -> Encode:
    """Encodes a histogram; the first row of the result stays as it is."""
    histogram, counts = mps.MPSImageHistogram(device, INFO), device.new_buffer(length=4 * 256 * 4)
    return lambda command_buffer, source, result: histogram.encode(command_buffer, source, counts, 0)


def equalized(device: mps.MTLDevice) -> Encode:
    """Encodes a histogram, the table that it makes, and the picture."""
    histogram, counts = mps.MPSImageHistogram(device, INFO), device.new_buffer(length=4 * 256 * 4)
    equalization = mps.MPSImageHistogramEqualization(device, INFO)

    def encode(command_buffer: Any, source: mps.MPSImage, result: mps.MPSImage) -> None:
        histogram.encode(command_buffer, source, counts, 0)
        equalization.encode_transform(command_buffer, source, counts, 0)
        equalization.encode(command_buffer, source, result)

    return encode


# --- OpenCV's ---------------------------------------------------------------------------------------------------------


def _bell(sigma: float) -> int:
    return 2 * math.ceil(3.7 * sigma) + 1


def _triangle(size: int) -> Array:
    middle = size // 2
    return (middle + 1 - np.abs(np.arange(-middle, middle + 1.0))) / (middle + 1) ** 2


def _blurred(sigma: float) -> Callable[[Any, Array], Array]:
    size = _bell(sigma)
    return lambda cv2, x: cv2.GaussianBlur(x, (size, size), sigma, borderType=cv2.BORDER_REPLICATE)


def _sobel(cv2: Any, x: Array) -> Array:
    across, down = (
        cv2.Sobel(x, cv2.CV_32F, *order, ksize=3, borderType=cv2.BORDER_REPLICATE) for order in ((1, 0), (0, 1))
    )
    return cv2.magnitude(across, down)


def _canny(cv2: Any, x: Array) -> Array:
    smooth = _blurred(math.sqrt(2.0))(cv2, x)
    across, down = (
        cv2.Sobel(smooth, cv2.CV_16S, *order, ksize=3, borderType=cv2.BORDER_REPLICATE) for order in ((1, 0), (0, 1))
    )
    return cv2.Canny(across, down, 0.2 * 255, 0.4 * 255, L2gradient=True)


def _moments(cv2: Any, x: Array) -> Array:
    mean, deviation = cv2.meanStdDev(x)
    return np.stack([mean[:, 0], deviation[:, 0] ** 2])[None]


def _levels(cv2: Any, x: Array) -> Array:
    return cv2.pyrDown(x, borderType=cv2.BORDER_REPLICATE)


def _box_sums(cv2: Any, x: Array) -> Array:
    return cv2.integral(x, sdepth=cv2.CV_64F)[1:, 1:].astype(np.float32)


def _counts(cv2: Any, x: Array) -> Array:
    return np.stack([cv2.calcHist([x], [channel], None, [256], [0, 256]) for channel in range(3)])


CASES: tuple[Case, ...] = (
    Case(
        "MPSImageConvolution 3x3",
        filtered("MPSImageConvolution", 3, 3, SHARPEN),
        lambda cv2, x: cv2.filter2D(x, -1, SHARPEN, borderType=cv2.BORDER_REPLICATE),
    ),
    Case(
        "MPSImageConvolution 5x5, float32",
        filtered("MPSImageConvolution", 5, 5, UNEVEN),
        lambda cv2, x: cv2.filter2D(x, -1, UNEVEN, borderType=cv2.BORDER_REPLICATE),
        R32, R32, 1e-5,
    ),
    Case(
        "MPSImageLaplacian, float32",
        filtered("MPSImageLaplacian"),
        lambda cv2, x: cv2.Laplacian(x, cv2.CV_32F, ksize=1, borderType=cv2.BORDER_REPLICATE),
        R32, R32, 1e-5,
    ),
    Case(
        "MPSImageSobel, float32",
        filtered("MPSImageSobel"),
        _sobel,
        R32, R32, 1e-5,
    ),
    *(
        Case(
            f"MPSImageBox {size}",
            filtered("MPSImageBox", size, size),
            lambda cv2, x, size=size: cv2.blur(x, (size, size), borderType=cv2.BORDER_REPLICATE),
        )
        for size in (5, 51)
    ),
    Case(
        "MPSImageTent 9",
        filtered("MPSImageTent", 9, 9),
        lambda cv2, x: cv2.sepFilter2D(x, -1, _triangle(9), _triangle(9), borderType=cv2.BORDER_REPLICATE),
    ),
    *(
        Case(f"MPSImageGaussianBlur {sigma:g}", filtered("MPSImageGaussianBlur", sigma), _blurred(sigma))
        for sigma in (1.0, 3.0, 10.0)
    ),
    Case(
        "MPSImageGaussianBlur 3, float32",
        filtered("MPSImageGaussianBlur", 3.0),
        _blurred(3.0),
        R32, R32, 1e-5,
    ),
    *(
        Case(
            f"MPSImageMedian {size}",
            filtered("MPSImageMedian", size),
            lambda cv2, x, size=size: cv2.medianBlur(x, size),
            R8, R8, 0.0,
        )
        for size in (3, 5, 9)
    ),
    *(
        Case(
            f"MPSImageAreaMax {size}",
            filtered("MPSImageAreaMax", size, size),
            lambda cv2, x, size=size: cv2.dilate(x, np.ones((size, size), np.uint8)),
            apart=0.0,
        )
        for size in (3, 25)
    ),
    Case(
        "MPSImageThresholdBinary",
        filtered("MPSImageThresholdBinary", 0.5, 1.0),
        lambda cv2, x: cv2.threshold(x, 127, 255, cv2.THRESH_BINARY)[1],
        R8, R8, 0.0,
    ),
    Case(
        "MPSImageThresholdToZero of colours",
        filtered("MPSImageThresholdToZero", 0.5),
        lambda cv2, x: cv2.threshold(cv2.cvtColor(x, cv2.COLOR_RGBA2GRAY), 127, 255, cv2.THRESH_TOZERO)[1],
        RGBA8, R8, 1.0, few=0.02,
    ),
    Case("MPSImageAdd", doubled("MPSImageAdd", primary_scale=0.25, secondary_scale=0.5, bias=0.1),
         lambda cv2, x: cv2.addWeighted(x, 0.25, x, 0.5, 25.5)),
    Case("MPSImageSubtract, float32", doubled("MPSImageSubtract", primary_scale=0.25),
         lambda cv2, x: cv2.addWeighted(x, 0.25, x, -1.0, 0.0), R32, R32, 1e-6),
    Case("MPSImageMultiply", doubled("MPSImageMultiply"), lambda cv2, x: cv2.multiply(x, x, scale=1 / 255)),
    Case("MPSImageDivide, float32", doubled("MPSImageDivide", secondary_scale=2.0),
         lambda cv2, x: cv2.divide(x, x, scale=0.5), R32, R32, 1e-6, few=1e-3),
    Case("MPSImageConversion to float32",
         filtered("MPSImageConversion", mps.MPSAlphaType.PREMULTIPLIED, mps.MPSAlphaType.PREMULTIPLIED),
         lambda cv2, x: cv2.multiply(x, (1 / 255,) * 4, dtype=cv2.CV_32F), RGBA8, RGBA32, 1e-6),
    Case(
        "MPSImageConversion to premultiplied",
        filtered("MPSImageConversion", mps.MPSAlphaType.NON_PREMULTIPLIED, mps.MPSAlphaType.PREMULTIPLIED),
        lambda cv2, x: cv2.cvtColor(x, cv2.COLOR_RGBA2mRGBA),
    ),
    Case(
        "MPSImageTranspose",
        filtered("MPSImageTranspose"),
        lambda cv2, x: cv2.transpose(x),
        apart=0.0, size=lambda height, width: (width, height),
    ),
    Case(
        "MPSImageBilinearScale to 3/4",
        filtered("MPSImageBilinearScale"),
        lambda cv2, x: cv2.resize(x, (x.shape[1] * 3 // 4, x.shape[0] * 3 // 4), interpolation=cv2.INTER_LINEAR),
        size=lambda height, width: (height * 3 // 4, width * 3 // 4),
    ),
    Case("MPSImageHistogram", counted, _counts, apart=math.inf),
    Case("MPSImageHistogramEqualization", equalized, lambda cv2, x: cv2.equalizeHist(x), R8, R8, 2.0),
    Case(
        "MPSImageStatisticsMeanAndVariance",
        filtered("MPSImageStatisticsMeanAndVariance", edge=None),
        lambda cv2, x: _moments(cv2, x) / np.float32([[[255.0] * 4, [255.0**2] * 4]]),
        RGBA8, RGBA32, 1e-5, size=lambda height, width: (1, 2),
    ),
    Case(
        "MPSImageStatisticsMinAndMax",
        filtered("MPSImageStatisticsMinAndMax", edge=None),
        lambda cv2, x: np.array([cv2.minMaxLoc(x)[:2]]),
        R8, R8, 0.0, size=lambda height, width: (1, 2), picture=inner,
    ),
    Case(
        "MPSImageReduceRowMean, float32",
        filtered("MPSImageReduceRowMean", edge=None),
        lambda cv2, x: cv2.reduce(x, 1, cv2.REDUCE_AVG),
        R32, R32, 1e-5, size=lambda height, width: (height, 1),
    ),
    Case(
        "MPSImageReduceColumnMax",
        filtered("MPSImageReduceColumnMax", edge=None),
        lambda cv2, x: cv2.reduce(x, 0, cv2.REDUCE_MAX),
        apart=0.0, size=lambda height, width: (1, width),
    ),
    Case("MPSImageIntegral, float32", filtered("MPSImageIntegral", edge=Edge.ZERO), _box_sums, R32, R32, 1e-6),
    Case(
        "MPSImageEuclideanDistanceTransform",
        filtered("MPSImageEuclideanDistanceTransform", edge=Edge.ZERO),
        lambda cv2, x: cv2.distanceTransform(255 - x, cv2.DIST_L2, cv2.DIST_MASK_PRECISE),
        R8, R32, 1e-5, picture=dots,
    ),
    Case("MPSImageCanny", filtered("MPSImageCanny"), _canny, R8, R8, 0.0, few=0.02),
)  # fmt: skip
