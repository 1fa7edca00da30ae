"""Updates at the end of a tape, brought together: a network's are many, each little more than its launch.

Works that do nothing but write memory that stays may change places, unless one writes what another one reads or writes.
Those of a kind come together (`openmps.ops.update.joined_updates`), and become one work with what lies between them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from openmps.core.kernel.encoding import Encoding
from openmps.ops.op import Body, Builder
from openmps.ops.update.joined_updates import join_updates, kind_of


class TapeStep(NamedTuple):
    """One work of the tape."""

    body: Body
    readers: Sequence[Any]
    takers: Sequence[tuple[int, Any]]
    """By the place of the output among those of the body."""
    guard: Encoding | None


class Touched(NamedTuple):
    """The memory of a work, as far as works of the tape write it."""

    read: frozenset[Hashable] = frozenset()
    written: frozenset[Hashable] = frozenset()


def joined(
    steps: Sequence[TapeStep], ends: Sequence[list[int]], touched: Sequence[Touched]
) -> tuple[list[TapeStep], list[list[int]]]:
    """Updates that come one after the other as one work, and which inner memory ends with each work."""
    works: list[TapeStep] = []
    lasts: list[list[int]] = []
    for is_update, group in groupby(zip(steps, ends, touched, strict=True), lambda each: _is_update(each[0])):
        run = [*group]
        if is_update and len(run) > 1:
            works.append(_one_of([step for step, _, _ in run], [each for _, _, each in run]))
            lasts.append([number for _, end, _ in run for number in end])
        else:
            works += [step for step, _, _ in run]
            lasts += [end for _, end, _ in run]
    return works, lasts


def _is_update(step: TapeStep) -> bool:
    """Whether a work does nothing but update memory that stays."""
    is_alone = not step.takers and step.guard is None
    return is_alone and len(step.body.steps) == 1 and kind_of(step.body.steps[0]) is not None


def _one_of(steps: Sequence[TapeStep], touched: Sequence[Touched]) -> TapeStep:
    """Works as one, those of a rank and kind together."""
    builder, ranks = Builder(), _ranks(touched)
    kinds = [kind_of(step.body.steps[0]) for step in steps]
    first = {kind: place for place, kind in reversed([*enumerate(kinds)])}
    order = sorted(range(len(steps)), key=lambda place: (ranks[place], first[kinds[place]]))
    readers: list[Any] = []
    for place in order:
        step = steps[place]
        inputs = [builder.input(role, f"{place}:{name}") for role, name in step.body.inputs]
        builder.splice(step.body, inputs)
        readers += step.readers
    return TapeStep(join_updates(builder.finish(), [ranks[place] for place in order]), readers, [], None)


def _ranks(touched: Iterable[Touched]) -> list[int]:
    """Of each work a number above those of all before it that it must not change places with."""
    read: dict[Hashable, int] = {}
    written: dict[Hashable, int] = {}
    ranks: list[int] = []
    for each in touched:
        before = [written.get(place, -1) for place in each.read | each.written]
        before += [read.get(place, -1) for place in each.written]
        rank = 1 + max(before, default=-1)
        read |= {place: max(rank, read.get(place, -1)) for place in each.read}
        written |= dict.fromkeys(each.written, rank)
        ranks.append(rank)
    return ranks
