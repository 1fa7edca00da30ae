"""Convolution with a float16 accumulator against NumPy's float16, number for number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import array, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.convolution import convolution_half as ops
from openmps.ops.convolution.convolution import convolution
from openmps.types import MPSImageEdgeMode
from oracles import convolution as oracle
from oracles.geometry import CLAMP, ZERO, Axis
from placements import window


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float64)


def test_rounding_is_numpys(device: torch.device, rng: np.random.Generator) -> None:
    """To nearest, ties to even, once: beside ties as well, among small numbers too, and beyond the largest."""
    near = [sign * (1 + n * 2.0**-11 + off) for sign in (1, -1) for n in range(8) for off in (0, 2.0**-40, -(2.0**-40))]
    ends = [0.0, -0.0, 65504.0, 65519.999999, 65520.0, -65520.0, 2.0**-24, 2.0**-25, 2.0**-25 * (1 + 1e-12), 1e300]
    spread = rng.normal(size=20000) * 10.0 ** rng.uniform(-9, 6, size=20000)
    values = np.concatenate([near, ends, [np.inf, -np.inf, np.nan], spread])
    with np.errstate(over="ignore"):
        expected = _half(values)
    found = array(ops.rounded_to_half(tensor(values, device=device)))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(expected[:-1]))


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize(
    ("channels", "rows", "columns"),
    [
        ((3, 4, 1), Axis(4, 3), Axis(5, 2)),
        ((4, 6, 2), Axis(2, 2, 2, 1, 1), Axis(3, 3, 2)),
        ((5, 5, 5), Axis(3, 2, 1, 2), Axis(4, 1)),
        ((1, 1, 1), Axis(1), Axis(1)),
    ],
)
def test_equals_the_loops(channels, rows, columns, edge, dtype, device: torch.device, rng: np.random.Generator) -> None:
    """Not within a tolerance: each sum is a float16 number, and the same one."""
    inputs, outputs, groups = channels
    x = _half(rng.normal(size=(2, inputs, 4, 5)))
    weights = _half(rng.normal(size=(outputs, rows.size, columns.size, inputs // groups)))
    found = ops.convolution_half(
        tensor(x, dtype, device, "channels_last"),
        tensor(weights, dtype, device),
        None,
        window(rows, columns, 4, 5),
        groups=groups,
        edge_mode=MPSImageEdgeMode(edge),
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(array(found), oracle.half_precision(x, weights, None, rows, columns, groups, edge))


def test_biases_are_added_last_and_not_rounded(device: torch.device) -> None:
    x, weights = np.full((1, 1, 1, 1), 1.0), np.full((1, 1, 1, 1), 2048.0)
    found = ops.convolution_half(
        tensor(x, torch.float32, device),
        tensor(weights, torch.float32, device),
        tensor([0.25], torch.float32, device),
        window(Axis(1), Axis(1), 1, 1),
    )
    assert found.item() == 2048.25


def test_the_order_of_the_sum_is_row_column_channel(device: torch.device) -> None:
    """2048 + 1 is lost in float16, 2048 + 2 is not: the terms met first decide."""
    x = np.ones((1, 2, 2, 2))

    def summed(*terms: float) -> float:
        weights = np.array(terms).reshape(1, 2, 2, 2)  # rows, columns, channels
        place = window(Axis(1, 2, offset=1), Axis(1, 2, offset=1), 2, 2)
        return ops.convolution_half(tensor(x, device=device), tensor(weights, device=device), None, place).item()

    assert summed(2048, 1, 1, 1, 1, 1, 1, 1) == 2048
    assert summed(1, 1, 1, 1, 1, 1, 1, 2048) == 2056
    assert summed(1, 2048, 1, 1, 1, 1, 1, 1) == 2048
    assert summed(1, 1, 1, 2048, 1, 1, 1, 1) == 2052
    assert summed(60000, 60000, -60000, -60000, 0, 0, 0, 0) == np.inf


def test_transposed_equals_the_loops(device: torch.device, rng: np.random.Generator) -> None:
    from openmps.ops.geometry import Axis as OpsAxis
    from openmps.ops.geometry import Window

    x, weights = _half(rng.normal(size=(2, 4, 3, 2))), _half(rng.normal(size=(6, 3, 2, 2)))
    biases = rng.normal(size=6)
    place = Window(x=OpsAxis(2, 5, 2, 3, 1, -1), y=OpsAxis(3, 6, 3, 2, 1, 1))
    found = ops.convolution_transpose_half(*(tensor(v, device=device) for v in (x, weights, biases)), place, groups=2)
    stuffed = np.zeros((2, 4, 5, 4))
    stuffed[:, :, ::2, ::3] = x
    rows, columns = Axis(6, 3, offset=1), Axis(5, 2, offset=-1)
    np.testing.assert_array_equal(array(found), oracle.half_precision(stuffed, weights, biases, rows, columns, 2))


def test_near_what_single_precision_gives(device: torch.device, rng: np.random.Generator) -> None:
    x, weights = _half(rng.normal(size=(1, 8, 6, 6))), _half(rng.normal(size=(4, 3, 3, 8)))
    place = window(Axis(6, 3), Axis(6, 3), 6, 6)
    operands = [tensor(v, device=device) for v in (x, weights)]
    half, single = ops.convolution_half(*operands, None, place), convolution(*operands, None, place)
    assert_close(half, single, 5e-3)
    assert not torch.equal(half, single)
