"""Reshaping images: the same numbers in another width, height and number of channels (MPSNNReshape.h, macOS 10.13.4).

The header does not say in which order. Here, as where a fully connected layer flattens an image, it is rows, columns,
channels, the channel running fastest; channels that only fill up an image's last slice take no part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op


def reshape(x: Tensor, size: tuple[int, int, int], *, by_planes: bool = False) -> Tensor:
    """Lay the numbers of each image out anew; also the gradient, with the source's size.

    With ``k = (y * W + x) * C + c`` the place of a number in its image, result and source agree in every ``k``;
    ``by_planes`` with ``k = (c * H + y) * W + x``.

    Args:
        x: The source, [N, C, H, W].
        size: Channels, height and width of the result; their product is C * H * W.
        by_planes: Whether numbers are counted plane by plane.

    Returns:
        [N, *size], in channels-last memory; a view of ``x`` where that lies channels-last.
    """
    channels, height, width = size
    if by_planes:
        return x.reshape(x.shape[0], channels, height, width).contiguous(memory_format=torch.channels_last)
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], height, width, channels).permute(0, 3, 1, 2)


class Reshape(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """`reshape` of an image."""

    size: tuple[int, int, int]
    by_planes: bool = False

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the function."""
        return reshape(operands[0], self.size, by_planes=self.by_planes)
