"""Where windows read, against the definition tap by tap, the worked examples, and the adjoint identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops import geometry as ops
from openmps.types import MPSImageEdgeMode
from oracles import geometry as oracle
from oracles.geometry import CLAMP, ZERO, Axis
from placements import SINGLE_AXES, Case, cases, window

ALL = cases(60, seed=4)


def one_axis(axis: Axis, source: int) -> ops.Axis:
    return ops.Axis(source, axis.result, axis.size, axis.stride, axis.dilation, axis.offset)


@in_one_test
@pytest.mark.parametrize(
    ("source", "size", "dilation", "stride", "result", "offset", "first", "last"),
    [
        (28, 5, 1, 1, 28, 0, -2, 29),
        (28, 2, 1, 2, 14, 1, 0, 27),
        (7, 2, 1, 2, 4, 1, 0, 7),
        (7, 2, 1, 2, 4, 0, -1, 6),
        (13, 2, 1, 1, 13, 0, -1, 12),
        (13, 2, 1, 1, 13, 1, 0, 13),
        (10, 4, 1, 1, 10, 0, -2, 10),
        (10, 4, 1, 1, 10, 1, -1, 11),
        (224, 3, 1, 2, 112, 0, -1, 223),
        (224, 3, 1, 2, 112, 1, 0, 224),
        (224, 7, 1, 2, 112, 0, -3, 225),
        (7, 7, 1, 1, 1, 3, 0, 6),
        (8, 3, 1, 2, 3, 1, 0, 6),
        (11, 3, 1, 3, 3, 2, 1, 9),
        (16, 3, 2, 1, 16, 0, -2, 17),
        (16, 2, 3, 1, 16, 0, -2, 16),
        (16, 2, 3, 1, 16, 1, -1, 17),
        (6, 1, 1, 3, 2, 1, 1, 4),
        (4, 3, 1, 1, 6, -1, -2, 5),
        (4, 3, 1, 2, 3, -1, -2, 4),
    ],
)
def test_printed_reads(
    source: int, size: int, dilation: int, stride: int, result: int, offset: int, first: int, last: int
) -> None:
    axis = ops.Axis(source, result, size, stride, dilation, offset)
    assert axis.taps(0)[0] == first
    assert axis.taps(result - 1)[-1] == last
    assert (axis.first, axis.first + axis.read - 1) == (first, last)


def test_even_dilated_windows_are_centred_by_their_extent() -> None:
    assert list(ops.Axis(10, 1, 2, 1, 3, 0).taps(0)) == [-2, 1]
    assert [Axis(1, 2, 1, 3, 0).tap(0, p) for p in range(2)] == [-2, 1]


@pytest.mark.parametrize("source", [1, 2, 5, 9])
def test_every_axis(source: int) -> None:
    for axis in SINGLE_AXES:
        found = one_axis(axis, source)
        taps = [[axis.tap(x, p) for p in range(axis.size)] for x in range(axis.result)]
        everything = range(min(min(t) for t in taps), max(max(t) for t in taps) + 1)
        inside = [i for i in everything if 0 <= i < source]
        whole = [x for x, t in enumerate(taps) if all(0 <= i < source for i in t)]
        assert [list(found.taps(x)) for x in range(axis.result)] == taps, axis
        assert (found.first, found.read) == (everything.start, len(everything)), axis
        assert list(found.inside) == inside, axis
        assert list(found.complete) == whole, axis
        assert found.before == max(0, -everything.start), axis
        assert found.after == max(0, everything.stop - source), axis
        assert found.leaves_source == (everything.start < 0 or everything.stop > source), axis


@pytest.mark.parametrize("source", [1, 5, 8])
def test_symmetric_padding_is_what_libraries_do(source: int) -> None:
    seen = 0
    for k in range(1, 6):
        for s in range(1, 4):
            for d in range(1, 3):
                for offset in range(-2, 6):
                    for result in range(1, 8):
                        axis = ops.Axis(source, result, k, s, d, offset)
                        padding = axis.symmetric_padding(limit=k)
                        if padding is None:
                            continue
                        seen += 1
                        assert 0 <= padding <= k
                        assert axis.first == -padding
                        assert result == (source + 2 * padding - axis.extent) // s + 1
    assert seen > 50


def region(case: Case, x: np.ndarray) -> np.ndarray:
    """What `read` should give: every pixel from the first tap of the first window to the last tap of the last."""
    rows, columns = case.rows, case.columns
    first = rows.tap(0, 0), columns.tap(0, 0)
    last = rows.tap(rows.result - 1, rows.size - 1), columns.tap(columns.result - 1, columns.size - 1)
    result = np.zeros((*x.shape[:2], last[0] - first[0] + 1, last[1] - first[1] + 1))
    for row in range(first[0], last[0] + 1):
        for column in range(first[1], last[1] + 1):
            result[:, :, row - first[0], column - first[1]] = oracle.read(x, row, column, case.edge)
    return result


@in_one_test
@pytest.mark.parametrize("number", range(len(ALL)))
def test_read_equals_loops(number: int, device: torch.device, rng: np.random.Generator) -> None:
    case = ALL[number]
    x = rng.normal(size=case.shape)
    found = ops.read(tensor(x, device=device, layout=case.layout), case.window(), case.edge_mode)
    assert_close(found, region(case, x), 0.0, f"read of {case}")


@in_one_test
@pytest.mark.parametrize("number", range(len(ALL)))
def test_read_adjoint_equals_loops(number: int, device: torch.device, rng: np.random.Generator) -> None:
    case = ALL[number]
    x = rng.normal(size=case.shape)
    g = rng.normal(size=region(case, x).shape)
    gt = tensor(g, device=device, layout=case.layout)
    kept = gt.clone()
    found = ops.read_adjoint(gt, case.window(), case.edge_mode)
    expected = np.zeros(case.shape)
    first = case.rows.tap(0, 0), case.columns.tap(0, 0)
    for row, column in np.ndindex(*g.shape[2:]):
        oracle.scatter(expected, first[0] + row, first[1] + column, case.edge, g[:, :, row, column])
    assert_close(found, expected, 1e-13, f"adjoint of {case}")
    assert torch.equal(gt, kept), "the gradient handed in was changed"
    forward = ops.read(tensor(x, device=device), case.window(), case.edge_mode)
    assert abs(inner(forward, g) - inner(x, found)) <= 1e-12 * max(1.0, np.abs(g).sum())


def test_oracle_gathers_are_adjoint(rng: np.random.Generator) -> None:
    for case in ALL[:25]:
        x = rng.normal(size=case.shape)
        taps = oracle.gather(x, case.rows, case.columns, case.edge)
        g = rng.normal(size=taps.shape)
        back = oracle.gather_adjoint(g, x.shape, case.rows, case.columns, case.edge)
        assert abs(inner(taps, g) - inner(x, back)) <= 1e-11 * max(1.0, np.abs(g).sum())


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_read_inside_copies_nothing(edge: int, device: torch.device) -> None:
    x = torch.randn(2, 3, 6, 7, device=device)
    place = window(Axis(4, 3, offset=1), Axis(2, 3, 2, 1, 2), 6, 7)
    assert ops.read(x, place, MPSImageEdgeMode(edge)).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
