"""Padding of rows, columns and feature channels, and its gradient (MPSNNReshape.h, macOS 10.14.1).

An index ``i`` outside of the ``n`` pixels or channels of an axis stands for:

====================  ============================================================================
edge mode             index read
====================  ============================================================================
``ZERO``              none: the number is 0
``CONSTANT``          none: the number is the fill value of the channel written
``CLAMP``             the nearest of 0 … n - 1
``MIRROR``            reflected about the centre of the first and last, as often as needed; 0 if n = 1
``MIRROR_WITH_EDGE``  reflected about the border, as often as needed
====================  ============================================================================

Axes are continued one by one. With ``ZERO`` and ``CONSTANT`` a number that is outside on any axis is constant.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from openmps.ops.elements import Unshared, unshared
from openmps.ops.geometry import Axis, Window, empty_image, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode as Edge

_CONSTANT = (Edge.ZERO, Edge.CONSTANT)


def _clamped(index: Tensor, length: int) -> Tensor:
    return index.clamp_(0, length - 1)


def _mirrored(index: Tensor, length: int) -> Tensor:
    last = length - 1
    return last - (index.remainder_(2 * last) - last).abs_() if last else index.zero_()


def _mirrored_with_edge(index: Tensor, length: int) -> Tensor:
    index = index.remainder_(2 * length)
    return torch.minimum(index, 2 * length - 1 - index)


_CONTINUED: dict[Edge, Callable[[Tensor, int], Tensor]] = {
    Edge.CLAMP: _clamped,
    Edge.MIRROR: _mirrored,
    Edge.MIRROR_WITH_EDGE: _mirrored_with_edge,
}


def continued(index: Tensor, length: int, edge_mode: Edge) -> Tensor:
    """The index that each index of an axis stands for, or the position; modes that read no number outside alone.

    The memory of ``index`` may be written.
    """
    return _CONTINUED[edge_mode](index, length)


def pad(x: Tensor, window: Window, channels: tuple[int, int], edge_mode: Edge, fill: Tensor | float = 0.0) -> Tensor:
    """Copy the source, continued beyond its edges: ``Y[n, c, y, x] = E[n, c - channels[0], y + offset, x + offset]``.

    Args:
        x: The source, [N, C, window.y.source, window.x.source].
        window: Windows of one pixel; their offset is minus the padding on the left and on top.
        channels: Channels added before the first and after the last.
        edge_mode: How the source goes on.
        fill: What ``CONSTANT`` reads outside: a number, or one for each of the C + sum(channels) channels written.

    Returns:
        [N, C + sum(channels), window.y.result, window.x.result].
    """
    if edge_mode in _CONSTANT:
        return _pad_constant(x, window, channels, fill if edge_mode == Edge.CONSTANT else 0.0)
    pixels = x.permute(0, 2, 3, 1)
    for dimension, run in enumerate(_runs(window, x.shape[1], channels), start=1):
        if run.leaves_source:
            pixels = pixels.index_select(dimension, _indices(run, edge_mode, x.device))
        else:
            pixels = pixels.narrow(dimension, run.first, run.result)
    return pixels.permute(0, 3, 1, 2)


def pad_gradient(gradient: Tensor, window: Window, channels: tuple[int, int], edge_mode: Edge) -> Tensor:
    """Add up, for each number of the source, the gradients of all results that are copies of it: the exact adjoint.

    Args:
        gradient: The gradient for the result, [N, C + sum(channels), window.y.result, window.x.result].
        window: The windows of the forward pass.
        channels: Its channels before and after.
        edge_mode: Its edge mode.

    Returns:
        The gradient for the source, [N, C, window.y.source, window.x.source]; 0 for what was not read.
    """
    source = gradient.shape[1] - sum(channels)
    if edge_mode in _CONSTANT:
        return read_adjoint(gradient.narrow(1, channels[0], source), window, Edge.ZERO)
    pixels = gradient.permute(0, 2, 3, 1)
    for dimension, run in enumerate(_runs(window, source, channels), start=1):
        if run.first == 0 and run.result == run.source:
            continue
        shape = list(pixels.shape)
        shape[dimension] = run.source
        index = _indices(run, edge_mode, gradient.device)
        pixels = pixels.new_zeros(shape).index_add_(dimension, index, pixels)
    return pixels.permute(0, 3, 1, 2)


def _runs(window: Window, source: int, channels: tuple[int, int]) -> tuple[Axis, Axis, Axis]:
    """Rows, columns and channels read."""
    return window.y, window.x, Axis(source, source + sum(channels), offset=-channels[0])


def _indices(run: Axis, edge_mode: Edge, device: torch.device) -> Tensor:
    """The pixel or channel that each index read stands for."""
    index = torch.arange(run.first, run.first + run.result, device=device)
    return continued(index, run.source, edge_mode) if run.leaves_source else index


def _pad_constant(x: Tensor, window: Window, channels: tuple[int, int], fill: Tensor | float) -> Tensor:
    before, after = channels
    result = empty_image(x, before + x.shape[1] + after, window.result)
    if isinstance(fill, Tensor):
        result.copy_(fill.view(1, -1, 1, 1))
    else:
        result.fill_(fill)
    rows, columns = window.y.inside, window.x.inside
    if rows and columns:
        inside = x[:, :, rows.start : rows.stop, columns.start : columns.stop]
        part = result.narrow(1, before, x.shape[1])
        part = part.narrow(2, rows.start - window.y.first, len(rows))
        part.narrow(3, columns.start - window.x.first, len(columns)).copy_(inside)
    return result


class Pad(Op, kind=Kind.WINDOW, half=True):
    """`pad` of an image, whose numbers are copied; fill values of each channel, rounded once, are a second operand."""

    window: Window
    channels: tuple[int, int]
    edge_mode: Edge
    fill: float = 0.0

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `pad`."""
        x, *fill = operands
        return unshared(pad(x, self.window, self.channels, self.edge_mode, fill[0] if fill else self.fill), x)


class PadGradient(Unshared, of=pad_gradient, kind=Kind.WINDOW):
    """`pad_gradient` of a gradient."""

    window: Window
    channels: tuple[int, int]
    edge_mode: Edge

    @property
    def takes_half(self) -> bool:
        """Where no number was copied more than once, so that nothing is added up."""
        return self.edge_mode in _CONSTANT
