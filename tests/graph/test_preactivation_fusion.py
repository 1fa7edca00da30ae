"""Convolutions of normalized and rectified images, on the CPU, against the steps one by one and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from openmps.ops.convolution.preactivated_convolution import Bounds, PreactivatedConvolution
from openmps.training import ArrayBatchNormalizationDataSource, ArrayConvolutionDataSource

INPUTS, OUTPUTS, EPSILON = 5, 6, 1e-3
Array = np.ndarray
Rows = dict[str, Array]
FORMATS = [mps.MPSImageFeatureChannelFormat.FLOAT32, mps.MPSImageFeatureChannelFormat.FLOAT16]


def unchanged(rows: Rows) -> None:
    pass


def falling(rows: Rows) -> None:
    rows["gamma"][[1, 3]] *= -1


def flat(rows: Rows) -> None:
    rows["gamma"][2] = 0.0


def distant(rows: Rows) -> None:
    rows["mean"][1] = 1e4


def dead(rows: Rows) -> None:
    rows["beta"][0] = -1e5


class Weights(ArrayConvolutionDataSource):
    """Weights that the test changes."""

    def __init__(self, descriptor: mps.MPSCNNConvolutionDescriptor, weights: Array, biases: Array | None) -> None:
        super().__init__(descriptor, weights, biases)
        self._now = weights

    def weights(self) -> Array:
        return self._now.copy()


class Statistics(ArrayBatchNormalizationDataSource):
    """Rows that the test changes."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(INPUTS, epsilon=EPSILON)
        self._now = rows

    def gamma(self) -> Array:
        return self._now["gamma"].astype(np.float32)

    def beta(self) -> Array:
        return self._now["beta"].astype(np.float32)

    def mean(self) -> Array:
        return self._now["mean"].astype(np.float32)

    def variance(self) -> Array:
        return self._now["variance"].astype(np.float32)


@dataclass
class Network:
    """A normalization, ReLU and a convolution."""

    rng: np.random.Generator
    change: Callable[[Rows], None] = unchanged
    size: int = 1
    stride: int = 1
    biases: bool = True
    slope: float = 0.0
    adds: bool = False
    reads_twice: bool = False
    rows: Rows = field(init=False)
    weights: Array = field(init=False)
    more: Array | None = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng
        self.rows = {
            "mean": rng.normal(0.0, 1.0, INPUTS),
            "variance": rng.uniform(0.5, 2.0, INPUTS),
            "gamma": rng.uniform(0.5, 1.5, INPUTS),
            "beta": rng.normal(0.0, 1.0, INPUTS),
        }
        self.change(self.rows)
        self.weights = rng.normal(size=(OUTPUTS, self.size, self.size, INPUTS)).astype(np.float32)
        self.more = rng.normal(size=OUTPUTS).astype(np.float32) if self.biases else None

    def graph(self, bench: Bench, channel_format: mps.MPSImageFeatureChannelFormat, *, fuses: bool) -> mps.MPSNNGraph:
        descriptor = mps.MPSCNNConvolutionDescriptor(self.size, self.size, INPUTS, OUTPUTS)
        descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = self.stride
        source = Weights(descriptor, self.weights, self.more)
        statistics = Statistics(self.rows)
        normalized = mps.MPSCNNBatchNormalizationNode(mps.MPSNNImageNode(), statistics)
        rectified = mps.MPSCNNNeuronReLUNode(normalized.result_image, self.slope)
        last: mps.MPSNNFilterNode = mps.MPSCNNConvolutionNode(rectified.result_image, source)
        if self.adds:
            last = mps.MPSNNAdditionNode(last.result_image, mps.MPSNNImageNode())
        if self.reads_twice:
            again = mps.MPSCNNNeuronAbsoluteNode(rectified.result_image)
            last = mps.MPSNNConcatenationNode([last.result_image, again.result_image])
        graph = mps.MPSNNGraph(bench.device, last.result_image)
        graph.format, graph.allow_fusion = channel_format, fuses
        return graph

    def expected(self, x: Array, other: Array) -> Array:
        """In float64, of windows of one pixel."""
        scale = self.rows["gamma"] / np.sqrt(self.rows["variance"] + EPSILON)
        z = (x.astype(np.float64) - self.rows["mean"]) * scale + self.rows["beta"]
        z = np.where(z > 0, z, self.slope * z)[:, :: self.stride, :: self.stride]
        y = z @ self.weights[:, 0, 0].astype(np.float64).T + (0.0 if self.more is None else self.more)
        return y + other if self.adds else y


def run(graph: mps.MPSNNGraph, bench: Bench, *arrays: Array) -> Array:
    batches = [mps.MPSImageBatch.from_numpy(bench.device, each, channel_format=graph.format) for each in arrays]
    command_buffer = bench.queue.command_buffer()
    result = graph.encode_batch(command_buffer, batches)
    finish(command_buffer)
    return result.numpy()


@pytest.fixture
def befores(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What stands before each convolution that runs."""
    found: list[object] = []
    own = PreactivatedConvolution.run

    def note(self, wanted, *operands):
        found.append(operands[1].before)
        return own(self, wanted, *operands)

    monkeypatch.setattr(PreactivatedConvolution, "run", note)
    return found


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "Bounds"),
    "scales below 0": ({"change": falling}, "Bounds"),
    "strides": ({"stride": 2}, "Bounds"),
    "no biases": ({"biases": False}, "Bounds"),
    "an image is added": ({"adds": True}, "Bounds"),
    "a scale of 0": ({"change": flat}, "Scaled"),
    "a mean of many deviations": ({"change": distant}, "Scaled"),
    "terms that would cancel": ({"change": dead}, "Scaled"),
    "a leaky rectifier": ({"slope": 0.25}, ""),
    "windows that leave the image": ({"size": 3}, ""),
    "a rectified image that is read twice": ({"reads_twice": True}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_steps(case: str, rng: np.random.Generator, befores: list[object]) -> None:
    changes, before = CASES[case]
    bench, network = Bench.on(torch.device("cpu")), Network(rng, **changes)
    fused, apart = (network.graph(bench, FORMATS[0], fuses=fuses) for fuses in (True, False))
    x = (rng.normal(size=(2, 7, 6, INPUTS)) + network.rows["mean"]).astype(np.float32)
    other = rng.normal(size=(2, 7, 6, OUTPUTS)).astype(np.float32)
    given = [x, other] if network.adds else [x]
    found, wanted = run(fused, bench, *given), run(apart, bench, *given)
    assert {type(each).__name__ for each in befores} == ({before} if before else set())
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4 if case == "a mean of many deviations" else 2e-5)
    if network.size == 1 and not network.reads_twice:
        expected = network.expected(x, other)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-3 if "many" in case else 2e-5)


@pytest.mark.parametrize("change", [unchanged, falling])
def test_what_is_not_finite_shows_as_in_the_steps(
    change: Callable[[Rows], None], rng: np.random.Generator, befores: list[object]
) -> None:
    bench, network = Bench.on(torch.device("cpu")), Network(rng, change)
    x = rng.normal(size=(1, 5, INPUTS, INPUTS)).astype(np.float32)
    for row, value in enumerate((np.nan, np.inf, -np.inf)):
        np.fill_diagonal(x[0, row], value)
    found, wanted = (run(network.graph(bench, FORMATS[0], fuses=fuses), bench, x) for fuses in (True, False))
    assert all(isinstance(each, Bounds) for each in befores) and befores
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


def test_weights_and_statistics_that_change(rng: np.random.Generator, befores: list[object]) -> None:
    """What is prepared is made again: also as bounds that were none before, and the other way round."""
    bench, network = Bench.on(torch.device("cpu")), Network(rng)
    x = rng.normal(size=(1, 4, 4, INPUTS)).astype(np.float32)
    graph = network.graph(bench, FORMATS[0], fuses=True)
    for change in (unchanged, flat, dead, falling):
        change(network.rows)
        network.weights *= 1.5
        graph.reload_from_data_sources()
        np.testing.assert_allclose(run(graph, bench, x), network.expected(x, x), rtol=1e-5, atol=1e-4)
    assert [type(each).__name__ for each in befores] == ["Bounds", "Scaled", "Scaled", "Scaled"]


def test_float16_images_keep_the_roundings_between(rng: np.random.Generator, befores: list[object]) -> None:
    bench, network = Bench.on(torch.device("cpu")), Network(rng)
    x = rng.normal(size=(1, 6, 6, INPUTS)).astype(np.float32)
    found, wanted = (run(network.graph(bench, FORMATS[1], fuses=fuses), bench, x) for fuses in (True, False))
    assert not befores
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-2)
