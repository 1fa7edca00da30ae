"""Which source pixels a result pixel reads: windows as integers, and the reads that follow from them.

One axis, result pixel ``i``, kernel tap ``p`` (MPSCNNKernel.h, MPSCNNConvolution.h and MPSCNNPooling.h, macOS 10.13)::

    extent = (size - 1) * dilation + 1
    tap(i, p) = offset - extent // 2 + i * stride + p * dilation

``offset`` is the source pixel under the centre of the first window, so windows of even extent lean to the top left.
Taps may lie outside the source: what is read there is the edge mode's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from openmps.ops import triton
from openmps.types import MPSImageEdgeMode

# Axes of an image tensor [N, C, H, W].
ROWS = 2
COLUMNS = 3
_FEW = 64
"""Taps or pixels outside the source that are not worth the trouble."""


@dataclass(frozen=True)
class Axis:
    """The windows along one axis of an image. All numbers are whole pixels.

    Attributes:
        source: Length of the source, at least 1.
        result: Number of result pixels computed, at least 1.
        size: Number of kernel taps.
        stride: Source pixels from one window to the next.
        dilation: Source pixels from one tap to the next.
        offset: Source coordinate of the centre of the window of result pixel 0; may be negative.
    """

    source: int
    result: int
    size: int = 1
    stride: int = 1
    dilation: int = 1
    offset: int = 0

    @cached_property
    def extent(self) -> int:
        """Pixels from the first to the last tap of one window, both counted."""
        return (self.size - 1) * self.dilation + 1

    @cached_property
    def first(self) -> int:
        """Source coordinate of the first tap of the first window."""
        return self.offset - self.extent // 2

    @cached_property
    def read(self) -> int:
        """Length of the region read: from the first tap of the first window to the last tap of the last one."""
        return (self.result - 1) * self.stride + self.extent

    @cached_property
    def before(self) -> int:
        """How far the region read begins before the source, 0 if it does not."""
        return max(0, -self.first)

    @cached_property
    def after(self) -> int:
        """How far the region read ends behind the source, 0 if it does not."""
        return max(0, self.first + self.read - self.source)

    @cached_property
    def leaves_source(self) -> bool:
        """Whether any pixel of the region read lies outside the source."""
        return self.first < 0 or self.first + self.read > self.source

    @cached_property
    def inside(self) -> range:
        """The source coordinates of the region read that lie inside the source; empty where it misses the source."""
        return range(max(self.first, 0), min(self.first + self.read, self.source))

    @cached_property
    def complete(self) -> range:
        """The result pixels whose windows lie inside the source as a whole."""
        begin = min(self.result, -(self.first // self.stride) if self.first < 0 else 0)
        end = (self.source - self.extent - self.first) // self.stride + 1
        return range(begin, max(begin, min(self.result, end)))

    def taps(self, index: int) -> range:
        """Source coordinates read by result pixel ``index``, in tap order; they may lie outside the source."""
        begin = self.first + index * self.stride
        return range(begin, begin + self.extent, self.dilation)

    def cut(self, *, alike: bool = False) -> Axis:
        """Windows without the taps that lie outside the source in all of them, but for one on each side.

        Each window reads the same source pixels and leaves the source on the same sides, though not as often; taps that
        lie far apart are brought together where no pixel of the source is between them. With ``alike`` as many taps go
        on both sides, so that padding that was symmetric stays so. The axis itself where no more than `_FEW` would go.
        """
        return self._with_fewer_taps(alike=True) if alike else self.nearer()._with_fewer_taps()

    def nearer(self) -> Axis:
        """Windows that no pixel brings together, one at most of which reads the source, as near as they always miss."""
        reach = self.source + self.extent
        if self.stride <= reach or self.read <= _FEW:
            return self
        # The first window that does not end before the source, which may be one behind the last.
        index = min(max((-self.extent - self.first) // self.stride + 1, 0), self.result)
        place = self.source if index == self.result else min(self.first + index * self.stride, self.source)
        return replace(self, stride=reach, offset=place - index * reach + self.extent // 2)

    def _with_fewer_taps(self, *, alike: bool = False) -> Axis:
        travel, step = (self.result - 1) * self.stride, self.dilation
        before = min(max(-(-(-self.first - travel) // step), 0), self.size)
        after = self.size - min(max(-((self.first - self.source) // step), 0), self.size)
        drop = max(before - 1, 0), max(after - 1, 0)
        if alike:
            drop = (min(drop), min(drop))
        inner = self.size - before - after
        if sum(drop) <= _FEW and (inner > 1 or alike or self.extent <= _FEW):
            return self
        size, first = self.size - sum(drop), self.first + drop[0] * step
        if inner <= 1 and size > 1 and not alike:
            # The middle tap, if there is one, stays; those before and behind it come as near as they always miss.
            middle = self.first + before * step if inner else -1 - travel
            nearest = max(middle + travel + 1, self.source - middle) if inner else self.source - middle
            step = min(step, nearest)
            first = middle - step if inner and before else middle
        elif inner == 0 and not alike:
            first = max(first, -1 - travel) if before else min(first, self.source)
        extent = (size - 1) * step + 1
        return replace(self, size=size, dilation=step, offset=first + extent // 2)

    def reads(self, edge_mode: MPSImageEdgeMode, like: Tensor) -> Tensor:
        """How often each window reads each source pixel, [result, source], of the type and device of ``like``.

        Outside the source ``CLAMP`` reads the edge. Windows that are not dilated.
        """
        begin = self.first + self.stride * torch.arange(self.result, device=like.device)[:, None]
        end = begin + self.extent
        pixels = torch.arange(self.source, device=like.device)
        counts = ((begin <= pixels) & (pixels < end)).to(like.dtype)
        if edge_mode == MPSImageEdgeMode.CLAMP:
            counts[:, :1] += (end.clamp(max=0) - begin.clamp(max=0)).to(like.dtype)
            counts[:, -1:] += (end.clamp(min=self.source) - begin.clamp(min=self.source)).to(like.dtype)
        return counts

    def turned(self) -> Axis:
        """The windows over a result by which a gradient comes back, taps in the other order; of a stride of 1."""
        first = -self.first - (self.size - 1) * self.dilation
        return replace(self, source=self.result, result=self.source, offset=first + self.extent // 2)

    def symmetric_padding(self, limit: int) -> int | None:
        """Return ``p`` where padding both sides of the source with ``p`` pixels gives these windows, else ``None``.

        This is how libraries place windows: the first begins at ``-p``, and as many follow as fit into ``source + 2p``.
        ``limit`` is the largest padding that the library takes.
        """
        padding = -self.first
        fits = (self.source + 2 * padding - self.extent) // self.stride + 1
        return padding if 0 <= padding <= limit and fits == self.result else None


@dataclass(frozen=True)
class Window:
    """The windows of a kernel over an image: columns along ``x``, rows along ``y``."""

    x: Axis
    y: Axis

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def half_padding(self) -> tuple[int, int] | None:
        """The padding (vertical, horizontal) of a library's pooling: at most half a window, so that none is empty.

        None where there is none that makes its windows these.
        """
        vertical = self.y.symmetric_padding(self.y.extent // 2)
        horizontal = self.x.symmetric_padding(self.x.extent // 2)
        return None if vertical is None or horizontal is None else (vertical, horizontal)

    @cached_property
    def _hash(self) -> int:
        return hash((self.x, self.y))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Kernel taps, (height, width)."""
        return self.y.size, self.x.size

    @cached_property
    def stride(self) -> tuple[int, int]:
        """Source pixels between windows, (vertical, horizontal)."""
        return self.y.stride, self.x.stride

    @cached_property
    def dilation(self) -> tuple[int, int]:
        """Source pixels between taps, (vertical, horizontal)."""
        return self.y.dilation, self.x.dilation

    @cached_property
    def source(self) -> tuple[int, int]:
        """Size of the source, (height, width)."""
        return self.y.source, self.x.source

    @cached_property
    def region(self) -> tuple[int, int]:
        """Size of the source region read, (height, width)."""
        return self.y.read, self.x.read

    @cached_property
    def result(self) -> tuple[int, int]:
        """Size of the result, (height, width)."""
        return self.y.result, self.x.result

    @cached_property
    def leaves_source(self) -> bool:
        """Whether any pixel of the region read lies outside the source."""
        return self.y.leaves_source or self.x.leaves_source

    @lru_cache(maxsize=1024)  # noqa: B019 - windows are few, and small
    def cut(self, *, alike: bool = False) -> Window:
        """Windows without most of the taps that are outside the source in all of them; see `Axis.cut`."""
        x, y = self.x.cut(alike=alike), self.y.cut(alike=alike)
        return self if x is self.x and y is self.y else Window(x, y)

    def turned(self) -> Window:
        """The windows by which a gradient comes back from a result, of strides of 1; see `Axis.turned`."""
        return Window(self.x.turned(), self.y.turned())

    def nearer(self) -> Window:
        """Windows that lie no further apart than they need to; see `Axis.nearer`."""
        x, y = self.x.nearer(), self.y.nearer()
        return self if x is self.x and y is self.y else Window(x, y)

    def sums(self, x: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor:
        """The sum over each window, by products with `Axis.reads`: for windows much larger than the source."""
        rows, columns = (axis.reads(edge_mode, x) for axis in (self.y, self.x))
        return torch.matmul(torch.matmul(rows, x), columns.T)

    def sums_adjoint(self, gradient: Tensor, edge_mode: MPSImageEdgeMode) -> Tensor:
        """The gradient for the source from that for `sums`."""
        rows, columns = (axis.reads(edge_mode, gradient) for axis in (self.y, self.x))
        return torch.matmul(torch.matmul(rows.T, gradient), columns)

    @cached_property
    def is_whole(self) -> bool:
        """Whether the region read is the source itself."""
        return self.region == self.source and (self.x.first, self.y.first) == (0, 0)

    @property
    def is_pixelwise(self) -> bool:
        """Whether each pixel of the result reads the source's pixel in its place, and no other."""
        return self.is_whole and self.size == self.stride == (1, 1)


def meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may have memory in common: storages over one array may begin at different bytes."""
    first, second = one.untyped_storage(), other.untyped_storage()
    begins, begin = first.data_ptr(), second.data_ptr()
    return begins == begin or (begins < begin + second.nbytes() and begin < begins + first.nbytes())


def empty_image(like: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """Return an uninitialized image tensor in channels-last memory: batch, dtype and device of ``like``."""
    return like.new_empty((like.shape[0], *size, channels)).permute(0, 3, 1, 2)


def packed(x: Tensor) -> Tensor:
    """Images in channels-last memory, with strides that PyTorch's kernels know for it."""
    images, channels, height, width = x.shape
    # In a row, the numbers of one channel of many are a view whose numbers lie apart.
    row = x.permute(0, 2, 3, 1).reshape(-1).contiguous()
    return row.view(images, height, width, channels).permute(0, 3, 1, 2)


def pitch_of(image: Tensor) -> int | None:
    """Numbers from one pixel to the next, if all pixels lie so, each with its channels side by side; else None."""
    step = expected = 0
    _, channels, height, width = image.shape
    along = image.stride()
    if channels > 1 and along[1] != 1:
        return None
    for size, stride in ((width, along[3]), (height, along[2]), (image.shape[0], along[0])):
        if size == 1:
            continue
        if not expected:
            if stride < channels:
                return None
            step = expected = stride
        elif stride != expected:
            return None
        expected *= size
    return step or channels


def read(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, *, fill: float = 0.0) -> Tensor:
    """Return the source region that ``window`` reads, so that result pixel (0, 0) reads from its corner (0, 0).

    Outside the source, ``ZERO`` gives ``fill`` (the framework's value is 0 in every channel) and ``CLAMP`` the nearest
    pixel of the edge (MPSCoreTypes.h, macOS 10.13). The result is a view of ``x`` where nothing lies outside.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The windows to be read.
        edge_mode: ``ZERO`` or ``CLAMP``.
        fill: What ``ZERO`` reads outside: a reduction's neutral element, where it is not 0.

    Returns:
        The region, [N, C, window.y.read, window.x.read].
    """
    if edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source:
        return _read_clamped(x, window)
    rows, columns = window.y.inside, window.x.inside
    if not rows or not columns:
        return empty_image(x, x.shape[1], window.region).fill_(fill)
    inside = x[:, :, rows.start : rows.stop, columns.start : columns.stop]
    if not window.leaves_source:
        return inside
    padding = [window.x.before, window.x.after, window.y.before, window.y.after]
    return functional.pad(inside, padding, value=fill)


def read_adjoint(gradient: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Return the gradient for the source from that for the region which ``read`` gave: its exact adjoint.

    What belongs outside the source is dropped with ``ZERO`` and added to the nearest pixel of the edge with ``CLAMP``.
    Source pixels outside the region get 0.

    Args:
        gradient: The gradient for the region, [N, C, window.y.read, window.x.read].
        window: The windows that were read.
        edge_mode: The edge mode they were read with.

    Returns:
        The gradient for the source, [N, C, window.y.source, window.x.source].
    """
    if edge_mode == MPSImageEdgeMode.CLAMP:
        return _clamped_adjoint(_clamped_adjoint(gradient, window.y, ROWS), window.x, COLUMNS)
    if not window.y.inside or not window.x.inside:
        return empty_image(gradient, gradient.shape[1], window.source).zero_()
    return _pad(gradient, [*_around(window.x), *_around(window.y)])


def _read_clamped(x: Tensor, window: Window) -> Tensor:
    """Read the region; outside the source, the nearest pixel of the edge."""
    if triton.runs_on(x.device):
        from openmps.ops.triton import geometry as kernels

        if kernels.is_packed(x):
            down, across = (range(axis.first, axis.first + axis.read) for axis in (window.y, window.x))
            return kernels.clamped(x, down, across)
    rows, columns = _nearest(window.y), _nearest(window.x)
    nearest = x[:, :, rows.start : rows.stop, columns.start : columns.stop]
    down, across = _repeats(window.y, len(rows)), _repeats(window.x, len(columns))
    if x.device.type != "cpu":  # where each copy is a launch
        padded = functional.pad(nearest, [*across, *down], mode="replicate")
        return padded.contiguous(memory_format=torch.channels_last)
    above, before = down[0], across[0]
    whole = empty_image(x, x.shape[1], window.region)
    inner = whole[..., before : before + len(columns)]
    inner[:, :, above : above + len(rows)] = nearest
    _repeat(inner, above, len(rows), ROWS)
    _repeat(whole, before, len(columns), COLUMNS)
    return whole


def _repeat(whole: Tensor, first: int, count: int, dimension: int) -> None:
    """Put the first and the last of the pixels that are there along a dimension in the place of those beside them."""
    end, behind = first + count, whole.shape[dimension] - first - count
    for start, length, nearest in ((0, first, first), (end, behind, end - 1)):
        if length:
            whole.narrow(dimension, start, length).copy_(whole.narrow(dimension, nearest, 1))


def _nearest(axis: Axis) -> range:
    """The source coordinates that a clamped read touches: those inside, or the edge where there are none."""
    start = min(max(axis.first, 0), axis.source - 1)
    return range(start, max(start + 1, min(axis.first + axis.read, axis.source)))


def _repeats(axis: Axis, touched: int) -> tuple[int, int]:
    """How often a clamped read repeats the first and the last of the pixels that it touches."""
    before = min(axis.before, axis.read - touched)
    return before, axis.read - touched - before


def _around(axis: Axis) -> tuple[int, int]:
    """Source pixels on either side of the region read; negative where the region goes beyond the source."""
    return axis.first, axis.source - axis.first - axis.read


def _pad(x: Tensor, padding: list[int]) -> Tensor:
    """Pad with zeros, or crop where the padding is negative; ``x`` itself where it is all 0."""
    return functional.pad(x, padding) if any(padding) else x


def _clamped_adjoint(gradient: Tensor, axis: Axis, dimension: int) -> Tensor:
    """Put the region's gradient back along one dimension: what lies outside is added to the edge."""
    if axis.inside:
        placed = _pad(gradient, [0, 0, *_around(axis)] if dimension == ROWS else [*_around(axis)])
    else:
        shape = list(gradient.shape)
        shape[dimension] = axis.source
        placed = empty_image(gradient, shape[1], (shape[ROWS], shape[COLUMNS])).zero_()
    # Where one of these is not 0 the region is not the source, so that `placed` is a tensor of our own.
    before, after = min(axis.before, axis.read), min(axis.after, axis.read)
    if before:
        placed.narrow(dimension, 0, 1).add_(gradient.narrow(dimension, 0, before).sum(dimension, keepdim=True))
    if after:
        outside = gradient.narrow(dimension, axis.read - after, after).sum(dimension, keepdim=True)
        placed.narrow(dimension, axis.source - 1, 1).add_(outside)
    return placed
