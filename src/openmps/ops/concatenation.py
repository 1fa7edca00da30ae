"""Images one behind another along their feature channels (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.op import Kind, Op


def concatenate(images: tuple[Tensor, ...], channels: tuple[int, ...]) -> Tensor:
    """The channels of ``images``, each ``[N, C, H, W]`` and followed by zeros up to its number of ``channels``."""
    parts: list[Tensor] = []
    for image, count in zip(images, channels, strict=True):
        parts.append(image)
        if count > image.shape[1]:
            parts.append(empty_image(image, count - image.shape[1], (image.shape[2], image.shape[3])).zero_())
    return torch.cat(parts, 1).contiguous(memory_format=torch.channels_last)


class Concatenate(Op, kind=Kind.STORAGE, half=True):
    """`concatenate` of its operands."""

    channels: tuple[int, ...]
    """Channels that each operand takes."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See `concatenate`."""
        return concatenate(operands, self.channels)
