"""Ends of blocks by second moments: against the oracle, finite differences, and the operations one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from in_one_test import in_one_test
from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization.batch_normalization import BatchMoments, DataGradient
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.normalization.projected_neuron import SpreadSums
from openmps.ops.normalization.second_moments import FoldByMoments, MomentsEnd, MomentsGradient, MomentsPassed
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.pooling.pooling import AveragePoolingGradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from oracles import finite_difference
from oracles import second_moments as oracle

EPSILON = 1e-3
RELU = Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0)
NEURONS = [
    RELU,
    Neuron(MPSCNNNeuronType.RELU, 0.25, 0.0, 0.0),
    Neuron(MPSCNNNeuronType.RELU_N, 0.0, 0.75, 0.0),
]
SHAPES = [(2, 3, 7, 2, 3), (1, 1, 2, 3, 2), (4, 5, 10, 1, 1)]
"""Images, channels of the source and of the result, height, width."""
HALF = torch.float16


class Block:
    """Numbers of one block's end."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 1, far: float = 0.0) -> None:
        self.images, self.inputs, self.outputs, self.height, self.width = shape
        self._generator, self._dtype = torch.Generator().manual_seed(seed), dtype
        self.x = (self.image(self.inputs) + far).to(dtype)
        self.other, self.gradient, self.second = (self.image(self.outputs) for _ in range(3))
        self.weights = self._drawn(self.outputs, 1, 1, self.inputs).to(dtype)
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        self.biases, self.beta = (self._drawn(self.outputs).to(exact) for _ in range(2))
        self.gamma = self._drawn(self.outputs).to(exact) + 1.5

    def _drawn(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator, dtype=torch.float64)

    def image(self, channels: int) -> Tensor:
        """A random one."""
        return self._drawn(self.images, self.height, self.width, channels).to(self._dtype).permute(0, 3, 1, 2)

    @property
    def window(self) -> Window:
        """Of one pixel."""
        return Window(x=Axis(self.width, self.width, 1), y=Axis(self.height, self.height, 1))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Source, weights, biases, gamma and beta for the oracle."""
        weights = self.weights.flatten(1)
        return tuple(each.double().numpy() for each in (self.x, weights, self.biases, self.gamma, self.beta))

    def fold(self, *, has_biases: bool = True) -> tuple[Any, ...]:
        """What `FoldByMoments` gives."""
        biases = self.biases if has_biases else None
        return FoldByMoments(EPSILON).run((True,) * 7, self.x, self.weights, biases, self.gamma, self.beta)

    def back(self, flow: Tensor, sums: Tensor, folded: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `MomentsGradient` gives."""
        _, _, variance, _, _, means, cross = folded
        given = flow, sums, self.x, self.weights, self.gamma, variance, means, cross
        return MomentsGradient(EPSILON).run((True,) * 5, *given)


def assert_near(found: Tensor, expected: Any, bound: float) -> None:
    """Within ``bound`` of the largest number."""
    expected = torch.as_tensor(expected).double()
    assert found.shape == expected.shape
    assert float((found.double() - expected).abs().max()) <= bound * float(expected.abs().max() + 1e-3)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_oracle(shape: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    block = Block(shape, dtype)
    folded = block.fold()
    x, weights, biases, gamma, _ = block.arrays
    z = oracle.product(x, weights, biases)
    assert_near(folded[0], z.mean((0, 2, 3)), bound)
    assert_near(folded[2], z.var((0, 2, 3)), bound)
    assert not folded[1].any()
    expected = oracle.forward(*block.arrays, block.other.double().numpy(), EPSILON)
    y, kept = MomentsEnd(RELU, False).run((True, True), block.x, *folded[3:5], block.other)
    assert kept is not None
    assert_near(y, np.maximum(expected, 0.0), bound)
    flow, sums = MomentsPassed(RELU, False, False).run((True, True), kept, block.gradient)
    g = np.where(expected >= 0.0, block.gradient.double().numpy(), 0.0)
    slow = oracle.gradients(g, x, weights, biases, gamma, EPSILON)
    scale = max(float(np.abs(each).max()) for each in slow)
    for one, other in zip(block.back(flow, sums, folded), slow, strict=True):
        assert abs(one.double().numpy().reshape(other.shape) - other).max() <= 10 * bound * scale


def test_finite_differences() -> None:
    block = Block((2, 2, 3, 2, 2), torch.float64)
    folded = block.fold()
    g = block.gradient
    found = block.back(g, g.sum((0, 2, 3))[None], folded)
    given = list(block.arrays)
    other = np.zeros(g.shape)

    def loss(place: int, value: np.ndarray) -> float:
        numbers = [*given[:place], value, *given[place + 1 :]]
        return float((oracle.forward(*numbers, other, EPSILON) * g.numpy()).sum())

    for place, one in enumerate(found):
        expected = finite_difference.gradient(lambda value, place=place: loss(place, value), given[place])
        np.testing.assert_allclose(one.numpy().reshape(expected.shape), expected, rtol=1e-5, atol=1e-7)


def stepwise(block: Block, neuron: Neuron, *, stores: bool, biases: Tensor | None) -> list[Tensor]:
    """Result, what passes, and the gradients, by the operations that the rewrite replaces."""
    zero = MPSImageEdgeMode.ZERO
    x3: Any = Convolution(block.window, zero).run((True,), block.x, block.weights, biases)
    x3 = x3.to(HALF) if stores else x3
    rows: Any = BatchMoments().run((True,) * 3, x3)
    op = NormalizedNeuron(EPSILON, neuron, stores, stores, stores, stores)
    y, kept = op.run((True, True), x3, *rows, block.gamma, block.beta, block.other)
    passed = PassedSums(EPSILON, neuron, stores, stores)
    flow, gamma, beta = passed.run((True,) * 3, kept, x3, *rows, block.gradient, block.second)
    pixels = x3.numel() // x3.shape[1]
    dx = DataGradient(EPSILON).run((True,), flow, x3, *rows, block.gamma, gamma, beta, pixels)
    dx = dx.to(HALF) if stores else dx
    back: Any = ConvolutionGradient(block.window, zero).run((True,) * 3, dx, block.x, block.weights)
    return [y, flow, rows[0] + rows[1], rows[2], back[0], back[1], gamma, beta]


@in_one_test
@pytest.mark.parametrize("has_biases", [True, False])
@pytest.mark.parametrize("neuron", NEURONS, ids=str)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (HALF, 6e-3)], ids=str)
def test_the_steps_one_by_one(dtype: torch.dtype, bound: float, neuron: Neuron, has_biases: bool) -> None:
    block, stores = Block((5, 16, 40, 6, 7), dtype), dtype == HALF
    expected = stepwise(block, neuron, stores=stores, biases=block.biases if has_biases else None)
    folded = block.fold(has_biases=has_biases)
    y, kept = MomentsEnd(neuron, stores).run((True, True), block.x, *folded[3:5], block.other)
    # What lies at the rectifier's edge may fall on either side: the steps' own says where the gradient passes.
    assert int(((y == 0) != (expected[0] == 0)).sum()) <= (10 if stores else 0)
    flow, sums = MomentsPassed(neuron, stores, stores).run((True, True), kept, block.gradient, block.second)
    assert int((flow != expected[1]).sum()) <= (10 if stores else 0)
    sums = expected[1].float().sum((0, 2, 3))[None]
    back = block.back(expected[1], sums, folded)
    found = [y, folded[0], folded[2], back[0], back[1], back[3], back[4]]
    for one, other in zip(found, [expected[0], *expected[2:]], strict=True):
        assert_near(one.float(), other.float(), bound)
    assert y.dtype == expected[0].dtype
    assert not back[2].any()


@pytest.mark.parametrize("far", [0.0, 1.0, 8.0, 100.0])
def test_means_of_several_deviations(far: float) -> None:
    """The slow form takes the mean off first: it loses nothing."""
    exact, block = Block((8, 6, 12, 9, 7), torch.float64, far=far), Block((8, 6, 12, 9, 7), torch.float32, far=far)
    exact.x = block.x.double()
    exact.weights, exact.biases = block.weights.double(), block.biases.double()
    for place in (2, 6):
        assert_near(block.fold()[place], exact.fold()[place], 1e-5)


def test_rounded_weights_move_no_mean() -> None:
    """However far the mean of the source is: shifts are made of the weights as they are rounded."""
    block = Block((8, 6, 12, 9, 7), HALF, far=50.0)
    _, _, _, weights, shift, means, _ = block.fold()
    mean = weights.flatten(1).double() @ means.double() + shift.double()
    assert weights.dtype == HALF
    assert_near(mean, block.beta, 1e-5 * 50.0)


def test_a_projection_is_another_image() -> None:
    block, second = Block((2, 3, 7, 2, 3), torch.float64), Block((2, 2, 7, 2, 3), torch.float64, seed=2)
    one, other = block.fold(), second.fold()
    projected = MomentsEnd(RELU, False).run((True, True), block.x, *one[3:5], second.x, *other[3:5])
    x, weights, biases, gamma, beta = second.arrays
    z = oracle.forward(x, weights, biases, gamma, beta, np.zeros(second.other.shape), EPSILON)
    added = MomentsEnd(RELU, False).run((True, True), block.x, *one[3:5], torch.as_tensor(z))
    for found, expected in zip(projected, added, strict=True):
        assert found is not None
        assert expected is not None
        assert_near(found, expected, 1e-12)


@pytest.mark.parametrize("rounds", [True, False])
def test_the_gradient_of_a_mean(rounds: bool) -> None:
    block = Block((2, 3, 7, 4, 3), torch.float32)
    window = Window(x=Axis(3, 1, 3, 1, 1, 1), y=Axis(4, 1, 4, 1, 1, 2))
    spread = AveragePoolingGradient(window, MPSImageEdgeMode.ZERO, (0, 0))
    gradient = block.gradient[:, :, :1, :1]
    op = SpreadSums(PassedSums(EPSILON, RELU, False, rounds), spread, rounds)
    rows = [torch.zeros(7), torch.zeros(7), torch.ones(7)]
    expected, _, beta = op.run((True,) * 3, block.other, block.other, *rows, gradient)
    flow, sums = MomentsPassed(RELU, rounds, rounds, spread).run((True, True), block.other, gradient)
    assert torch.equal(flow, expected)
    torch.testing.assert_close(sums.sum(0), beta)


def test_a_rectified_result_says_where_gradients_pass() -> None:
    """As float16, where the bits were not kept; what is not a number passes."""
    kept = torch.tensor([0.0, 1.0, float("nan"), 6e-8], dtype=HALF).view(1, 1, 2, 2)
    flow, sums = MomentsPassed(RELU, False, False).run((True, True), kept, torch.ones(1, 1, 2, 2))
    assert flow.flatten().tolist() == [0.0, 1.0, 1.0, 1.0]
    assert sums.tolist() == [[3.0]]


def test_what_nobody_wants_is_not_made() -> None:
    block = Block((2, 3, 7, 2, 3), torch.float32)
    folded = FoldByMoments(EPSILON).run(
        (True, False, *[True] * 5), block.x, block.weights, None, block.gamma, block.beta
    )
    assert folded[1] is None
    _, _, variance, _, _, means, cross = folded
    given = block.gradient, block.gradient.sum((0, 2, 3))[None], block.x, block.weights, block.gamma
    found = MomentsGradient(EPSILON).run((False, True, False, True, True), *given, variance, means, cross)
    assert found.source is None
    assert found.biases is None
