"""Read counts, against a plain list of numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmps.core.read_count import ReadCounts
from openmps.errors import MPSArgumentError, MPSLifetimeError

SIZE = 4
STEPS = st.lists(
    st.tuples(st.integers(-1, SIZE - 1), st.integers(-3, 4)),  # -1: all members
    max_size=30,
)


def test_every_member_starts_at_one() -> None:
    counts = ReadCounts(3)
    assert [counts.get(index) for index in range(3)] == [1, 1, 1]
    assert not counts.exhausted


def test_the_whole_batch_is_read_at_once() -> None:
    ends: list[str] = []
    counts = ReadCounts(3, lambda: ends.append("end"))
    counts.add(1)
    counts.take("batch", 1)
    assert ([counts.get(index) for index in range(3)], ends) == ([1, 1, 1], [])
    counts.take("batch", 1)
    assert ([counts.get(index) for index in range(3)], ends, counts.exhausted) == ([0, 0, 0], ["end"], True)


def test_members_are_counted_apart() -> None:
    ends: list[str] = []
    counts = ReadCounts(2, lambda: ends.append("end"))
    counts.set("image", 1, 3)
    counts.take("image", 1, (0,))
    assert (counts.get(0), counts.get(1), counts.fewest(), counts.fewest((1,)), ends) == (0, 3, 0, 3, [])
    counts.take("image", 3, (1,))
    assert ends == ["end"]


def test_the_end_comes_once() -> None:
    ends: list[str] = []
    counts = ReadCounts(1, lambda: ends.append("end"))
    for _ in range(3):
        counts.set("image", 0, 0)
        counts.add(5)
        counts.add(-5, (0,))
    assert (ends, counts.get(0)) == (["end"], 0)


@pytest.mark.parametrize("value", [-1, 1.5, True, "2", None])
def test_a_count_is_a_whole_number(value: Any) -> None:
    with pytest.raises(MPSArgumentError, match=r"image: read_count must be an integer of at least 0, got"):
        ReadCounts(1).set("image", 0, value)


def test_a_count_cannot_change_after_zero() -> None:
    counts = ReadCounts(2)
    counts.set("image", 0, 0)
    counts.set("image", 0, 0)
    with pytest.raises(MPSLifetimeError, match=r"image: read_count cannot change after it reached 0, got 2"):
        counts.set("image", 0, 2)
    assert counts.get(1) == 1


def test_more_reads_than_left_are_refused_and_taken_from_nobody() -> None:
    counts = ReadCounts(2)
    counts.set("image", 0, 2)
    with pytest.raises(MPSLifetimeError, match=r"batch: read_count must be at least 2 for this encode, got 1\. Raise"):
        counts.take("batch", 2)
    assert [counts.get(0), counts.get(1)] == [2, 1]


@given(STEPS)
def test_adding_agrees_with_a_list(steps: list[tuple[int, int]]) -> None:
    ends: list[str] = []
    counts, model = ReadCounts(SIZE, lambda: ends.append("end")), [1] * SIZE
    for member, amount in steps:
        members = range(SIZE) if member < 0 else (member,)
        counts.add(amount, None if member < 0 else (member,))
        for index in members:
            model[index] = max(0, model[index] + amount) if model[index] else 0
        assert [counts.get(index) for index in range(SIZE)] == model
        assert (counts.fewest(), counts.exhausted) == (min(model), not any(model))
    assert ends == ([] if any(model) else ["end"])


@given(STEPS)
def test_setting_agrees_with_a_list(steps: list[tuple[int, int]]) -> None:
    counts, model = ReadCounts(SIZE), [1] * SIZE
    for member, value in steps:
        index = max(member, 0)
        if value < 0 or (model[index] == 0 and value):
            with pytest.raises((MPSArgumentError, MPSLifetimeError)):
                counts.set("image", index, value)
        else:
            counts.set("image", index, value)
            model[index] = value
        assert [counts.get(i) for i in range(SIZE)] == model
        assert (counts.fewest(), counts.exhausted) == (min(model), not any(model))
