"""Local normalizations: parameters and their way to the gradient kernels, golden numbers, windows, misuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError
from openmps.kernels.normalization import (
    MPSCNNCrossChannelNormalization,
    MPSCNNCrossChannelNormalizationGradient,
    MPSCNNLocalContrastNormalization,
    MPSCNNLocalContrastNormalizationGradient,
    MPSCNNSpatialNormalization,
    MPSCNNSpatialNormalizationGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MPSOffset
from oracles import local_normalization as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")
ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP

ENERGY = {"alpha": 1.0, "beta": 5.0, "delta": 1.0}
CONTRAST = {"alpha": 0.0, "beta": 0.5, "delta": 0.0009765625, "p0": 1.0, "pm": 0.0, "ps": 1.0}
PAIRS = [
    (MPSCNNSpatialNormalization, MPSCNNSpatialNormalizationGradient, (3, 3), ENERGY),
    (MPSCNNLocalContrastNormalization, MPSCNNLocalContrastNormalizationGradient, (3, 3), CONTRAST),
    (MPSCNNCrossChannelNormalization, MPSCNNCrossChannelNormalizationGradient, (3,), ENERGY),
]
KINDS = [
    (kind, size, defaults) for pair in PAIRS for kind, size, defaults in ((pair[0], *pair[2:]), (pair[1], *pair[2:]))
]
OVER_PIXELS = [kind for kind, size, _ in KINDS if len(size) == 2]
OVER_CHANNELS = [kind for kind, size, _ in KINDS if len(size) == 1]
NAMES = ("alpha", "beta", "delta", "p0", "pm", "ps")


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size", "defaults"), KINDS)
def test_defaults(kind: Any, size: tuple[int, ...], defaults: dict[str, float]) -> None:
    kernel = kind(CPU, *size)
    assert {name: getattr(kernel, name) for name in defaults} == defaults
    assert all(hasattr(kernel, name) == (name in defaults) for name in NAMES)
    assert kernel.padding == MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)


@pytest.mark.parametrize("kind", OVER_PIXELS)
def test_window_over_pixels(kind: Any) -> None:
    kernel = kind(CPU, kernel_width=4, kernel_height=4)
    assert (kernel.kernel_width, kernel.kernel_height) == (4, 4)
    with pytest.raises(AttributeError):
        kernel.kernel_width = 3


@pytest.mark.parametrize("kind", OVER_CHANNELS)
def test_window_over_channels(kind: Any) -> None:
    assert kind(CPU).kernel_size == 5
    assert kind(CPU, kernel_size=4).kernel_size == 4
    with pytest.raises(AttributeError):
        kind(CPU).kernel_size = 3


@pytest.mark.parametrize(("kind", "size", "defaults"), KINDS)
def test_parameters_are_numbers_of_their_kernel(kind: Any, size: tuple[int, ...], defaults: dict[str, float]) -> None:
    """Any real number is taken, and read as a float; copies and other kernels keep their own."""
    kernel, other = kind(CPU, *size), kind(CPU, *size)
    twin = kernel.copy()
    for value in (2, np.float32(0.5), 0.25):
        for name in defaults:
            setattr(kernel, name, value)
            assert getattr(kernel, name) == value
            assert type(getattr(kernel, name)) is float
    for unchanged in (twin, other):
        assert {name: getattr(unchanged, name) for name in defaults} == defaults
    changed = kernel.copy()
    assert {name: getattr(changed, name) for name in defaults} == dict.fromkeys(defaults, 0.25)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _channels(bench: Bench, values: list[float]) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, -1, 1, 1))


def test_golden_cross_channel(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNCrossChannelNormalization(bench.device, 4)
    kernel.beta = 0.75
    found = run(bench, kernel, [_channels(bench, [1, 2, 3, 4])]).ravel()
    assert_digits(found, [0.54433, 0.64732, 0.60264, 0.82171], 5)


@pytest.mark.parametrize(("size", "expected"), [(5, [3.8, 7, 7, 6.8]), (4, [2.25, 4.5, 8.5, 8.25])])
def test_golden_divisors(size: int, expected: list[float], device: torch.device) -> None:
    """With the default alpha and delta; an exponent of 1 lets the divisor be read off."""
    bench = Bench.on(device)
    kernel = MPSCNNCrossChannelNormalization(bench.device, size)
    kernel.beta = 1
    found = run(bench, kernel, [_channels(bench, [1, 2, 3, 4])]).ravel()
    assert_digits(np.array([1, 2, 3, 4]) / found, expected, 5)


def test_default_exponent(device: torch.device) -> None:
    bench = Bench.on(device)
    found = run(bench, MPSCNNCrossChannelNormalization(bench.device), [_channels(bench, [1, 2, 3, 4])]).ravel()
    assert_close(found * np.array([3.8, 7, 7, 6.8]) ** 5, [1, 2, 3, 4], 1e-5)


def test_contrast_by_default_takes_the_mean_off_and_multiplies_by_32(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNLocalContrastNormalization(bench.device, 3, 3)
    kernel.edge_mode = CLAMP
    x = np.array([1.0, 2.0, 4.0, 8.0]).reshape(1, 1, 1, 4)
    found = run(bench, kernel, [bench.image(x)]).ravel()
    means = [4 / 3, 7 / 3, 14 / 3, 20 / 3]
    assert_close(found, 32 * (x.ravel() - means), 1e-5)


def test_contrast_to_unit_variance(device: torch.device) -> None:
    """The header's example: pm 0, ps 1, p0 1, delta 0, alpha 1, beta 0.5."""
    bench = Bench.on(device)
    kernel = MPSCNNLocalContrastNormalization(bench.device, 3, 3)
    kernel.alpha, kernel.delta = 1.0, 0.0
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 1] = [-1, 3, -2]
    mean = np.mean(x)
    found = run(bench, kernel, [bench.image(x)])
    assert_close(found[0, 0, 1, 1], (3 - mean) / np.std(x), 1e-5)


@pytest.mark.parametrize("edge_mode", [ZERO, CLAMP])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_even_windows_lean_to_the_top_left(size: int, edge_mode: MPSImageEdgeMode, device: torch.device) -> None:
    """Which pixels change the number in the middle: those at -k // 2 .. (k - 1) // 2."""
    bench = Bench.on(device)
    kernel = MPSCNNSpatialNormalization(bench.device, size, size)
    kernel.edge_mode = edge_mode
    still = np.zeros((1, 1, 7, 7))
    still[0, 0, 3, 3] = 1.0
    plain = run(bench, kernel, [bench.image(still)])[0, 0, 3, 3]
    felt = np.zeros((7, 7), dtype=bool)
    for row, column in np.ndindex(7, 7):
        if (row, column) != (3, 3):
            moved = still.copy()
            moved[0, 0, row, column] = 1.0
            felt[row, column] = run(bench, kernel, [bench.image(moved)])[0, 0, 3, 3] != plain
    expected = np.zeros((7, 7), dtype=bool)
    window = slice(3 - size // 2, 3 + (size - 1) // 2 + 1)
    expected[window, window] = True
    expected[3, 3] = False
    np.testing.assert_array_equal(felt, expected)


def test_offset_moves_number_and_window(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(1, 3, 5, 6)).astype(np.float32).astype(np.float64)
    for size in (2, 3):
        kernel = MPSCNNSpatialNormalization(bench.device, size, size)
        kernel.beta, kernel.offset = 0.75, MPSOffset(2, -1, 0)
        destination = bench.empty((1, 3, 4, 3))
        command_buffer = bench.command_buffer()
        kernel.encode(command_buffer, bench.image(x), destination)
        finish(command_buffer)
        rows, columns = Axis(4, size, offset=-1), Axis(3, size, offset=2)
        assert_close(numbers(destination), oracle.spatial(x, rows, columns, int(ZERO), (1.0, 0.75, 1.0)), 1e-5)


def test_cross_channel_sees_only_the_channels_read(device: torch.device) -> None:
    """The window ends where the slice of channels does, and the filler of the last group of four is not read."""
    bench = Bench.on(device)
    kernel = MPSCNNCrossChannelNormalization(bench.device, 4)
    kernel.beta = 0.75
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 4
    found = run(bench, kernel, [_channels(bench, [9, 9, 9, np.nan, 1, 2, 3, 4, np.nan, 9])]).ravel()
    assert_digits(found, [0.54433, 0.64732, 0.60264, 0.82171], 5)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "gradient_kind", "size", "defaults"), PAIRS)
def test_the_state_brings_the_parameters(
    kind: Any, gradient_kind: Any, size: tuple[int, ...], defaults: dict[str, float], device: torch.device
) -> None:
    """As they stood at the forward encode, the window's size included."""
    bench = Bench.on(device)
    kernel = kind(bench.device, *(4 for _ in size))
    chosen = dict(zip(defaults, (0.5, 0.75, 1.5, 0.25, -0.5, 2.0), strict=False))
    for name, value in chosen.items():
        setattr(kernel, name, value)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    image = bench.image(np.ones((1, 4, 3, 3)))
    result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    for name in chosen:
        setattr(kernel, name, 7.0)
    gradient = gradient_kind(bench.device, *size)
    keep_results(gradient)
    gradient.encode(command_buffer, result, image, state)
    finish(command_buffer)
    assert {name: getattr(gradient, name) for name in chosen} == chosen
    if len(size) == 2:
        assert (gradient.kernel_width, gradient.kernel_height) == (4, 4)
    else:
        assert gradient.kernel_size == 4


@pytest.mark.parametrize("edge_mode", [ZERO, CLAMP])
@pytest.mark.parametrize(("kind", "gradient_kind", "size", "defaults"), PAIRS)
def test_a_gradient_without_state_has_its_own_parameters(
    kind: Any,
    gradient_kind: Any,
    size: tuple[int, ...],
    defaults: dict[str, float],
    edge_mode: MPSImageEdgeMode,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    """Also with an even window, and with everything else as the kernel was made."""
    bench = Bench.on(device)
    x, g = (rng.normal(size=(2, 5, 4, 6)).astype(np.float32).astype(np.float64) for _ in range(2))
    gradient = gradient_kind(bench.device, *(4 for _ in size))
    chosen = dict(zip(defaults, (0.5, 0.75, 1.5, 0.25, -0.5, 2.0), strict=False))
    for name, value in chosen.items():
        setattr(gradient, name, value)
    gradient.secondary_edge_mode = edge_mode
    destination = bench.empty(x.shape)
    command_buffer = bench.command_buffer()
    gradient.encode(command_buffer, bench.image(g), bench.image(x), None, destination)
    finish(command_buffer)
    numbers_of = tuple(chosen.values())
    divisor, contrast = numbers_of[:3], numbers_of[3:]
    place = Axis(4, 4), Axis(6, 4), int(edge_mode)
    expected = {
        MPSCNNSpatialNormalization: lambda: oracle.spatial_gradient(g, x, *place, divisor),
        MPSCNNLocalContrastNormalization: lambda: oracle.local_contrast_gradient(g, x, *place, divisor, contrast),
        MPSCNNCrossChannelNormalization: lambda: oracle.cross_channel_gradient(g, x, 4, divisor),
    }[kind]()
    assert_close(numbers(destination), expected, 1e-5)


# --- misuse -----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("kind", OVER_PIXELS)
@pytest.mark.parametrize("name", ["kernel_width", "kernel_height"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "3"])
def test_bad_windows(kind: Any, name: str, value: Any) -> None:
    start = f"^{kind.__name__}: {name} must be an integer of at least 1, got {re.escape(repr(value))}"
    with pytest.raises(MPSArgumentError, match=start):
        kind(CPU, **{"kernel_width": 3, "kernel_height": 3, name: value})


@pytest.mark.parametrize("kind", OVER_PIXELS)
def test_windows_are_square(kind: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: kernel_height must equal kernel_width, 3.*got 5"):
        kind(CPU, 3, 5)


@in_one_test
@pytest.mark.parametrize("kind", OVER_CHANNELS)
@pytest.mark.parametrize("value", [0, -3, 1.5, True, None])
def test_bad_channel_windows(kind: Any, value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: kernel_size must be an integer of at least 1"):
        kind(CPU, value)


@in_one_test
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 10**400, True, None, "1", 1j, torch.tensor(1.0)])
@pytest.mark.parametrize(("kind", "size", "defaults"), KINDS)
def test_bad_parameters(kind: Any, size: tuple[int, ...], defaults: dict[str, float], value: Any) -> None:
    kernel = kind(CPU, *size)
    kernel.label = "here"
    for name in defaults:
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'here': {name} must be a finite number"):
            setattr(kernel, name, value)
    assert {name: getattr(kernel, name) for name in defaults} == defaults


@pytest.mark.parametrize(("kind", "size", "defaults"), KINDS)
def test_negative_parameters(kind: Any, size: tuple[int, ...], defaults: dict[str, float]) -> None:
    """Only where the header says so, that is for alpha of the normalizations by squares."""
    kernel = kind(CPU, *size)
    for name in defaults:
        if name == "alpha" and defaults is ENERGY:
            with pytest.raises(MPSArgumentError, match="alpha must be a finite number of at least 0, got -0.5"):
                setattr(kernel, name, -0.5)
        else:
            setattr(kernel, name, -0.5)
            assert getattr(kernel, name) == -0.5


@pytest.mark.parametrize(("kind", "gradient_kind", "size", "defaults"), PAIRS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_gradient_has_no_stride(kind: Any, gradient_kind: Any, size: Any, defaults: Any, axis: str) -> None:
    bench = Bench(CPU)
    gradient = gradient_kind(CPU, *size)
    setattr(gradient, f"secondary_stride_in_pixels_{axis}", 2)
    image, destination = bench.image(np.ones((1, 4, 3, 3))), bench.empty((1, 4, 3, 3))
    with pytest.raises(
        MPSArgumentError, match=f"^{gradient_kind.__name__}: secondary_stride_in_pixels_{axis} must be 1"
    ):
        gradient.encode(bench.command_buffer(), image, image, None, destination)
