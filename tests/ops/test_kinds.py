"""Kinds of operations are what rules take them for: what says that it is pointwise is so, wherever samples run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from catalogue import SWEPT
from encoding import FLOAT32, Bench, train
from in_one_test import in_one_test
from openmps.errors import MPSTrainingWarning
from openmps.ops.op import Function, Kind, Op
from samples.sample import Sample


def _pointwise(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Op, list[Any]]]:
    """The pointwise operations of one image that a sample runs, with their operands."""
    found: list[tuple[Op, list[Any]]] = []
    own = Function.run

    def run(function: Function, values: list[Any], room: Tensor | None = None) -> list[Any]:
        def perform(action: Any, operands: list[Any]) -> Any:
            if action.op.kind is Kind.POINTWISE and action.op.results == 1:
                found.append((action.op, [each.clone() if isinstance(each, Tensor) else each for each in operands]))
            return action.op.run(action.wanted, *operands)

        return function.run_each(values, perform)

    monkeypatch.setattr(Function, "run", run)
    bench = Bench.on(torch.device("cpu"))
    train(bench, sample, sample.sources(), lambda values: bench.batch(values, FLOAT32))
    monkeypatch.setattr(Function, "run", own)
    return found


def _images(operands: list[Any]) -> Iterator[int]:
    return (place for place, each in enumerate(operands) if isinstance(each, Tensor) and each.ndim == 4)


@in_one_test
@pytest.mark.filterwarnings(f"ignore::{MPSTrainingWarning.__module__}.{MPSTrainingWarning.__name__}")
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_a_pointwise_operation_changes_one_number_for_one(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the image's shape, and another number in one place changes no other place."""
    for op, operands in _pointwise(sample, monkeypatch):
        before: Any = op.run((True,), *[each.clone() if isinstance(each, Tensor) else each for each in operands])
        for place in _images(operands):
            if before.shape != operands[place].shape:
                assert any(before.shape == operands[other].shape for other in _images(operands)), op
                continue  # An image of one pixel, row or column that is broadcast.
            changed = [each.clone() if isinstance(each, Tensor) else each for each in operands]
            index = tuple([size // 2 for size in operands[place].shape])
            changed[place][index] = ~changed[place][index] if changed[place].dtype == torch.bool else 0.123
            after: Any = op.run((True,), *changed)
            others = torch.ones_like(before, dtype=torch.bool)
            others[index] = False
            torch.testing.assert_close(after[others], before[others], rtol=0, atol=0, equal_nan=True)
