"""Exact float32 products of matrices and windows in Triton: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from interpreter import IS_INTERPRETED, triton_place
from openmps.ops.convolution.convolution import convolution, convolution_gradient
from openmps.ops.geometry import Axis, Window
from openmps.ops.matrix.multiplication import MatrixProduct
from openmps.ops.matrix.products import add_product, product, product_of_rows, put_product
from openmps.ops.op import Builder, Role
from openmps.types import MPSImageEdgeMode

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
WINDOWS = {
    "3 by 3": Window(x=Axis(7, 7, 3), y=Axis(6, 6, 3)),
    "even, off the centre": Window(x=Axis(7, 6, 4, 1, 1, 1), y=Axis(6, 8, 2, 1, 1, 0)),
    "dilated": Window(x=Axis(7, 5, 3, 1, 2, 3), y=Axis(6, 6, 2, 1, 3, 1)),
    "strides": Window(x=Axis(7, 4, 3, 2), y=Axis(6, 2, 3, 3)),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs; the operations take it there."""
    return triton_place(monkeypatch)


def numbers(*shape: int, place: torch.device, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(place)


def assert_exact(found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    """As close as float32 sums in another order."""
    assert found is not None
    assert expected is not None
    assert found.dtype is torch.float32
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=3e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("size", [(40, 300, 70), (1, 3, 1), (70, 40, 33), (5, 700, 3)], ids=str)
def test_products_of_matrices(size: tuple[int, int, int], place: torch.device, monkeypatch) -> None:
    if IS_INTERPRETED:
        monkeypatch.setattr("openmps.ops.matrix.products._takes_onednn", lambda left: False)
    rows, terms, columns = size
    left, right = numbers(rows, terms, place=place, seed=1), numbers(terms, columns, place=place, seed=2)
    biases = numbers(columns, place=place, seed=3)
    expected = left.double() @ right.double()
    assert_exact(product(left, right), expected)
    assert_exact(product(left.t().contiguous().t(), right.t().contiguous().t()), expected)
    assert_exact(product_of_rows(left, right.t().contiguous()), expected)
    assert_exact(product_of_rows(left, right.t().contiguous(), biases), expected + biases.double())


def test_products_in_memory_that_is_there(place: torch.device) -> None:
    """Added to sums with gaps between rows, and put; of as many rows as are multiplied in Triton, and of one."""
    for rows in (16, 1):
        left, right = numbers(rows, 20, place=place, seed=1), numbers(20, 17, place=place, seed=2)
        sums, result = numbers(rows, 40, place=place, seed=3), torch.zeros(rows, 17, device=place)
        expected = sums.double()
        expected[:, :17] += left.double() @ right.double()
        assert add_product(sums[:, :17], left, right).data_ptr() == sums.data_ptr()
        assert_exact(sums, expected)
        assert put_product(result, left, right) is result
        assert_exact(result, left.double() @ right.double())


@pytest.mark.parametrize("size", [(20, 40, 70), (70, 40, 33), (64, 600, 96), (1, 30, 20)], ids=str)
def test_products_put_where_they_go(size: tuple[int, int, int], place: torch.device, monkeypatch) -> None:
    """Bit for bit as products in memory of their own; whether as they lie or turned, with gaps between rows or not."""
    if IS_INTERPRETED:
        monkeypatch.setattr("openmps.ops.matrix.products._takes_onednn", lambda left: False)
    rows, terms, columns = size
    left, right = numbers(1, terms, rows, place=place, seed=1), numbers(1, terms, columns, place=place, seed=2)
    op = MatrixProduct(transpose_left=True)
    expected = op.run((True,), left, right, None)
    builder = Builder()
    sources = [builder.input(Role.SOURCE, str(index)) for index in range(2)]
    builder.output("result", op(*sources, None))
    function, takes = builder.finish(), list[bool]()
    for gap in (0, 3):
        wide = torch.full((1, rows, columns + gap), 7.0, device=place)
        (found,) = function.run([left, right], wide[..., :columns])
        takes.append(found is None)
        torch.testing.assert_close(wide[..., :columns] if found is None else found, expected, rtol=0, atol=0)
        assert bool((wide[..., columns:] == 7.0).all())
    # Sums of many terms are added from parts.
    assert takes == [terms < 600] * 2


def test_products_of_few_terms(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a weights' gradient are, of rows with gaps."""
    if IS_INTERPRETED:
        monkeypatch.setattr("openmps.ops.matrix.products._takes_onednn", lambda left: False)
    left, right = numbers(20, 264, place=place, seed=1)[:, :258], numbers(20, 270, place=place, seed=2)[:, :262]
    kernels: Any = import_module("openmps.ops.triton.matrix.products")
    asked, sums = list[torch.Size](), kernels.weights_gradient

    def noted(*given):
        asked.append(given[2])
        return sums(*given)

    monkeypatch.setattr(kernels, "weights_gradient", noted)
    assert_exact(product(left.t(), right), left.t().double() @ right.double())
    assert asked == [(258, 1, 1, 262)]


@pytest.mark.parametrize(("channels", "edge_mode"), [((20, 33), ZERO), ((16, 5), CLAMP), ((3, 5), ZERO)], ids=str)
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(name: str, channels, edge_mode: MPSImageEdgeMode, place: torch.device) -> None:
    window, (inputs, outputs) = WINDOWS[name], channels
    x = numbers(2, *window.source, inputs, place=place, seed=1).permute(0, 3, 1, 2)
    weights, biases = numbers(outputs, *window.size, inputs, place=place, seed=2), numbers(outputs, place=place, seed=3)
    gradient = numbers(2, *window.result, outputs, place=place, seed=4).permute(0, 3, 1, 2)
    wide = [each.double() for each in (x, weights, biases, gradient)]
    expected = convolution(*wide[:3], window, edge_mode=edge_mode)
    assert_exact(convolution(x, weights, biases, window, edge_mode=edge_mode), expected)
    found = convolution_gradient(gradient, x, weights, window, edge_mode=edge_mode)
    sums = convolution_gradient(wide[3], wide[0], wide[1], window, edge_mode=edge_mode)
    for one, other in zip(found, sums, strict=True):
        assert_exact(one, other)
    assert convolution_gradient(gradient, x, weights, window, edge_mode=edge_mode, with_biases=False).biases is None


def test_the_forms_are_asked(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the above is the library's."""
    window = WINDOWS["3 by 3"]
    x = numbers(2, *window.source, 16, place=place, seed=1).permute(0, 3, 1, 2)
    weights, gradient = numbers(16, 3, 3, 16, place=place, seed=2), numbers(2, 6, 7, 16, place=place, seed=4)
    monkeypatch.setattr(torch, "conv2d", None)
    monkeypatch.setattr("openmps.ops.convolution.convolution.backward", None)
    convolution(x, weights, None, window)
    convolution_gradient(gradient.permute(0, 3, 1, 2), x, weights, window)
