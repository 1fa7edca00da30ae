"""Images one behind another along their feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.op import Kind, Op

_ALPHA = 3
"""The last channel of a slice of four."""


def concatenate(images: tuple[Tensor, ...], channels: tuple[int, ...], room: int = 0, alpha: float = 1.0) -> Tensor:
    """The channels of ``images``, each ``[N, C, H, W]`` and filled up to its number of ``channels``.

    An image of one or two channels is filled as a texture of so many is read: with 0, 0 and ``alpha`` behind one, with
    0 and ``alpha`` behind two. All others are filled with zeros. The memory has ``room`` for so many channels more
    behind each pixel's, where `grow` puts them.
    """
    if room:
        first, total = images[0], sum(channels)
        result = empty_image(first, total + room, (first.shape[2], first.shape[3]))[:, :total]
        _put(result, images, channels, 0, alpha)
        return result
    parts: list[Tensor] = []
    for image, count in zip(images, channels, strict=True):
        parts.append(image)
        if count > image.shape[1]:
            filler = empty_image(image, count - image.shape[1], (image.shape[2], image.shape[3]))
            parts.append(_filled(filler, image.shape[1], alpha))
    return torch.cat(parts, 1).contiguous(memory_format=torch.channels_last)


def grow(whole: Tensor, images: tuple[Tensor, ...], channels: tuple[int, ...], alpha: float = 1.0) -> Tensor:
    """``whole``, which has room, with ``images`` behind it, as `concatenate` would put them: the memory is shared."""
    count, before, height, width = whole.shape
    grown = whole.as_strided((count, before + sum(channels), height, width), whole.stride())
    _put(grown, images, channels, before, alpha)
    return grown


def _put(result: Tensor, images: tuple[Tensor, ...], channels: tuple[int, ...], begin: int, alpha: float) -> None:
    for image, count in zip(images, channels, strict=True):
        own = image.shape[1]
        result.narrow(1, begin, own).copy_(image)
        if count > own:
            _filled(result.narrow(1, begin + own, count - own), own, alpha)
        begin += count


def _filled(filler: Tensor, own: int, alpha: float) -> Tensor:
    """The channels behind ``own`` channels of an image, filled."""
    filler.zero_()
    if own <= 2 and own + filler.shape[1] > _ALPHA:
        filler[:, _ALPHA - own] = alpha
    return filler


class Concatenate(Op, kind=Kind.STORAGE, half=True):
    """`concatenate` of its operands."""

    channels: tuple[int, ...]
    """Channels that each operand takes."""
    alpha: float = 1.0
    """What the fourth channel of operands of one or two is filled with."""
    room: int = 0

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `concatenate`."""
        return concatenate(operands, self.channels, self.room, self.alpha)


class Grow(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """`grow` of its first operand by the others."""

    channels: tuple[int, ...]
    """Channels that each of the others takes."""
    alpha: float = 1.0

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the function."""
        return grow(operands[0], operands[1:], self.channels, self.alpha)
