"""Reshaping against loops and NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.layout.reshape import reshape
from oracles import reshape as oracle

SHAPES = [(6, 3, 4), (1, 1, 1), (5, 1, 1), (1, 4, 3), (4, 2, 3), (3, 5, 2)]


def _others(shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    count = int(np.prod(shape))
    sizes = [n for n in range(1, count + 1) if count % n == 0]
    return [(c, h, count // c // h) for c, h in itertools.product(sizes, sizes) if count % (c * h) == 0]


@in_one_test
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_equals_loops(
    shape: tuple[int, int, int], layout: str, device: torch.device, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(2, *shape))
    for size in _others(shape):
        found = reshape(tensor(x, device=device, layout=layout), size)
        expected = oracle.reshape(x, size)
        assert_close(found, expected, 0.0, f"{shape} to {size}")
        assert_close(reshape(found, shape), x, 0.0, "and back, which is the gradient")
        pixels = x.transpose(0, 2, 3, 1).reshape(2, size[1], size[2], size[0])
        np.testing.assert_array_equal(expected, pixels.transpose(0, 3, 1, 2))


def test_no_images(device: torch.device) -> None:
    assert reshape(torch.zeros(0, 4, 3, 2, device=device), (2, 3, 4)).shape == (0, 2, 3, 4)
    assert reshape(torch.zeros(0, 4, 3, 2, device=device), (24, 1, 1)).shape == (0, 24, 1, 1)


def test_images_in_channels_last_memory_are_not_copied(device: torch.device) -> None:
    x = torch.rand(2, 4, 3, 2, device=device).contiguous(memory_format=torch.channels_last)
    assert reshape(x, (6, 2, 2)).data_ptr() == x.data_ptr()
