"""Slice: which pixels and channels are copied where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers, run
from openmps.errors import MPSArgumentError
from openmps.kernels.slice import MPSNNSlice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize

CPU = mtl_device("cpu")


def test_a_box_of_pixels_and_channels(device: torch.device, rng: np.random.Generator) -> None:
    """From any channel on; to channel 0 of the destination, or where its channel offset says."""
    bench = Bench.on(device)
    x = rng.integers(1, 100, size=(2, 7, 5, 6)).astype(np.float64)
    kernel = MPSNNSlice(bench.device)
    kernel.offset = MPSOffset(2, 1, 0)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 3, 2
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(3, 2, 1))
    for first in (0, 4):
        kernel.destination_feature_channel_offset = first
        destination = bench.batch(np.full((2, 9, 6, 5), -7.0))
        command_buffer = bench.command_buffer()
        kernel.encode_batch(command_buffer, bench.batch(x), destination)
        finish(command_buffer)
        expected = np.full((2, 9, 6, 5), -7.0)
        expected[:, first : first + 2, 2:4, 1:4] = x[:, 3:5, 1:3, 2:5]
        np.testing.assert_array_equal(numbers(destination), expected)


def test_an_encode_that_sizes_slices_channels(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.integers(1, 100, size=(2, 7, 3, 4)).astype(np.float64)
    kernel = MPSNNSlice(bench.device)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 5, 8
    kernel.offset = MPSOffset(1, 1, 0)
    np.testing.assert_array_equal(run(bench, kernel, [bench.batch(x)]), x[:, 5:])
    assert kernel.offset == MPSOffset(0, 0, 0)


@pytest.mark.parametrize(("edge", "outside"), [(MPSImageEdgeMode.ZERO, 0.0), (MPSImageEdgeMode.CLAMP, 3.0)])
def test_outside(edge: MPSImageEdgeMode, outside: float, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNSlice(bench.device)
    assert kernel.edge_mode is MPSImageEdgeMode.ZERO
    kernel.edge_mode, kernel.offset = edge, MPSOffset(1, 0, 0)
    destination = bench.empty((1, 1, 1, 3))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(np.array([[[[1.0, 2.0, 3.0]]]])), destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination).ravel(), [2, 3, outside])


def test_it_leaves_no_state() -> None:
    bench = Bench(CPU)
    assert MPSNNSlice(CPU).result_state(bench.empty((1, 1, 1, 1))) is None


@pytest.mark.parametrize("value", [-1, 1.0, True, "1"])
def test_channels_that_are_none(value: Any) -> None:
    rule = "^MPSNNSlice: source_feature_channel_offset must be an integer of at least 0"
    with pytest.raises(MPSArgumentError, match=rule):
        MPSNNSlice(CPU).source_feature_channel_offset = value


def test_channels_that_are_not_there() -> None:
    bench = Bench(CPU)
    kernel = MPSNNSlice(CPU)
    kernel.source_feature_channel_offset = 3
    with pytest.raises(MPSArgumentError, match="^MPSNNSlice: source_image must have at least 1 feature channel"):
        kernel.encode(bench.command_buffer(), bench.empty((1, 3, 1, 1)))
