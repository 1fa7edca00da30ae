"""Max pooling on the CPU without a choice: the maximum of a few strided images, one a tap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, read
from openmps.types import MPSImageEdgeMode


def is_faster_by_slices(window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether `largest` was measured to beat the library: small windows."""
    is_ignored = edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source
    fits = not is_ignored or (window.dilation == (1, 1) and _has_centre(window.y) and _has_centre(window.x))
    return 1 < window.y.size * window.x.size <= 9 and fits


def _has_centre(axis: Axis) -> bool:
    """Whether a tap lies inside the source for every result pixel."""
    return any(len(_inside(axis, tap)) == axis.result for tap in range(axis.size))


def largest(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Return the maxima alone: the maximum over rows, then over columns, each of a few large strided images."""
    if edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source:
        # The nearest pixel of the edge is a tap itself, so that taps outside do not count.
        return _largest_inside(_largest_inside(x, window.y, ROWS), window.x, COLUMNS)
    region = read(x, window, edge_mode)
    rows = _largest_of([region[:, :, taps] for taps in _tap_slices(window.y)])
    return _largest_of([rows[..., taps] for taps in _tap_slices(window.x)])


def _largest_of(images: Sequence[Tensor]) -> Tensor:
    """The largest number of each place: the one image itself, else in new memory."""
    first, *others = images
    if not others:
        return first
    result = torch.maximum(first, others[0])
    for image in others[1:]:
        torch.maximum(result, image, out=result)
    return result


def _largest_inside(x: Tensor, axis: Axis, dimension: int) -> Tensor:
    """Return the maxima along one axis over the taps that lie inside the source."""
    if axis.size == 1 and axis.stride == 1 and axis.first == 0 and axis.result == axis.source:
        return x
    inside = [(tap, _inside(axis, tap)) for tap in range(axis.size)]
    whole = [_pixels_of(x, axis, tap, found, dimension) for tap, found in inside if len(found) == axis.result]
    result = _largest_of(whole) if len(whole) > 1 else whole[0].clone(memory_format=torch.channels_last)
    for tap, found in inside:
        if 0 < len(found) < axis.result:
            place = result.narrow(dimension, found.start, len(found))
            torch.maximum(place, _pixels_of(x, axis, tap, found, dimension), out=place)
    return result


def _inside(axis: Axis, tap: int) -> range:
    """The result pixels whose tap lies inside the source."""
    first = axis.first + tap
    begin = -(first // axis.stride) if first < 0 else 0
    end = (axis.source - 1 - first) // axis.stride + 1
    return range(begin, max(begin, min(axis.result, end)))


def _pixels_of(x: Tensor, axis: Axis, tap: int, found: range, dimension: int) -> Tensor:
    """The source pixels that a tap reads for some result pixels."""
    first = axis.first + tap + found.start * axis.stride
    taken = slice(first, first + (len(found) - 1) * axis.stride + 1, axis.stride)
    return x[:, :, taken] if dimension == ROWS else x[..., taken]


def _tap_slices(axis: Axis) -> list[slice]:
    """For each tap, the pixels of the region that it reads for all result pixels."""
    span = (axis.result - 1) * axis.stride + 1
    return [slice(tap * axis.dilation, tap * axis.dilation + span, axis.stride) for tap in range(axis.size)]
