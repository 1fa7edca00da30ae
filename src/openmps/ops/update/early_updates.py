"""Updates that begin as soon as their gradients are there, beside the gradients of other layers.

An update is bound by memory, the gradients of small images by everything else: a GPU does both at once. `begin_early`
moves updates of a function as far to the front as what they read and write allows. In a capture each is a branch then,
which ends with the function; elsewhere they run at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import accumulate, combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.op import Equation, Function, Kind, Op, roots_of
from openmps.ops.triton.beside import Branch
from openmps.ops.update.joined_updates import MOST_IN_ALL, JoinedUpdate, join_updates
from openmps.ops.update.optimizers import Update
from openmps.ops.update.rows import AddRow, PartOfRow, Row

Roots = Mapping[int, frozenset[int]]
"""See `roots_of`."""
_Body = list[tuple[Equation, "_Touched"]]
"""Equations, and what each touches."""


class EarlyUpdate(Op, kind=Kind.UPDATE, has_effect=True):
    """An update that is done when `UpdatesDone` has read its result."""

    takes_device_numbers = True

    update: Update

    def overwritten(self, operands: int) -> Iterable[int]:
        """What the update writes."""
        return self.update.overwritten(operands)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """Begin."""
        device = next((each.device for each in operands if isinstance(each, Tensor)), torch.device("cpu"))
        return Branch(device, partial(self.update.run, (), *operands))


class UpdatesDone(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """The end of updates that began early."""

    def run(self, wanted: tuple[bool, ...], *branches: Branch) -> None:
        """Have all of them done."""
        for each in branches:
            each.end()


class _Touched(NamedTuple):
    """The memory that an equation reads or writes, and that which it writes."""

    read: frozenset[Hashable]
    written: frozenset[Hashable]

    def clashes(self, other: _Touched) -> bool:
        """Whether one writes what the other reads or writes."""
        return not (self.written.isdisjoint(other.read) and other.written.isdisjoint(self.read))


class _Update(NamedTuple):
    """One of the updates."""

    op: Update
    reads: tuple[int, ...]
    touched: _Touched
    front: int
    """How many other equations were in front of it."""


def begin_early(function: Function, memories: Sequence[Set[Hashable]]) -> Function:
    """The function with its updates begun early, where they are few and elementwise.

    It stays as it is where two of them touch one memory, or where anything behind one touches what that writes.
    ``memories`` are those of the inputs: inputs that have none in common are apart.
    """
    of_input = dict(zip(function.input_values, memories, strict=True))
    body, updates = _apart(function.equations, partial(_touched, roots=roots_of(function), memories=of_input))
    is_fit = all(each.op.is_elementwise for each in updates) and sum(each.op.vectors for each in updates) <= MOST_IN_ALL
    if not is_fit or any(one.touched.clashes(other.touched) for one, other in combinations(updates, 2)):
        return function
    if any(each.touched.clashes(touched) for each in updates for _, touched in body[each.front :]):
        return function
    body = _rows_behind_gradients(body)
    begun: list[list[Equation]] = [[] for _ in range(len(body) + 1)]
    """Updates by how many of the others are in front of them."""
    count = function.value_count
    for each in updates:
        places = enumerate(body, 1)
        place = max([at for at, (equation, touched) in places if _is_before(equation, touched, each)], default=0)
        is_last = place == len(body)
        op, writes = (each.op, ()) if is_last else (EarlyUpdate(each.op), (count,))
        begun[place].append(Equation(op, each.reads, writes))
        count += len(writes)
    if count == function.value_count:
        return function
    *others, last = begun
    equations = [*others[0]]
    for (equation, _), updated in zip(body, [*others[1:], []], strict=True):
        equations += [equation, *updated]
    equations += join_updates(function.with_equations(last, count)).equations
    equations.append(Equation(UpdatesDone(), tuple(range(function.value_count, count)), ()))
    return function.with_equations(equations, count)


def _is_before(equation: Equation, touched: _Touched, update: _Update) -> bool:
    """Whether an update must stay behind an equation in front of it."""
    return not {*equation.writes}.isdisjoint(update.reads) or update.touched.clashes(touched)


def _apart(equations: Iterable[Equation], touched: Callable[[Equation], _Touched]) -> tuple[_Body, list[_Update]]:
    """Other equations, and the updates one by one."""
    body: _Body = []
    updates: list[_Update] = []
    for equation in equations:
        op, reads = equation.op, equation.reads
        if isinstance(op, JoinedUpdate):
            starts = accumulate(op.counts, initial=0)
            pairs = zip(op.updates, starts, op.counts, strict=False)
            each = [(one, reads[start : start + count]) for one, start, count in pairs]
        elif isinstance(op, Update):
            each = [(op, reads)]
        else:
            body.append((equation, touched(equation)))
            continue
        updates += [_Update(one, own, touched(Equation(one, own, ())), len(body)) for one, own in each]
    return body, updates


def _touched(equation: Equation, roots: Roots, memories: Mapping[int, Set[Hashable]]) -> _Touched:
    """By the memory of inputs, and by the value where that is none's."""
    behind = [
        frozenset([memory for root in roots.get(value, ()) for memory in memories.get(root, {f"value {root}"})])
        for value in equation.reads
    ]
    written, nothing = equation.op.overwritten(len(behind)), frozenset[Hashable]()
    return _Touched(nothing.union(*behind), nothing.union(*[behind[place] for place in written]))


def _rows_behind_gradients(body: _Body) -> _Body:
    """The equations with those that make rows moved to where the numbers are made, or written last."""
    made: dict[int, int] = {}
    written: list[tuple[int, _Touched]] = []
    order: list[tuple[int, int]] = []
    for place, (equation, touched) in enumerate(body):
        moved = place
        if isinstance(equation.op, Row | AddRow | PartOfRow):
            last = [before for before, other in written if other.clashes(touched)]
            moved = max([made.get(value, -1) for value in equation.reads] + last)
        if touched.written:
            written.append((place, touched))
        made |= dict.fromkeys(equation.writes, moved)
        order.append((moved, place))
    return [body[place] for _, place in sorted(order)]
