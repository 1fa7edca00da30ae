"""Max, average and L2-norm pooling with their gradients (MPSCNNPooling.h, macOS 10.13; gradients 10.13.4).

Channels are independent of one another. Where a window leaves the source, the edge mode decides:

========  =======================================  =======================================================
pooling   ``ZERO`` (default of the kernels)        ``CLAMP`` (default of the graph's nodes)
========  =======================================  =======================================================
max       outside counts as 0                      outside is the nearest pixel of the edge
average   outside counts as 0, N = all taps        the window shrinks to the source and its ``zero_pad`` around it
L2 norm   outside counts as 0                      outside is the nearest pixel of the edge
========  =======================================  =======================================================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from openmps.errors import MPSArgumentError
from openmps.ops import triton
from openmps.ops.geometry import COLUMNS, ROWS, Axis, Window, empty_image, pitch_of, read, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.ops.pooling.slices import is_faster_by_slices, largest
from openmps.types import MPSImageEdgeMode

_UNPADDED = (0, 0)
_MOST_TAPS = 64
"""Of windows that are unrolled."""


def max_pooling(
    x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, *, with_choice: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Take the largest value of each window; a NaN in the window is the result.

    With ``E`` the source, continued beyond its edges by ``edge_mode``::

        Y[n, c, y, x] = max(j, i) E[n, c, window.y.taps(y)[j], window.x.taps(x)[i]]

    ``CLAMP`` repeats the edge for dilated windows too: the pixel of the edge counts, though it may lie between taps.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The source pixels that each result pixel reads.
        edge_mode: ``ZERO`` or ``CLAMP``.
        with_choice: Whether a gradient will be computed. Where none will, the CPU needs as little as half the time.

    Returns:
        The result, [N, C, window.y.result, window.x.result], and what ``max_pooling_gradient`` takes as ``choice``.
    """
    window = _cut(window, edge_mode)
    if not with_choice and x.device.type == "cpu" and is_faster_by_slices(window, edge_mode):
        return largest(x, window, edge_mode), None
    if not with_choice and _fits_one_pass(x, window):
        from openmps.ops.triton.pooling.pooling import max_pooling as at_once

        return at_once(x, window, clamps=edge_mode == MPSImageEdgeMode.CLAMP), None
    if edge_mode == MPSImageEdgeMode.ZERO and window.leaves_source:
        return _choose_or_zero(x, window)
    padding = library_max_padding(window, edge_mode)
    image = x if padding is not None else read(x, window, edge_mode)
    return _choose(image, window, padding or _UNPADDED)


def _fits_one_pass(x: Tensor, window: Window) -> bool:
    """Whether the form of `openmps.ops.triton` does this pooling."""
    is_plain = x.dtype in (torch.float16, torch.float32) and x.is_contiguous(memory_format=torch.channels_last)
    return x.is_cuda and is_plain and window.y.size * window.x.size <= _MOST_TAPS and triton.runs_on(x.device)


def max_pooling_gradient(
    gradient: Tensor, x: Tensor, choice: Tensor | None, window: Window, edge_mode: MPSImageEdgeMode
) -> Tensor:
    """Give each result pixel's gradient to the source pixel that was the maximum of its window.

    Of equal values the first in row-major order of the taps is taken, and pixels of the source come before the zeros
    outside of it; where such a zero is the maximum, the gradient is lost. The framework does not say which of equal
    values it takes (MPSCNNPoolingMaxGradient, macOS 10.13.4).

    Args:
        gradient: The gradient for the result, [N, C, window.y.result, window.x.result].
        x: The source of the forward pass.
        choice: What ``max_pooling`` returned for it, or ``None`` to find the maxima again.
        window: The windows of the forward pass.
        edge_mode: Its edge mode.

    Returns:
        The gradient for the source, like ``x``; 0 for pixels that no window reads.
    """
    if choice is None:
        _, choice = max_pooling(x, window, edge_mode)
    whole, window = window, _cut(window, edge_mode)
    padding = library_max_padding(window, edge_mode)
    if padding is not None and (found := _gathered(gradient, choice, window)) is not None:
        return found
    if gradient.dtype == torch.float16 and _shares_pixels(window):
        # Several gradients are added up. Of the source only its size is looked at.
        wide = gradient.float()
        room = empty_image(wide, x.shape[1], window.source)
        return max_pooling_gradient(wide, room, choice, whole, edge_mode).to(torch.float16)
    image = x if padding is not None else empty_image(gradient, x.shape[1], window.region)
    for_image = torch.ops.aten.max_pool2d_with_indices_backward(
        gradient, image, window.size, window.stride, padding or _UNPADDED, window.dilation, False, choice
    )
    return for_image if padding is not None else read_adjoint(for_image, window, edge_mode)


def last_maximum_gradient(gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """As `max_pooling_gradient`, but of equal values the last in row-major order of the taps is taken.

    Of the region that the windows read, turned by half a turn, it is the first. What is outside of the source counts as
    the pixels that the edge mode makes of it.
    """
    wide = torch.float32 if x.dtype == torch.float16 else x.dtype
    turned, flow = (each.to(wide).flip(ROWS, COLUMNS) for each in (read(x, window, edge_mode), gradient))
    places = (window.size, window.stride, _UNPADDED, window.dilation, False)
    _, choice = torch.ops.aten.max_pool2d_with_indices(turned, *places)
    found = torch.ops.aten.max_pool2d_with_indices_backward(flow, turned, *places, choice)
    return read_adjoint(found.flip(ROWS, COLUMNS), window, edge_mode).to(gradient.dtype)


def _gathered(gradient: Tensor, choice: Tensor | None, window: Window) -> Tensor | None:
    """The gradient of the source in Triton, where that wins: windows that share pixels, few taps; None elsewhere."""
    if choice is None or not gradient.numel() or not _shares_pixels(window) or not triton.runs_on(gradient.device):
        return None
    from openmps.ops.triton.pooling import pooling_gradient as kernels

    pitches = pitch_of(gradient), pitch_of(choice)
    is_float = gradient.dtype in (torch.float16, torch.float32)
    pixels = gradient.shape[0] * window.y.source * window.x.source
    if pitches[0] is None or pitches[1] is None or not is_float or pixels >= 2**30:
        return None
    if window.y.size * window.x.size > kernels.MOST_TAPS:
        return None
    return kernels.max_pooling_gradient(gradient, choice, window, pitches[0], pitches[1])


def _shares_pixels(window: Window) -> bool:
    """Whether two windows may hold the same pixel."""
    x, y = window.x, window.y
    return x.stride < x.extent or y.stride < y.extent


def first_pixels(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """The pixel of the source that comes first in each window of a max pooling, [N, C, result rows, result columns].

    Any pixel where a window has none.
    """
    for dimension, axis in ((ROWS, window.y), (COLUMNS, window.x)):
        if not axis.leaves_source:
            end = axis.first + (axis.result - 1) * axis.stride + 1
            x = x[:, :, axis.first : end : axis.stride] if dimension == ROWS else x[..., axis.first : end : axis.stride]
            continue
        taps = torch.arange(axis.result, device=x.device) * axis.stride + axis.first
        if edge_mode == MPSImageEdgeMode.ZERO:
            taps += (-taps).clamp_(min=0).add_(axis.dilation - 1).floor_divide_(axis.dilation) * axis.dilation
        x = x.index_select(dimension, taps.clamp_(0, axis.source - 1))
    return x


def average_pooling(
    x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, zero_pad: tuple[int, int] = _UNPADDED
) -> Tensor:
    """Average each window: the sum over its pixels inside the source, divided by ``N``.

    With ``ZERO``, ``N`` is the number of taps, always. With ``CLAMP``, it is the number of taps inside the source or
    the ``zero_pad`` pixels on each side of it; a window that has none gives 0.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The source pixels that each result pixel reads; not dilated.
        edge_mode: ``ZERO`` or ``CLAMP``.
        zero_pad: Pixels around the source that count as zeros with ``CLAMP``, (x, y); ``ZERO`` ignores it.

    Returns:
        [N, C, window.y.result, window.x.result]; float32 of a float16 source.

    Raises:
        MPSArgumentError: The window is dilated.
    """
    is_counted = edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source
    if not is_counted and window.dilation == (1, 1) and _fits_one_pass(x, window):
        from openmps.ops.triton.pooling.pooling import average_pooling as at_once

        return at_once(x, window)
    x = x.to(torch.float32) if x.dtype == torch.float16 else x
    cut = window.cut(alike=window.half_padding is not None)
    plan = _average_plan(window, cut, edge_mode, zero_pad, cut.half_padding)
    result = _averages(x, cut, MPSImageEdgeMode.ZERO, plan)
    return result.div_(_tap_counts(window, zero_pad, x)) if plan.is_counted else result


def average_pooling_gradient(
    gradient: Tensor, window: Window, edge_mode: MPSImageEdgeMode, zero_pad: tuple[int, int] = _UNPADDED
) -> Tensor:
    """Spread each result pixel's gradient over the pixels of its window (MPSCNNPoolingAverageGradient, macOS 10.13.4).

    ``dX[i] = Σ G[x] / N(x)`` over the windows ``x`` that hold ``i``, with the ``N`` of ``average_pooling``. The values
    of the source do not matter, only its size.

    Args:
        gradient: The gradient for the result, [N, C, window.y.result, window.x.result].
        window: The windows of the forward pass.
        edge_mode: Its edge mode.
        zero_pad: Its zero padding, (x, y).

    Returns:
        The gradient for the source, [N, C, window.y.source, window.x.source]; 0 for pixels that no window reads.

    Raises:
        MPSArgumentError: The window is dilated.
    """
    cut = window.cut(alike=window.half_padding is not None)
    plan = _average_plan(window, cut, edge_mode, zero_pad, _gradient_padding(gradient, cut))
    if plan.is_counted:
        gradient = gradient / _tap_counts(window, zero_pad, gradient)
    return _averages_adjoint(gradient, cut, MPSImageEdgeMode.ZERO, plan)


def l2_norm_pooling(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Take the root of the sum of squares of each window: ``Y = sqrt(Σ v²)``, not divided by their number.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: The source pixels that each result pixel reads; not dilated.
        edge_mode: ``ZERO`` or ``CLAMP``.

    Returns:
        [N, C, window.y.result, window.x.result].

    Raises:
        MPSArgumentError: The window is dilated.
    """
    clamps_outside = edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source
    if not clamps_outside and window.dilation == (1, 1) and _fits_one_pass(x, window):
        from openmps.ops.triton.pooling.pooling import l2_norm_pooling as at_once

        return at_once(x, window)
    if _is_counted(window, edge_mode):
        return window.sums(x.square(), edge_mode).sqrt_()
    window = _cut_sums(window, edge_mode)
    plan = _sum_plan(window, edge_mode, window.half_padding)
    return _averages(x.square(), window, edge_mode, plan).sqrt_()


def l2_norm_pooling_gradient(gradient: Tensor, x: Tensor, window: Window, edge_mode: MPSImageEdgeMode) -> Tensor:
    """Give each pixel its share of the norms that it is part of (MPSCNNPoolingL2NormGradient, macOS 10.13.4).

    ``dX[i] = X[i] Σ G[x] / Y[x]`` over the windows ``x`` that hold ``i``, as often as they read it. Where the norm is
    0, it has no derivative; 0 is given.

    Args:
        gradient: The gradient for the result, [N, C, window.y.result, window.x.result].
        x: The source of the forward pass.
        window: The windows of the forward pass.
        edge_mode: Its edge mode.

    Returns:
        The gradient for the source, like ``x``; 0 for pixels that no window reads.

    Raises:
        MPSArgumentError: The window is dilated.
    """
    norm = l2_norm_pooling(x, window, edge_mode)
    share = (gradient / norm).masked_fill_(norm == 0, 0.0)
    if _is_counted(window, edge_mode):
        return window.sums_adjoint(share, edge_mode).mul_(x)
    window = _cut_sums(window, edge_mode)
    plan = _sum_plan(window, edge_mode, _gradient_padding(gradient, window))
    # A copy of the edge has the edge's number: what it adds to the norms is the edge's share times that same number.
    return _averages_adjoint(share, window, edge_mode, plan).mul_(x)


_MANY = 2**24
"""Taps that are no longer added up one by one: float32 cannot even count more."""


def _cut(window: Window, edge_mode: MPSImageEdgeMode) -> Window:
    """The window for a maximum: numbers outside the source count once on each side, however many there are."""
    return window.cut(alike=library_max_padding(window, edge_mode) is not None)


def _cut_sums(window: Window, edge_mode: MPSImageEdgeMode) -> Window:
    """The window for a sum: numbers outside the source do not count where they are 0."""
    is_zero = edge_mode == MPSImageEdgeMode.ZERO
    return window.cut(alike=window.half_padding is not None) if is_zero else window.nearer()


def _is_counted(window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether a sum over windows goes by how often pixels are read: many copies of the edge."""
    is_many = window.y.size * window.x.size > _MANY and window.dilation == (1, 1)
    return is_many and edge_mode == MPSImageEdgeMode.CLAMP and window.leaves_source


def library_max_padding(window: Window, edge_mode: MPSImageEdgeMode) -> tuple[int, int] | None:
    """Return the padding (vertical, horizontal) that makes a library's max pooling read ``window`` from the source.

    ``None`` where there is none: the region must then be read first. Libraries ignore taps outside the source. That is
    ``CLAMP`` where the windows are not dilated, since the nearest pixel of the edge is then a tap itself.
    """
    is_ignored = edge_mode == MPSImageEdgeMode.CLAMP and window.dilation == (1, 1)
    return window.half_padding if is_ignored or not window.leaves_source else None


def _choose(image: Tensor, window: Window, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the maxima and their indices in the rows and columns of ``image``."""
    if image.is_cuda and image.dtype == torch.float64 and image.shape[1] == 1:
        # torch 2.11's channels-last kernel reads a misaligned address for a single float64 result of one channel.
        image = image.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten.max_pool2d_with_indices(image, window.size, window.stride, padding, window.dilation)


def _choose_or_zero(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Like ``_choose`` for windows that leave the source with ``ZERO``; the indices are those in the region read."""
    # Reading the zeros as -inf keeps them from being chosen before a pixel of the source that is 0 as well.
    result, choice = _choose(read(x, window, MPSImageEdgeMode.ZERO, fill=-torch.inf), window, _UNPADDED)
    # A corner of the region that lies outside the source: read_adjoint drops the gradient that is put there.
    outside = 0 if window.y.before or window.x.before else window.y.read * window.x.read - 1
    for dimension, axis in ((ROWS, window.y), (COLUMNS, window.x)):
        complete = axis.complete
        for begin, end in ((0, complete.start), (complete.stop, axis.result)):
            border = result.narrow(dimension, begin, end - begin)
            choice.narrow(dimension, begin, end - begin).masked_fill_(border < 0, outside)
            border.clamp_(min=0)
    return result, choice


class _AveragePlan(NamedTuple):
    """How the library's average pooling is called."""

    padding: tuple[int, int] | None  # (vertical, horizontal); None: the region is read first
    counts_padding: bool  # whether N counts the padding
    divisor: int | None  # what it divides by; None: the taps that it counts
    is_counted: bool = False  # whether we divide, by the counts


def _average_plan(
    window: Window, cut: Window, edge_mode: MPSImageEdgeMode, zero_pad: tuple[int, int], padding: tuple[int, int] | None
) -> _AveragePlan:
    """Plan the call for the edge's rule, where ``padding`` places the windows, cut, if it is not ``None``."""
    if window.dilation != (1, 1):
        raise MPSArgumentError("average pooling", "window", "must not be dilated", window.dilation)
    # Whether all taps lie in the source and its zero padding.
    stays = all(max(axis.before, axis.after) <= pad for axis, pad in zip((window.x, window.y), zero_pad, strict=True))
    if stays or edge_mode == MPSImageEdgeMode.ZERO:
        taps = None if cut == window else window.y.size * window.x.size
        return _AveragePlan(padding, True, taps)
    if padding is not None and zero_pad == (0, 0):
        return _AveragePlan(padding, False, None)
    return _AveragePlan(padding, True, 1, is_counted=True)


def _sum_plan(window: Window, edge_mode: MPSImageEdgeMode, padding: tuple[int, int] | None) -> _AveragePlan:
    """Plan the call so that it adds up what each window reads."""
    if window.dilation != (1, 1):
        raise MPSArgumentError("L2-norm pooling", "window", "must not be dilated", window.dilation)
    is_zero = edge_mode == MPSImageEdgeMode.ZERO or not window.leaves_source
    return _AveragePlan(padding if is_zero else None, True, 1)


def _averages(x: Tensor, window: Window, edge_mode: MPSImageEdgeMode, plan: _AveragePlan) -> Tensor:
    """Return the sums over the windows, divided as planned; ``edge_mode`` is how the region is read, if it is."""
    image = x if plan.padding is not None else read(x, window, edge_mode)
    return functional.avg_pool2d(
        image, window.size, window.stride, plan.padding or _UNPADDED, False, plan.counts_padding, plan.divisor
    )


def _averages_adjoint(gradient: Tensor, window: Window, edge_mode: MPSImageEdgeMode, plan: _AveragePlan) -> Tensor:
    """Return the gradient for the source from that for what ``_averages`` gave."""
    is_source = plan.padding is not None
    for_image = torch.ops.aten.avg_pool2d_backward(
        gradient,
        empty_image(gradient, gradient.shape[1], window.source if is_source else window.region),
        window.size,
        window.stride,
        plan.padding or _UNPADDED,
        False,
        plan.counts_padding,
        plan.divisor,
    )
    return for_image if is_source else read_adjoint(for_image, window, edge_mode)


def _gradient_padding(gradient: Tensor, window: Window) -> tuple[int, int] | None:
    """The padding of a library for the gradient of average pooling, if it can be used."""
    padding = window.half_padding
    # torch 2.11's channels-last kernel leaves the padding out of account (its issue 188344).
    return None if gradient.is_cuda and padding != _UNPADDED else padding


def _tap_counts(window: Window, zero_pad: tuple[int, int], like: Tensor) -> Tensor:
    """Return ``N`` for each result pixel, [window.y.result, window.x.result]; 1 where it is 0."""
    rows = _axis_counts(window.y, zero_pad[1], like)
    columns = _axis_counts(window.x, zero_pad[0], like)
    return (rows[:, None] * columns).clamp_(min=1)


def _axis_counts(axis: Axis, zero_pad: int, like: Tensor) -> Tensor:
    """Return the number of taps within the source and its zero padding, for each result pixel of one axis."""
    # Made on the device, so that nothing is copied from the host while a CUDA graph is captured.
    begin = axis.first + axis.stride * torch.arange(axis.result, device=like.device)
    end = (begin + axis.extent).clamp_(max=axis.source + zero_pad)
    return (end - begin.clamp(min=-zero_pad)).clamp_(min=0).to(like.dtype)


class _Pooling(Op, kind=Kind.WINDOW):
    """The base of the operations."""

    window: Window
    edge_mode: MPSImageEdgeMode


class MaxPooling(_Pooling, results=2, half=True):
    """`max_pooling`: the largest numbers, and where they are. Nothing is computed, only chosen."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `max_pooling`."""
        return max_pooling(operands[0], self.window, self.edge_mode, with_choice=wanted[1])


class MaxPoolingGradient(_Pooling):
    """`max_pooling_gradient` of a gradient, the forward source and, where it was saved, the choice."""

    @property
    def takes_half(self) -> bool:
        """Where nothing is added up, or all of it before it is rounded."""
        is_in_place = library_max_padding(self.window, self.edge_mode) is not None
        return is_in_place if _shares_pixels(self.window) else not self.window.leaves_source

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `max_pooling_gradient`; a choice for other images than these is made again."""
        gradient, x, choice = operands
        if choice is not None and len(choice) != len(gradient):
            choice = None
        return max_pooling_gradient(gradient, x, choice, self.window, self.edge_mode)


class LastMaximumGradient(_Pooling):
    """`last_maximum_gradient` of a gradient and the forward source."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `last_maximum_gradient`."""
        return last_maximum_gradient(operands[0], operands[1], self.window, self.edge_mode)


class AveragePooling(_Pooling, of=average_pooling, half=True):
    """`average_pooling`, which adds float16 up in float32."""

    zero_pad: tuple[int, int]

    @property
    def gives_half(self) -> bool:
        """False: means are float32."""
        return False


class AveragePoolingGradient(_Pooling, of=average_pooling_gradient):
    """`average_pooling_gradient`."""

    zero_pad: tuple[int, int]


class L2NormPooling(_Pooling, of=l2_norm_pooling):
    """`l2_norm_pooling`."""


class L2NormPoolingGradient(_Pooling, of=l2_norm_pooling_gradient):
    """`l2_norm_pooling_gradient` of a gradient and the forward source."""
