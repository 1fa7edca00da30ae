"""Addition: scales, limits, broadcasting in every combination, and gradients that undo them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run, temporary_copy
from helpers import assert_close
from openmps.errors import MPSArgumentError, MPSLifetimeError
from openmps.kernels.arithmetic import MPSCNNAdd, MPSCNNAddGradient, MPSCNNArithmeticGradientState
from openmps.metal.device import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset
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


AXES = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize("primary", AXES, ids=str)
@pytest.mark.parametrize("secondary", AXES, ids=str)
def test_broadcasting(primary, secondary, device: torch.device, rng: np.random.Generator) -> None:
    """Strides of 0 along x, y and channels, of either source or of both; gradients sum what was broadcast."""
    bench = Bench.on(device)
    full = (3, 4, 5)  # channels, height, width
    kernel = MPSCNNAdd(bench.device)
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
    expected, _ = oracle.forward("add", *arrays, p=2.0, q=-0.5)
    assert_close(numbers(result), expected, 1e-6)
    flow = rng.normal(size=expected.shape).astype(np.float32).astype(np.float64)
    wanted = oracle.gradients("add", flow, *arrays, p=2.0, q=-0.5)
    for index in range(2):
        gradient = MPSCNNAddGradient(bench.device, is_secondary_source_filter=bool(index))
        keep_results(gradient)
        command_buffer = bench.command_buffer()
        found = gradient.encode_batch(command_buffer, bench.batch(flow), images[index], states)
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
