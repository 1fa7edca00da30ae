"""Updates at the end of a step: they come together, and numbers stay the same."""

from __future__ import annotations

import numpy as np
import torch

import openmps as mps
from openmps.ops.op import Function
from openmps.runtime.replay.static_function import StaticFunction
from replay_twin import assert_same, outcomes, replaying_queue

Format = mps.MPSImageFeatureChannelFormat
LAYERS, CHANNELS, STEPS = 10, 5, 5


def _trained(queue: mps.MTLCommandQueue) -> tuple[list[dict[str, np.ndarray]], list[set[str]]]:
    """Many normalizations one behind the other, some equations; all their numbers, and what became of each equation."""
    random = np.random.default_rng(2)
    sources = [
        mps.TrainableBatchNormalizationDataSource(
            CHANNELS, random.uniform(0.5, 1.5, CHANNELS), random.normal(0, 0.5, CHANNELS), label=f"{layer}",
            optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.01, momentum_scale=0.9)
        )
        for layer in range(LAYERS)
    ]  # fmt: skip
    image = mps.MPSNNImageNode()
    for source in sources:
        image = mps.MPSCNNBatchNormalizationNode(image, source).result_image
        image = mps.MPSCNNNeuronReLUNode(image, 0.1).result_image
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
    graph = mps.MPSNNGraph(queue.device, mps.MPSCNNLossNode(image, loss).training_graph()[0].result_image)
    graph.format, graph.stop_on_non_finite = Format.FLOAT32, False
    found: list[set[str]] = []
    for _ in range(STEPS):
        values = random.normal(1, 2, (4, 3, 3, CHANNELS)).astype(np.float32)
        labels = mps.MPSImageBatch.from_numpy(queue.device, np.ones_like(values))
        command_buffer = queue.command_buffer()
        states = [mps.MPSCNNLossLabels(queue.device, labels_image=each) for each in labels]
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(queue.device, values)], [states])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(set(outcomes(command_buffer)))
    return [source.arrays() for source in sources], found


def test_joined_updates_of_many_layers_train_the_same(device: torch.device, monkeypatch) -> None:
    functions: list[Function] = []
    run = StaticFunction.run
    monkeypatch.setattr(
        StaticFunction,
        "run",
        lambda static_function: functions.append(static_function._equations[-1].function) or run(static_function),
    )
    replayed, found = _trained(replaying_queue(device))
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    expected, _ = _trained(plain)
    assert found[-1] == {"replayed"}
    assert {tuple(type(equation.op).__name__ for equation in function.equations)[-3:] for function in functions} == {
        ("JoinedUpdate", "RunningAverages", "Overwrite")
    }
    for layer, (arrays, others) in enumerate(zip(replayed, expected, strict=True)):
        for name, array in arrays.items():
            assert_same(array, others[name], device, f"{name} of layer {layer}")
