"""Convolutions of few channels in Triton against their slow twins: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from interpreter import triton_place
from openmps.ops.convolution import patch_convolution as ops
from openmps.ops.convolution.convolution import convolution
from openmps.ops.convolution.convolution_end import GeluConvolution
from openmps.ops.convolution.fused_convolution import (
    Activation,
    Fused,
    PrepareConvolution,
    Unrounded,
    fused_convolution,
    pooled_convolution,
)
from openmps.ops.convolution.patch_convolution import (
    GELU,
    Patches,
    Rectifier,
    patch_convolution,
    prepared_matrix,
    small_convolution,
)
from openmps.ops.geometry import Axis, Window
from openmps.ops.pointwise.neuron import Neuron, neuron
from openmps.ops.pooling.pooling import MaxPooling, max_pooling
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from pairs import dealt

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
RELU, RELU_N = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N
RECTIFIERS = {
    "NONE": None,
    "RELU": (RELU, 0.0, 0.0),
    "LEAKY": (RELU, 0.25, 0.0),
    "RELU_N": (RELU_N, 0.0, 1.5),
    "LEAKY_N": (RELU_N, 0.25, 1.0),
}
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}


class Case(NamedTuple):
    """A convolution with square windows and what stands behind it."""

    channels: int
    outputs: int
    size: int
    stride: int
    padding: int
    pool: tuple[int, int, int] | None
    """Rows, columns and stride."""
    rectifier: str


CASES = [
    Case(3, 16, 3, 1, 1, (2, 2, 2), "LEAKY"),
    Case(3, 64, 7, 2, 3, None, "RELU"),
    Case(3, 24, 3, 2, 0, None, "RELU_N"),
    Case(16, 70, 3, 1, 1, (2, 2, 2), "LEAKY"),
    Case(1, 32, 5, 1, 2, (2, 2, 1), "RELU"),
    Case(4, 5, 3, 1, 2, (1, 2, 2), "LEAKY_N"),
    Case(3, 5, 2, 3, 0, (2, 2, 2), "NONE"),
    Case(2, 9, 1, 1, 0, (4, 1, 1), "RELU"),
]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs, and images of any size are taken there."""
    monkeypatch.setattr(ops, "_LEAST_PIXELS", 1)
    every = dict.fromkeys(ops._MOST, ((1 << 12, 1 << 31),))
    monkeypatch.setattr(ops, "_MOST", every)
    monkeypatch.setattr(ops, "_MOST_OUTPUTS_TO_POOL", 1 << 12)
    return triton_place(monkeypatch)


def windows(case: Case, height: int, width: int) -> tuple[Window, Window | None]:
    """Of the convolution and of the pooling."""

    def axis(source: int) -> Axis:
        result = (source + 2 * case.padding - case.size) // case.stride + 1
        return Axis(source, result, case.size, case.stride, 1, case.size // 2 - case.padding)

    made = Window(x=axis(width), y=axis(height))
    if case.pool is None:
        return made, None
    sizes, stride = case.pool[:2], case.pool[2]
    rows, columns = (
        Axis(source, (source - size) // stride + 1, size, stride, 1, size // 2)
        for source, size in zip(made.result, sizes, strict=True)
    )
    return made, Window(x=columns, y=rows)


def drawn(case: Case, dtype: torch.dtype, place: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """An image, weights and biases."""
    generator = torch.Generator().manual_seed(case.channels + case.size)
    x = torch.randn((2, 9, 10, case.channels), generator=generator).permute(0, 3, 1, 2)
    weights = torch.randn((case.outputs, case.size, case.size, case.channels), generator=generator)
    biases = torch.randn(case.outputs, generator=generator)
    return x.to(place, dtype), weights.to(place, dtype), biases.to(place)


def slow(x: Tensor, weights: Tensor, biases: Tensor | None, case: Case) -> Tensor:
    """One step after the other, in float64, the pooling last."""
    window, pooling = windows(case, *x.shape[2:])
    y = convolution(x.double(), weights.double(), None if biases is None else biases.double(), window)
    how = RECTIFIERS[case.rectifier]
    y = y if how is None else neuron(y, *how, 0.0)
    return y if pooling is None else max_pooling(y, pooling, CLAMP)[0]


def rectifier_of(case: Case) -> Rectifier:
    """As kernels know it."""
    _, a, b = RECTIFIERS[case.rectifier] or (None, 0.0, 0.0)
    return Rectifier(case.rectifier, a, b)


def assert_is_slow(x: Tensor, weights: Tensor, biases: Tensor | None, case: Case) -> None:
    patches = Patches(*windows(case, *x.shape[2:]))
    matrix = prepared_matrix(weights, patches, ZERO, len(x))
    assert matrix is not None
    found = patch_convolution(x, matrix, len(weights), biases, patches, rectifier_of(case))
    assert found is not None
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = slow(x, weights, biases, case)
    error = TOLERANCES[x.dtype]
    terms = float(weights.double().abs().flatten(1).sum(1).max()) * 1e-3
    torch.testing.assert_close(found.double(), expected, rtol=error, atol=error * max(1.0, terms), equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_those_of_the_steps(case: Case, dtype: torch.dtype, place: torch.device) -> None:
    x, weights, biases = drawn(case, dtype, place)
    assert_is_slow(x, weights, biases, case)
    assert_is_slow(x, weights, None, case)


@pytest.mark.parametrize(("case", "dtype"), dealt([CASES], [[*TOLERANCES]]), ids=str)
def test_what_is_not_finite_stays_in_the_windows_that_read_it(
    case: Case, dtype: torch.dtype, place: torch.device
) -> None:
    x, weights, biases = drawn(case, dtype, place)
    x[0, 0, 3, 3], x[0, -1, 6, 5], x[1, 0, 8, 2] = torch.inf, -torch.inf, torch.nan
    assert_is_slow(x, weights, biases, case)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_tiles_are_as_many_as_there_are_numbers(dtype: torch.dtype, place: torch.device) -> None:
    """More patches, terms and outputs than a program has, of all tiles that are chosen."""
    from openmps.ops.triton.convolution import convolution_patches as kernels

    for case in (CASES[0], CASES[3], CASES[1]):
        x, weights, biases = drawn(case, dtype, place)
        patches = Patches(*windows(case, 9, 10))
        at_once = patches.at_once(case.outputs)
        given = case.outputs, at_once, biases, *patches, rectifier_of(case)
        found, other = (
            kernels.patches(x, patches.matrix(weights), *given, kernels.Tile(*tile)) for tile in ((16, 16), (64, 64))
        )
        torch.testing.assert_close(found, other, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_weights_that_are_not_prepared(dtype: torch.dtype, place: torch.device) -> None:
    case = CASES[1]._replace(rectifier="NONE")
    x, weights, biases = drawn(case, dtype, place)
    found = small_convolution(x, weights, biases, windows(case, 9, 10)[0], ZERO)
    assert found is not None
    error = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), slow(x, weights, biases, case), rtol=error, atol=error)
    assert small_convolution(x.double(), weights.double(), biases, windows(case, 9, 10)[0], ZERO) is None


@pytest.mark.parametrize(("dtype", "outputs"), [(torch.float16, 24), (torch.float32, 20)], ids=str)
def test_gelu_behind(dtype: torch.dtype, outputs: int, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one kernel, of outputs that are stored eight at once and others, rounded before as the operations do."""
    case = Case(3, outputs, 2, 1, 0, None, "NONE")
    x, weights, biases = drawn(case, dtype, place)
    window, gelu, error = windows(case, 9, 10)[0], Neuron(MPSCNNNeuronType.GELU, 0.0, 0.0, 0.0), TOLERANCES[dtype]
    op = GeluConvolution(window, ZERO, 1, False, gelu, dtype == torch.float16)
    for some in (biases, None):
        expected = torch.nn.functional.gelu(slow(x, weights, some, case).to(dtype).double())
        found = small_convolution(x, weights, some, window, ZERO, GELU)
        assert found is not None
        assert found.dtype is dtype
        for y in (found, op.run((True,), x, weights, some)):
            torch.testing.assert_close(y.double(), expected, rtol=error, atol=error)
    monkeypatch.setattr(ops.triton, "runs_on", lambda device: False)
    torch.testing.assert_close(op.run((True,), x, weights, None).double(), expected, rtol=error, atol=error)


@pytest.mark.parametrize("knows_pooling", [True, False])
def test_a_pooled_convolution_takes_it(
    knows_pooling: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its matrix is for the pooling, or for the convolution alone, which is pooled behind it."""
    case = CASES[0]
    x, weights, biases = drawn(case, torch.float16, place)
    window, pooling = windows(case, 9, 10)
    prepare = PrepareConvolution(window, ZERO, 1, 2, None, pooling=pooling if knows_pooling else None)
    prepared = prepare.run((True,), Unrounded(weights.float(), torch.float16), biases)
    assert prepared.matrix is not None
    _, slope, limit = rectifier_of(case)
    how = Fused(window, ZERO, 1, False, Activation(RELU, slope, limit))
    assert pooling is not None
    found = pooled_convolution(x, prepared, how, MaxPooling(pooling, CLAMP))
    torch.testing.assert_close(found.double(), slow(x, weights, biases, case), rtol=2e-3, atol=2e-3)
    plain = prepared._replace(matrix=None)
    alone = fused_convolution(x, plain, None, how).float()
    torch.testing.assert_close(found.float(), max_pooling(alone, pooling, CLAMP)[0], rtol=4e-3, atol=4e-3)


def test_what_it_has_no_kernel_for(place: torch.device) -> None:
    case = CASES[0]
    x, weights, _ = drawn(case, torch.float32, place)
    window, pooling = windows(case, 9, 10)

    def prepared(patches: Patches, edge_mode: MPSImageEdgeMode = ZERO, factors: Tensor = weights) -> Tensor | None:
        return prepared_matrix(factors, patches, edge_mode, 2)

    assert prepared(Patches(window, pooling)) is not None
    assert prepared(Patches(window, pooling), CLAMP) is None
    assert prepared(Patches(window, pooling), factors=weights.double()) is None
    dilated = Window(Axis(10, 6, 3, 1, 2, 2), Axis(9, 5, 3, 1, 2, 2))
    assert prepared(Patches(dilated, None)) is None
    for size, stride, dilation, offset in ((3, 3, 1, 1), (2, 2, 1, 0), (2, 2, 2, 1)):
        other = Window(Axis(10, 3, size, stride, dilation, offset), Axis(9, 3, size, stride, dilation, offset))
        assert prepared(Patches(window, other)) is None
    matrix = prepared(Patches(window, pooling))
    assert matrix is not None
    assert patch_convolution(x, matrix, 16, None, Patches(window, None)) is None
    assert patch_convolution(x.half(), matrix, 16, None, Patches(window, pooling)) is None
    assert patch_convolution(x.contiguous(), matrix, 16, None, Patches(window, pooling)) is None


def test_only_what_was_measured_is_taken() -> None:
    """A first layer that is pooled, and one with many pixels that is not."""
    axis, pool = Axis(416, 416, 3), Axis(416, 208, 2, 2, 1, 1)
    first, weights = Window(axis, axis), torch.zeros(16, 3, 3, 3, dtype=torch.float16)
    assert Patches(first, Window(pool, pool)).wins(32, weights)
    assert not Patches(first, Window(pool, pool)).wins(32, weights.float())
    assert Patches(first, None).wins(32, weights)
    assert not Patches(first, None).wins(32, weights.float())
    assert not Patches(first, Window(pool, pool)).wins(32, torch.zeros(128, 3, 3, 3, dtype=torch.float16))
    few = Axis(28, 28, 5)
    assert Patches(Window(few, few), None).wins(40, torch.zeros(32, 5, 5, 1))
    assert not Patches(Window(few, few), None).wins(4, torch.zeros(32, 5, 5, 1))
