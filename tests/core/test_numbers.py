"""Numbers that users pass: what float32 holds, and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from openmps.checks import FLT_MAX, number
from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError, MPSTypeError


def test_the_largest_number() -> None:
    assert float(np.finfo(np.float32).max) == FLT_MAX


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), torch.tensor(2.0), Decimal(2), Fraction(2)])
def test_numbers_of_any_kind(value: Any) -> None:
    found = number("Kernel", "scale", value)
    assert (found, type(found)) == (2.0, float)


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, FLT_MAX, -FLT_MAX, math.inf, -math.inf])
def test_what_stays_as_it_is(value: float) -> None:
    """Small numbers are not rounded: only what float32 would make infinite is looked at."""
    assert number("Kernel", "scale", value) == value


def test_what_rounds_to_the_largest_number_is_it() -> None:
    """As in ``3.4028235e38``, the usual way to write it, which is a little more."""
    assert number("Kernel", "scale", 3.4028235e38) == FLT_MAX
    assert number("Kernel", "scale", -3.4028235e38) == -FLT_MAX
    with pytest.raises(MPSArgumentError):
        number("Kernel", "scale", 3.40282357e38)


@pytest.mark.parametrize("value", [1e39, -1e300, 10**400])
def test_what_is_too_large(value: float) -> None:
    rule = r"^Kernel 'k': scale must be a number of float32, at most 3\.4028234663852886e\+38 in magnitude, got "
    with pytest.raises(MPSArgumentError, match=rule):
        number("Kernel 'k'", "scale", value)


@pytest.mark.parametrize("value", ["1", b"1", True, None, [1.0], 1j, torch.zeros(2)])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(MPSTypeError, match="^Kernel: scale must be a number, got "):
        number("Kernel", "scale", value)


def test_not_a_number() -> None:
    with pytest.raises(MPSArgumentError, match="^Kernel: scale must be a number, got nan"):
        number("Kernel", "scale", math.nan)
    assert math.isnan(number("Kernel", "scale", math.nan, is_nan_allowed=True))


def test_not_negative() -> None:
    assert not_negative("Kernel", "epsilon", 0) == 0.0
    for value in (-1e-9, math.inf, math.nan):
        with pytest.raises(MPSArgumentError, match="^Kernel: epsilon must be a finite number of at least 0, got"):
            not_negative("Kernel", "epsilon", value)
