"""Cases in which every two values of any two parameters meet: fewer than all, and a fault of two values still shows."""

from __future__ import annotations

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
