"""Pooling and its gradients against float64 loops, PyTorch, finite differences and the printed numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import TOLERANCE, array, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.geometry import Window
from openmps.ops.pooling import pooling as ops
from openmps.types import MPSImageEdgeMode
from oracles import finite_difference
from oracles import pooling as oracle
from oracles.geometry import CLAMP, ZERO, Axis
from pairs import dealt
from placements import SINGLE_AXES, Case, cases, window

DTYPES = [torch.float64, torch.float32]
PADS = [(0, 0), (1, 0), (0, 2), (3, 1)]
DILATED = cases(60, seed=2)
PLAIN = cases(60, seed=3, dilation=False)
PLAIN = [c for c in PLAIN if c.rows.dilation == c.columns.dilation == 1]


# --- printed numbers -----------------------------------------------------------------------------------------------


def _run(implementation: str, kind: str, x: np.ndarray, columns: Axis, edge: int, zero_pad: tuple[int, int] = (0, 0)):
    place, mode = window(Axis(1), columns, 1, x.shape[3]), MPSImageEdgeMode(edge)
    if implementation == "oracle":
        if kind == "average":
            return oracle.average(x, Axis(1), columns, edge, zero_pad)
        return {"maximum": oracle.maximum, "l2": oracle.l2_norm}[kind](x, Axis(1), columns, edge)
    if kind == "average":
        return ops.average_pooling(tensor(x), place, mode, zero_pad)
    if kind == "l2":
        return ops.l2_norm_pooling(tensor(x), place, mode)
    return ops.max_pooling(tensor(x), place, mode)[0]


@in_one_test
@pytest.mark.parametrize("implementation", ["op", "oracle"])
@pytest.mark.parametrize(
    ("kind", "x", "k", "edge", "zero_pad", "expected", "places"),
    [
        ("average", [1, 2, 3, 4, 5], 3, ZERO, (0, 0), [1, 2, 3, 4, 3], 12),
        ("average", [1, 2, 3, 4, 5], 3, CLAMP, (0, 0), [1.5, 2, 3, 4, 4.5], 12),
        ("average", [1, 2, 3, 4, 5], 3, CLAMP, (1, 0), [1, 2, 3, 4, 3], 12),
        ("average", [1, 2, 3, 4, 5], 2, ZERO, (0, 0), [0.5, 1.5, 2.5, 3.5, 4.5], 12),
        ("average", [1, 2, 3, 4, 5], 2, CLAMP, (0, 0), [1, 1.5, 2.5, 3.5, 4.5], 12),
        ("maximum", [-1, -2, -3, -4], 3, ZERO, (0, 0), [0, -1, -2, 0], 12),
        ("maximum", [-1, -2, -3, -4], 3, CLAMP, (0, 0), [-1, -1, -2, -3], 12),
        ("l2", [1, 2, 3, 4, 5], 3, ZERO, (0, 0), [2.2361, 3.7417, 5.3852, 7.0711, 6.4031], 4),
        ("l2", [1, 2, 3, 4, 5], 2, CLAMP, (0, 0), np.sqrt([2, 5, 13, 25, 41]).tolist(), 12),
    ],
)
def test_printed_numbers(
    implementation: str,
    kind: str,
    x: list[float],
    k: int,
    edge: int,
    zero_pad: tuple[int, int],
    expected: list[float],
    places: int,
) -> None:
    values = np.array(x, dtype=np.float64).reshape(1, 1, 1, -1)
    result = _run(implementation, kind, values, Axis(len(x), k), edge, zero_pad)
    assert_digits(result, expected, places, kind)


@pytest.mark.parametrize("implementation", ["op", "oracle"])
@pytest.mark.parametrize(
    ("edge", "expected"),
    [(ZERO, [0.6667, 1, 1, 1, 0.6667]), (CLAMP, [0.8333, 1.1667, 1, 1.1667, 0.8333])],
)
def test_printed_average_gradient(implementation: str, edge: int, expected: list[float]) -> None:
    g = np.ones((1, 1, 1, 5))
    if implementation == "op":
        place = window(Axis(1), Axis(5, 3), 1, 5)
        found = ops.average_pooling_gradient(tensor(g), place, MPSImageEdgeMode(edge), (0, 0))
    else:
        found = oracle.average_gradient(g, (1, 1, 1, 5), Axis(1), Axis(5, 3), edge)
    assert_digits(found, expected, 4)


# --- against the loops ---------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(len(DILATED))], [DTYPES]), ids=str)
def test_maximum_equals_loops(number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator) -> None:
    case = DILATED[number]
    # Distinct values, negative ones too: no ties, and outside zeros win at some borders.
    x = rng.permutation(np.prod(case.shape)).reshape(case.shape) / 4.0 - 8.0
    g = rng.normal(size=case.result_shape())
    xt, gt = tensor(x, dtype, device, case.layout), tensor(g, dtype, device, case.layout)
    result, choice = ops.max_pooling(xt, case.window(), case.edge_mode)
    assert result.dtype == dtype
    assert_close(result, oracle.maximum(x, case.rows, case.columns, case.edge), 0.0, f"maximum of {case}")
    expected = oracle.maximum_gradient(g, x, case.rows, case.columns, case.edge)
    for given in (choice, None):
        found = ops.max_pooling_gradient(gt, xt, given, case.window(), case.edge_mode)
        how = "recomputed" if given is None else "kept choice"
        assert_close(found, expected, TOLERANCE[dtype], f"maximum gradient of {case}, {how}")


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(len(DILATED))], [DTYPES]), ids=str)
def test_ties_go_to_the_first_tap(
    number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    case = DILATED[number]
    x = rng.integers(-1, 2, size=case.shape).astype(np.float64)
    g = rng.normal(size=case.result_shape())
    xt, gt = tensor(x, dtype, device, case.layout), tensor(g, dtype, device, case.layout)
    result, choice = ops.max_pooling(xt, case.window(), case.edge_mode)
    assert_close(result, oracle.maximum(x, case.rows, case.columns, case.edge), 0.0, f"maximum of {case}")
    expected = oracle.maximum_gradient(g, x, case.rows, case.columns, case.edge)
    for given in (choice, None):
        found = ops.max_pooling_gradient(gt, xt, given, case.window(), case.edge_mode)
        how = "recomputed" if given is None else "kept choice"
        assert_close(found, expected, TOLERANCE[dtype], f"tied maximum gradient of {case}, {how}")


@in_one_test
@pytest.mark.parametrize("number", range(0, len(DILATED), 4))
def test_ties_may_go_to_the_last_tap(number: int, device: torch.device, rng: np.random.Generator) -> None:
    case = DILATED[number]
    x = rng.integers(1, 3, size=case.shape).astype(np.float64)  # no zero outside of the image is a maximum
    g = rng.normal(size=case.result_shape())
    operands = (tensor(each, torch.float64, device, case.layout) for each in (g, x))
    found = ops.last_maximum_gradient(*operands, case.window(), case.edge_mode)
    expected = oracle.maximum_gradient(g, x, case.rows, case.columns, case.edge, last=True)
    assert_close(found, expected, TOLERANCE[torch.float64], f"tied maximum gradient of {case}")


@in_one_test
@pytest.mark.parametrize(
    ("number", "zero_pad", "dtype"),
    [(i, PADS[(i + j) % 4], DTYPES[(i // 4 + j) % 2]) for i in range(len(PLAIN)) for j in (0, 1)],
)
def test_average_equals_loops(
    number: int, zero_pad: tuple[int, int], dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    case = PLAIN[number]
    x, g = rng.normal(size=case.shape), rng.normal(size=case.result_shape())
    placement = (case.rows, case.columns, case.edge, zero_pad)
    result = ops.average_pooling(tensor(x, dtype, device, case.layout), case.window(), case.edge_mode, zero_pad)
    assert result.dtype == dtype
    assert_close(result, oracle.average(x, *placement), TOLERANCE[dtype], f"average of {case} {zero_pad}")
    found = ops.average_pooling_gradient(tensor(g, dtype, device, case.layout), case.window(), case.edge_mode, zero_pad)
    assert_close(
        found, oracle.average_gradient(g, case.shape, *placement), TOLERANCE[dtype], f"gradient of {case} {zero_pad}"
    )


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(len(PLAIN))], [DTYPES]), ids=str)
def test_l2_norm_equals_loops(number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator) -> None:
    case = PLAIN[number]
    x, g = rng.normal(size=case.shape), rng.normal(size=case.result_shape())
    if number % 3 == 0:
        x[..., ::2] = 0.0  # windows of zeros alone have no gradient
    x, g = x.astype(np.float32).astype(np.float64), g.astype(np.float32).astype(np.float64)
    xt, gt = tensor(x, dtype, device, case.layout), tensor(g, dtype, device, case.layout)
    placement = (case.rows, case.columns, case.edge)
    result = ops.l2_norm_pooling(xt, case.window(), case.edge_mode)
    assert result.dtype == dtype
    assert_close(result, oracle.l2_norm(x, *placement), TOLERANCE[dtype], f"norm of {case}")
    found = ops.l2_norm_pooling_gradient(gt, xt, case.window(), case.edge_mode)
    assert found.dtype == dtype
    assert_close(found, oracle.l2_norm_gradient(g, x, *placement), TOLERANCE[dtype], f"gradient of {case}")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_every_axis_placement(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    x = rng.permutation(12).reshape(1, 2, 1, 6) - 5.5
    mode, xt = MPSImageEdgeMode(edge), tensor(x, device=device)
    wrong: list[str] = []
    for columns in SINGLE_AXES:
        g = rng.normal(size=(1, 2, 1, columns.result))
        place, gt = window(Axis(1), columns, 1, 6), tensor(g, device=device)
        result, choice = ops.max_pooling(xt, place, mode)
        pairs = [
            (result, oracle.maximum(x, Axis(1), columns, edge)),
            (
                ops.max_pooling_gradient(gt, xt, choice, place, mode),
                oracle.maximum_gradient(g, x, Axis(1), columns, edge),
            ),
        ]
        if columns.dilation == 1:
            pairs += [
                (ops.average_pooling(xt, place, mode, (1, 0)), oracle.average(x, Axis(1), columns, edge, (1, 0))),
                (
                    ops.average_pooling_gradient(gt, place, mode, (1, 0)),
                    oracle.average_gradient(g, x.shape, Axis(1), columns, edge, (1, 0)),
                ),
                (ops.l2_norm_pooling(xt, place, mode), oracle.l2_norm(x, Axis(1), columns, edge)),
                (
                    ops.l2_norm_pooling_gradient(gt, xt, place, mode),
                    oracle.l2_norm_gradient(g, x, Axis(1), columns, edge),
                ),
            ]
        if any(np.abs(array(a) - b).max() > 1e-12 for a, b in pairs):
            wrong.append(str(columns))
    assert not wrong, f"{len(wrong)} of {len(SINGLE_AXES)} placements are wrong, first {wrong[:3]}"


@in_one_test
@pytest.mark.parametrize("number", range(len(DILATED)))
def test_without_a_choice(number: int, device: torch.device, rng: np.random.Generator) -> None:
    case = DILATED[number]
    x = tensor(rng.normal(size=case.shape), torch.float32, device, case.layout)
    result, _ = ops.max_pooling(x, case.window(), case.edge_mode)
    alone, _ = ops.max_pooling(x, case.window(), case.edge_mode, with_choice=False)
    assert torch.equal(result, alone)


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_results_are_the_callers_own(edge: int, device: torch.device) -> None:
    """A window of one pixel changes nothing, and still its result is no view of the source."""
    x = torch.rand(2, 3, 4, 5, device=device)
    place, mode, kept = window(Axis(4), Axis(5), 4, 5), MPSImageEdgeMode(edge), x.clone()
    for with_choice in (True, False):
        ops.max_pooling(x, place, mode, with_choice=with_choice)[0].fill_(7.0)
    ops.average_pooling(x, place, mode).fill_(7.0)
    ops.average_pooling_gradient(x, place, mode).fill_(7.0)
    ops.max_pooling_gradient(x, x, None, place, mode).fill_(7.0)
    ops.l2_norm_pooling(x, place, mode).fill_(7.0)
    ops.l2_norm_pooling_gradient(x, x, place, mode).fill_(7.0)
    assert torch.equal(x, kept)


def test_both_ways_to_the_engine_agree(
    device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own padding, where it places the windows right, against reading the region first."""
    direct = [c for c in DILATED if ops.library_max_padding(c.window(), c.edge_mode) is not None]
    assert 5 < len(direct) < len(DILATED) - 20
    for case in direct:
        x, g = (tensor(rng.normal(size=s), device=device) for s in (case.shape, case.result_shape()))

        def run(case: Case = case, x: torch.Tensor = x, g: torch.Tensor = g) -> list[torch.Tensor]:
            place, mode = case.window(), case.edge_mode
            result, choice = ops.max_pooling(x, place, mode)
            found = [result, ops.max_pooling_gradient(g, x, choice, place, mode)]
            if case.rows.dilation == case.columns.dilation == 1:
                found += [ops.average_pooling(x, place, mode), ops.average_pooling_gradient(g, place, mode)]
                found += [ops.l2_norm_pooling(x, place, mode), ops.l2_norm_pooling_gradient(g, x, place, mode)]
            return found

        fast = run()
        with monkeypatch.context() as patch:
            patch.setattr(ops, "library_max_padding", lambda *_: None)
            patch.setattr(Window, "half_padding", None)
            slow = run()
        for a, b in zip(fast, slow, strict=True):
            assert_close(a, b, 1e-14, str(case))


def test_average_refuses_dilation(device: torch.device) -> None:
    place = window(Axis(2, 2, 1, 2), Axis(2, 2), 5, 5)
    with pytest.raises(MPSArgumentError, match="dilated"):
        ops.average_pooling(torch.zeros(1, 1, 5, 5, device=device), place, MPSImageEdgeMode.ZERO)
    with pytest.raises(MPSArgumentError, match="dilated"):
        ops.average_pooling_gradient(torch.zeros(1, 1, 2, 2, device=device), place, MPSImageEdgeMode.ZERO)


def test_l2_norm_refuses_dilation(device: torch.device) -> None:
    place = window(Axis(2, 2, 1, 2), Axis(2, 2), 5, 5)
    x, g = torch.zeros(1, 1, 5, 5, device=device), torch.zeros(1, 1, 2, 2, device=device)
    with pytest.raises(MPSArgumentError, match="dilated"):
        ops.l2_norm_pooling(x, place, MPSImageEdgeMode.ZERO)
    with pytest.raises(MPSArgumentError, match="dilated"):
        ops.l2_norm_pooling_gradient(g, x, place, MPSImageEdgeMode.ZERO)


# --- gradients by other ways ---------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("number", range(0, len(PLAIN), 2))
def test_average_adjoint_identity(number: int, device: torch.device, rng: np.random.Generator) -> None:
    case = PLAIN[number]
    x, g = rng.normal(size=case.shape), rng.normal(size=case.result_shape())
    y = ops.average_pooling(tensor(x, device=device), case.window(), case.edge_mode, (1, 1))
    back = ops.average_pooling_gradient(tensor(g, device=device), case.window(), case.edge_mode, (1, 1))
    assert abs(inner(y, g) - inner(back, x)) <= 1e-11 * max(1.0, float(np.abs(x).sum()))


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("dilation", [1, 2])
def test_maximum_gradient_equals_finite_differences(
    edge: int, dilation: int, device: torch.device, rng: np.random.Generator
) -> None:
    rows, columns = Axis(3, 3, 2, dilation), Axis(4, 2, 1, dilation, 1)
    x = rng.permutation(2 * 2 * 5 * 4).reshape(2, 2, 5, 4) / 8.0 - 4.2
    g = rng.normal(size=(2, 2, 3, 4))
    place, mode = window(rows, columns, 5, 4), MPSImageEdgeMode(edge)
    found = ops.max_pooling_gradient(tensor(g, device=device), tensor(x, device=device), None, place, mode)

    def total(v: np.ndarray) -> float:
        return inner(ops.max_pooling(tensor(v, device=device), place, mode)[0], g)

    assert_close(found, finite_difference.gradient(total, x, 1e-3), 1e-9, "maximum gradient")


@in_one_test
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize(("size", "stride", "offset"), [(3, 1, 0), (2, 2, 1), (4, 1, -1), (1, 3, 0), (2, 3, 0)])
def test_l2_norm_gradient_equals_finite_differences(
    edge: int, size: int, stride: int, offset: int, device: torch.device, rng: np.random.Generator
) -> None:
    rows, columns = Axis(3, size, stride, offset=offset), Axis(4, size, 1, offset=offset)
    # Away from 0, where the norm of one pixel has a corner.
    x = rng.uniform(0.5, 2.0, size=(2, 2, 5, 4)) * rng.choice([-1.0, 1.0], size=(2, 2, 5, 4))
    g = rng.normal(size=(2, 2, 3, 4))
    place, mode = window(rows, columns, 5, 4), MPSImageEdgeMode(edge)
    found = ops.l2_norm_pooling_gradient(tensor(g, device=device), tensor(x, device=device), place, mode)

    def total(v: np.ndarray) -> float:
        return inner(ops.l2_norm_pooling(tensor(v, device=device), place, mode), g)

    assert_close(found, finite_difference.gradient(total, x), 1e-8, "L2-norm gradient")


@pytest.mark.parametrize(("k", "s"), [(2, 2), (3, 2), (3, 1), (4, 3), (1, 2)])
def test_l2_norm_equals_pytorch(k: int, s: int, device: torch.device, rng: np.random.Generator) -> None:
    """PyTorch's has no padding: windows inside the source, which begin at its corner."""
    leaf = tensor(rng.normal(size=(2, 3, 9, 8)), device=device).requires_grad_()
    expected = torch.nn.functional.lp_pool2d(leaf, 2.0, k, s)
    rows, columns = (Axis((n - k) // s + 1, k, s, 1, k // 2) for n in (9, 8))
    place = window(rows, columns, 9, 8)
    for mode in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
        assert_close(ops.l2_norm_pooling(leaf.detach(), place, mode), expected, 1e-13, "norm")
        g = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, leaf, g, retain_graph=True)[0]
        assert_close(ops.l2_norm_pooling_gradient(g, leaf.detach(), place, mode), wanted, 1e-12, "norm gradient")


@pytest.mark.parametrize(("k", "s", "p", "d"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (3, 2, 1, 2), (1, 2, 0, 1)])
def test_maximum_equals_pytorch(k: int, s: int, p: int, d: int, device: torch.device, rng: np.random.Generator) -> None:
    dilated = (k - 1) * d + 1
    axis = Axis((9 + 2 * p - dilated) // s + 1, k, s, d, dilated // 2 - p)
    # PyTorch leaves outside taps out; with positive pixels an outside zero never wins.
    x = tensor(np.abs(rng.normal(size=(2, 3, 9, 9))) + 0.1, device=device)
    leaf = x.clone().requires_grad_()
    expected = torch.nn.functional.max_pool2d(leaf, k, s, p, d)
    place = window(axis, axis, 9, 9)
    result, choice = ops.max_pooling(x, place, MPSImageEdgeMode.ZERO)
    assert_close(result, expected, 0.0, "maximum")
    g = torch.randn_like(result)
    found = ops.max_pooling_gradient(g, x, choice, place, MPSImageEdgeMode.ZERO)
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-12, "maximum gradient")


@in_one_test
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize(("k", "s", "p"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 3, 2), (5, 2, 2)])
def test_average_equals_pytorch(
    k: int, s: int, p: int, include_pad: bool, ceil_mode: bool, device: torch.device, rng: np.random.Generator
) -> None:
    leaf = tensor(rng.normal(size=(2, 3, 8, 8)), device=device).requires_grad_()
    expected = torch.nn.functional.avg_pool2d(leaf, k, s, p, ceil_mode=ceil_mode, count_include_pad=include_pad)
    axis = Axis(expected.shape[3], k, s, 1, k // 2 - p)
    place, pads = window(axis, axis, 8, 8), (p, p) if include_pad else (0, 0)
    result = ops.average_pooling(leaf.detach(), place, MPSImageEdgeMode.CLAMP, pads)
    assert_close(result, expected, 1e-12, "average")
    g = torch.randn_like(result)
    found = ops.average_pooling_gradient(g, place, MPSImageEdgeMode.CLAMP, pads)
    assert_close(found, torch.autograd.grad(expected, leaf, g)[0], 1e-12, "average gradient")


# --- what is promised beside the numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_maximum_passes_nan_on(edge: int, device: torch.device) -> None:
    x = np.arange(25.0).reshape(1, 1, 5, 5)
    x[0, 0, 2, 2] = np.nan
    rows = columns = Axis(3, 3, 2)
    result, _ = ops.max_pooling(tensor(x, device=device), window(rows, columns, 5, 5), MPSImageEdgeMode(edge))
    assert_close(result, oracle.maximum(x, rows, columns, edge), 0.0, "maximum with NaN")


def test_maximum_of_minus_infinity(device: torch.device) -> None:
    x = np.full((1, 1, 3, 3), -np.inf)
    for edge in (ZERO, CLAMP):
        place, mode = window(Axis(3, 3), Axis(3, 3), 3, 3), MPSImageEdgeMode(edge)
        result, choice = ops.max_pooling(tensor(x, device=device), place, mode)
        assert_close(result, oracle.maximum(x, Axis(3, 3), Axis(3, 3), edge), 0.0, "maximum")
        g = np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
        for given in (choice, None):
            found = ops.max_pooling_gradient(tensor(g, device=device), tensor(x, device=device), given, place, mode)
            assert_close(found, oracle.maximum_gradient(g, x, Axis(3, 3), Axis(3, 3), edge), 0.0, "gradient")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_a_norm_of_zero_gives_no_gradient(edge: int, device: torch.device) -> None:
    place, mode = window(Axis(3, 3), Axis(3, 2), 3, 3), MPSImageEdgeMode(edge)
    x, g = torch.zeros(1, 2, 3, 3, device=device), torch.ones(1, 2, 3, 3, device=device)
    assert torch.equal(ops.l2_norm_pooling_gradient(g, x, place, mode), x)
    x[0, 0, 1, 1] = torch.nan
    assert ops.l2_norm_pooling(x, place, mode)[0, 0].isnan().any()


def test_a_clamped_edge_between_dilated_taps_counts(device: torch.device) -> None:
    """Taps at -2, 0 and 2 of pixel 1 meet -1, which is the edge pixel 0: no tap itself, and here the largest."""
    x = tensor(np.array([9.0, 1.0, 2.0, 3.0]).reshape(1, 1, 1, 4), device=device)
    place = window(Axis(1), Axis(4, 3, 1, 2), 1, 4)
    result, choice = ops.max_pooling(x, place, MPSImageEdgeMode.CLAMP)
    assert_close(result.ravel(), [9, 9, 9, 3], 0.0, "maximum")
    g = tensor(np.array([1.0, 10.0, 100.0, 1000.0]).reshape(1, 1, 1, 4), device=device)
    found = ops.max_pooling_gradient(g, x, choice, place, MPSImageEdgeMode.CLAMP)
    assert_close(found.ravel(), [111, 0, 0, 1000], 0.0, "maximum gradient")


def test_channels_last_stays(device: torch.device, rng: np.random.Generator) -> None:
    x = tensor(rng.normal(size=(2, 4, 7, 6)), torch.float32, device, "channels_last")
    place = window(Axis(4, 3, 2), Axis(3, 2, 2, 1, 1), 7, 6)
    for mode in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
        result, choice = ops.max_pooling(x, place, mode)
        average = ops.average_pooling(x, place, mode, (0, 0))
        g = torch.randn_like(result)
        gradients = (
            ops.max_pooling_gradient(g, x, choice, place, mode),
            ops.average_pooling_gradient(g, place, mode, (0, 0)),
            ops.l2_norm_pooling_gradient(g, x, place, mode),
        )
        for found in (result, average, ops.l2_norm_pooling(x, place, mode), *gradients):
            assert found.is_contiguous(memory_format=torch.channels_last)
