"""Images as rows of numbers, one row an image (MPSImageCopy.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from openmps.ops.op import Kind, Op


def pixels(rows: Tensor, size: tuple[int, int, int], *, is_channels_first: bool) -> Tensor:
    """The images ``[N, C, H, W]`` that rows ``[N, C * H * W]`` hold, sharing their memory.

    Channels, height and width are ``size``. Of a row element ``(c H + y) W + x`` is channel c of pixel (x, y) with the
    channels first, element ``(y W + x) C + c`` otherwise.
    """
    channels, height, width = size
    if is_channels_first:
        return rows.unflatten(1, (channels, height, width))
    return rows.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)


class RowsToImages(Op, of=pixels, kind=Kind.STORAGE, half=True, gives_view=True):
    """`pixels` of rows."""

    size: tuple[int, int, int]
    is_channels_first: bool


class ImagesToRows(Op, kind=Kind.UPDATE, results=0, half=True, has_effect=True):
    """Fill rows, the first operand, with the elements of images, the second: the reverse of `RowsToImages`."""

    is_channels_first: bool

    def overwritten(self, operands: int) -> Iterable[int]:
        """The rows."""
        return (0,)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Write the rows."""
        rows, images = operands
        _, channels, height, width = images.shape
        pixels(rows, (channels, height, width), is_channels_first=self.is_channels_first).copy_(images)
