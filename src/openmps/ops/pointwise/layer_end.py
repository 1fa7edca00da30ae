"""What stands behind a layer's products, as one operation: biases, max pooling, a ReLU, dropout; and its gradient.

Each equals operations of `ops.convolution`, `ops.pooling`, `neuron` and `dropout` one after the other, rounded
to float16 where those were stored so. The images between them never exist: a byte for each result says which pixel of
its window the gradient goes to, if any. Where Triton runs, each is one pass over the images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.geometry import Window, empty_image, pitch_of
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.dropout import DropoutMask, dropout

MOST_TAPS = 64
"""Of windows that are pooled."""


def can_pool(window: Window) -> bool:
    """Whether windows are few pixels each, all inside the source, and no two of them share one."""
    apart = all(axis.dilation == 1 and axis.stride >= axis.size for axis in (window.x, window.y))
    return apart and not window.leaves_source and window.y.size * window.x.size <= MOST_TAPS


class LayerEnd(Op, kind=Kind.WINDOW, half=True, results=2):
    """``dropout(relu(max pooling(x + biases)))``, as far as there are biases, a window, a ReLU and a dropout.

    Operands: the products, biases or None, the number of the encode where there is a dropout. The second result is for
    `LayerEndGradient`, int8: the tap that the gradient goes to, -1 where none of it gets through.
    """

    takes_device_numbers = True

    window: Window | None
    """For which `can_pool` holds."""
    rounds: bool
    """Whether the sum with the biases is stored as float16; one of float16 products is, stored or not."""
    rectifies: bool = True
    """Whether there is a ReLU."""
    mask: DropoutMask | None = None
    """Of a dropout that drops each number by itself."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See the class."""
        x, biases, *step = operands
        pitch = pitch_of(x)
        if pitch is not None and _runs(x, self.window):
            from openmps.ops.triton.pointwise.layer_end import layer_end as at_once

            rounds, count = self.rounds or x.dtype == torch.float16, step[0] if step else 0
            said: Any = {"pitch": pitch, "rounds": rounds, "rectifies": self.rectifies}
            return at_once(x, biases, self.window, self.mask, count, **said)
        z = x if biases is None else x.float() + biases.view(-1, 1, 1)
        z = z.to(torch.float16) if self.rounds or x.dtype == torch.float16 else z
        y, tap = _pooled(z, self.window, rectifies=self.rectifies)
        if self.mask is not None:
            kept = self.mask.run((True,), y, *step)
            y, tap = dropout(y, kept, self.mask.keep_probability), torch.where(kept, tap, -1)
        return y, tap.to(torch.int8)


class LayerEndGradient(Op, kind=Kind.WINDOW, half=True, results=2):
    """The gradient of `LayerEnd` for the products, and its sums for the biases, float32.

    Operands: the gradient for the result, and the taps.
    """

    window: Window | None
    keep_probability: float = 1.0
    """Of the dropout, if there was one."""

    @property
    def pools(self) -> bool:
        """Whether there is a window."""
        return self.window is not None

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor | None, Tensor | None]:
        """See the class."""
        gradient, tap = operands
        pitches = pitch_of(gradient), pitch_of(tap)
        if pitches[0] is not None and pitches[1] is not None and _runs(gradient, self.window):
            from openmps.ops.triton.pointwise.layer_end import layer_end_gradient as at_once

            return at_once(
                gradient, tap, self.window, self.keep_probability, pitches[0], pitches[1], with_sums=wanted[1]
            )
        flow = dropout(gradient, tap >= 0, self.keep_probability)
        sums = flow.sum((0, 2, 3), dtype=torch.float32) if wanted[1] else None
        return _spread(flow, tap, self.window) if wanted[0] else None, sums


def _runs(x: Tensor, window: Window | None) -> bool:
    """Whether an image can be done in Triton."""
    pixels = x.shape[0] * (x.shape[2] * x.shape[3] if window is None else window.y.source * window.x.source)
    fits = x.dtype in (torch.float16, torch.float32) and x.numel() > 0 and pixels < 2**30
    return fits and triton.runs_on(x.device)


def _pooled(z: Tensor, window: Window | None, *, rectifies: bool) -> tuple[Tensor, Tensor]:
    """What is left of the largest numbers, and their taps; -1 where the ReLU lets no gradient through."""
    taps = [z] if window is None else [z[:, :, rows, columns] for rows, columns in _taps(window)]
    largest, tap = taps[0], torch.zeros_like(taps[0], dtype=torch.int8)
    for place, value in enumerate(taps[1:], 1):
        takes = (value > largest) | value.isnan()
        largest, tap = torch.where(takes, value, largest), torch.where(takes, place, tap)
    if not rectifies:
        return largest, tap
    # Where the maximum is 0, the ReLU makes all pixels of a window equal, and the first takes the gradient, if it is 0.
    is_lost = (largest < 0.0) | ((largest == 0.0) & (taps[0] < 0.0))
    return largest.clamp_min(0.0), torch.where(is_lost, -1, tap)


def _spread(flow: Tensor, tap: Tensor, window: Window | None) -> Tensor:
    """Each number at the pixel of its window that the tap says; 0 at the others."""
    if window is None:
        return flow
    spread = empty_image(flow, flow.shape[1], window.source).zero_()
    for place, (rows, columns) in enumerate(_taps(window)):
        spread[:, :, rows, columns] = torch.where(tap == place, flow, 0.0)
    return spread


def _taps(window: Window) -> list[tuple[slice, slice]]:
    """For each tap, the rows and columns that it reads of all windows."""
    rows, columns = (
        [slice(first, first + (axis.result - 1) * axis.stride + 1, axis.stride) for first in axis.taps(0)]
        for axis in (window.y, window.x)
    )
    return [(row, column) for row in rows for column in columns]
