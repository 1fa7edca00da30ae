"""Soft-max and log-soft-max against loops, PyTorch, finite differences and the printed numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.ops.pointwise import softmax as ops
from oracles import finite_difference
from oracles import softmax as oracle
from pairs import pairs

NAMES = ["softmax", "log_softmax"]
SHAPES = [(3, 5, 2, 3), (1, 1, 1, 1), (0, 3, 2, 2), (2, 3, 4, 1), (1, 10, 1, 1), (2, 4, 1, 5)]


@pytest.mark.parametrize("implementation", [ops, oracle], ids=["op", "oracle"])
def test_printed_numbers(implementation) -> None:
    x = np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    g = np.array([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    convert = tensor if implementation is ops else array
    y = implementation.softmax(convert(x))
    assert_digits(y, [0.090031, 0.244728, 0.665241], 6)
    assert_digits(implementation.softmax_gradient(convert(g), y), [0.081925, -0.022033, -0.059892], 6)
    z = implementation.log_softmax(convert(x))
    assert_digits(np.exp(array(z)), [0.090031, 0.244728, 0.665241], 6)
    assert_digits(implementation.log_softmax_gradient(convert(g), z), [0.909969, -0.244728, -0.665241], 6)


@in_one_test
@pytest.mark.parametrize(
    ("name", "shape", "layout", "dtype"), pairs([*NAMES], SHAPES, LAYOUTS, [torch.float64, torch.float32]), ids=str
)
def test_equals_loops(
    name: str, shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    x, g = rng.normal(size=shape) * 3, rng.normal(size=shape)
    result = getattr(ops, name)(tensor(x, dtype, device, layout))
    expected = getattr(oracle, name)(x)
    assert result.dtype == dtype
    assert_close(result, expected, TOLERANCE[dtype], name)
    y = tensor(expected, dtype, device, layout)
    found = getattr(ops, f"{name}_gradient")(tensor(g, dtype, device, layout), y)
    assert found.dtype == dtype
    assert_close(found, getattr(oracle, f"{name}_gradient")(g, expected), TOLERANCE[dtype], f"{name} gradient")


@pytest.mark.parametrize("name", NAMES)
def test_gradient_equals_finite_differences(name: str, device: torch.device, rng: np.random.Generator) -> None:
    x, g = rng.normal(size=(2, 4, 2, 1)), rng.normal(size=(2, 4, 2, 1))
    forward, backward = getattr(ops, name), getattr(ops, f"{name}_gradient")
    found = backward(tensor(g, device=device), forward(tensor(x, device=device)))
    expected = finite_difference.gradient(lambda v: inner(forward(tensor(v, device=device)), g), x)
    assert_close(found, expected, 1e-8, name)


@pytest.mark.parametrize("name", NAMES)
def test_equals_pytorch(name: str, device: torch.device, rng: np.random.Generator) -> None:
    leaf = tensor(rng.normal(size=(2, 7, 3, 4)) * 5, device=device).requires_grad_()
    expected = getattr(torch, name)(leaf, 1)
    g = torch.randn_like(expected)
    assert_close(getattr(ops, name)(leaf.detach()), expected, 1e-13, name)
    found = getattr(ops, f"{name}_gradient")(g, expected.detach())
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-12, f"{name} gradient")


@pytest.mark.parametrize("name", NAMES)
def test_large_sources_do_not_overflow(name: str, device: torch.device) -> None:
    x = np.array([1e4, 1e4 - 2, -1e4]).reshape(1, 3, 1, 1)
    result = getattr(ops, name)(tensor(x, torch.float32, device))
    assert_close(result, getattr(oracle, name)(x), 1e-5, name)


@pytest.mark.parametrize("name", NAMES)
def test_channels_last_stays(name: str, device: torch.device) -> None:
    x = torch.randn(2, 5, 3, 4, device=device).contiguous(memory_format=torch.channels_last)
    y = getattr(ops, name)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert getattr(ops, f"{name}_gradient")(x, y).is_contiguous(memory_format=torch.channels_last)
