"""Add, subtract, multiply, divide, compare and gradients against loops, PyTorch and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.pointwise import arithmetic as ops
from openmps.ops.pointwise.arithmetic import Arithmetic
from openmps.types import MPSNNComparisonType
from oracles import arithmetic as oracle
from oracles import finite_difference
from pairs import dealt

OPERATIONS = ["add", "subtract", "multiply", "divide"]
LINEAR = OPERATIONS[:3]
FULL = (2, 4, 3, 5)
# Shapes of the two sources; an axis of length 1 is broadcast.
SHAPES = [
    (FULL, FULL),
    (FULL, (2, 1, 1, 1)),
    ((2, 4, 1, 1), FULL),
    ((2, 1, 3, 5), (2, 4, 1, 1)),
    ((2, 4, 3, 1), (2, 4, 1, 5)),
    ((1, 1, 1, 1), (1, 1, 1, 1)),
    ((0, 3, 2, 2), (0, 1, 2, 2)),
]
SETTINGS = [(1.0, 1.0, 0.0), (2.0, -0.5, -0.25)]


def run(operation: str, x, y, settings=(1.0, 1.0, 0.0), limits=(-oracle.FLT_MAX, oracle.FLT_MAX)):
    p, q, bias = settings
    return ops.arithmetic(
        Arithmetic[operation.upper()],
        x,
        y,
        primary_scale=p,
        secondary_scale=q,
        bias=bias,
        minimum=limits[0],
        maximum=limits[1],
    )


def run_gradients(operation: str, g, x, y, settings=(1.0, 1.0, 0.0), mask=None):
    """To the primary source (whose partner is y) and to the secondary source (whose partner is x)."""
    kind, p, q = Arithmetic[operation.upper()], settings[0], settings[1]
    if operation == "multiply":
        scales = ((p, q), (p, q))
    else:
        scales = ((p, 1.0), (-q if operation == "subtract" else q, 1.0))
    return tuple(
        ops.arithmetic_gradient(
            kind, g, other, primary_scale=first, secondary_scale=second, mask=mask, shape=tuple(target.shape)
        )
        for other, target, (first, second) in zip((y, x), (x, y), scales, strict=True)
    )


def test_every_operation_has_its_own_member() -> None:
    assert {m.name for m in Arithmetic} >= {name.upper() for name in OPERATIONS}


@in_one_test
@pytest.mark.parametrize(
    ("operation", "shapes", "settings", "layout", "dtype"),
    dealt([[*OPERATIONS], SHAPES, SETTINGS], [LAYOUTS, [torch.float64, torch.float32]]),
    ids=str,
)
def test_equals_loops(
    operation: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    settings: tuple[float, float, float],
    layout: str,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    x, y = (rng.uniform(0.5, 2.0, size=shape) * rng.choice([-1, 1], size=shape) for shape in shapes)
    xt, yt = tensor(x, dtype, device, layout), tensor(y, dtype, device, layout)
    result, mask = run(operation, xt, yt, settings)
    expected, _ = oracle.forward(operation, x, y, *settings)
    assert result.dtype == dtype
    assert mask is None
    assert_close(result, expected, TOLERANCE[dtype], operation)
    if operation == "divide":
        return
    g = rng.normal(size=expected.shape)
    found = run_gradients(operation, tensor(g, dtype, device, layout), xt, yt, settings)
    wanted = oracle.gradients(operation, g, x, y, *settings[:2])
    for actual, gradient, what in zip(found, wanted, ("primary", "secondary"), strict=True):
        assert_close(actual, gradient, TOLERANCE[dtype], f"{operation} {what}")


@in_one_test
@pytest.mark.parametrize("limits", [(-0.5, 0.75), (-oracle.FLT_MAX, 0.5), (0.0, oracle.FLT_MAX)], ids=str)
@pytest.mark.parametrize("shapes", SHAPES[:5], ids=str)
@pytest.mark.parametrize("operation", LINEAR)
def test_limits_and_their_mask(
    operation: str, shapes, limits: tuple[float, float], device: torch.device, rng: np.random.Generator
) -> None:
    x, y = (rng.normal(size=shape) for shape in shapes)
    xt, yt = tensor(x, device=device), tensor(y, device=device)
    result, mask = run(operation, xt, yt, (1.5, 0.5, 0.125), limits)
    expected, inside = oracle.forward(operation, x, y, 1.5, 0.5, 0.125, *limits)
    assert mask is not None
    assert 0 < inside.mean() < 1
    assert_close(result, expected, 1e-12, operation)
    assert np.array_equal(mask.cpu().numpy().astype(bool), inside)
    g = rng.normal(size=expected.shape)
    found = run_gradients(operation, tensor(g, device=device), xt, yt, (1.5, 0.5, 0.125), mask)
    wanted = oracle.gradients(operation, g, x, y, 1.5, 0.5, inside)
    for actual, gradient in zip(found, wanted, strict=True):
        assert_close(actual, gradient, 1e-12, operation)


@pytest.mark.parametrize("operation", LINEAR)
@pytest.mark.parametrize("limits", [(-oracle.FLT_MAX, oracle.FLT_MAX), (-0.6, 0.7)], ids=["open", "limited"])
def test_gradients_equal_finite_differences(
    operation: str, limits: tuple[float, float], device: torch.device, rng: np.random.Generator
) -> None:
    x, y, settings = rng.normal(size=(2, 3, 2, 2)), rng.normal(size=(2, 3, 1, 2)), (1.5, -0.75, 0.1)
    g = rng.normal(size=x.shape)

    def total(a: np.ndarray, b: np.ndarray) -> float:
        return inner(run(operation, tensor(a, device=device), tensor(b, device=device), settings, limits)[0], g)

    xt, yt = tensor(x, device=device), tensor(y, device=device)
    mask = run(operation, xt, yt, settings, limits)[1]
    found = run_gradients(operation, tensor(g, device=device), xt, yt, settings, mask)
    assert_close(found[0], finite_difference.gradient(lambda v: total(v, y), x), 1e-8, "primary")
    assert_close(found[1], finite_difference.gradient(lambda v: total(x, v), y), 1e-8, "secondary")


@in_one_test
@pytest.mark.parametrize("shapes", SHAPES[:6], ids=str)
@pytest.mark.parametrize("operation", LINEAR)
def test_gradients_equal_pytorch(operation: str, shapes, device: torch.device, rng: np.random.Generator) -> None:
    x, y = (tensor(rng.normal(size=shape), device=device).requires_grad_() for shape in shapes)
    p, q = 1.25, -2.0
    value = {"add": p * x + q * y, "subtract": p * x - q * y, "multiply": (p * x) * (q * y)}[operation]
    g = torch.randn_like(value)
    expected = torch.autograd.grad(value, (x, y), g)
    found = run_gradients(operation, g, x.detach(), y.detach(), (p, q, 0.0))
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted, 1e-12, operation)


def test_default_limits_let_infinities_and_nan_through(device: torch.device) -> None:
    x = torch.tensor([1.0, -1.0, 0.0], device=device).reshape(1, 3, 1, 1)
    result, mask = run("divide", x, torch.zeros_like(x))
    values = result.ravel().tolist()
    assert mask is None
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    huge = torch.full((1, 1, 1, 1), 3e38, device=device)
    assert float(run("add", huge, huge)[0]) == math.inf


def test_limits_let_nan_through(device: torch.device) -> None:
    x = torch.full((1, 1, 1, 1), float("nan"), device=device)
    assert math.isnan(float(run("add", x, x, limits=(-1.0, 1.0))[0]))


@in_one_test
@pytest.mark.parametrize("shapes", SHAPES[:2], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_channels_last_stays(operation: str, shapes, device: torch.device) -> None:
    x, y = (torch.rand(shape, device=device).contiguous(memory_format=torch.channels_last) for shape in shapes)
    assert run(operation, x, y)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_sources_stay_untouched(operation: str, device: torch.device, rng: np.random.Generator) -> None:
    x, y, g = (tensor(rng.normal(size=FULL), device=device) for _ in range(3))
    kept = [t.clone() for t in (x, y, g)]
    for settings in SETTINGS:
        mask = run(operation, x, y, settings, (-1.0, 1.0))[1]
        run(operation, x, y, settings)
        if operation != "divide":
            run_gradients(operation, g, x, y, settings)
            run_gradients(operation, g, x, y, settings, mask)
    for now, before in zip((x, y, g), kept, strict=True):
        assert torch.equal(now, before)


def test_gradients_that_do_not_exist(device: torch.device) -> None:
    g = torch.zeros(1, 1, 1, 1, device=device)
    scales = {"primary_scale": 1.0, "secondary_scale": 1.0, "shape": (1, 1, 1, 1)}
    with pytest.raises(MPSArgumentError, match="divide"):
        ops.arithmetic_gradient(Arithmetic.DIVIDE, g, g, **scales)
    with pytest.raises(MPSArgumentError, match="other"):
        ops.arithmetic_gradient(Arithmetic.MULTIPLY, g, None, **scales)


def test_values_on_a_limit_are_outside_the_mask(device: torch.device) -> None:
    x = torch.tensor([-1.0, -0.5, 1.0, 2.0], device=device).reshape(1, 4, 1, 1)
    result, mask = run("add", x, torch.zeros_like(x), limits=(-1.0, 1.0))
    assert result.ravel().tolist() == [-1.0, -0.5, 1.0, 1.0]
    assert mask is not None
    assert mask.ravel().tolist() == [False, True, False, False]


@in_one_test
@pytest.mark.parametrize(
    ("comparison", "shapes", "threshold", "dtype"),
    dealt([[*MPSNNComparisonType], SHAPES], [[0.0, 0.5, 2.0], [torch.float64, torch.float32]]),
    ids=str,
)
def test_comparisons_equal_loops(
    comparison: MPSNNComparisonType, shapes, threshold: float, dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """Quarters, so that distances of 0, 0.5 and 2 occur and are exact."""
    x, y = (rng.integers(-8, 9, size=shape) / 4.0 for shape in shapes)
    found = ops.compare(comparison, tensor(x, dtype, device), tensor(y, dtype, device), threshold)
    assert found.dtype == dtype
    assert_close(found, oracle.compare(comparison.name.lower().replace("_", " "), x, y, threshold), 0.0)


@pytest.mark.parametrize("comparison", MPSNNComparisonType, ids=lambda each: each.name)
def test_comparisons_of_what_is_no_number(comparison: MPSNNComparisonType, device: torch.device) -> None:
    nan, inf = float("nan"), float("inf")
    x, y = (
        np.array([[nan, nan, 1.0, inf, inf, -inf]] * 2).reshape(2, 1, 1, 6),
        np.array([nan, 1.0, nan, inf, -inf, 0.0]),
    )
    y = np.broadcast_to(y, x.shape)
    found = ops.compare(comparison, tensor(x, device=device), tensor(y, device=device), 1.0)
    assert_close(found, oracle.compare(comparison.name.lower().replace("_", " "), x, y, 1.0), 0.0)
    assert found[..., :3].sum() == 0
