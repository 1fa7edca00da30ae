"""The Gram matrix: its shape, alpha on both sides, what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close
from openmps.core.state.gradient import MPSNNGradientState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.gram_matrix import MPSNNGramMatrixCalculation, MPSNNGramMatrixCalculationGradient
from openmps.runtime.devices import mtl_device
from openmps.types import MPSOffset, MTLOrigin, MTLRegion, MTLSize
from oracles import gram_matrix as oracle

CPU = mtl_device("cpu")


def test_defaults() -> None:
    for kind in (MPSNNGramMatrixCalculation, MPSNNGramMatrixCalculationGradient):
        assert kind(CPU).alpha == 1.0
        kernel = kind(CPU, alpha=0.25)
        assert kernel.alpha == 0.25
        kernel.alpha = np.float32(3)
        assert kernel.alpha == 3.0
        assert copy.copy(kernel).alpha == 3.0
    assert type(MPSNNGramMatrixCalculation(CPU).result_state(Bench(CPU).empty((1, 2, 2, 2)))) is MPSNNGradientState


@pytest.mark.parametrize("value", ["1", None, True])
def test_alpha_is_a_number(value: Any) -> None:
    for kind in (MPSNNGramMatrixCalculation, MPSNNGramMatrixCalculationGradient):
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: alpha must be a number"):
            kind(CPU, value)
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: alpha must be a number"):
            kind(CPU).alpha = value


def test_small_numbers(device: torch.device) -> None:
    """Channels (1, 2) and (3, 4): products 5, 11, 25. One channel on the x axis, the other a feature channel."""
    bench = Bench.on(device)
    image = bench.image(np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1))
    kernel = MPSNNGramMatrixCalculation(bench.device, 0.5)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    assert (result.width, result.height, result.feature_channels) == (2, 1, 2)
    gradient = MPSNNGramMatrixCalculationGradient(bench.device)
    keep_results(gradient)
    flow = bench.image(np.array([[0.0, 1.0], [0.0, 0.0]]).reshape(1, 2, 1, 2))
    back = gradient.encode(command_buffer, flow, image, state)
    finish(command_buffer)
    assert numbers(result).tolist() == [[[[2.5, 5.5]], [[5.5, 12.5]]]]
    assert numbers(back).ravel().tolist() == [1.5, 2.0, 0.5, 1.0]


def test_alpha_comes_from_the_state_whenever_there_is_one(device: torch.device, rng: np.random.Generator) -> None:
    """Also with a destination given; without a state the kernel's own is used."""
    bench = Bench.on(device)
    x, g = rng.normal(size=(2, 3, 2, 4)), rng.normal(size=(2, 3, 1, 3))
    x, g = (each.astype(np.float32).astype(np.float64) for each in (x, g))
    kernel = MPSNNGramMatrixCalculation(bench.device, -0.5)
    gradient = MPSNNGramMatrixCalculationGradient(bench.device, 8.0)
    keep_results(gradient)
    images, flows, command_buffer = bench.batch(x), bench.batch(g), bench.command_buffer()
    _, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    kernel.alpha = 100.0
    by_hand, with_state = bench.batch(np.zeros_like(x)), bench.batch(np.zeros_like(x))
    gradient.encode_batch(command_buffer, flows, images, None, by_hand)
    assert gradient.alpha == 8.0
    gradient.encode_batch(command_buffer, flows, images, states, with_state)
    assert gradient.alpha == -0.5
    gradient.alpha = 3.0
    returned = gradient.encode_batch(command_buffer, flows, images, states)
    assert gradient.alpha == -0.5
    finish(command_buffer)
    assert_close(numbers(by_hand), oracle.gradient(g, x, 8.0), 1e-5)
    assert_close(numbers(with_state), oracle.gradient(g, x, -0.5), 1e-5)
    assert_close(numbers(returned), oracle.gradient(g, x, -0.5), 1e-5)


def test_states_of_different_alphas() -> None:
    bench = Bench(CPU)
    kernel, gradient = MPSNNGramMatrixCalculation(CPU), MPSNNGramMatrixCalculationGradient(CPU)
    gradient.label = "g"
    image, command_buffer = bench.empty((1, 3, 2, 2)), bench.command_buffer()
    states = []
    for alpha in (1.0, 2.0):
        kernel.alpha = alpha
        states.append(kernel.encode(command_buffer, image, destination_state_is_temporary=False)[1])
    flows = [bench.empty((1, 3, 1, 3)) for _ in range(2)]
    rule = "^MPSNNGramMatrixCalculationGradient 'g': gradient_states must come from forward encodes with the same "
    with pytest.raises(MPSArgumentError, match=rule + "properties"):
        gradient.encode_batch(command_buffer, flows, [image, image], states)
    with pytest.raises(MPSArgumentError, match=rule + "alpha"):
        gradient.encode_batch(
            command_buffer, flows, [image, image], states, [bench.empty((1, 3, 2, 2)) for _ in range(2)]
        )


def test_channels_read_make_the_width(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(2, 9, 2, 2)).astype(np.float32).astype(np.float64)
    kernel = MPSNNGramMatrixCalculation(bench.device)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 3
    assert_close(run(bench, kernel, [bench.batch(x)]), oracle.forward(x[:, 4:7], 1.0), 1e-5)


def test_the_result_is_placed_but_not_cut(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(1, 3, 4, 4)).astype(np.float32).astype(np.float64)
    kernel = MPSNNGramMatrixCalculation(bench.device)
    kernel.label = "k"
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(9, 9, 1))
    wide, command_buffer = bench.filled((1, 3, 4, 7), -7.0), bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), wide)
    finish(command_buffer)
    expected = np.full((1, 3, 4, 7), -7.0)
    expected[:, :, 1:2, 2:5] = oracle.forward(x, 1.0)
    assert_close(numbers(wide), expected, 1e-5)
    rule = r"^MPSNNGramMatrixCalculation 'k': destination_image must have room for 3x1 pixels .*, got 2x1"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.image(x), bench.empty((1, 3, 4, 4)))
    kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(2, 1, 1))
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.image(x), wide)


@pytest.mark.parametrize("offset", [MPSOffset(1, 0, 0), MPSOffset(0, -1, 0)])
def test_there_is_no_offset(offset: MPSOffset) -> None:
    bench = Bench(CPU)
    kernel = MPSNNGramMatrixCalculation(CPU)
    kernel.offset = offset
    rule = "^MPSNNGramMatrixCalculation: offset must be 0 in x and y: the sums run over the whole image"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.empty((1, 3, 2, 2)), bench.empty((1, 3, 1, 3)))
    kernel.encode(bench.command_buffer(), bench.empty((1, 3, 2, 2)))
    assert (kernel.offset.x, kernel.offset.y) == (0, 0), "an encode that returns its result sets it"


@pytest.mark.parametrize("shape", [(1, 3, 1, 2), (1, 3, 2, 3), (1, 3, 1, 4)])
def test_gradients_of_another_size(shape: Any) -> None:
    """By hand: one row, one column a feature channel of the source."""
    bench = Bench(CPU)
    gradient = MPSNNGramMatrixCalculationGradient(CPU)
    image, destination = bench.empty((1, 3, 4, 4)), bench.empty((1, 3, 4, 4))
    rule = r"^MPSNNGramMatrixCalculationGradient: source_gradient must have 3x1 pixels \(width x height\)"
    with pytest.raises(MPSArgumentError, match=rule):
        gradient.encode(bench.command_buffer(), bench.empty(shape), image, None, destination)
    gradient.encode(bench.command_buffer(), bench.empty((1, 3, 1, 3)), image, None, destination)
