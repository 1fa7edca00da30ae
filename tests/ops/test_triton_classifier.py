"""Fully connected layers of few outputs, and the loss behind them, in Triton against the functions of `openmps.ops`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import fully_connected, fully_connected_gradient
from openmps.ops.loss.loss import LossParameters, loss
from openmps.types import MPSCNNLossType, MPSCNNReductionType

HALF, SINGLE = torch.float16, torch.float32
SIZES = [(5, 10, 1, 1, 700), (70, 16, 2, 3, 9), (1, 1, 1, 1, 1)]
"""Images, outputs, rows, columns and channels of the source."""
SOFT_MAX = MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY
SUM, MEAN, BY_WEIGHTS = (
    MPSCNNReductionType.SUM,
    MPSCNNReductionType.MEAN,
    MPSCNNReductionType.SUM_BY_NON_ZERO_WEIGHTS,
)


def both(function: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a function gives with Triton and without, the second in float32."""
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(function(runs))
    return found


def image(*shape: int, dtype: torch.dtype, place: torch.device, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    images, channels, height, width = shape
    return torch.randn((images, height, width, channels), generator=generator).to(place, dtype).permute(0, 3, 1, 2)


def assert_close(found: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    assert found is not None
    assert expected is not None
    assert found.dtype is dtype
    assert found.shape == expected.shape
    scale = float(expected.abs().max()) + 1e-6
    bound = (2e-3 if dtype is HALF else 2e-6) * scale
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=bound)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("types", [(HALF, HALF), (SINGLE, HALF), (SINGLE, SINGLE)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_layers_of_few_outputs(size, types, wide: bool, place, monkeypatch: pytest.MonkeyPatch) -> None:
    images, outputs, rows, columns, channels = size
    x = image(images, channels, rows, columns, dtype=types[0], place=place, seed=1)
    weights = image(outputs, channels, rows, columns, dtype=types[1], place=place, seed=2).permute(0, 2, 3, 1)
    biases = None if images == 5 else image(1, outputs, 1, 1, dtype=SINGLE, place=place, seed=3).flatten()
    gradient = image(images, outputs, 1, 1, dtype=types[0], place=place, seed=4)

    def run(runs: bool) -> list[Any]:
        given = (gradient, x, weights) if runs else (gradient.double(), x.double(), weights.double())
        wide_biases = biases if runs or biases is None else biases.double()
        y = fully_connected(given[1], given[2], wide_biases, wide=wide)
        return [y, *fully_connected_gradient(*given), *fully_connected_gradient(*given, with_parameters=False)]

    found, expected = both(run, monkeypatch)
    is_half = types == (HALF, HALF)
    kinds = [SINGLE if wide or not is_half else HALF, HALF if is_half else SINGLE, SINGLE, SINGLE]
    for kind, one, other in zip(kinds, found, expected, strict=False):
        assert_close(one, other, kind)
    assert_close(found[4], expected[4], kinds[1])
    assert found[5:] == [None, None]


@pytest.mark.parametrize("types", [(HALF, HALF), (HALF, SINGLE), (SINGLE, SINGLE)], ids=str)
def test_one_row_may_have_more_outputs(types, place, monkeypatch: pytest.MonkeyPatch) -> None:
    x = image(1, 700, 1, 3, dtype=types[0], place=place, seed=1)
    weights = image(37, 700, 1, 3, dtype=types[1], place=place, seed=2).permute(0, 2, 3, 1)
    biases = image(1, 37, 1, 1, dtype=SINGLE, place=place, seed=3).flatten()
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    found = fully_connected(x, weights, biases)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    expected = fully_connected(x.double(), weights.double(), biases.double())
    assert_close(found, expected, HALF if types == (HALF, HALF) else SINGLE)


@pytest.mark.parametrize(("reduction", "smoothing"), [(SUM, 0.0), (SUM, 0.2), (MEAN, 0.0), (BY_WEIGHTS, 0.2)], ids=str)
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("shape", [(3, 10, 1, 1), (2, 3, 2, 4), (1, 1000, 1, 1), (2, 1, 1, 1)], ids=str)
def test_softmax_cross_entropy(shape, dtype, reduction, smoothing, place, monkeypatch: pytest.MonkeyPatch) -> None:
    y = image(*shape, dtype=dtype, place=place, seed=1) * 4
    t = image(*shape, dtype=SINGLE, place=place, seed=2).abs()
    t[0, 0] = 0.0
    y[0, 0] = -torch.inf if shape[1] > 1 and not smoothing else 1.0
    parameters = LossParameters(SOFT_MAX, reduction, 0.75, smoothing, 10)

    def run(runs: bool) -> Any:
        return loss(y if runs else y.float(), t, None, parameters)

    found, expected = both(run, monkeypatch)
    assert_close(found[0], expected[0], SINGLE)
    assert_close(found[1], expected[1], dtype)


def test_labels_of_another_memory_and_predictions_that_are_no_numbers(place, monkeypatch: pytest.MonkeyPatch) -> None:
    y = image(2, 3, 1, 2, dtype=SINGLE, place=place, seed=1)
    y[1] = torch.nan
    t = image(2, 4, 1, 2, dtype=SINGLE, place=place, seed=2)[:, :3]
    found, expected = both(lambda runs: loss(y, t, None, LossParameters(SOFT_MAX, SUM)), monkeypatch)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
