"""Sampling at the places in a grid against loops and PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, array, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.resample.grid_sample import grid_sample
from openmps.types import MPSImageEdgeMode
from oracles import grid_sample as oracle
from oracles.geometry import CLAMP, ZERO

SHAPES = [((2, 3, 4, 5), (3, 6)), ((1, 1, 1, 1), (2, 2)), ((3, 5, 1, 4), (4, 1)), ((2, 4, 6, 3), (1, 1))]


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
def test_equals_loops(shape, size, edge: int, dtype, device: torch.device, rng: np.random.Generator) -> None:
    x = rng.normal(size=shape)
    for layout, origin in itertools.product(LAYOUTS, [None, (0, 0), (2, -1)]):
        spread = 1.0 if origin is None else 3.0
        # float32 numbers: the result is held to those, not to what they were rounded from.
        grid = rng.normal(scale=spread, size=(shape[0], 2, *size)).astype(np.float32).astype(np.float64)
        grid[0, :, 0, 0] = 1.0 if origin is None else 0.0
        values = (tensor(x, dtype, device, layout), tensor(grid, dtype, device, layout))
        found = grid_sample(*values, MPSImageEdgeMode(edge), origin)
        assert found.dtype == dtype
        assert_close(found, oracle.grid_sample(x, grid, edge, origin), TOLERANCE[dtype], f"{origin}, {layout}")


@pytest.mark.parametrize(("edge", "padding"), [(ZERO, "zeros"), (CLAMP, "border")])
def test_equals_pytorch(edge: int, padding: str, device: torch.device) -> None:
    x = torch.rand(3, 4, 5, 6, dtype=torch.float64, device=device)
    grid = torch.randn(3, 2, 7, 4, dtype=torch.float64, device=device)
    expected = functional.grid_sample(x, grid.permute(0, 2, 3, 1), padding_mode=padding, align_corners=True)
    assert_close(grid_sample(x, grid, MPSImageEdgeMode(edge)), expected, 1e-13)


def test_no_images(device: torch.device) -> None:
    x, grid = torch.zeros(0, 3, 4, 5, device=device), torch.zeros(0, 2, 2, 3, device=device)
    assert grid_sample(x, grid, MPSImageEdgeMode.ZERO).shape == (0, 3, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("edge", "expected"), [(ZERO, [0.0, 0.0]), (CLAMP, [5.0, 1.0])])
def test_positions_without_end(edge: int, expected: list[float], dtype: torch.dtype, device: torch.device) -> None:
    """Infinite positions are outside like any other; those that are not numbers give none."""
    x = tensor(np.arange(1.0, 6.0).reshape(1, 1, 1, 5), dtype, device)
    grid = torch.zeros(1, 2, 1, 4, dtype=torch.float64, device=device)
    grid[0, 0, 0] = torch.tensor([float("inf"), -1e300, float("nan"), 0.0], dtype=torch.float64)
    found = array(grid_sample(x, grid, MPSImageEdgeMode(edge))).ravel()
    np.testing.assert_array_equal(found, [*expected, np.nan, 3.0])


def test_other_images_of_a_batch_are_not_read(device: torch.device) -> None:
    x = torch.full((3, 1, 2, 2), float("nan"), device=device)
    x[1] = 1.0
    grid = torch.randn(3, 2, 5, 5, device=device).clamp(-1, 1)
    found = grid_sample(x, grid, MPSImageEdgeMode.CLAMP)[1]
    # Four shares of 1, each rounded: their sum is 1 but for that.
    assert ((found - 1.0).abs() <= 4 * torch.finfo(torch.float32).eps).all()
