"""Updates that begin as soon as their gradients are there, beside the gradients of other layers.

An update is bound by memory, the gradients of small images by everything else: a GPU does both at once. `begin_early`
moves updates of a function as far to the front as what they read and write allows. In a capture each is a branch then,
which ends with the function; elsewhere they run at its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
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

    read: Set[Hashable]
    written: Set[Hashable]

    def clashes(self, other: _Touched) -> bool:
        """Whether one writes what the other reads or writes."""
        return not (self.written.isdisjoint(other.read) and other.written.isdisjoint(self.read))


def begin_early(function: Function, memories: Sequence[Set[Hashable]]) -> Function:
    """The function with its updates begun early, where they are few and elementwise, and no two touch one memory.

    ``memories`` are those of the inputs: inputs that have none in common are apart.
    """
    body, updates = _apart(function.equations)
    is_fit = all(op.is_elementwise for op, _ in updates) and sum(op.vectors for op, _ in updates) <= MOST_IN_ALL
    roots, of_input = roots_of(function), dict(zip(function.input_values, memories, strict=True))
    touched = partial(_touched, roots=roots, memories=of_input)
    mine = [touched(Equation(op, reads, ())) for op, reads in updates]
    if not is_fit or any(one.clashes(other) for one, other in combinations(mine, 2)):
        return function
    body = _rows_behind_gradients(body, {value for value in roots if not roots[value].isdisjoint(of_input)})
    theirs = [touched(equation) for equation in body]
    begun: list[list[Equation]] = [[] for _ in range(len(body) + 1)]
    """Updates by how many of the others are in front of them."""
    count = function.value_count
    for (op, reads), own in zip(updates, mine, strict=True):
        place = max(
            (
                place
                for place, (equation, other) in enumerate(zip(body, theirs, strict=True), 1)
                if not {*equation.writes}.isdisjoint(reads) or own.clashes(other)
            ),
            default=0,
        )
        is_last = place == len(body)
        begun[place].append(Equation(op, reads, ()) if is_last else Equation(EarlyUpdate(op), reads, (count,)))
        count += not is_last
    if count == function.value_count:
        return function
    *others, last = begun
    equations = [*others[0]]
    for equation, updated in zip(body, [*others[1:], []], strict=True):
        equations += [equation, *updated]
    equations += join_updates(function.with_equations(last, count)).equations
    equations.append(Equation(UpdatesDone(), tuple(range(function.value_count, count)), ()))
    return function.with_equations(equations, count)


def _apart(equations: Iterable[Equation]) -> tuple[list[Equation], list[tuple[Update, tuple[int, ...]]]]:
    """Other equations, and the updates one by one, with what they read."""
    body: list[Equation] = []
    updates: list[tuple[Update, tuple[int, ...]]] = []
    for equation in equations:
        op, reads = equation.op, equation.reads
        if isinstance(op, Update):
            updates.append((op, reads))
        elif isinstance(op, JoinedUpdate):
            starts = accumulate(op.counts, initial=0)
            pairs = zip(op.updates, starts, op.counts, strict=False)
            updates += [(each, reads[start : start + count]) for each, start, count in pairs]
        else:
            body.append(equation)
    return body, updates


def _touched(equation: Equation, roots: Roots, memories: Mapping[int, Set[Hashable]]) -> _Touched:
    behind = [
        frozenset([memory for root in roots.get(value, ()) for memory in memories.get(root, ())])
        for value in equation.reads
    ]
    written = {*equation.op.overwritten(len(behind))}
    nothing = frozenset[Hashable]()
    return _Touched(nothing.union(*behind), nothing.union(*[behind[place] for place in written]))


def _rows_behind_gradients(equations: Sequence[Equation], of_inputs: Set[int]) -> list[Equation]:
    """The equations with those that make rows moved to where the numbers are made, unless these are of inputs."""
    made: dict[int, int] = {}
    order: list[tuple[int, int]] = []
    for place, equation in enumerate(equations):
        is_row = isinstance(equation.op, Row | AddRow | PartOfRow) and of_inputs.isdisjoint(equation.reads)
        moved = max(made.get(value, -1) for value in equation.reads) if is_row else place
        made |= dict.fromkeys(equation.writes, moved)
        order.append((moved, place))
    return [equations[place] for _, place in sorted(order)]
