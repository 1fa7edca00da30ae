"""Images one behind another along their feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.op import Kind, Op


def concatenate(images: tuple[Tensor, ...], channels: tuple[int, ...], room: int = 0) -> Tensor:
    """The channels of ``images``, each ``[N, C, H, W]`` and followed by zeros up to its number of ``channels``.

    The memory has ``room`` for so many channels more behind each pixel's, where `grow` puts them.
    """
    if room:
        first, total = images[0], sum(channels)
        result = empty_image(first, total + room, (first.shape[2], first.shape[3]))[:, :total]
        _put(result, images, channels, 0)
        return result
    parts: list[Tensor] = []
    for image, count in zip(images, channels, strict=True):
        parts.append(image)
        if count > image.shape[1]:
            parts.append(empty_image(image, count - image.shape[1], (image.shape[2], image.shape[3])).zero_())
    return torch.cat(parts, 1).contiguous(memory_format=torch.channels_last)


def grow(whole: Tensor, images: tuple[Tensor, ...], channels: tuple[int, ...]) -> Tensor:
    """``whole``, which has room, with ``images`` behind it, as `concatenate` would put them: the memory is shared."""
    count, before, height, width = whole.shape
    grown = whole.as_strided((count, before + sum(channels), height, width), whole.stride())
    _put(grown, images, channels, before)
    return grown


def _put(result: Tensor, images: tuple[Tensor, ...], channels: tuple[int, ...], begin: int) -> None:
    for image, count in zip(images, channels, strict=True):
        own = image.shape[1]
        result.narrow(1, begin, own).copy_(image)
        if count > own:
            result.narrow(1, begin + own, count - own).zero_()
        begin += count


class Concatenate(Op, kind=Kind.STORAGE, half=True):
    """`concatenate` of its operands."""

    channels: tuple[int, ...]
    """Channels that each operand takes."""
    room: int = 0

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `concatenate`."""
        return concatenate(operands, self.channels, self.room)


class Grow(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """`grow` of its first operand by the others."""

    channels: tuple[int, ...]
    """Channels that each of the others takes."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the function."""
        return grow(operands[0], operands[1:], self.channels)
