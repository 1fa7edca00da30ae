"""Grid sample: what the grid means, offsets, edges, channels of the grid, misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from encoding import Bench, finish, numbers, run
from helpers import assert_close, assert_digits
from openmps.errors import MPSArgumentError
from openmps.kernels.grid_sample import MPSNNGridSample
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize

CPU = mtl_device("cpu")
ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def _across(bench: Bench, values: Any) -> Any:
    """A grid of one row that moves along x alone."""
    grid = np.zeros((1, 2, 1, len(values)))
    grid[0, 0, 0] = values
    return bench.image(grid)


def _sampled(bench: Bench, kernel: MPSNNGridSample, values: Any, grid: Any) -> list[float]:
    return run(bench, kernel, [_line(bench, values), _across(bench, grid)]).ravel()


def test_defaults() -> None:
    kernel = MPSNNGridSample(CPU)
    assert kernel.use_grid_value_as_input_coordinate is True
    assert kernel.primary_edge_mode is kernel.secondary_edge_mode is ZERO
    assert kernel.result_state(Bench(CPU).empty((1, 1, 1, 1)), Bench(CPU).empty((1, 2, 1, 1))) is None


def test_golden_positions(device: torch.device) -> None:
    """-1 is the first pixel, 1 the last; outside is 0, or the edge."""
    bench = Bench.on(device)
    kernel = MPSNNGridSample(bench.device)
    grid = [-1, -0.75, 0, 1, 1.25, -3]
    assert_digits(_sampled(bench, kernel, [10, 20, 30, 40, 50], grid), [10, 15, 30, 50, 25, 0], 4)
    kernel.primary_edge_mode = CLAMP
    assert_digits(_sampled(bench, kernel, [10, 20, 30, 40, 50], grid), [10, 15, 30, 50, 50, 10], 4)


def test_golden_distances(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNGridSample(bench.device)
    kernel.use_grid_value_as_input_coordinate = False
    assert_digits(_sampled(bench, kernel, [10, 20, 30, 40], [0, 0.5, -1, 0.25]), [10, 25, 20, 30], 4)


def test_an_even_grid_is_the_image(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32).astype(np.float64)
    kernel = MPSNNGridSample(bench.device)
    v, u = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    grid = np.broadcast_to(np.stack([u, v]), (2, 2, 4, 5))
    assert_close(run(bench, kernel, [bench.batch(x), bench.batch(grid)]), x, 1e-6)
    kernel.use_grid_value_as_input_coordinate = False
    assert_close(run(bench, kernel, [bench.batch(x), bench.batch(np.zeros((2, 2, 4, 5)))]), x, 0.0)


def test_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x, grid = rng.normal(size=(3, 5, 6, 7)).astype(np.float32), rng.normal(size=(3, 2, 4, 9)).astype(np.float32)
    expected = functional.grid_sample(
        torch.from_numpy(x).double(), torch.from_numpy(grid).double().permute(0, 2, 3, 1), align_corners=True
    )
    assert_close(run(bench, MPSNNGridSample(bench.device), [bench.batch(x), bench.batch(grid)]), expected, 1e-6)


def test_offsets(device: torch.device) -> None:
    """Of the grid: where it is read. Of the image: the own position that distances count from, and nothing else."""
    bench = Bench.on(device)
    kernel = MPSNNGridSample(bench.device)
    kernel.secondary_offset, kernel.primary_offset = MPSOffset(1, 0, 0), MPSOffset(2, 0, 0)
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 0, 0), MTLSize(2, 1, 1))
    for absolute, expected in ((True, [20, 30]), (False, [30, 50])):
        kernel.use_grid_value_as_input_coordinate = absolute
        destination, command_buffer = bench.filled((1, 1, 1, 4), -7.0), bench.command_buffer()
        grid = [5, -0.5, 0] if absolute else [5, 0, 1]
        kernel.encode(command_buffer, _line(bench, [10, 20, 30, 40, 50]), _across(bench, grid), destination)
        finish(command_buffer)
        assert_digits(numbers(destination).ravel(), [-7, *expected, -7], 4)


def test_the_grids_own_edges(device: torch.device) -> None:
    """Where the destination is larger than the grid, the grid goes on by its edge mode."""
    bench = Bench.on(device)
    kernel = MPSNNGridSample(bench.device)
    for edge, expected in ((ZERO, [10, 50, 30]), (CLAMP, [10, 50, 50])):
        kernel.secondary_edge_mode = edge
        destination, command_buffer = bench.empty((1, 1, 1, 3)), bench.command_buffer()
        kernel.encode(command_buffer, _line(bench, [10, 20, 30, 40, 50]), _across(bench, [-1, 1]), destination)
        finish(command_buffer)
        assert_digits(numbers(destination).ravel(), expected, 4)


def test_the_channels_of_the_grid(device: torch.device) -> None:
    """The first two from the channel offset on; others are not looked at."""
    bench = Bench.on(device)
    grid = np.full((1, 7, 1, 1), np.nan)
    grid[0, 4:6, 0, 0] = 1.0, -1.0
    kernel = MPSNNGridSample(bench.device)
    kernel.secondary_source_feature_channel_offset = 4
    image = bench.image(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]))
    assert_digits(run(bench, kernel, [image, bench.image(grid)]).ravel(), [2], 6)


def test_positions_that_are_not_numbers(device: torch.device) -> None:
    bench = Bench.on(device)
    found = _sampled(bench, MPSNNGridSample(bench.device), [10, 20, 30], [np.nan, np.inf, 0])
    np.testing.assert_array_equal(found, [np.nan, 0, 20])


def test_misuse() -> None:
    bench = Bench(CPU)
    kernel = MPSNNGridSample(CPU)
    kernel.label = "s"
    image, grid = bench.empty((1, 3, 2, 2)), bench.empty((1, 2, 2, 2))
    with pytest.raises(MPSArgumentError, match="^MPSNNGridSample 's': secondary_image must have at least 2 feature ch"):
        kernel.encode(bench.command_buffer(), image, bench.empty((1, 1, 2, 2)))
    for name in ("primary_stride_in_pixels_x", "secondary_stride_in_pixels_y"):
        setattr(kernel, name, 2)
        with pytest.raises(MPSArgumentError, match=f"^MPSNNGridSample 's': {name} must be 1, got 2"):
            kernel.encode(bench.command_buffer(), image, grid)
        setattr(kernel, name, 1)
