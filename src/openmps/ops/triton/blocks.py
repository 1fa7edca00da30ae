"""Numbers of blocks and their sizes, for launches.

Triton's functions of these names are for kernels, too, and look at each call who asks: 5 us, a third of a launch.
"""

from __future__ import annotations


def cdiv(count: int, size: int) -> int:
    """How many blocks of a size hold a count."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The smallest power of 2 that is not below a count."""
    return 1 << max(0, count - 1).bit_length()
