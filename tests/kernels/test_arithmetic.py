"""Arithmetic: scales, limits, broadcasting in every combination, gradients that undo them, comparisons."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run, temporary_copy
from helpers import assert_close
from in_one_test import in_one_test
from openmps.checks import FLT_MAX
from openmps.core.image.storage import Extent, Shape
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.kernels import arithmetic as kernels
from openmps.kernels.arithmetic import (
    MPSCNNAdd,
    MPSCNNAddGradient,
    MPSCNNArithmeticGradientState,
    MPSCNNDivide,
    MPSCNNMultiply,
    MPSCNNMultiplyGradient,
    MPSCNNSubtract,
    MPSCNNSubtractGradient,
    MPSNNCompare,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSImageFeatureChannelFormat, MPSNNComparisonType, MPSOffset
from oracles import arithmetic as oracle

CPU = mtl_device("cpu")


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def test_scales_bias_and_limits(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    kernel.primary_scale, kernel.secondary_scale, kernel.bias = 2.0, -1.0, 0.5
    sources = [_line(bench, [1, 2, 3]), _line(bench, [10, 0, -10])]
    assert run(bench, kernel, sources).ravel().tolist() == [-7.5, 4.5, 16.5]
    kernel.minimum_value, kernel.maximum_value = -5.0, 5.0
    assert run(bench, kernel, sources).ravel().tolist() == [-5.0, 4.5, 5.0]


def test_default_limits_let_everything_through(device: torch.device) -> None:
    """At plus and minus the largest float nothing is clamped: infinities and NaN pass."""
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    found = run(bench, kernel, [_line(bench, [np.inf, -np.inf, np.nan, 1]), _line(bench, [1, 1, 1, np.inf])])
    np.testing.assert_array_equal(found.ravel(), [np.inf, -np.inf, np.nan, np.inf])


GOLDEN = [
    (MPSCNNAdd, [11.5, 2.5, -6.5]),
    (MPSCNNSubtract, [-7.5, 4.5, 16.5]),
    (MPSCNNMultiply, [20.5, 0.5, -59.5]),
    (MPSCNNDivide, [0.7, np.inf, -0.1]),
]


@pytest.mark.parametrize(("kind", "expected"), GOLDEN)
def test_four_operations(kind: Any, expected: list[float], device: torch.device) -> None:
    """With p = 2 (1 for addition), q = 1 and bias 0.5."""
    bench = Bench.on(device)
    kernel = kind(bench.device)
    kernel.primary_scale, kernel.bias = (1.0 if kind is MPSCNNAdd else 2.0), 0.5
    found = run(bench, kernel, [_line(bench, [1, 2, 3]), _line(bench, [10, 0, -10])])
    assert_close(found.ravel(), expected, 1e-6)


def test_division_by_zero(device: torch.device) -> None:
    """Nothing is clamped at the default limits: 1/0 is infinite, 0/0 is no number; limits cut infinities."""
    bench = Bench.on(device)
    kernel = MPSCNNDivide(bench.device)
    sources = [_line(bench, [1, -1, 0]), _line(bench, [0, 0, 0])]
    np.testing.assert_array_equal(run(bench, kernel, sources).ravel(), [np.inf, -np.inf, np.nan])
    kernel.minimum_value, kernel.maximum_value = -3.0, 2.0
    np.testing.assert_array_equal(run(bench, kernel, sources).ravel(), [2.0, -3.0, np.nan])


@pytest.mark.parametrize("kind", [MPSCNNAdd, MPSCNNSubtract, MPSCNNMultiply, MPSCNNDivide, MPSNNCompare])
def test_defaults(kind: Any) -> None:
    kernel = kind(CPU)
    assert (kernel.primary_scale, kernel.secondary_scale, kernel.bias) == (1.0, 1.0, 0.0)
    assert (kernel.minimum_value, kernel.maximum_value) == (-FLT_MAX, FLT_MAX)
    assert (kernel.primary_stride_in_feature_channels, kernel.secondary_stride_in_feature_channels) == (1, 1)
    for side in ("primary", "secondary"):
        assert getattr(kernel, f"{side}_stride_in_pixels_x") == getattr(kernel, f"{side}_stride_in_pixels_y") == 1
    image = Bench(CPU).empty((1, 1, 1, 1))
    state = kernel.result_state(image, image)
    if kind in (MPSCNNDivide, MPSNNCompare):
        assert state is None, "has no gradient"
    else:
        assert isinstance(state, MPSCNNArithmeticGradientState)


OPERATIONS = ["add", "subtract", "multiply"]
AXES = list(itertools.product([False, True], repeat=3))


@in_one_test
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("primary", AXES, ids=str)
@pytest.mark.parametrize("secondary", AXES, ids=str)
def test_broadcasting(operation: str, primary, secondary, device: torch.device, rng: np.random.Generator) -> None:
    """Strides of 0 along x, y and channels, of either source or of both; gradients sum what was broadcast."""
    bench = Bench.on(device)
    full = (3, 4, 5)  # channels, height, width
    kernel = getattr(kernels, f"MPSCNN{operation.capitalize()}")(bench.device)
    kernel.primary_scale, kernel.secondary_scale = 2.0, -0.5
    arrays = []
    for name, flags in (("primary", primary), ("secondary", secondary)):
        x, y, channels = flags
        setattr(kernel, f"{name}_stride_in_pixels_x", 0 if x else 1)
        setattr(kernel, f"{name}_stride_in_pixels_y", 0 if y else 1)
        setattr(kernel, f"{name}_stride_in_feature_channels", 0 if channels else 1)
        shape = (2, *(1 if flag else size for flag, size in zip((channels, y, x), full, strict=True)))
        arrays.append(rng.normal(size=shape).astype(np.float32).astype(np.float64))
    keep_results(kernel)
    images = [bench.batch(values) for values in arrays]
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, *images, destination_state_is_temporary=False)
    finish(command_buffer)
    expected, _ = oracle.forward(operation, *arrays, p=2.0, q=-0.5)
    assert_close(numbers(result), expected, 1e-6)
    flow = rng.normal(size=expected.shape).astype(np.float32).astype(np.float64)
    wanted = oracle.gradients(operation, flow, *arrays, p=2.0, q=-0.5)
    for index in range(2):
        make = getattr(kernels, f"MPSCNN{operation.capitalize()}Gradient")
        gradient = make(bench.device, is_secondary_source_filter=bool(index))
        keep_results(gradient)
        command_buffer = bench.command_buffer()
        secondary_image = images[1 - index if operation == "multiply" else index]
        found = gradient.encode_batch(command_buffer, bench.batch(flow), secondary_image, states)
        finish(command_buffer)
        assert_close(numbers(found), wanted[index], 1e-5, f"gradient {index}")


def test_one_pixel_for_a_whole_destination(device: torch.device) -> None:
    """Both sources broadcast along every axis: the destination given is filled."""
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    for name in ("primary", "secondary"):
        setattr(kernel, f"{name}_stride_in_pixels_x", 0)
        setattr(kernel, f"{name}_stride_in_pixels_y", 0)
    kernel.maximum_value = 2.5
    for destination in (bench.empty((1, 1, 2, 3)), bench.filled((1, 1, 2, 3), -1)):
        command_buffer = bench.command_buffer()
        kernel.encode(command_buffer, _line(bench, [1]), _line(bench, [2]), destination)
        finish(command_buffer)
        assert (numbers(destination) == 2.5).all()
        destination.tensor()[0, 0, 0, 0] = 7
        assert numbers(destination).ravel().tolist() == [7, 2.5, 2.5, 2.5, 2.5, 2.5]


def test_offsets_and_edges_of_each_source(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    kernel.primary_offset, kernel.secondary_offset = MPSOffset(1, 0, 0), MPSOffset(-1, 0, 0)
    kernel.secondary_edge_mode = MPSImageEdgeMode.CLAMP
    destination = bench.empty((1, 1, 1, 3))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, [1, 2, 3]), _line(bench, [10, 20, 30]), destination)
    finish(command_buffer)
    assert numbers(destination).ravel().tolist() == [12, 13, 20]


def test_clamped_numbers_pass_no_gradient(device: torch.device) -> None:
    """Only with the state: without it the gradient kernel knows of no limits."""
    bench = Bench.on(device)
    kernel, gradient = MPSCNNAdd(bench.device), MPSCNNAddGradient(bench.device)
    kernel.minimum_value, kernel.maximum_value = 0.0, 5.0
    x, y, ones = _line(bench, [-3, 1, 4, 2]), _line(bench, [1, 1, 4, 3]), _line(bench, [1, 1, 1, 1])
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, x, y, destination_state_is_temporary=False)
    assert isinstance(state, MPSCNNArithmeticGradientState)
    found = gradient.encode(command_buffer, ones, x, state)
    destination = bench.empty((1, 1, 1, 4))
    MPSCNNAddGradient(bench.device).encode(command_buffer, ones, x, None, destination)
    finish(command_buffer)
    assert numbers(found).ravel().tolist() == [0, 1, 0, 0]
    assert numbers(destination).ravel().tolist() == [1, 1, 1, 1]


def test_gradient_scales_come_from_the_state(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    kernel.primary_scale, kernel.secondary_scale = 3.0, 5.0
    image = _line(bench, [1, 2])
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, image, image, destination_state_is_temporary=False)
    for second, expected in ((False, 3.0), (True, 5.0)):
        gradient = MPSCNNAddGradient(bench.device, second)
        assert gradient.is_secondary_source_filter is second
        assert gradient.primary_scale == 1.0
        keep_results(gradient)
        found = gradient.encode(command_buffer, _line(bench, [1, 1]), image, state)
        assert gradient.primary_scale == expected
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert numbers(found).ravel().tolist() == [expected, expected]
        command_buffer = bench.command_buffer()


def test_one_image_twice(device: torch.device) -> None:
    """Each source argument takes a read."""
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    image = temporary_copy(command_buffer, _line(bench, [1, 2]))
    kernel.label = "twice"
    with pytest.raises(MPSLifetimeError, match="^MPSCNNAdd 'twice': primary_image must have 2 reads left"):
        kernel.encode(command_buffer, image, image)
    assert image.read_count == 1  # type: ignore[union-attr]
    image.read_count = 2  # type: ignore[union-attr]
    result = kernel.encode(command_buffer, image, image)
    assert image.read_count == 0  # type: ignore[union-attr]
    finish(command_buffer)
    assert numbers(result).ravel().tolist() == [2, 4]


@pytest.mark.parametrize("name", ["primary_stride_in_feature_channels", "secondary_stride_in_feature_channels"])
@pytest.mark.parametrize("value", [2, -1])
def test_channel_strides_are_zero_or_one(name: str, value: int) -> None:
    with pytest.raises(MPSArgumentError, match=rf"^MPSCNNAdd: {name} must be 0 \(broadcast\) or 1, got {value}"):
        setattr(MPSCNNAdd(CPU), name, value)


@pytest.mark.parametrize("name", ["primary_stride_in_pixels_x", "secondary_stride_in_pixels_y"])
@pytest.mark.parametrize("given", [False, True], ids=["returned", "given"])
def test_pixel_strides_are_zero_or_one(name: str, given: bool) -> None:
    bench = Bench(CPU)
    kernel = MPSCNNAdd(CPU)
    kernel.label = "a"
    setattr(kernel, name, 2)
    image = _line(bench, [1, 2])
    destination = [bench.empty((1, 1, 1, 2))] if given else []
    with pytest.raises(MPSArgumentError, match=rf"^MPSCNNAdd 'a': {name} must be 0 \(broadcast\) or 1, got 2"):
        kernel.encode(bench.command_buffer(), image, image, *destination)
    with pytest.raises(MPSArgumentError, match=f"{name} must be an integer, at least 0"):
        setattr(kernel, name, -1)


def test_channels_must_agree() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNAdd(CPU)
    with pytest.raises(MPSArgumentError, match="^MPSCNNAdd: sources must have the same number of feature channels"):
        kernel.encode(bench.command_buffer(), bench.empty((1, 3, 2, 2)), bench.empty((1, 5, 2, 2)))


def test_read_only_window() -> None:
    kernel = MPSCNNAdd(CPU)
    assert (kernel.primary_kernel_width, kernel.secondary_dilation_rate_y) == (1, 1)
    for name in ("primary_kernel_width", "secondary_kernel_height", "primary_dilation_rate_x"):
        with pytest.raises(AttributeError, match=f"{name} is read-only"):
            setattr(kernel, name, 3)


# --- gradients of subtraction and multiplication ---------------------------------------------------------------------


def _back(bench: Bench, gradient: Any, flow: Any, image: Any, like: Any) -> np.ndarray:
    """A gradient encode without a state, into a destination shaped as ``like``."""
    destination = bench.empty(numbers(like).shape)
    command_buffer = bench.command_buffer()
    gradient.encode(command_buffer, flow, image, None, destination)
    finish(command_buffer)
    return numbers(destination).ravel()


TABLE = [
    (MPSCNNAddGradient, False, {"primary_scale": 3.0}, "x", [3, 30]),
    (MPSCNNAddGradient, True, {"primary_scale": 5.0}, "y", [5, 50]),
    (MPSCNNSubtractGradient, False, {"primary_scale": 3.0}, "x", [3, 30]),
    (MPSCNNSubtractGradient, True, {"primary_scale": -5.0}, "y", [-5, -50]),
    (MPSCNNMultiplyGradient, False, {"primary_scale": 3.0, "secondary_scale": 5.0}, "y", [15 * 7, 150 * 11]),
    (MPSCNNMultiplyGradient, True, {"primary_scale": 3.0, "secondary_scale": 5.0}, "x", [15 * 2, 150 * -1]),
]
"""With p = 3 and q = 5: the kernel, the source it is for, what is set on it, the image passed, the gradient."""


@pytest.mark.parametrize(("kind", "second", "scales", "image", "expected"), TABLE)
def test_golden_gradients_by_hand(kind, second, scales, image, expected, device: torch.device) -> None:
    bench = Bench.on(device)
    images = {"x": _line(bench, [2, -1]), "y": _line(bench, [7, 11])}
    gradient = kind(bench.device, second)
    for name, value in (scales | {"bias": 99.0}).items():
        setattr(gradient, name, value)
    found = _back(bench, gradient, _line(bench, [1, 10]), images[image], images["y" if second else "x"])
    assert found.tolist() == expected


def test_the_gradient_of_what_is_subtracted_is_negative(device: torch.device) -> None:
    """By default, without a state; -1 set by hand is the same, and the state's scales are the forward kernel's."""
    bench = Bench.on(device)
    flow, image = _line(bench, [1, -2]), _line(bench, [7, 8])
    first = MPSCNNSubtractGradient(bench.device)
    second = MPSCNNSubtractGradient(bench.device, is_secondary_source_filter=True)
    assert (first.primary_scale, first.is_secondary_source_filter) == (1.0, False)
    assert (second.primary_scale, second.is_secondary_source_filter) == (-1.0, True)
    assert _back(bench, first, flow, image, image).tolist() == [1, -2]
    assert _back(bench, second, flow, image, image).tolist() == [-1, 2]
    kernel = MPSCNNSubtract(bench.device)
    kernel.primary_scale, kernel.secondary_scale = 3.0, 5.0
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, image, image, destination_state_is_temporary=False)
    keep_results(first)
    keep_results(second)
    found = [each.encode(command_buffer, flow, image, state) for each in (first, second)]
    finish(command_buffer)
    assert [numbers(each).ravel().tolist() for each in found] == [[3, -6], [-5, 10]]
    assert (first.primary_scale, second.primary_scale) == (3.0, -5.0)


def test_the_product_of_an_image_with_itself(device: torch.device) -> None:
    """d(x x)/dx = 2 x: both gradients, added."""
    bench = Bench.on(device)
    x, flow = _line(bench, [1, -2, 3]), _line(bench, [1, 1, 10])
    kernel = MPSCNNMultiply(bench.device)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, x, x, destination_state_is_temporary=False)
    parts = [
        MPSCNNMultiplyGradient(bench.device, second).encode(command_buffer, flow, x, state) for second in (False, True)
    ]
    add = MPSCNNAdd(bench.device)
    keep_results(add)
    whole = add.encode(command_buffer, *parts)
    finish(command_buffer)
    assert numbers(result).ravel().tolist() == [1, 4, 9]
    assert numbers(whole).ravel().tolist() == [2, -4, 60]


def test_the_gradient_of_a_product_reads_the_other_source(device: torch.device) -> None:
    """Scales, both read and written back; the other source's shape is asked for."""
    bench = Bench.on(device)
    kernel = MPSCNNMultiply(bench.device)
    kernel.primary_scale, kernel.secondary_scale = 2.0, 3.0
    kernel.secondary_stride_in_pixels_x = 0
    x, y, flow = _line(bench, [1, 2, 3]), _line(bench, [5]), _line(bench, [1, 10, 100])
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, x, y, destination_state_is_temporary=False)
    found = []
    for index, other in enumerate((y, x)):
        gradient = MPSCNNMultiplyGradient(bench.device, bool(index))
        gradient.label = "g"
        keep_results(gradient)
        found.append(gradient.encode(command_buffer, flow, other, state))
        assert (gradient.primary_scale, gradient.secondary_scale) == ((2.0, 3.0), (3.0, 2.0))[index]
        assert (gradient.primary_stride_in_pixels_x, gradient.secondary_stride_in_pixels_x) == ((1, 0), (0, 1))[index]
        with pytest.raises(MPSArgumentError, match="^MPSCNNMultiplyGradient 'g': source_image must be "):
            gradient.encode(command_buffer, flow, (x, y)[index], state)
    finish(command_buffer)
    assert numbers(found[0]).ravel().tolist() == [30, 300, 3000]
    assert numbers(found[1]).ravel().tolist() == [6 * (1 + 20 + 300)]


def test_a_product_by_hand_sums_what_the_destination_has_one_of(device: torch.device, rng: np.random.Generator) -> None:
    """Without a state the size of the destination tells; a primary stride of 0 says it for one pixel of many."""
    bench = Bench.on(device)
    x, flow = (rng.integers(-4, 5, size=(1, 2, 2, 3)).astype(np.float64) for _ in range(2))
    product = x * flow
    cases = [
        ((1, 2, 2, 3), product),
        ((1, 2, 1, 1), product.sum((2, 3), keepdims=True)),
        ((1, 1, 2, 3), product.sum(1, keepdims=True)),
        ((1, 1, 1, 1), product.sum(keepdims=True)),
    ]
    for shape, expected in cases:
        gradient = MPSCNNMultiplyGradient(bench.device, True)
        found = _back(bench, gradient, bench.image(flow), bench.image(x), bench.empty(shape))
        assert found.tolist() == expected.ravel().tolist()
    gradient.primary_stride_in_pixels_x = 0
    gradient.primary_stride_in_feature_channels = 0
    wide = bench.filled((1, 3, 2, 4), -7)
    command_buffer = bench.command_buffer()
    gradient.encode(command_buffer, bench.image(flow), bench.image(x), None, wide)
    finish(command_buffer)
    written = numbers(wide)
    np.testing.assert_array_equal(written[:, 0, :, 0], product.sum((1, 3)))
    np.testing.assert_array_equal(written[:, 1:], -7)


@pytest.mark.parametrize("edge", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_gradients_of_a_source_that_is_too_small(
    operation: str, edge: MPSImageEdgeMode, device: torch.device, rng: np.random.Generator
) -> None:
    """One pixel with a stride of 1 is no broadcast: what it gives beyond its edge, and its gradient, are the edge's."""
    bench = Bench.on(device)
    x, y = (rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in ((1, 1, 1, 4), (1, 1, 1, 1)))
    flow = rng.normal(size=x.shape).astype(np.float32).astype(np.float64)
    read = np.repeat(y, 4, axis=3) if edge is MPSImageEdgeMode.CLAMP else np.pad(y, ((0, 0),) * 3 + ((0, 3),))
    kernel = getattr(kernels, f"MPSCNN{operation.capitalize()}")(bench.device)
    kernel.secondary_edge_mode = edge
    keep_results(kernel)
    images = [bench.image(x), bench.image(y)]
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, *images, destination_state_is_temporary=False)
    found = []
    for index in range(2):
        gradient = getattr(kernels, f"MPSCNN{operation.capitalize()}Gradient")(bench.device, bool(index))
        keep_results(gradient)
        other = images[1 - index if operation == "multiply" else index]
        found.append(gradient.encode(command_buffer, bench.image(flow), other, state))
    finish(command_buffer)
    assert_close(numbers(result), oracle.forward(operation, x, read)[0], 1e-6)
    primary, secondary = oracle.gradients(operation, flow, x, read)
    assert_close(numbers(found[0]), primary, 1e-6, "primary")
    expected = secondary.sum() if edge is MPSImageEdgeMode.CLAMP else secondary[0, 0, 0, 0]
    assert_close(numbers(found[1]).ravel(), [expected], 1e-6, "secondary")


# --- comparison ------------------------------------------------------------------------------------------------------

COMPARISONS = [
    (MPSNNComparisonType.EQUAL, 0.0, [0, 0, 1, 0, 0, 0, 1]),
    (MPSNNComparisonType.NOT_EQUAL, 0.0, [1, 1, 0, 1, 1, 0, 0]),
    (MPSNNComparisonType.LESS, 0.0, [1, 1, 0, 0, 0, 0, 0]),
    (MPSNNComparisonType.LESS_OR_EQUAL, 0.0, [1, 1, 1, 0, 0, 0, 1]),
    (MPSNNComparisonType.GREATER, 0.0, [0, 0, 0, 1, 1, 0, 0]),
    (MPSNNComparisonType.GREATER_OR_EQUAL, 0.0, [0, 0, 1, 1, 1, 0, 1]),
    (MPSNNComparisonType.EQUAL, 1.0, [0, 1, 1, 1, 0, 0, 1]),
    (MPSNNComparisonType.NOT_EQUAL, 1.0, [1, 0, 0, 0, 1, 0, 0]),
    (MPSNNComparisonType.LESS, 1.0, [1, 1, 0, 0, 0, 0, 0]),
    (MPSNNComparisonType.LESS_OR_EQUAL, 1.0, [1, 1, 1, 1, 0, 0, 1]),
    (MPSNNComparisonType.GREATER, 1.0, [0, 0, 0, 1, 1, 0, 0]),
    (MPSNNComparisonType.GREATER_OR_EQUAL, 1.0, [0, 1, 1, 1, 1, 0, 1]),
]


@in_one_test
@pytest.mark.parametrize(("comparison", "threshold", "expected"), COMPARISONS)
def test_comparisons(comparison: Any, threshold: float, expected: list[int], device: torch.device) -> None:
    """The primary number stands on the left; scales, bias and limits are not used."""
    bench = Bench.on(device)
    kernel = MPSNNCompare(bench.device)
    kernel.comparison_type, kernel.threshold = comparison, threshold
    kernel.primary_scale, kernel.secondary_scale, kernel.bias, kernel.maximum_value = 2.0, -3.0, 4.0, 0.25
    sources = [_line(bench, [1, 2, 3, 4, 5, np.nan, np.inf]), _line(bench, [3, 3, 3, 3, 3, 3, np.inf])]
    assert run(bench, kernel, sources).ravel().tolist() == expected
    assert kernel.comparison_type is comparison


def test_comparison_properties() -> None:
    kernel = MPSNNCompare(CPU)
    assert (kernel.comparison_type, kernel.threshold) == (MPSNNComparisonType.EQUAL, 0.0)
    kernel.comparison_type = 3  # type: ignore[assignment]
    assert kernel.comparison_type is MPSNNComparisonType.LESS_OR_EQUAL
    for wrong in (6, "less", None):
        with pytest.raises(MPSArgumentError, match="^MPSNNCompare: comparison_type must be one of EQUAL, NOT_EQUAL"):
            kernel.comparison_type = wrong  # type: ignore[assignment]
    with pytest.raises(MPSArgumentError, match=r"^MPSNNCompare: threshold must be at least 0, got -1\.0"):
        kernel.threshold = -1.0


# --- what a user can get wrong ---------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("kind", [MPSCNNMultiply, MPSCNNMultiplyGradient])
@pytest.mark.parametrize("name", ["primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"])
def test_numbers_are_numbers(kind: Any, name: str) -> None:
    kernel = kind(CPU)
    kernel.label = "k"
    for wrong in (None, "2", [1.0]):
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__} 'k': {name} must be a number, got"):
            setattr(kernel, name, wrong)
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'k': {name} must be a number, got nan"):
        setattr(kernel, name, float("nan"))
    setattr(kernel, name, 3)
    assert getattr(kernel, name) == 3.0


def test_limits_the_wrong_way_round() -> None:
    kernel = MPSCNNSubtract(CPU)
    kernel.minimum_value, kernel.maximum_value = 1.0, 0.0
    bench = Bench(CPU)
    image = bench.empty((1, 1, 1, 1))
    with pytest.raises(MPSArgumentError, match=r"^MPSCNNSubtract: minimum_value must not be above maximum_value, 0\.0"):
        kernel.encode(bench.command_buffer(), image, image)


@pytest.mark.parametrize("name", ["primary_stride_in_pixels_x", "primary_stride_in_pixels_y"])
def test_strides_of_a_products_gradient(name: str) -> None:
    gradient, bench = MPSCNNMultiplyGradient(CPU), Bench(CPU)
    image = bench.empty((1, 1, 2, 2))
    setattr(gradient, name, 2)
    with pytest.raises(MPSArgumentError, match=rf"^MPSCNNMultiplyGradient: {name} must be 0 \(broadcast\) or 1, got 2"):
        gradient.encode(bench.command_buffer(), image, image, None, bench.empty((1, 1, 2, 2)))
    with pytest.raises(MPSArgumentError, match="primary_stride_in_feature_channels must be 0"):
        gradient.primary_stride_in_feature_channels = 2


def test_images_from_an_offset_on() -> None:
    """The result has as many images as there are left in both sources."""
    bench, kernel = Bench(CPU), MPSCNNAdd(CPU)
    kernel.primary_offset = MPSOffset(0, 0, 2)
    images = [bench.image(np.arange(n, dtype=np.float64).reshape(n, 1, 1, 1)) for n in (5, 4)]
    assert run(bench, kernel, images).ravel().tolist() == [2, 4, 6]


def test_a_sum_of_float16_images_is_rounded_once(device: torch.device, rng: np.random.Generator) -> None:
    """Plain sums read float16 as it is stored; scales and limits compute in float32 first. Both round at the end."""
    bench = Bench.on(device)
    x, y = (rng.standard_normal((1, 8, 3, 5)).astype(np.float16) for _ in range(2))
    sources = [bench.image(each, MPSImageFeatureChannelFormat.FLOAT16) for each in (x, y)]
    for scale, limit in [(1.0, FLT_MAX), (0.3, FLT_MAX), (1.0, 0.7)]:
        kernel = MPSCNNAdd(bench.device)
        kernel.secondary_scale, kernel.maximum_value = scale, limit
        exact = x.astype(np.float32) + np.float32(scale) * y.astype(np.float32)
        expected = np.minimum(exact, np.float32(limit)).astype(np.float16)
        np.testing.assert_array_equal(run(bench, kernel, sources), expected)


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_mask_is_made_for_a_state_only(is_saved: bool, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNAdd(bench.device)
    shapes = (Shape(Extent(3, 2, 4, 1), MPSImageFeatureChannelFormat.FLOAT32),) * 2
    assert "saved" not in kernel.plan(shapes, shapes[0]).function.outputs  # without limits nothing is clamped
    kernel.maximum_value = 1.0
    plan = kernel.plan(shapes, shapes[0])
    (action,) = (plan.function if is_saved else plan.bare).actions
    assert action.wanted == (True, is_saved)
