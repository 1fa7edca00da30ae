"""SGD, RMSProp, Adam and AMSGrad against loops, PyTorch and the printed numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from helpers import TOLERANCE, assert_close, assert_digits, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.update import optimizers as ops
from openmps.types import MPSNNRegularizationType
from oracles import optimizers as oracle
from oracles.optimizers import Common
from pairs import dealt

COMMON = [
    Common(),
    Common(0.05, gradient_rescale=0.25),
    Common(0.05, clip=(-0.4, 0.9)),
    Common(0.05, gradient_rescale=3.0, clip=(-0.5, 0.5), regularization=2, regularization_scale=0.1),
    Common(0.05, regularization=1, regularization_scale=0.3),
    Common(0.05, regularization=2, regularization_scale=0.02),
    Common(-0.1, regularization=2, regularization_scale=-1.0),
    Common(0.05, gradient_rescale=-1.0, regularization=1, regularization_scale=-0.1),
    Common(0.0),
]
KINDS = ["plain", "momentum", "nesterov", "rmsprop", "adam", "amsgrad"]
STEPS = 4


def rule(p: Common) -> ops.GradientRule:
    return ops.GradientRule(
        rescale=p.gradient_rescale,
        clip=None if p.clip is None else (p.clip[1], p.clip[0]),
        regularization=MPSNNRegularizationType(p.regularization),
        regularization_scale=p.regularization_scale,
    )


def adam(
    values: torch.Tensor,
    gradient: torch.Tensor,
    momentum: torch.Tensor,
    velocity: torch.Tensor,
    result: torch.Tensor,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    time_step: int,
    rule: ops.GradientRule,
    maximum_velocity: torch.Tensor | None = None,
) -> None:
    """One step of one vector; ``time_step`` counts it too, so the first is 1."""
    ops.adam_step(
        [values],
        [gradient],
        [momentum],
        [velocity],
        [result],
        rate=ops.adam_rate(learning_rate, beta1, beta2, time_step),
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        rule=rule,
        maximum_velocities=None if maximum_velocity is None else [maximum_velocity],
    )


@dataclass
class Moments:
    """The vectors that an optimizer keeps from step to step."""

    first: np.ndarray | torch.Tensor
    second: np.ndarray | torch.Tensor
    largest: np.ndarray | torch.Tensor

    def __iter__(self):
        return iter((self.first, self.second, self.largest))


def by_loops(kind: str, gradient: np.ndarray, values: np.ndarray, kept: Moments, step: int, p: Common) -> np.ndarray:
    if kind in ("plain", "momentum", "nesterov"):
        momentum = None if kind == "plain" else kept.first
        result, momentum = oracle.sgd(gradient, values, momentum, p, 0.8, kind == "nesterov")
        kept.first = kept.first if momentum is None else momentum
        return result
    if kind == "rmsprop":
        result, kept.second = oracle.rmsprop(gradient, values, kept.second, p, 0.85, 1e-6)
        return result
    largest = kept.largest if kind == "amsgrad" else None
    result, kept.first, kept.second, largest = oracle.adam(
        gradient, values, kept.first, kept.second, largest, step, p, 0.8, 0.95, 1e-6
    )
    kept.largest = kept.largest if largest is None else largest
    return result


def by_op(
    kind: str, gradient: torch.Tensor, values: torch.Tensor, kept: Moments, result: torch.Tensor, step: int, p: Common
) -> None:
    """Updates `kept` in place and writes `result`."""
    if kind in ("plain", "momentum", "nesterov"):
        momentum = None if kind == "plain" else kept.first
        ops.sgd(
            values,
            gradient,
            momentum,
            result,
            learning_rate=p.learning_rate,
            momentum_scale=0.8,
            nesterov=kind == "nesterov",
            rule=rule(p),
        )
    elif kind == "rmsprop":
        ops.rmsprop(
            values,
            gradient,
            kept.second,
            result,
            learning_rate=p.learning_rate,
            decay=0.85,
            epsilon=1e-6,
            rule=rule(p),
        )
    else:
        adam(
            values,
            gradient,
            kept.first,
            kept.second,
            result,
            learning_rate=p.learning_rate,
            beta1=0.8,
            beta2=0.95,
            epsilon=1e-6,
            time_step=step,
            rule=rule(p),
            maximum_velocity=kept.largest if kind == "amsgrad" else None,
        )


def run_both(
    kind: str, p: Common, values: np.ndarray, rng: np.random.Generator, dtype: torch.dtype, device, place: str
) -> None:
    """`STEPS` steps of both, compared after each; `place` is where the op writes."""

    def fresh(v: np.ndarray) -> torch.Tensor:
        if place != "gaps":
            return tensor(v, dtype, device)
        larger = torch.full((2 * v.shape[0] + 1,), math.nan, dtype=dtype, device=device)
        view = larger[1::2]
        return view.copy_(tensor(v, dtype, device))

    zero = np.zeros(values.shape)
    slow, fast = Moments(zero, zero, zero), Moments(fresh(zero), fresh(zero), fresh(zero))
    current, now = values, fresh(values)
    for step in range(1, STEPS + 1):
        gradient = rng.normal(size=values.shape)
        current = by_loops(kind, gradient, current, slow, step, p)
        handed, before = fresh(gradient), now.clone()
        result = now if place != "elsewhere" else torch.full_like(now, math.nan)
        by_op(kind, handed, now, fast, result, step, p)
        what = f"{kind} {p} after step {step}"
        assert_close(result, current, 4 * TOLERANCE[dtype], what)
        for name, a, b in zip(("first", "second", "largest"), fast, slow, strict=True):
            assert_close(a, b, 4 * TOLERANCE[dtype], f"{name} moment of {what}")
        assert torch.equal(handed, tensor(gradient, dtype, device)), "the gradient handed in was changed"
        assert place != "elsewhere" or torch.equal(now, before), "the values handed in were changed"
        now = result


@in_one_test
@pytest.mark.parametrize(
    ("kind", "number", "place", "dtype"),
    dealt([[*KINDS], range(len(COMMON))], [["in place", "elsewhere", "gaps"], [torch.float64, torch.float32]]),
    ids=str,
)
def test_equals_loops(
    kind: str, number: int, place: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    values = rng.normal(size=37)
    values[5] = 0.0
    run_both(kind, COMMON[number], values, rng, dtype, device, place)


@pytest.mark.parametrize("kind", KINDS)
def test_no_values(kind: str, device: torch.device, rng: np.random.Generator) -> None:
    run_both(kind, COMMON[3], np.zeros(0), rng, torch.float32, device, "elsewhere")


# --- printed numbers -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("implementation", ["op", "oracle"])
@pytest.mark.parametrize(
    ("kind", "expected", "places"),
    [
        ("adam", [0.99900000, 0.99800000], 8),
        ("momentum", [0.95, 0.855], 12),
        ("nesterov", [0.905, 0.7695], 12),
        ("rmsprop", [0.683772, 0.454357], 6),
    ],
)
def test_printed_numbers(implementation: str, kind: str, expected: list[float], places: int) -> None:
    value, g = np.ones(1), np.full(1, 0.5)
    kept = [np.zeros(1), np.zeros(1)]
    state = [tensor(k) for k in kept]
    moving, found = tensor(value), []
    for step in (1, 2):
        if implementation == "oracle":
            if kind == "adam":
                value, kept[0], kept[1], _ = oracle.adam(g, value, kept[0], kept[1], None, step, Common(1e-3))
            elif kind == "rmsprop":
                value, kept[0] = oracle.rmsprop(g, value, kept[0], Common(0.1))
            else:
                value, kept[0] = oracle.sgd(g, value, kept[0], Common(0.1), 0.9, kind == "nesterov")
            found.append(float(value[0]))
            continue
        nothing = ops.GradientRule()
        if kind == "adam":
            constants = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "time_step": step}
            adam(moving, tensor(g), state[0], state[1], moving, rule=nothing, **constants)
        elif kind == "rmsprop":
            ops.rmsprop(moving, tensor(g), state[0], moving, learning_rate=0.1, decay=0.9, epsilon=1e-8, rule=nothing)
        else:
            nesterov = kind == "nesterov"
            ops.sgd(
                moving,
                tensor(g),
                state[0],
                moving,
                learning_rate=0.1,
                momentum_scale=0.9,
                nesterov=nesterov,
                rule=nothing,
            )
        found.append(float(moving))
    assert_digits(found, expected, places, kind)


def test_running_average_with_a_negative_rate(device: torch.device) -> None:
    """SGD with rate -(1-mu) and L2 scale -1 turns v into v + (1-mu)*(batch - v)."""
    running, batch = tensor([2.0, -1.0, 0.5], device=device), tensor([1.0, 3.0, 0.5], device=device)
    average = ops.GradientRule(regularization=MPSNNRegularizationType.L2, regularization_scale=-1.0)
    ops.sgd(running, batch, None, running, learning_rate=-0.1, momentum_scale=0.0, nesterov=False, rule=average)
    assert_close(running, [2.0 - 0.1, -1.0 + 0.4, 0.5], 1e-14)


# --- PyTorch, with the documented differences worked out --------------------------------------------------------------


def against_pytorch(optimizer, parameter: torch.Tensor, step, device, rng: np.random.Generator, rtol: float) -> None:
    values = parameter.detach().clone()
    for number in range(1, 6):
        g = tensor(rng.normal(size=tuple(parameter.shape)), device=device)
        step(values, g, number)
        parameter.grad = g.clone()
        optimizer.step()
        assert_close(values, parameter, rtol, f"step {number}")


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd_equals_pytorch(nesterov: bool, decay: float, device: torch.device, rng: np.random.Generator) -> None:
    """At a constant rate the velocity that holds the rate is PyTorch's times the rate."""
    parameter = torch.nn.Parameter(tensor(rng.normal(size=20), device=device))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=decay)
    momentum = torch.zeros(20, dtype=torch.float64, device=device)
    l2 = ops.GradientRule(regularization=MPSNNRegularizationType.L2, regularization_scale=decay)

    def step(v: torch.Tensor, g: torch.Tensor, _: int) -> None:
        ops.sgd(v, g, momentum, v, learning_rate=0.1, momentum_scale=0.9, nesterov=nesterov, rule=l2)

    against_pytorch(optimizer, parameter, step, device, rng, 1e-13)


def test_rmsprop_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    parameter = torch.nn.Parameter(tensor(rng.normal(size=20), device=device))
    optimizer = torch.optim.RMSprop([parameter], lr=0.1, alpha=0.9, eps=1e-8)
    squares = torch.zeros(20, dtype=torch.float64, device=device)

    def step(v: torch.Tensor, g: torch.Tensor, _: int) -> None:
        ops.rmsprop(v, g, squares, v, learning_rate=0.1, decay=0.9, epsilon=1e-8, rule=ops.GradientRule())

    against_pytorch(optimizer, parameter, step, device, rng, 1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_equals_pytorch(amsgrad: bool, decay: float, device: torch.device, rng: np.random.Generator) -> None:
    """PyTorch's epsilon stands inside the bias correction: eps / sqrt(1 - b2^t), set anew at each step."""
    parameter = torch.nn.Parameter(tensor(rng.normal(size=20), device=device))
    optimizer = torch.optim.Adam([parameter], lr=0.1, eps=1.0, amsgrad=amsgrad, weight_decay=decay)
    m, u, x = (torch.zeros(20, dtype=torch.float64, device=device) for _ in range(3))
    l2 = ops.GradientRule(regularization=MPSNNRegularizationType.L2, regularization_scale=decay)
    epsilon = 1e-3

    def step(v: torch.Tensor, g: torch.Tensor, number: int) -> None:
        optimizer.param_groups[0]["eps"] = epsilon / math.sqrt(1 - 0.999**number)
        adam(
            v,
            g,
            m,
            u,
            v,
            learning_rate=0.1,
            beta1=0.9,
            beta2=0.999,
            epsilon=epsilon,
            time_step=number,
            rule=l2,
            maximum_velocity=x if amsgrad else None,
        )

    against_pytorch(optimizer, parameter, step, device, rng, 1e-12)


# --- several vectors, rates on the device, the plain way -----------------------------------------------------------


@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_several_vectors_at_once(
    amsgrad: bool, on_device: bool, device: torch.device, rng: np.random.Generator
) -> None:
    sizes, p = (7, 1, 40), COMMON[3]
    values, gradients, m, u, x = ([rng.normal(size=n) for n in sizes] for _ in range(5))
    u, x = ([np.abs(v) for v in group] for group in (u, x))
    tensors = [[tensor(v, device=device) for v in group] for group in (values, gradients, m, u, x)]
    results = [torch.full_like(t, math.nan) for t in tensors[0]]
    rate: float | torch.Tensor = ops.adam_rate(p.learning_rate, 0.9, 0.99, 7)
    ops.adam_step(
        *tensors[:4],
        results,
        rate=torch.tensor(rate, dtype=torch.float64, device=device) if on_device else rate,
        beta1=0.9,
        beta2=0.99,
        epsilon=1e-7,
        rule=rule(p),
        maximum_velocities=tensors[4] if amsgrad else None,
    )
    for i in range(3):
        maximum = x[i] if amsgrad else None
        expected = oracle.adam(gradients[i], values[i], m[i], u[i], maximum, 7, p, 0.9, 0.99, 1e-7)
        found = results[i], tensors[2][i], tensors[3][i], tensors[4][i]
        for a, b in zip(found, expected, strict=True):
            if b is not None:
                assert_close(a, b, 1e-6 if on_device else 1e-12, f"vector {i}")


OPERATIONS = {
    "plain": (ops.StochasticGradientDescent, (0.8, False), 0),
    "momentum": (ops.StochasticGradientDescent, (0.8, False), 1),
    "nesterov": (ops.StochasticGradientDescent, (0.8, True), 1),
    "rmsprop": (ops.RmsProp, (0.85, 1e-6), 1),
    "adam": (ops.Adam, (0.8, 0.95, 1e-6), 2),
    "amsgrad": (ops.Adam, (0.8, 0.95, 1e-6), 3),
}
"""The operation of each kind, its fields, and how many vectors of its own it has."""


@in_one_test
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", KINDS)
def test_operations_update_several_vectors(
    kind: str, on_device: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """As the loops do each; equal operations are the same key, whatever the rate is."""
    operation, fields, count = OPERATIONS[kind]
    p, sizes = COMMON[3], (5, 1)
    op = operation(len(sizes), rule(p), *fields)
    assert (op, hash(op)) == (operation(2, rule(p), *fields), hash(operation(2, rule(p), *fields)))
    kinds = [[np.abs(rng.normal(size=n)) for n in sizes] for _ in range(2 + count)]
    runs = [[tensor(v, device=device) for v in each] for each in kinds]
    results = [torch.full_like(values, math.nan) for values in runs[1]]
    is_adam = operation is ops.Adam
    rate = ops.adam_rate(p.learning_rate, 0.8, 0.95, 2) if is_adam else p.learning_rate
    given = torch.tensor(rate, dtype=torch.float64, device=device) if on_device else rate
    op.run((), given, *(each for run in runs for each in run), *results, None)
    for index in range(len(sizes)):
        gradient, values, *own = (each[index] for each in kinds)
        second, largest = own[1 if is_adam else 0] if count else np.zeros(1), own[2] if count == 3 else np.zeros(1)
        kept = Moments(own[0] if count else np.zeros(1), second, largest)
        expected = by_loops(kind, gradient, values, kept, 2, p)
        assert_close(results[index], expected, 1e-6 if on_device else 1e-12, kind)


@in_one_test
@pytest.mark.parametrize("kind", ["adam", "amsgrad"])
@pytest.mark.parametrize("number", range(len(COMMON)))
def test_fused_and_plain_adam_agree(
    kind: str, number: int, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, gradient = rng.normal(size=33), rng.normal(size=33)
    assert ops._can_fuse([tensor(values, device=device)])
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(ops, "_can_fuse", lambda _: False)
        kept = Moments(*(tensor(np.linspace(0, 1, 33), device=device) for _ in range(3)))
        result = tensor(values, device=device)
        by_op(kind, tensor(gradient, device=device), result, kept, result, 3, COMMON[number])
        found.append((result, *kept))
    for a, b in zip(*found, strict=True):
        assert_close(a, b, 1e-13, kind)


@in_one_test
@pytest.mark.parametrize("rate", [0.05, 1e-4, 1e-12, 0.0])
@pytest.mark.parametrize("momentum_scale", [0.9, 0.0])
@pytest.mark.parametrize("nesterov", [False, True])
def test_fused_and_plain_descent_have_the_same_bits(
    nesterov: bool, momentum_scale: float, rate: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A momentum that starts at 0 shows tiny rates; gradients and values stay as they are."""
    rule, starts = ops.GradientRule(0.5, (1.0, -1.0), MPSNNRegularizationType.L2, 0.1), rate > 1e-6
    given = [[torch.from_numpy(rng.normal(size=size)).float() for size in (40, 16, 15, 1)] for _ in range(3)]
    given[2] = [each * starts for each in given[2]]
    found = list[list[torch.Tensor]]()
    for fused in (True, False):
        monkeypatch.setattr(ops, "_HAS_FUSED_SGD", fused)
        gradients, values, momenta = ([each.clone() for each in run] for run in given)
        results = [torch.full_like(each, torch.nan) for each in values]
        operands = (*gradients, *values, *momenta, *results)
        ops.StochasticGradientDescent(4, rule, momentum_scale, nesterov).run((), rate, *operands, None)
        assert all(map(torch.equal, gradients + values, given[0] + given[1]))
        found.append([*momenta, *results])
    assert all(map(torch.equal, *found))


def test_time_step_and_betas_are_checked() -> None:
    assert ops.adam_rate(1.0, 0.0, 0.0, 1) == 1.0
    for wrong in ({"time_step": 0}, {"beta1": 1.0}, {"beta2": 1.0}, {"beta1": -0.1}):
        arguments = {"learning_rate": 1.0, "beta1": 0.9, "beta2": 0.999, "time_step": 1} | wrong
        with pytest.raises(MPSArgumentError, match=next(iter(wrong))):
            ops.adam_rate(**arguments)


def test_descriptions_keep_their_order() -> None:
    """Clip, then rescale, then regularize: 10 is cut to 1, scaled to 0.5, and 0.1 * 2 added."""
    p = Common(1.0, gradient_rescale=0.5, clip=(-1.0, 1.0), regularization=2, regularization_scale=0.1)
    assert oracle.prepared(10.0, 2.0, p) == pytest.approx(0.7)
    assert oracle.prepared(10.0, 2.0, replace(p, regularization=1)) == pytest.approx(0.6)
    value, g = tensor([2.0]), tensor([10.0])
    assert float(rule(p).apply(value, g)) == pytest.approx(0.7)
    assert float(rule(replace(p, regularization=1)).apply(value, g)) == pytest.approx(0.6)
