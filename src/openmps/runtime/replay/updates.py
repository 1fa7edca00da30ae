"""Updates at the end of a static function, brought together: a network's are many, each little more than its launch.

Works that do nothing but write memory that stays may change places, unless one writes what another one reads or writes.
Those of a kind come together (`openmps.ops.update.joined_updates`), and become one work with what lies between them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from torch import Tensor

from openmps.metal.memory import Memory
from openmps.ops.op import Builder, Function
from openmps.ops.update.joined_updates import join_updates, kind_of
from openmps.runtime.dispatch import Dispatch

Memories = Mapping[int, Memory]
"""The inner memory of one run of a static function, by its numbers."""


class Reader(Protocol):
    """Where an input is found while a static function runs."""

    def read(self, memories: Memories) -> object:
        """What is read."""
        ...


class Taker(Protocol):
    """Where an output goes while a static function runs."""

    def take(self, value: Tensor | None, memories: Memories, outs: list[Tensor | None]) -> None:
        """Keep the value, and add it to ``outs`` if it comes out."""
        ...


class StaticCall(NamedTuple):
    """One work of the static function."""

    function: Function
    readers: Sequence[Reader]
    takers: Sequence[tuple[int, Taker]]
    """By the place of the output among those of the function."""
    guard: Dispatch | None


class Touched(NamedTuple):
    """The memory of a work, as far as works of the static function write it."""

    read: frozenset[Hashable] = frozenset()
    written: frozenset[Hashable] = frozenset()


def joined(
    equations: Sequence[StaticCall], ends: Sequence[list[int]], touched: Sequence[Touched]
) -> tuple[list[StaticCall], list[list[int]]]:
    """Updates that come one after the other as one work, and which inner memory ends with each work."""
    works: list[StaticCall] = []
    lasts: list[list[int]] = []
    for is_update, group in groupby(zip(equations, ends, touched, strict=True), lambda each: _is_update(each[0])):
        run = [*group]
        if is_update and len(run) > 1:
            works.append(_one_of([equation for equation, _, _ in run], [each for _, _, each in run]))
            lasts.append([number for _, end, _ in run for number in end])
        else:
            works += [equation for equation, _, _ in run]
            lasts += [end for _, end, _ in run]
    return works, lasts


def _is_update(equation: StaticCall) -> bool:
    """Whether a work does nothing but update memory that stays."""
    is_alone = not equation.takers and equation.guard is None
    return is_alone and len(equation.function.equations) == 1 and kind_of(equation.function.equations[0]) is not None


def _one_of(equations: Sequence[StaticCall], touched: Sequence[Touched]) -> StaticCall:
    """Works as one, those of a rank and kind together."""
    builder, ranks = Builder(), _ranks(touched)
    kinds = [kind_of(equation.function.equations[0]) for equation in equations]
    first = {kind: place for place, kind in reversed([*enumerate(kinds)])}
    order = sorted(range(len(equations)), key=lambda place: (ranks[place], first[kinds[place]]))
    readers: list[Reader] = []
    for place in order:
        equation = equations[place]
        inputs = [builder.input(role, f"{place}:{name}") for role, name in equation.function.inputs]
        builder.splice(equation.function, inputs)
        readers += equation.readers
    return StaticCall(join_updates(builder.finish(), [ranks[place] for place in order]), readers, [], None)


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
