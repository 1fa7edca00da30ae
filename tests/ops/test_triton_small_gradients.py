"""The gradients of convolutions of few small images in Triton: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from interpreter import triton_place
from openmps.ops.convolution import convolution as ops
from openmps.ops.convolution.triton_forms import small_gradients
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSImageEdgeMode

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
HALF, FLOAT = torch.float16, torch.float32
EVERY = True, True, True
AXES = [
    # source, result, size, stride, dilation, offset
    (Axis(6, 6, 3), Axis(5, 5, 3)),
    (Axis(9, 6, 2, 1, 3, -1), Axis(4, 9, 5, 1, 1, -3)),
    (Axis(7, 7, 5), Axis(8, 4, 5, 1, 1, 2)),
]
ROUNDING = {HALF: 6e-4, FLOAT: 5e-7}
"""Of a result, as a share of the largest."""


class Operands(NamedTuple):
    """Of a gradient pass."""

    gradient: Tensor
    x: Tensor
    weights: Tensor
    window: Window


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton runs, and is taken by the operations."""
    return triton_place(monkeypatch)


def drawn(
    axes: tuple[Axis, Axis], channels: tuple[int, int], types: tuple[torch.dtype, torch.dtype], place: torch.device,
    more: int = 0,
) -> Operands:  # fmt: skip
    """Images in slices of more channels."""
    window, generator = Window(x=axes[1], y=axes[0]), torch.Generator().manual_seed(sum(channels))

    def image(count: int, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
        numbers = torch.randn((2, *size, count + more), generator=generator).to(place, dtype)
        return numbers.permute(0, 3, 1, 2)[:, :count]

    gradient, x = image(channels[0], window.result, types[0]), image(channels[1], window.source, types[1])
    weights = torch.randn((channels[0], *window.size, channels[1]), generator=generator).to(place, types[1])
    return Operands(gradient, x, weights, window)


def call(given: Operands, edge_mode: MPSImageEdgeMode = ZERO, wanted: tuple[bool, bool, bool] = EVERY):
    return small_gradients(*given, edge_mode, wanted)


@pytest.mark.parametrize("types", [(HALF, HALF), (FLOAT, FLOAT), (FLOAT, HALF)], ids=str)
@pytest.mark.parametrize("channels", [(20, 17), (64, 32)], ids=str)
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_gradients_are_those_of_float64(axes, channels, types, place: torch.device) -> None:
    given = drawn(axes, channels, types, place, more=sum(channels) % 2 * 3)
    found = call(given)
    assert found is not None
    wide = (each.double() for each in given[:3])
    expected = ops.convolution_gradient(*wide, given.window)
    for one, other, dtype in zip(found, expected, (types[0], FLOAT, FLOAT), strict=True):
        assert one is not None
        assert other is not None
        assert (one.dtype, one.shape) == (dtype, other.shape)
        worst = float((one.double() - other).abs().max())
        assert worst <= ROUNDING[dtype] * float(other.abs().max())


@pytest.mark.parametrize("kind", [HALF, FLOAT], ids=str)
def test_gradients_of_many_digits_keep_them(kind: torch.dtype, place: torch.device) -> None:
    """A float32 gradient whose numbers are far from float16 and TF32 ones, and from one another."""
    given = drawn(AXES[0], (20, 17), (FLOAT, kind), place)
    scale = torch.logspace(-12, 12, 20, device=place).view(1, -1, 1, 1)
    given = given._replace(gradient=(given.gradient * scale).contiguous(memory_format=torch.channels_last))
    found = call(given)
    assert found is not None
    assert found[1] is not None
    expected = ops.convolution_gradient(*(each.double() for each in given[:3]), given.window)
    assert expected.weights is not None
    worst = (found[1].double() - expected.weights).abs().flatten(1).amax(1)
    assert bool((worst <= 5e-7 * expected.weights.abs().flatten(1).amax(1)).all())


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("kind", [HALF, FLOAT], ids=str)
def test_what_is_not_finite_stays_in_its_channel(kind: torch.dtype, place: torch.device) -> None:
    given = drawn(AXES[0], (20, 17), (FLOAT, kind), place)
    given.gradient[0, 3, 2, 2], given.gradient[1, 5, 1, 1] = torch.inf, torch.nan
    found = call(given)
    assert found is not None
    assert found[1] is not None
    is_off = ~found[1].isfinite()
    assert is_off[3].all()
    assert is_off[5].all()
    assert not is_off.flatten(1).any(1)[[each for each in range(20) if each not in (3, 5)]].any()


def test_parts_of_a_number_are_that_number(place: torch.device) -> None:
    """Of the largest and of small ones, and with gaps between pixels; what is not finite has one part."""
    kernels: Any = import_module("openmps.ops.triton.convolution.split_operands")
    least, most = torch.finfo(FLOAT).smallest_normal, torch.finfo(FLOAT).max
    numbers = torch.randn((6, 8), generator=torch.Generator().manual_seed(1)) * torch.logspace(-30, 30, 6).view(-1, 1)
    numbers[0, :7] = torch.tensor([0.0, most, -most, torch.inf, -torch.inf, torch.nan, least * 2.0**24 * 1.1])
    numbers = numbers.to(place)
    (whole,), (part,) = (kernels.split(kernels.Operand(each, each.shape[1], 8)) for each in (numbers, numbers[:, :5]))
    high, *rest = whole.double()
    torch.testing.assert_close(high + sum(rest), numbers.double().flatten(), rtol=0.0, atol=0.0, equal_nan=True)
    assert not any(bool(each[3:6].any()) for each in rest)
    torch.testing.assert_close(
        part.double().sum(0), numbers[:, :5].double().flatten(), rtol=0.0, atol=0.0, equal_nan=True
    )


def test_the_gradient_of_a_convolution_takes_it(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(AXES[2], (64, 32), (FLOAT, HALF), place)
    asked: list[tuple[bool, ...]] = []

    def noted(*operands):
        asked.append(operands[-1])
        return small_gradients(*operands)

    monkeypatch.setattr(ops, "small_gradients", noted)
    found = ops.convolution_gradient(*given, with_biases=False)
    assert asked == [(True, True, False)]
    assert found.biases is None
    assert found.source is not None
    assert found.source.dtype is FLOAT
    assert ops.convolution_gradient(*given, with_parameters=False).weights is None
    assert asked[1:] == [(True, False, False)]


def test_what_it_has_no_kernel_for(place: torch.device) -> None:
    given = drawn(AXES[0], (20, 17), (FLOAT, HALF), place)
    assert call(given) is not None
    assert call(given, CLAMP) is None
    assert (
        call(given._replace(gradient=given.gradient.half(), x=given.x.float(), weights=given.weights.float())) is None
    )
    assert call(given._replace(weights=given.weights.float())) is None
    assert call(given._replace(gradient=given.gradient.contiguous())) is None
    assert call(drawn(AXES[0], (20, 8), (HALF, HALF), place)) is None
    strided = Axis(9, 5, 3, 2), Axis(8, 4, 3, 2)
    assert call(drawn(strided, (20, 17), (HALF, HALF), place)) is None
    one = Axis(6, 6), Axis(5, 5)
    assert call(drawn(one, (20, 17), (HALF, HALF), place)) is None
    many = Axis(70, 70, 3), Axis(70, 70, 3)
    assert call(drawn(many, (20, 17), (HALF, HALF), place)) is None
