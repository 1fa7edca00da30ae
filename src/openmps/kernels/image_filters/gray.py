"""Gray values: the weights of colours that filters take (MPSImageThreshold.h, MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.checks import finite, listed
from openmps.errors import MPSArgumentError

GRAY_WEIGHTS = (0.299, 0.587, 0.114)
"""Those of ITU-R BT.601, the framework's default."""


def three_numbers(who: str, argument: str, values: Any) -> tuple[float, float, float]:
    """Three finite numbers, one each for red, green and blue."""
    numbers = [finite(who, argument, value) for value in listed(who, argument, values, "number")]
    if len(numbers) != 3:
        rule = "must be three numbers, for red, green and blue"
        raise MPSArgumentError(who, argument, rule, f"{len(numbers)} number(s)")
    return numbers[0], numbers[1], numbers[2]


def gray_weights(who: str, argument: str, values: Sequence[float] | None) -> tuple[float, float, float]:
    """Weights of a gray value; the default ones where none are given."""
    return GRAY_WEIGHTS if values is None else three_numbers(who, argument, values)
