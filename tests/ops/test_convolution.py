"""Convolution and its gradients against float64 loops, PyTorch, finite differences and the printed numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from helpers import TOLERANCE, array, assert_close, inner, tensor
from in_one_test import in_one_test
from openmps.ops import geometry
from openmps.ops.convolution import convolution as ops
from openmps.ops.convolution import weights_gradient
from openmps.ops.convolution.library_convolution import library_padding, placed
from openmps.ops.geometry import Window
from openmps.types import MPSImageEdgeMode
from oracles import convolution as oracle
from oracles import finite_difference
from oracles.geometry import CLAMP, ZERO, Axis
from pairs import dealt
from placements import SINGLE_AXES, Case, cases, window

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
    """Source, weights, biases and an incoming gradient of one case."""

    case: Case
    groups: int
    x: np.ndarray
    weights: np.ndarray
    biases: np.ndarray
    g: np.ndarray

    @property
    def placement(self) -> tuple[Axis, Axis, int, int]:
        return self.case.rows, self.case.columns, self.groups, self.case.edge

    def forward(self, dtype: torch.dtype, device: torch.device, biases: bool = True) -> torch.Tensor:
        return ops.convolution(
            tensor(self.x, dtype, device, self.case.layout),
            tensor(self.weights, dtype, device),
            tensor(self.biases, dtype, device) if biases else None,
            self.case.window(),
            groups=self.groups,
            edge_mode=self.case.edge_mode,
        )

    def gradient(self, dtype: torch.dtype, device: torch.device, **wanted: bool):
        return ops.convolution_gradient(
            tensor(self.g, dtype, device, self.case.layout),
            tensor(self.x, dtype, device, self.case.layout),
            tensor(self.weights, dtype, device),
            self.case.window(),
            groups=self.groups,
            edge_mode=self.case.edge_mode,
            **wanted,
        )


def make(case: Case, channels: tuple[int, int, int], rng: np.random.Generator) -> Problem:
    inputs, outputs, groups = channels
    return Problem(
        case,
        groups,
        x=rng.normal(size=(case.images, inputs, case.height, case.width)),
        weights=rng.normal(size=(outputs, case.rows.size, case.columns.size, inputs // groups)),
        biases=rng.normal(size=outputs),
        g=rng.normal(size=case.result_shape(outputs)),
    )


ALL = cases(90, seed=1)


def problem(number: int, rng: np.random.Generator) -> Problem:
    return make(ALL[number], CHANNELS[number % len(CHANNELS)], rng)


# --- printed numbers ---------------------------------------------------------------------------------------------

Forward = Callable[[np.ndarray, np.ndarray, Axis], np.ndarray]


def _op_1d(x: np.ndarray, weights: np.ndarray, columns: Axis) -> np.ndarray:
    w = window(Axis(1), columns, 1, x.shape[3])
    return array(ops.convolution(tensor(x), tensor(weights), None, w, groups=1, edge_mode=MPSImageEdgeMode.ZERO))


def _oracle_1d(x: np.ndarray, weights: np.ndarray, columns: Axis) -> np.ndarray:
    return oracle.forward(x, weights, None, Axis(1), columns)


@in_one_test
@pytest.mark.parametrize("forward", [_op_1d, _oracle_1d], ids=["op", "oracle"])
@pytest.mark.parametrize(
    ("weights", "columns", "expected"),
    [
        ([1, 10, 100], Axis(5, 3), [210, 321, 432, 543, 54]),
        ([1, 10], Axis(5, 2), [10, 21, 32, 43, 54]),
        ([1, 10], Axis(5, 2, offset=1), [21, 32, 43, 54, 5]),
        ([1, 10], Axis(5, 2, dilation=3), [20, 30, 41, 52, 3]),
        ([1, 10, 100], Axis(2, 3, stride=2, offset=1), [321, 543]),
    ],
)
def test_printed_forward_numbers(forward: Forward, weights: list[float], columns: Axis, expected: list[float]) -> None:
    x = np.arange(1.0, 6.0).reshape(1, 1, 1, 5)
    w = np.array(weights, dtype=np.float64).reshape(1, 1, -1, 1)
    assert forward(x, w, columns).ravel().tolist() == expected


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_gradient_numbers(implementation: str) -> None:
    x = np.arange(1.0, 6.0).reshape(1, 1, 1, 5)
    weights = np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    g = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 1, 3)
    columns = Axis(3, 3, stride=2)
    if implementation == "op":
        place = window(Axis(1), columns, 1, 5)
        found = ops.convolution_gradient(
            tensor(g), tensor(x), tensor(weights), place, groups=1, edge_mode=MPSImageEdgeMode.ZERO
        )
    else:
        found = oracle.gradient(g, x, weights, Axis(1), columns)
    source, parameters, biases = (array(value).ravel().tolist() for value in found)
    assert source == [10, 102, 20, 203, 30]
    assert parameters == [16, 22, 10]
    assert biases == [6]


# --- against the loops -------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(len(ALL))], [DTYPES]), ids=str)
def test_forward_equals_loops(number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator) -> None:
    p = problem(number, rng)
    biases = number % 3 != 0
    result = p.forward(dtype, device, biases)
    expected = oracle.forward(p.x, p.weights, p.biases if biases else None, *p.placement)
    assert result.dtype == dtype
    assert result.device.type == device.type
    assert_close(result, expected, TOLERANCE[dtype], f"convolution of {p.case}")


@in_one_test
@pytest.mark.parametrize(("number", "dtype"), dealt([range(len(ALL))], [DTYPES]), ids=str)
def test_gradients_equal_loops(number: int, dtype: torch.dtype, device: torch.device, rng: np.random.Generator) -> None:
    p = problem(number, rng)
    found = p.gradient(dtype, device)
    expected = oracle.gradient(p.g, p.x, p.weights, *p.placement)
    for actual, wanted, what in zip(found, expected, NAMES, strict=True):
        assert actual is not None
        assert actual.dtype == dtype
        assert_close(actual, wanted, TOLERANCE[dtype], f"{what} gradient of {p.case}")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_every_axis_placement(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 2, 1, 6))
    wrong: list[str] = []
    for columns in SINGLE_AXES:
        weights = rng.normal(size=(2, 1, columns.size, 2))
        g = rng.normal(size=(1, 2, 1, columns.result))
        place = window(Axis(1), columns, 1, 6)
        mode = MPSImageEdgeMode(edge)
        tensors = [tensor(v, device=device) for v in (g, x, weights)]
        pairs = [
            (
                ops.convolution(tensors[1], tensors[2], None, place, groups=1, edge_mode=mode),
                oracle.forward(x, weights, None, Axis(1), columns, 1, edge),
            ),
            *zip(
                ops.convolution_gradient(*tensors, place, groups=1, edge_mode=mode),
                oracle.gradient(g, x, weights, Axis(1), columns, 1, edge),
                strict=True,
            ),
        ]
        if any(np.abs(array(a) - b).max() > 1e-12 for a, b in pairs):
            wrong.append(str(columns))
    assert not wrong, f"{len(wrong)} of {len(SINGLE_AXES)} placements are wrong, first {wrong[:3]}"


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_is_one_group_a_channel(multiplier: int, device: torch.device, rng: np.random.Generator) -> None:
    rows, columns = Axis(3, 3, 2), Axis(4, 2, 1, 2, 1)
    x = rng.normal(size=(2, 3, 5, 6))
    filters = rng.normal(size=(3, multiplier, 3, 2))
    biases = rng.normal(size=3 * multiplier)
    result = ops.convolution(
        tensor(x, device=device),
        tensor(filters.reshape(3 * multiplier, 3, 2, 1), device=device),
        tensor(biases, device=device),
        window(rows, columns, 5, 6),
        groups=3,
        edge_mode=MPSImageEdgeMode.ZERO,
    )
    assert_close(result, oracle.depthwise(x, filters, biases, rows, columns), 1e-12, "depthwise")


# Sizes of real layers, where engines choose other algorithms than for toys.
# (images, source channels, result channels, groups, length, kernel, stride, offset)
LAYERS = [
    (2, 1, 32, 1, 28, 5, 1, 0),
    (2, 32, 64, 1, 14, 5, 1, 0),
    (1, 64, 64, 1, 14, 3, 1, 0),
    (1, 64, 128, 1, 14, 1, 2, 0),
    (2, 32, 32, 32, 15, 3, 2, 1),
    (1, 32, 64, 4, 12, 3, 1, 0),
    (1, 3, 32, 1, 32, 7, 2, 0),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_in_single_precision(layer: tuple[int, ...], device: torch.device, rng: np.random.Generator) -> None:
    images, inputs, outputs, groups, length, k, s, offset = layer
    axis = Axis(-(-length // s), k, s, 1, offset)
    case = Case(images, inputs, length, length, axis, axis, ZERO, "channels_last")
    p = make(case, (inputs, outputs, groups), rng)
    expected = oracle.forward(p.x, p.weights, p.biases, *p.placement)
    assert_close(p.forward(torch.float32, device), expected, 1e-5, "forward")
    wanted = oracle.gradient(p.g, p.x, p.weights, *p.placement)
    for actual, gradient, what in zip(p.gradient(torch.float32, device), wanted, NAMES, strict=True):
        assert_close(actual, gradient, 1e-5, what)


# Placements that engines have computed wrongly, or written past their memory for.
# (images, (source channels, result channels, groups), height, width, rows, columns)
TRAPS = [
    (3, (1, 1, 1), 9, 4, Axis(8, 2, 1, 1, 1), Axis(1, 4, 3, 1, 2)),
    (3, (1, 32, 1), 9, 4, Axis(7, 3, 1, 1, 1), Axis(1, 3, 3, 1, 1)),
    (3, (1, 4, 1), 6, 6, Axis(6, 1), Axis(1, 4, 3, 1, 2)),
    (2, (1, 4, 1), 6, 6, Axis(5, 2, 1, 1, 1), Axis(2, 4, 2, 1, 2)),
    (3, (3, 8, 1), 28, 28, Axis(10, 1, 3), Axis(10, 1, 3)),
    (3, (4, 4, 1), 9, 9, Axis(3, 1, 3), Axis(9, 1)),
    (2, (1, 32, 1), 6, 6, Axis(3, 1, 2), Axis(3, 1, 2)),
    (2, (5, 7, 1), 6, 6, Axis(3, 1, 2, 1, 1), Axis(3, 1, 2, 1, 1)),
    (2, (8, 12, 4), 1, 7, Axis(1), Axis(7)),
    (1, (12, 12, 3), 9, 7, Axis(4, 5, 2, 1, 1), Axis(4, 3, 2)),
    (3, (64, 16, 16), 9, 1, Axis(5, 5, 2), Axis(1, 5)),
    (1, (4, 6, 2), 9, 9, Axis(9, 3), Axis(9, 3)),
]


@in_one_test
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["channels_last", "odd_strides"])
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("number", range(len(TRAPS)))
def test_traps(
    number: int, edge: int, layout: str, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    images, channels, height, width, rows, columns = TRAPS[number]
    case = Case(images, channels[0], height, width, rows, columns, edge, layout)
    p = make(case, channels, rng)
    expected = oracle.forward(p.x, p.weights, p.biases, *p.placement)
    wanted = oracle.gradient(p.g, p.x, p.weights, *p.placement)
    for _ in range(3):
        assert_close(p.forward(dtype, device), expected, TOLERANCE[dtype], "forward")
        for actual, gradient, what in zip(p.gradient(dtype, device), wanted, NAMES, strict=True):
            assert_close(actual, gradient, TOLERANCE[dtype], what)


def test_both_ways_to_the_engine_agree(
    device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own padding, where it places the windows right, against reading the region first."""
    direct = [n for n, case in enumerate(ALL) if library_padding(case.window(), case.edge_mode) is not None]
    assert 20 < len(direct) < len(ALL) - 20
    for number in direct:
        p = problem(number, rng)
        fast = [p.forward(torch.float64, device), *p.gradient(torch.float64, device)]
        with monkeypatch.context() as patch:
            patch.setattr(ops, "placed", lambda window, edge_mode: (placed(window, edge_mode)[0], None))
            slow = [p.forward(torch.float64, device), *p.gradient(torch.float64, device)]
        for a, b in zip(fast, slow, strict=True):
            assert_close(a, b, 1e-13, str(p.case))


# --- gradients by other ways -------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("number", range(0, len(ALL), 2))
def test_adjoint_identity(number: int, device: torch.device, rng: np.random.Generator) -> None:
    p = problem(number, rng)
    source, parameters, biases = p.gradient(torch.float64, device)
    linear = p.forward(torch.float64, device, biases=False)
    scale = max(1.0, float(np.abs(p.x).sum()))
    assert abs(inner(linear, p.g) - inner(source, p.x)) <= 1e-11 * scale
    assert abs(inner(linear, p.g) - inner(parameters, p.weights)) <= 1e-11 * scale
    assert_close(biases, p.g.sum(axis=(0, 2, 3)), 1e-12, "biases")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_gradients_equal_finite_differences(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    case = Case(2, 2, 4, 3, Axis(3, 3, 2, 1, 0), Axis(2, 2, 1, 2, 1), edge, "channels_last")
    p = make(case, (2, 2, 1), rng)
    source, parameters, biases = p.gradient(torch.float64, device)

    def total(**replaced: np.ndarray) -> float:
        return inner(replace(p, **replaced).forward(torch.float64, device), p.g)

    assert_close(source, finite_difference.gradient(lambda v: total(x=v), p.x), 1e-8, "source")
    assert_close(parameters, finite_difference.gradient(lambda v: total(weights=v), p.weights), 1e-8, "weights")
    assert_close(biases, finite_difference.gradient(lambda v: total(biases=v), p.biases), 1e-8, "biases")


@in_one_test
@pytest.mark.parametrize("symmetric_padding", [0, 1, 2])
@pytest.mark.parametrize(("k", "s", "d"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 1, 1), (4, 2, 1), (3, 1, 2), (2, 3, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_symmetric_padding_equals_pytorch(
    k: int, s: int, d: int, symmetric_padding: int, groups: int, device: torch.device, rng: np.random.Generator
) -> None:
    dilated = (k - 1) * d + 1
    size = (9 + 2 * symmetric_padding - dilated) // s + 1
    axis = Axis(size, k, s, d, dilated // 2 - symmetric_padding)
    x = tensor(rng.normal(size=(2, 4, 9, 9)), device=device).requires_grad_()
    weights = tensor(rng.normal(size=(6, k, k, 4 // groups)), device=device)
    oihw = weights.permute(0, 3, 1, 2).contiguous().requires_grad_()
    biases = tensor(rng.normal(size=6), device=device).requires_grad_()
    expected = torch.nn.functional.conv2d(x, oihw, biases, s, symmetric_padding, d, groups)
    place = window(axis, axis, 9, 9)
    with torch.no_grad():
        result = ops.convolution(x, weights, biases, place, groups=groups, edge_mode=MPSImageEdgeMode.ZERO)
        assert_close(result, expected, 1e-12, "forward")
        g = torch.randn_like(result)
        found = ops.convolution_gradient(g, x, weights, place, groups=groups, edge_mode=MPSImageEdgeMode.ZERO)
    source, parameters, bias_gradient = torch.autograd.grad(expected, (x, oihw, biases), g)
    assert_close(found[0], source, 1e-12, "source")
    assert_close(found[1], parameters.permute(0, 2, 3, 1), 1e-12, "weights")
    assert_close(found[2], bias_gradient, 1e-12, "biases")


# --- what is promised beside the numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_only_what_is_asked_for(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    case = Case(2, 3, 5, 4, Axis(3, 3, 2), Axis(4, 3), edge, "channels_last")
    p = make(case, (3, 4, 1), rng)
    whole = p.gradient(torch.float64, device)
    source = p.gradient(torch.float64, device, with_parameters=False)
    parameters = p.gradient(torch.float64, device, with_source=False)
    assert source[1] is None
    assert source[2] is None
    assert parameters[0] is None
    assert_close(source[0], whole[0], 1e-13, "source alone")
    assert_close(parameters[1], whole[1], 1e-13, "weights alone")
    assert_close(parameters[2], whole[2], 1e-13, "biases alone")


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_channels_last_stays(edge: int, device: torch.device, rng: np.random.Generator) -> None:
    case = Case(2, 4, 7, 6, Axis(4, 3, 2), Axis(6, 3), edge, "channels_last")
    p = make(case, (4, 8, 1), rng)
    assert p.forward(torch.float32, device).is_contiguous(memory_format=torch.channels_last)
    source, parameters, _ = p.gradient(torch.float32, device)
    assert source.is_contiguous(memory_format=torch.channels_last)
    assert parameters.shape == p.weights.shape


def test_sources_stay_untouched(device: torch.device, rng: np.random.Generator) -> None:
    for number, case in enumerate(ALL[:20]):
        p = problem(number, rng)
        x, weights, g = (tensor(v, device=device) for v in (p.x, p.weights, p.g))
        kept = [t.clone() for t in (x, weights, g)]
        ops.convolution(x, weights, None, case.window(), groups=p.groups, edge_mode=case.edge_mode)
        ops.convolution_gradient(g, x, weights, case.window(), groups=p.groups, edge_mode=case.edge_mode)
        for now, before in zip((x, weights, g), kept, strict=True):
            assert torch.equal(now, before)


def test_images_do_not_mix(device: torch.device, rng: np.random.Generator) -> None:
    case = Case(3, 3, 5, 4, Axis(3, 3, 2), Axis(4, 3), CLAMP, "contiguous")
    p = make(case, (3, 4, 1), rng)
    whole = p.forward(torch.float64, device)
    for n in range(3):
        one = replace(p, case=replace(case, images=1), x=p.x[n : n + 1])
        assert_close(one.forward(torch.float64, device), array(whole)[n : n + 1], 1e-13, f"image {n}")


# --- fully connected -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize(
    ("images", "channels", "height", "width", "outputs"),
    [(3, 4, 2, 3, 5), (1, 1, 1, 1, 1), (0, 3, 2, 2, 4), (2, 5, 1, 1, 3), (1, 3, 7, 7, 10)],
)
def test_fully_connected_equals_loops(
    images: int,
    channels: int,
    height: int,
    width: int,
    outputs: int,
    layout: str,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    x = rng.normal(size=(images, channels, height, width))
    weights = rng.normal(size=(outputs, height, width, channels))
    biases = rng.normal(size=outputs)
    g = rng.normal(size=(images, outputs, 1, 1))
    xt, wt, gt = tensor(x, dtype, device, layout), tensor(weights, dtype, device), tensor(g, dtype, device, layout)
    rtol = 3 * TOLERANCE[dtype]
    assert_close(
        ops.fully_connected(xt, wt, tensor(biases, dtype, device)), oracle.fully_connected(x, weights, biases), rtol
    )
    assert_close(ops.fully_connected(xt, wt, None), oracle.fully_connected(x, weights, None), rtol, "no biases")
    found = ops.fully_connected_gradient(gt, xt, wt)
    expected = oracle.fully_connected_gradient(g, x, weights)
    for actual, wanted, what in zip(found, expected, NAMES, strict=True):
        assert_close(actual, wanted, rtol, what)


def test_large_fully_connected_in_single_precision(device: torch.device, rng: np.random.Generator) -> None:
    x, weights, biases = rng.normal(size=(8, 64, 7, 7)), rng.normal(size=(256, 7, 7, 64)), rng.normal(size=256)
    g = rng.normal(size=(8, 256, 1, 1))
    xt, wt, bt, gt = (
        tensor(v, torch.float32, device, "channels_last") for v in (x, weights, biases[:, None, None, None], g)
    )
    result = ops.fully_connected(xt, wt.contiguous(), bt.ravel())
    assert_close(result[:, :, 0, 0], np.einsum("nchw,ohwc->no", x, weights) + biases, 1e-5, "forward")
    found = ops.fully_connected_gradient(gt, xt, wt.contiguous())
    flat = g[:, :, 0, 0]
    assert_close(found[0], np.einsum("no,ohwc->nchw", flat, weights), 1e-5, "source")
    assert_close(found[1], np.einsum("no,nchw->ohwc", flat, x), 1e-5, "weights")
    assert_close(found[2], flat.sum(0), 1e-5, "biases")


def test_fully_connected_is_a_convolution(device: torch.device, rng: np.random.Generator) -> None:
    x, weights, biases = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(6, 4, 5, 3)), rng.normal(size=6)
    rows, columns = Axis(1, 4, offset=2), Axis(1, 5, offset=2)
    result = ops.fully_connected(*(tensor(v, device=device) for v in (x, weights, biases)))
    assert_close(result, oracle.forward(x, weights, biases, rows, columns), 1e-12, "fully connected")


def test_fully_connected_only_what_is_asked_for(device: torch.device, rng: np.random.Generator) -> None:
    x, weights, g = (tensor(rng.normal(size=s), device=device) for s in ((2, 3, 2, 2), (4, 2, 2, 3), (2, 4, 1, 1)))
    source = ops.fully_connected_gradient(g, x, weights, with_source=True, with_parameters=False)
    parameters = ops.fully_connected_gradient(g, x, weights, with_source=False, with_parameters=True)
    assert source[0] is not None
    assert source[1] is None
    assert source[2] is None
    assert parameters[0] is None
    assert parameters[1] is not None
    assert parameters[2] is not None


# --- sub-pixels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["op", "oracle"])
def test_printed_sub_pixels(implementation: str) -> None:
    plain = np.arange(8.0).reshape(1, 8, 1, 1)
    found = (
        array(ops.sub_pixels(tensor(plain), 2, 2, 2)) if implementation == "op" else oracle.sub_pixels(plain, 2, 2, 2)
    )
    assert found[0].transpose(1, 2, 0).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@in_one_test
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize(
    ("shape", "factor", "height", "width"),
    [((2, 12, 3, 2), 2, 6, 4), ((1, 9, 2, 2), 3, 5, 4), ((3, 5, 2, 3), 1, 2, 3), ((0, 4, 1, 1), 2, 2, 2)],
)
def test_sub_pixels_equal_loops(shape, factor, height, width, layout, device: torch.device, rng) -> None:
    plain = rng.normal(size=shape)
    found = ops.sub_pixels(tensor(plain, device=device, layout=layout), factor, height, width)
    np.testing.assert_array_equal(array(found), oracle.sub_pixels(plain, factor, height, width))


def test_sub_pixels_are_pixel_shuffle_with_blocks_outermost(rng: np.random.Generator) -> None:
    """PyTorch has the channel outermost: ``c f² + (y mod f) f + x mod f``."""
    plain = tensor(rng.normal(size=(2, 12, 3, 4)))
    blocks_inside = plain.unflatten(1, (4, 3)).transpose(1, 2).flatten(1, 2)
    expected = torch.nn.functional.pixel_shuffle(blocks_inside, 2)
    assert torch.equal(ops.sub_pixels(plain, 2, 6, 8), expected)


# --- float16 operands ------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("case", cases(20, seed=7), ids=str)
@pytest.mark.parametrize("few", [False, True], ids=["together", "image by image"])
def test_weights_gradient_by_written_out_windows(
    case: Case, few: bool, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU computes from float16 operands, beside the engine's gradient of the same numbers."""
    if few:
        monkeypatch.setattr(weights_gradient, "_COLUMN_BYTES", 1)
    window, edge = case.window(), case.edge_mode
    rows, columns = window.source
    x = tensor(rng.normal(size=(3, 4, rows, columns)), torch.float32, device, case.layout)
    gradient = tensor(rng.normal(size=(3, 5, *window.result)), torch.float32, device, case.layout)
    weights = torch.zeros((5, *window.size, 4), device=device)
    x, gradient = x.half().float(), gradient.half().float()
    expected = ops.convolution_gradient(gradient, x, weights, window, edge_mode=edge, with_source=False).weights
    assert expected is not None
    for dtype in (torch.float32, torch.float16):
        found = ops.weights_gradient(gradient.to(dtype), x.to(dtype), window, edge)
        assert (found.dtype, found.shape) == (torch.float32, expected.shape)
        assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_float16_operands(groups: int, device: torch.device, rng: np.random.Generator) -> None:
    """The numbers are those of float32 factors, rounded about once; sums for weights and biases are not rounded."""
    window = Window(x=geometry.Axis(6, 6, 3, offset=0), y=geometry.Axis(5, 5, 3, offset=0))
    x, gradient = (torch.from_numpy(rng.normal(size=(2, 4, 5, 6))).to(device).half() for _ in range(2))
    weights = torch.from_numpy(rng.normal(size=(4, 3, 3, 4 // groups))).to(device).half()
    biases = torch.from_numpy(rng.normal(size=4)).to(device).float()
    x, gradient = (each.contiguous(memory_format=torch.channels_last) for each in (x, gradient))
    found = ops.convolution(x, weights, biases, window, groups=groups)
    exact = ops.convolution(x.double(), weights.double(), biases.double(), window, groups=groups)
    assert_close(found, exact, 2.0**-10)
    made = ops.convolution_gradient(gradient, x, weights, window, groups=groups)
    wanted = ops.convolution_gradient(gradient.double(), x.double(), weights.double(), window, groups=groups)
    for mine, theirs, tolerance in zip(made, wanted, (2.0**-11, 1e-5, 1e-5), strict=True):
        assert mine is not None and theirs is not None
        assert_close(mine, theirs, tolerance)
    assert (made.weights.dtype, made.biases.dtype) == (torch.float32, torch.float32)  # type: ignore[union-attr]


def test_float16_operands_of_a_whole_image(device: torch.device, rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.normal(size=(3, 4, 2, 5))).to(device).half().contiguous(memory_format=torch.channels_last)
    gradient = torch.from_numpy(rng.normal(size=(3, 6, 1, 1))).to(device).half()
    weights = torch.from_numpy(rng.normal(size=(6, 2, 5, 4))).to(device).half()
    biases = torch.from_numpy(rng.normal(size=6)).to(device).float()
    assert_close(
        ops.fully_connected(x, weights, biases),
        ops.fully_connected(x.double(), weights.double(), biases.double()),
        2.0**-11 * 1.01,
    )
    made = ops.fully_connected_gradient(gradient, x, weights)
    wanted = ops.fully_connected_gradient(gradient.double(), x.double(), weights.double())
    for mine, theirs, tolerance in zip(made, wanted, (2.0**-11 * 1.01, 1e-5, 1e-5), strict=True):
        assert mine is not None and theirs is not None
        assert_close(mine, theirs, tolerance)
    assert (made.weights.dtype, made.biases.dtype) == (torch.float32, torch.float32)  # type: ignore[union-attr]
