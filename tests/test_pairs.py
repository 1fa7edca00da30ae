"""The cases that `pairs` chooses: every two values meet, and no more cases than all."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from in_one_test import in_one_test
from pairs import dealt, pairs


@in_one_test
@pytest.mark.parametrize("lengths", [(1,), (3,), (2, 5), (5, 3, 2), (5, 3, 3), (4, 2, 2, 2), (3, 3, 3, 3), (10, 2, 4)])
def test_every_two_values_meet(lengths: tuple[int, ...]) -> None:
    values = [[f"{place}{value}" for value in range(length)] for place, length in enumerate(lengths)]
    found = pairs(*values)
    assert set(found) <= set(product(*values)) and len(set(found)) == len(found)
    for one, other in combinations(range(len(lengths)), 2):
        assert {(case[one], case[other]) for case in found} == set(product(values[one], values[other]))
    assert [{case[place] for case in found} for place in range(len(lengths))] == [set(each) for each in values]


def test_they_are_fewer() -> None:
    assert len(pairs(range(5), range(3), range(3))) == 15
    assert len(pairs(range(10), range(2), range(4))) == 40


@pytest.mark.parametrize(("lengths", "others"), [((8, 3, 6), (4, 2)), ((3, 4), (3, 2)), ((5, 2), (2,)), ((2, 2), ())])
def test_every_case_is_dealt_once_and_meets_every_value(lengths: tuple[int, ...], others: tuple[int, ...]) -> None:
    found = dealt([range(length) for length in lengths], [range(length) for length in others])
    assert [case[: len(lengths)] for case in found] == [*product(*map(range, lengths))]
    for one, other in combinations(range(len(lengths) + len(others)), 2):
        length = (*lengths, *others)
        assert {(case[one], case[other]) for case in found} == set(product(range(length[one]), range(length[other])))
