"""Pooling: golden numbers, edge modes, padding policies that change them, and gradients' own properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT32, Bench, finish, keep_results, numbers, run
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.image.storage import Extent, Shape
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.pooling import (
    MPSCNNDilatedPoolingMax,
    MPSCNNDilatedPoolingMaxGradient,
    MPSCNNPooling,
    MPSCNNPoolingAverage,
    MPSCNNPoolingAverageGradient,
    MPSCNNPoolingGradient,
    MPSCNNPoolingL2Norm,
    MPSCNNPoolingL2NormGradient,
    MPSCNNPoolingMax,
    MPSCNNPoolingMaxGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MPSOffset, MTLSize
from oracles import pooling as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")
ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
VALID, SAME, FULL = (
    MPSNNPaddingMethod.SIZE_VALID_ONLY,
    MPSNNPaddingMethod.SIZE_SAME,
    MPSNNPaddingMethod.SIZE_FULL,
)


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
    (MPSCNNPoolingAverage, 3, ZERO, 7, [1, 2, 3, 4, 3]),
    (MPSCNNPoolingAverage, 2, ZERO, 0, [0.5, 1.5, 2.5, 3.5, 4.5]),
    (MPSCNNPoolingAverage, 2, CLAMP, 0, [1, 1.5, 2.5, 3.5, 4.5]),
]
GOLDEN_NORMS = [
    (3, ZERO, [2.2361, 3.7417, 5.3852, 7.0711, 6.4031]),
    (3, CLAMP, [2.4495, 3.7417, 5.3852, 7.0711, 8.1240]),
    (2, CLAMP, [1.4142, 2.2361, 3.6056, 5.0000, 6.4031]),
]


@pytest.mark.parametrize(("kind", "size", "edge", "pad", "expected"), GOLDEN)
def test_golden_averages(kind, size, edge, pad, expected, device: torch.device) -> None:
    assert_digits(_pooled(Bench.on(device), kind, size, edge, [1, 2, 3, 4, 5], pad), expected, 6)


@pytest.mark.parametrize(("size", "edge", "expected"), GOLDEN_NORMS)
def test_golden_norms(size: int, edge: MPSImageEdgeMode, expected: list[float], device: torch.device) -> None:
    """The root of the sum of squares, which is not divided; clamp repeats the edge pixel."""
    assert_digits(_pooled(Bench.on(device), MPSCNNPoolingL2Norm, size, edge, [1, 2, 3, 4, 5]), expected, 4)


PLACES = [
    ((5, 1, 3), SAME, 5, 0, 0),
    ((6, 2, 3), SAME, 3, 0, 1),
    ((6, 2, 2), SAME, 3, 1, 1),
    ((5, 1, 2), SAME, 5, 0, 1),
    ((8, 3, 3), VALID, 2, 1, 2),
    ((9, 3, 3), VALID, 3, 1, 1),
    ((5, 2, 3), FULL, 4, -1, -1),
    ((5, 1, 4), FULL, 8, -1, -1),
]
"""Source, stride, kernel; style; result; offset with the odd pixel at the top left, and at the bottom right."""


@in_one_test
@pytest.mark.parametrize(("sizes", "style", "result", "top_left", "bottom_right"), PLACES)
def test_golden_sizes_and_offsets(sizes, style, result, top_left, bottom_right, device: torch.device) -> None:
    """An encode that sizes its result changes the offset; what it then reads is centred there, columns and rows."""
    bench = Bench.on(device)
    source, stride, size = sizes
    values = np.arange(1.0, source + 1)
    for remainder, offset in ((0, top_left), (MPSNNPaddingMethod.ADD_REMAINDER_TO_BOTTOM_RIGHT, bottom_right)):
        kernel = MPSCNNPoolingMax(bench.device, size, size, stride, stride)
        assert kernel.offset == MPSOffset(0, 0, 0)
        kernel.padding = MPSNNDefaultPadding(style | remainder)
        found = run(bench, kernel, [bench.image(np.maximum.outer(values, values)[None, None])])
        assert (found.shape[2:], kernel.offset) == ((result, result), MPSOffset(offset, offset, 0))
        # The number of a pixel is its place, counted from 1: the largest of a window is where its inside ends.
        ends = [min(offset - size // 2 + stride * i + size, source) for i in range(result)]
        np.testing.assert_array_equal(found[0, 0], np.maximum.outer(ends, ends))


def test_an_average_of_nothing_is_zero(device: torch.device) -> None:
    """CLAMP divides by the taps that are left: where a window lies beside the image there are none."""
    bench = Bench.on(device)
    kernel = MPSCNNPoolingAverage(bench.device, 3, 1)
    kernel.edge_mode, kernel.offset = CLAMP, MPSOffset(4, 0, 0)
    destination = bench.filled((1, 1, 1, 4), -7.0)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, [1, 2, 3, 4, 5]), destination)
    finish(command_buffer)
    assert numbers(destination).ravel().tolist() == [4.5, 5, 0, 0]


def _dilated(
    bench: Bench, size: int, dilation: int, edge: MPSImageEdgeMode, values: Any, stride: int = 1
) -> np.ndarray:
    kernel = MPSCNNDilatedPoolingMax(bench.device, size, 1, dilation, 1, stride, 1)
    kernel.edge_mode = edge
    destination = bench.empty((1, 1, 1, -(-len(values) // stride)))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, values), destination)
    finish(command_buffer)
    return numbers(destination).ravel()


def test_taps_of_dilated_windows(device: torch.device) -> None:
    """Two taps three apart lie at -2 and +1 around the centre; three taps two apart at -2, 0 and 2."""
    bench = Bench.on(device)
    peak = [0, 0, 0, 7, 0, 0, 0]
    np.testing.assert_array_equal(_dilated(bench, 2, 3, ZERO, peak), [0, 0, 7, 0, 0, 7, 0])
    np.testing.assert_array_equal(_dilated(bench, 3, 2, ZERO, peak), [0, 7, 0, 7, 0, 7, 0])
    np.testing.assert_array_equal(_dilated(bench, 3, 2, ZERO, peak, 3), [0, 7, 0])
    np.testing.assert_array_equal(_dilated(bench, 3, 1, ZERO, peak), [0, 0, 7, 7, 7, 0, 0])


def test_edges_of_dilated_windows(device: torch.device) -> None:
    """Zeros override negative numbers; clamp repeats the edge pixel, though it may lie between taps; NaN wins."""
    bench = Bench.on(device)
    np.testing.assert_array_equal(_dilated(bench, 3, 2, ZERO, [-1, -2, -3, -4, -5]), [0, 0, -1, 0, 0])
    np.testing.assert_array_equal(_dilated(bench, 3, 2, CLAMP, [-1, -2, -3, -4, -5]), [-1, -1, -1, -2, -3])
    nan = np.nan
    np.testing.assert_array_equal(_dilated(bench, 3, 2, CLAMP, [1, nan, 3, 4, 5]), [3, nan, 5, nan, 5])


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


def test_norms_and_their_gradients(device: torch.device) -> None:
    """X · the sum of G / Y; a norm of 0 gives nothing; a repeated edge pixel counts as often as it is read."""
    bench = Bench.on(device)
    found = _flow_back(bench, MPSCNNPoolingL2NormGradient, 2, ZERO, [3, 4, 0, 0, 0], [1] * 5)
    assert_close(found, [1 + 3 / 5, 4 / 5 + 1, 0, 0, 0], 1e-6)
    found = _flow_back(bench, MPSCNNPoolingL2NormGradient, 2, CLAMP, [3, 4, 0, 0, 0], [1] * 5)
    assert_close(found, [2 / np.sqrt(2) + 3 / 5, 4 / 5 + 1, 0, 0, 0], 1e-6)


def _flow_back_dilated(
    bench: Bench, size: int, dilation: int, edge: MPSImageEdgeMode, values: Any, flow: Any
) -> np.ndarray:
    gradient = MPSCNNDilatedPoolingMaxGradient(bench.device, size, 1, dilation, 1)
    gradient.secondary_edge_mode = edge
    destination = bench.empty((1, 1, 1, len(values)))
    command_buffer = bench.command_buffer()
    gradient.encode(command_buffer, _line(bench, flow), _line(bench, values), None, destination)
    finish(command_buffer)
    return numbers(destination).ravel()


def test_gradients_of_dilated_windows(device: torch.device) -> None:
    bench = Bench.on(device)
    flow = [1, 10, 100, 1000]
    found = _flow_back_dilated(bench, 3, 2, ZERO, [5, 5, 5, 5], flow)
    np.testing.assert_array_equal(found, [101, 1010, 0, 0])
    found = _flow_back_dilated(bench, 3, 2, ZERO, [-1, -2, -3, -4], flow)
    np.testing.assert_array_equal(found, [0, 0, 0, 0])
    found = _flow_back_dilated(bench, 3, 2, CLAMP, [-1, -2, -3, -4], flow)
    np.testing.assert_array_equal(found, [111, 1000, 0, 0])


@pytest.mark.parametrize(("k", "s", "p", "d"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (3, 2, 1, 2), (2, 3, 1, 3)])
def test_dilated_maxima_equal_pytorch(
    k: int, s: int, p: int, d: int, device: torch.device, rng: np.random.Generator
) -> None:
    """PyTorch leaves out taps outside the image; where all numbers are positive, so does the edge mode ZERO."""
    bench = Bench.on(device)
    x = rng.uniform(0.1, 1.0, size=(2, 3, 9, 8)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.max_pool2d(leaf, k, s, p, d)
    kernel = MPSCNNDilatedPoolingMax(bench.device, k, k, d, d, s, s)
    kernel.offset = MPSOffset(((k - 1) * d + 1) // 2 - p, ((k - 1) * d + 1) // 2 - p, 0)
    gradient = MPSCNNDilatedPoolingMaxGradient(bench.device, 1, 1, 1, 1)
    keep_results(gradient)
    images, destination = bench.batch(x), bench.batch(np.zeros(expected.shape))
    states = kernel.result_state_batch(images)
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, images, destination, states)
    flow = rng.normal(size=expected.shape).astype(np.float32)
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    assert_close(numbers(destination), expected, 0.0)
    assert_close(numbers(found), torch.autograd.grad(expected, leaf, torch.tensor(flow))[0], 1e-6)
    assert (gradient.secondary_dilation_rate_x, gradient.secondary_dilation_rate_y) == (d, d)


@pytest.mark.parametrize("kind", [MPSCNNPoolingMax, MPSCNNDilatedPoolingMax])
def test_maxima_are_located_for_a_state_only(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """An encode that leaves no state gives the same numbers, and on the CPU does not look where they came from."""
    bench = Bench.on(device)
    kernel = kind(bench.device, 2, 2, 2, 2)
    x = rng.normal(size=(1, 3, 6, 5)).astype(np.float32)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    image = bench.image(x)
    located, _ = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    alone = kernel.encode(command_buffer, image)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(alone), numbers(located))
    source, result = Extent(5, 6, 3, 1), Extent(located.width, located.height, 3, 1)
    plan = kernel.plan((Shape(source, FLOAT32),), Shape(result, FLOAT32))
    values = torch.tensor(x, device=device)
    assert len(plan.function.run([values])) == 2
    assert len(plan.bare.run([values])) == 1
    if device.type == "cpu":
        (equation,) = plan.bare.equations
        assert equation.op.run((True, False), values)[1] is None


def test_class_hierarchy() -> None:
    """As in the framework: dilated max pooling is a pooling kernel of its own."""
    for kind in (MPSCNNDilatedPoolingMax, MPSCNNPoolingL2Norm):
        assert issubclass(kind, MPSCNNPooling)
        assert not issubclass(kind, MPSCNNPoolingMax)
    for kind in (MPSCNNDilatedPoolingMaxGradient, MPSCNNPoolingL2NormGradient):
        assert issubclass(kind, MPSCNNPoolingGradient)
        assert not issubclass(kind, MPSCNNPoolingMaxGradient)


def test_dilations() -> None:
    kernel = MPSCNNDilatedPoolingMax(CPU, 3, 2, 4, 5)
    assert (kernel.kernel_width, kernel.kernel_height) == (3, 2)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (4, 5)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (1, 1)
    kernel = MPSCNNDilatedPoolingMax(CPU, 3, 2, 4, 5, 6, 7)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (6, 7)
    gradient = MPSCNNDilatedPoolingMaxGradient(CPU, 3, 2, 4, 5, 6, 7)
    assert (gradient.secondary_dilation_rate_x, gradient.secondary_dilation_rate_y) == (4, 5)
    assert (gradient.secondary_stride_in_pixels_x, gradient.secondary_stride_in_pixels_y) == (6, 7)
    assert (MPSCNNPoolingMax(CPU, 3, 2).dilation_rate_x, MPSCNNPoolingL2Norm(CPU, 3, 2).dilation_rate_y) == (1, 1)


@in_one_test
@pytest.mark.parametrize("kind", [MPSCNNDilatedPoolingMax, MPSCNNDilatedPoolingMaxGradient])
@pytest.mark.parametrize("name", ["dilation_rate_x", "dilation_rate_y"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_bad_dilations(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: {name} must be an integer of at least 1"):
        kind(CPU, 2, 2, **{"dilation_rate_x": 1, "dilation_rate_y": 1, name: value})


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


@in_one_test
@pytest.mark.parametrize(
    "kind",
    [
        MPSCNNPoolingMax,
        MPSCNNPoolingAverage,
        MPSCNNPoolingL2Norm,
        MPSCNNPoolingMaxGradient,
        MPSCNNPoolingL2NormGradient,
    ],
)
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


@in_one_test
@pytest.mark.parametrize("kind", [MPSCNNPoolingAverage, MPSCNNPoolingAverageGradient])
@pytest.mark.parametrize("name", ["zero_pad_size_x", "zero_pad_size_y"])
@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_bad_zero_pads(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: {name} must be an integer of at least 0"):
        setattr(kind(CPU, 2, 2), name, value)


def test_bad_source_size() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNPoolingMaxGradient: source_size must be an MTLSize"):
        MPSCNNPoolingMaxGradient(CPU, 2, 2).source_size = (1, 1, 1)  # type: ignore[assignment]
