"""Pad: the header's examples, what sets which padding, fill values, channel slices, gradients by hand, misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.pad import MPSNNPad, MPSNNPadGradient
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageCoordinate,
    MPSImageEdgeMode,
    MPSOffset,
    MPSRectNoClip,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles import pad as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")
ZERO, CLAMP, MIRROR, WITH_EDGE, CONSTANT = MPSImageEdgeMode


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def _channels(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, -1, 1, 1))


def test_defaults() -> None:
    kernel = MPSNNPad(CPU)
    assert kernel.padding_size_before == kernel.padding_size_after == MPSImageCoordinate(0, 0, 0)
    assert kernel.fill_value == 0.0
    assert kernel.fill_value_array is None
    assert kernel.edge_mode is ZERO
    assert kernel.source_feature_channel_offset == 0
    assert MPSNNPadGradient(CPU).secondary_edge_mode is ZERO


@pytest.mark.parametrize(
    ("edge", "before", "after", "expected"),
    [
        (CLAMP, 2, 3, [5, 5, 5, 6, 7, 7, 7, 7]),
        (MIRROR, 4, 1, [5, 6, 7, 6, 5, 6, 7, 6]),
        (WITH_EDGE, 4, 4, [7, 7, 6, 5, 5, 6, 7, 7, 6, 5, 5]),
        (ZERO, 1, 2, [0, 5, 6, 7, 0, 0]),
        (CONSTANT, 1, 2, [9, 5, 6, 7, 9, 9]),
    ],
)
def test_golden_numbers(edge, before: int, after: int, expected: list[float], device: torch.device) -> None:
    """By sizing its result, and by a destination with the offset."""
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(before, 0, 0), MPSImageCoordinate(after, 0, 0))
    kernel.edge_mode, kernel.fill_value = edge, 9.0
    np.testing.assert_array_equal(run(bench, kernel, [_line(bench, [5, 6, 7])]).ravel(), expected)
    assert kernel.offset == MPSOffset(-before, 0, 0)
    other = MPSNNPad(bench.device)
    other.edge_mode, other.fill_value, other.offset = edge, 9.0, MPSOffset(-before, 0, 0)
    destination = bench.empty((1, 1, 1, before + 3 + after))
    command_buffer = bench.command_buffer()
    other.encode(command_buffer, _line(bench, [5, 6, 7]), destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination).ravel(), expected)


@pytest.mark.parametrize(
    ("edge", "written"),
    [(ZERO, [0, 0, 1, 2, 3, 0, 0, 0]), (WITH_EDGE, [2, 1, 1, 2, 3, 3, 2, 1]), (MIRROR, [3, 2, 1, 2, 3, 2, 1, 2])],
)
def test_channels_of_a_slice(edge: MPSImageEdgeMode, written: list[float], device: torch.device) -> None:
    """The header's drawing: three channels from channel 1 on, two before and three after, from channel 4 on."""
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(0, 0, 2), MPSImageCoordinate(0, 0, 3))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 1, 3
    kernel.destination_feature_channel_offset = 4
    kernel.edge_mode = edge
    source, destination = _channels(bench, range(6)), bench.filled((1, 13, 1, 1), -7.0)
    command_buffer = bench.command_buffer()
    state = kernel.result_state(source, destination_image=destination)
    kernel.encode(command_buffer, source, destination, state)
    gradient = MPSNNPadGradient(bench.device)
    keep_results(gradient)
    flow = 2.0 ** np.arange(13.0)
    back = gradient.encode(command_buffer, _channels(bench, flow), source, state)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination).ravel(), [-7] * 4 + written + [-7])
    sums = [sum(flow[4 + j] for j, value in enumerate(written) if value == channel) for channel in (1, 2, 3)]
    np.testing.assert_array_equal(numbers(back).ravel(), [0, *sums, 0, 0])


@pytest.mark.parametrize(
    ("edge", "before", "after", "expected"),
    [(CLAMP, 2, 3, [0b111, 0b1000, 0b11110000]), (MIRROR, 4, 1, [0b10001, 0b10101010, 0b1000100])],
)
def test_golden_gradients(edge, before: int, after: int, expected: list[int], device: torch.device) -> None:
    """The header's examples: which of eight gradients, 1, 2, 4 and so on, flow back to each of three pixels."""
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(before, 0, 0), MPSImageCoordinate(after, 0, 0))
    kernel.edge_mode = edge
    source, command_buffer = _line(bench, [5, 6, 7]), bench.command_buffer()
    _, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
    gradient = MPSNNPadGradient(bench.device)
    keep_results(gradient)
    found = gradient.encode(command_buffer, _line(bench, 2.0 ** np.arange(8)), source, state)
    finish(command_buffer)
    assert numbers(found).ravel().tolist() == expected


def test_padding_sizes_in_x_and_y_need_an_encode_that_sizes(device: torch.device) -> None:
    """With a destination given they do nothing, but for the channels."""
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(1, 1, 1), MPSImageCoordinate(0, 2, 0))
    source = bench.image(np.full((1, 1, 1, 2), 3.0))
    destination = bench.filled((1, 2, 1, 2), -7.0)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination)[0], [[[0, 0]], [[3, 3]]])
    assert kernel.destination_image_descriptor([source]).height == 4


def test_an_encode_that_sizes_sets_the_clip_rectangle(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(1, 0, 0))
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 0, 0), MTLSize(1, 1, 1))
    kernel.offset = MPSOffset(7, 7, 0)
    np.testing.assert_array_equal(run(bench, kernel, [_line(bench, [1, 2])]).ravel(), [0, 1, 2])
    assert kernel.clip_rect.origin == MTLOrigin(0, 0, 0)
    assert kernel.clip_rect.size.width == MPSRectNoClip.size.width
    assert kernel.offset == MPSOffset(-1, 0, 0)


def test_properties_set_later_count(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNPad(bench.device)
    kernel.padding_size_before = MPSImageCoordinate(1, 0, 0)
    kernel.padding_size_after = MPSImageCoordinate(2, 0, 0)
    np.testing.assert_array_equal(run(bench, kernel, [_line(bench, [4])]).ravel(), [0, 4, 0, 0])


@pytest.mark.parametrize("given", ["list", "array", "bytes"])
def test_fill_values_of_each_channel(given: str, device: torch.device) -> None:
    """The first number is that of the first channel written; `fill_value` means nothing then."""
    bench = Bench.on(device)
    values = np.array([1.5, 2.5, 3.5, 4.5, 99.0], np.float32)
    array: Any = {"list": values.tolist(), "array": values, "bytes": values.tobytes()}[given]
    kernel = MPSNNPad(bench.device, MPSImageCoordinate(1, 0, 1), MPSImageCoordinate(0, 0, 1), array)
    kernel.edge_mode, kernel.fill_value = CONSTANT, 7.0
    values[:] = 0.0
    np.testing.assert_array_equal(kernel.fill_value_array, [1.5, 2.5, 3.5, 4.5, 99.0])
    found = run(bench, kernel, [bench.image(np.zeros((1, 2, 1, 1)))])
    np.testing.assert_array_equal(found[0, :, 0], [[1.5, 1.5], [2.5, 0], [3.5, 0], [4.5, 4.5]])
    kernel.edge_mode = ZERO
    np.testing.assert_array_equal(run(bench, kernel, [bench.image(np.zeros((1, 2, 1, 1)))]), np.zeros((1, 4, 1, 2)))


@pytest.mark.parametrize("edge", list(MPSImageEdgeMode), ids=lambda edge: edge.name)
def test_a_gradient_by_hand(edge: MPSImageEdgeMode, device: torch.device, rng: np.random.Generator) -> None:
    """Without a state: offset, edge mode, and channels that were added behind the source's."""
    bench = Bench.on(device)
    gradient = MPSNNPadGradient(bench.device)
    gradient.secondary_offset, gradient.secondary_edge_mode = MPSOffset(-3, -2, 0), edge
    flow = rng.normal(size=(2, 5, 6, 9)).astype(np.float32).astype(np.float64)
    destination = bench.batch(np.zeros((2, 3, 2, 3)))
    command_buffer = bench.command_buffer()
    gradient.encode_batch(command_buffer, bench.batch(flow), bench.batch(np.zeros((2, 3, 2, 3))), None, destination)
    finish(command_buffer)
    rows, columns = Axis(6, offset=-2), Axis(9, offset=-3)
    expected = oracle.gradient(flow, (2, 3, 2, 3), rows, columns, (0, 2), int(edge))
    np.testing.assert_allclose(numbers(destination), expected, atol=2e-6)


# --- misuse ----------------------------------------------------------------------------------------------------------


def test_fill_values_that_are_too_few() -> None:
    bench = Bench(CPU)
    kernel = MPSNNPad(CPU, MPSImageCoordinate(0, 0, 1), fill_value_array=[1.0, 2.0])
    kernel.label, kernel.edge_mode = "p", CONSTANT
    rule = "^MPSNNPad 'p': fill_value_array must hold a number for each of the 3 feature channels written, got 2 number"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.empty((1, 2, 1, 1)))


@pytest.mark.parametrize("wrong", ["text", [[1.0, 2.0]], ["a"], b"abc", object()])
def test_fill_values_that_are_none(wrong: Any) -> None:
    with pytest.raises(
        (MPSArgumentError, MPSTypeError), match="^MPSNNPad: fill_value_array must be (whole )?float32 numbers"
    ):
        MPSNNPad(CPU, fill_value_array=wrong)


@pytest.mark.parametrize("name", ["padding_size_before", "padding_size_after"])
def test_sizes_that_are_none(name: str) -> None:
    with pytest.raises(MPSTypeError, match=f"^MPSNNPad: {name} must be an MPSImageCoordinate"):
        MPSNNPad(CPU, **{name: (1, 1, 1)})  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match=f"^MPSNNPad: {name} must be an MPSImageCoordinate"):
        setattr(MPSNNPad(CPU), name, MPSOffset(1, 1, 1))


def test_other_properties() -> None:
    kernel = MPSNNPad(CPU)
    for value in (5, "clamp", None, -1):
        with pytest.raises(MPSArgumentError, match="^MPSNNPad: edge_mode must be an MPSImageEdgeMode, got"):
            kernel.edge_mode = value  # type: ignore[assignment]
        with pytest.raises(MPSArgumentError, match="^MPSNNPadGradient: secondary_edge_mode must be an MPSImageEdge"):
            MPSNNPadGradient(CPU).secondary_edge_mode = value  # type: ignore[assignment]
    for value in ("1", None, True):
        with pytest.raises(MPSTypeError, match="^MPSNNPad: fill_value must be a number"):
            kernel.fill_value = value  # type: ignore[assignment]
    for value in (-1, 1.0, True):
        with pytest.raises(MPSArgumentError, match="^MPSNNPad: source_feature_channel_offset must be an integer"):
            kernel.source_feature_channel_offset = value


def test_gradients_with_other_channels() -> None:
    bench = Bench(CPU)
    source = bench.empty((1, 3, 1, 2))
    kernel = MPSNNPad(CPU, MPSImageCoordinate(0, 0, 2))
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
    gradient = MPSNNPadGradient(CPU)
    gradient.label = "g"
    for channels, given in ((4, state), (6, state), (2, None)):
        flow, destination = bench.empty((1, channels, 1, 2)), bench.empty((1, 3, 1, 2))
        with pytest.raises(MPSArgumentError, match="^MPSNNPadGradient 'g': source_gradient must have .* feature chan"):
            gradient.encode(command_buffer, flow, source, given, destination)
