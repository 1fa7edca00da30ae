"""Updates of several layers at once: the rule that joins them, and the operation that they become.

`join_updates`: updates by one kind of optimizer with the same numbers, one after the other, become a `JoinedUpdate`: a
network's updates are little more than their launches. So do equations of running averages, and numbers that are put in
the place of others. The equations that they must equal are those one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.elements import Overwrite
from openmps.ops.normalization.batch_normalization import RunningAverages
from openmps.ops.op import Equation, Function, Kind, Op
from openmps.ops.triton.addresses import has_room
from openmps.ops.update.optimizers import Factors, Update, fits_one_pass

MOST_TOGETHER = 8
"""Vectors of one launch whose addresses are its arguments; those of more are in a table."""
MOST_IN_ALL = 16
"""Vectors of a network whose updates are joined by so few."""


def kind_of(equation: Equation) -> Hashable:
    """What equations that can be joined have in common; None for one that cannot be joined."""
    op = equation.op
    if isinstance(op, Update):
        return type(op), tuple(op.settings.items()), op.decays, op.is_scaled, _kinds(equation)
    return op if isinstance(op, RunningAverages | Overwrite) else None


def join_updates(function: Function, ranks: Sequence[int] | None = None) -> Function:
    """The function, whose equations write memory and have no results, with those joined that can be.

    Equations of different ``ranks`` are not joined: one may write what another one reads. Those of one rank are known
    to be apart.
    """
    updates = [equation.op for equation in function.equations if isinstance(equation.op, Update)]
    most = MOST_TOGETHER if sum(op.vectors for op in updates) <= MOST_IN_ALL else None
    equations: list[Equation] = []
    pairs = zip(function.equations, ranks or [0] * len(function.equations), strict=True)
    for (kind, _), group in groupby(pairs, lambda pair: (kind_of(pair[0]), pair[1])):
        run = [equation for equation, _ in group]
        if kind is None or len(run) == 1:
            equations += run
        elif isinstance(run[0].op, Update):
            groups = [run] if most is None else _cut(run, most)
            equations += [_joined(group, are_apart=ranks is not None) for group in groups]
        else:
            equations.append(_together(run))
    return function.with_equations(equations, function.value_count)


def _cut(run: Sequence[Equation], most: int) -> list[list[Equation]]:
    """Updates in groups of so many vectors at most."""
    groups: list[list[Equation]] = []
    held = most
    for equation in run:
        assert isinstance(equation.op, Update)
        if held + equation.op.vectors > most:
            groups.append([])
            held = 0
        groups[-1].append(equation)
        held += equation.op.vectors
    return groups


def _kinds(equation: Equation) -> int:
    """How many kinds of vectors an update has."""
    assert isinstance(equation.op, Update)
    return (len(equation.reads) - equation.op.numbers - 1) // equation.op.vectors


def _joined(run: Sequence[Equation], *, are_apart: bool) -> Equation:
    if len(run) == 1:
        return run[0]
    updates = tuple(equation.op for equation in run if isinstance(equation.op, Update))
    reads = tuple(value for equation in run for value in equation.reads)
    counts = tuple(len(equation.reads) for equation in run)
    return Equation(JoinedUpdate(updates, counts, are_apart), reads, ())


def _together(run: Sequence[Equation]) -> Equation:
    """One equation of an operation that takes the operands of any number of them."""
    op = run[0].op
    if isinstance(op, RunningAverages):
        return Equation(op, tuple(value for equation in run for value in equation.reads), run[0].writes)
    halves = [
        (equation.reads[: len(equation.reads) // 2], equation.reads[len(equation.reads) // 2 :]) for equation in run
    ]
    return Equation(
        op, tuple(value for half in zip(*halves, strict=True) for each in half for value in each), run[0].writes
    )


class _Part(NamedTuple):
    """The operands of one of the updates."""

    factors: Factors
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
    are_apart: bool = False
    """Whether it is known that no update writes what another one reads or writes."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """What each of them writes."""
        starts = accumulate(self.counts, initial=0)
        for op, start, count in zip(self.updates, starts, self.counts, strict=False):
            yield from (start + place for place in op.overwritten(count))

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """All of them in one launch where that can be, else one after the other."""
        parts = self._parts(operands)
        if self.are_apart and len(parts) > 1 and parts[0].runs[0][0].device.type == "cpu" and _have_one_step(parts):
            self._step_at_once(parts)
            return
        is_many = sum(len(part.runs[0]) for part in parts) > MOST_TOGETHER
        fits = self.updates[0].is_elementwise and all(fits_one_pass(*part) for part in parts)
        fits = fits and (not is_many or _fit_a_table(parts))
        if not parts or not fits or not _apart(parts):
            start = 0
            for op, count in zip(self.updates, self.counts, strict=True):
                op.run((), *operands[start : start + count])
                start += count
            return
        factors = [part.factors for part in parts for _ in part.runs[0]]
        runs = [[vector for run in kind for vector in run] for kind in zip(*(part.runs for part in parts), strict=True)]
        firsts = accumulate((len(part.runs[0]) for part in parts), initial=0)
        rounded = [(first, each) for first, part in zip(firsts, parts, strict=False) for each in part.rounded]
        self.updates[0].pass_once(factors, runs, rounded, is_many=is_many)

    def _step_at_once(self, parts: Sequence[_Part]) -> None:
        """All of them as one update of all vectors."""
        runs = [[vector for run in kind for vector in run] for kind in zip(*(part.runs for part in parts), strict=True)]
        op = self.updates[0]
        op.advance(parts[0].factors, runs)
        for part in parts:
            op.round_into(part.rounded, part.runs[-1][0])

    def _parts(self, operands: Sequence[Any]) -> list[_Part]:
        start, parts = 0, list[_Part]()
        for op, count in zip(self.updates, self.counts, strict=True):
            own = operands[start : start + count]
            *vectors, rounded = own[1 + op.decays + op.is_scaled :]
            runs = op.runs_of(vectors)
            if runs[0]:
                parts.append(_Part(op.factors_of(own), runs, rounded or ()))
            start += count
        return parts


def _have_one_step(parts: Sequence[_Part]) -> bool:
    """Whether all updates have the same numbers, those that the host tells not on the device."""
    rate, decay, scale = parts[0].factors
    are_same = all(part.factors[:2] == (rate, decay) and part.factors[2] is scale for part in parts)
    return isinstance(rate, float) and are_same


def _fit_a_table(parts: Sequence[_Part]) -> bool:
    """Whether the updates can be many: numbers lie on the device, nothing takes a result twice, there is a place."""
    from openmps.ops.triton.update.optimizers import COLUMNS

    numbers = [each for part in parts for each in part.factors.told()]
    are_there = all(isinstance(each, Tensor) and each.dtype == torch.float64 for each in numbers)
    are_single = all(len({each.dtype for each in part.rounded}) == len(part.rounded) for part in parts)
    return are_there and are_single and has_room(COLUMNS * sum(len(part.runs[0]) for part in parts))


class _Span(NamedTuple):
    """The bytes of a tensor, which one of the updates reads or writes."""

    begin: int
    end: int
    part: int
    is_written: bool

    @classmethod
    def of(cls, tensor: Tensor, part: int, *, is_written: bool) -> _Span:
        begin = tensor.data_ptr()
        return cls(begin, begin + tensor.nbytes, part, is_written)


def _apart(parts: Sequence[_Part]) -> bool:
    """Whether no update writes what another one reads or writes, and all rates are numbers or none is."""
    if len({isinstance(part.factors.rate, Tensor) for part in parts}) > 1:
        return False
    spans = [_Span.of(each, place, is_written=False) for place, part in enumerate(parts) for each in part.read()]
    spans += [_Span.of(each, place, is_written=True) for place, part in enumerate(parts) for each in part.written()]
    spans.sort()
    return not any(_clashes(place, spans) for place in range(len(spans)))


def _clashes(place: int, spans: Sequence[_Span]) -> bool:
    """Whether one of the bytes, in their order, is another update's, too, and one of both writes it."""
    mine = spans[place]
    for other in spans[place + 1 :]:
        if other.begin >= mine.end:
            return False
        if other.part != mine.part and (mine.is_written or other.is_written) and other.begin < other.end:
            return True
    return False
