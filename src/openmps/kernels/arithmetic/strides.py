"""Feature channel strides of arithmetic kernels."""

from __future__ import annotations

from openmps.errors import MPSArgumentError


def zero_or_one(who: str, argument: str, value: int) -> int:
    """A stride of arithmetic kernels: 1, or 0 to broadcast."""
    if value not in (0, 1):
        raise MPSArgumentError(who, argument, "must be 0 (broadcast) or 1", value)
    return int(value)
