"""Updates of several layers at once: the rule that joins them, and the operation that they become.

`join_updates`: updates by one kind of optimizer with the same numbers, one after the other, become a `JoinedUpdate`,
where they are of few vectors: a small network's updates are little more than their launches. The steps that it must
equal are the updates one by one. A captured command buffer is where they meet (`openmps.core.kernel.replay.tape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import Tensor

from openmps.ops.op import Body, Kind, Op, Step
from openmps.ops.optimizers import Rate, Update, fits_one_pass

MOST_TOGETHER = 8
"""Vectors of one launch, whose addresses are its arguments."""
MOST_IN_ALL = 16
"""Vectors of a network whose updates are joined."""


def join_updates(body: Body) -> Body:
    """The body, whose steps are updates, with those joined that can be."""
    updates = [step.op for step in body.steps if isinstance(step.op, Update)]
    if len(updates) != len(body.steps) or sum(op.vectors for op in updates) > MOST_IN_ALL:
        return body
    steps: list[Step] = []
    run: list[Step] = []
    for step in body.steps:
        if run and not _can_join(run, step):
            steps.append(_joined(run))
            run = []
        run.append(step)
    return body.with_steps([*steps, _joined(run)], body.slots)


def _can_join(run: Sequence[Step], step: Step) -> bool:
    first, op = run[0].op, step.op
    assert isinstance(first, Update)
    assert isinstance(op, Update)
    vectors = op.vectors + sum(each.op.vectors for each in run if isinstance(each.op, Update))
    is_same = type(op) is type(first) and op.settings == first.settings
    return is_same and _kinds(step) == _kinds(run[0]) and vectors <= MOST_TOGETHER


def _kinds(step: Step) -> int:
    """How many kinds of vectors an update has."""
    assert isinstance(step.op, Update)
    return (len(step.reads) - 2) // step.op.vectors


def _joined(run: Sequence[Step]) -> Step:
    if len(run) == 1:
        return run[0]
    updates = tuple(step.op for step in run if isinstance(step.op, Update))
    reads = tuple(slot for step in run for slot in step.reads)
    return Step(JoinedUpdate(updates, tuple(len(step.reads) for step in run)), reads, ())


class _Part(NamedTuple):
    """The operands of one of the updates."""

    rate: Rate
    runs: Sequence[Sequence[Tensor]]
    rounded: Sequence[Tensor]

    def read(self) -> list[Tensor]:
        """Gradients and values."""
        return [*self.runs[0], *self.runs[1]]

    def written(self) -> list[Tensor]:
        """All that it writes."""
        return [*(vector for run in self.runs[2:] for vector in run), *self.rounded]


class JoinedUpdate(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """Updates of the same kind and numbers, but for their rates; the operands of one behind those of the other."""

    takes_device_numbers = True

    updates: tuple[Update, ...]
    counts: tuple[int, ...]
    """Of operands."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """What each of them writes."""
        starts = accumulate(self.counts, initial=0)
        for op, start, count in zip(self.updates, starts, self.counts, strict=False):
            yield from (start + place for place in op.overwritten(count))

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """All of them in one launch where that can be, else one after the other."""
        parts = [*self._parts(operands)]
        if not all(fits_one_pass(*part) for part in parts) or not _apart(parts):
            start = 0
            for op, count in zip(self.updates, self.counts, strict=True):
                op.run((), *operands[start : start + count])
                start += count
            return
        rates = [part.rate for part in parts for _ in part.runs[0]]
        runs = [[vector for run in kind for vector in run] for kind in zip(*(part.runs for part in parts), strict=True)]
        firsts = accumulate((len(part.runs[0]) for part in parts), initial=0)
        rounded = [(first, each) for first, part in zip(firsts, parts, strict=False) for each in part.rounded]
        self.updates[0].pass_once(rates, runs, rounded)

    def _parts(self, operands: Sequence[Any]) -> Iterator[_Part]:
        start = 0
        for op, count in zip(self.updates, self.counts, strict=True):
            rate, *vectors, rounded = operands[start : start + count]
            runs = [vectors[first : first + op.vectors] for first in range(0, len(vectors), op.vectors)]
            yield _Part(rate, runs, rounded or ())
            start += count


def _apart(parts: Sequence[_Part]) -> bool:
    """Whether no update writes what another one reads or writes, and all rates are numbers or none is."""
    if len({isinstance(part.rate, Tensor) for part in parts}) > 1:
        return False
    for part in parts:
        others = [each for other in parts if other is not part for each in (*other.read(), *other.written())]
        if any(_overlap(mine, each) for mine in part.written() for each in others):
            return False
    return True


def _overlap(one: Tensor, other: Tensor) -> bool:
    begin, end = (
        max(one.data_ptr(), other.data_ptr()),
        min(one.data_ptr() + one.nbytes, other.data_ptr() + other.nbytes),
    )
    return begin < end
