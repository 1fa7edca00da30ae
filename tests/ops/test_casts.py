"""Numbers of one type as another, number by number in Python's integers and floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.layout.casts import cast

FLOATS = [
    2.7,
    -0.9,
    -1.0,
    1e10,
    -1e30,
    1e30,
    math.nan,
    math.inf,
    -math.inf,
    127.5,
    128.0,
    -128.5,
    2.0**31,
    2.0**63,
    2.0**64,
]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


@in_one_test
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_floats_are_cut_and_kept_within_the_type(source: torch.dtype, dtype: torch.dtype) -> None:
    limits, given = torch.iinfo(dtype), torch.tensor(FLOATS, dtype=source)

    def expected(value: float) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return min(max(int(value), limits.min), limits.max)

    assert cast(given, dtype=dtype).tolist() == [expected(value) for value in given.tolist()]


def test_integers_keep_their_low_bits_and_floats_are_rounded() -> None:
    given = torch.tensor([300, -1, 2**24 + 1], dtype=torch.int32)
    with np.errstate(over="ignore"):
        for name in ("uint8", "int64", "float32", "float16"):
            found = cast(given, dtype=getattr(torch, name)).numpy()
            np.testing.assert_array_equal(found, given.numpy().astype(name))
        halves = torch.tensor([1 + 2**-11, 1e6])
        np.testing.assert_array_equal(cast(halves, dtype=torch.float16).numpy(), halves.numpy().astype(np.float16))
