"""Reductions of images against loops, NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.reduce import reduce as ops
from openmps.ops.reduce.reduce import Reduction
from oracles import reduce as oracle
from pairs import dealt

AXES = {"channels": ops.CHANNELS, "rows": ops.ROWS, "columns": ops.COLUMNS}
SHAPES = [(2, 1, 3, 4), (1, 3, 1, 1), (3, 4, 5, 1), (2, 5, 1, 7), (0, 3, 2, 2), (1, 9, 2, 3)]
FUNCTIONS = {
    "mean": ops.weighted_mean,
    "sum": ops.weighted_sum,
    "by non-zero": ops.weighted_sum_by_non_zero_weights,
}


def _name(reduction: Reduction) -> str:
    return reduction.name.lower().replace("_", " ")


def test_axes_are_the_oracles() -> None:
    assert (ops.CHANNELS, ops.ROWS, ops.COLUMNS) == (oracle.CHANNELS, oracle.ROWS, oracle.COLUMNS)


@in_one_test
@pytest.mark.parametrize(
    ("reduction", "axis", "shape", "layout", "dtype"),
    dealt([[*Reduction], [*AXES], SHAPES], [LAYOUTS, [torch.float64, torch.float32]]),
    ids=str,
)
def test_equals_loops(
    reduction: Reduction, axis: str, shape, layout: str, dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """Small whole numbers, so that there are ties."""
    x = rng.integers(-3, 4, size=shape).astype(np.float64)
    found = ops.reduce(tensor(x, dtype, device, layout), reduction, AXES[axis])
    assert found.dtype == dtype
    assert_close(found, oracle.reduce(_name(reduction), AXES[axis], x), TOLERANCE[dtype])


@in_one_test
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("reduction", Reduction, ids=_name)
def test_equals_numpy(reduction: Reduction, axis: str, device: torch.device, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 7, 5, 6))
    functions: dict[str, Any] = {"ARGUMENT_MIN": np.argmin, "ARGUMENT_MAX": np.argmax}
    # The numbers of the random image are all different, so that the first one is the last.
    function = functions.get(reduction.name.removeprefix("LAST_"))
    function = function or getattr(np, reduction.name.lower())
    expected = function(x, axis=AXES[axis], keepdims=True)
    assert_close(ops.reduce(tensor(x, device=device), reduction, AXES[axis]), expected, 1e-12)


@in_one_test
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("reduction", Reduction, ids=_name)
def test_what_is_no_number(reduction: Reduction, axis: str, device: torch.device) -> None:
    """NaN wins, its first place is the argument; infinities are numbers; the largest negative number is negative."""
    for line in ([1, np.nan, 3, np.nan], [-np.inf, -2, -1, -1], [np.inf, 2, np.inf, 3], [-4, -5, -6, -7]):
        shape = [1, 1, 1, 1]
        shape[AXES[axis]] = 4
        x = np.array(line, dtype=np.float64).reshape(shape)
        found = ops.reduce(tensor(x, device=device), reduction, AXES[axis])
        assert_close(found, oracle.reduce(_name(reduction), AXES[axis], x), 1e-12)


@in_one_test
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("reduction", Reduction, ids=_name)
def test_channels_last_stays(reduction: Reduction, axis: str, device: torch.device) -> None:
    x = torch.rand((2, 5, 4, 6), device=device).contiguous(memory_format=torch.channels_last)
    kept = x.clone()
    assert ops.reduce(x, reduction, AXES[axis]).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, kept)


@in_one_test
@pytest.mark.parametrize(
    ("kind", "broadcast", "shape", "layout", "dtype"),
    dealt([[*FUNCTIONS], [(), (2,), (3,), (2, 3)], SHAPES], [LAYOUTS, [torch.float64, torch.float32]]),
    ids=str,
)
def test_weighted_equals_loops(
    kind: str, broadcast, shape, layout: str, dtype, device: torch.device, rng: np.random.Generator
) -> None:
    x = rng.normal(size=shape)
    weights = rng.normal(size=[1 if axis in broadcast else n for axis, n in enumerate(shape)])
    weights *= rng.integers(0, 2, size=weights.shape)
    found = FUNCTIONS[kind](tensor(x, dtype, device, layout), tensor(weights, dtype, device, layout))
    assert found.dtype == dtype
    assert_close(found, oracle.weighted(kind, x, weights), TOLERANCE[dtype])


def test_no_weight_that_is_not_zero(device: torch.device) -> None:
    x = torch.tensor([5.0, 7.0], device=device).reshape(1, 2, 1, 1)
    assert float(ops.weighted_sum_by_non_zero_weights(x, torch.zeros_like(x))) == 0.0


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_weighted_equals_pytorch(kind: str, device: torch.device, rng: np.random.Generator) -> None:
    x, weights = (tensor(rng.normal(size=(2, 5, 3, 4)), device=device) for _ in range(2))
    expected = torch.einsum("nchw,nchw->nhw", x, weights).unsqueeze(1)
    assert_close(FUNCTIONS[kind](x, weights), expected / (1 if kind == "sum" else 5), 1e-12)
