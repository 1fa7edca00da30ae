"""Normalizations with stored statistics that no convolution takes in, on the CPU, against the steps one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from channel_sources import Channels
from encoding import Bench, finish
from helpers import assert_close

C = 5
FORMATS = [mps.MPSImageFeatureChannelFormat.FLOAT32, mps.MPSImageFeatureChannelFormat.FLOAT16]


class Rows(Channels):
    """Statistics, with means of so many deviations."""

    def __init__(self, rng: np.random.Generator, mean: float) -> None:
        super().__init__(C, 2)
        rows = rng.uniform(0.5, 2.0, (4, C)).astype(np.float32)
        self.rows = {"mean": rows[0] * np.float32(mean), "variance": rows[1], "gamma": rows[2] - 1, "beta": rows[3] - 1}

    def mean(self) -> Any:
        return self.rows["mean"]

    def variance(self) -> Any:
        return self.rows["variance"]

    def gamma(self) -> Any:
        return self.rows["gamma"]

    def beta(self) -> Any:
        return self.rows["beta"]


NEURONS: list[tuple[type, tuple[float, ...]] | None] = [
    None,
    (mps.MPSCNNNeuronReLUNode, (0.0,)),
    (mps.MPSCNNNeuronReLUNode, (0.25,)),
    (mps.MPSCNNNeuronSigmoidNode, ()),
    (mps.MPSCNNNeuronTanHNode, (1.0, 1.0)),
]


@pytest.mark.parametrize("channel_format", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("mean", [1.0, 1000.0])
def test_numbers_are_those_of_the_steps(mean: float, channel_format: Any, rng: np.random.Generator) -> None:
    bench = Bench.on(torch.device("cpu"))
    numbers = rng.normal(size=(2, 3, 4, C)).astype(np.float32) + np.float32(mean)
    numbers[1, 2, 3] = [np.nan, np.inf, -np.inf, 0.0, mean]
    for neuron in NEURONS:
        source = mps.MPSNNImageNode()
        normalized = mps.MPSCNNBatchNormalizationNode(source, Rows(rng, mean))
        last = normalized if neuron is None else neuron[0](normalized.result_image, *neuron[1])
        found = []
        for allows in (True, False):
            graph = mps.MPSNNGraph(bench.device, last.result_image)
            graph.format, graph.allow_fusion = channel_format, allows
            batch = mps.MPSImageBatch.from_numpy(bench.device, numbers, channel_format=channel_format)
            command_buffer = bench.queue.command_buffer()
            result = graph.encode_batch(command_buffer, [batch])
            finish(command_buffer)
            found.append(result.numpy())
        assert_close(*found, 2e-3 if channel_format is FORMATS[1] else 1e-6)
