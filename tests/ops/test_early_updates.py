"""Updates that begin beside the gradients of other layers: behind all that they must be behind, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.graph.run import update
from openmps.ops.elements import Overwrite
from openmps.ops.op import Builder, Function, Op, Role, Value
from openmps.ops.rewrite.rule import Place
from openmps.ops.update import early_updates
from openmps.ops.update.early_updates import begin_early
from openmps.ops.update.joined_updates import join_updates
from openmps.ops.update.optimizers import GradientRule, StochasticGradientDescent
from openmps.ops.update.rows import Row
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory

GRADIENT = 4
"""The value of the last layer's gradient in `function`, behind the inputs."""
DESCENT = StochasticGradientDescent(1, GradientRule(), 0.0, False)


class Times(Op):
    """A product of numbers."""

    factor: float

    def run(self, wanted: tuple[bool, ...], *operands: torch.Tensor) -> torch.Tensor:
        return operands[0] * self.factor


class AtOnce:
    """A branch whose launches are done before what follows them, as a GPU may do it."""

    def __init__(self, device: torch.device, launch: Callable[[], None]) -> None:
        launch()

    def end(self) -> None:
        """Nothing is left to do."""


def function(between: Callable[[Builder], object], behind: Callable[[Builder], object] = lambda _: None) -> Function:
    """The last layer's gradient, something, the first layer's gradient; then both updates, and something."""
    builder = Builder()
    x, rate = builder.input(Role.SOURCE, "x"), builder.input(Role.NUMBER, "rate")
    first, last = (builder.input(Role.BUFFER, name) for name in ("first", "last"))
    of_last = Times(2.0)(x)
    between(builder)
    of_first = Times(3.0)(x)
    rows = Row()(of_last), Row()(of_first)
    DESCENT(rate, rows[0], last, last, None)
    DESCENT(rate, rows[1], first, first, None)
    builder.output("gradient", of_first)
    behind(builder)
    return join_updates(builder.finish())


def read_last(builder: Builder) -> None:
    builder.output("seen", Times(5.0)(builder.input(Role.BUFFER, "alias of last")))


def write_last(builder: Builder) -> None:
    Overwrite()(builder.input(Role.BUFFER, "alias of last"), builder.input(Role.SOURCE, "x"))


def write_gradient(builder: Builder) -> None:
    """Something is done to the numbers of the last layer's gradient, in the memory that it was made in."""
    Overwrite()(Value(builder, GRADIENT), builder.input(Role.SOURCE, "x"))


def read_another(builder: Builder) -> None:
    builder.output("seen", Times(5.0)(builder.input(Role.BUFFER, "another")))


def begun(found: Function, shared: set[str] | None = None) -> Function:
    """The function begun early; inputs whose names end alike are the same memory."""
    memories: list[frozenset[Hashable]] = [
        frozenset({"shared" if shared and each.name in shared else each.name.split()[-1]}) for each in found.inputs
    ]
    return begin_early(found, memories)


EARLY, FIRST = ("Times", "Row", "EarlyUpdate"), ("Times", "Row", "StochasticGradientDescent", "UpdatesDone")
CASES = {
    "nothing": (lambda builder: None, (*EARLY, *FIRST)),
    "reads another": (read_another, (*EARLY, "Times", *FIRST)),
    "reads it": (read_last, ("Times", "Row", "Times", "EarlyUpdate", *FIRST)),
    "writes it": (write_last, ("Times", "Row", "Overwrite", "EarlyUpdate", *FIRST)),
    "writes the gradient": (write_gradient, ("Times", "Overwrite", "Row", "EarlyUpdate", *FIRST)),
}


@pytest.mark.parametrize("between", CASES)
def test_updates_begin_where_they_can(between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, order = CASES[between]
    whole = function(make)
    early = begun(whole)
    assert early.operations() == order
    assert early.overwritten() == whole.overwritten()

    def run(each: Function) -> tuple[list[Any], dict[str, torch.Tensor]]:
        names = {place.name.split()[-1] for place in each.inputs} - {"rate"}
        given = {name: torch.arange(3.0) + len(name) for name in sorted(names)}
        values = [0.5 if place.name == "rate" else given[place.name.split()[-1]] for place in each.inputs]
        return each.run(values), given

    expected = run(whole)
    for branch in (early_updates.Branch, AtOnce):
        monkeypatch.setattr(early_updates, "Branch", branch)
        torch.testing.assert_close(run(early), expected, rtol=0.0, atol=0.0)


def test_updates_of_one_memory_stay_where_they_are() -> None:
    whole = function(read_another)
    assert begun(whole, {"first", "last"}) is whole


@pytest.mark.parametrize("behind", [read_last, write_last])
def test_updates_stay_in_front_of_what_touches_their_results(behind: Callable[[Builder], object]) -> None:
    whole = function(read_another, behind)
    assert begun(whole) is whole


def test_a_network_trained_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """README's network, its updates begun early and done at once, against those at the end of each step."""

    def trained(place: Place) -> tuple[dict[str, Any], tuple[str, ...]]:
        monkeypatch.setattr(update, "place_of", lambda _: place)
        device, rng = mps.mtl_device("cpu"), np.random.default_rng(0)
        network = SampleNetwork.create(NetworkShape(8, 8, 1, 3), seed=1, optimizer=optimizer_factory("adam", 1e-3))
        graph = network.training_graph(
            device, mps.MPSImageFeatureChannelFormat.FLOAT32, loss_weight=1.0, dropout_seed=1
        )
        graph.stop_on_non_finite = False
        queue, operations = device.new_command_queue(), ()
        for _ in range(3):
            command_buffer = mps.MPSCommandBuffer(queue)
            batch = mps.MPSImageBatch.from_numpy(device, rng.random((2, 8, 8, 1), np.float32))
            labels = mps.MPSCNNLossLabels.batch(device, np.eye(3, dtype=np.float32)[rng.integers(0, 3, 2)])
            graph.encode_batch(command_buffer, [batch], [labels])
            work: Any = command_buffer.encodings[-1][1]
            operations = work.function.operations()
            command_buffer.commit()
            command_buffer.wait_until_completed()
        return network.arrays(), operations

    monkeypatch.setattr(early_updates, "Branch", AtOnce)
    expected, operations = trained(Place.CPU)
    assert operations[-1] == "JoinedUpdate"
    found, operations = trained(Place.TRITON)
    assert operations.count("EarlyUpdate") == 3
    assert operations.index("EarlyUpdate") < operations.index("ReluPoolGradient")
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
