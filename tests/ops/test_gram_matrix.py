"""The Gram matrix and its gradient against loops, finite differences and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.ops.reduce.gram_matrix import gram_matrix, gram_matrix_gradient
from oracles import finite_difference
from oracles import gram_matrix as oracle
from pairs import pairs

SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (3, 5, 1, 1), (2, 1, 3, 2), (0, 4, 2, 2), (1, 12, 2, 1), (2, 4, 1, 6)]


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_small_numbers_by_hand(implementation: str) -> None:
    """Channels (1, 2) and (3, 4): products 5, 11, 25. A gradient at one place comes back to both of its factors."""
    x = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 1, 2)
    g = np.array([[0.0, 1.0], [0.0, 0.0]]).reshape(1, 2, 1, 2)
    if implementation == "op":
        result, found = gram_matrix(tensor(x), 0.5), gram_matrix_gradient(tensor(g), tensor(x), 0.5)
    else:
        result, found = oracle.forward(x, 0.5), oracle.gradient(g, x, 0.5)
    assert_digits(result, [2.5, 5.5, 5.5, 12.5], 12)
    assert_digits(found, [1.5, 2.0, 0.5, 1.0], 12)


@in_one_test
@pytest.mark.parametrize(
    ("alpha", "shape", "layout", "dtype"),
    pairs([1.0, -0.3], SHAPES, LAYOUTS, [torch.float64, torch.float32]),
    ids=str,
)
def test_equals_loops(
    alpha: float,
    shape: tuple[int, ...],
    layout: str,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    images, channels = shape[:2]
    x, g = rng.normal(size=shape), rng.normal(size=(images, channels, 1, channels))
    source = tensor(x, dtype, device, layout)
    result = gram_matrix(source, alpha)
    assert result.dtype == dtype
    assert_close(result, oracle.forward(x, alpha), TOLERANCE[dtype], "result")
    found = gram_matrix_gradient(tensor(g, dtype, device, layout), source, alpha)
    assert found.dtype == dtype
    assert_close(found, oracle.gradient(g, x, alpha), TOLERANCE[dtype], "gradient")


def test_gradient_equals_finite_differences(device: torch.device, rng: np.random.Generator) -> None:
    x, g = rng.normal(size=(2, 3, 2, 2)), rng.normal(size=(2, 3, 1, 3))
    found = gram_matrix_gradient(tensor(g, device=device), tensor(x, device=device), 0.7)
    expected = finite_difference.gradient(lambda v: inner(gram_matrix(tensor(v, device=device), 0.7), g), x)
    assert_close(found, expected, 1e-8)


def test_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    """Against einsum and its derivative."""
    x = tensor(rng.normal(size=(3, 5, 4, 2)), device=device).requires_grad_()
    expected = 2.5 * torch.einsum("nfyx,ncyx->ncf", x, x).unsqueeze(2)
    g = torch.randn_like(expected)
    assert_close(gram_matrix(x.detach(), 2.5), expected, 1e-13, "result")
    found = gram_matrix_gradient(g, x.detach(), 2.5)
    assert_close(found, torch.autograd.grad(expected, x, g)[0], 1e-12, "gradient")


def test_a_transposed_gradient_gives_the_same(device: torch.device) -> None:
    """Both halves of the matrix count, however the gradient is shared out between them."""
    x, g = torch.randn(2, 4, 3, 3, dtype=torch.float64, device=device), torch.randn(2, 4, 1, 4, dtype=torch.float64)
    turned = g.transpose(1, 3).contiguous().to(device)
    found = gram_matrix_gradient(g.to(device), x, 1.0)
    assert_close(found, array(gram_matrix_gradient(turned, x, 1.0)), 1e-13)


def test_channels_last_and_sources_stay(device: torch.device) -> None:
    x = torch.randn(2, 4, 3, 5, device=device).contiguous(memory_format=torch.channels_last)
    g = torch.randn(2, 4, 1, 4, device=device).contiguous(memory_format=torch.channels_last)
    before = x.clone(), g.clone()
    assert gram_matrix(x, 2.0).is_contiguous(memory_format=torch.channels_last)
    assert gram_matrix_gradient(g, x, 2.0).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before[0])
    assert torch.equal(g, before[1])
