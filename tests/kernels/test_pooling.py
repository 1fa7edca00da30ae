"""Pooling: golden numbers, edge modes, padding policies that change them, and gradients' own properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close, assert_digits
from openmps.core.padding import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.pooling import (
    MPSCNNPoolingAverage,
    MPSCNNPoolingAverageGradient,
    MPSCNNPoolingMax,
    MPSCNNPoolingMaxGradient,
)
from openmps.metal.device import mtl_device
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MPSOffset, MTLSize
from oracles import pooling as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")
ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def _pooled(bench: Bench, kind: Any, size: int, edge: MPSImageEdgeMode, values: Any, pad: int = 0) -> np.ndarray:
    kernel = kind(bench.device, size, 1)
    kernel.edge_mode = edge
    if pad:
        kernel.zero_pad_size_x = pad
    destination = bench.empty((1, 1, 1, len(values)))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, values), destination)
    finish(command_buffer)
    return numbers(destination).ravel()


GOLDEN = [
    (MPSCNNPoolingAverage, 3, ZERO, 0, [1, 2, 3, 4, 3]),
    (MPSCNNPoolingAverage, 3, CLAMP, 0, [1.5, 2, 3, 4, 4.5]),
    (MPSCNNPoolingAverage, 3, CLAMP, 1, [1, 2, 3, 4, 3]),
    (MPSCNNPoolingAverage, 2, ZERO, 0, [0.5, 1.5, 2.5, 3.5, 4.5]),
    (MPSCNNPoolingAverage, 2, CLAMP, 0, [1, 1.5, 2.5, 3.5, 4.5]),
]


@pytest.mark.parametrize(("kind", "size", "edge", "pad", "expected"), GOLDEN)
def test_golden_averages(kind, size, edge, pad, expected, device: torch.device) -> None:
    assert_digits(_pooled(Bench.on(device), kind, size, edge, [1, 2, 3, 4, 5], pad), expected, 6)


def test_golden_maxima(device: torch.device) -> None:
    """Outside the image, zeros override negative numbers; clamp repeats the edge."""
    bench = Bench.on(device)
    values = [-1, -2, -3, -4]
    np.testing.assert_array_equal(_pooled(bench, MPSCNNPoolingMax, 3, ZERO, values), [0, -1, -2, 0])
    np.testing.assert_array_equal(_pooled(bench, MPSCNNPoolingMax, 3, CLAMP, values), [-1, -1, -2, -3])


def test_not_a_number_wins(device: torch.device) -> None:
    found = _pooled(Bench.on(device), MPSCNNPoolingMax, 3, CLAMP, [1, np.nan, 3, 4, 5])
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.nan, 5, 5])


def _flow_back(bench: Bench, kind: Any, size: int, edge: MPSImageEdgeMode, values: Any, flow: Any) -> np.ndarray:
    """The gradient with everything set by hand and no state."""
    gradient = kind(bench.device, size, 1)
    gradient.secondary_edge_mode = edge
    destination = bench.empty((1, 1, 1, len(values)))
    command_buffer = bench.command_buffer()
    gradient.encode(command_buffer, _line(bench, flow), _line(bench, values), None, destination)
    finish(command_buffer)
    return numbers(destination).ravel()


def test_golden_average_gradients(device: torch.device) -> None:
    bench = Bench.on(device)
    ones = [1] * 5
    found = _flow_back(bench, MPSCNNPoolingAverageGradient, 3, ZERO, ones, ones)
    assert_digits(found, [2 / 3, 1, 1, 1, 2 / 3], 6)
    found = _flow_back(bench, MPSCNNPoolingAverageGradient, 3, CLAMP, ones, ones)
    assert_digits(found, [0.8333, 1.1667, 1, 1.1667, 0.8333], 4)


def test_ties_and_lost_gradients(device: torch.device) -> None:
    """The first of equal numbers takes the gradient; a zero outside the image that wins loses it; clamp does not."""
    bench = Bench.on(device)
    flow = [1, 10, 100, 1000]
    found = _flow_back(bench, MPSCNNPoolingMaxGradient, 3, ZERO, [5, 5, 5, 5], flow)
    np.testing.assert_array_equal(found, [11, 100, 1000, 0])
    found = _flow_back(bench, MPSCNNPoolingMaxGradient, 3, ZERO, [-1, -2, -3, -4], flow)
    np.testing.assert_array_equal(found, [10, 100, 0, 0])
    found = _flow_back(bench, MPSCNNPoolingMaxGradient, 3, CLAMP, [-1, -2, -3, -4], flow)
    np.testing.assert_array_equal(found, [11, 100, 1000, 0])
    found = _flow_back(bench, MPSCNNPoolingMaxGradient, 3, ZERO, [0, -1, -1, 0], flow)
    np.testing.assert_array_equal(found, [11, 0, 0, 1100])


def test_defaults() -> None:
    kernel = MPSCNNPoolingMax(CPU, 3, 2)
    assert (kernel.kernel_width, kernel.kernel_height) == (3, 2)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (1, 1)
    assert kernel.edge_mode is ZERO
    assert kernel.padding == MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
    kernel = MPSCNNPoolingAverage(CPU, 3, 2, 4, 5)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (4, 5)
    assert (kernel.zero_pad_size_x, kernel.zero_pad_size_y) == (0, 0)
    gradient = MPSCNNPoolingMaxGradient(CPU, 3, 2, 4, 5)
    assert (gradient.secondary_kernel_width, gradient.secondary_kernel_height) == (3, 2)
    assert (gradient.secondary_stride_in_pixels_x, gradient.secondary_stride_in_pixels_y) == (4, 5)
    assert gradient.source_size == MTLSize(2**64 - 1, 2**64 - 1, 2**64 - 1)


def test_offset_of_the_window(device: torch.device) -> None:
    """Two by two, stride two, offset 0 reads columns -1 and 0 first; offset 1 gives the usual pooling."""
    bench = Bench.on(device)
    kernel = MPSCNNPoolingMax(bench.device, 2, 1, 2, 1)
    for offset, expected in ((0, [1, 3]), (1, [2, 4])):
        kernel.offset = MPSOffset(offset, 0, 0)
        destination = bench.empty((1, 1, 1, 2))
        command_buffer = bench.command_buffer()
        kernel.encode(command_buffer, _line(bench, [1, 2, 3, 4]), destination)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(destination).ravel(), expected)


def test_tensorflow_average_padding_clamps(device: torch.device) -> None:
    """The policy sets the kernel's edge mode, and it stays set; the state tells the gradient."""
    bench = Bench.on(device)
    kernel = MPSCNNPoolingAverage(bench.device, 3, 1)
    kernel.padding = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling()
    assert_digits(run(bench, kernel, [_line(bench, [1, 2, 3, 4, 5])]).ravel(), [1.5, 2, 3, 4, 4.5], 6)
    assert kernel.edge_mode is CLAMP


@pytest.mark.parametrize(
    ("size", "pads"),
    [(MPSNNPaddingMethod.SIZE_SAME, 1), (MPSNNPaddingMethod.SIZE_FULL, 2), (MPSNNPaddingMethod.SIZE_VALID_ONLY, 0)],
)
def test_exclude_edges(size, pads: int, device: torch.device, rng: np.random.Generator) -> None:
    """The bit averages as clamp does, over the image and the padding that the policy assumes; gradients too."""
    bench = Bench.on(device)
    x = rng.normal(size=(2, 3, 5, 6)).astype(np.float32).astype(np.float64)
    kernel = MPSCNNPoolingAverage(bench.device, 3, 3)
    kernel.padding = MPSNNDefaultPadding(size | MPSNNPaddingMethod.EXCLUDE_EDGES)
    gradient = MPSCNNPoolingAverageGradient(bench.device, 3, 3)
    keep_results(kernel)
    keep_results(gradient)
    images = bench.batch(x)
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    finish(command_buffer)
    height, width = result[0].height, result[0].width
    rows, columns = Axis(height, 3, offset=kernel.offset.y), Axis(width, 3, offset=kernel.offset.x)
    edge = int(CLAMP)
    assert_close(numbers(result), oracle.average(x, rows, columns, edge, (pads, pads)), 1e-5)
    flow = rng.normal(size=numbers(result).shape)
    command_buffer = bench.command_buffer()
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    assert_close(numbers(found), oracle.average_gradient(flow, x.shape, rows, columns, edge, (pads, pads)), 1e-5)
    assert kernel.edge_mode is ZERO, "the kernel keeps its own edge mode"


def test_a_max_state_of_other_windows_is_not_believed(device: torch.device, rng: np.random.Generator) -> None:
    """With properties set by hand the maxima are those of the properties, whatever the state remembers."""
    bench = Bench.on(device)
    x = rng.normal(size=(1, 2, 6, 6)).astype(np.float32).astype(np.float64)
    kernel = MPSCNNPoolingMax(bench.device, 2, 2, 2, 2)
    image = bench.image(x)
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    gradient = MPSCNNPoolingMaxGradient(bench.device, 3, 3, 1, 1)
    gradient.secondary_edge_mode = CLAMP
    flow = rng.normal(size=(1, 2, 6, 6))
    destination = bench.empty((1, 2, 6, 6))
    gradient.encode(command_buffer, bench.image(flow), image, state, destination)
    finish(command_buffer)
    expected = oracle.maximum_gradient(flow, x, Axis(6, 3), Axis(6, 3), int(CLAMP))
    assert_close(numbers(destination), expected, 1e-5)


def test_average_gradient_reads_the_size_alone(device: torch.device) -> None:
    bench = Bench.on(device)
    found = _flow_back(bench, MPSCNNPoolingAverageGradient, 3, ZERO, [np.nan] * 5, [1] * 5)
    assert_digits(found, [2 / 3, 1, 1, 1, 2 / 3], 6)


@pytest.mark.parametrize("kind", [MPSCNNPoolingMax, MPSCNNPoolingAverage, MPSCNNPoolingMaxGradient])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 1), "kernel_width"),
        ((1, -1), "kernel_height"),
        ((2, 2, 0, 1), "stride_in_pixels_x"),
        ((2, 2, 1, 1.5), "stride_in_pixels_y"),
    ],
)
def test_bad_windows(kind: Any, arguments: Any, name: str) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: {name} must be an integer of at least 1"):
        kind(CPU, *arguments)


@pytest.mark.parametrize("kind", [MPSCNNPoolingAverage, MPSCNNPoolingAverageGradient])
@pytest.mark.parametrize("name", ["zero_pad_size_x", "zero_pad_size_y"])
@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_bad_zero_pads(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: {name} must be an integer of at least 0"):
        setattr(kind(CPU, 2, 2), name, value)


def test_bad_source_size() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNPoolingMaxGradient: source_size must be an MTLSize"):
        MPSCNNPoolingMaxGradient(CPU, 2, 2).source_size = (1, 1, 1)  # type: ignore[assignment]
