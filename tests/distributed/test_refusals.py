"""What a group refuses before it asks the other processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import openmps as mps
from openmps.distributed import Group, Sharing
from openmps.graph.compile.shards import Shards
from openmps.ops.update.collectives import Processes
from openmps.training import TrainableConvolutionDataSource
from openmps.training.processes import share_of

CPU = mps.mtl_device("cpu")
PROCESSES = Processes(None, 0, 2, in_order=False, explain=lambda error: error)
SHARDS = Shards(PROCESSES)


class Custom:
    """A data source of a user's own, which updates."""

    def __init__(self) -> None:
        self.inner = source()

    def __getattr__(self, name: str) -> object:
        if name == "shard_optimizer":
            raise AttributeError(name)
        return getattr(self.inner, name)


def source() -> TrainableConvolutionDataSource:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 2, 3)
    make = mps.MPSNNOptimizerAdam
    return TrainableConvolutionDataSource(descriptor, np.ones((3, 1, 1, 2)), np.zeros(3), "layer", optimizer=make)


def training_graph(weights: object) -> mps.MPSNNGraph:
    convolution = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), weights)
    loss = mps.MPSCNNLossNode(convolution.result_image, mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR))
    return mps.MPSNNGraph(CPU, loss.training_graph(None)[0].result_image, result_image_is_needed=False)


def test_a_graph_that_trains_nothing_is_not_shared() -> None:
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image)
    with pytest.raises(mps.MPSArgumentError, match="must be a training graph"):
        Group.share(object.__new__(Group), graph)


def test_a_data_source_that_keeps_no_share_of_the_optimizers_state() -> None:
    graph = training_graph(Custom())
    with pytest.raises(mps.MPSTypeError, match=r"must offer shard_optimizer\(shards\).*got Custom"):
        graph.share_among(Sharing(PROCESSES, shards=SHARDS))
    assert graph.sharing is None


def test_a_batch_without_equal_shares() -> None:
    """A run that goes on keeps its batches: another number of processes helps there."""
    three: Any = SimpleNamespace(count=3)
    with pytest.raises(mps.MPSArgumentError, match="got 64. Use 63 or 66, or a number of processes that divides it"):
        share_of(64, three)
    assert share_of(66, three) == 22


def test_an_update_by_hand_of_a_share() -> None:
    weights = source()
    training_graph(weights).share_among(Sharing(PROCESSES, shards=SHARDS))
    kernel = mps.MPSCNNConvolution(CPU, weights=weights)
    slope = mps.MPSCNNConvolutionGradient(CPU, weights=weights)
    command_buffer = CPU.new_command_queue().command_buffer()
    images = mps.MPSImageBatch.from_numpy(CPU, np.ones((1, 1, 1, 2), np.float32))
    for each in (kernel, slope):
        each.destination_image_allocator = mps.MPSImage.default_allocator()
    y, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    slope.encode_batch(command_buffer, y, images, states)
    with pytest.raises(mps.MPSArgumentError, match="must be that of an encode of the graph"):
        weights.update(command_buffer, states.shared, kernel.parameters.state())
    optimizer = mps.MPSNNOptimizerAdam(CPU)
    optimizer.update_shards(SHARDS.shard)
    row = mps.MPSVector(device=CPU, descriptor=mps.MPSVectorDescriptor(32))
    with pytest.raises(mps.MPSTypeError, match="must be states: it updates shards"):
        optimizer.encode(command_buffer, row, row, row, row, row)
