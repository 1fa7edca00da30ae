"""Updates at the end of a static function: in which order they come together, and that numbers stay the same."""

from __future__ import annotations

import numpy as np
import torch

import openmps as mps
from openmps.ops.elements import Clear, Overwrite
from openmps.ops.op import Builder, Function, Role
from openmps.runtime.replay.static_function import StaticFunction
from openmps.runtime.replay.updates import StaticCall, Touched, joined
from replay_twin import assert_same, outcomes, replaying_queue

Format = mps.MPSImageFeatureChannelFormat
LAYERS, CHANNELS, STEPS = 10, 5, 5


def _body(kind: type[Overwrite | Clear], operands: int) -> Function:
    builder = Builder()
    kind()(*(builder.input(Role.BUFFER, str(index)) for index in range(operands)))
    return builder.finish()


def _touched(read: str, written: str) -> Touched:
    return Touched(frozenset(read + written), frozenset(written))


def test_what_writes_the_memory_of_another_stays_behind_it() -> None:
    """Copies that may be made together are one equation; one that reads what those write comes behind them."""
    copy, clear = _body(Overwrite, 2), _body(Clear, 1)
    moves = ["ba", "cb", "ed", "da"]  # to, from
    equations = [StaticCall(copy, [*move], (), None) for move in moves]
    touched = [_touched(move[1], move[0]) for move in moves]
    works, ends = joined(equations, [[0], [], [1], []], touched)
    assert ends == [[0, 1]]
    assert [len(equation.reads) for equation in works[0].function.equations] == [4, 4]
    memory = {name: torch.full((1,), float(place)) for place, name in enumerate("abcde")}
    works[0].function.run([memory[name] for name in works[0].readers])
    assert {name: int(each) for name, each in memory.items()} == {"a": 0, "b": 0, "c": 0, "d": 0, "e": 3}
    others = [equations[0], StaticCall(clear, ["a"], (), None), equations[1]]
    assert [work.function for work in joined(others, [[]] * 3, [Touched()] * 3)[0]] == [copy, clear, copy]


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
