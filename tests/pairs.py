"""Cases in which every two values of any two parameters meet: fewer than all, and a fault of two values still shows."""

from __future__ import annotations

import random
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

    Every two values meet where there are cases enough; what meets equally often is drawn, so that nothing which a test
    makes of the number of a case goes with it. What is computed is tried whole, how its numbers are stored by turns.
    """
    hands, draw = [*product(*(range(len(values)) for values in others))], random.Random(0)
    met, found = Counter[tuple[tuple[int, int], tuple[int, int]]](), list[tuple[Any, ...]]()
    for case in product(*(range(len(values)) for values in parameters)):
        meetings = {hand: [*product(enumerate(case), enumerate(hand))] for hand in hands}
        counts = {hand: sorted((met[each] for each in meetings[hand]), reverse=True) for hand in hands}
        hand = min(hands, key=lambda each: (counts[each], draw.random()))
        met.update(meetings[hand])
        values = zip((*parameters, *others), (*case, *hand), strict=True)
        found.append((*(several[at] for several, at in values),))
    return found
