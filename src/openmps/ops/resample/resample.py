"""Images read at other places than their pixels: enlarging, resizing, sampling, with gradients.

Positions are source pixels, pixel ``k`` being position ``k``. One axis, linear interpolation at position ``u``::

    k = floor(u), w = u - k:    (1 - w) * X[k] + w * X[k + 1]

The pixel behind the last one is the last one, in every edge mode; what lies further outside is the edge mode's
business. (MPSCNNUpsampling.h, macOS 10.13; MPSNNResize.h, macOS 10.14.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops import triton
from openmps.ops.elements import Unshared
from openmps.ops.geometry import Axis, Window, read, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.ops.resample import aligned_interpolation
from openmps.ops.resample.stretch import Corners, Stretch, Taps
from openmps.types import MPSImageEdgeMode

ROWS = 1
COLUMNS = 2
# Of pixels [N, H, W, C], as they lie in channels-last memory.


# --- separable: the same taps for each row, the same for each column --------------------------------------------------


def resample(x: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Apply the taps of both axes: [N, C, H, W] to [N, C, rows.result, columns.result], channels-last."""
    pixels = x.permute(0, 2, 3, 1)
    # The axis that shrinks more goes first: fewer numbers for the other one.
    steps = [(ROWS, rows), (COLUMNS, columns)]
    for dimension, taps in sorted(steps, key=lambda step: step[1].index.shape[1] / step[1].source):
        pixels = _gathered(pixels, taps, dimension)
    return pixels.permute(0, 3, 1, 2)


def resample_adjoint(gradient: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """The exact adjoint of `resample`: [N, C, rows.result, columns.result] to [N, C, rows.source, columns.source]."""
    pixels = _scattered(gradient.permute(0, 2, 3, 1), columns, COLUMNS)
    return _scattered(pixels, rows, ROWS).permute(0, 3, 1, 2)


def _gathered(pixels: Tensor, taps: Taps, dimension: int) -> Tensor:
    if taps.has_zeros:
        pixels = functional.pad(pixels, [0, 0, 0, 1] if dimension == COLUMNS else [0, 0, 0, 0, 0, 1])
    total = pixels.index_select(dimension, taps.index[0])
    if taps.weight is None:
        return total
    weights = _across(taps.weight, dimension)
    total.mul_(weights[0])
    for index, weight in zip(taps.index[1:], weights[1:], strict=True):
        total.addcmul_(pixels.index_select(dimension, index), weight)
    return total


def _scattered(pixels: Tensor, taps: Taps, dimension: int) -> Tensor:
    shape = list(pixels.shape)
    shape[dimension] = taps.source + taps.has_zeros
    total = pixels.new_zeros(shape)
    weights = [None] * len(taps.index) if taps.weight is None else _across(taps.weight, dimension)
    for index, weight in zip(taps.index, weights, strict=True):
        total.index_add_(dimension, index, pixels if weight is None else pixels * weight)
    return total.narrow(dimension, 0, taps.source)


def _across(weight: Tensor, dimension: int) -> Tensor:
    """Weights [taps, result], shaped to meet pixels along a dimension."""
    return weight[:, :, None, None] if dimension == ROWS else weight[:, None, :, None]


# --- by a ratio of whole numbers: bilinear upsampling and resizing ----------------------------------------------------


def interpolate(x: Tensor, rows: Stretch, columns: Stretch, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Bilinear interpolation at the positions of two stretches; see the top of this file.

    Args:
        x: The source, [N, C, rows.source, columns.source].
        rows: Where the rows of the result stand.
        columns: Where its columns stand.
        edge_mode: ``ZERO`` or ``CLAMP``.

    Returns:
        [N, C, rows.result, columns.result], in channels-last memory; perhaps a view of ``x`` where nothing changes.
    """
    if aligned_interpolation.takes(x, rows, columns):
        return aligned_interpolation.interpolate(x, rows, columns)
    if (fast := _kernels_for(x, rows, columns)) is not None:
        return fast.interpolate(x, rows, columns)
    return _along_each(x, rows, columns, _by_growth(rows, columns), edge_mode, _spread, _gathered)


def interpolate_gradient(gradient: Tensor, rows: Stretch, columns: Stretch, edge_mode: MPSImageEdgeMode) -> Tensor:
    """The gradient for the source of `interpolate`: each gradient pixel, by its weights, where it was read.

    Its exact adjoint: [N, C, rows.result, columns.result] to [N, C, rows.source, columns.source].
    """
    if aligned_interpolation.takes(gradient, rows, columns):
        return aligned_interpolation.interpolate_gradient(gradient, rows, columns)
    fast = _kernels_for(gradient, rows, columns)
    if fast is not None and fast.gathers(rows, columns):
        return fast.interpolate_gradient(gradient, rows, columns)
    axes = reversed(_by_growth(rows, columns))
    return _along_each(gradient, rows, columns, axes, edge_mode, _collected, _scattered)


def _along_each(
    x: Tensor,
    rows: Stretch,
    columns: Stretch,
    axes: Iterable[tuple[int, Stretch]],
    edge_mode: MPSImageEdgeMode,
    by_phases: Callable[[Tensor, Stretch, int], Tensor],
    by_taps: Callable[[Tensor, Taps, int], Tensor],
) -> Tensor:
    """An image that is resampled along one axis after the other."""
    steps = [
        (dimension, stretch, None if stretch.has_phases else stretch.taps(edge_mode, x)) for dimension, stretch in axes
    ]

    def of(pixels: Tensor) -> Tensor:
        for dimension, stretch, taps in steps:
            pixels = by_phases(pixels, stretch, dimension) if taps is None else by_taps(pixels, taps, dimension)
        return pixels

    numbers = x.shape[0] * x.shape[1] * max(rows.source, rows.result) * max(columns.source, columns.result)
    return _in_parts(of, x.permute(0, 2, 3, 1), numbers).permute(0, 3, 1, 2)


def _kernels_for(x: Tensor, *axes: Stretch) -> Any:
    """The forms in Triton, if they take these images and axes; else None."""
    if not triton.runs_on(x.device):
        return None
    from openmps.ops.triton.resample import resample as kernels

    return kernels if kernels.takes(x, *axes) else None


_PART = 2**19
"""Numbers of the largest tensor of a part: two mebibytes of float32."""


def _in_parts(compute: Callable[[Tensor], Tensor], pixels: Tensor, numbers: int) -> Tensor:
    """Return ``compute(pixels)``, on the CPU a few images at a time.

    What is computed on the way then stays in the cache, and in memory that the process has already: large tensors are
    new memory each time, which the system clears page by page.
    """
    images = len(pixels)
    together = max(1, images * _PART // max(1, numbers))
    if pixels.is_cuda or together >= images:
        return compute(pixels)
    parts = (compute(pixels[first : first + together]) for first in range(0, images, together))
    result, first = pixels.new_empty(0), 0
    for part in parts:
        result = result if first else part.new_empty((images, *part.shape[1:]))
        result[first : first + together].copy_(part)
        first += len(part)
    return result


def _by_growth(rows: Stretch, columns: Stretch) -> list[tuple[int, Stretch]]:
    """Both axes, the one that grows less first: fewer numbers for the other one."""
    steps = [(ROWS, rows), (COLUMNS, columns)]
    return sorted(steps, key=lambda step: step[1].result / step[1].source)


def _spread(pixels: Tensor, stretch: Stretch, dimension: int) -> Tensor:
    """Interpolate along one axis by a whole factor f: the results of one phase r, pixels k f + r, all at once."""
    factor, blocks = stretch.denominator, stretch.blocks
    base = pixels.narrow(dimension, stretch.offset, blocks)
    if factor == 1:
        return base
    pairs = min(blocks, stretch.source - 1 - stretch.offset)
    beyond = pixels.narrow(dimension, stretch.offset + 1, pairs)
    shape = list(base.shape)
    shape.insert(dimension + 1, factor)
    result = pixels.new_empty(shape)
    result.select(dimension + 1, 0).copy_(base)
    for phase in range(1, factor):
        part = result.select(dimension + 1, phase)
        torch.lerp(base.narrow(dimension, 0, pairs), beyond, phase / factor, out=part.narrow(dimension, 0, pairs))
        # Behind the last pixel there is the last pixel.
        part.narrow(dimension, pairs, blocks - pairs).copy_(base.narrow(dimension, pairs, blocks - pairs))
    return result.flatten(dimension, dimension + 1).narrow(dimension, 0, stretch.result)


def _collected(pixels: Tensor, stretch: Stretch, dimension: int) -> Tensor:
    """The adjoint of `_spread`."""
    factor, blocks = stretch.denominator, stretch.blocks
    shape = list(pixels.shape)
    shape[dimension] = stretch.source
    total = pixels.new_zeros(shape)
    base = total.narrow(dimension, stretch.offset, blocks)
    for phase in range(factor):
        part = pixels[(slice(None),) * dimension + (slice(phase, None, factor),)]
        count = part.shape[dimension]
        pairs = min(count, stretch.source - 1 - stretch.offset)
        weight = phase / factor
        base.narrow(dimension, 0, pairs).add_(part.narrow(dimension, 0, pairs), alpha=1.0 - weight)
        base.narrow(dimension, pairs, count - pairs).add_(part.narrow(dimension, pairs, count - pairs))
        if phase:
            beyond = total.narrow(dimension, stretch.offset + 1, pairs)
            beyond.add_(part.narrow(dimension, 0, pairs), alpha=weight)
    return total


# --- by a whole factor: nearest upsampling ----------------------------------------------------------------------------

_EXACT_FACTORS = (1, 2, 4, 8)


def enlarge(x: Tensor, window: Window, factors: tuple[int, int], edge_mode: MPSImageEdgeMode) -> Tensor:
    """Repeat pixels: ``Y[n, c, y, x] = E[n, c, y // factors[0] + offset, x // factors[1] + offset]``.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: Offset and number of result pixels of each axis.
        factors: How often rows and columns are repeated.
        edge_mode: ``ZERO`` or ``CLAMP``.

    Returns:
        [N, C, window.y.result, window.x.result], channels-last; perhaps a view of ``x`` where nothing is repeated.
    """
    vertical, horizontal = factors
    region = read(x, _blocks(window, factors), edge_mode)
    images, channels, height, width = region.shape
    if _is_enlarged_by_torch(region, factors):
        whole = torch.ops.aten.upsample_nearest2d(region, [height * vertical, width * horizontal])
        return whole[:, :, : window.y.result, : window.x.result]
    pixels = region.permute(0, 2, 3, 1)
    repeated = pixels[:, :, None, :, None].expand(images, height, vertical, width, horizontal, channels)
    whole = repeated.reshape(images, height * vertical, width * horizontal, channels)
    return whole[:, : window.y.result, : window.x.result].permute(0, 3, 1, 2)


def _is_enlarged_by_torch(region: Tensor, factors: tuple[int, int]) -> bool:
    """Whether torch's kernel repeats these pixels on the CPU, which takes half the time that copies of rows do.

    It multiplies places by 1 / factor, rounded to float32: powers of two are exact.
    """
    is_plain = not region.is_cuda and region.dtype in (torch.float32, torch.float64) and region.numel() > 0
    is_last = region.shape[1] > 1 and region.is_contiguous(memory_format=torch.channels_last)
    return is_plain and is_last and factors != (1, 1) and all(factor in _EXACT_FACTORS for factor in factors)


def enlarge_gradient(gradient: Tensor, window: Window, factors: tuple[int, int], edge_mode: MPSImageEdgeMode) -> Tensor:
    """The gradient for the source of `enlarge`: the sum over each pixel's copies."""
    blocks = _blocks(window, factors)
    if _sums_at_once(gradient, factors):
        from openmps.ops.triton.pooling.pooling import sum_pooling

        y, x = (
            Axis(axis.result, block.result, size=factor, stride=factor, offset=factor // 2)
            for axis, block, factor in zip((window.y, window.x), (blocks.y, blocks.x), factors, strict=True)
        )
        return read_adjoint(sum_pooling(gradient, Window(y=y, x=x)), blocks, edge_mode)
    below = blocks.y.result * factors[0] - window.y.result
    right = blocks.x.result * factors[1] - window.x.result
    whole = functional.pad(gradient, [0, right, 0, below]) if below or right else gradient
    sums = functional.avg_pool2d(whole, factors, divisor_override=1) if factors != (1, 1) else whole
    return read_adjoint(sums, blocks, edge_mode)


def _sums_at_once(gradient: Tensor, factors: tuple[int, int]) -> bool:
    return (
        triton.runs_on(gradient.device)
        and gradient.dtype == torch.float32
        and gradient.is_contiguous(memory_format=torch.channels_last)
        and gradient.shape[0] * gradient.shape[2] * gradient.shape[3] < _MOST_PIXELS
        and 1 < math.prod(factors) <= _MOST_COPIES
    )


_MOST_COPIES, _MOST_PIXELS = 64, 2**31
"""Of a pixel, whose gradients Triton adds up: each is a part of the program; of all images, counted in 32 bits."""


def _blocks(window: Window, factors: tuple[int, int]) -> Window:
    """The pixels of the source that a result of this size repeats, the last perhaps in part."""
    vertical, horizontal = factors
    return Window(
        x=Axis(window.x.source, -(-window.x.result // horizontal), offset=window.x.offset),
        y=Axis(window.y.source, -(-window.y.result // vertical), offset=window.y.offset),
    )


# --- at any positions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tap:
    """One of the two pixels that a position on one axis lies between."""

    index: Tensor
    weight: Tensor
    is_inside: Tensor | None


def sample(x: Tensor, rows: Tensor, columns: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Bilinear interpolation at positions of their own for each image and each result pixel.

    Each of the four pixels around a position that lies outside the source is 0 with ``ZERO``, the nearest pixel of the
    edge with ``CLAMP``. A position that is not a number gives results that are none.

    Args:
        x: The source, [N, C, H, W].
        rows: Positions, float64, that broadcast with ``columns`` to [N, K, h, w]: K results an image.
        columns: Likewise.
        edge_mode: ``ZERO`` or ``CLAMP``.

    Returns:
        [N * K, C, h, w], channels-last: the K results of the first image, then those of the second.
    """
    if (fast := _kernels_for(x)) is not None and fast.samples(x, rows, columns):
        return fast.sample(x, rows, columns, clamps=edge_mode == MPSImageEdgeMode.CLAMP)
    found = _sample_in_bags(x, rows, columns, edge_mode)
    return _sample_by_taps(x, rows, columns, edge_mode) if found is None else found


def _sample_in_bags(x: Tensor, rows: Tensor, columns: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor | None:
    """`sample` by the weighted sums of rows of a table that PyTorch has for embeddings on the CPU.

    None where those do not serve: other devices and types, and numbers that are not finite but might be left out.
    """
    images, channels, height, width = x.shape
    shape = np.broadcast_shapes(rows.shape, columns.shape, (images, 1, 1, 1))
    if x.is_cuda or x.dtype != torch.float32 or not x.numel() or images * height * width >= 2**31:
        return None
    table = x.permute(0, 2, 3, 1).reshape(images * height * width, channels)
    (down, of_rows, below), (right, of_columns, beside) = (
        _pair(position, length, edge_mode) for position, length in ((rows, height), (columns, width))
    )
    if (below or beside) and not math.isfinite(table.sum()):
        return None
    first = torch.arange(images, dtype=torch.int32).view(-1, 1, 1, 1, 1) * (height * width)
    index = ((down * width + first)[..., :, None] + right[..., None, :]).expand(*shape, 2, 2).reshape(-1)
    weight = (of_rows[..., :, None] * of_columns[..., None, :]).to(x.dtype).expand(*shape, 2, 2).reshape(-1)
    begins = torch.arange(0, len(index), 4, dtype=torch.int32)
    total = torch.ops.aten._embedding_bag_forward_only(table, index, begins, False, 0, False, weight)[0]
    return total.view(shape[0] * shape[1], shape[2], shape[3], channels).permute(0, 3, 1, 2)


def _pair(position: Tensor, length: int, edge_mode: MPSImageEdgeMode) -> tuple[Tensor, Tensor, bool]:
    """The two pixels that each position lies between, their weights, and whether any of them is outside."""
    taps = _two_taps(position, length, edge_mode)
    index = torch.stack([tap.index for tap in taps], -1).to(torch.int32)
    weight = torch.stack([tap.weight for tap in taps], -1)
    outside = [tap.is_inside.logical_not() for tap in taps if tap.is_inside is not None]
    if not outside:
        return index, weight, False
    left_out = torch.stack(outside, -1)
    if not left_out.any():
        return index, weight, False
    # A position that is not a number gives none, wherever it is.
    return index, weight.masked_fill_(left_out & weight.isfinite(), 0.0), True


def _sample_by_taps(x: Tensor, rows: Tensor, columns: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor:
    """`sample`, one of the four pixels of each position after the other."""
    images, channels, height, width = x.shape
    shape = np.broadcast_shapes(rows.shape, columns.shape, (images, 1, 1, 1))
    table = x.permute(0, 2, 3, 1).reshape(images * height * width, channels)
    first = torch.arange(images, device=x.device).view(-1, 1, 1, 1) * (height * width)
    size = (shape[0] * shape[1], shape[2], shape[3])
    total = x.new_zeros((*size, channels))
    across = _two_taps(columns, width, edge_mode)
    for down in _two_taps(rows, height, edge_mode):
        for right in across:
            index = (first + down.index * width + right.index).expand(shape)
            numbers = table.index_select(0, index.reshape(-1)).view(*size, channels)
            if down.is_inside is not None and right.is_inside is not None:
                outside = (down.is_inside & right.is_inside).logical_not().expand(shape)
                numbers.masked_fill_(outside.reshape(*size, 1), 0.0)
            weight = (down.weight * right.weight).to(x.dtype).expand(shape)
            total.addcmul_(numbers, weight.reshape(*size, 1))
    return total.permute(0, 3, 1, 2)


def _two_taps(position: Tensor, length: int, edge_mode: MPSImageEdgeMode) -> tuple[_Tap, _Tap]:
    clamps = edge_mode == MPSImageEdgeMode.CLAMP
    # Infinite positions, too, are as far outside as one that reads nothing of the source.
    position = position.clamp(0, length - 1) if clamps else position.clamp(-1, length)
    base = position.floor()
    fraction = position - base
    return _tap(base, 1.0 - fraction, length, clamps), _tap(base + 1.0, fraction, length, clamps)


def _tap(pixel: Tensor, weight: Tensor, length: int, clamps: bool) -> _Tap:
    is_inside = None if clamps else (pixel >= 0).logical_and_(pixel < length)
    return _Tap(pixel.nan_to_num(0.0).clamp_(0, length - 1).to(torch.int64), weight, is_inside)


# --- regions of an image ----------------------------------------------------------------------------------------------

_BORDER = 1e-6
"""Pixels by which a position may leave the source and still count as on its edge: fractions are rounded."""


def crop_and_resize(
    x: Tensor, regions: Tensor, size: tuple[int, int], window: Window, corners: Corners = Corners.CENTRES
) -> Tensor:
    """Cut regions out of every image and resize each, as ``tf.image.crop_and_resize`` does.

    Regions are in fractions of the distance from the centre of the first pixel to that of the last. One axis, region
    from ``a`` to ``b``, resized to ``n`` pixels, result pixel ``i``::

        u = (a + i * (b - a) / (n - 1)) * (source - 1) + offset       n > 1
        u = (a + b) / 2 * (source - 1) + offset                       n = 1

    With other ``corners``, ``u = (a + i * (b - a) / (n - 1)) * source + offset`` (EDGES) or
    ``(a + i * (b - a) / n) * source + offset`` (STEPS).

    Bilinear interpolation at ``u``, 0 where ``u`` is outside of 0 … source - 1. ``b < a`` turns the region round.

    Args:
        x: The source, [N, C, H, W].
        regions: [R, 4] float64: left, top, width, height.
        size: Height and width, n, that a region is resized to.
        window: Offset and number of result pixels of each axis.
        corners: What regions are fractions of.

    Returns:
        [N * R, C, window.y.result, window.x.result]: the R regions of the first image, then those of the second.
    """
    left, top, width, height = regions.unbind(1)
    columns = _in_regions(left, width, window.x, size[1], corners)[None, :, None, :]
    rows = _in_regions(top, height, window.y, size[0], corners)[None, :, :, None]
    result = sample(x, rows, columns, MPSImageEdgeMode.CLAMP)
    outside = _is_outside(rows, window.y.source) | _is_outside(columns, window.x.source)
    outside = outside.expand(x.shape[0], *outside.shape[1:])
    return result.masked_fill_(outside.reshape(result.shape[0], 1, *result.shape[2:]), 0.0)


def _in_regions(first: Tensor, extent: Tensor, axis: Axis, whole: int, corners: Corners) -> Tensor:
    """Positions [R, axis.result] of the result pixels of each region."""
    pixel = torch.arange(axis.result, dtype=torch.float64, device=first.device)
    if corners is Corners.STEPS:
        part = pixel / whole
    else:
        part = pixel / (whole - 1) if whole > 1 else torch.full_like(pixel, 0.5)
    length = axis.source - 1 if corners is Corners.CENTRES else axis.source
    return (first[:, None] + extent[:, None] * part) * length + axis.offset


def _is_outside(position: Tensor, length: int) -> Tensor:
    return (position < -_BORDER) | (position > length - 1 + _BORDER)


class Interpolate(Unshared, of=interpolate, kind=Kind.WINDOW):
    """`interpolate` of an image."""

    rows: Stretch
    columns: Stretch
    edge_mode: MPSImageEdgeMode


class InterpolateGradient(Op, of=interpolate_gradient, kind=Kind.WINDOW):
    """`interpolate_gradient` of a gradient."""

    rows: Stretch
    columns: Stretch
    edge_mode: MPSImageEdgeMode


class Enlarge(Unshared, of=enlarge, kind=Kind.WINDOW, half=True):
    """`enlarge` of an image: pixels are repeated as they are."""

    window: Window
    factors: tuple[int, int]
    edge_mode: MPSImageEdgeMode


class EnlargeGradient(Unshared, of=enlarge_gradient, kind=Kind.WINDOW):
    """`enlarge_gradient` of a gradient."""

    window: Window
    factors: tuple[int, int]
    edge_mode: MPSImageEdgeMode


class CropAndResize(Op, of=crop_and_resize, kind=Kind.WINDOW):
    """`crop_and_resize` of an image by regions, a second operand."""

    size: tuple[int, int]
    window: Window
    corners: Corners = Corners.CENTRES
