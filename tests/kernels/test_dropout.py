"""Dropout: reproducible masks, what the state shows of them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, encode, finish, keep_results, numbers
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError, MTLCommandBufferError
from openmps.kernels.dropout import MPSCNNDropout, MPSCNNDropoutGradient
from openmps.runtime.devices import mtl_device
from openmps.types import MTLSize
from oracles import dropout as oracle

CPU = mtl_device("cpu")
EACH = MTLSize(1, 1, 1)


def _dropped(bench: Bench, kernel: MPSCNNDropout, x: np.ndarray) -> tuple[np.ndarray, Any]:
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, bench.batch(x), destination_state_is_temporary=False)
    finish(command_buffer)
    assert states is not None
    return numbers(result), states


@pytest.mark.parametrize("strides", [(1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_masks(strides: tuple[int, int, int], device: torch.device) -> None:
    """A pure function of seed, encode and place; the state shows it as ``[images, height, width, channels]``."""
    bench = Bench.on(device)
    shape = (2, 5, 3, 4)
    kernel = MPSCNNDropout(bench.device, 0.4, 2**40 + 3, MTLSize(*strides))
    for step in range(3):
        found, states = _dropped(bench, kernel, np.ones(shape))
        mask = oracle.mask(shape, 0.4, 2**40 + 3, step, strides=strides)
        np.testing.assert_array_equal(found, np.broadcast_to(mask, shape) * np.float32(1 / 0.4))
        data = states[0].mask_data()
        assert data.dtype == np.uint8
        np.testing.assert_array_equal(data, mask.transpose(0, 2, 3, 1))


def test_reproducible(device: torch.device, rng: np.random.Generator) -> None:
    """Fresh kernels of one seed agree; seeds and steps differ; a copy goes on where its original stands."""
    bench = Bench.on(device)
    x = rng.normal(size=(2, 8, 4, 4))
    first, again, other = (MPSCNNDropout(bench.device, 0.5, seed, EACH) for seed in (7, 7, 8))
    one, _ = _dropped(bench, first, x)
    np.testing.assert_array_equal(_dropped(bench, again, x)[0], one)
    assert (_dropped(bench, other, x)[0] != one).any()
    twin = first.copy()
    two, _ = _dropped(bench, first, x)
    assert (two != one).any()
    np.testing.assert_array_equal(_dropped(bench, twin, x)[0], two)


def test_one_state_for_the_batch(device: torch.device) -> None:
    bench = Bench.on(device)
    _, states = _dropped(bench, MPSCNNDropout(bench.device, 0.5, 1, EACH), np.ones((3, 2, 2, 2)))
    assert len(states) == 3
    assert states[0] is states[2]
    assert states[0].mask_data().shape == (3, 2, 2, 2)


def test_without_a_state_it_drops_as_well(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNDropout(bench.device, 0.5, 1, EACH)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, bench.image(np.ones((1, 4, 8, 8))))
    finish(command_buffer)
    assert set(np.unique(numbers(result))) == {0.0, 2.0}


def test_infinities_are_dropped_too(device: torch.device) -> None:
    bench = Bench.on(device)
    found, states = _dropped(bench, MPSCNNDropout(bench.device, 0.5, 1, EACH), np.full((1, 4, 4, 4), np.inf))
    mask = states[0].mask_data().transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found, np.where(mask, np.inf, 0))


def test_the_gradient_uses_the_states_mask(device: torch.device) -> None:
    """It draws nothing itself: its own seed does not matter."""
    bench = Bench.on(device)
    found, states = _dropped(bench, MPSCNNDropout(bench.device, 0.5, 1, EACH), np.ones((2, 4, 4, 4)))
    gradient = MPSCNNDropoutGradient(bench.device, 0.5, 999, EACH)
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    ones = bench.batch(np.ones((2, 4, 4, 4)))
    flow = gradient.encode_batch(command_buffer, ones, ones, states)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(flow), found)


def test_properties() -> None:
    for kind in (MPSCNNDropout, MPSCNNDropoutGradient):
        kernel = kind(CPU, 0.25, 11, MTLSize(1, 0, 1))
        assert (kernel.keep_probability, kernel.seed) == (0.25, 11)
        assert kernel.mask_stride_in_pixels == MTLSize(1, 0, 1)
        for name in ("keep_probability", "seed", "mask_stride_in_pixels"):
            with pytest.raises(AttributeError):
                setattr(kernel, name, 1)


@in_one_test
@pytest.mark.parametrize("kind", [MPSCNNDropout, MPSCNNDropoutGradient])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.0, 1, EACH), MPSArgumentError, r"keep_probability must lie in \(0, 1\]"),
        ((1.5, 1, EACH), MPSArgumentError, "keep_probability must lie in"),
        ((float("nan"), 1, EACH), MPSArgumentError, "keep_probability must lie in"),
        (("half", 1, EACH), MPSArgumentError, "keep_probability must lie in"),
        ((0.5, -1, EACH), MPSArgumentError, "seed must be an integer of 0 to"),
        ((0.5, 2**64, EACH), MPSArgumentError, "seed must be an integer of 0 to"),
        ((0.5, 1.5, EACH), MPSArgumentError, "seed must be an integer of 0 to"),
        ((0.5, 1, (1, 1, 1)), MPSTypeError, "mask_stride_in_pixels must be an MTLSize"),
        ((0.5, 1, MTLSize(2, 1, 1)), MPSArgumentError, "mask_stride_in_pixels must be 0 or 1 on each axis"),
    ],
)
def test_bad_arguments(kind: Any, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{kind.__name__}: {message}"):
        kind(CPU, *arguments)


def test_no_mask_before_the_encode() -> None:
    bench = Bench(CPU)
    state: Any = MPSCNNDropout(CPU, 0.5, 1, EACH).result_state(bench.empty((1, 1, 2, 2)))
    with pytest.raises(
        MPSArgumentError, match="^MPSCNNDropoutGradientState: mask_data is there once the forward encode"
    ):
        state.mask_data()


def test_gradient_without_the_right_state() -> None:
    bench = Bench(CPU)
    kernel, gradient = MPSCNNDropout(CPU, 0.5, 1, EACH), MPSCNNDropoutGradient(CPU, 0.5, 1, EACH)
    gradient.label = "d"
    images = bench.batch(np.ones((3, 2, 2, 2)))
    destination = bench.batch(np.ones((2, 2, 2, 2)))
    command_buffer = bench.command_buffer()
    _, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    assert states is not None
    with pytest.raises(
        MPSArgumentError, match="^MPSCNNDropoutGradient 'd': gradient_state is needed: the mask lies in"
    ):
        gradient.encode_batch(command_buffer, images[:2], images[:2], None, destination)
    message = r"^MPSCNNDropoutGradient 'd': gradient_state must hold 2 image\(s\) of .*, got 3 image\(s\)"
    with pytest.raises(MPSArgumentError, match=message):
        gradient.encode_batch(command_buffer, images[:2], images[:2], states[:2], destination)
    larger = bench.batch(np.ones((3, 2, 3, 2)))
    with pytest.raises(MPSArgumentError, match=r"gradient_state must hold 3 image\(s\) of \(2, 3, 2\)"):
        gradient.encode_batch(command_buffer, larger, larger, states, bench.batch(np.ones((3, 2, 3, 2))))


def test_a_refused_encode_draws_no_mask(device: torch.device) -> None:
    """The count of encodes, and with it the masks to come, stays as it is when an encode raises."""
    bench = Bench.on(device)
    x = np.ones((1, 4, 4, 4))
    kernel, other = (MPSCNNDropout(bench.device, 0.5, 1, EACH) for _ in range(2))
    done = bench.command_buffer()
    finish(done)
    with pytest.raises(MTLCommandBufferError):
        encode(kernel, done, [bench.image(x)])
    with pytest.raises(MPSArgumentError):
        encode(kernel, bench.command_buffer(), [bench.image(x)], bench.empty((1, 2, 4, 4)))
    np.testing.assert_array_equal(_dropped(bench, kernel, x)[0], _dropped(bench, other, x)[0])
