"""Operations on matrices: finite differences, adjoints, torch.linalg as an outside reference, worked examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import TOLERANCE, array, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops.matrix import combination, layers, linear_systems, multiplication, rows
from openmps.types import MPSCNNNeuronType as Neuron
from oracles import finite_difference

WANTED = (True, True, True)
SIZES = {"x": (2, 4, 3), "bias": (1, 3), "gamma": (2, 3), "beta": (1, 3)}


def _draw(rng: np.random.Generator, *names: str) -> list[np.ndarray]:
    return [rng.normal(size=SIZES[name]) for name in names]


def _check(function: Callable[..., Tensor], found: list[Tensor], given: list[np.ndarray], g: np.ndarray) -> None:
    """Gradients of ``inner(function, g)`` by finite differences, of each operand."""
    for place, gradient in enumerate(found):

        def value(moved: np.ndarray, place: int = place) -> float:
            operands = [moved if index == place else each for index, each in enumerate(given)]
            return inner(function(*map(tensor, operands)), g)

        expected = finite_difference.gradient(value, given[place])
        shape = given[place].shape
        assert_close(gradient.sum(0, keepdim=True) if shape[0] == 1 else gradient, expected, 1e-7)


@pytest.mark.parametrize("kind", [Neuron.SIGMOID, Neuron.TANH, Neuron.SOFT_PLUS, Neuron.PRELU])
def test_neuron_gradients(kind: Any, rng: np.random.Generator) -> None:
    x, bias = _draw(rng, "x", "bias")
    slopes = tensor(np.array([0.5, -0.25, 2.0])) if kind is Neuron.PRELU else None
    forward = layers.MatrixNeuron(kind, 1.5, 0.5, 0.0, 2.0)
    g = rng.normal(size=x.shape)
    backward = layers.MatrixNeuronGradient(kind, 1.5, 0.5, 0.0, 2.0)
    found = backward.run(WANTED, tensor(g), tensor(x), tensor(bias), slopes)
    _check(lambda x, b: forward.run(WANTED, x, b, slopes), list(found), [x, bias], g)


@pytest.mark.parametrize("is_logarithm", [False, True])
def test_soft_max_gradients(is_logarithm: bool, rng: np.random.Generator) -> None:
    (x,) = _draw(rng, "x")
    g, forward = rng.normal(size=x.shape), rows.RowSoftMax(is_logarithm)
    found = rows.RowSoftMaxGradient(is_logarithm).run(WANTED, tensor(g), forward.run(WANTED, tensor(x)))
    _check(lambda x: forward.run(WANTED, x), [found], [x], g)


def test_normalization_gradients(rng: np.random.Generator) -> None:
    """Of data, gamma and beta, through the statistics."""
    x, gamma, beta = _draw(rng, "x", "gamma", "beta")
    g = rng.normal(size=x.shape)

    def forward(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return layers.normalized(x, *layers.statistics(x), gamma, beta, epsilon=0.25)

    given = tensor(x)
    found = layers.normalized_gradient(tensor(g), given, *layers.statistics(given), tensor(gamma), epsilon=0.25)
    _check(forward, list(found), [x, gamma, beta], g)


def test_the_gradients_of_a_product_are_its_adjoints(rng: np.random.Generator) -> None:
    """``<A B, G> = <A, G B^T> = <B, A^T G>``."""
    a, b, g = (tensor(rng.normal(size=size)) for size in ((2, 4, 3), (2, 3, 5), (2, 4, 5)))
    plain = {"transpose_left": False, "transpose_right": False, "alpha": 1.25, "beta": 0.0}
    forward = inner(multiplication.matrix_product(a, b, **plain), array(g))
    of_a = multiplication.matrix_product(g, b, **{**plain, "transpose_right": True})
    of_b = multiplication.matrix_product(a, g, **{**plain, "transpose_left": True})
    assert inner(a, array(of_a)) == pytest.approx(forward, rel=1e-12)
    assert inner(b, array(of_b)) == pytest.approx(forward, rel=1e-12)


# --- products ---------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sizes", [((5, 7), (7, 6)), ((150, 120), (120, 140))], ids=["small", "large"])
def test_products_of_whole_numbers_are_exact(
    sizes: tuple[tuple[int, int], ...], batch: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """In new memory; and in memory for them where nothing is rounded, which has no gaps if there are several."""
    a, b = (tensor(np.round(4 * rng.normal(size=(batch, *size))), dtype, device) for size in sizes)
    found = multiplication.batch_product(a, b)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_array_equal(array(found), array(a) @ array(b))
    larger = torch.full((batch, found.shape[1] + 1, found.shape[2] + 2), 7.0, dtype=found.dtype, device=device)
    for room in (torch.full_like(found, 7.0), larger[:, 1:, 1:-1]):
        plain = {"transpose_left": False, "transpose_right": True, "alpha": 1.0, "beta": 0.0}
        is_there = multiplication.matrix_product_into(room, a, b.mT.contiguous(), **plain)
        assert not is_there or dtype in (torch.float32, torch.float64)
        np.testing.assert_array_equal(array(room), array(found) if is_there else 7.0)
    larger[:, 1:, 1:-1] = 7.0
    assert bool((larger == 7.0).all())


def test_half_products_are_summed_in_float32(device: torch.device) -> None:
    """4096 and a thousand ones: float16 would stop at 4096 or lose the odd ones."""
    a = torch.ones(1, 1, 1001, dtype=torch.float16, device=device)
    b = torch.ones(1, 1001, 1, dtype=torch.float16, device=device)
    b[0, 0] = 4096
    assert multiplication.batch_product(a, b).item() == 5096.0


# --- rows -------------------------------------------------------------------------------------------------------------


def test_the_largest_numbers(device: torch.device) -> None:
    x = tensor(np.array([[[1.0, np.nan, -0.0, 0.0, np.inf], [2.0, 2.0, 3.0, 2.0, -1.0]]]), device=device)
    values, places = rows.largest(x, count=4, first=10)
    assert places.tolist() == [[[11, 14, 10, 12], [12, 10, 11, 13]]]
    np.testing.assert_array_equal(array(values)[0, 1], [3, 2, 2, 2])


@in_one_test
@pytest.mark.parametrize("width", [40, 1024, 1040])
@pytest.mark.parametrize("count", [1, 3, 4, 16, 40])
def test_the_largest_of_many_numbers(count: int, width: int, device: torch.device, rng: np.random.Generator) -> None:
    """Rows without equal numbers; with some among the largest, at their end, and beyond; with zeros, NaN, infinities.

    Equal ones stand in one column of two parts of a row, and in several columns.
    """
    x, far = rng.permutation(np.arange(12.0 * width)).reshape(3, 4, width) - 100, width // 16 * 15
    x[0, 1, [5, 30]] = x[2, 0, [3, far + 3]] = 1e6
    x[0, 2, [7, 9, 11]] = x[2, 1, [4, far, far + 4]] = [2e6, 1e6, 1e6]
    x[0, 3], x[1, 0, ::2], x[1, 1, [3, 8]], x[1, 2] = -1, -0.0, np.nan, np.nan
    x[1, 3], x[1, 3, :2], x[2, 2, ::3] = -np.inf, 1.0, np.inf
    values, places = rows.largest(tensor(x, device=device), count=count, first=10)
    order = np.lexsort((np.broadcast_to(np.arange(width), x.shape), -x, ~np.isnan(x)))[..., :count]
    np.testing.assert_array_equal(places.cpu().numpy(), order + 10)
    np.testing.assert_array_equal(array(values), np.take_along_axis(x, order, -1))


# --- linear systems ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 16], ids=["few threads", "many threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many threads the forms are chosen for."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return request.param


@in_one_test
@pytest.mark.parametrize(
    "shape", [(4, 4), (5, 3), (3, 5), (1, 1), (40, 40), (70, 90), (512, 70), (512, 600), (70, 512)], ids=str
)
def test_factors_and_pivots_make_the_matrix(
    shape: tuple[int, int], threads: int, device: torch.device, rng: np.random.Generator
) -> None:
    """As PyTorch's own functions put them together; of 512 rows columns lie with gaps between them."""
    x = tensor(rng.normal(size=(3, *shape)), device=device)
    factors, pivots, status = linear_systems.lu(x)
    lower_and_upper = torch.lu_unpack(factors, (pivots.squeeze(1) + 1).to(torch.int32))
    assert_close(lower_and_upper[0] @ lower_and_upper[1] @ lower_and_upper[2], array(x), 1e-10)
    assert status is not None and status.tolist() == [[0]] and status.dtype == torch.int32
    # In memory with gaps, and in that of the matrix.
    larger = torch.full((3, shape[0] + 2, shape[1] + 3), 7.0, dtype=x.dtype, device=device)
    for room in (larger[:, 1:-1, 2:-1], x):
        made = linear_systems.lu_into(room, x, has_status=False)
        assert made is not True and (made is False) == x.is_cuda
        if made:
            assert torch.equal(room, factors) and torch.equal(made[1], pivots) and made[0] is made[2] is None
            larger[:, 1:-1, 2:-1] = 7.0
    assert bool((larger == 7.0).all())


@pytest.mark.parametrize("rows", [511, 512])
def test_no_row_is_exchanged_with_one_beyond(rows: int, rng: np.random.Generator) -> None:
    """Where a column has nothing but zeros left, or a NaN."""
    x = rng.normal(size=(2, rows, rows + 3))
    x[0, :, 5:7] = x[0, -1] = 0.0
    x[1, 300:, 7] = np.nan
    _, pivots, status = linear_systems.lu(tensor(x))
    assert int(pivots.min()) >= 0 and int(pivots.max()) < rows
    assert status is not None and status.item() == linear_systems.SINGULAR


@in_one_test
@pytest.mark.parametrize("order", [20, 128, 150, 300])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_is_pytorchs(
    lower: bool, order: int, threads: int, device: torch.device, rng: np.random.Generator
) -> None:
    """Of order 128 columns lie with gaps between them. Nothing else is read or written than a triangle."""
    root = rng.normal(size=(2, order, order))
    x = tensor(root @ root.transpose(0, 2, 1) + np.eye(order), device=device)
    expected, ones = torch.linalg.cholesky(x, upper=not lower), torch.ones_like(x, dtype=torch.bool)
    kept = ones.tril() if lower else ones.triu()
    x = torch.where(kept, x, torch.nan)
    before = torch.where(ones.tril(), -torch.zeros_like(x), torch.full_like(x, torch.nan))
    found, status = linear_systems.cholesky(x, before, lower=lower)
    assert_close(torch.where(kept, found, 0.0), array(torch.where(kept, expected, 0.0)), 1e-10)
    assert torch.equal(torch.where(kept, 0, found.view(torch.int64)), torch.where(kept, 0, before.view(torch.int64)))
    assert status is not None and status.tolist() == [[0]]
    # In memory with gaps, and in that of the matrix; not where the other triangle is another one.
    larger = torch.full((2, order + 2, order + 3), 7.0, dtype=x.dtype, device=device)
    for room in (larger[:, 1:-1, 2:-1], x):
        whole = room.clone()
        made = linear_systems.cholesky_into(room, x, room, lower=lower, has_status=False)
        assert made is not True and (made is False) == x.is_cuda
        if made:
            assert torch.equal(
                torch.where(kept, room, whole).nan_to_num(9.0), torch.where(kept, found, whole).nan_to_num(9.0)
            )
            assert torch.equal(
                torch.where(kept, 7.0, room).nan_to_num(9.0), torch.where(kept, 7.0, whole).nan_to_num(9.0)
            )
            larger[:, 1:-1, 2:-1] = 7.0
    assert bool((larger == 7.0).all()) and not linear_systems.cholesky_into(before, x, x, lower=lower, has_status=False)


@pytest.mark.parametrize("order", [2, 5, 70, 128])
def test_a_failing_cholesky_gives_what_comes_before(order: int, rng: np.random.Generator) -> None:
    """Whatever a library leaves behind: its blocks are larger than one column."""
    root = rng.normal(size=(2, order, order))
    x = root @ root.transpose(0, 2, 1) + np.eye(order)
    good, pivot = np.linalg.cholesky(x), order // 2
    x[1, pivot, pivot] -= 1000.0 * order
    found, status = linear_systems.cholesky(
        tensor(x), torch.full((2, order, order), 7.0, dtype=torch.float64), lower=True
    )
    assert status is not None and status.item() == linear_systems.NOT_POSITIVE_DEFINITE
    expected = np.where(np.tril(np.ones((order, order))) > 0, good, 7.0)
    assert_close(found[0], expected[0], 1e-9)
    bad = np.where(np.arange(order) < pivot, expected[1], 7.0)
    bad[pivot, pivot] = good[1, pivot, pivot] ** 2 - 1000.0 * order
    assert_close(found[1], bad, 1e-9 * 1000 * order)


@pytest.mark.parametrize(
    ("x", "status"),
    [
        ([[[1.0, 2.0], [0.0, 0.0]]], -2),
        ([[[1.0, 0.0], [0.0, 1.0]], [[np.nan, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]], -2),
        ([[[0.0, 1.0], [1.0, 0.0]]], 0),
    ],
)
def test_the_status_of_lu(x: Any, status: int) -> None:
    assert linear_systems.lu(tensor(np.array(x)))[2].item() == status


def test_the_status_is_the_first_that_is_not_0() -> None:
    assert linear_systems._first(torch.tensor([0, -3, 0, -2])).tolist() == [[-3]]
    assert linear_systems._first(torch.tensor([0, 0])).tolist() == [[0]]


def test_worked_systems() -> None:
    """The examples that PyTorch and SciPy agree on, by hand."""
    a, b = tensor(np.array([[[1.0, 2, 3], [4, 5, 6], [7, 8, 10]]])), tensor(np.array([[[1.0], [2], [4]]]))
    factors, pivots, _ = linear_systems.lu(a)
    assert pivots.tolist() == [[[2, 2, 2]]]
    assert_close(linear_systems.lu_solution(factors, b, pivots, transpose=False).flatten(), [2 / 3, -4 / 3, 1], 1e-12)
    assert_close(linear_systems.lu_solution(factors, b, pivots, transpose=True).flatten(), [2, -2, 1], 1e-12)
    c = tensor(np.array([[[4.0, 2, -2], [2, 5, 1], [-2, 1, 6]]]))
    factor, _ = linear_systems.cholesky(c, torch.zeros_like(c), lower=True)
    assert factor.tolist() == [[[2, 0, 0], [1, 2, 0], [-1, 1, 2]]]
    found = linear_systems.cholesky_solution(factor, b, upper=False)
    assert_close(found.flatten(), [0.765625, -0.09375, 0.9375], 1e-12)


@pytest.mark.parametrize("transpose", [False, True])
def test_solutions_by_factors_that_lie_row_by_row(
    transpose: bool, device: torch.device, rng: np.random.Generator
) -> None:
    x, sides = rng.normal(size=(3, 17, 17)), rng.normal(size=(3, 17, 4))
    factors, pivots, _ = linear_systems.lu(tensor(x, device=device))
    found = linear_systems.lu_solution(factors.contiguous(), tensor(sides, device=device), pivots, transpose=transpose)
    assert_close(found, np.linalg.solve(x.transpose(0, 2, 1) if transpose else x, sides), 1e-9)
    positive = x @ x.transpose(0, 2, 1) + np.eye(17)
    factor = np.linalg.cholesky(positive)
    if transpose:
        factor = factor.transpose(0, 2, 1).copy()
    other = np.where(factor == 0, np.nan, factor)
    found = linear_systems.cholesky_solution(
        tensor(other, device=device), tensor(sides, device=device), upper=transpose
    )
    assert_close(found, np.linalg.solve(positive, sides), 1e-9)


@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
def test_a_large_triangle(upper: bool, right: bool, device: torch.device, rng: np.random.Generator) -> None:
    """One that a GPU solves by in another order than it lies in; nothing is read of the other triangle."""
    x, sides = rng.normal(size=(1024, 1024)) / 1024 + np.eye(1024), rng.normal(size=(2, 1024))
    triangle = np.triu(x) if upper else np.tril(x)
    sides = sides if right else sides.T.copy()
    stored, how = np.where(triangle == 0, np.nan, x), {"upper": upper, "transpose": False, "unit": False, "alpha": 1.0}
    given = [tensor(each[None], device=device) for each in (stored, sides)]
    found = array(linear_systems.triangular_solution(*given, right=right, **how))[0]
    assert_close(found @ triangle if right else triangle @ found, sides, 1e-10)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint32], ids=str)
def test_pivots_of_no_row_are_the_last_ones(dtype: torch.dtype) -> None:
    factors, b = torch.eye(2, dtype=torch.float64).unsqueeze(0), tensor(np.array([[[1.0], [2.0]]]))
    pivots = torch.tensor([[[2**31, 7]]]).to(dtype)
    assert linear_systems.lu_solution(factors, b, pivots, transpose=False).flatten().tolist() == [2.0, 1.0]


@in_one_test
@pytest.mark.parametrize("is_exchanged", [False, True])
@pytest.mark.parametrize("name", ["lu", "lu transposed", "cholesky", "cholesky upper", "triangular"])
def test_solutions_in_memory_for_them(
    name: str, is_exchanged: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """The same as in new memory, without gaps and with them: nothing else is written, and no operand."""
    x, sides = (tensor(rng.normal(size=(2, 9, size)), device=device) for size in (9, 4))
    operands: list[Tensor] = [x + 9 * torch.eye(9, dtype=x.dtype, device=device), sides]
    order = torch.arange(9).flip(0) if is_exchanged else torch.arange(9)
    pivots = torch.maximum(order, torch.arange(9)).to(torch.uint32).expand(2, 1, 9).to(device)
    how: dict[str, Any] = {"upper": "upper" in name} if "cholesky" in name else {"transpose": "transposed" in name}
    if name == "triangular":
        how |= {"right": False, "upper": True, "unit": is_exchanged, "alpha": 0.5}
    name = name.split()[0]
    operands += [pivots] if name == "lu" else []
    given, larger = [each.clone() for each in operands], torch.full((2, 11, 7), 7.0, dtype=x.dtype, device=device)
    expected = getattr(linear_systems, f"{name}_solution")(*operands, **how)
    for room in (torch.empty_like(sides), larger[:, 1:-1, 2:-1]):
        assert getattr(linear_systems, f"{name}_solution_into")(room, *operands, **how)
        assert_close(room, array(expected), 1e-13)
    larger[:, 1:-1, 2:-1] = 7.0
    assert bool((larger == 7.0).all()) and all(map(torch.equal, operands, given))


# --- copies and sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16, torch.uint32, torch.int64, torch.complex64, torch.bool])
def test_elements_of_every_type_are_copied(dtype: torch.dtype, device: torch.device) -> None:
    source = torch.arange(12).reshape(3, 4).to(dtype).to(device)
    target = torch.zeros(5, 5).to(dtype).to(device)
    offsets = torch.tensor([2, 1, 4, 3], device=device)
    combination.CopyElements(2, 2, False, False).run((), target, source, offsets, None, None)
    expected = torch.zeros(5, 5).to(dtype)
    expected[4, 3:5] = torch.arange(9, 11).to(dtype)
    assert target.cpu().view(torch.uint8).tolist() == expected.view(torch.uint8).tolist(), "rows beyond stay out"


def test_sums_are_their_matrices(rng: np.random.Generator, device: torch.device) -> None:
    matrices = [tensor(rng.normal(size=(3, 4)), device=device) for _ in range(3)]
    found = combination.SumOfParts(3, 4).run((), None, None, *matrices)
    assert_close(found[0], sum(map(array, matrices)), TOLERANCE[torch.float64])
