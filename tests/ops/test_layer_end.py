"""What stands behind products in one operation, against the operations one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from in_one_test import in_one_test
from openmps.ops.geometry import Axis, Window
from openmps.ops.pointwise.dropout import DropoutMask, dropout
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient, can_pool
from openmps.ops.pointwise.neuron import neuron, neuron_gradient
from openmps.ops.pooling.pooling import first_pixels, max_pooling, max_pooling_gradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

HALF, CLAMP, RELU, NONE = torch.float16, MPSImageEdgeMode.CLAMP, MPSCNNNeuronType.RELU, MPSCNNNeuronType.NONE
WINDOWS: dict[str, tuple[Window | None, tuple[int, int]]] = {
    "no pooling": (None, (3, 4)),
    "halves": (Window(x=Axis(6, 3, 2, 2, 1, 1), y=Axis(4, 2, 2, 2, 1, 1)), (4, 6)),
    "a rest": (Window(x=Axis(7, 3, 2, 2, 1, 1), y=Axis(5, 2, 2, 2, 1, 1)), (5, 7)),
    "gaps and a border": (Window(x=Axis(9, 3, 2, 3, 1, 1), y=Axis(8, 2, 3, 4, 1, 2)), (8, 9)),
}
FORMS = [
    (*form, 0.75 if form[1] == form[3] else 0.0)
    for form in itertools.product((torch.float32, HALF), (False, True), (False, True), (False, True))
]
"""Type of the products, whether there are biases, whether their sum is stored as float16, whether there is a ReLU, how
much dropout keeps."""


def stepwise(
    x: Tensor,
    biases: Tensor | None,
    window: Window | None,
    rounds: bool,
    kind: MPSCNNNeuronType,
    mask: DropoutMask | None,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """The result and the gradient of the products, operation by operation, on the CPU."""
    z = x if biases is None else (x.float() + biases.view(-1, 1, 1)).to(x.dtype)
    z = z.to(HALF) if rounds else z
    y = neuron(z, kind, 0.0, 0.0, 0.0)
    pooled, choice = (y, None) if window is None else max_pooling(y, window, CLAMP)
    kept = None if mask is None else mask.run((True,), pooled, 5)
    if kept is not None and mask is not None:
        pooled = dropout(pooled, kept, mask.keep_probability)
        gradient = dropout(gradient, kept, mask.keep_probability)
    if window is not None:
        gradient = max_pooling_gradient(gradient.float(), y.float(), choice, window, CLAMP).to(gradient.dtype)
    return pooled, neuron_gradient(gradient, z.to(gradient.dtype), kind, 0.0, 0.0, 0.0)


def products(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers some of which are equal, 0, infinite or no number, with a gap between pixels."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(-3, 4, shape, generator=generator).to(dtype) / 2
    x.view(-1)[::17], x.view(-1)[5::41], x.view(-1)[11::43] = -1e-7, torch.inf, torch.nan
    return x


@in_one_test
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", WINDOWS)
def test_the_same_numbers(name: str, form, each_place: torch.device) -> None:
    (window, extent), (dtype, has_biases, rounds, rectifies, share) = WINDOWS[name], form
    images, channels = (1, 70) if rounds else (2, 3)
    assert window is None or can_pool(window)
    x = products((images, *extent, channels + 2), dtype).permute(0, 3, 1, 2)[:, :channels]
    biases = torch.linspace(-0.5, 0.5, channels) if has_biases else None
    mask = DropoutMask(share, 2**33 + 3, (1, 1, 1), images - 1) if share else None
    result = extent if window is None else window.result
    gradient = products((images, *result, channels + 1), HALF if rounds else dtype).permute(0, 3, 1, 2)[:, :channels]
    expected = stepwise(x, biases, window, rounds, RELU if rectifies else NONE, mask, gradient)
    step: list[Any] = [] if mask is None else [torch.tensor(5, device=each_place) if images == 2 else 5]
    mine = (x.to(each_place), None if biases is None else biases.to(each_place), *step)
    y, tap = LayerEnd(window, rounds, rectifies, mask).run((True, True), *mine)
    assert y.dtype is (HALF if rounds else dtype)
    assert torch.equal(y.cpu().nan_to_num(-7.0), expected[0].nan_to_num(-7.0))
    found, sums = LayerEndGradient(window, share or 1.0).run((True, True), gradient.to(each_place), tap)
    assert found.dtype is gradient.dtype
    assert torch.equal(found.cpu().nan_to_num(-7.0), expected[1].nan_to_num(-7.0))
    assert sums is not None
    total = expected[1].double().sum((0, 2, 3)).float()
    torch.testing.assert_close(sums.cpu(), total, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert LayerEndGradient(window, share or 1.0).run((True, False), gradient.to(each_place), tap)[1] is None


def test_where_a_maximum_of_zero_sends_its_gradient(each_place: torch.device) -> None:
    """To the first pixel, which the ReLU makes equal to it: through where that is 0 itself, nowhere if it is below."""
    window = Window(x=Axis(2, 1, 2, 2, 1, 1), y=Axis(1, 1))
    x = torch.tensor([[0.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [-2.0, -1.0], [-1.0, 2.0]]).view(5, 1, 1, 2).to(each_place)
    assert torch.equal(first_pixels(x, window, CLAMP).flatten().cpu(), x[:, 0, 0, 0].cpu())
    _, tap = LayerEnd(window, False).run((True, True), x, None)
    assert tap.flatten().tolist() == [0, 0, -1, -1, 1]


@pytest.mark.parametrize(
    "window",
    [
        Window(x=Axis(6, 5, 2, 1, 1, 1), y=Axis(4, 2, 2, 2, 1, 1)),
        Window(x=Axis(6, 3, 2, 2, 1, 0), y=Axis(4, 2, 2, 2, 1, 1)),
        Window(x=Axis(9, 3, 2, 3, 2, 1), y=Axis(4, 2, 2, 2, 1, 1)),
        Window(x=Axis(90, 1, 65, 90, 1, 32), y=Axis(4, 4)),
    ],
    ids=["shared pixels", "outside", "dilated", "many taps"],
)
def test_other_windows_are_not_pooled(window: Window) -> None:
    assert not can_pool(window)
