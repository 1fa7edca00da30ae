"""Local normalizations against float64 loops, PyTorch, finite differences and the printed numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.normalization import local_normalization as ops
from openmps.ops.normalization.local_normalization import Contrast, Divisor
from openmps.types import MPSImageEdgeMode
from oracles import finite_difference
from oracles import local_normalization as oracle
from oracles.geometry import CLAMP, ZERO, Axis, gather
from pairs import dealt
from placements import Case, cases, window

DTYPES = [torch.float64, torch.float32]
MILD = Divisor(0.8, 0.75, 1.5)
PLAIN = Contrast(1.0, 0.0, 1.0)
SPATIAL_DIVISORS = [Divisor(1.0, 5.0, 1.0), MILD, Divisor(0.0, 0.5, 2.0), Divisor(2.0, 0.0, 1.0), Divisor(3.0, -1.5, 1)]
CONTRAST_DIVISORS = [Divisor(0.0, 0.5, 2.0**-10), Divisor(1.0, 0.5, 2.0**-10), MILD, Divisor(0.5, 1.0, 0.25)]
CONTRASTS = [PLAIN, Contrast(0.0, 0.25, -2.0), Contrast(0.5, -1.5, 0.75)]


def _without_strides(case: Case) -> Case:
    """The same images, with windows that these normalizations may have."""
    rows, columns = (Axis(axis.result, axis.size, offset=axis.offset) for axis in (case.rows, case.columns))
    return Case(case.images, case.channels, case.height, case.width, rows, columns, case.edge, case.layout)


CASES = [_without_strides(case) for case in cases(60, seed=11)]


class Pair:
    """A normalization over pixels with its gradient, in openmps and in loops, with its parameters."""

    def __init__(self, name: str, *parameters: Any) -> None:
        self.name = name
        self.parameters = parameters

    def forward(self, x: torch.Tensor, case: Case) -> torch.Tensor:
        op = getattr(ops, f"{self.name}_normalization")
        return op(x, case.window(), case.edge_mode, *self.parameters)

    def gradient(self, g: torch.Tensor, x: torch.Tensor, case: Case) -> torch.Tensor:
        op = getattr(ops, f"{self.name}_normalization_gradient")
        return op(g, x, case.window(), case.edge_mode, *self.parameters)

    def expected(self, x: np.ndarray, case: Case) -> np.ndarray:
        return getattr(oracle, self.name)(x, case.rows, case.columns, case.edge, *self.parameters)

    def expected_gradient(self, g: np.ndarray, x: np.ndarray, case: Case) -> np.ndarray:
        return getattr(oracle, f"{self.name}_gradient")(g, x, case.rows, case.columns, case.edge, *self.parameters)


def _pair(name: str, number: int) -> Pair:
    if name == "spatial":
        return Pair(name, SPATIAL_DIVISORS[number % len(SPATIAL_DIVISORS)])
    return Pair(name, CONTRAST_DIVISORS[number % len(CONTRAST_DIVISORS)], CONTRASTS[number % len(CONTRASTS)])


NAMES = ["spatial", "local_contrast"]
GENTLE = [Pair("spatial", MILD), Pair("local_contrast", MILD, Contrast(0.5, -1.5, 0.75))]


# --- over pixels, against the loops -----------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("name", "number", "dtype"), dealt([NAMES, range(len(CASES))], [DTYPES]), ids=str)
def test_equals_loops(
    name: str, number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    case, pair = CASES[number], _pair(name, number)
    x, g = (rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in (case.shape, case.result_shape()))
    xt, gt = tensor(x, dtype, device, case.layout), tensor(g, dtype, device, case.layout)
    result = pair.forward(xt, case)
    assert result.dtype == dtype
    # The loops sum in another order, and small variances amplify what is left of that in float64.
    tolerance = max(TOLERANCE[dtype], 1e-11)
    assert_close(result, pair.expected(x, case), tolerance, f"{name} of {case}")
    found = pair.gradient(gt, xt, case)
    assert found.dtype == dtype
    assert_close(found, pair.expected_gradient(g, x, case), tolerance, f"{name} gradient of {case}")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("pair", GENTLE, ids=lambda pair: pair.name)
def test_every_axis_placement(pair: Pair, edge: int, device: torch.device, rng: np.random.Generator) -> None:
    """Every window of 1 to 9 pixels at every offset of a small image, also where it misses the image."""
    x = rng.normal(size=(1, 2, 1, 6))
    for size, offset in itertools.product(range(1, 10), range(-3, 5)):
        case = Case(1, 2, 1, 6, Axis(1), Axis(5, size, offset=offset), edge, "contiguous")
        g = rng.normal(size=case.result_shape())
        xt, gt = tensor(x, device=device), tensor(g, device=device)
        assert_close(pair.forward(xt, case), pair.expected(x, case), 1e-12, str(case))
        assert_close(pair.gradient(gt, xt, case), pair.expected_gradient(g, x, case), 1e-12, f"gradient of {case}")


@pytest.mark.parametrize("mean", [0.0, 1.0, 300.0, -2000.0])
def test_contrast_of_a_small_variance_on_a_large_mean(
    mean: float, device: torch.device, rng: np.random.Generator
) -> None:
    """Float32 would keep nothing of E[X^2] - E[X]^2 here; the mean of an image may also differ from place to place."""
    x = rng.normal(scale=0.05, size=(2, 3, 6, 7))
    x[:, :, :, 3:] += mean
    x = x.astype(np.float32).astype(np.float64)
    case = Case(2, 3, 6, 7, Axis(6, 3), Axis(7, 2), CLAMP, "channels_last")
    g = rng.normal(size=case.result_shape()).astype(np.float32).astype(np.float64)
    pair = Pair("local_contrast", Divisor(1.0, 0.5, 2.0**-10), PLAIN)
    xt, gt = tensor(x, torch.float32, device, case.layout), tensor(g, torch.float32, device, case.layout)
    assert_close(pair.forward(xt, case), pair.expected(x, case), 1e-5, "local contrast")
    assert_close(pair.gradient(gt, xt, case), pair.expected_gradient(g, x, case), 1e-5, "gradient")


# --- over pixels, by other ways ---------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("pair", GENTLE, ids=lambda pair: pair.name)
def test_gradient_equals_finite_differences(
    pair: Pair, edge: int, size: int, device: torch.device, rng: np.random.Generator
) -> None:
    case = Case(1, 2, 4, 3, Axis(3, size, offset=1), Axis(4, size, offset=-1), edge, "contiguous")
    x, g = rng.normal(size=case.shape), rng.normal(size=case.result_shape())
    found = pair.gradient(tensor(g, device=device), tensor(x, device=device), case)
    expected = finite_difference.gradient(lambda v: inner(pair.forward(tensor(v, device=device), case), g), x)
    assert_close(found, expected, 1e-8, pair.name)


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_equals_autograd_over_torch_windows(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    """The formulas in PyTorch's words: padding, unfolding, mean and variance."""
    leaf = tensor(rng.normal(size=(2, 3, 6, 5)), device=device).requires_grad_()
    padded = functional.pad(leaf, [2, 1, 2, 1], mode="constant" if edge == ZERO else "replicate")
    windows = functional.unfold(padded, 4).reshape(2, 3, 16, 6, 5)
    case = Case(2, 3, 6, 5, Axis(6, 4), Axis(5, 4), edge, "contiguous")
    alpha, beta, delta = MILD
    variance = windows.var(2, correction=0)
    expected = {
        "spatial": leaf * (delta + alpha * windows.square().mean(2)) ** -beta,
        "local_contrast": -1.5 + 0.75 * (leaf - 0.5 * windows.mean(2)) * (delta + alpha * variance) ** -beta,
    }
    for pair in GENTLE:
        g = torch.randn_like(leaf)
        assert_close(pair.forward(leaf.detach(), case), expected[pair.name], 1e-12, pair.name)
        wanted = torch.autograd.grad(expected[pair.name], leaf, g, retain_graph=True)[0]
        assert_close(pair.gradient(g, leaf.detach(), case), wanted, 1e-12, f"{pair.name} gradient")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_contrast_without_alpha_is_affine(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    """With alpha 0, the default, it takes off the mean and multiplies by 32: its gradient is an exact adjoint."""
    pair = Pair("local_contrast", Divisor(0.0, 0.5, 2.0**-10), PLAIN)
    case = Case(2, 3, 5, 4, Axis(4, 4, offset=1), Axis(5, 3, offset=-1), edge, "contiguous")
    x, g = rng.normal(size=case.shape), rng.normal(size=case.result_shape())
    y = pair.forward(tensor(x, device=device), case)
    taps = gather(x, case.rows, case.columns, edge)
    assert_close(y, 32 * (taps[..., 2, 1] - taps.mean((-1, -2))), 1e-12, "means taken off")
    back = pair.gradient(tensor(g, device=device), tensor(np.zeros(case.shape), device=device), case)
    assert abs(inner(y, g) - inner(back, x)) <= 1e-10 * np.abs(x).sum()


@pytest.mark.parametrize("name", NAMES)
def test_refuses_strides_and_dilations(name: str, device: torch.device) -> None:
    x = torch.ones(1, 1, 5, 5, device=device)
    for axis in (Axis(2, 3, 2), Axis(3, 3, 1, 2)):
        place = window(axis, axis, 5, 5)
        with pytest.raises(MPSArgumentError, match="strides and dilations of 1"):
            getattr(ops, f"{name}_normalization")(x, place, MPSImageEdgeMode.ZERO, *_pair(name, 1).parameters)


# --- over channels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_divisors(implementation: str) -> None:
    """With beta 1, X / Y is the divisor: 3.8, 7, 7, 6.8 with the default window of 5."""
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)
    y = _cross(implementation, x, 5, Divisor(1.0, 1.0, 1.0))
    assert_digits(x / np.asarray(y), [3.8, 7, 7, 6.8], 12)
    y = _cross(implementation, x, 4, Divisor(1.0, 1.0, 1.0))
    assert_digits(x / np.asarray(y), [2.25, 4.5, 8.5, 8.25], 12)


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_cross_channel_numbers(implementation: str) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)
    y = _cross(implementation, x, 4, Divisor(1.0, 0.75, 1.0))
    assert_digits(y, [0.54433, 0.64732, 0.60264, 0.82171], 5)


def _cross(implementation: str, x: np.ndarray, size: int, divisor: Divisor) -> np.ndarray:
    if implementation == "oracle":
        return oracle.cross_channel(x, size, divisor)
    return ops.cross_channel_normalization(tensor(x), size, divisor).numpy()


@in_one_test
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 12])
def test_cross_channel_equals_loops(
    channels: int, layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """Every window size, those larger than the image's channels too."""
    for size in (*range(1, 10), 40):
        x, g = (rng.normal(size=(2, channels, 2, 3)).astype(np.float32).astype(np.float64) for _ in range(2))
        xt, gt = tensor(x, dtype, device, layout), tensor(g, dtype, device, layout)
        divisor = SPATIAL_DIVISORS[size % len(SPATIAL_DIVISORS)]
        result = ops.cross_channel_normalization(xt, size, divisor)
        assert result.dtype == dtype
        assert_close(result, oracle.cross_channel(x, size, divisor), TOLERANCE[dtype], f"size {size}")
        found = ops.cross_channel_normalization_gradient(gt, xt, size, divisor)
        assert found.dtype == dtype
        expected = oracle.cross_channel_gradient(g, x, size, divisor)
        assert_close(found, expected, TOLERANCE[dtype], f"gradient, size {size}")


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8])
def test_cross_channel_equals_pytorch(size: int, device: torch.device, rng: np.random.Generator) -> None:
    """PyTorch divides alpha by the window as well, and leans to the lower channels where the window is even."""
    leaf = tensor(rng.normal(size=(2, 7, 3, 4)), device=device).requires_grad_()
    expected = functional.local_response_norm(leaf, size, alpha=1e-1, beta=0.75, k=2.0)
    divisor = Divisor(1e-1, 0.75, 2.0)
    assert_close(ops.cross_channel_normalization(leaf.detach(), size, divisor), expected, 1e-13, "cross-channel")
    g = torch.randn_like(expected)
    found = ops.cross_channel_normalization_gradient(g, leaf.detach(), size, divisor)
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-12, "cross-channel gradient")


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_cross_channel_gradient_equals_finite_differences(
    size: int, device: torch.device, rng: np.random.Generator
) -> None:
    x, g = rng.normal(size=(2, 6, 2, 1)), rng.normal(size=(2, 6, 2, 1))

    def total(v: np.ndarray) -> float:
        return inner(ops.cross_channel_normalization(tensor(v, device=device), size, MILD), g)

    found = ops.cross_channel_normalization_gradient(tensor(g, device=device), tensor(x, device=device), size, MILD)
    assert_close(found, finite_difference.gradient(total, x), 1e-8, "cross-channel gradient")


# --- what is promised beside the numbers -----------------------------------------------------------------------------


def _calls(x: torch.Tensor, case: Case) -> list[Callable[[], torch.Tensor]]:
    g = torch.randn(case.result_shape(), dtype=x.dtype, device=x.device).contiguous(memory_format=torch.channels_last)
    same = torch.randn_like(x)
    return [
        *(lambda pair=pair: pair.forward(x, case) for pair in GENTLE),
        *(lambda pair=pair: pair.gradient(g, x, case) for pair in GENTLE),
        lambda: ops.cross_channel_normalization(x, 5, MILD),
        lambda: ops.cross_channel_normalization_gradient(same, x, 5, MILD),
    ]


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_channels_last_stays(size: int, edge: int, device: torch.device, rng: np.random.Generator) -> None:
    case = Case(2, 4, 7, 6, Axis(5, size, offset=1), Axis(6, size), edge, "channels_last")
    x = tensor(rng.normal(size=case.shape), torch.float32, device, "channels_last")
    for call in _calls(x, case):
        assert call().is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("size", [1, 3])
def test_results_are_the_callers_own(size: int, edge: int, device: torch.device) -> None:
    case = Case(2, 3, 4, 5, Axis(4, size), Axis(5, size), edge, "contiguous")
    x = torch.rand(case.shape, device=device)
    kept = x.clone()
    for call in _calls(x, case):
        first = call().clone()
        call().fill_(7.0)
        assert torch.equal(x, kept)
        assert torch.equal(call(), first)
