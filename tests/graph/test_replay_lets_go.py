"""Replays hand out nothing to memory that only the works of their record hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.metal.execution import Execution
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from replay_twin import outcomes, replayer_of, replaying_queue

STEPS = 4


@pytest.mark.parametrize("are_held", [False, True])
def test_losses_that_nobody_holds_are_not_handed_out(device: torch.device, are_held: bool) -> None:
    queue = replaying_queue(device, min_steps=4)
    queue._executor._launches_at_commit = True
    queue._executor._launch_here = Execution.launch
    shape = NetworkShape(28, 28, 1, 10)
    network = SampleNetwork.create(shape, seed=1, optimizer=optimizer_factory("adam", 1e-3))
    float32 = mps.MPSImageFeatureChannelFormat.FLOAT32
    graph = network.training_graph(queue.device, float32, loss_weight=0.5, dropout_seed=1)
    graph.stop_on_non_finite = False
    images, labels = np.ones((2, 28, 28, 1), np.uint8), np.eye(10, dtype=np.float32)[:2]
    held: list[object] = []
    for _ in range(STEPS):
        given = mps.MPSCNNLossLabels.batch(queue.device, labels)
        batch = mps.MPSImageBatch.from_numpy(queue.device, images, mps.MPSImageFeatureChannelFormat.UNORM8)
        command_buffer = mps.MPSCommandBuffer(queue)
        graph.encode_batch(command_buffer, [batch], [given])
        if are_held:
            held.append(given)
        del given, batch
        command_buffer.commit()
        handed_out = len(replayer_of(queue)._deferred.pending)
        command_buffer.wait_until_completed()
    assert outcomes(command_buffer) == ["replayed"]
    assert handed_out == are_held
