"""Bilinear interpolation by PyTorch's own kernels, which the CPU runs several times as fast as a gather for each tap.

They align corners: result pixel ``i`` of R stands at ``i (S - 1) / (R - 1)`` of S source pixels. A stretch by n / d is
the first part of one of ``m n + 1`` pixels to ``m d + 1``, for any m that is large enough; where that needs one pixel
behind the last, it is the last one again. Positions are float32 there, so that large images and ratios that are no
binary fractions are left to `openmps.ops.resample.resample`, whose positions are exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops.geometry import empty_image
from openmps.ops.resample.stretch import Aligned, Stretch

_LARGEST_ERROR = 2.0**-16
"""Of a position in float32, in pixels."""
_PART = 2**19
"""Numbers of the largest tensor of a part: two mebibytes of float32."""
_ROWS, _COLUMNS = 2, 3

_forward = torch.ops.aten.upsample_bilinear2d
_backward = torch.ops.aten.upsample_bilinear2d_backward


def takes(x: Tensor, rows: Stretch, columns: Stretch) -> bool:
    """Whether `interpolate` and `interpolate_gradient` are for these numbers and places."""
    if x.is_cuda or x.dtype not in (torch.float32, torch.float64) or not x.numel():
        return False
    both = rows.aligned(), columns.aligned()
    return all(axis is not None and (x.dtype == torch.float64 or axis.error <= _LARGEST_ERROR) for axis in both)


def interpolate(x: Tensor, rows: Stretch, columns: Stretch) -> Tensor:
    """See `openmps.ops.resample.resample.interpolate`; new memory, channels-last."""
    down, across = _both(rows, columns)
    part = _read(_read(x, rows, down, _ROWS), columns, across, _COLUMNS)
    if (down.result, across.result) == (rows.result, columns.result):
        return _forward(part, [down.result, across.result], True).contiguous(memory_format=torch.channels_last)
    result = empty_image(x, x.shape[1], (rows.result, columns.result))
    for some in _parts(x, down, across):
        whole = _forward(part[some], [down.result, across.result], True)
        result[some].copy_(whole[:, :, : rows.result, : columns.result])
    return result


def interpolate_gradient(gradient: Tensor, rows: Stretch, columns: Stretch) -> Tensor:
    """See `openmps.ops.resample.resample.interpolate_gradient`; channels-last."""
    down, across = _both(rows, columns)
    images, channels, *size = gradient.shape
    sources, results = (down.source, across.source), [down.result, across.result]
    if (*size, *sources) == (*results, rows.source, columns.source):
        back = _backward(gradient, results, [images, channels, *sources], True)
        return back.contiguous(memory_format=torch.channels_last)
    total = empty_image(gradient, channels, (rows.source, columns.source)).zero_()
    for some in _parts(gradient, down, across):
        whole = functional.pad(gradient[some], [0, results[1] - size[1], 0, results[0] - size[0]])
        back = _backward(whole, results, [len(whole), channels, *sources], True)
        back = _folded(_folded(back, rows, down, _ROWS), columns, across, _COLUMNS)
        place = total[some].narrow(_ROWS, rows.offset, back.shape[_ROWS])
        place.narrow(_COLUMNS, columns.offset, back.shape[_COLUMNS]).copy_(back)
    return total


def _both(rows: Stretch, columns: Stretch) -> tuple[Aligned, Aligned]:
    down, across = rows.aligned(), columns.aligned()
    assert down is not None
    assert across is not None
    return down, across


def _inside(stretch: Stretch, axis: Aligned) -> int:
    """How many of the pixels that are read the source has."""
    return min(axis.source, stretch.source - stretch.offset)


def _read(x: Tensor, stretch: Stretch, axis: Aligned, dimension: int) -> Tensor:
    count = _inside(stretch, axis)
    part = x if count == stretch.source else x.narrow(dimension, stretch.offset, count)
    return part if count == axis.source else torch.cat([part, part.narrow(dimension, count - 1, 1)], dimension)


def _folded(back: Tensor, stretch: Stretch, axis: Aligned, dimension: int) -> Tensor:
    """The gradient of the last pixel with that of the one behind it."""
    count = _inside(stretch, axis)
    if count < axis.source:
        back.narrow(dimension, count - 1, 1).add_(back.narrow(dimension, count, 1))
    return back.narrow(dimension, 0, count)


def _parts(x: Tensor, down: Aligned, across: Aligned) -> Iterator[slice]:
    """A few images at a time: what is computed on the way stays in the cache."""
    numbers = x.shape[1] * max(down.source, down.result) * max(across.source, across.result)
    together = max(1, _PART // numbers)
    return (slice(first, first + together) for first in range(0, len(x), together))
