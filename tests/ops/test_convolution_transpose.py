"""Transposed convolution and its gradients against float64 loops, PyTorch, finite differences and printed numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops import geometry
from openmps.ops.convolution import convolution_transpose as ops
from openmps.ops.geometry import Window
from oracles import convolution as oracle
from oracles import finite_difference
from oracles.geometry import Axis
from pairs import dealt

NAMES = ("source", "weights", "biases")
DTYPES = [torch.float64, torch.float32]
# (source channels, result channels, groups)
CHANNELS = [
    (1, 1, 1),
    (3, 4, 1),
    (4, 3, 1),
    (5, 5, 1),
    (4, 4, 2),
    (8, 4, 4),
    (3, 3, 3),
    (4, 8, 4),
    (5, 10, 5),
    (1, 4, 1),
]


@dataclass(frozen=True)
class Problem:
    """Operands and an incoming gradient; the axes' stride enlarges, their offset counts stuffed pixels."""

    rows: Axis
    columns: Axis
    groups: int
    x: np.ndarray
    weights: np.ndarray
    biases: np.ndarray
    g: np.ndarray
    layout: str = "channels_last"

    def window(self) -> Window:
        height, width = self.x.shape[2:]
        return Window(x=_axis(self.columns, width), y=_axis(self.rows, height))

    def forward(self, dtype: torch.dtype, device: torch.device, biases: bool = True) -> torch.Tensor:
        return ops.convolution_transpose(
            tensor(self.x, dtype, device, self.layout),
            tensor(self.weights, dtype, device),
            tensor(self.biases, dtype, device) if biases else None,
            self.window(),
            groups=self.groups,
        )

    def gradient(self, dtype: torch.dtype, device: torch.device, **wanted: bool):
        return ops.convolution_transpose_gradient(
            tensor(self.g, dtype, device, self.layout),
            tensor(self.x, dtype, device, self.layout),
            tensor(self.weights, dtype, device),
            self.window(),
            groups=self.groups,
            **wanted,
        )

    def expected(self, biases: bool = True) -> np.ndarray:
        terms = self.biases if biases else None
        return oracle.transpose(self.x, self.weights, terms, self.rows, self.columns, self.groups)

    def expected_gradient(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return oracle.transpose_gradient(self.g, self.x, self.weights, self.rows, self.columns, self.groups)


def _axis(axis: Axis, source: int) -> geometry.Axis:
    return geometry.Axis(source, axis.result, axis.size, axis.stride, axis.dilation, axis.offset)


def make(
    size: tuple[int, int, int],
    channels: tuple[int, int, int],
    rows: Axis,
    columns: Axis,
    rng: np.random.Generator,
    layout: str = "channels_last",
) -> Problem:
    images, height, width = size
    inputs, outputs, groups = channels
    return Problem(
        rows,
        columns,
        groups,
        x=rng.normal(size=(images, inputs, height, width)),
        weights=rng.normal(size=(outputs, rows.size, columns.size, inputs // groups)),
        biases=rng.normal(size=outputs),
        g=rng.normal(size=(images, outputs, rows.result, columns.result)),
        layout=layout,
    )


def _any_axis(random: np.random.Generator) -> Axis:
    return Axis(*(int(v) for v in random.integers([1, 1, 1, 1, -4], [10, 6, 4, 4, 6])))


def _library_axis(random: np.random.Generator, source: int) -> Axis:
    """As libraries place it: cropped alike on both sides, then fewer extra pixels than a stride."""
    size, stride, dilation = (int(v) for v in random.integers([1, 1, 1], [6, 4, 3]))
    extent = (size - 1) * dilation + 1
    whole = (source - 1) * stride + extent
    crop = int(random.integers(0, min(extent, (whole + 1) // 2)))
    extra = int(random.integers(0, stride))
    return Axis(whole - 2 * crop + extra, size, stride, dilation, crop - (extent - 1) + extent // 2)


def problem(number: int) -> Problem:
    """One of a seeded sample of sizes, channels and placements."""
    random = np.random.default_rng([7, number])
    images, height, width = (int(v) for v in random.integers([0, 1, 1], [4, 7, 7]))
    if number % 2:
        rows, columns = _library_axis(random, height), _library_axis(random, width)
    else:
        rows, columns = _any_axis(random), _any_axis(random)
    channels = CHANNELS[number % len(CHANNELS)]
    return make((images, height, width), channels, rows, columns, random, str(random.choice(LAYOUTS)))


COUNT = 100


# --- printed numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["op", "oracle"])
@pytest.mark.parametrize(
    ("weights", "result", "expected"),
    [
        ([1, 10, 100], 7, [10, 201, 20, 302, 30, 403, 40]),
        ([1, 10, 100], 8, [10, 201, 20, 302, 30, 403, 40, 4]),
        ([1, 10], 8, [10, 1, 20, 2, 30, 3, 40, 4]),
    ],
)
def test_printed_numbers(implementation: str, weights: list[float], result: int, expected: list[float]) -> None:
    x = np.arange(1.0, 5.0).reshape(1, 1, 1, 4)
    w = np.array(weights, dtype=np.float64).reshape(1, 1, -1, 1)
    columns = Axis(result, len(weights), stride=2)
    if implementation == "op":
        window = Window(x=_axis(columns, 4), y=geometry.Axis(1, 1))
        found = array(ops.convolution_transpose(tensor(x), tensor(w), None, window))
    else:
        found = oracle.transpose(x, w, None, Axis(1), columns)
    assert found.ravel().tolist() == expected


# --- against the loops -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(COUNT)], [DTYPES]), ids=str)
def test_forward_equals_loops(number: int, dtype: torch.dtype, device: torch.device) -> None:
    p = problem(number)
    biases = number % 3 != 0
    result = p.forward(dtype, device, biases)
    assert result.dtype == dtype
    assert result.device.type == device.type
    assert_close(result, p.expected(biases), TOLERANCE[dtype], f"{p.rows} {p.columns}")


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(COUNT)], [DTYPES]), ids=str)
def test_gradients_equal_loops(number: int, dtype: torch.dtype, device: torch.device) -> None:
    p = problem(number)
    for actual, wanted, what in zip(p.gradient(dtype, device), p.expected_gradient(), NAMES, strict=True):
        assert actual is not None
        assert actual.dtype == dtype
        assert_close(actual, wanted, TOLERANCE[dtype], f"{what} {p.rows} {p.columns}")


# Sizes of real layers, where engines choose other algorithms than for toys.
# (images, source channels, result channels, groups, length, kernel, stride, result)
LAYERS = [
    (2, 64, 32, 1, 7, 4, 2, 14),
    (1, 32, 16, 1, 14, 3, 2, 28),
    (2, 16, 1, 1, 14, 5, 2, 28),
    (1, 21, 21, 21, 8, 4, 2, 16),
    (1, 32, 64, 4, 6, 3, 1, 6),
    (1, 8, 3, 1, 4, 9, 4, 16),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_in_single_precision(layer: tuple[int, ...], device: torch.device, rng: np.random.Generator) -> None:
    images, inputs, outputs, groups, length, k, s, result = layer
    axis = Axis(result, k, s)
    p = make((images, length, length), (inputs, outputs, groups), axis, axis, rng)
    assert_close(p.forward(torch.float32, device), p.expected(), 1e-5, "forward")
    for actual, wanted, what in zip(p.gradient(torch.float32, device), p.expected_gradient(), NAMES, strict=True):
        assert_close(actual, wanted, 1e-5, what)


@pytest.mark.parametrize(("offset", "result"), [(-40, 3), (40, 3), (0, 60), (-5, 2)])
def test_far_from_the_source(offset: int, result: int, device: torch.device, rng: np.random.Generator) -> None:
    """Where nothing is reached there is the bias alone."""
    p = make((2, 3, 4), (3, 4, 1), Axis(result, 3, 2, 1, offset), Axis(5, 2, 3), rng)
    found = p.forward(torch.float64, device)
    assert_close(found, p.expected(), 1e-12)
    if abs(offset) == 40:
        assert_close(found, np.broadcast_to(p.biases[:, None, None], found.shape), 0.0)
        assert (array(p.forward(torch.float64, device, biases=False)) == 0).all()
    for actual, wanted, what in zip(p.gradient(torch.float64, device), p.expected_gradient(), NAMES, strict=True):
        assert_close(actual, wanted, 1e-12, what)


def test_both_ways_to_the_engine_agree(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own cropping, where it places the windows right, against cropping what it makes of the whole."""
    asked: list[bool] = []
    real = ops.library_padding

    def noting(*arguments):
        padding = real(*arguments)
        asked.append(padding is not None)
        return padding

    for number in range(COUNT):
        p = problem(number)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "library_padding", noting)
            fast = p.forward(torch.float64, device)
        with monkeypatch.context() as patch:
            patch.setattr(ops, "library_padding", lambda *_: None)
            slow = p.forward(torch.float64, device)
        assert_close(fast, slow, 1e-13, f"{p.rows} {p.columns}")
    assert 20 < sum(asked) < len(asked) - 20, "both ways were taken"


# --- gradients by other ways -----------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("number", range(0, COUNT, 2))
def test_adjoint_identity(number: int, device: torch.device) -> None:
    p = problem(number)
    source, parameters, biases = p.gradient(torch.float64, device)
    linear = p.forward(torch.float64, device, biases=False)
    scale = max(1.0, float(np.abs(p.x).sum()))
    assert abs(inner(linear, p.g) - inner(source, p.x)) <= 1e-11 * scale
    assert abs(inner(linear, p.g) - inner(parameters, p.weights)) <= 1e-11 * scale
    assert_close(biases, p.g.sum(axis=(0, 2, 3)), 1e-12, "biases")


def test_gradients_equal_finite_differences(device: torch.device, rng: np.random.Generator) -> None:
    p = make((2, 3, 2), (4, 2, 2), Axis(6, 3, 2, 1, 1), Axis(4, 2, 3, 2, -1), rng)
    source, parameters, biases = p.gradient(torch.float64, device)

    def total(**replaced: np.ndarray) -> float:
        return inner(replace(p, **replaced).forward(torch.float64, device), p.g)

    assert_close(source, finite_difference.gradient(lambda v: total(x=v), p.x), 1e-8, "source")
    assert_close(parameters, finite_difference.gradient(lambda v: total(weights=v), p.weights), 1e-8, "weights")
    assert_close(biases, finite_difference.gradient(lambda v: total(biases=v), p.biases), 1e-8, "biases")


@in_one_test
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("k", "s", "d"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 1, 1), (4, 2, 1), (3, 1, 2), (2, 3, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_pytorch(
    k: int, s: int, d: int, padding: int, groups: int, device: torch.device, rng: np.random.Generator
) -> None:
    """``W[o][j][i][c] = V[c][o][k-1-j][k-1-i]``, total offset ``P - (kD - 1) + kD / 2``; autograd gives gradients."""
    dilated = (k - 1) * d + 1
    result = 4 * s - 2 * padding + dilated
    if result < 1:
        pytest.skip("PyTorch makes no pixel of it")
    x = tensor(rng.normal(size=(2, 4, 5, 5)), device=device).requires_grad_()
    v = tensor(rng.normal(size=(4, 6 // groups, k, k)), device=device).requires_grad_()
    biases = tensor(rng.normal(size=6), device=device).requires_grad_()
    expected = torch.nn.functional.conv_transpose2d(x, v, biases, s, padding, 0, groups, d)
    axis = geometry.Axis(5, result, k, s, d, padding - (dilated - 1) + dilated // 2)
    window = Window(x=axis, y=axis)
    with torch.no_grad():
        weights = _ohwi(v, groups)
        found = ops.convolution_transpose(x, weights, biases, window, groups=groups)
        assert_close(found, expected, 1e-12, "forward")
        g = torch.randn_like(expected)
        gradients = ops.convolution_transpose_gradient(g, x, weights, window, groups=groups)
    source, parameters, bias_gradient = torch.autograd.grad(expected, (x, v, biases), g)
    assert_close(gradients.source, source, 1e-12, "source")
    assert_close(gradients.weights, _ohwi(parameters, groups), 1e-12, "weights")
    assert_close(gradients.biases, bias_gradient, 1e-12, "biases")


def _ohwi(v: torch.Tensor, groups: int) -> torch.Tensor:
    """PyTorch's ``[I, O / groups, kh, kw]`` as this framework's ``[O, kh, kw, I / groups]``."""
    parts = [part.permute(1, 2, 3, 0).flip(1, 2) for part in v.chunk(groups)]
    return torch.cat(parts).contiguous()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_turning_weights_twice_gives_them_back(groups: int, rng: np.random.Generator) -> None:
    weights = tensor(rng.normal(size=(8, 2, 3, 4 // groups)))
    turned = ops.turned(weights, groups)
    assert turned.shape == (4, 2, 3, 8 // groups)
    assert torch.equal(ops.turned(turned, groups), weights)


# --- what is promised beside the numbers -----------------------------------------------------------------------------


def test_only_what_is_asked_for(device: torch.device, rng: np.random.Generator) -> None:
    p = make((2, 3, 4), (3, 4, 1), Axis(6, 3, 2), Axis(8, 3, 2), rng)
    whole = p.gradient(torch.float64, device)
    source = p.gradient(torch.float64, device, with_parameters=False)
    parameters = p.gradient(torch.float64, device, with_source=False)
    assert (source.weights, source.biases, parameters.source) == (None, None, None)
    assert_close(source.source, whole.source, 1e-13, "source alone")
    assert_close(parameters.weights, whole.weights, 1e-13, "weights alone")
    assert_close(parameters.biases, whole.biases, 1e-13, "biases alone")


def test_channels_last_stays(device: torch.device, rng: np.random.Generator) -> None:
    p = make((2, 3, 4), (4, 8, 1), Axis(6, 4, 2, 1, -1), Axis(8, 4, 2, 1, -1), rng)
    assert p.forward(torch.float32, device).is_contiguous(memory_format=torch.channels_last)
    source, parameters, _ = p.gradient(torch.float32, device)
    assert source.is_contiguous(memory_format=torch.channels_last)
    assert parameters.shape == p.weights.shape
    assert parameters.is_contiguous()


def test_operands_stay_untouched(device: torch.device) -> None:
    for number in range(20):
        p = problem(number)
        x, weights, biases, g = (tensor(v, device=device) for v in (p.x, p.weights, p.biases, p.g))
        kept = [t.clone() for t in (x, weights, biases, g)]
        ops.convolution_transpose(x, weights, biases, p.window(), groups=p.groups)
        ops.convolution_transpose_gradient(g, x, weights, p.window(), groups=p.groups)
        for now, before in zip((x, weights, biases, g), kept, strict=True):
            assert torch.equal(now, before)
