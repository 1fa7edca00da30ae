"""Updates of several layers at once, against the updates one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.elements import Overwrite
from openmps.ops.normalization.batch_normalization import RunningAverages
from openmps.ops.op import Builder, Function, Role
from openmps.ops.update import joined_updates
from openmps.ops.update.joined_updates import JoinedUpdate, join_updates
from openmps.ops.update.optimizers import Adam, GradientRule, MovingAverage, RmsProp, StochasticGradientDescent, Update
from openmps.ops.update.shards import Shard

RULE = GradientRule(rescale=0.5)
MAKERS: dict[str, tuple[Callable[[int], Update], int]] = {
    "descent": (lambda vectors: StochasticGradientDescent(vectors, RULE, 0.8, False), 0),
    "momentum": (lambda vectors: StochasticGradientDescent(vectors, RULE, 0.8, False), 1),
    "RMSProp": (lambda vectors: RmsProp(vectors, RULE, 0.85, 1e-6), 1),
    "Adam": (lambda vectors: Adam(vectors, RULE, 0.8, 0.99, 1e-6), 2),
    "AdamW": (lambda vectors: Adam(vectors, RULE, 0.8, 0.99, 1e-6, decays=True), 2),
    "scaled": (lambda vectors: StochasticGradientDescent(vectors, RULE, 0.8, True, is_scaled=True), 1),
    "averages": (lambda vectors: MovingAverage(vectors), 0),
}
"""An update of so many vectors, and its own kinds of vectors."""
SIZES = [(1500, 3), (7,), (16, 1024), (0, 5)]


@pytest.fixture(params=["slow", "in Triton"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the operations run: as PyTorch's, or where Triton does."""
    if request.param == "slow":
        return torch.device("cpu")
    return triton_place(monkeypatch)


def operands(own: int, sizes: tuple[int, ...], place: torch.device, seed: int, op: Update | None = None) -> list[Any]:
    """The operands of one update in place, its numbers on the device; the first result is rounded, too."""
    generator = torch.Generator().manual_seed(seed)
    made = [[torch.randn(size, generator=generator).to(place) for size in sizes] for _ in range(2 + own)]
    vectors = [each if kind < 2 else each.abs() for kind, run in enumerate(made) for each in run]
    results = vectors[len(sizes) : 2 * len(sizes)]
    rates = [
        torch.tensor(0.01 * (1 + seed + each), dtype=torch.float64, device=place)
        for each in range(1 + (op is not None and op.decays))
    ]
    rates += [torch.full((1,), 0.5 + seed, device=place)] * (op is not None and op.is_scaled)
    rounded = tuple(torch.zeros(sizes[0], dtype=kind, device=place) for kind in (torch.float16, torch.float32))
    return [*rates, *vectors, *results, rounded if seed % 2 else None]


def body_of(updates: list[tuple[Update, int]]) -> Function:
    """Updates one after the other, each with so many operands."""
    builder = Builder()
    for place, (op, count) in enumerate(updates):
        op(*(builder.input(Role.BUFFER, f"{place}:{index}") for index in range(count)))
    return builder.finish()


def flat(given: Any) -> list[torch.Tensor]:
    return [each for part in given for each in (part if isinstance(part, tuple) else () if part is None else (part,))]


@pytest.mark.parametrize("is_many", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_numbers(kind: str, is_many: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By addresses that are arguments, and by those of a table, whose programs take fewer numbers here."""
    if is_many:
        monkeypatch.setattr(joined_updates, "MOST_TOGETHER", 2)
        monkeypatch.setattr(joined_updates, "MOST_IN_ALL", 2)
    make, own = MAKERS[kind]
    first = make(1).numbers
    given = [operands(own, sizes, place, seed, make(1)) for seed, sizes in enumerate(SIZES)]
    function = body_of([(make(len(sizes)), len(each)) for sizes, each in zip(SIZES, given, strict=True)])
    joined = join_updates(function)
    assert len(joined.equations) == 1
    assert isinstance(joined.equations[0].op, JoinedUpdate)
    assert joined.overwritten() == function.overwritten()
    twins = [[tuple(e.clone() for e in each) if isinstance(each, tuple) else each for each in part] for part in given]
    for part, twin, sizes in zip(given, twins, SIZES, strict=True):
        count = len(sizes)
        twin[:-1] = [each.clone() for each in part[:-1]]
        twin[-1 - count : -1] = twin[first + count : first + 2 * count]
    launches: list[Any] = []
    equation = Update.pass_once
    monkeypatch.setattr(Update, "pass_once", lambda *said, **how: launches.append(how) or equation(*said, **how))
    joined.run([each for part in given for each in part])
    assert launches == ([] if not triton.runs_on(place) else [{"is_many": is_many}])
    function.run([each for part in twins for each in part])
    for mine, theirs in zip(given, twins, strict=True):
        for one, other in zip(flat(mine), flat(theirs), strict=True):
            # Two kernels' products and sums may be rounded together or not.
            close = torch.allclose(one, other, rtol=1e-3 if one.dtype == torch.float16 else 1e-6, atol=1e-6)
            assert close if is_many else torch.equal(one, other)


def test_memory_that_two_of_them_update_is_updated_twice(place: torch.device) -> None:
    make, own = MAKERS["momentum"]
    given = operands(own, (40,), place, 0)
    before = given[2].clone()
    function = join_updates(body_of([(make(1), len(given))] * 2))
    function.run([*given, *given])
    momentum, value = given[3], given[2]
    assert isinstance(function.equations[0].op, JoinedUpdate)
    once, twice = operands(own, (40,), place, 0), operands(own, (40,), place, 0)
    for _ in range(2):
        make(1).run((), *twice)
    make(1).run((), *once)
    assert torch.equal(value, twice[2])
    assert torch.equal(momentum, twice[3])
    assert not torch.equal(value, once[2])
    assert not torch.equal(value, before)


def test_averages_and_copies_are_joined(device: torch.device) -> None:
    """The operands of all of them become those of one equation."""
    factors = [1.5, 1.25, 2.0]
    averages = [[*torch.randn(4, 3 + place, device=device).unbind(), scale] for place, scale in enumerate(factors)]
    expected = [
        (mean + 0.25 * (found - mean), variance + 0.25 * (other * scale - variance))
        for mean, variance, found, other, scale in averages
    ]
    function = join_updates(body_of([(RunningAverages(0.25), 5)] * 3))
    assert len(function.equations) == 1
    assert function.overwritten() == [0, 1, 5, 6, 10, 11]
    function.run([each for layer in averages for each in layer])
    for layer, rows in zip(averages, expected, strict=True):
        torch.testing.assert_close(torch.stack(layer[:2]), torch.stack(rows))
    copies = [[torch.zeros(size, device=device), torch.randn(size, device=device)] for size in (3, 1, 5)]
    function = join_updates(body_of([(Overwrite(), 2)] * 3))
    assert len(function.equations) == 1
    assert function.overwritten() == [0, 2, 4]
    function.run([each for pair in copies for each in pair])
    assert all(torch.equal(*pair) for pair in copies)


def test_what_is_joined() -> None:
    """Updates alike, no more of them than one launch takes, or all of them where there are many."""
    adam, descent = MAKERS["Adam"][0], MAKERS["descent"][0]
    other = Adam(2, RULE, 0.8, 0.99, 1e-3)

    def counts(*updates: Update) -> list[int]:
        function = join_updates(
            body_of([(op, 1 + op.numbers + op.vectors * (5 if isinstance(op, Adam) else 3)) for op in updates])
        )
        return [
            len(equation.op.updates) if isinstance(equation.op, JoinedUpdate) else 1 for equation in function.equations
        ]

    assert counts(adam(2), adam(2), adam(1)) == [3]
    assert counts(adam(2), other, other) == [1, 2]
    assert counts(adam(2), replace(adam(2), decays=True), replace(adam(2), is_scaled=True)) == [1, 1, 1]
    assert counts(adam(2), descent(2), adam(2)) == [1, 1, 1]
    assert counts(*[adam(2)] * 5) == [4, 1]
    most = joined_updates.MOST_IN_ALL // 2
    assert counts(*[adam(2)] * most) == [4, 4]
    assert counts(*[adam(2)] * (most + 1)) == [most + 1]


@pytest.mark.parametrize("kind", MAKERS)
def test_shards_have_the_same_numbers(kind: str, place: torch.device) -> None:
    """Joined updates of the shards of three processes, over the same gradients and values, against whole ones."""
    make, own = MAKERS[kind]
    first = make(1).numbers
    whole = [operands(own, sizes, place, 2 * seed, make(1)) for seed, sizes in enumerate(SIZES)]
    shared = [[each.clone() if isinstance(each, torch.Tensor) else each for each in part] for part in whole]
    for part, sizes in zip(shared, SIZES, strict=True):
        part[-1 - len(sizes) : -1] = part[first + len(sizes) : first + 2 * len(sizes)]  # the results are the values
    for shard in Shard(0, 3).of_all():
        given = [part.copy() for part in shared]
        for part, sizes in zip(given, SIZES, strict=True):
            for at in range(first + 2 * len(sizes), len(part) - 1 - len(sizes)):
                room = torch.full((shard.room(len(part[at])),), torch.nan, device=place)
                room[: len(shard.of(part[at]))] = shard.of(part[at])
                part[at] = room
        updates = [replace(make(len(sizes)), shard=shard) for sizes in SIZES]
        joined = join_updates(body_of([(op, len(part)) for op, part in zip(updates, given, strict=True)]))
        assert len(joined.equations) == 1
        joined.run([each for part in given for each in part])
    for part, sizes in zip(whole, SIZES, strict=True):
        make(len(sizes)).run((), *part)
    for mine, theirs, sizes in zip(shared, whole, SIZES, strict=True):
        results = slice(-1 - len(sizes), -1)
        assert all(torch.equal(one, other) for one, other in zip(mine[results], theirs[results], strict=True))
