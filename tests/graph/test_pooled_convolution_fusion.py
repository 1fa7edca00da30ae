"""Convolutions of inference with the max pooling behind them, against the steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from in_one_test import in_one_test
from openmps.debug.work import operations_of
from openmps.ops.convolution.convolution import convolution, with_biases
from openmps.ops.convolution.fused_convolution import (
    Activation,
    Fused,
    FusedConvolution,
    PooledConvolution,
    PrepareConvolution,
    Unrounded,
    fused_convolution,
    pooled_convolution,
)
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Action
from openmps.ops.pooling.pooling import MaxPooling
from openmps.training import ArrayConvolutionDataSource
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

pytestmark = pytest.mark.usefixtures("rules_of_a_gpu")

Format = mps.MPSImageFeatureChannelFormat
NEURONS: dict[str, Callable[[Any], Any]] = {
    "leaky": lambda image: mps.MPSCNNNeuronReLUNode(image, 0.25),
    "relu": lambda image: mps.MPSCNNNeuronReLUNode(image, 0.0),
    "relu n": lambda image: mps.MPSCNNNeuronReLUNNode(image, 0.0, 0.5),
    "falling": lambda image: mps.MPSCNNNeuronReLUNode(image, -0.25),
    "sigmoid": lambda image: mps.MPSCNNNeuronSigmoidNode(image),
}
POOLS: dict[str, tuple[int, int, mps.MPSImageEdgeMode]] = {
    "2 by 2": (2, 2, mps.MPSImageEdgeMode.CLAMP),
    "3 by 2": (3, 2, mps.MPSImageEdgeMode.CLAMP),
    "2 by 1": (2, 1, mps.MPSImageEdgeMode.CLAMP),
    "3 by 2 over zeros": (3, 2, mps.MPSImageEdgeMode.ZERO),
}


def graph_of(
    bench: Bench, weights: np.ndarray, neuron: str, pool: str, channel_format: Format, read: str, *, fuses: bool
) -> mps.MPSNNGraph:
    outputs, size, _, inputs = weights.shape
    descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
    source = ArrayConvolutionDataSource(descriptor, weights, np.linspace(-1, 1, outputs))
    last: Any = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    last = NEURONS[neuron](last.result_image)
    if read == "exported":
        last.result_image.export_from_graph = True
        last.result_image.image_allocator = mps.MPSImage.default_allocator()
    side, stride, edges = POOLS[pool]
    pooled: Any = mps.MPSCNNPoolingMaxNode(last.result_image, side, stride)
    pool_node = pooled
    if read == "twice":
        pooled = mps.MPSNNConcatenationNode(
            [pooled.result_image, mps.MPSCNNPoolingMaxNode(last.result_image, side, stride).result_image]
        )
    graph = mps.MPSNNGraph(bench.device, pooled.result_image)
    graph.format, graph.allow_fusion = channel_format, fuses
    graph.kernels[pool_node].edge_mode = edges
    return graph


def outcome(graph: mps.MPSNNGraph, bench: Bench, x: np.ndarray) -> tuple[np.ndarray, int]:
    batch = mps.MPSImageBatch.from_numpy(bench.device, x, channel_format=graph.format)
    command_buffer = bench.queue.command_buffer()
    result: Any = graph.encode_batch(command_buffer, [batch])
    finish(command_buffer)
    images, height, width, channels = x.shape
    program = graph.program_for([mps.MPSImageDescriptor(graph.format, width, height, channels)], images)
    return result.numpy(), program.function.operations().count("PooledConvolution")


@in_one_test
@pytest.mark.parametrize("channel_format", [Format.FLOAT32, Format.FLOAT16], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("neuron", "pool", "read", "count"),
    [
        *((neuron, pool, "", 1) for neuron in ("leaky", "relu n", "relu") for pool in list(POOLS)[:3]),
        ("falling", "2 by 2", "", 0),
        ("sigmoid", "2 by 2", "", 0),
        ("leaky", "3 by 2 over zeros", "", 0),
        ("leaky", "2 by 2", "exported", 0),
        ("leaky", "2 by 2", "twice", 0),
    ],
)
def test_numbers_are_those_of_the_steps(
    neuron: str, pool: str, read: str, count: int, channel_format: Format, device: torch.device, rng: Any
) -> None:
    bench = Bench.on(device)
    for inputs in (3, 20):
        weights = rng.normal(0, 0.3, (5, 3, 3, inputs)).astype(np.float32)
        x = rng.normal(size=(2, 9, 8, inputs)).astype(np.float32)
        (found, fused), (wanted, _) = (
            outcome(graph_of(bench, weights, neuron, pool, channel_format, read, fuses=fuses), bench, x)
            for fuses in (True, False)
        )
        assert fused == count
        error = 1e-5 if channel_format is Format.FLOAT32 else 5e-3
        np.testing.assert_allclose(found, wanted, rtol=error, atol=error)


def test_weights_are_prepared_for_the_pooling(device: torch.device, rng: Any) -> None:
    bench, weights = Bench.on(device), rng.normal(0, 0.3, (5, 3, 3, 3)).astype(np.float32)
    for neuron, side in (("leaky", 2), ("falling", None)):
        graph = graph_of(bench, weights, neuron, "2 by 2", Format.FLOAT16, "", fuses=True)
        program = graph.program_for([mps.MPSImageDescriptor(Format.FLOAT16, 8, 9, 3)], 2)
        (recipe,) = program._derived_inputs._recipes.values()
        assert isinstance(recipe.op, PrepareConvolution)
        assert (None if recipe.op.pooling is None else recipe.op.pooling.x.size) == side


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_order_changes_no_bit(dtype: torch.dtype, slope: float, device: torch.device, rng: Any) -> None:
    axis, pooled = Axis(10, 10, 3), Axis(10, 5, 2, 2, offset=1)
    window = Window(axis, axis)
    x = torch.from_numpy(rng.normal(size=(2, 3, 10, 10))).to(device, dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    x[0, 0, 3, 3], x[1, 1, 7, 7], x[0, 2, 8, 1] = torch.nan, torch.inf, -torch.inf
    weights = Unrounded(torch.from_numpy(rng.normal(size=(8, 3, 3, 3))).float().to(device), dtype)
    biases = torch.from_numpy(rng.normal(size=8)).float().to(device)
    how = Fused(window, MPSImageEdgeMode.ZERO, 1, False, Activation(MPSCNNNeuronType.RELU, slope, 0.0))
    prepare = PrepareConvolution(window, MPSImageEdgeMode.ZERO, 1, 2, None)
    prepared = prepare.run((True,), weights, biases)
    pooling = MaxPooling(Window(pooled, pooled), MPSImageEdgeMode.CLAMP)
    found = pooled_convolution(x, prepared, how, pooling)
    if device.type == "cpu" and isinstance(prepared.weights, torch.Tensor) and slope:
        # The same passes, apart: inside a convolution biases may be added before the products, and round otherwise.
        sums = convolution(x, prepared.weights, None, window)
        unpooled = how.activation.of(with_biases(sums, prepared.biases))
    else:
        unpooled = fused_convolution(x, prepared, None, how)
    wanted = pooling.run((True, False), unpooled)[0]
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_profile_counts_the_products_before_the_pooling() -> None:
    axis, pooled = Axis(10, 8, 3, offset=1), Axis(8, 4, 2, 2, offset=1)
    how = Fused(Window(axis, axis), MPSImageEdgeMode.ZERO, 1, False, None)
    pooling = MaxPooling(Window(pooled, pooled), MPSImageEdgeMode.CLAMP)
    x, y, z = (torch.zeros(2, channels, side, side) for channels, side in ((3, 10), (5, 8), (5, 4)))
    counts = [
        operations_of(Action(op, (0, 1), (2,), (True,), ()), [x, None], [result])
        for op, result in ((FusedConvolution(how), y), (PooledConvolution(how, pooling), z))
    ]
    assert counts == [2 * 2 * 5 * 8 * 8 * 9 * 3] * 2
