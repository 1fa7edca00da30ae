"""The updates in Triton against the functions of `ops.update.optimizers`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import forked
import numpy as np
import pytest
import torch

from helpers import TOLERANCE, assert_close
from in_one_test import in_one_test
from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.update import optimizers as ops
from openmps.types import MPSNNRegularizationType as Regularization

RULES = {
    "as it is": ops.GradientRule(),
    "rescaled": ops.GradientRule(rescale=-0.25),
    "clipped": ops.GradientRule(clip=(0.5, -0.25)),
    "L1": ops.GradientRule(regularization=Regularization.L1, regularization_scale=0.3),
    "L2": ops.GradientRule(regularization=Regularization.L2, regularization_scale=-0.2),
    "all": ops.GradientRule(3.0, (0.5, -0.5), Regularization.L2, 0.1),
    "integers": ops.GradientRule(1, (1, -1), Regularization.L1, 1),
    "a scale of nothing": ops.GradientRule(regularization=Regularization.NONE, regularization_scale=0.7),
    "nothing to scale": ops.GradientRule(regularization=Regularization.L2, regularization_scale=0.0),
}
UPDATES: dict[str, tuple[type[ops.Update], tuple[Any, ...], int]] = {
    "plain": (ops.StochasticGradientDescent, (0.8, False), 0),
    "plain Nesterov": (ops.StochasticGradientDescent, (0.8, True), 0),
    "momentum": (ops.StochasticGradientDescent, (0.8, False), 1),
    "Nesterov": (ops.StochasticGradientDescent, (0.8, True), 1),
    "RMSProp": (ops.RmsProp, (0.85, 1e-6), 1),
    "Adam": (ops.Adam, (0.8, 0.999, 1e-6), 2),
    "AMSGrad": (ops.Adam, (0.8, 0.999, 1e-6), 3),
}
"""The operation, its fields, and how many kinds of vectors of its own it has."""
SIZES = [(1,), (3,), (1000,), (1024,), (0,), (1000, 3), (1, 2049), (5, 0, 7), (0, 0)]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs; the operations take it there."""
    return triton_place(monkeypatch)


def vectors(kinds: int, sizes: tuple[int, ...], device: torch.device, rng: np.random.Generator) -> list[Any]:
    """Kinds of vectors, one behind the other; all but gradients and values are not negative."""
    made = [[torch.from_numpy(rng.normal(size=size)).to(device, torch.float32) for size in sizes] for _ in range(kinds)]
    for values in made[1]:
        values[:1] = 0.0
    return [each if index < 2 else each.abs() for index, kind in enumerate(made) for each in kind]


def both(
    op: ops.Update, rate: Any, operands: list[torch.Tensor], rounded: Any, monkeypatch: pytest.MonkeyPatch
) -> list[list[torch.Tensor]]:
    """The operands after one step in place, in Triton and by the functions; the results stand for the values."""
    found = []
    count = op.vectors
    for is_fast in (True, False):
        mine = [each.clone() for each in operands]
        results = mine[count : 2 * count]
        with monkeypatch.context() as patch:
            steps = []
            slow = type(op).step
            patch.setattr(type(op), "step", lambda *given, slow=slow, steps=steps: steps.append(slow(*given)))
            if not is_fast:
                patch.setattr(triton, "runs_on", lambda device: False)
                # PyTorch's fused Adam drops a NaN in the maximum, and rounds the betas to float32 on CUDA.
                patch.setattr(ops, "_can_fuse", lambda tensors: False)
            numbers = [rate] * (1 + op.decays) + [torch.full((1,), 0.75, device=mine[0].device)] * op.is_scaled
            op.run((), *numbers, *mine, *results, rounded if is_fast else None)
            assert len(steps) == (0 if is_fast else 1), "which way was taken"
        found.append(mine)
    return found


@in_one_test
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("what", UPDATES)
def test_sizes(
    what: str, sizes: tuple[int, ...], place: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, fields, own = UPDATES[what]
    op = kind(len(sizes), RULES["all"], *fields)
    fast, slow = both(op, 0.05, vectors(2 + own, sizes, place, rng), (), monkeypatch)
    for index, (a, b) in enumerate(zip(fast, slow, strict=True)):
        assert_close(a, b, 4 * TOLERANCE[torch.float32], f"{what}, operand {index}")


@in_one_test
@pytest.mark.parametrize("is_held", [False, True], ids=["a number", "on the device"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", UPDATES)
def test_rules(
    what: str, rule: str, is_held: bool, place: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take a part of the values off first, or multiply gradients by a number of the step."""
    kind, fields, own = UPDATES[what]
    more = dict(zip(("decays", "is_scaled"), divmod([*RULES].index(rule) % 4, 2), strict=True))
    more = {name: bool(value) for name, value in more.items()}
    rate = torch.tensor(0.05, dtype=torch.float64, device=place) if is_held else 0.05
    operands = vectors(2 + own, (70, 5), place, rng)
    fast, slow = both(kind(2, RULES[rule], *fields, **more), rate, operands, (), monkeypatch)
    for index, (a, b) in enumerate(zip(fast, slow, strict=True)):
        assert_close(a, b, 4 * TOLERANCE[torch.float32], f"{what}, {rule}, operand {index}")
    assert not torch.equal(fast[2], operands[2]), "nothing was updated"
    assert torch.equal(fast[0], operands[0]), "the gradient was changed"


@pytest.mark.parametrize("what", UPDATES)
def test_roundings_are_the_result_rounded(
    what: str, place: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: subnormal numbers, numbers too large and ties among them."""
    kind, fields, own = UPDATES[what]
    operands = vectors(2 + own, (1003, 4), place, rng)
    edges = torch.tensor([1e-7, -6e-8, 3e-8, 7e4, -65519.0, 65520.0, 2049.0, 1 + 2**-11, -0.0, torch.inf, torch.nan])
    operands[2][: len(edges)] = edges.to(place)
    operands[0][: len(edges)] = 0.0
    for each in operands[4:]:
        each[: len(edges)] = 0.0
    half = torch.full((17, 59), 9.0, dtype=torch.float16, device=place)
    single = torch.full((1003,), 9.0, device=place)
    fast, _ = both(kind(2, RULES["as it is"], *fields), 0.05, operands, (single, half), monkeypatch)
    assert half.view(torch.int16).equal(fast[2].half().view(17, 59).view(torch.int16))
    assert single.view(torch.int32).equal(fast[2].half().float().view(torch.int32))
    assert half.isinf().sum() >= 3 and (half.abs() < 6e-5).sum() >= 3 and half.isnan().sum() == 1


def test_nan_and_infinity_stay(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They pass the clipping and the maximum of the velocities as in PyTorch."""
    gradient = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 0.0], device=place)
    values = torch.tensor([1.0, 1.0, 1.0, torch.nan, torch.inf], device=place)
    for rule in ("clipped", "L1", "all"):
        for kind, fields, own in UPDATES.values():
            operands = [gradient, values, *(torch.ones(5, device=place) for _ in range(own))]
            fast, slow = both(kind(1, RULES[rule], *fields), 0.05, operands, (), monkeypatch)
            for a, b in zip(fast, slow, strict=True):
                assert torch.equal(a.isnan(), b.isnan()), (rule, kind, a, b)
                assert torch.allclose(a, b, equal_nan=True), (rule, kind, a, b)


def test_what_does_not_fit_takes_the_other_way(
    place: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors with gaps, and float64."""
    op = ops.RmsProp(1, RULES["all"], 0.85, 1e-6)
    called: list[Any] = []
    monkeypatch.setattr(ops.RmsProp, "step", lambda *given: called.append(given))
    whole = torch.ones(8, device=place)
    for odd, others in ((whole[::2], whole[:4]), (whole.double(), whole.double())):
        rounded = torch.zeros(len(odd), dtype=torch.float16, device=place)
        op.run((), 0.1, odd, others, others, others, (rounded,))
        assert torch.equal(rounded, others.half()), "rounded all the same"
    assert len(called) == 2


def test_triton_is_imported_where_it_runs_only() -> None:
    """And an update on the CPU does not ask for it."""
    program = (
        "import sys, torch\n"
        "import openmps\n"
        "from openmps.ops.update.optimizers import GradientRule, StochasticGradientDescent\n"
        "x = torch.ones(2)\n"
        "StochasticGradientDescent(1, GradientRule(), 0.0, False).run((), 0.5, x, x, x, None)\n"
        "assert x.tolist() == [0.5, 0.5]\n"
        "assert 'openmps.ops.triton.update.optimizers' not in sys.modules\n"
    )
    done = forked.run("-c", program)
    assert done.returncode == 0, done.stderr


def test_without_a_compiler_updates_take_the_other_way(
    place: torch.device, monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    """It is said once, and not tried again."""
    monkeypatch.undo()
    from openmps.ops.triton import elements as fast

    def fail(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(fast, "decode_unorm", fail)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    triton.runs_on.cache_clear()
    try:
        assert [triton.runs_on(torch.device("cuda", 0)) for _ in range(2)] == [False, False]
    finally:
        triton.runs_on.cache_clear()
    assert logged.text.count("Failed to find C compiler") == 1
