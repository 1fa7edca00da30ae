"""Convolutions of single pixels as products of matrices, against float64 and what they are instead of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, array, assert_close, on_a_cpu_of, tensor
from in_one_test import in_one_test
from openmps.ops.convolution import convolution as ops
from openmps.ops.convolution import pixel_products
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode
from rounding import likely_error

# images, channels, side, outputs: by MKL, by oneDNN's product, by oneDNN's sums, and these where nothing divides.
SIZES = [(2, 3, 5, 4), (1, 1, 1, 1), (2, 64, 24, 48), (1, 5, 128, 3), (4, 16, 64, 9), (1, 7, 129, 2), (3, 1, 80, 1)]


@pytest.fixture(params=[True, False], ids=["Intel", "another maker"], autouse=True)
def _maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_of(monkeypatch, is_intel=request.param)


def _case(size: tuple[int, int, int, int], rng: np.random.Generator) -> tuple[Window, list[np.ndarray]]:
    images, channels, side, outputs = size
    shapes = (images, channels, side, side), (outputs, 1, 1, channels), (outputs,), (images, outputs, side, side)
    axis = Axis(side, side)
    return Window(axis, axis), [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]


def _gradients(g: np.ndarray, x: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For the source, the weights and the biases."""
    weights = np.einsum("nohw,nchw->oc", g, x)[:, None, None]
    return np.einsum("nohw,oc->nchw", g, matrix), weights, g.sum((0, 2, 3))


@in_one_test
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_float64_and_the_slow_form(
    size: tuple[int, int, int, int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, (x, weights, biases, g) = _case(size, rng)
    source, flow = (tensor(each, torch.float32, layout="channels_last") for each in (x, g))
    kernel, more = (tensor(each, torch.float32) for each in (weights, biases))
    matrix = weights[:, 0, 0]
    expected = np.einsum("nchw,oc->nohw", x, matrix) + biases[:, None, None]
    wanted, most = (_gradients(*each) for each in ((g, x, matrix), (abs(g), abs(x), abs(matrix))))
    pixels = g[:, 0].size
    is_taken: list[bool] = []
    rows = pixel_products._pixels
    for is_fast in (True, False):
        monkeypatch.setattr(pixel_products, "_pixels", rows if is_fast else lambda *_: None)
        is_taken.append(pixel_products.pixel_convolution(source, kernel, more, window, 1) is not None)
        assert_close(ops.convolution(source, kernel, more, window), expected, 1e-5, "result")
        assert ops.convolution(source, kernel, None, window).is_contiguous(memory_format=torch.channels_last)
        found = ops.convolution_gradient(flow, source, kernel, window)
        assert found.weights is not None
        assert found.weights.is_contiguous()
        assert found.weights.shape == kernel.shape
        terms = len(weights), pixels, pixels
        for name, count, mine, theirs, magnitudes in zip(found._fields, terms, found, wanted, most, strict=True):
            assert (abs(array(mine) - theirs) <= likely_error(count, magnitudes)).all(), name
    assert is_taken == [True, False]


@in_one_test
@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("with_parameters", [True, False])
@pytest.mark.parametrize("with_biases", [True, False])
def test_only_what_is_asked_for(
    with_source: bool, with_parameters: bool, with_biases: bool, rng: np.random.Generator
) -> None:
    window, (x, weights, _, g) = _case(SIZES[0], rng)
    flow, source = (tensor(each, torch.float32, layout="channels_last") for each in (g, x))
    said = {"with_source": with_source, "with_parameters": with_parameters, "with_biases": with_biases}
    found = ops.convolution_gradient(flow, source, tensor(weights, torch.float32), window, **said)
    made = [each is not None for each in found]
    assert made == [with_source, with_parameters, with_parameters and with_biases]


@in_one_test
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_have_the_same_numbers(layout: str, rng: np.random.Generator) -> None:
    window, (x, weights, _, g) = _case((2, 6, 7, 5), rng)
    flow, source = (tensor(each, torch.float32, layout=layout) for each in (g, x))
    kernel = tensor(weights, torch.float32)
    is_taken = pixel_products.pixel_convolution(source, kernel, None, window, 1) is not None
    assert is_taken == (layout in ("channels_last", "odd_strides"))
    assert_close(ops.convolution(source, kernel, None, window), np.einsum("nchw,oc->nohw", x, weights[:, 0, 0]), 1e-5)
    found = ops.convolution_gradient(flow, source, kernel, window).weights
    assert_close(found, np.einsum("nohw,nchw->oc", g, x)[:, None, None], 1e-5)


def test_some_channels_of_an_image_take_the_form_that_an_image_of_its_own_takes(rng: np.random.Generator) -> None:
    window, (x, weights, _, g) = _case((2, 6, 7, 5), rng)
    parts = []
    for values, first in ((x, 2), (g, 9)):
        whole = torch.zeros(2, 20, 7, 7).contiguous(memory_format=torch.channels_last)
        parts.append(whole[:, first : first + values.shape[1]])
        parts[-1].copy_(tensor(values, torch.float32))
    kernel = tensor(weights, torch.float32)
    assert pixel_products.pixel_convolution(parts[0], kernel, None, window, 1) is not None
    assert pixel_products.pixel_gradients(parts[1], parts[0], kernel, window, 1, (True, True)) is not None
    assert_close(ops.convolution(parts[0], kernel, None, window), np.einsum("nchw,oc->nohw", x, weights[:, 0, 0]), 1e-5)
    found = ops.convolution_gradient(parts[1], parts[0], kernel, window)
    assert_close(found.weights, np.einsum("nohw,nchw->oc", g, x)[:, None, None], 1e-5)
    assert_close(found.source, np.einsum("nohw,oc->nchw", g, weights[:, 0, 0]), 1e-5)


def test_pixels_that_share_memory_are_no_rows(rng: np.random.Generator) -> None:
    window, (x, weights, _, g) = _case((2, 6, 7, 5), rng)
    source, kernel = tensor(x, torch.float32, layout="channels_last"), tensor(weights, torch.float32)
    flow = torch.from_numpy(g[:, :, :1, :1].astype(np.float32)).expand(2, 5, 7, 7)
    same = torch.tensor(2.0).expand(2, 5, 7, 7)
    for each in (flow, same):
        assert pixel_products.pixel_gradients(each, source, kernel, window, 1, (True, True)) is None
        found = ops.convolution_gradient(each, source, kernel, window)
        wanted = np.einsum("nohw,nchw->oc", each.double().numpy(), x)[:, None, None]
        assert_close(found.weights, wanted, 1e-5)


def test_what_is_not_of_this_kind(rng: np.random.Generator) -> None:
    window, (x, weights, _, _) = _case((2, 6, 8, 6), rng)
    source, kernel = tensor(x, torch.float32, layout="channels_last"), tensor(weights, torch.float32)
    take = pixel_products.pixel_convolution
    assert take(source, kernel, None, window, 1) is not None
    assert take(source, kernel[..., :2], None, window, 3) is None
    assert take(source.double(), kernel.double(), None, window, 1) is None
    assert take(source[:0], kernel, None, window, 1) is None
    for axis in (Axis(8, 4, stride=2), Axis(8, 7), Axis(8, 8, offset=1), Axis(8, 8, 3)):
        assert take(source, kernel, None, Window(axis, Axis(8, 8)), 1) is None, axis


def test_what_is_not_a_number_shows(rng: np.random.Generator) -> None:
    window, (x, weights, _, g) = _case((1, 4, 128, 3), rng)
    x[0, 1, 5, 6] = np.nan
    source, flow = (tensor(each, torch.float32, layout="channels_last") for each in (x, g))
    kernel = tensor(weights, torch.float32)
    result = array(ops.convolution(source, kernel, None, window, edge_mode=MPSImageEdgeMode.CLAMP))
    assert np.isnan(result[0, :, 5, 6]).all()
    assert np.isnan(result).sum() == 3
    assert np.isnan(array(ops.convolution_gradient(flow, source, kernel, window).weights)[:, 0, 0, 1]).all()
