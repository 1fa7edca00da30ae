"""Elements of images as they are stored, and the numbers that they stand for.

Kernels compute in float32: `decode` turns stored elements into numbers, `encode` rounds numbers once to the stored
format (MPSImage.h, ``MPSImageFeatureChannelFormat``, macOS 10.13).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.checks import Shown
from openmps.ops import triton
from openmps.ops.geometry import Window, empty_image, meet, read, read_adjoint
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageEdgeMode
from openmps.types import MPSImageFeatureChannelFormat as Format

DTYPES: dict[Format, torch.dtype] = {
    Format.UNORM8: torch.uint8,
    Format.UNORM16: torch.uint16,
    Format.FLOAT16: torch.float16,
    Format.FLOAT32: torch.float32,
}
"""The type of an element as it is stored."""

COMPONENTS = 4
"""Channels of a texture at most: red, green, blue, alpha."""
_SHIFT = 1.5 * 2.0**23
"""Whose lowest bit as a float32 is 1, and whose lowest 16 bits are 0."""
_UNORM_MAXIMUM = {Format.UNORM8: 255, Format.UNORM16: 65535}


def decode(stored: Tensor, channel_format: Format) -> Tensor:
    """The float32 numbers that stored elements stand for: unorm ``u / (2^bits - 1)``, float as it is."""
    maximum = _UNORM_MAXIMUM.get(channel_format)
    if stored.dtype == torch.uint8 and maximum is not None and _fits_one_pass(stored):
        from openmps.ops.triton.elements import decode_unorm

        return decode_unorm(stored, maximum)
    numbers = stored.to(torch.float32)
    # By a tensor: on CUDA a division by a plain number is a product with its rounded reciprocal.
    return numbers if maximum is None else numbers.div_(numbers.new_full((), maximum))


def _fits_one_pass(stored: Tensor) -> bool:
    """Whether elements lie without gaps on a device where Triton runs."""
    if not triton.runs_on(stored.device) or not stored.numel():
        return False
    return stored.is_contiguous() or (stored.dim() == 4 and stored.is_contiguous(memory_format=torch.channels_last))


def encode(values: Tensor, channel_format: Format) -> Tensor:
    """Numbers, float32 at best, rounded once to the stored format: to nearest, ties to even.

    Unorm clamps to [0, 1] and stores NaN as 0; float16 stores what is too large as infinity.
    """
    maximum = _UNORM_MAXIMUM.get(channel_format)
    if maximum is None:
        return values.to(DTYPES[channel_format])
    numbers = values.to(torch.float32)
    if channel_format is Format.UNORM8 and _fits_one_pass(numbers):
        from openmps.ops.triton.elements import encode_unorm

        return encode_unorm(numbers, maximum)
    if numbers.device.type == "cpu":
        return _rounded(numbers, maximum).to(DTYPES[channel_format])
    scaled = torch.nan_to_num(numbers, nan=0.0).clamp_(0.0, 1.0).mul_(maximum).round_()
    return scaled.to(torch.int32).to(DTYPES[channel_format])


def decode_into(room: Tensor, stored: Tensor, channel_format: Format) -> bool:
    """`decode`, in memory for it: where nothing is computed, or in one pass."""
    if room.shape != stored.shape:
        return False
    if channel_format not in _UNORM_MAXIMUM:
        room.copy_(stored)
        return True
    if channel_format is not Format.UNORM8 or room.stride() != stored.stride() or not _fits_one_pass(stored):
        return False
    from openmps.ops.triton.elements import decode_unorm

    decode_unorm(stored, _UNORM_MAXIMUM[channel_format], room)
    return True


def encode_into(room: Tensor, values: Tensor, channel_format: Format) -> bool:
    """`encode`, in memory for it: where nothing is computed, or in one pass."""
    if room.shape != values.shape:
        return False
    if channel_format not in _UNORM_MAXIMUM:
        room.copy_(values)
        return True
    if channel_format is not Format.UNORM8 or room.stride() != values.stride() or values.dtype != torch.float32:
        return False
    if not _fits_one_pass(values):
        return False
    from openmps.ops.triton.elements import encode_unorm

    encode_unorm(values, _UNORM_MAXIMUM[channel_format], room)
    return True


def _rounded(numbers: Tensor, maximum: int) -> Tensor:
    """Whole numbers up to ``maximum``, int32, in few passes: behind a large number float32 has no places for more.

    Only the bits that an unorm format has are of use; those above are the large number's.
    """
    shifted = (numbers * maximum).add_(_SHIFT).clamp_(_SHIFT, _SHIFT + maximum)
    if not math.isfinite(shifted.sum()):  # NaN alone is left
        shifted = shifted.nan_to_num_(nan=_SHIFT)
    return shifted.view(torch.int32)


def components(x: Tensor, count: int, colour: float = 0.0, alpha: float = 1.0) -> Tensor:
    """``count`` components of a texture ``[N, C, H, W]``: those that it lacks read 0, the fourth one, alpha, 1.

    ``colour`` and ``alpha`` say what a filter makes of such components. Of bytes as they are stored 1 is 255.
    """
    channels = x.shape[1]
    if count <= channels:
        return x[:, :count]
    whole = empty_image(x, count, (x.shape[2], x.shape[3]))
    whole[:, :channels] = x
    whole[:, channels:] = colour
    if channels < COMPONENTS <= count:
        whole[:, COMPONENTS - 1] = alpha * _UNORM_MAXIMUM[Format.UNORM8] if x.dtype == torch.uint8 else alpha
    return whole


def unshared(result: Tensor, operand: Tensor) -> Tensor:
    """``result`` in memory of its own: copied where it shares that of ``operand``."""
    return result.clone() if meet(result, operand) else result


def room_for(values: Tensor, x: Tensor) -> Tensor:
    """Memory for ``values`` in the type of ``x``: their own if that is theirs."""
    return values if values.dtype == x.dtype else torch.empty_like(values, dtype=x.dtype)


class _Storage(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """The base of operations that move elements as they are."""


class Load(_Storage, of=decode, into=decode_into):
    """`decode` of stored elements: the numbers, float32."""

    channel_format: Format


class Store(_Storage, of=encode, into=encode_into):
    """`encode` of numbers: elements of a format, rounded once."""

    channel_format: Format


class Widen(Op, kind=Kind.STORAGE):
    """Bytes as numbers of 0 … 255, float32."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        stored = operands[0]
        if stored.dtype == torch.uint8 and _fits_one_pass(stored):
            from openmps.ops.triton.elements import decode_unorm

            return decode_unorm(stored, 1)
        return stored.to(torch.float32)


class Channels(_Storage):
    """A run of channels of an image: ``x[:, first : first + count]``."""

    first: int
    count: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        return operands[0][:, self.first : self.first + self.count]


class Components(_Storage, of=components):
    """`components` of a picture."""

    count: int
    colour: float = 0.0
    alpha: float = 1.0


class Crop(_Storage):
    """A rectangle of an image: ``x[:, :, y : y + height, x : x + width]``."""

    y: int
    x: int
    height: int
    width: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        return operands[0][:, :, self.y : self.y + self.height, self.x : self.x + self.width]


class Place(_Storage, gives_view=False):
    """An image of zeros with another one in a part of it, from ``(channel, y, x)`` on."""

    shape: tuple[int, int, int, int]
    """Images, channels, rows and columns of the whole."""
    channel: int
    y: int
    x: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        (part,) = operands
        whole = torch.empty(self.shape, dtype=part.dtype, device=part.device, memory_format=torch.channels_last).zero_()
        _, channels, height, width = part.shape
        corner = whole[:, self.channel : self.channel + channels]
        corner[:, :, self.y : self.y + height, self.x : self.x + width].copy_(part)
        return whole


class _Region(Op, kind=Kind.STORAGE, gives_view=True):
    """The base of reads."""

    window: Window
    edge_mode: MPSImageEdgeMode

    is_identity = Shown[bool]("window.is_whole", "Whether the region is the image itself.")


class Read(_Region, of=read, half=True):
    """The region of an image that windows read; see `openmps.ops.geometry.read`."""


class ReadAdjoint(_Region, of=read_adjoint):
    """The gradient of an image from that of the region read; see `openmps.ops.geometry.read_adjoint`."""


class Unshared(Op, kind=Kind.STORAGE):
    """The base of operations whose function may give an operand back: their results have memory of their own."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        return unshared(self._function(*operands, **vars(self)), operands[0])


class Overwrite(Op, kind=Kind.UPDATE, has_effect=True):
    """Numbers put in the place of others: the first half of the operands take those of the second half."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The first half."""
        return range(operands // 2)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Copy each into its place; in a few launches on CUDA."""
        half = len(operands) // 2
        torch.ops.aten._foreach_copy_.default([*operands[:half]], [*operands[half:]])


class Clear(Op, kind=Kind.UPDATE, has_effect=True):
    """Zeros in the place of numbers."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """All of them."""
        return range(operands)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Set all operands to zero."""
        for numbers in operands:
            numbers.zero_()


class RowSums(Op, kind=Kind.UPDATE, has_effect=True):
    """The sums over the rows of matrices ``[n, C]`` in the place of the first operand's C numbers."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """The first."""
        return (0,)

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> None:
        """Add up all rows, in float32 or better."""
        total, *rows = operands
        torch.sum(rows[0] if len(rows) == 1 else torch.cat(rows), 0, out=total)


def gather(parts: Sequence[Tensor]) -> Tensor:
    """Images that lie apart, copied into one ``[n, C, H, W]`` channels-last tensor."""
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    gathered = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=torch.channels_last)
    return torch.cat(list(parts), out=gathered)
