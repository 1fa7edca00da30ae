"""Padding against loops, NumPy's padding modes, the printed examples, and its gradient as the adjoint."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops.layout.pad import pad, pad_gradient
from openmps.types import MPSImageEdgeMode
from oracles import pad as oracle
from oracles.geometry import Axis
from pairs import pairs
from placements import window

DTYPES = [torch.float64, torch.float32]
EDGES = list(MPSImageEdgeMode)
NUMPY = {
    MPSImageEdgeMode.ZERO: {"mode": "constant"},
    MPSImageEdgeMode.CONSTANT: {"mode": "constant", "constant_values": 0.75},
    MPSImageEdgeMode.CLAMP: {"mode": "edge"},
    MPSImageEdgeMode.MIRROR: {"mode": "reflect"},
    MPSImageEdgeMode.MIRROR_WITH_EDGE: {"mode": "symmetric"},
}
PLACEMENTS = [
    # shape, rows (result, offset), columns, channels before and after
    ((2, 3, 4, 5), (7, -2), (9, -1), (0, 0)),
    ((1, 4, 3, 3), (3, 0), (12, -5), (2, 3)),
    ((3, 1, 1, 4), (6, -2), (3, 1), (1, 0)),
    ((2, 5, 2, 1), (9, -4), (5, -3), (0, 7)),
    ((1, 1, 1, 1), (4, -1), (3, -2), (2, 2)),
    ((2, 3, 6, 5), (2, 3), (2, 2), (0, 1)),
    ((1, 4, 3, 4), (4, 20), (3, -30), (0, 0)),
    ((0, 3, 3, 3), (5, -1), (4, -1), (1, 1)),
]


@in_one_test
@pytest.mark.parametrize(
    ("placement", "edge", "layout", "dtype"), pairs(PLACEMENTS, [*EDGES], LAYOUTS, DTYPES), ids=str
)
def test_equals_loops(placement, edge, layout, dtype, device: torch.device, rng: np.random.Generator) -> None:
    shape, (height, top), (width, left), channels = placement
    rows, columns = Axis(height, offset=top), Axis(width, offset=left)
    place = window(rows, columns, shape[2], shape[3])
    x = rng.normal(size=shape)
    fill = rng.normal(size=shape[1] + sum(channels))
    found = pad(tensor(x, dtype, device, layout), place, channels, edge, tensor(fill, dtype, device))
    assert found.dtype == dtype
    expected = oracle.pad(x, rows, columns, channels, int(edge), list(fill))
    assert_close(found, expected, TOLERANCE[dtype], "result")
    g = rng.normal(size=expected.shape)
    back = pad_gradient(tensor(g, dtype, device, layout), place, channels, edge)
    assert_close(back, oracle.gradient(g, shape, rows, columns, channels, int(edge)), TOLERANCE[dtype], "gradient")


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 3, 2), (1, 1, 1, 1), (2, 5, 1, 3)], ids=str)
def test_equals_numpy(edge: MPSImageEdgeMode, shape, device: torch.device, rng: np.random.Generator) -> None:
    """Also where the padding is larger than the image: NumPy reflects again and again, too."""
    x = rng.normal(size=shape)
    for c, y, u in itertools.product([(0, 0), (2, 5)], [(3, 0), (1, 8)], [(0, 2), (7, 4)]):
        rows, columns = Axis(y[0] + shape[2] + y[1], offset=-y[0]), Axis(u[0] + shape[3] + u[1], offset=-u[0])
        found = pad(tensor(x, device=device), window(rows, columns, shape[2], shape[3]), c, edge, 0.75)
        np.testing.assert_array_equal(array(found), np.pad(x, ((0, 0), c, y, u), **NUMPY[edge]))


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
@pytest.mark.parametrize("placement", PLACEMENTS[:-1], ids=str)
def test_adjoint_identity(placement, edge, device: torch.device, rng: np.random.Generator) -> None:
    shape, (height, top), (width, left), channels = placement
    place = window(Axis(height, offset=top), Axis(width, offset=left), shape[2], shape[3])
    x = rng.normal(size=shape)
    y = pad(tensor(x, device=device), place, channels, edge)
    g = rng.normal(size=tuple(y.shape))
    back = pad_gradient(tensor(g, device=device), place, channels, edge)
    assert abs(inner(y, g) - inner(back, x)) <= 1e-11 * max(1.0, float(np.abs(g).sum()))


@pytest.mark.parametrize(
    ("edge", "first", "count", "expected"),
    [
        (MPSImageEdgeMode.MIRROR, -4, 8, [0, 1, 2, 1, 0, 1, 2, 1]),
        (MPSImageEdgeMode.MIRROR_WITH_EDGE, -4, 11, [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]),
        (MPSImageEdgeMode.CLAMP, -2, 8, [0, 0, 0, 1, 2, 2, 2, 2]),
    ],
)
def test_printed_examples(edge, first: int, count: int, expected: list[int], device: torch.device) -> None:
    columns = Axis(count, offset=first)
    assert [oracle.place(i, 3, int(edge)) for i in range(first, first + count)] == expected
    x = np.arange(3.0).reshape(1, 1, 1, 3)
    found = pad(tensor(x, device=device), window(Axis(1), columns, 1, 3), (0, 0), edge)
    np.testing.assert_array_equal(array(found).ravel(), expected)
    if count == 8:
        # The gradients in the header's drawings: which of d0 … d7 are added up for each pixel.
        g = 2.0 ** np.arange(8.0).reshape(1, 1, 1, 8)
        back = array(pad_gradient(tensor(g, device=device), window(Axis(1), columns, 1, 3), (0, 0), edge)).ravel()
        sums = [[0, 1, 2], [3], [4, 5, 6, 7]] if edge is MPSImageEdgeMode.CLAMP else [[0, 4], [1, 3, 5, 7], [2, 6]]
        np.testing.assert_array_equal(back, [sum(2.0**d for d in each) for each in sums])


def test_a_constant_leaves_nothing_of_what_is_not_a_number(device: torch.device) -> None:
    x = torch.full((1, 2, 2, 2), float("nan"), device=device)
    found = pad(x, window(Axis(4, offset=-1), Axis(2, offset=5), 2, 2), (1, 0), MPSImageEdgeMode.CONSTANT, 3.0)
    assert torch.equal(found, torch.full_like(found, 3.0))
