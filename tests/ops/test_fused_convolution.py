"""A convolution with what stands behind it in one operation, against float64 loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers import array, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.convolution.fused_convolution import (
    Activation,
    Fused,
    PrepareConvolution,
    Prepared,
    Source,
    Unrounded,
    fused_convolution,
    rounded_to_half,
)
from openmps.types import MPSCNNNeuronType
from oracles import convolution as oracle
from placements import Case, cases

CHANNELS = [(1, 1, 1), (3, 4, 1), (4, 3, 1), (5, 5, 1), (4, 4, 2), (3, 3, 3), (4, 8, 4), (5, 10, 5), (16, 8, 1)]
RELU, RELU_N = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N
RECTIFIERS = [None, Activation(RELU, 0.0, 0.0), Activation(RELU, 0.3, 0.0), Activation(RELU_N, 0.0, 1.5)]
RECTIFIERS.append(Activation(RELU_N, 0.2, 1.0))
EPSILON = 1e-3
ALL = cases(60, seed=5)
DTYPES = {"float32": 2e-5, "float16": 4e-3}


def rectified(y: np.ndarray, rectifier: Activation | None) -> np.ndarray:
    """By the table of neurons."""
    if rectifier is None:
        return y
    y = np.where(y >= 0, y, rectifier.a * y) if rectifier.a else np.maximum(y, 0)
    return np.minimum(y, rectifier.b) if rectifier.function is RELU_N else y


class Problem:
    """Numbers of one case."""

    def __init__(self, case: Case, number: int, rng: np.random.Generator) -> None:
        self.case, (inputs, outputs, self.groups) = case, CHANNELS[number % len(CHANNELS)]
        self.rectifier = RECTIFIERS[number % len(RECTIFIERS)]
        self.x = rng.normal(size=(case.images, inputs, case.height, case.width))
        shape = (outputs, case.rows.size, case.columns.size, inputs // self.groups)
        self.weights, self.biases = rng.normal(size=shape), rng.normal(size=outputs)
        mean, gamma, beta = rng.normal(size=(3, outputs))
        self.rows = [mean, None, rng.uniform(0.3, 3, outputs), gamma, beta]
        self.residual = rng.normal(size=case.result_shape(outputs)) if number % 3 == 0 else None
        self.has_biases, self.normalizes = number % 4 > 0, number % 2 == 0

    def expected(self) -> np.ndarray:
        case = self.case
        biases = self.biases if self.has_biases else None
        y = oracle.forward(self.x, self.weights, biases, case.rows, case.columns, self.groups, case.edge)
        if self.normalizes:
            mean, _, variance, gamma, beta = (None if row is None else row[:, None, None] for row in self.rows)
            y = gamma * (y - mean) / np.sqrt(variance + EPSILON) + beta
        return rectified(y if self.residual is None else y + self.residual, self.rectifier)

    def operands(self, dtype: torch.dtype, device: torch.device) -> list[Any]:
        """Those of `PrepareConvolution`."""

        def given(values: np.ndarray | None) -> torch.Tensor | None:
            return None if values is None else tensor(values, torch.float32, device)

        as_half = dtype == torch.float16 and device.type == "cuda"
        weights = given(self.weights)
        assert weights is not None
        operands = [Unrounded(weights, torch.float16 if as_half else torch.float32)]
        operands.append(given(self.biases) if self.has_biases else None)
        return [*operands, *(map(given, self.rows) if self.normalizes else ())]

    def found(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        case, epsilon = self.case, EPSILON if self.normalizes else None
        how = Fused(case.window(), case.edge_mode, self.groups, False, self.rectifier)
        prepare = PrepareConvolution(how.window, how.edge_mode, how.groups, case.images, epsilon)
        x = tensor(self.x, dtype, device, case.layout)
        residual = None
        if self.residual is not None:
            residual = tensor(self.residual, dtype, device).contiguous(memory_format=torch.channels_last)
        before = None if residual is None else residual.clone()
        found = fused_convolution(x, prepare.run((True,), *self.operands(dtype, device)), residual, how)
        assert residual is None or before is None or torch.equal(residual, before)
        return found


@in_one_test
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("number", range(len(ALL)))
def test_numbers(number: int, name: str, device: torch.device, rng: np.random.Generator) -> None:
    problem = Problem(ALL[number], number, rng)
    dtype = getattr(torch, name)
    found = problem.found(dtype, device)
    # Weights, source, addend and result are rounded.
    scale = max(1.0, float(np.abs(problem.weights).sum((1, 2, 3)).max()) / 8)
    assert_close(array(found.float()), problem.expected(), DTYPES[name] * scale)


def test_the_biases_of_an_addend_are_added(device: torch.device, rng: np.random.Generator) -> None:
    first, second = (Problem(ALL[6], number, rng) for number in (2, 11))
    assert first.normalizes
    for normalizes in (False, True):
        second.normalizes = second.has_biases = normalizes
        addend = Source(EPSILON if normalizes else None)
        window, edge_mode = first.case.window(), first.case.edge_mode
        joint = PrepareConvolution(window, edge_mode, first.groups, 1, EPSILON, addend)
        apart = [PrepareConvolution(window, edge_mode, each.groups, 1, EPSILON) for each in (first, second)]
        operands = [each.operands(torch.float32, device) for each in (first, second)]
        mine, theirs = apart[0].run((True,), *operands[0]).biases, None
        if normalizes:
            theirs = apart[1].run((True,), *operands[1]).biases
        found = joint.run((True,), *operands[0], *operands[1])
        torch.testing.assert_close(found.biases, mine if theirs is None else mine + theirs)
        assert apart[0].run((True,), *operands[0]).biases is not None
        none = PrepareConvolution(window, edge_mode, first.groups, 1, EPSILON, keeps_biases=False)
        assert none.run((True,), *operands[0]).biases is None


def test_an_addend_of_one_pixel_is_broadcast(device: torch.device, rng: np.random.Generator) -> None:
    problem = Problem(ALL[5], 1, rng)
    problem.residual = rng.normal(size=(ALL[5].images, CHANNELS[1][1], 1, 1))
    assert_close(array(problem.found(torch.float32, device)), problem.expected(), 1e-4)


def test_what_is_too_large_for_float16_becomes_the_largest_number_and_infinity_stays() -> None:
    given = torch.tensor([1e6, -1e6, float("inf"), -float("inf"), 1.0])
    expected = torch.tensor([65504.0, -65504.0, float("inf"), -float("inf"), 1.0], dtype=torch.float16)
    assert torch.equal(rounded_to_half(given), expected)
    assert rounded_to_half(torch.tensor([float("nan")])).isnan().all()


def test_folded_weights_that_float16_does_not_hold_stay_float32(device: torch.device, rng: np.random.Generator) -> None:
    """Some beyond 65504 and some below the least number of float16, each as exact as its rounded image."""
    weights = rng.normal(size=(3, 1, 1, 2))
    variance, x = np.array([1e-14, 1.0, 1e14]), rng.normal(0, 1e-5, (1, 2, 4, 4)).astype(np.float16)
    rows = [torch.zeros(3), None, torch.from_numpy(variance).float(), torch.ones(3), torch.ones(3)]
    on_device = [None if row is None else row.to(device) for row in rows]
    given = Unrounded(torch.from_numpy(weights).float().to(device), torch.float16)
    window = ALL[2].window()
    prepared = PrepareConvolution(window, ALL[2].edge_mode, 1, 1, 0.0).run((True,), given, None, *on_device)
    how = Fused(window, ALL[2].edge_mode, 1, False, None)
    found = array(fused_convolution(torch.from_numpy(x).to(device), prepared, None, how))
    scale = 1 / np.sqrt(variance)
    expected = np.einsum("oc,nchw->nohw", weights[:, 0, 0], x.astype(np.float64)) * scale[:, None, None] + 1
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_a_channel_that_is_always_zero_stays_finite(device: torch.device) -> None:
    """Its variance is 0, so that its weights become too large for float16."""
    one = torch.ones(1, device=device)
    rows = [0 * one, None, 0 * one, one, one]
    weights = Unrounded(torch.ones(1, 1, 1, 1, device=device), torch.float16)
    window = ALL[2].window()
    prepared = PrepareConvolution(window, ALL[2].edge_mode, 1, 1, 1e-30).run((True,), weights, None, *rows)
    assert isinstance(prepared, Prepared)
    assert prepared.weights.isfinite().all()
    x = torch.zeros(1, 1, 1, 1, dtype=torch.float16, device=device)
    how = Fused(window, ALL[2].edge_mode, 1, False, None)
    assert fused_convolution(x, prepared, None, how).item() == 1.0
