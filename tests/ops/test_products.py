"""Products of matrices: every library gives the same numbers, whatever lies transposed in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import on_a_cpu_of
from in_one_test import in_one_test
from openmps.ops.matrix import products


@pytest.fixture(params=[True, False], ids=["Intel", "another maker"])
def _maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_of(monkeypatch, is_intel=request.param)


@in_one_test
@pytest.mark.usefixtures("_maker")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (40, 3, 17), (0, 3, 2)], ids=str)
def test_product(
    shape: tuple[int, int, int],
    turned: tuple[bool, bool],
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    m, k, n = shape
    left, right = rng.normal(size=(m, k)), rng.normal(size=(k, n))
    factors = [
        torch.tensor(each.T.copy() if is_turned else each, dtype=dtype, device=device)
        for each, is_turned in zip((left, right), turned, strict=True)
    ]
    factors = [each.t() if is_turned else each for each, is_turned in zip(factors, turned, strict=True)]
    found = products.product(*factors)
    assert found.is_contiguous()
    np.testing.assert_allclose(found.cpu().numpy(), left @ right, rtol=1e-5, atol=1e-5)
    of_rows = products.product_of_rows(factors[0].contiguous(), factors[1].t().contiguous())
    np.testing.assert_allclose(of_rows.cpu().numpy(), left @ right, rtol=1e-5, atol=1e-5)


@in_one_test
@pytest.mark.usefixtures("_maker")
@pytest.mark.parametrize("libraries", [True, False], ids=["packed", "without packing"])
@pytest.mark.parametrize("shape", [(5, 7, 3, 9), (5, 7, 3, 2), (4, 1024, 512, 8), (1, 1024, 512, 8)], ids=str)
def test_repeated_product(
    shape: tuple[int, ...],
    libraries: bool,
    device: torch.device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small weights and large ones, few times and often: also for other rows than said, into a part of something."""
    rows, n, k, times = shape
    if not libraries:
        monkeypatch.setattr(products, "_packs", False)
        monkeypatch.setattr(products, "_onednn_order", None)
    weights = rng.normal(size=(n, k)) / k
    add = products.repeated_product(torch.tensor(weights, dtype=torch.float32, device=device), rows, times)
    for count in (rows, 2):
        x, sums = rng.normal(size=(count, k)), rng.normal(size=(count, n + 2))
        held = torch.tensor(sums, dtype=torch.float32, device=device)
        add(held[:, 1:-1], torch.tensor(x, dtype=torch.float32, device=device))
        sums[:, 1:-1] += x @ weights.T
        np.testing.assert_allclose(held.cpu().numpy(), sums, rtol=1e-5, atol=1e-5)


@in_one_test
@pytest.mark.usefixtures("_maker")
@pytest.mark.parametrize("turned", [True, False], ids=["turned", "as it lies"])
@pytest.mark.parametrize("shape", [(5, 7, 3, 9), (5, 70, 60, 9), (4, 1024, 512, 8), (1, 1024, 512, 8)], ids=str)
def test_repeated_new_product(
    shape: tuple[int, ...], turned: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """By weights as they lie, and by the transpose of what lies row by row; of a part of something, too."""
    rows, n, k, times = shape
    weights = rng.normal(size=(n, k)) / k
    held = torch.tensor(weights.T.copy() if turned else weights, dtype=torch.float32, device=device)
    held = held.t() if turned else held
    of_columns = products.column_by_column(held)
    assert torch.equal(of_columns, held)
    multiply = products.repeated_new_product(of_columns, rows, times)
    for count in (rows, 2):
        x = rng.normal(size=(count, k + 2))
        found = multiply(torch.tensor(x, dtype=torch.float32, device=device)[:, 1:-1])
        np.testing.assert_allclose(found.cpu().numpy(), x[:, 1:-1] @ weights.T, rtol=1e-5, atol=1e-5)
