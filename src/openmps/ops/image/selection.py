"""Images chosen by number, and mirrored by number: batches of a data set that lies on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.ops import triton
from openmps.ops.op import Kind, Op
from openmps.ops.random.random import WORD_MASK, philox, split_words


def _from(numbers: Tensor, first: int | Tensor, count: int) -> Tensor:
    """``numbers[first : first + count]``, int64; ``first`` may be an int64 tensor without axes."""
    places = torch.arange(count, device=numbers.device) + first
    return numbers.to(torch.int64).index_select(0, places).bitwise_and_(WORD_MASK)


def selected(x: Tensor, numbers: Tensor, first: int | Tensor, count: int) -> Tensor:
    """``Y[k] = X[numbers[first + k]]`` for k below ``count``, of images [N, C, H, W]: [count, C, H, W], channels-last.

    Raises:
        MPSArgumentError: On the CPU, a number is N or more. A GPU makes an image of zeros of it.
    """
    if triton.runs_on(x.device):
        from openmps.ops.triton.image import selection as kernels

        if kernels.takes(x, numbers, count):
            return kernels.selected(x, numbers, first, count)
    index, images = _from(numbers, first, count), len(x)
    outside = index >= images
    if not x.is_cuda and bool(outside.any()):
        got = f"{int(index[outside][0])} for image {int(outside.nonzero()[0])}"
        raise MPSArgumentError("ImageSelection", "numbers", f"must be below {images}, the images there are", got)
    pixels = x.permute(0, 2, 3, 1).index_select(0, index.clamp(max=images - 1))
    if x.is_cuda:
        pixels.masked_fill_(outside.view(-1, 1, 1, 1), 0)
    return pixels.permute(0, 3, 1, 2)


class Selected(Op, of=selected, kind=Kind.STORAGE, half=True):
    """`selected` of images as they are stored, numbers, and the place of the first of these."""

    takes_device_numbers = True

    count: int


def alternately_mirrored(x: Tensor, numbers: Tensor, first: int | Tensor, epoch: int | Tensor, seed: int) -> Tensor:
    """Images [N, C, H, W], whose numbers stand from ``first`` on, mirrored in every second epoch; channels-last.

    The image of number i is mirrored left to right in epoch e where the highest bit of word 0 of Philox4x32-10 with the
    key ``(seed, seed >> 32)`` and the counter ``(i, 0, 0, 0)`` plus ``e`` is odd.
    """
    if triton.runs_on(x.device):
        from openmps.ops.triton.image import selection as kernels

        if kernels.takes(x, numbers, len(x)):
            return kernels.alternately_mirrored(x, numbers, first, epoch, seed)
    word = philox((_from(numbers, first, len(x)), 0, 0, 0), split_words(seed))[0]
    is_mirrored = ((word >> 31) + epoch) & 1
    pixels = x.permute(0, 2, 3, 1)
    mirrored = torch.as_tensor(is_mirrored, dtype=torch.bool).view(-1, 1, 1, 1)
    return torch.where(mirrored, pixels.flip(2), pixels).permute(0, 3, 1, 2)


class AlternatelyMirrored(Op, kind=Kind.WINDOW, half=True):
    """`alternately_mirrored` of images as they are stored, numbers, the place of the first, and the epoch."""

    takes_device_numbers = True

    seed: int

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        return alternately_mirrored(*operands, seed=self.seed)
