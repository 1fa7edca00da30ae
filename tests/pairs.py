"""Cases in which every two values of any two parameters meet: fewer than all, and a fault of two values still shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

Case = tuple[int, ...]


def _met(case: Case) -> set[tuple[tuple[int, int], ...]]:
    """The pairs of (parameter, value) in a case."""
    return set(combinations(enumerate(case), 2))


def pairs(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Of all combinations of values as few as a greedy choice finds, in their order, so that every two values meet.

    The first of those that bring most pairs that have not met is taken, until all have.
    """
    if len(parameters) < 2:
        return list(product(*parameters))
    every = {case: _met(case) for case in product(*(range(len(values)) for values in parameters))}
    missing, chosen = set().union(*every.values()), list[Case]()
    while missing:
        best = max(every, key=lambda case: len(every[case] & missing))
        missing -= every[best]
        chosen.append(best)
    return [tuple(values[at] for values, at in zip(parameters, case, strict=True)) for case in sorted(chosen)]


def dealt(parameters: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """All combinations of the values of ``parameters``, each with one of the values of ``others``.

    The others go round, so that every two values meet where there are cases enough: what is computed is tried whole,
    how its numbers are stored by turns.
    """
    hands = [*product(*(range(len(values)) for values in others))]
    met, found = Counter[Any](), list[tuple[Any, ...]]()
    for case in product(*(range(len(values)) for values in parameters)):
        meetings = {hand: [(*one, *other) for one in enumerate(case) for other in enumerate(hand)] for hand in hands}
        hand = min(hands, key=lambda each: [sorted(map(met.__getitem__, meetings[each]), reverse=True), met[each]])
        met.update(meetings[hand])
        met[hand] += 1
        found.append((*(values[at] for values, at in zip((*parameters, *others), (*case, *hand), strict=True)),))
    return found
