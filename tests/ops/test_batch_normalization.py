"""Batch normalization's mathematics: oracle, torch, finite differences, stability."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, tensor
from in_one_test import in_one_test
from openmps.ops.normalization import batch_normalization as ops
from openmps.ops.normalization.batch_normalization import (
    BatchMoments,
    DataGradient,
    MergedMoments,
    Moments,
    Normalization,
    Normalize,
    ParameterGradients,
    ParameterSums,
    batch_moments,
    merged_moments,
    normalize,
)
from openmps.ops.normalization.batch_normalization import data_gradient as ops_data_gradient
from openmps.ops.normalization.batch_normalization import parameter_gradients as ops_parameter_gradients
from oracles import batch_normalization as oracle
from oracles import finite_difference

SHAPES = [(1, 1, 1, 1), (2, 1, 3, 2), (3, 3, 1, 1), (2, 4, 5, 3), (4, 5, 2, 7)]
EPSILON = 1e-3


def _case(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Source, gradient, gamma, beta: numbers that float32 holds."""
    channels = shape[1]
    x = rng.normal(size=shape) * 3.0 + rng.normal(size=(1, channels, 1, 1)) * 5.0
    drawn = (x, rng.normal(size=shape), rng.normal(size=channels) + 1.5, rng.normal(size=channels))
    return tuple(each.astype(np.float32).astype(np.float64) for each in drawn)


def _how(
    moments: Moments, gamma: np.ndarray, beta: np.ndarray, like: torch.Tensor, epsilon: float = EPSILON
) -> Normalization:
    options = {"dtype": like.dtype, "device": like.device}
    return Normalization(moments, torch.tensor(gamma, **options), torch.tensor(beta, **options), epsilon)


def parameter_gradients(gradient: torch.Tensor, x: torch.Tensor, how: Normalization) -> ParameterGradients:
    return ops_parameter_gradients(gradient, x, how.moments, how.epsilon)


def data_gradient(
    gradient: torch.Tensor, x: torch.Tensor, how: Normalization, sums: ParameterGradients | None, pixels: int
) -> torch.Tensor:
    return ops_data_gradient(gradient, x, how.moments, how.gamma, how.epsilon, sums, pixels)


def _exact(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    return array(moments.mean) + array(moments.correction), array(moments.variance)


@in_one_test
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_against_the_oracle(shape, layout: str, dtype: torch.dtype, device: torch.device, rng) -> None:
    x, g, gamma, beta = _case(rng, shape)
    mean, variance = oracle.moments(x)
    source, flow = tensor(x, dtype, device, layout), tensor(g, dtype, device, layout)
    moments = batch_moments(source)
    assert_close(_exact(moments)[0], mean, TOLERANCE[dtype], "mean")
    assert_close(moments.variance, variance, TOLERANCE[dtype], "variance")
    how = _how(moments, gamma, beta, source)
    expected = oracle.forward(x, mean, variance, gamma, beta, EPSILON)
    assert_close(normalize(source, how), expected, TOLERANCE[dtype], "result")
    sums = parameter_gradients(flow, source, how)
    for found, wanted in zip(sums, oracle.parameter_gradients(g, x, mean, variance, EPSILON), strict=True):
        assert_close(found, wanted, TOLERANCE[dtype], "parameter gradient")
    pixels = x.size // x.shape[1]
    found = data_gradient(flow, source, how, sums, pixels)
    assert_close(found, oracle.gradient(g, x, gamma, EPSILON), TOLERANCE[dtype], "gradient")
    fixed = data_gradient(flow, source, how, None, 0)
    assert_close(fixed, oracle.fixed_gradient(g, variance, gamma, EPSILON), TOLERANCE[dtype], "fixed gradient")
    np.testing.assert_array_equal(array(source), x)
    np.testing.assert_array_equal(array(flow), g)


@pytest.mark.parametrize("operation", ["normalize", "gradient"])
def test_results_lie_channels_last(operation: str, rng: np.random.Generator) -> None:
    x, g, gamma, beta = _case(rng, (2, 4, 5, 3))
    source, flow = (tensor(each, torch.float32, layout="channels_last") for each in (x, g))
    how = _how(batch_moments(source), gamma, beta, source)
    sums = parameter_gradients(flow, source, how)
    found = normalize(source, how) if operation == "normalize" else data_gradient(flow, source, how, sums, 30)
    assert found.is_contiguous(memory_format=torch.channels_last)


# --- pieces of a batch -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("sizes", [(1, 4, 2, 5), (7, 1), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_merged_moments(sizes, offset: float, dtype: torch.dtype, device: torch.device, rng) -> None:
    """Pieces give the moments of the whole, whatever their order."""
    x = (rng.normal(size=(sum(sizes), 3, 4, 2)) + offset).astype(np.float32).astype(np.float64)
    mean, variance = oracle.moments(x)
    edges = np.cumsum([0, *sizes])
    pieces = [x[first:last] for first, last in pairwise(edges)]
    for order in (pieces, pieces[::-1]):
        together, seen = batch_moments(tensor(order[0], dtype, device)), len(order[0])
        for piece in order[1:]:
            seen += len(piece)
            together = merged_moments(together, batch_moments(tensor(piece, dtype, device)), len(piece) / seen)
        found, spread = _exact(together)
        assert np.abs(found - mean).max() <= TOLERANCE[dtype] * 0.1, "mean"
        assert_close(spread, variance, TOLERANCE[dtype], "variance")


def test_merging_keeps_its_operands(rng: np.random.Generator) -> None:
    a, b = (batch_moments(torch.tensor(rng.normal(size=(2, 3, 2, 2)))) for _ in range(2))
    kept = [[row.clone() for row in each] for each in (a, b)]
    merged_moments(a, b, 0.5)
    for each, before in zip((a, b), kept, strict=True):
        assert all(torch.equal(row, old) for row, old in zip(each, before, strict=True))


# --- stability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e3, -1e5, 3e6])
def test_a_large_mean_costs_a_small_variance_nothing(offset: float, device: torch.device, rng) -> None:
    """Deviations of a few of the steps that float32 has near the mean; pieces too."""
    step = float(np.spacing(np.float32(abs(offset))))
    x = (offset + np.round(rng.normal(size=(6, 2, 8, 8)) * 40.0) * step).astype(np.float32).astype(np.float64)
    g = rng.normal(size=x.shape).astype(np.float32).astype(np.float64)
    gamma, beta = np.array([1.5, -0.5]), np.array([0.25, 2.0])
    mean, variance = oracle.moments(x)
    epsilon = float(variance.min()) * 1e-3
    source, flow = tensor(x, torch.float32, device), tensor(g, torch.float32, device)
    split = merged_moments(batch_moments(source[:1]), batch_moments(source[1:]), 5 / 6)
    for moments in (batch_moments(source), split):
        assert (np.abs(array(moments.variance) / variance - 1.0) <= 1e-5).all()
        how = _how(moments, gamma, beta, source, epsilon)
        expected = oracle.forward(x, mean, variance, gamma, beta, epsilon)
        assert_close(normalize(source, how), expected, 1e-5, "result")
        sums = parameter_gradients(flow, source, how)
        wanted = oracle.gradient(g, x, gamma, epsilon)
        found = array(data_gradient(flow, source, how, sums, x.size // 2))
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e30, 1e-30])
def test_a_constant_channel(value: float, device: torch.device) -> None:
    """Variance 0 exactly: with the framework's smallest epsilon the result is beta, not an amplified rounding."""
    source = torch.full((3, 2, 7, 5), value, dtype=torch.float32, device=device)
    moments = batch_moments(source)
    assert not moments.variance.any()
    assert not moments.correction.any()
    assert (moments.mean == source[0, :, 0, 0]).all()
    how = _how(moments, np.array([2.0, 3.0]), np.array([0.5, -4.0]), source, float(np.finfo(np.float32).tiny))
    found = normalize(source, how)
    assert (found[:, 0] == 0.5).all()
    assert (found[:, 1] == -4.0).all()
    merged = merged_moments(moments, batch_moments(source[:1]), 0.25)
    assert not merged.variance.any()
    assert (merged.mean == source[0, :, 0, 0]).all()


@pytest.mark.parametrize("outlier", ["first", "inside"])
def test_an_outlier(outlier: str, device: torch.device, rng: np.random.Generator) -> None:
    """A border of zeros around large numbers, for example after a convolution."""
    x = (rng.normal(size=(2, 1, 16, 16)) + 1e4).astype(np.float32).astype(np.float64)
    x[0, 0][(0, 0) if outlier == "first" else (7, 9)] = 0.0
    mean, variance = oracle.moments(x)
    moments = batch_moments(tensor(x, torch.float32, device))
    assert abs(_exact(moments)[0][0] - mean[0]) <= 1e-6 * np.sqrt(variance[0])
    assert_close(moments.variance, variance, 1e-6)


@pytest.mark.parametrize("deviations", [0.0, 1.0, 3.9, 4.1, 1e3])
def test_sums_of_numbers_as_they_are(
    deviations: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep the digits of the sums around the mean, and are taken up to 4 deviations."""
    x, g = (rng.normal(size=(4, 3, 24, 20)).astype(np.float32).astype(np.float64) for _ in range(2))
    x = (x + deviations * x.std()).astype(np.float32).astype(np.float64)
    source, flow = (tensor(each, torch.float32, layout="channels_last") for each in (x, g))
    mean, variance = oracle.moments(x)
    assert (ops._plain_moments(source) is not None) == (deviations < 4)
    for is_plain in (True, False):
        if not is_plain:
            monkeypatch.setattr(ops, "_is_plain", lambda *_: False)
        moments = batch_moments(source)
        assert (np.abs(_exact(moments)[0] - mean) <= 1e-6 * np.sqrt(variance)).all()
        assert (np.abs(array(moments.variance) / variance - 1.0) <= 4e-6).all()
        how = _how(moments, np.array([1.5, -0.5, 1.0]), np.array([0.25, 2.0, 0.0]), source)
        assert_close(normalize(source, how), oracle.forward(x, mean, variance, *_rows(how), EPSILON), 4e-6, "result")
        sums = parameter_gradients(flow, source, how)
        size = np.sqrt(x.size / 3)
        for found, wanted in zip(sums, oracle.parameter_gradients(g, x, mean, variance, EPSILON), strict=True):
            assert (np.abs(array(found) - wanted) <= 4e-6 * size).all()
        found = array(data_gradient(flow, source, how, sums, x.size // 3))
        assert_close(found, oracle.gradient(g, x, array(how.gamma), EPSILON), 4e-6, "gradient")


def _rows(how: Normalization) -> tuple[np.ndarray, np.ndarray]:
    return array(how.gamma), array(how.beta)


def test_sums_have_the_same_bits_whatever_the_number_of_threads(rng: np.random.Generator) -> None:
    source, flow = (tensor(rng.normal(size=(4, 40, 60, 60)), torch.float32, layout="channels_last") for _ in range(2))
    found, before = list[tuple[torch.Tensor, ...]](), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            moments = batch_moments(source)
            found.append((*moments, *ops_parameter_gradients(flow, source, moments, EPSILON)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))


def test_near_zero() -> None:
    row = torch.tensor([1.0, -7.0])
    assert ops.is_near_zero(row, torch.ones(2))
    assert not ops.is_near_zero(row, torch.ones(2), 6.0)
    assert ops.is_near_zero(torch.zeros(2), torch.zeros(2))
    for wrong in (float("nan"), float("inf"), -1.0):
        assert not ops.is_near_zero(row, torch.tensor([1.0, wrong]))
    for wrong in (float("nan"), float("inf"), -float("inf")):
        assert not ops.is_near_zero(torch.tensor([wrong, 0.0]), torch.ones(2))


def test_not_a_number_and_infinity_show(device: torch.device) -> None:
    """They spoil their own channel, and no other."""
    source = torch.ones(2, 3, 2, 2, device=device)
    source[1, 0, 1, 1] = float("nan")
    source[0, 2, 0, 0] = float("inf")
    moments = batch_moments(source)
    assert array(moments.variance.isfinite()).tolist() == [0, 1, 0]


# --- derivatives -----------------------------------------------------------------------------------------------------


def test_finite_differences(rng: np.random.Generator) -> None:
    x, g, gamma, beta = _case(rng, (2, 3, 2, 2))

    def loss(values: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> float:
        source = torch.tensor(values)
        return float((normalize(source, _how(batch_moments(source), scale, shift, source)) * torch.tensor(g)).sum())

    source, flow = torch.tensor(x), torch.tensor(g)
    how = _how(batch_moments(source), gamma, beta, source)
    sums = parameter_gradients(flow, source, how)
    found = data_gradient(flow, source, how, sums, 8)
    assert_close(found, finite_difference.gradient(lambda v: loss(v, gamma, beta), x), 1e-7, "source")
    assert_close(sums.gamma, finite_difference.gradient(lambda v: loss(x, v, beta), gamma), 1e-7, "gamma")
    assert_close(sums.beta, finite_difference.gradient(lambda v: loss(x, gamma, v), beta), 1e-7, "beta")


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_against_torch(dtype: torch.dtype, rng: np.random.Generator) -> None:
    """torch.nn.functional.batch_norm and its derivatives by autograd, in float64."""
    x, g, gamma, beta = _case(rng, (5, 6, 4, 3))
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, gamma, beta)]
    theirs = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], True, 0.0, EPSILON)
    theirs.backward(torch.tensor(g))
    source, flow = tensor(x, dtype), tensor(g, dtype)
    how = _how(batch_moments(source), gamma, beta, source)
    sums = parameter_gradients(flow, source, how)
    found = [normalize(source, how), data_gradient(flow, source, how, sums, 60), *sums]
    wanted = [theirs, *(leaf.grad for leaf in leaves)]
    for mine, other, what in zip(found, wanted, ("result", "source", "gamma", "beta"), strict=True):
        assert_close(mine, other, TOLERANCE[dtype], what)


def test_golden() -> None:
    """One channel, 1 to 4; the gradient of the first number."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 2, 2)
    moments = batch_moments(x)
    assert (float(moments.mean), float(moments.variance)) == (2.5, 1.25)
    how = Normalization(moments, torch.ones(1), torch.zeros(1), 1e-5)
    assert_digits(normalize(x, how), [-1.34164, -0.44721, 0.44721, 1.34164], 5)
    g = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 2, 2)
    sums = parameter_gradients(g, x, how)
    assert_digits(sums.gamma, -1.34164, 5)
    assert_digits(sums.beta, 1.0, 5)
    assert_digits(data_gradient(g, x, how, sums, 4), [0.26833, -0.35777, -0.08944, 0.17888], 5)
    assert isinstance(sums, ParameterGradients)


# --- operations -------------------------------------------------------------------------------------------------------


def test_half_precision_operands(device: torch.device, rng: np.random.Generator) -> None:
    """Sums in float32; images rounded once."""
    x, g, gamma, beta = _case(rng, (4, 5, 3, 2))
    source, flow = (tensor(each, torch.float32, device).half() for each in (x, g))
    wide, wide_flow = source.double(), flow.double()
    moments = BatchMoments().run((True,) * 3, source)
    exact = batch_moments(wide)
    how = _how(exact, gamma, beta, wide)
    scale, shift = (tensor(each, torch.float32, device) for each in (gamma, beta))
    assert {row.dtype for row in moments} == {torch.float32}
    assert_close(moments.variance, exact.variance, 1e-5)
    z = Normalize(EPSILON).run((True,), source, *moments, scale, shift)
    assert z.dtype is torch.float32
    assert_close(z, normalize(wide, how), 1e-5)
    rounded = Normalize(EPSILON, is_rounded=True).run((True,), source, *moments, scale, shift)
    assert torch.equal(rounded, z.half())
    sums = ParameterSums(EPSILON).run((True,) * 2, flow, source, *moments)
    for mine, other in zip(sums, parameter_gradients(wide_flow, wide, how), strict=True):
        assert mine.dtype is torch.float32
        assert_close(mine, other, 1e-5)
    expected = data_gradient(wide_flow, wide, how, parameter_gradients(wide_flow, wide, how), 24)
    for gradient in (flow, flow.float()):
        found = DataGradient(EPSILON).run((True,), gradient, source, *moments, scale, *sums, 24)
        assert found.dtype is torch.float16
        assert_close(found, expected, 2.0**-11 * 1.01)


def test_stored_statistics_have_no_correction(rng: np.random.Generator) -> None:
    x, g, gamma, beta = (torch.tensor(each) for each in _case(rng, (2, 3, 2, 2)))
    mean, variance = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([1.0, 2.0, 4.0])
    how = Normalization(Moments(mean, torch.zeros(3), variance), gamma, beta, EPSILON)
    assert torch.equal(Normalize(EPSILON).run((True,), x, mean, None, variance, gamma, beta), normalize(x, how))
    found = DataGradient(EPSILON).run((True,), g, x, mean, None, variance, gamma)
    assert torch.equal(found, data_gradient(g, x, how, None, 0))


def test_sums_that_join(rng: np.random.Generator) -> None:
    x, g, _, _ = (torch.tensor(each) for each in _case(rng, (4, 3, 2, 2)))
    moments = batch_moments(x)
    first = ParameterSums(EPSILON).run((True,) * 2, g[:1], x[:1], *moments)
    both = ParameterSums(EPSILON).run((True,) * 2, g[1:], x[1:], *moments, *first)
    for found, wanted in zip(both, ParameterSums(EPSILON).run((True,) * 2, g, x, *moments), strict=True):
        assert_close(found, wanted, 1e-12)
    merged = MergedMoments().run((True,) * 3, *batch_moments(x[:1]), *batch_moments(x[1:]), 0.75)
    assert_close(merged.variance, moments.variance, 1e-12)
