"""Cholesky's factorization with its end in Triton: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interpreter import triton_place
from openmps.ops.matrix import linear_systems
from oracles import matrix as oracle


@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
@pytest.mark.parametrize("order", [1, 5, 130])
def test_one_of_several_fails(
    order: int, lower: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factor, what stays of the result, the pivot that fails, and the status; first pivots and last ones."""
    place = triton_place(monkeypatch)
    drawn = rng.standard_normal((3, order, order))
    x = drawn @ drawn.swapaxes(1, 2) / order + np.eye(order)
    x[1, order // 2, order // 2] = -1.0
    x[2, 0, 0] = -2.0
    before = rng.standard_normal((3, order, order))
    given = [torch.from_numpy(each).float().to(place) for each in (x, before)]
    found, status = linear_systems.cholesky(*given, lower=lower)
    expected = [
        oracle.cholesky(*pair, lower) for pair in zip(*(each.cpu().double().numpy() for each in given), strict=True)
    ]
    np.testing.assert_allclose(found.cpu(), np.stack(expected), rtol=0, atol=3e-5)
    assert status.tolist() == [[linear_systems.NOT_POSITIVE_DEFINITE]]
    alone = linear_systems.cholesky(*(each[:1] for each in given), lower=lower)
    np.testing.assert_allclose(alone[0].cpu(), expected[:1], rtol=0, atol=3e-5)
    assert alone[1].tolist() == [[0]]
