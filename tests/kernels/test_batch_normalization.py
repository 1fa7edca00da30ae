"""Batch normalization: the four stages over one state, in pieces, in flight, against oracle and torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, Bench, finish, keep_results, numbers, temporary_copy
from helpers import array, assert_close, assert_digits, inner
from measured import note_error
from openmps.core.kernel.plan import Plan
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.rows import (
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.vector import MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.errors import MPSLifetimeError
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationState,
    MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.optimizers import MPSNNOptimizerDescriptor, MPSNNOptimizerStochasticGradientDescent
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.types import (
    MPSCNNNeuronType,
    MPSImageEdgeMode,
    MPSNNRegularizationType,
    MPSOffset,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles import batch_normalization as oracle
from samples.batch_normalization import ChannelSource, activated, activated_gradient, rows
from samples.sample import exact

Array = np.ndarray
Neuron = MPSCNNNeuronType
EPSILON = 1e-3
TOLERANCE = 1e-5
SHAPE = (7, 5, 4, 3)
PIECES = [(7,), (1, 3, 2, 1), (4, 3)]
NEURONS = {
    "no neuron": None,
    "relu": MPSNNNeuronDescriptor(Neuron.RELU, 0.2),
    "tanh": MPSNNNeuronDescriptor(Neuron.TANH, 1.5, 0.5),
    "prelu": MPSNNNeuronDescriptor(Neuron.PRELU, data=[0.25, -0.5, 0.125, 2.0, 0.75]),
    "none": MPSNNNeuronDescriptor(Neuron.NONE),
}


def source(channels: int = SHAPE[1], epsilon: float | None = EPSILON, **changed: Any) -> ChannelSource:
    return ChannelSource(channels, epsilon, **(rows(channels) | changed))


def batch(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> tuple[Array, Array]:
    """Images and a gradient of their results."""
    spread = rng.normal(size=(1, shape[1], 1, 1)) * 2.0
    return exact(rng.normal(size=shape) * 2.0 + spread), exact(rng.normal(size=shape))


def row(buffer: Any) -> Array:
    return array(buffer.tensor(torch.float32))


@dataclass
class Stages:
    """The four kernels of one layer, keeping what they make."""

    bench: Bench
    fused: MPSNNNeuronDescriptor | None = None
    parameters: ChannelSource = field(default_factory=source)

    def __post_init__(self) -> None:
        device = self.bench.device
        self.statistics = MPSCNNBatchNormalizationStatistics(device)
        self.forward = MPSCNNBatchNormalization(device, self.parameters, self.fused)
        self.sums = MPSCNNBatchNormalizationStatisticsGradient(device, self.fused)
        self.backward = MPSCNNBatchNormalizationGradient(device, self.fused)
        keep_results(self.forward)
        keep_results(self.backward)

    def state(self, x: Array) -> MPSCNNBatchNormalizationState:
        state = self.forward.result_state(self.bench.image(x[:1]))
        assert isinstance(state, MPSCNNBatchNormalizationState)
        return state

    def step(self, command_buffer: Any, state: Any, x: Array, g: Array, pieces: Any, kind: Any = FLOAT32) -> Any:
        """All four stages over a batch in pieces; returns what reads results and gradients."""
        edges = list(pairwise(np.cumsum([0, *pieces])))
        images = [self.bench.batch(x[first:last], kind) for first, last in edges]
        flows = [self.bench.batch(g[first:last], kind) for first, last in edges]
        for each in images:
            assert self.statistics.encode_batch(command_buffer, each, state) is None
        results = [self.forward.encode_batch(command_buffer, each, state) for each in images]
        for flow, each in zip(flows, images, strict=True):
            assert self.sums.encode_batch(command_buffer, flow, each, state) is None
        found = [
            self.backward.encode_batch(command_buffer, flow, each, state)
            for flow, each in zip(flows, images, strict=True)
        ]
        return lambda: tuple(np.concatenate([numbers(each) for each in list_]) for list_ in (results, found))


@dataclass
class Expected:
    """What the oracle says of one training step."""

    mean: Array
    variance: Array
    result: Array
    gamma: Array
    beta: Array
    gradient: Array

    @classmethod
    def of(cls, x: Array, g: Array, fused: Any = None, p: dict[str, Array] | None = None) -> Expected:
        p = rows(x.shape[1]) if p is None else p
        mean, variance = oracle.moments(x)
        z = oracle.forward(x, mean, variance, p["gamma"], p["beta"], EPSILON)
        flow = activated_gradient(g, z, fused)
        gamma, beta = oracle.parameter_gradients(flow, x, mean, variance, EPSILON)
        gradient = oracle.gradient(flow, x, p["gamma"], EPSILON)
        return cls(mean, variance, activated(z, fused), gamma, beta, gradient)

    def check(self, state: Any, result: Array, gradient: Array, tolerance: float = TOLERANCE) -> None:
        assert_close(row(state.mean()), self.mean, TOLERANCE, "mean")
        assert_close(row(state.variance()), self.variance, TOLERANCE, "variance")
        assert_close(result, self.result, tolerance, "result")
        assert_close(row(state.gradient_for_gamma()), self.gamma, TOLERANCE, "gradient for gamma")
        assert_close(row(state.gradient_for_beta()), self.beta, TOLERANCE, "gradient for beta")
        assert_close(gradient, self.gradient, tolerance, "gradient")
        if tolerance == TOLERANCE:
            self._note(state, gradient)

    def _note(self, state: Any, gradient: Array) -> None:
        device = state.mean().device.torch_device
        seen = {
            MPSCNNBatchNormalizationStatistics: [(state.mean(), self.mean), (state.variance(), self.variance)],
            MPSCNNBatchNormalizationStatisticsGradient: [
                (state.gradient_for_gamma(), self.gamma), (state.gradient_for_beta(), self.beta)
            ],
        }  # fmt: skip
        for kind, parts in seen.items():
            for found, wanted in parts:
                note_error(kind, "forward", device, row(found), wanted)
        note_error(MPSCNNBatchNormalizationGradient, "forward", device, gradient, self.gradient)


# --- a training step -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("fused", NEURONS)
def test_a_step(pieces: tuple[int, ...], fused: str, device: torch.device, rng: np.random.Generator) -> None:
    """Pieces of unequal sizes give the numbers of the whole batch."""
    x, g = batch(rng)
    stages = Stages(Bench.on(device), NEURONS[fused])
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, pieces)
    finish(command_buffer)
    Expected.of(x, g, NEURONS[fused]).check(state, *read())


@pytest.mark.parametrize("shape", [(3, 1, 2, 2), (1, 3, 5, 1), (2, 4, 1, 1), (6, 8, 3, 2)], ids=str)
def test_channels_and_sizes(shape: tuple[int, ...], device: torch.device, rng: np.random.Generator) -> None:
    x, g = batch(rng, shape)
    stages = Stages(Bench.on(device), parameters=source(shape[1]))
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, [1] * shape[0])
    finish(command_buffer)
    Expected.of(x, g).check(state, *read())


@pytest.mark.parametrize("fused", ["no neuron", "tanh"])
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_a_step_against_torch(fused: str, pieces: tuple[int, ...], rng: np.random.Generator) -> None:
    """torch.nn.functional.batch_norm and its autograd, in float64."""
    x, g = batch(rng)
    p = rows(SHAPE[1])
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, p["gamma"], p["beta"])]
    z = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], True, 0.0, EPSILON)
    result = 1.5 * torch.tanh(0.5 * z) if fused == "tanh" else z
    result.backward(torch.tensor(g))
    stages = Stages(Bench.on(torch.device("cpu")), NEURONS[fused])
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, pieces)
    finish(command_buffer)
    mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    wanted = Expected(mean, variance, array(result), *(array(leaves[index].grad) for index in (1, 2, 0)))
    wanted.check(state, *read())


def test_half_precision_images(device: torch.device, rng: np.random.Generator) -> None:
    """Sums in float32, one rounding on store."""
    x, g = (each.astype(np.float16).astype(np.float64) for each in batch(rng))
    stages = Stages(Bench.on(device), NEURONS["relu"])
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (4, 3), FLOAT16)
    finish(command_buffer)
    Expected.of(x, g, NEURONS["relu"]).check(state, *read(), tolerance=2.0**-11 * 1.01)


@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_a_large_mean(pieces: tuple[int, ...], device: torch.device, rng: np.random.Generator) -> None:
    """A mean ten thousand times the deviation costs no digits."""
    x, g = batch(rng)
    x = exact(x * 0.25 + 4096.0)
    stages = Stages(Bench.on(device))
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, pieces)
    finish(command_buffer)
    Expected.of(x, g).check(state, *read())


def test_golden(device: torch.device) -> None:
    """One channel, 1 to 4, no parameters but epsilon."""
    x = np.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    g = np.array([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 2, 2)
    stages = Stages(Bench.on(device), parameters=ChannelSource(1, 1e-5))
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (1,))
    finish(command_buffer)
    assert (float(row(state.mean())[0]), float(row(state.variance())[0])) == (2.5, 1.25)
    result, gradient = read()
    assert_digits(result, [-1.34164, -0.44721, 0.44721, 1.34164], 5)
    assert_digits(row(state.gradient_for_gamma()), -1.34164, 5)
    assert_digits(row(state.gradient_for_beta()), 1.0, 5)
    assert_digits(gradient, [0.26833, -0.35777, -0.08944, 0.17888], 5)


def test_single_image_encodes(device: torch.device, rng: np.random.Generator) -> None:
    """`encode` of one image object with the state of the batch; image objects of several images are pieces too."""
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench, NEURONS["tanh"])
    state, command_buffer = stages.state(x), bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, bench.batch(x), state)
    cuts = [(0, 1), (1, 4), (4, 7)]
    results = [stages.forward.encode(command_buffer, bench.image(x[a:b]), state) for a, b in cuts]
    stages.sums.encode_batch(command_buffer, bench.batch(g), bench.batch(x), state)
    found = [stages.backward.encode(command_buffer, bench.image(g[a:b]), bench.image(x[a:b]), state) for a, b in cuts]
    finish(command_buffer)
    result, gradient = (np.concatenate([numbers(each) for each in list_]) for list_ in (results, found))
    Expected.of(x, g, NEURONS["tanh"]).check(state, result, gradient)


def test_some_images_of_an_object(device: torch.device, rng: np.random.Generator) -> None:
    """The last normalization read images 3 to 6 of an object: so does its gradient; other pieces are taken whole."""
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state, command_buffer = stages.state(x), bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, bench.batch(x), state)
    first = stages.forward.encode(command_buffer, bench.image(x[:3]), state)
    stages.forward.offset = MPSOffset(0, 0, 3)
    rest = stages.forward.encode(command_buffer, bench.image(x), state, bench.empty((4, *SHAPE[1:])))
    stages.sums.encode_batch(command_buffer, bench.batch(g), bench.batch(x), state)
    of_rest = stages.backward.encode(command_buffer, bench.image(g[3:]), bench.image(x), state)
    of_first = stages.backward.encode(command_buffer, bench.image(g[:3]), bench.image(x[:3]), state)
    finish(command_buffer)
    result = np.concatenate([numbers(first), numbers(rest)])
    gradient = np.concatenate([numbers(of_first), numbers(of_rest)[3:]])
    Expected.of(x, g).check(state, result, gradient)
    assert not numbers(of_rest)[:3].any()


def test_given_destinations(device: torch.device, rng: np.random.Generator) -> None:
    """The forms of the header; the destination is returned."""
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state, command_buffer = stages.state(x), bench.command_buffer()
    images, flow = bench.batch(x), bench.batch(g)
    results, gradients = bench.batch(np.zeros(SHAPE)), bench.batch(np.zeros(SHAPE))
    stages.statistics.encode_batch(command_buffer, images, state)
    assert stages.forward.encode_batch(command_buffer, images, state, results) is results
    stages.sums.encode_batch(command_buffer, flow, images, state)
    assert stages.backward.encode_batch(command_buffer, flow, images, state, gradients) is gradients
    one, other = bench.empty((1, *SHAPE[1:])), bench.empty((1, *SHAPE[1:]))
    assert stages.forward.encode(command_buffer, images[2], state, one) is one
    assert stages.backward.encode(command_buffer, flow[2], images[2], state, other) is other
    finish(command_buffer)
    wanted = Expected.of(x, g)
    wanted.check(state, numbers(results), numbers(gradients))
    assert_close(numbers(one), wanted.result[2:3], TOLERANCE)
    assert_close(numbers(other), wanted.gradient[2:3], TOLERANCE)


def test_the_inherited_form_of_the_gradient(device: torch.device, rng: np.random.Generator) -> None:
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    states = stages.forward.result_state_batch(bench.batch(x))
    assert states is not None
    assert len(states) == 7
    assert states.count_unique() == 1
    command_buffer = bench.command_buffer()
    images, flow = bench.batch(x), bench.batch(g)
    stages.statistics.encode_batch(command_buffer, images, states)
    result = stages.forward.encode_batch(command_buffer, images, list(states))
    stages.sums.encode_batch(command_buffer, flow, images, states)
    found = stages.backward.encode_batch(command_buffer, flow, images, gradient_states=states)
    single = stages.backward.encode(command_buffer, flow[3], images[3], gradient_state=states[3])
    finish(command_buffer)
    wanted = Expected.of(x, g)
    wanted.check(states[0], numbers(result), numbers(found))
    assert_close(numbers(single), wanted.gradient[3:4], TOLERANCE)


# --- derivative, without an oracle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", ["no neuron", "tanh"])
def test_finite_differences(fused: str, device: torch.device, rng: np.random.Generator) -> None:
    """Statistics and normalization together, along one direction."""
    x, g = batch(rng)
    stages = Stages(Bench.on(device), NEURONS[fused])
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (4, 3))
    finish(command_buffer)
    direction = exact(rng.normal(size=SHAPE))
    moved = []
    for sign in (1.0, -1.0):
        there = exact(x + sign * direction * 2.0**-7)
        state, command_buffer = stages.state(x), stages.bench.command_buffer()
        results = stages.step(command_buffer, state, there, g, (7,))
        finish(command_buffer)
        moved.append((there, results()[0]))
    taken = inner(moved[0][1] - moved[1][1], g)
    given = inner(moved[0][0] - moved[1][0], read()[1])
    assert abs(taken - given) <= 2e-3 * np.abs((moved[0][0] - moved[1][0]) * read()[1]).sum()


# --- placement: offset, clip rectangle, channel slices ----------------------------------------------------------------


def _placed(stages: Stages, edge: MPSImageEdgeMode) -> Array:
    """Offset, clip rectangle and edges of the forward kernel; the source pixels that it reads, -1 outside."""
    stages.forward.offset = MPSOffset(-1, 1, 0)
    stages.forward.edge_mode = edge
    stages.forward.clip_rect = MTLRegion(MTLOrigin(1, 0, 0), MTLSize(3, 4, 10))
    ys, xs = np.mgrid[1:5, -1:2]
    return np.stack([ys, xs])


@pytest.mark.parametrize("edge", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP], ids=lambda edge: edge.name)
@pytest.mark.parametrize("fused", ["no neuron", "tanh"])
def test_a_placed_forward(edge: Any, fused: str, device: torch.device, rng: np.random.Generator) -> None:
    """Statistics of all pixels, a normalization that reads some of them, twice or not at all: the exact derivative.

    torch's autograd over the same reads is the reference.
    """
    x, _ = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench, NEURONS[fused])
    ys, xs = _placed(stages, edge)
    inside = (ys >= 0) & (ys < SHAPE[2]) & (xs >= 0) & (xs < SHAPE[3])
    p = {name: torch.tensor(each, requires_grad=True) for name, each in rows(SHAPE[1]).items()}
    leaf = torch.tensor(x, requires_grad=True)
    mean, variance = leaf.mean((0, 2, 3), keepdim=True), leaf.var((0, 2, 3), correction=0, keepdim=True)
    region = leaf[:, :, ys.clip(0, SHAPE[2] - 1), xs.clip(0, SHAPE[3] - 1)]
    if edge is MPSImageEdgeMode.ZERO:
        region = region * torch.tensor(inside)
    z = (region - mean) / (variance + EPSILON).sqrt() * p["gamma"].view(-1, 1, 1) + p["beta"].view(-1, 1, 1)
    wanted = 1.5 * torch.tanh(0.5 * z) if fused == "tanh" else z
    g = exact(rng.normal(size=wanted.shape))
    wanted.backward(torch.tensor(g))
    whole = np.zeros((SHAPE[0], SHAPE[1], 5, 6))
    whole[:, :, 0:4, 1:4] = g

    state, command_buffer = stages.state(x), bench.command_buffer()
    images, flow, results = bench.batch(x), bench.batch(whole), bench.batch(np.full(whole.shape, 9.0))
    stages.statistics.offset, stages.statistics.clip_rect = MPSOffset(3, 3, 0), stages.forward.clip_rect
    stages.statistics.encode_batch(command_buffer, images, state)
    stages.forward.encode_batch(command_buffer, images, state, results)
    stages.sums.encode_batch(command_buffer, flow, images, state)
    found = stages.backward.encode_batch(command_buffer, flow, images, state)
    finish(command_buffer)
    result = numbers(results)
    assert_close(result[:, :, 0:4, 1:4], wanted, TOLERANCE, "result")
    result[:, :, 0:4, 1:4] = 9.0
    assert (result == 9.0).all()
    assert_close(row(state.gradient_for_gamma()), p["gamma"].grad, TOLERANCE, "gamma")
    assert_close(row(state.gradient_for_beta()), p["beta"].grad, TOLERANCE, "beta")
    assert_close(numbers(found), leaf.grad, TOLERANCE, "gradient")


def test_channel_slices(device: torch.device, rng: np.random.Generator) -> None:
    """The layer reads and writes channels in the middle of larger images, whose other channels hold no numbers."""
    x, g = batch(rng, (3, 4, 4, 3))
    bench = Bench.on(device)
    stages = Stages(bench, NEURONS["tanh"], source(4))
    nothing = np.full((3, 4, 4, 3), np.nan)
    images = bench.batch(np.concatenate([nothing, x, nothing], axis=1))
    flow = bench.batch(np.concatenate([nothing, nothing, g, nothing], axis=1))
    results = bench.batch(np.zeros((3, 16, 4, 3)))
    for kernel in (stages.statistics, stages.forward):
        kernel.source_feature_channel_offset = 4
    stages.forward.destination_feature_channel_offset = 8
    state, command_buffer = stages.state(np.concatenate([x, x], axis=1)), bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, images, state)
    stages.forward.encode_batch(command_buffer, images, state, results)
    stages.sums.encode_batch(command_buffer, flow, images, state)
    found = stages.backward.encode_batch(command_buffer, flow, images, state)
    finish(command_buffer)
    result, gradient = numbers(results), numbers(found)
    Expected.of(x, g, NEURONS["tanh"]).check(state, result[:, 8:12], gradient[:, 4:8])
    assert not result[:, :8].any()
    assert not result[:, 12:].any()
    assert not gradient[:, :4].any()
    assert not gradient[:, 8:].any()


# --- when sums start anew --------------------------------------------------------------------------------------------


def test_one_state_for_all_batches(device: torch.device, rng: np.random.Generator) -> None:
    """Clients keep one state and never reset it: every batch starts anew, in command buffers that run behind."""
    bench = Bench.on(device)
    stages = Stages(bench)
    batches = [batch(rng) for _ in range(3)]
    state = stages.state(batches[0][0])
    shared = [state.mean(), state.variance()]
    runs, copies = [], []
    for (x, g), pieces in zip(batches, PIECES, strict=True):
        command_buffer = bench.command_buffer()
        runs.append((command_buffer, stages.step(command_buffer, state, x, g, pieces)))
        kept = [state.mean(), state.variance(), state.gradient_for_gamma(), state.gradient_for_beta()]
        copies.append([bench.device.new_buffer(length=buffer.length) for buffer in kept])
        with command_buffer.blit_command_encoder() as blit:
            for buffer, into in zip(kept, copies[-1], strict=True):
                blit.copy_from_buffer(buffer, 0, into, 0, buffer.length)
    for command_buffer, _ in runs:
        command_buffer.commit()
    runs[-1][0].wait_until_completed()
    for (x, g), (_, read), kept in zip(batches, runs, copies, strict=True):
        wanted = Expected.of(x, g)
        result, gradient = read()
        assert_close(result, wanted.result, TOLERANCE)
        assert_close(gradient, wanted.gradient, TOLERANCE)
        expected = (wanted.mean, wanted.variance, wanted.gamma, wanted.beta)
        for buffer, numbers_ in zip(kept, expected, strict=True):
            assert_close(row(buffer), numbers_, TOLERANCE)
    assert state.mean() is not shared[0]


@pytest.mark.parametrize("consumer", ["normalization", "gradient statistics"])
def test_a_use_ends_the_batch(consumer: str, device: torch.device, rng: np.random.Generator) -> None:
    (x, g), (other, _) = batch(rng), batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state, command_buffer = stages.state(x), bench.command_buffer()
    images = bench.batch(x)
    stages.statistics.encode_batch(command_buffer, images, state)
    if consumer == "normalization":
        stages.forward.encode_batch(command_buffer, images, state)
    else:
        stages.sums.encode_batch(command_buffer, bench.batch(g), images, state)
    stages.statistics.encode_batch(command_buffer, bench.batch(other), state)
    finish(command_buffer)
    mean, variance = oracle.moments(other)
    assert_close(row(state.mean()), mean, TOLERANCE)
    assert_close(row(state.variance()), variance, TOLERANCE)


def test_statistics_join_until_they_are_used(device: torch.device, rng: np.random.Generator) -> None:
    """Also from one command buffer to the next, while the first may still run."""
    x, _ = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state = stages.state(x)
    first, second = bench.command_buffer(), bench.command_buffer()
    stages.statistics.encode_batch(first, bench.batch(x[:4]), state)
    stages.statistics.encode_batch(second, bench.batch(x[4:]), state)
    first.commit()
    finish(second)
    mean, variance = oracle.moments(x)
    assert_close(row(state.mean()), mean, TOLERANCE)
    assert_close(row(state.variance()), variance, TOLERANCE)


def test_gradient_sums_start_anew(device: torch.device, rng: np.random.Generator) -> None:
    """After a gradient, or after new statistics, and not after anything else."""
    (x, g), (_, other) = batch(rng), batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state, images = stages.state(x), bench.batch(x)

    def sums() -> list[Array]:
        finish(command_buffer)
        return [row(state.gradient_for_gamma()), row(state.gradient_for_beta())]

    def expected(flow: Array) -> list[Array]:
        found = Expected.of(x, flow)
        return [found.gamma, found.beta]

    def check(wanted: list[Array]) -> None:
        for found, each in zip(sums(), wanted, strict=True):
            assert_close(found, each, TOLERANCE)

    command_buffer = bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, images, state)
    stages.sums.encode_batch(command_buffer, bench.batch(g), images, state)
    stages.forward.encode_batch(command_buffer, images, state)
    stages.sums.encode_batch(command_buffer, bench.batch(other), images, state)
    check(expected(g + other))
    command_buffer = bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, images, state)
    stages.sums.encode_batch(command_buffer, bench.batch(g), images, state)
    stages.backward.encode_batch(command_buffer, bench.batch(g), images, state)
    check(expected(g))
    command_buffer = bench.command_buffer()
    stages.sums.encode_batch(command_buffer, bench.batch(other), images, state)
    check(expected(other))


def test_reset(device: torch.device, rng: np.random.Generator) -> None:
    """Everything is the kernel's again; what was recorded before the reset is not touched."""
    (x, g), (other, _) = batch(rng), batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    p = rows(SHAPE[1])
    state, command_buffer = stages.state(x), bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (7,))
    after = stages.state(x)
    state.reset()
    assert state.gradient_for_gamma() is None
    assert state.gradient_for_beta() is None
    for name in ("gamma", "beta", "mean", "variance"):
        assert_close(row(getattr(state, name)()), p[name], 0.0, name)
    finish(command_buffer)
    result, gradient = read()
    wanted = Expected.of(x, g)
    assert_close(result, wanted.result, TOLERANCE)
    assert_close(gradient, wanted.gradient, TOLERANCE)

    command_buffer = bench.command_buffer()
    stages.statistics.encode_batch(command_buffer, bench.batch(x), after)
    after.reset()
    stages.statistics.encode_batch(command_buffer, bench.batch(other), after)
    finish(command_buffer)
    assert_close(row(after.mean()), oracle.moments(other)[0], TOLERANCE)


def test_a_training_against_torch(device: torch.device, rng: np.random.Generator) -> None:
    """Five steps, one state, nothing waited for: updates by optimizers, reloads, running averages, then inference."""
    bench = Bench.on(device)
    mtl, p = bench.device, rows(SHAPE[1])
    stages, pieces = Stages(bench, NEURONS["tanh"]), (2, 5)
    state = stages.state(np.zeros(SHAPE))
    descriptor = MPSNNOptimizerDescriptor(-0.1, regularization_type=MPSNNRegularizationType.L2)
    descriptor.regularization_scale = -1.0
    average = MPSNNOptimizerStochasticGradientDescent(mtl, optimizer_descriptor=descriptor)
    optimizer = MPSNNOptimizerStochasticGradientDescent(mtl, 0.05, momentum_scale=0.9)

    def vector(values: Any) -> MPSVector:
        return MPSVector(mtl.new_buffer(data=np.asarray(values, np.float32)), MPSVectorDescriptor(SHAPE[1]))

    momenta = [vector(np.zeros(SHAPE[1])) for _ in range(2)]
    running = [vector(p["mean"]), vector(p["variance"])]
    updated = MPSCNNNormalizationGammaAndBetaState(*(mtl.new_buffer(length=20) for _ in range(2)))
    stored = MPSCNNNormalizationMeanAndVarianceState(*(each.data for each in running))
    leaves = [torch.tensor(p[name], requires_grad=True) for name in ("gamma", "beta")]
    theirs = torch.optim.SGD(leaves, lr=0.05, momentum=0.9)
    means = [torch.tensor(p["mean"]), torch.tensor(p["variance"])]
    for _ in range(5):
        x, g = batch(rng)
        command_buffer = bench.command_buffer()
        stages.step(command_buffer, state, x, g, pieces)
        optimizer.encode(
            command_buffer, batch_normalization_state=state, input_momentum_vectors=momenta, result_state=updated
        )
        stages.forward.reload_gamma_and_beta(command_buffer, updated)
        for value, found in zip(running, (state.mean(), state.variance()), strict=True):
            fresh = MPSVector(found, MPSVectorDescriptor(SHAPE[1]))
            average.encode(
                command_buffer, input_gradient_vector=fresh, input_values_vector=value, result_values_vector=value
            )
        stages.forward.reload_mean_and_variance(command_buffer, stored)
        command_buffer.commit()
        image = torch.tensor(x)
        z = torch.nn.functional.batch_norm(image, None, None, leaves[0], leaves[1], True, 0.0, EPSILON)
        theirs.zero_grad()
        (1.5 * torch.tanh(0.5 * z)).backward(torch.tensor(g))
        theirs.step()
        fresh_means = image.mean((0, 2, 3)), image.var((0, 2, 3), correction=0)
        means = [0.9 * old + 0.1 * new for old, new in zip(means, fresh_means, strict=True)]
    x, _ = batch(rng)
    command_buffer = bench.command_buffer()
    found = stages.forward.encode_batch(command_buffer, bench.batch(x))
    finish(command_buffer)
    z = torch.nn.functional.batch_norm(torch.tensor(x), *means, leaves[0], leaves[1], False, 0.0, EPSILON)
    assert_close(numbers(found), 1.5 * torch.tanh(0.5 * z), TOLERANCE)
    for pair, wanted in ((stages.forward.gamma_and_beta, leaves), (stages.forward.mean_and_variance, means)):
        for buffer, each in zip(pair, wanted, strict=True):
            assert_close(row(buffer), each, TOLERANCE)


# --- what the state holds --------------------------------------------------------------------------------------------


def test_a_new_state(rng: np.random.Generator) -> None:
    x, _ = batch(rng)
    bench = Bench.on(torch.device("cpu"))
    stages = Stages(bench)
    state = stages.state(x)
    assert state.batch_normalization is stages.forward
    assert state.number_of_feature_channels == 5
    assert (state.is_temporary, state.read_count, state.resource_count) == (False, 0, 7)
    assert state.resource_size() == 7 * 20
    for name, values in rows(5).items():
        assert_close(row(getattr(state, name)()), values, 0.0, name)
    assert state.gradient_for_gamma() is None
    assert state.gradient_for_beta() is None
    assert stages.forward.is_result_state_reused_across_batch() is True
    assert stages.statistics.result_state(bench.image(x)) is None
    assert state.record is None
    with_destination = stages.forward.result_state(bench.image(x), None, bench.image(x))
    assert with_destination is not None
    assert (with_destination.source_width, with_destination.source_height) == (3, 4)


def test_resources_are_the_buffers(device: torch.device, rng: np.random.Generator) -> None:
    x, g = batch(rng)
    stages = Stages(Bench.on(device))
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    stages.step(command_buffer, state, x, g, (7,))
    names = ("gamma", "beta", "mean", "variance", "gradient_for_gamma", "gradient_for_beta")
    for index, name in enumerate(names):
        assert getattr(state, name)() is state.resource_at_index(index)
        assert getattr(state, name)() is getattr(state, name)()
    finish(command_buffer)
    for name in ("gamma", "beta"):
        assert_close(row(getattr(state, name)()), rows(5)[name], 0.0, name)


def test_the_state_keeps_the_parameters_of_its_forward(device: torch.device, rng: np.random.Generator) -> None:
    """A reload between the forward and the gradient changes the next forward, not this gradient."""
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    state, command_buffer = stages.state(x), bench.command_buffer()
    images, flow = bench.batch(x), bench.batch(g)
    stages.statistics.encode_batch(command_buffer, images, state)
    result = stages.forward.encode_batch(command_buffer, images, state)
    stages.forward.reload_gamma_and_beta(command_buffer, gamma_and_beta(bench, np.zeros(5), np.zeros(5)))
    stages.forward.epsilon = 7.0
    stages.sums.encode_batch(command_buffer, flow, images, state)
    found = stages.backward.encode_batch(command_buffer, flow, images, state)
    after = stages.forward.encode_batch(command_buffer, images, state)
    finish(command_buffer)
    Expected.of(x, g).check(state, numbers(result), numbers(found))
    assert not numbers(after).any()
    assert not row(state.gamma()).any()


def gamma_and_beta(bench: Bench, gamma: Array, beta: Array) -> Any:
    buffers = (bench.device.new_buffer(data=np.asarray(each, np.float32)) for each in (gamma, beta))
    return MPSCNNNormalizationGammaAndBetaState(*buffers)


# --- statistics that are constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", ["no neuron", "tanh"])
def test_stored_statistics(fused: str, device: torch.device, rng: np.random.Generator) -> None:
    """A state that saw no statistics: mean and variance are the stored ones, and constants in the gradient."""
    x, g = batch(rng)
    p = rows(SHAPE[1])
    bench = Bench.on(device)
    stages = Stages(bench, NEURONS[fused])
    state, command_buffer = stages.state(x), bench.command_buffer()
    images, flow = bench.batch(x), bench.batch(g)
    plain = stages.forward.encode_batch(command_buffer, images)
    result = stages.forward.encode_batch(command_buffer, images, state)
    found = stages.backward.encode_batch(command_buffer, flow, images, state)
    stages.sums.encode_batch(command_buffer, flow, images, state)
    again = stages.backward.encode_batch(command_buffer, flow, images, state)
    finish(command_buffer)
    z = oracle.forward(x, p["mean"], p["variance"], p["gamma"], p["beta"], EPSILON)
    inner_flow = activated_gradient(g, z, NEURONS[fused])
    for each in (plain, result):
        assert_close(numbers(each), activated(z, NEURONS[fused]), TOLERANCE, "result")
    for each in (found, again):
        wanted = oracle.fixed_gradient(inner_flow, p["variance"], p["gamma"], EPSILON)
        assert_close(numbers(each), wanted, TOLERANCE, "gradient")
    gamma, beta = oracle.parameter_gradients(inner_flow, x, p["mean"], p["variance"], EPSILON)
    assert_close(row(state.gradient_for_gamma()), gamma, TOLERANCE, "gamma")
    assert_close(row(state.gradient_for_beta()), beta, TOLERANCE, "beta")


# --- temporary objects -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [False, True], ids=["command buffer", "MPSCommandBuffer"])
def test_a_step_of_temporary_objects(wrap: bool, device: torch.device, rng: np.random.Generator) -> None:
    """Every use but the statistics takes one read; the memory comes back, the numbers stay right."""
    x, g = batch(rng)
    bench = Bench.on(device)
    stages = Stages(bench)
    command_buffer: Any = MPSCommandBuffer(command_buffer=bench.command_buffer()) if wrap else bench.command_buffer()
    images, flow = (temporary_copy(command_buffer, bench.batch(each)) for each in (x, g))
    for image in images:
        image.read_count = 4
    for image in flow:
        image.read_count = 2
    state: Any = stages.forward.temporary_result_state(command_buffer, images[0])
    assert (state.is_temporary, state.read_count) == (True, 1)
    state.read_count = 3
    counts = []
    stages.statistics.encode_batch(command_buffer, images, state)
    counts.append(state.read_count)
    result = stages.forward.encode_batch(command_buffer, images, state)
    counts.append(state.read_count)
    if isinstance(command_buffer, MPSCommandBuffer):
        command_buffer.commit_and_continue()
    stages.sums.encode_batch(command_buffer, flow, images, state)
    counts.append(state.read_count)
    buffers = [state.mean(), state.gradient_for_gamma()]
    found = stages.backward.encode_batch(command_buffer, flow, images, state)
    counts.append(state.read_count)
    assert counts == [3, 2, 1, 0]
    assert {image.read_count for image in (*images, *flow)} == {0}
    with pytest.raises(MPSLifetimeError, match=r"^MPSCNNBatchNormalizationState: resource 2 must have reads left"):
        state.mean()
    with pytest.raises(
        MPSLifetimeError, match=r"^MPSCNNBatchNormalizationStatistics: batch_normalization_state must have reads left"
    ):
        stages.statistics.encode_batch(command_buffer, bench.batch(x), state)
    finish(command_buffer)
    wanted = Expected.of(x, g)
    assert_close(numbers(result), wanted.result, TOLERANCE)
    assert_close(numbers(found), wanted.gradient, TOLERANCE)
    assert_close(row(buffers[0]), wanted.mean, TOLERANCE)
    assert_close(row(buffers[1]), wanted.gamma, TOLERANCE)
    assert all(slot.resource is None for slot in state._slots)


def test_temporary_batch_states(rng: np.random.Generator) -> None:
    x, _ = batch(rng)
    bench = Bench.on(torch.device("cpu"))
    stages = Stages(bench)
    command_buffer = bench.command_buffer()
    states = stages.forward.temporary_result_state_batch(command_buffer, bench.batch(x))
    assert states is not None
    assert states.count_unique() == 1
    assert states[0].read_count == 1
    stages.forward.encode_batch(command_buffer, bench.batch(x), states)
    assert states[0].read_count == 0
    finish(command_buffer)


# --- what the stages say of themselves --------------------------------------------------------------------------------


def test_what_they_tell() -> None:
    stages = Stages(Bench.on(torch.device("cpu")), NEURONS["relu"])
    assert MPSCNNBatchNormalization(stages.bench.device, source()).fused_neuron_descriptor is None
    four = (stages.statistics, stages.forward, stages.sums, stages.backward)
    assert [kernel.is_state_modified for kernel in four] == [True, False, True, False]
    assert [kernel.append_batch_barrier() for kernel in four] == [True, False, True, False]
    assert [kernel.is_result_state_reused_across_batch() for kernel in four] == [False, True, False, False]


def test_copies(device: torch.device, rng: np.random.Generator) -> None:
    """Copies of the stages run like them."""
    x, g = batch(rng)
    stages = Stages(Bench.on(device), NEURONS["prelu"])
    for name in ("statistics", "forward", "sums", "backward"):
        setattr(stages, name, getattr(stages, name).copy())
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (4, 3))
    finish(command_buffer)
    Expected.of(x, g, NEURONS["prelu"]).check(state, *read())


def test_a_neuron_is_that_of_its_time(device: torch.device, rng: np.random.Generator) -> None:
    """Kernels keep a copy of the descriptor that they are made with."""
    x, g = batch(rng)
    fused = MPSNNNeuronDescriptor(Neuron.RELU, 0.2)
    stages = Stages(Bench.on(device), fused)
    fused.neuron_type, fused.a = Neuron.LINEAR, 9.0
    for kernel in (stages.forward, stages.sums, stages.backward):
        assert kernel.fused_neuron_descriptor == NEURONS["relu"]
        kernel.fused_neuron_descriptor.a = 9.0
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    read = stages.step(command_buffer, state, x, g, (7,))
    finish(command_buffer)
    Expected.of(x, g, NEURONS["relu"]).check(state, *read())


# --- what the encodes record ------------------------------------------------------------------------------------------


def _steps(function: Any) -> list[str]:
    return [type(step.op).__name__ for step in function.equations]


@pytest.mark.parametrize("fused", ["no neuron", "none"])
def test_half_precision_images_are_read_as_they_are_stored(fused: str, rng: np.random.Generator) -> None:
    """No stage widens an image; stores find numbers that are rounded already."""
    x, g = batch(rng)
    stages = Stages(Bench.on(torch.device("cpu")), NEURONS[fused])
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    stages.step(command_buffer, state, x, g, (4, 3), FLOAT16)
    kernels = (stages.statistics, stages.forward, stages.sums, stages.backward)
    found = {name for kernel in kernels for plan in _plans(kernel, FLOAT16) for name in _steps(plan.function)}
    assert found == {"BatchMoments", "MergedMoments", "Normalize", "ParameterSums", "DataGradient", "Store"}


def test_a_plan_serves_all_batches(rng: np.random.Generator) -> None:
    """How many pixels a batch has, and which part of them a piece brings, are numbers of an encode, not of a plan."""
    x, g = batch(rng)
    stages = Stages(Bench.on(torch.device("cpu")))
    state, command_buffer = stages.state(x), stages.bench.command_buffer()
    kernels = (stages.statistics, stages.forward, stages.sums, stages.backward)
    stages.step(command_buffer, state, x, g, (2, 2, 2))
    before = [_plans(kernel) for kernel in kernels]
    for pieces in ((2, 2), (2,), (2, 2, 2)):
        stages.step(command_buffer, state, x, g, pieces)
    assert [_plans(kernel) for kernel in kernels] == before


def _plans(kernel: Any, channel_format: Any = FLOAT32) -> list[Plan]:
    """What was planned for images of a format; kernels with equal properties share it."""
    plans = kernel._configuration.plans
    return [
        plan for key, plan in plans.items() if isinstance(plan, Plan) and key[0][0].channel_format is channel_format
    ]
