"""What real Macs answered holds here, fact by fact; see `mac_facts` for the sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openmps as mps
from mac_facts import graphs, kernels, storage
from mac_facts.absent import ABSENT
from mac_facts.fact import Fact, agrees

FACTS = [*kernels.FACTS, *graphs.FACTS, *storage.FACTS]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_fact(fact: Fact) -> None:
    found = fact.ask()
    assert agrees(found, fact.answer, fact.tolerance), f"{fact.says}: a Mac says {fact.answer}, openmps {found}"


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
    names = [fact.name for fact in FACTS] + [*graphs.DECLINED, *storage.DECLINED]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ABSENT)
def test_classes_without_tests_of_their_facts_are_not_there(name: str) -> None:
    """Whoever adds one writes the tests of what is known of it."""
    assert not hasattr(mps, name), f"{name} is there: make facts of {ABSENT[name]}"
