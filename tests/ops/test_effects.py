"""Operations that write the memory of operands say which: a read of the CPU is refused, or waits, by what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import openmps  # noqa: F401 - all operations
from in_one_test import in_one_test
from openmps.ops.convolution.convolution import CopyNumbers, TakeWeights
from openmps.ops.elements import Clear, Overwrite, RowSums
from openmps.ops.layout.image_copy import ImagesToRows
from openmps.ops.matrix.combination import CopyElements
from openmps.ops.normalization.batch_normalization import RunningAverages
from openmps.ops.op import Kind, Op
from openmps.ops.random.random_distributions import FillByPhilox, FillBySequence, Integers
from openmps.ops.triton.beside import Branch
from openmps.ops.update.early_updates import EarlyUpdate, UpdatesDone
from openmps.ops.update.joined_updates import JoinedUpdate
from openmps.ops.update.muon import Muon
from openmps.ops.update.optimizers import (
    Adam,
    GradientRule,
    HandOn,
    MovingAverage,
    RmsProp,
    StochasticGradientDescent,
)
from openmps.ops.update.rows import AddNumbers, NormScale
from openmps.ops.update.shards import RoundGathered
from openmps.runtime.derived import Refresh


class Words:
    """Stands for the words of a generator."""

    def next_words(self, count: int) -> torch.Tensor:
        return torch.arange(5, 5 + count)


class Remade:
    """Stands for what is derived from some memory."""

    def __init__(self) -> None:
        self.numbers = torch.ones(2)

    def make(self) -> None:
        self.numbers = self.numbers + 1

    def clone(self) -> Remade:
        twin = Remade()
        twin.numbers = self.numbers
        return twin


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers or (1.0, 2.0))


def rows(count: int) -> list[torch.Tensor]:
    return [row(*(index + 1.0, index + 2.0)) for index in range(count)]


def many(count: int) -> list[torch.Tensor]:
    return rows(2 * count)


_DESCENT = StochasticGradientDescent(2, GradientRule(), 0.5, False)
EFFECTS: dict[type[Op], Callable[[], tuple[Op, list[Any]]]] = {
    CopyNumbers: lambda: (CopyNumbers(), rows(4)),
    TakeWeights: lambda: (
        TakeWeights(),
        [
            *rows(2),
            row(9, 9).view(2, 1, 1, 1),
            row(8, 8),
            row(3, 3),
            row(4, 4),
            row(5, 5).view(2, 1, 1, 1),
            row(6, 6),
            (row(7, 7).half().view(2, 1, 1, 1),),
        ],
    ),
    Overwrite: lambda: (Overwrite(), rows(4)),
    Refresh: lambda: (Refresh(), [Remade()]),
    Clear: lambda: (Clear(), rows(2)),
    RowSums: lambda: (RowSums(), [row(), row(1, 2, 3, 4).view(2, 2), row(5, 6).view(1, 2)]),
    ImagesToRows: lambda: (ImagesToRows(True), [torch.zeros(1, 2), torch.ones(1, 2, 1, 1)]),
    CopyElements: lambda: (
        CopyElements(1, 2, False, False),
        [torch.zeros(2, 2), torch.ones(1, 2), torch.tensor([0, 0, 1, 0]), torch.tensor([0]), torch.tensor([1, 0])],
    ),
    HandOn: lambda: (HandOn(), rows(2)),
    StochasticGradientDescent: lambda: (
        StochasticGradientDescent(2, GradientRule(), 0.5, False),
        [0.5, *many(4), (row(77, 78).half(),)],
    ),
    RmsProp: lambda: (RmsProp(2, GradientRule(), 0.9, 1e-3), [0.5, *many(4), None]),
    Adam: lambda: (Adam(2, GradientRule(), 0.9, 0.99, 1e-3), [0.5, *many(5), None]),
    Muon: lambda: (Muon(2, GradientRule(), 0.9, 1), [0.5, *many(4), None]),
    MovingAverage: lambda: (MovingAverage(2), [-0.5, *many(3), None]),
    AddNumbers: lambda: (AddNumbers(), rows(4)),
    NormScale: lambda: (NormScale((1.0, 2.0)), [0.5, *rows(2), row(7)]),
    JoinedUpdate: lambda: (
        JoinedUpdate((_DESCENT, _DESCENT), (8, 8)),
        [0.5, *many(3), None, 0.25, *many(3), (row(77, 78).half(),)],
    ),
    EarlyUpdate: lambda: (EarlyUpdate(_DESCENT), [0.5, *many(4), None]),
    UpdatesDone: lambda: (UpdatesDone(), [Branch(torch.device("cpu"), lambda: None)]),
    RunningAverages: lambda: (RunningAverages(0.5), [*rows(4), 2.0]),
    RoundGathered: lambda: (RoundGathered(), [*rows(2), (row(77, 78).half(),), (row(79, 80),)]),
    FillByPhilox: lambda: (FillByPhilox(Integers(), 8, 3), [torch.zeros(2, dtype=torch.int32), 0]),
    FillBySequence: lambda: (FillBySequence(Integers(), 8), [torch.zeros(2, dtype=torch.int32), Words()]),
}


def with_effect(kind: type[Op] = Op) -> Iterator[type[Op]]:
    """The operations of the package that have an effect and no operations below them.

    Not those that several processes do together, which tests/distributed has.
    """
    below = kind.__subclasses__()
    for each in below:
        yield from with_effect(each)
    is_own = kind.kind is not Kind.COLLECTIVE
    if not below and kind.has_effect and is_own and kind.__module__.startswith("openmps."):
        yield kind


def test_every_effect_is_known() -> None:
    assert set(with_effect()) == set(EFFECTS)


@in_one_test
@pytest.mark.parametrize("kind", EFFECTS)
def test_what_is_overwritten(kind: type[Op]) -> None:
    """Exactly what is said changes."""
    op, operands = EFFECTS[kind]()
    before = [_copy(operand) for operand in operands]
    made = op.run((), *operands)
    if isinstance(made, Branch):
        made.end()
    changed = [index for index, (now, then) in enumerate(zip(operands, before, strict=True)) if _differ(now, then)]
    said = [index for index in op.overwritten(len(operands)) if operands[index] is not None]
    assert changed == said


def _copy(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return tuple(each.clone() for each in operand)
    return operand.clone() if isinstance(operand, torch.Tensor | Remade) else operand


def _differ(now: Any, then: Any) -> bool:
    if isinstance(now, tuple):
        return any(_differ(*pair) for pair in zip(now, then, strict=True))
    if isinstance(now, Remade):
        return _differ(now.numbers, then.numbers)
    return isinstance(now, torch.Tensor) and not torch.equal(now, then)


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_are_added_up_in_the_place_of_what_was_there(parts: int) -> None:
    total, matrix = row(9, 9), torch.arange(12.0).view(6, 2)
    RowSums().run((), total, *matrix.chunk(parts))
    assert total.tolist() == [30, 36]
