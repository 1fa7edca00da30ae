"""Group and instance normalization against loops, finite differences, PyTorch and the printed numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.ops import geometry
from openmps.ops.normalization import group_normalization as ops
from openmps.types import MPSImageEdgeMode
from oracles import finite_difference
from oracles import group_normalization as oracle
from oracles.geometry import Axis

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
FLT_MIN = float(np.finfo(np.float32).tiny)
SHAPES = [
    ((2, 1, 3, 4), 1),
    ((3, 3, 4, 5), 3),
    ((2, 4, 3, 3), 2),
    ((2, 5, 2, 7), 1),
    ((1, 8, 3, 2), 4),
    ((2, 6, 1, 1), 2),
    ((0, 4, 3, 3), 2),
    ((2, 12, 2, 2), 12),
    ((2, 128, 8, 8), 4),
    ((1, 128, 8, 9), 128),
]
"""Images and groups of channels; as many groups as channels are instances."""


def _windows(shape: Any, rows: int, columns: int, down: int, across: int) -> tuple[geometry.Window, Axis, Axis]:
    """A window without taps, as the op and as the oracle know it."""
    window = geometry.Window(
        x=geometry.Axis(shape[3], columns, offset=across), y=geometry.Axis(shape[2], rows, offset=down)
    )
    return window, Axis(rows, offset=down), Axis(columns, offset=across)


def _whole(shape: Any) -> tuple[geometry.Window, Axis, Axis]:
    return _windows(shape, shape[2], shape[3], 0, 0)


def _parameters(channels: int) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(-1.5, 2.0, channels), np.linspace(1.0, -0.5, channels)


def _forward(x: Any, gamma: Any, beta: Any, window: Any, edge: Any, groups: int, epsilon: float) -> Any:
    return ops.group_normalization(x, gamma, beta, window, edge, groups=groups, epsilon=epsilon)


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_numbers(implementation: str) -> None:
    """One channel of one image is a batch of its own: the numbers of the batch normalization section."""
    x, g = np.arange(1.0, 5.0).reshape(1, 1, 2, 2), np.array([1.0, 0, 0, 0]).reshape(1, 1, 2, 2)
    window, rows, columns = _whole(x.shape)
    one, zero = np.ones(1), np.zeros(1)
    if implementation == "op":
        result, statistics = _forward(tensor(x), tensor(one), tensor(zero), window, ZERO, 1, 1e-5)
        found = ops.group_normalization_gradient(tensor(g), tensor(x), tensor(one), statistics, window, window, ZERO)
    else:
        result = oracle.forward(x, one, zero, rows, columns, 0, 1, 1e-5)
        found = oracle.gradient(g, x, one, rows, columns, 0, 1, 1e-5)
    assert_digits(result, [-1.34164, -0.44721, 0.44721, 1.34164], 5)
    assert_digits(found[0], [0.26833, -0.35777, -0.08944, 0.17888], 5)
    assert_digits(found[1], [-1.34164], 5)
    assert_digits(found[2], [1.0], 5)


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
def test_equals_loops(
    shape: Any, groups: int, layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    x, g = rng.normal(0.5, 2.0, size=shape), rng.normal(size=shape)
    gamma, beta = _parameters(shape[1])
    window, rows, columns = _whole(shape)
    source, scales = tensor(x, dtype, device, layout), tensor(gamma, dtype, device)
    result, statistics = _forward(source, scales, tensor(beta, dtype, device), window, ZERO, groups, 1e-3)
    assert result.dtype == dtype
    assert statistics.shape == (shape[0], 2, groups)
    assert_close(result, oracle.forward(x, gamma, beta, rows, columns, 0, groups, 1e-3), TOLERANCE[dtype], "result")
    found = ops.group_normalization_gradient(
        tensor(g, dtype, device, layout), source, scales, statistics, window, window, ZERO
    )
    expected = oracle.gradient(g, x, gamma, rows, columns, 0, groups, 1e-3)
    for name, actual, wanted in zip(found._fields, found, expected, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted, TOLERANCE[dtype], name)
    again = ops.group_statistics(source, groups=groups, epsilon=1e-3)
    assert_close(again, statistics, TOLERANCE[dtype], "statistics alone")


@pytest.mark.parametrize("edge", [ZERO, CLAMP], ids=lambda edge: edge.name)
@pytest.mark.parametrize(
    ("rows", "columns", "down", "across"),
    [(4, 5, 0, 0), (2, 3, 1, 1), (4, 5, 1, -2), (6, 8, -1, -1), (3, 2, 9, -9), (1, 1, 3, 4), (4, 5, 0, 1)],
)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_placed_results(
    groups: int, rows: int, columns: int, down: int, across: int, edge: Any, device: torch.device,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """The statistics are those of the whole image wherever the result pixels read, inside or outside."""
    x, g = rng.normal(size=(2, 4, 4, 5)), rng.normal(size=(2, 4, rows, columns))
    gamma, beta = _parameters(4)
    window, y_axis, x_axis = _windows(x.shape, rows, columns, down, across)
    source, scales = tensor(x, device=device), tensor(gamma, device=device)
    result, statistics = _forward(source, scales, tensor(beta, device=device), window, edge, groups, 0.25)
    expected = oracle.forward(x, gamma, beta, y_axis, x_axis, int(edge), groups, 0.25)
    assert_close(result, expected, 1e-12, "result")
    found = ops.group_normalization_gradient(tensor(g, device=device), source, scales, statistics, window, window, edge)
    wanted = oracle.gradient(g, x, gamma, y_axis, x_axis, int(edge), groups, 0.25)
    for name, actual, each in zip(found._fields, found, wanted, strict=True):
        assert_close(actual, each, 1e-12, name)
    numerical = finite_difference.gradient(
        lambda v: inner(oracle.forward(v, gamma, beta, y_axis, x_axis, int(edge), groups, 0.25), g), x
    )
    assert_close(found.source, numerical, 1e-7, "finite differences")


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_gradients_equal_finite_differences(groups: int, device: torch.device, rng: np.random.Generator) -> None:
    shape = (2, 6, 2, 3)
    x, g = rng.normal(size=shape), rng.normal(size=shape)
    gamma, beta = _parameters(6)
    window, _, _ = _whole(shape)

    def loss(values: np.ndarray, scales: np.ndarray, shifts: np.ndarray, image: int | None = None) -> float:
        chosen = slice(None) if image is None else slice(image, image + 1)
        result, _ = _forward(
            tensor(values[chosen], device=device), tensor(scales, device=device), tensor(shifts, device=device),
            window, ZERO, groups, 1e-2,
        )  # fmt: skip
        return inner(result, g[chosen])

    source, scales = tensor(x, device=device), tensor(gamma, device=device)
    statistics = ops.group_statistics(source, groups=groups, epsilon=1e-2)
    found = ops.group_normalization_gradient(tensor(g, device=device), source, scales, statistics, window, window, ZERO)
    assert_close(found.source, finite_difference.gradient(lambda v: loss(v, gamma, beta), x), 1e-7, "source")
    for image in range(2):
        expected = finite_difference.gradient(lambda v, image=image: loss(x, v, beta, image), gamma)
        assert_close(found.gamma[image], expected, 1e-7, "gamma")
        expected = finite_difference.gradient(lambda v, image=image: loss(x, gamma, v, image), beta)
        assert_close(found.beta[image], expected, 1e-7, "beta")


def _like_torch(x: Any, gamma: Any, beta: Any, groups: int, epsilon: float) -> torch.Tensor:
    if groups == x.shape[1]:
        return functional.instance_norm(x, weight=gamma, bias=beta, eps=epsilon)
    return functional.group_norm(x, groups, gamma, beta, epsilon)


@in_one_test
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_equals_pytorch(groups: int, epsilon: float, device: torch.device, rng: np.random.Generator) -> None:
    gamma, beta = (tensor(each, device=device).requires_grad_() for each in _parameters(8))
    x = tensor(rng.normal(1.0, 3.0, size=(3, 8, 5, 4)), device=device).requires_grad_()
    window, _, _ = _whole(x.shape)
    expected = _like_torch(x, gamma, beta, groups, epsilon)
    g = torch.randn_like(expected)
    result, statistics = _forward(x.detach(), gamma.detach(), beta.detach(), window, ZERO, groups, epsilon)
    assert_close(result, expected, 1e-12, "result")
    found = ops.group_normalization_gradient(g, x.detach(), gamma.detach(), statistics, window, window, ZERO)
    wanted = torch.autograd.grad(expected, (x, gamma, beta), g)
    sums = (found.source, found.gamma.sum(0), found.beta.sum(0))
    for name, actual, each in zip(found._fields, sums, wanted, strict=True):
        assert_close(actual, each, 1e-12, name)


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 4, 9, 7), 1), ((2, 4, 9, 7), 2), ((2, 4, 9, 7), 4), ((1, 128, 9, 8), 32)]
)
def test_small_differences_of_large_numbers(
    shape: Any, groups: int, device: torch.device, rng: np.random.Generator
) -> None:
    """A mean ten thousand times the deviation costs no digits in float32."""
    x = (1000.0 + rng.normal(scale=0.1, size=shape)).astype(np.float32).astype(np.float64)
    g = rng.normal(size=x.shape)
    gamma, beta = _parameters(shape[1])
    window, rows, columns = _whole(x.shape)
    source, scales = tensor(x, torch.float32, device), tensor(gamma, torch.float32, device)
    result, statistics = _forward(source, scales, tensor(beta, torch.float32, device), window, ZERO, groups, 1e-9)
    assert_close(result, oracle.forward(x, gamma, beta, rows, columns, 0, groups, 1e-9), 1e-5, "result")
    found = ops.group_normalization_gradient(
        tensor(g, torch.float32, device), source, scales, statistics, window, window, ZERO
    )
    expected = oracle.gradient(g, x, gamma, rows, columns, 0, groups, 1e-9)
    for name, actual, wanted in zip(found._fields, found, expected, strict=True):
        assert_close(actual, wanted, 1e-5, name)


@in_one_test
@pytest.mark.parametrize("value", [0.1, -7.3, 1e-30, 3e4])
@pytest.mark.parametrize("groups", [1, 3])
def test_constant_images(value: float, groups: int, device: torch.device) -> None:
    """The smallest epsilon and variance 0: beta comes out, not noise times 1e19; the gradients are finite."""
    x = torch.full((2, 3, 5, 7), value, device=device).contiguous(memory_format=torch.channels_last)
    gamma, beta = (tensor(each, torch.float32, device) for each in _parameters(3))
    window, _, _ = _whole(x.shape)
    result, statistics = _forward(x, gamma, beta, window, ZERO, groups, FLT_MIN)
    np.testing.assert_array_equal(array(result), array(beta.view(1, 3, 1, 1).expand_as(result)))
    assert_close(statistics[:, 1], torch.full((2, groups), FLT_MIN**-0.5), 1e-6)
    g = torch.randn(x.shape, device=device)
    found = ops.group_normalization_gradient(g, x, gamma, statistics, window, window, ZERO)
    np.testing.assert_array_equal(array(found.gamma), 0.0)
    assert_close(found.beta, array(g).sum((2, 3)), 1e-5)
    assert np.isfinite(array(found.source)).all()
    scaled = array(g) * array(gamma).reshape(1, 3, 1, 1)
    over = (2, 3) if groups == 3 else (1, 2, 3)
    expected = scaled - scaled.mean(over, keepdims=True)
    assert_close(array(found.source) * FLT_MIN**0.5, expected, 1e-5, "gradient over its scale")


@pytest.mark.parametrize("epsilon", [FLT_MIN, 1e-5, 100.0])
def test_one_pixel_instances(epsilon: float, device: torch.device, rng: np.random.Generator) -> None:
    """The pixel is its own mean: beta comes out and nothing flows back, not even rounding."""
    x, g = (tensor(rng.normal(size=(3, 5, 1, 1)), torch.float32, device) for _ in range(2))
    gamma, beta = (tensor(each, torch.float32, device) for each in _parameters(5))
    window, _, _ = _whole(x.shape)
    result, statistics = _forward(x, gamma, beta, window, ZERO, 5, epsilon)
    np.testing.assert_array_equal(array(result), array(beta.view(1, 5, 1, 1).expand_as(result)))
    found = ops.group_normalization_gradient(g, x, gamma, statistics, window, window, ZERO)
    np.testing.assert_array_equal(array(found.source), 0.0)
    np.testing.assert_array_equal(array(found.gamma), 0.0)
    np.testing.assert_array_equal(array(found.beta), array(g).reshape(3, 5))


def test_images_do_not_meet(device: torch.device, rng: np.random.Generator) -> None:
    """NaN in one image leaves the others alone."""
    x, g = rng.normal(size=(3, 4, 3, 3)), rng.normal(size=(3, 4, 3, 3))
    x[1] = np.nan
    gamma, beta = (tensor(each, device=device) for each in _parameters(4))
    window, _, _ = _whole(x.shape)
    result, statistics = _forward(tensor(x, device=device), gamma, beta, window, ZERO, 2, 1e-5)
    found = ops.group_normalization_gradient(
        tensor(g, device=device), tensor(x, device=device), gamma, statistics, window, window, ZERO
    )
    for values in (result, found.source, found.gamma):
        assert np.isfinite(array(values)[[0, 2]]).all()
        assert np.isnan(array(values)[1]).all()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("down", [0, 1])
def test_channels_last_stays_and_sources_too(groups: int, down: int, device: torch.device) -> None:
    x = torch.randn(2, 4, 3, 5, device=device).contiguous(memory_format=torch.channels_last)
    g = torch.randn(2, 4, 3, 5, device=device).contiguous(memory_format=torch.channels_last)
    gamma, beta = torch.randn(4, device=device), torch.randn(4, device=device)
    before = [each.clone() for each in (x, g, gamma, beta)]
    window, _, _ = _windows(x.shape, 3, 5, down, 0)
    result, statistics = _forward(x, gamma, beta, window, ZERO, groups, 1e-5)
    found = ops.group_normalization_gradient(g, x, gamma, statistics, window, window, ZERO)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert found.source.is_contiguous(memory_format=torch.channels_last)
    for each, kept in zip((x, g, gamma, beta), before, strict=True):
        assert torch.equal(each, kept)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_half_precision_operands(groups: int, device: torch.device, rng: np.random.Generator) -> None:
    """Statistics and the gradients of gamma and beta in float32; images rounded once; what is missing made again."""
    source, flow = (tensor(rng.normal(size=(3, 4, 3, 5)), torch.float32, device).half() for _ in range(2))
    gamma, beta = (tensor(rng.normal(size=4), torch.float32, device) for _ in range(2))
    window = geometry.Window(x=geometry.Axis(5, 5), y=geometry.Axis(3, 3))
    result, statistics = ops.GroupNormalization(groups, 1e-3, window, ZERO).run((True,) * 2, source, gamma, beta)
    wide, exact = ops.group_normalization(
        source.double(), gamma.double(), beta.double(), window, ZERO, groups=groups, epsilon=1e-3
    )
    assert (result.dtype, statistics.dtype) == (torch.float16, torch.float32)
    assert_close(result, wide, 2.0**-11 * 1.01)
    wanted = ops.group_normalization_gradient(
        flow.double(), source.double(), gamma.double(), exact, window, window, ZERO
    )
    differentiate = ops.GroupNormalizationGradient(groups, 1e-3, window, window, ZERO)
    for remembered in (statistics, None, statistics[:2]):
        found = differentiate.run((True,) * 3, flow, source, gamma, remembered)
        assert [each.dtype for each in found] == [torch.float16, torch.float32, torch.float32]
        assert_close(found.source, wanted.source, 2.0**-11 * 1.01)
        assert_close(found.gamma, wanted.gamma, 1e-5)
        assert_close(found.beta, wanted.beta, 1e-5)
