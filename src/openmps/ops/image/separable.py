"""Filters whose windows are products of one profile down and one across (MPSImageConvolution.h, macOS 10.13).

=========  ==========================================  =============================================
profile    weight of a tap i pixels from the centre    cost a pixel, for a window of k pixels
=========  ==========================================  =============================================
flat       ``1 / k``                                   ``log k``: sums of two, four, eight … pixels
triangle   ``(m - |i|) / m²``, ``m = (k + 1) / 2``     the same: a flat one of m pixels, twice
bell       ``exp(-i² / 2 sigma²)``, of sum 1           ``k``
=========  ==========================================  =============================================

Along an axis whose window is larger than twice the source, the source pixels of each result pixel are weighed instead.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import convolution
from openmps.ops.elements import encode
from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, empty_image, read
from openmps.ops.image.flat import rounded_means
from openmps.ops.image.taps import sums_along
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode, MPSImageFeatureChannelFormat

_LARGEST = 255
"""Byte."""
FEW = 24
"""Pixels of a window that Triton adds up sooner one by one than in sums of two, four, eight …"""
MOST_TAPS = 96
"""Of a sum along an axis by Triton: its weights are arguments of the kernel."""
_EXACT = 1 << 24
"""Up to which float32 has all whole numbers."""


class Shape(Enum):
    """How weights fall from the centre of a window to its ends."""

    FLAT = auto()
    TRIANGLE = auto()
    BELL = auto()


class Profile(NamedTuple):
    """The weights of a window along one axis; the window says how many."""

    shape: Shape
    sigma: float = 0.0
    """Of a bell, in pixels."""

    def spans(self, size: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Flat windows that follow one another, down and across, in the place of a flat or a triangular one."""
        rows, columns = size
        if self.shape is Shape.FLAT:
            return [rows], [columns]
        return [(rows + 1) // 2] * 2, [(columns + 1) // 2] * 2

    def weights(self, size: int, like: Tensor) -> Tensor:
        """The weights of a triangle or a bell of ``size`` taps, float64, on the device of ``like``."""
        middle = (size - 1) // 2
        distance = torch.arange(-middle, middle + 1, dtype=torch.float64, device=like.device)
        if self.shape is Shape.BELL:
            weights = torch.exp(-0.5 * (distance / self.sigma).square())  # the square of a tiny sigma would be 0
        else:
            weights = middle + 1 - distance.abs()
        return weights / weights.sum()

    def counts(self, size: int) -> tuple[float, ...]:
        """How often a flat or a triangular window of ``size`` taps adds each of them."""
        if self.shape is Shape.FLAT:
            return (1.0,) * size
        return tuple([(size + 1) / 2 - abs(tap - size // 2) for tap in range(size)])


def separable(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, profile: Profile) -> Tensor:
    """Weigh the pixels of each window: ``[N, C, H, W]`` to ``[N, C, window.y.result, window.x.result]``."""
    axes = [(window.y, ROWS), (window.x, COLUMNS)]
    for axis, dimension in sorted(axes, key=lambda each: each[0].result / each[0].source):
        x = _along(x, axis, dimension, edge_mode, profile)
    return x


def separable_bytes(region: Tensor, size: tuple[int, int], profile: Profile) -> Tensor:
    """As `separable`, of a region of bytes ``[N, C, H + kh - 1, W + kw - 1]`` and windows of kh x kw pixels.

    The result is of numbers of 0 … 1, each byte 1/255 of them. Flat and triangular windows are summed as whole numbers.
    """
    if profile.shape is Shape.BELL:
        numbers = region
        for length, dimension in zip(size, (ROWS, COLUMNS), strict=True):
            whole = Axis(numbers.shape[dimension], numbers.shape[dimension] - length + 1, length, offset=length // 2)
            numbers = _correlated(numbers, profile, whole, dimension, _LARGEST if dimension == ROWS else 1)
        return numbers
    total = math.prod(math.prod(each) for each in profile.spans(size))
    if max(size) <= FEW and sums_exactly(profile, size) and _sums_in_triton(region, max(size)):
        from openmps.ops.triton.image.taps import sum_along

        down, across = map(profile.counts, size)
        return sum_along(sum_along(region, down, ROWS, 1.0), across, COLUMNS, 1.0 / (total * _LARGEST))
    x = region.to(torch.int16 if total * _LARGEST < 1 << 15 else torch.int32)
    for lengths, dimension in zip(profile.spans(size), (ROWS, COLUMNS), strict=True):
        for length in lengths:
            x = window_sums(x, length, dimension)
    return x.to(torch.float32).mul_(1.0 / (total * _LARGEST))


def sums_exactly(profile: Profile, size: tuple[int, int]) -> bool:
    """Whether float32 holds the sums of bytes over flat or triangular windows that are not divided yet."""
    return math.prod(map(math.prod, profile.spans(size))) * _LARGEST < _EXACT


def mean_bytes(region: Tensor, size: tuple[int, int], profile: Profile) -> Tensor:
    """The same of flat and triangular windows, as bytes: rounded once."""
    if region.device.type != "cpu":
        return encode(separable_bytes(region, size, profile), MPSImageFeatureChannelFormat.UNORM8)
    height, width = (length - each + 1 for length, each in zip(region.shape[2:], size, strict=True))
    result = empty_image(region, region.shape[1], (height, width))
    for image, made in zip(region, result, strict=True):
        rounded_means(image, profile.spans(size), made)
    return result


def sums_bytes(window: Window, profile: Profile) -> bool:
    """Whether `separable_bytes` takes such windows: sums fit 31 bits, and no window reaches far beyond the source."""
    axes = window.y, window.x
    is_near = all(axis.size <= 2 * axis.source for axis in axes)
    return is_near and (
        profile.shape is Shape.BELL or math.prod(map(math.prod, profile.spans(window.size))) * (_LARGEST + 1) < 1 << 31
    )


def _along(x: Tensor, axis: Axis, dimension: int, edge_mode: MPSImageEdgeMode, profile: Profile) -> Tensor:
    if axis.size > 2 * axis.source:
        return _weighed(x, _matrix(axis, edge_mode, profile, x), dimension)
    other = x.shape[COLUMNS if dimension == ROWS else ROWS]
    whole = Axis(other, other)
    region = read(x, Window(whole, axis) if dimension == ROWS else Window(axis, whole), edge_mode)
    if profile.shape is Shape.FLAT:
        return window_sums(region, axis.size, dimension).div_(axis.size)
    if profile.shape is Shape.TRIANGLE:
        half = (axis.size + 1) // 2
        return window_sums(window_sums(region, half, dimension), half, dimension).div_(half * half)
    return _correlated(region, profile, axis, dimension)


def window_sums(x: Tensor, size: int, dimension: int) -> Tensor:
    """The sums of ``size`` neighbours along a dimension, in new memory: as many as there are whole windows.

    Sums of two, four, eight … neighbours, those together that the size's binary digits name: what is no number stays
    within its windows.
    """
    count = x.shape[dimension] - size + 1
    parts, powers, taken, length = list[Tensor](), x, 0, 1
    while taken < size:
        if size & length:
            parts.append(powers.narrow(dimension, taken, count))
            taken += length
        reach = powers.shape[dimension] - length
        if taken < size:
            powers = powers.narrow(dimension, 0, reach) + powers.narrow(dimension, length, reach)
        length *= 2
    if len(parts) == 1:
        return parts[0] if size > 1 else x.clone(memory_format=torch.channels_last)
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total.add_(part)
    return total


def _correlated(region: Tensor, profile: Profile, axis: Axis, dimension: int, divisor: int = 1) -> Tensor:
    """The region with weights along one axis, channel by channel, and divided; bytes as numbers of 0 … 255."""
    if _sums_in_triton(region, axis.size):
        from openmps.ops.triton.image.taps import sum_along

        return sum_along(region, numbers_of(profile, axis.size, divisor), dimension, 1.0)
    region = region.to(torch.float32) if region.dtype == torch.uint8 else region
    weights = profile.weights(axis.size, region) / divisor
    if region.device.type == "cpu":
        return sums_along(region, weights, dimension)
    channels, size = region.shape[1], len(weights)
    shape = (channels, size, 1, 1) if dimension == ROWS else (channels, 1, size, 1)
    kernel = weights.to(region.dtype).view(1, *shape[1:]).expand(shape).contiguous()
    taps = Axis(region.shape[dimension], axis.result, size, offset=size // 2)
    other = region.shape[COLUMNS if dimension == ROWS else ROWS]
    window = Window(Axis(other, other), taps) if dimension == ROWS else Window(taps, Axis(other, other))
    return convolution(region, kernel, None, window, groups=channels)


def _sums_in_triton(region: Tensor, taps: int) -> bool:
    if not triton.runs_on(region.device):
        return False
    from openmps.ops.triton.image import taps as kernels

    return taps <= MOST_TAPS and kernels.takes(region)


@lru_cache(maxsize=64)
def numbers_of(profile: Profile, size: int, divisor: int) -> tuple[float, ...]:
    """The weights of a window as arguments of a kernel."""
    return tuple((profile.weights(size, torch.empty(0)) / divisor).tolist())


def _weighed(x: Tensor, matrix: Tensor, dimension: int) -> Tensor:
    """Products with a matrix [result, source] along one dimension."""
    return torch.matmul(matrix, x) if dimension == ROWS else torch.matmul(x, matrix.T)


def _matrix(axis: Axis, edge_mode: MPSImageEdgeMode, profile: Profile, like: Tensor) -> Tensor:
    """The weight of each source pixel in each result pixel."""
    if profile.shape is Shape.FLAT:
        return axis.reads(edge_mode, like).div_(axis.size)
    weights = profile.weights(axis.size, like)
    first = axis.first + torch.arange(axis.result, device=like.device)[:, None]
    tap = torch.arange(axis.source, device=like.device) - first
    matrix = torch.where((tap >= 0) & (tap < axis.size), weights[tap.clamp(0, axis.size - 1)], 0.0)
    if edge_mode == MPSImageEdgeMode.CLAMP:
        before = torch.cat((weights.new_zeros(1), weights.cumsum(0)))  # of the first 0, 1, 2 … taps
        matrix[:, :1] += before[(-first).clamp(0, axis.size)]
        matrix[:, -1:] += before[-1] - before[(axis.source - first).clamp(0, axis.size)]
    return matrix.to(like.dtype)


class Separable(Op, of=separable, kind=Kind.WINDOW):
    """`separable` of a picture."""

    window: Window
    edge_mode: MPSImageEdgeMode
    profile: Profile


class MeanBytes(Op, of=mean_bytes, kind=Kind.WINDOW):
    """`mean_bytes` of a region."""

    size: tuple[int, int]
    profile: Profile


class SeparableBytes(Op, of=separable_bytes, kind=Kind.WINDOW):
    """`separable_bytes` of a region."""

    size: tuple[int, int]
    profile: Profile
