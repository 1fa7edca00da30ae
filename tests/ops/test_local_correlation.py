"""Local correlation against loops and against products of shifted images."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, assert_close, tensor
from in_one_test import in_one_test
from openmps.ops.reduce.local_correlation import local_correlation
from openmps.types import MPSImageEdgeMode
from oracles import reduce as oracle

WINDOWS = list(itertools.product(range(3), range(4)))
SHAPES = [
    ((1, 1, 1, 1), (1, 1, 1, 1)),
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((1, 4, 3, 9), (1, 4, 5, 2)),
    ((2, 5, 1, 11), (2, 5, 1, 11)),
]
EDGES = [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP]


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda each: each.name)
@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (7, 5)], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_equals_loops(shapes, window, stride, edge, device: torch.device, rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=shape) for shape in shapes)
    found = local_correlation(tensor(a, device=device), tensor(b, device=device), window, stride, edge)
    assert_close(found, oracle.local_correlation(a, b, window, stride, int(edge)), 1e-12)


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layouts(layout: str, dtype, device: torch.device, rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(2, 3, 5, 6))
    left, right = tensor(a, dtype, device, layout), tensor(b, dtype, device, layout)
    kept = left.clone(), right.clone()
    found = local_correlation(left, right, (1, 2), (1, 1), MPSImageEdgeMode.ZERO)
    assert found.dtype == dtype
    assert_close(found, oracle.local_correlation(a, b, (1, 2), (1, 1), 0), TOLERANCE[dtype])
    assert torch.equal(left, kept[0])
    assert torch.equal(right, kept[1])


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_equals_products_of_shifted_images(stride: int, device: torch.device, rng: np.random.Generator) -> None:
    """Wider than a tile, with more columns than a multiple of it."""
    radius, height, width = 3, 9, 43
    a, b = (tensor(rng.normal(size=(2, 8, height, width)), device=device) for _ in range(2))
    reach = radius * stride
    padded = functional.pad(b, (reach,) * 4)
    steps = range(0, 2 * reach + 1, stride)
    expected = torch.stack([(a * padded[:, :, v : v + height, u : u + width]).sum(1) for v in steps for u in steps], 1)
    found = local_correlation(a, b, (radius, radius), (stride, stride), MPSImageEdgeMode.ZERO)
    assert_close(found, expected, 1e-12)
    assert found.permute(0, 2, 3, 1).stride(3) == 1, "channels-last"


def test_an_empty_batch(device: torch.device) -> None:
    a = torch.zeros((0, 3, 4, 5), device=device)
    assert local_correlation(a, a, (1, 1), (1, 1), MPSImageEdgeMode.ZERO).shape == (0, 9, 4, 5)
