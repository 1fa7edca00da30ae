"""A normalization, the rectifier and the max pooling behind it as one operation; and its gradients.

Each equals the operations of `normalized_neuron` and `ops.pooling.pooling` one after the other, rounded to
float16 where those were stored so. Where Triton runs, neither the image between neuron and pooling nor its gradient
exists, and the sums for gamma and beta read pooled images alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window, empty_image
from openmps.ops.normalization.batch_normalization import kernels_for
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, NormalizedNeuronGradient, NormalizedNeuronSums
from openmps.ops.op import Kind, Op
from openmps.ops.pooling.pooling import library_max_padding, max_pooling, max_pooling_gradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RECTIFIERS = frozenset({MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N})


def can_be_pooled(op: NormalizedNeuron, window: Window, edge_mode: MPSImageEdgeMode) -> bool:
    """Whether a max pooling may stand behind a neuron here: one that passes nothing or all, and reads no zeros."""
    is_rectifier = op.neuron.function in _RECTIFIERS and op.neuron.a == 0.0
    return is_rectifier and library_max_padding(window, edge_mode) is not None


class _Pooled(Op, kind=Kind.WINDOW, half=True):
    """The base: the windows."""

    window: Window
    edge_mode: MPSImageEdgeMode

    @property
    def gives_half(self) -> bool:
        """Not by itself: the operations say what is rounded."""
        return False

    def _kernels(self, pooled: Sequence[Tensor], images: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Any:
        """The forms in Triton, if they take pooled images, images and rows of numbers; else None."""
        if kernels_for(images, rows) is None or (pooled and kernels_for(pooled, rows) is None):
            return None
        from openmps.ops.triton.normalization import normalized_pooling as kernels

        return kernels if kernels.fits(self.window) else None


class NormalizedPooling(_Pooled, results=3):
    """``max_pooling(neuron(Normalize(x)))`` of images, mean, correction (none is 0), variance, gamma and beta.

    The other two results are for the gradients: which pixel was the largest of a window, and the number there.
    """

    normalized: NormalizedNeuron

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See the class."""
        x, *rows = operands
        first = self.normalized
        fast = self._kernels((), [x], rows)
        if fast is not None:
            dtype = torch.float16 if first.rounds_neuron else torch.float32
            return fast.pooled(x, _rows(rows), first.epsilon, first.activation(x), self.window, dtype)
        y, _ = first.run((True, False), *operands)
        return *max_pooling(y, self.window, self.edge_mode), None


class NormalizedPoolingSums(_Pooled, kind=Kind.REDUCTION, results=2):
    """`NormalizedNeuronSums` of the gradient of a max pooling.

    Operands are the gradient of the pooled image, what the forward pass kept, the images, mean, correction, variance,
    gamma and beta, and perhaps sums that the new ones join.
    """

    sums: NormalizedNeuronSums
    rounds: bool
    """Whether the gradient of what was pooled was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See the class."""
        gradient, choice, winners, x, *rest = operands
        rows, before = rest[:5], rest[5:]
        if winners is not None and (fast := self._kernels([gradient, winners], [x], [*rows, *before])) is not None:
            return fast.parameter_gradients(gradient, choice, winners, _rows(rows), self.sums.epsilon, before)
        flow = _unpooled(self, gradient, choice, x, rounds=self.rounds)
        return self.sums.run(wanted, flow, x, *rest)


class NormalizedPoolingGradient(_Pooled):
    """`NormalizedNeuronGradient` of the gradient of a max pooling.

    Operands are those of `NormalizedPoolingSums`, in the place of sums to join the sums for gamma and beta and the
    number of pixels, or nothing where the statistics are constants.
    """

    gradient: NormalizedNeuronGradient
    rounds: bool
    """Whether the gradient of what was pooled was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        gradient, choice, winners, x, *rest = operands
        rows, batch = rest[:5], rest[5:]
        how = self.gradient
        if winners is not None and (fast := self._kernels([gradient, winners], [x], [*rows, *batch[:2]])) is not None:
            dtype = torch.float32 if how.is_wide else x.dtype
            return fast.data_gradient(
                gradient, choice, x, _rows(rows), how.epsilon, batch[:2], batch[2] if batch else 1, self.window, dtype,
                rounds=self.rounds or how.rounds_neuron,
            )  # fmt: skip
        return how.run(wanted, _unpooled(self, gradient, choice, x, rounds=self.rounds), x, *rest)


def _rows(rows: Sequence[Any]) -> Any:
    from openmps.ops.triton.normalization.batch_normalization import Rows

    return Rows(*rows)


def _unpooled(op: _Pooled, gradient: Tensor, choice: Tensor, x: Tensor, *, rounds: bool) -> Tensor:
    """The gradient of what was pooled."""
    if choice.dtype == torch.uint8:
        # What the kernels kept, for a gradient that they do not take.
        from openmps.ops.triton.normalization.normalized_pooling import NOTHING

        gradient = torch.where(choice == NOTHING, 0.0, gradient)
        choice = places(choice, op.window)
    room = empty_image(gradient, x.shape[1], op.window.source)
    flow = max_pooling_gradient(gradient, room, choice, op.window, op.edge_mode)
    return flow.to(torch.float16) if rounds else flow


def places(taps: Tensor, window: Window) -> Tensor:
    """Which pixel of the source a tap of each window is, counted by rows; the first tap in the source for none."""
    vertical, horizontal = window.y, window.x
    rows = torch.arange(vertical.result, device=taps.device) * vertical.stride + vertical.first
    columns = torch.arange(horizontal.result, device=taps.device) * horizontal.stride + horizontal.first
    taps = taps.long() % (vertical.size * horizontal.size)
    y = (rows[:, None] + taps // horizontal.size * vertical.dilation).clamp_(0, vertical.source - 1)
    x = (columns + taps % horizontal.size * horizontal.dilation).clamp_(0, horizontal.source - 1)
    return y * horizontal.source + x
