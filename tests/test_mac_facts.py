"""What real Macs answered holds here, fact by fact; see `mac_facts` for the sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from mac_facts import arrays, graphs, image_filters, kernels, matrices, storage
from mac_facts.absent import ABSENT
from mac_facts.fact import Fact, agrees
from openmps.convention.table import MACHINES

FACTS = [*kernels.FACTS, *graphs.FACTS, *storage.FACTS, *matrices.FACTS, *arrays.FACTS, *image_filters.FACTS]
SWITCHED = [*graphs.SWITCHED, *storage.SWITCHED, *matrices.SWITCHED, *arrays.SWITCHED]


@in_one_test
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_fact(fact: Fact) -> None:
    found = fact.ask()
    assert agrees(found, fact.answer, fact.tolerance), f"{fact.says}: a Mac says {fact.answer}, openmps {found}"


@in_one_test
@pytest.mark.parametrize("fact", SWITCHED, ids=lambda fact: fact.name)
def test_fact_that_a_convention_makes_hold(fact: Fact) -> None:
    """In its block, and in that of the machine that measured it where its number is printed or computed there."""
    assert fact.switch is not None and not agrees(fact.ask(), fact.answer, 0.0)
    with mps.conventions(**fact.switch):
        assert agrees(fact.ask(), fact.answer, 0.0)
    machines = [name for name, known in MACHINES.items() if fact.switch.items() <= known.items()]
    assert bool(machines) == (fact.grade != "C")
    for machine in machines:
        with mps.conventions(machine):
            assert agrees(fact.ask(), fact.answer, 0.0)


@in_one_test
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
@pytest.mark.parametrize("machine", MACHINES)
def test_facts_hold_for_machines(machine: str, fact: Fact) -> None:
    """What is known of a machine contradicts no fact that holds without."""
    with mps.conventions(machine):
        assert agrees(fact.ask(), fact.answer, fact.tolerance)


@in_one_test
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_another_answer_is_told_apart(fact: Fact) -> None:
    """The last number is another one; of what is no numbers, the whole."""
    answer: Any = fact.answer
    if isinstance(answer, np.ndarray) or fact.tolerance:
        found, other = np.array(answer), np.array(answer)
        other[-1] += 1 + abs(other[-1]) // 100
        assert agrees(found, answer, fact.tolerance) and not agrees(other, answer, fact.tolerance)
    else:
        assert agrees(answer, answer, 0.0) and not agrees((answer,), answer, 0.0)


def test_names_are_all_different() -> None:
    names = [fact.name for fact in [*FACTS, *SWITCHED]] + [*storage.DECLINED, *matrices.DECLINED]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ABSENT)
def test_classes_without_tests_of_their_facts_are_not_there(name: str) -> None:
    """Whoever adds one writes the tests of what is known of it."""
    assert not hasattr(mps, name), f"{name} is there: make facts of {ABSENT[name]}"
