"""Upsampling: golden numbers, factors, clip rectangles with offsets, what the state tells the gradient, misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run, train
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.upsampling import (
    MPSCNNUpsamplingBilinear,
    MPSCNNUpsamplingBilinearGradient,
    MPSCNNUpsamplingNearest,
    MPSCNNUpsamplingNearestGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.upsampling import BILINEAR, NEAREST

CPU = mtl_device("cpu")
KINDS = [MPSCNNUpsamplingNearest, MPSCNNUpsamplingBilinear]
GRADIENTS = [MPSCNNUpsamplingNearestGradient, MPSCNNUpsamplingBilinearGradient]
UNTOUCHED = -7.0


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda device: MPSCNNUpsamplingNearest(device, 2, 1), [0, 0, 10, 10, 20, 20]),
        (lambda device: MPSCNNUpsamplingBilinear(device, 2, 1), [0, 5, 10, 15, 20, 20]),
        (lambda device: MPSCNNUpsamplingBilinear(device, 2, 1, True), [0, 4, 8, 12, 16, 20]),
    ],
)
def test_golden_numbers(make: Any, expected: list[float], device: torch.device) -> None:
    bench = Bench.on(device)
    assert_digits(run(bench, make(bench.device), [_line(bench, [0, 10, 20])]).ravel(), expected, 5)


@pytest.mark.parametrize(
    ("make", "gradient", "expected"),
    [
        (
            lambda device: MPSCNNUpsamplingNearest(device, 2, 1),
            lambda device: MPSCNNUpsamplingNearestGradient(device, 2, 1),
            [2, 2, 2],
        ),
        (
            lambda device: MPSCNNUpsamplingBilinear(device, 2, 1),
            lambda device: MPSCNNUpsamplingBilinearGradient(device, 2, 1),
            [1.5, 2, 2.5],
        ),
        (
            lambda device: MPSCNNUpsamplingBilinear(device, 2, 1, align_corners=True),
            lambda device: MPSCNNUpsamplingBilinearGradient(device, 2, 1),
            [1.8, 2.4, 1.8],
        ),
    ],
)
@pytest.mark.parametrize("returns", [True, False])
def test_golden_gradients_of_ones(
    make: Any, gradient: Any, expected: list[float], returns: bool, device: torch.device
) -> None:
    """The state tells whether corners were aligned, with a destination given, too."""
    bench = Bench.on(device)
    kernel, backward = make(bench.device), gradient(bench.device)
    keep_results(kernel)
    keep_results(backward)
    source, command_buffer = _line(bench, [0, 10, 20]), bench.command_buffer()
    _, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
    destination = bench.empty((1, 1, 1, 3))
    found = backward.encode(command_buffer, _line(bench, [1] * 6), source, state, None if returns else destination)
    finish(command_buffer)
    assert_digits(numbers(found).ravel(), expected, 5)


def test_without_a_state_corners_are_not_aligned(device: torch.device) -> None:
    bench = Bench.on(device)
    backward = MPSCNNUpsamplingBilinearGradient(bench.device, 2, 1)
    destination, command_buffer = bench.empty((1, 1, 1, 3)), bench.command_buffer()
    backward.encode(command_buffer, _line(bench, [1] * 6), _line(bench, [0] * 3), None, destination)
    finish(command_buffer)
    assert_digits(numbers(destination).ravel(), [1.5, 2, 2.5], 5)


@pytest.mark.parametrize("kind", [*KINDS, *GRADIENTS])
def test_factors(kind: Any) -> None:
    kernel = kind(CPU, 3, 2)
    assert (kernel.scale_factor_x, kernel.scale_factor_y) == (3.0, 2.0)
    assert isinstance(kernel.scale_factor_x, float)
    for name in ("scale_factor_x", "scale_factor_y"):
        with pytest.raises(AttributeError):
            setattr(kernel, name, 1.0)


def test_align_corners() -> None:
    assert MPSCNNUpsamplingNearest(CPU, 2, 2).align_corners is False
    assert MPSCNNUpsamplingBilinear(CPU, 2, 2).align_corners is False
    assert MPSCNNUpsamplingBilinear(CPU, 2, 2, align_corners=True).align_corners is True


@pytest.mark.parametrize("kind", KINDS)
def test_the_padding_policy_means_nothing(kind: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    expected = run(bench, kind(bench.device, 3, 2), [bench.image(x)])
    assert expected.shape == (1, 1, 6, 12)
    for method in (MPSNNPaddingMethod.SIZE_VALID_ONLY, MPSNNPaddingMethod.SIZE_FULL):
        kernel = kind(bench.device, 3, 2)
        kernel.padding, kernel.offset = MPSNNDefaultPadding(method), MPSOffset(2, 2, 0)
        np.testing.assert_array_equal(run(bench, kernel, [bench.image(x)]), expected)
        assert kernel.offset == MPSOffset(0, 0, 0)


@in_one_test
@pytest.mark.parametrize("sample", [s for s in NEAREST + BILINEAR if "corners" not in s.name], ids=str)
def test_a_clip_rectangle_at_a_multiple_of_the_factor(sample: Any, device: torch.device) -> None:
    """It belongs to an offset of that many source pixels; its gradient is that of the part written."""
    bench = Bench.on(device)
    sources = sample.sources()
    whole = train(bench, sample, sources, bench.batch)
    factor_x, factor_y = int(whole.kernel.scale_factor_x), int(whole.kernel.scale_factor_y)
    images, channels, height, width = whole.result.shape
    column, row = (sources[0].shape[3] - 1) // 2, sources[0].shape[2] - 1
    x, y = column * factor_x, row * factor_y
    w, h = max(1, width - x - 1), max(1, height - y - 1)
    flow = sample.random("flow").normal(size=(images, channels, h + 3, w + 2))

    def place(kernel: Any) -> None:
        kernel.offset = MPSOffset(column, row, 0)
        kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(w, h, 1))

    found = train(
        bench,
        sample,
        sources,
        bench.batch,
        prepare=place,
        destination=lambda: bench.batch(np.full(flow.shape, UNTOUCHED)),
        incoming=flow,
    )
    expected = np.full(flow.shape, UNTOUCHED)
    expected[:, :, 2 : 2 + h, 1 : 1 + w] = whole.result[:, :, y : y + h, x : x + w]
    assert_close(found.result, expected, 2e-6)
    masked = np.zeros(whole.result.shape)
    masked[:, :, y : y + h, x : x + w] = flow[:, :, 2 : 2 + h, 1 : 1 + w]
    wanted = train(bench, sample, sources, bench.batch, incoming=masked)
    assert_close(found.gradients[0], wanted.gradients[0], 2e-6)


@pytest.mark.parametrize(
    ("kind", "edge", "expected"),
    [
        (MPSCNNUpsamplingNearest, MPSImageEdgeMode.ZERO, [0, 0, 4, 4, 8, 8, 0, 0]),
        (MPSCNNUpsamplingNearest, MPSImageEdgeMode.CLAMP, [4, 4, 4, 4, 8, 8, 8, 8]),
        (MPSCNNUpsamplingBilinear, MPSImageEdgeMode.ZERO, [0, 2, 4, 6, 8, 8, 0, 0]),
        (MPSCNNUpsamplingBilinear, MPSImageEdgeMode.CLAMP, [4, 4, 4, 6, 8, 8, 8, 8]),
    ],
)
def test_outside(kind: Any, edge: MPSImageEdgeMode, expected: list[float], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = kind(bench.device, 2, 1)
    assert kernel.edge_mode is MPSImageEdgeMode.ZERO
    kernel.edge_mode, kernel.offset = edge, MPSOffset(-1, 0, 0)
    destination, command_buffer = bench.empty((1, 1, 1, 8)), bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, [4, 8]), destination)
    finish(command_buffer)
    assert_digits(numbers(destination).ravel(), expected, 5)


@pytest.mark.parametrize("kind", GRADIENTS)
def test_some_pixels_of_the_gradient(kind: Any, device: torch.device) -> None:
    """`primary_offset` drops gradient pixels; `secondary_offset` is the source pixel of the first one used."""
    bench = Bench.on(device)
    flow = np.arange(1.0, 9.0)
    found: list[np.ndarray] = []
    for values, first, offset in ((flow, 2, 1), (np.where(np.arange(8) < 2, 0, flow), 0, 0)):
        backward = kind(bench.device, 2, 1)
        backward.primary_offset, backward.secondary_offset = MPSOffset(first, 0, 0), MPSOffset(offset, 0, 0)
        destination, command_buffer = bench.empty((1, 1, 1, 4)), bench.command_buffer()
        backward.encode(command_buffer, _line(bench, values), _line(bench, [0] * 4), None, destination)
        finish(command_buffer)
        found.append(numbers(destination))
    assert_close(*found, 1e-6)


# --- misuse ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("kind", [*KINDS, *GRADIENTS])
@pytest.mark.parametrize("value", [0, -2, 2.0, True, None])
def test_bad_factors(kind: Any, value: Any) -> None:
    for name, arguments in (("integer_scale_factor_x", (value, 1)), ("integer_scale_factor_y", (1, value))):
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: {name} must be an integer of at least 1, got"):
            kind(CPU, *arguments)


def test_the_state_of_another_factor_or_kind() -> None:
    bench = Bench(CPU)
    source, command_buffer = bench.empty((1, 1, 2, 2)), bench.command_buffer()
    kernel = MPSCNNUpsamplingBilinear(CPU, 2, 2)
    keep_results(kernel)
    result, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
    gradient = MPSCNNUpsamplingBilinearGradient(CPU, 4, 2)
    gradient.label = "g"
    rule = "^MPSCNNUpsamplingBilinearGradient 'g': gradient_state must come from upsampling by 4x2"
    with pytest.raises(MPSArgumentError, match=rule):
        gradient.encode(command_buffer, result, source, state)
    with pytest.raises(MPSArgumentError, match="gradient_state must come from an encode of MPSCNNUpsamplingNearest"):
        MPSCNNUpsamplingNearestGradient(CPU, 2, 2).encode(command_buffer, result, source, state)
    with pytest.raises(MPSTypeError, match="^MPSCNNUpsamplingBilinearGradient: gradient_state is needed"):
        MPSCNNUpsamplingBilinearGradient(CPU, 2, 2).encode(command_buffer, result, source)


def test_states_with_and_without_aligned_corners() -> None:
    bench = Bench(CPU)
    source, command_buffer = bench.empty((1, 1, 2, 2)), bench.command_buffer()
    pairs = [
        MPSCNNUpsamplingBilinear(CPU, 2, 2, align).encode(command_buffer, source, destination_state_is_temporary=False)
        for align in (False, True)
    ]
    gradient = MPSCNNUpsamplingBilinearGradient(CPU, 2, 2)
    flow = bench.images(np.zeros((2, 1, 4, 4)))
    sources = bench.images(np.zeros((2, 1, 2, 2)))
    states = [pair[1] for pair in pairs]  # type: ignore[misc]
    with pytest.raises(
        MPSArgumentError, match="gradient_states must come from .* same properties, got different param"
    ):
        gradient.encode_batch(command_buffer, flow, sources, states)
    with pytest.raises(MPSArgumentError, match="gradient_state must come from .* aligned in all states or in none"):
        gradient.encode_batch(command_buffer, flow, sources, states, bench.images(np.zeros((2, 1, 2, 2))))
