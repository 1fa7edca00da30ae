"""Concatenations that share memory, against the steps one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from channel_sources import Channels
from encoding import Bench, finish
from helpers import assert_close
from in_one_test import in_one_test

FORMATS = [mps.MPSImageFeatureChannelFormat.FLOAT32, mps.MPSImageFeatureChannelFormat.FLOAT16]


class Rows(Channels):
    """Statistics of so many channels."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        super().__init__(count, 2)
        self.rows = rng.uniform(0.5, 2.0, (4, count)).astype(np.float32)

    def mean(self) -> Any:
        return self.rows[0]

    def variance(self) -> Any:
        return self.rows[1]

    def gamma(self) -> Any:
        return self.rows[2]

    def beta(self) -> Any:
        return self.rows[3]


def grown(rng: np.random.Generator, given: list[mps.MPSNNImageNode], *, first: int, again: int) -> list[Any]:
    """Three concatenations of images of ``first`` and then of ``again`` channels, and a normalization behind each."""
    whole, count, ends = given[0], first, list[Any]()
    for _ in range(3):
        whole = mps.MPSNNConcatenationNode([whole, given[1]]).result_image
        count = -(-count // 4) * 4 + -(-again // 4) * 4
        normalized = mps.MPSCNNBatchNormalizationNode(whole, Rows(rng, count)).result_image
        ends.append(mps.MPSCNNNeuronReLUNode(normalized, 0.0).result_image)
    return ends


def added(ends: list[Any]) -> Any:
    """One image that needs all ends: the mean of the channels of each, summed."""
    means = [mps.MPSNNReductionFeatureChannelsMeanNode(end).result_image for end in ends]
    return mps.MPSNNAdditionNode(mps.MPSNNAdditionNode(means[0], means[1]).result_image, means[2]).result_image


def run(end: Any, numbers: list[Any], channel_format: Any, *, allows: bool) -> tuple[Any, int]:
    """What a graph gives, and how many images grow."""
    bench = Bench.on(torch.device("cpu"))
    graph = mps.MPSNNGraph(bench.device, end)
    graph.format, graph.allow_fusion = channel_format, allows
    batches = [mps.MPSImageBatch.from_numpy(bench.device, each, channel_format=channel_format) for each in numbers]
    command_buffer = bench.queue.command_buffer()
    result = graph.encode_batch(command_buffer, batches)
    finish(command_buffer)
    descriptors = [mps.MPSImageDescriptor(channel_format, 5, 3, each.shape[3]) for each in numbers]
    operations = graph.program_for(descriptors, len(batches[0])).function.operations()
    return result.numpy(), operations.count("Grow")


@in_one_test
@pytest.mark.parametrize("channel_format", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize(("first", "again"), [(8, 4), (5, 3), (1, 6), (5, 1), (2, 2)])
@pytest.mark.parametrize("filler", ["texture", "zeros"])
def test_numbers_are_those_of_the_steps(
    filler: str, first: int, again: int, channel_format: Any, rng: np.random.Generator
) -> None:
    numbers = [rng.normal(size=(2, 3, 5, count)).astype(np.float32) for count in (first, again)]
    given = [mps.MPSNNImageNode(), mps.MPSNNImageNode()]
    end = added(grown(rng, given, first=first, again=again))
    with mps.conventions(concatenation_filler=filler):
        found = [run(end, numbers, channel_format, allows=allows) for allows in (True, False)]
    is_half = channel_format is FORMATS[1]  # What is stored between concatenations keeps them apart.
    assert [count for _, count in found] == [0 if is_half else 2, 0]
    assert_close(found[0][0], found[1][0], 4e-3 if is_half else 1e-6)


def test_what_else_reads_an_image_between_keeps_it_apart(rng: np.random.Generator) -> None:
    numbers = [rng.normal(size=(1, 3, 5, 8)).astype(np.float32)]
    source = mps.MPSNNImageNode()
    whole = mps.MPSNNConcatenationNode([source, source]).result_image
    # Two that begin with one image cannot both have the memory behind it.
    twice = [mps.MPSNNConcatenationNode([whole, source]).result_image for _ in range(2)]
    pooled = mps.MPSCNNPoolingMaxNode(whole, 2, 1).result_image
    means = [mps.MPSNNReductionFeatureChannelsMeanNode(each).result_image for each in (*twice, pooled)]
    end = mps.MPSNNAdditionNode(mps.MPSNNAdditionNode(means[0], means[1]).result_image, means[2]).result_image
    found = [run(end, numbers, FORMATS[0], allows=allows) for allows in (True, False)]
    assert not found[0][1]
    assert_close(found[0][0], found[1][0], 1e-6)
