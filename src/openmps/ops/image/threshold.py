"""Thresholds of pictures, and limits of numbers (MPSImageThreshold.h and MPSImageMath.h)."""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch import Tensor

from openmps.ops.elements import decode, encode
from openmps.ops.op import Op
from openmps.types import MPSImageFeatureChannelFormat as Format


class Thresholding(Enum):
    """What becomes of numbers above a threshold, and of the others."""

    BINARY = auto()
    """`largest`, else 0."""
    BINARY_INVERSE = auto()
    """0, else `largest`."""
    TRUNCATE = auto()
    """The threshold, else the number."""
    TO_ZERO = auto()
    """The number, else 0."""
    TO_ZERO_INVERSE = auto()
    """0, else the number."""


def becomes(how: Thresholding, limit: float, largest: float) -> tuple[float | None, float | None]:
    """What becomes of numbers above the limit, and of others; None for the number itself."""
    above: dict[Thresholding, float | None] = {
        Thresholding.BINARY: largest, Thresholding.TRUNCATE: limit, Thresholding.TO_ZERO: None
    }  # fmt: skip
    other: dict[Thresholding, float | None] = {
        Thresholding.BINARY_INVERSE: largest, Thresholding.TRUNCATE: None, Thresholding.TO_ZERO_INVERSE: None
    }  # fmt: skip
    return above.get(how, 0.0), other.get(how, 0.0)


def threshold(x: Tensor, how: Thresholding, limit: float, largest: float) -> Tensor:
    """What `how` says of numbers ``> limit``; NaN is not above it."""
    above, other = (x if each is None else each for each in becomes(how, limit, largest))
    is_above = x > limit
    if isinstance(above, float) and isinstance(other, float):
        return torch.where(is_above, x.new_full((), above), x.new_full((), other))
    return torch.where(is_above, above, other)


def bytes_of_threshold(limit: float, largest: float) -> tuple[int, int, int]:
    """The first byte above a limit, 256 where there is none; and the bytes of the limit and of ``largest``."""
    numbers = decode(torch.arange(256, dtype=torch.uint8), Format.UNORM8)
    rounded = encode(torch.tensor([limit, largest]), Format.UNORM8).tolist()
    return int((numbers <= limit).sum()), rounded[0], rounded[1]


def threshold_bytes(x: Tensor, how: Thresholding, least: int, limit: int, largest: int) -> Tensor:
    """`threshold` of bytes as they are stored, rounded once to bytes; of the numbers of `bytes_of_threshold`."""
    if how is Thresholding.TRUNCATE:
        return x.clamp(0 if least else limit, limit)
    # Bytes are compared by bounds: the engine has no fast comparison of theirs.
    is_above = x.clamp(least - 1, least).sub_(least - 1) if 0 < least < 256 else torch.full_like(x, int(least == 0))
    if how in (Thresholding.BINARY, Thresholding.BINARY_INVERSE):
        found = is_above.mul_(largest)
        return found if how is Thresholding.BINARY else found.neg_().add_(largest)
    found = is_above.mul_(x)
    return found if how is Thresholding.TO_ZERO else x - found


def limited(x: Tensor, minimum: float, maximum: float) -> Tensor:
    """``min(max(x, minimum), maximum)``, infinities too; NaN stays."""
    return x.clamp(minimum, maximum)


def limited_into(room: Tensor, x: Tensor, minimum: float, maximum: float) -> bool:
    """`limited`, in memory for it."""
    if (room.shape, room.dtype) != (x.shape, x.dtype):
        return False
    torch.clamp(x, minimum, maximum, out=room)
    return True


class Threshold(Op, of=threshold):
    """`threshold` of a gray value."""

    how: Thresholding
    limit: float
    largest: float


class ThresholdBytes(Op, of=threshold_bytes):
    """`threshold_bytes` of one channel."""

    how: Thresholding
    least: int
    limit: int
    largest: int


class Limited(Op, of=limited, into=limited_into):
    """`limited` numbers."""

    minimum: float
    maximum: float
