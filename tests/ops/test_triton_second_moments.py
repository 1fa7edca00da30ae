"""Ends of blocks by second moments in Triton against the slow forms: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.convolution.stepped_pixels import PickedPixels, SpreadPixels
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization.second_moments import FoldByMoments, MomentsEnd, MomentsGradient, MomentsPassed
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.pooling.pooling import AveragePoolingGradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from pairs import pairs

EPSILON = 1e-3
HALF, FLOAT = torch.float16, torch.float32
BOUNDS = {FLOAT: 3e-6, HALF: 1.5e-3}
RELU = Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0)
NEURONS = [RELU, Neuron(MPSCNNNeuronType.RELU, 0.25, 0.0, 0.0), Neuron(MPSCNNNeuronType.RELU_N, 0.0, 0.75, 0.0)]
SHAPES = [(1, 1, 1, 1, 1), (2, 3, 10, 4, 1), (2, 40, 70, 3, 5), (1, 72, 152, 9, 20)]
"""Images, channels of the source and of the result, height, width."""
ENDS = [*product(SHAPES[:3], NEURONS), (SHAPES[3], RELU)]


@pytest.fixture
def place() -> torch.device:
    """Where Triton runs."""
    return triton_place()


class Case:
    """Numbers of one block's end; images may be slices of more channels."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, place: torch.device, layout: str = "whole") -> None:
        images, self.inputs, self.outputs, height, width = shape
        generator = torch.Generator().manual_seed(sum(shape))

        def drawn(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        def image(channels: int) -> Tensor:
            more = 3 if layout == "slice" else 0
            return drawn(images, height, width, channels + more).to(place, dtype).permute(0, 3, 1, 2)[:, :channels]

        self.x = image(self.inputs) + 0.5 if layout == "whole" else image(self.inputs)
        self.other, self.gradient, self.second = (image(self.outputs) for _ in range(3))
        self.weights = (drawn(self.outputs, 1, 1, self.inputs) / self.inputs**0.5).to(place, dtype)
        self.biases, self.gamma, self.beta = (drawn(self.outputs).to(place) for _ in range(3))
        self.is_half = dtype == HALF

    def fold(self, *, has_biases: bool) -> tuple[Any, ...]:
        """What `FoldByMoments` gives."""
        biases = self.biases if has_biases else None
        return FoldByMoments(EPSILON).run((True,) * 7, self.x, self.weights, biases, self.gamma, self.beta)

    def back(self, flow: Tensor, sums: Tensor, folded: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `MomentsGradient` gives."""
        _, _, variance, _, _, means, cross = folded
        given = flow, sums, self.x, self.weights, self.gamma, variance, means, cross
        return MomentsGradient(EPSILON).run((True,) * 5, *given)


def both(monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[Any, Any]:
    """What a call gives with Triton, and without."""
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(call())
    return found[0], found[1]


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """As close as sums in another order, rounded to the type."""
    assert found.shape == expected.shape
    bound = BOUNDS[dtype] * float(expected.double().abs().max() + 1.0)
    assert float((found.double() - expected.double()).abs().max()) <= bound


@pytest.mark.parametrize(("shape", "dtype", "layout"), pairs(SHAPES, [FLOAT, HALF], ["whole", "slice"]), ids=str)
def test_folded_weights(shape, dtype, layout: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(shape, dtype, place, layout)
    for has_biases in (False, True):
        found, expected = both(monkeypatch, lambda has_biases=has_biases: case.fold(has_biases=has_biases))
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one.dtype == other.dtype
            assert_near(one, other, dtype if index in (3, 4) else FLOAT)


def test_weights_beyond_float16(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source without deviations: what is finite stays so, and the mean of what it gives is beta."""
    case = Case((2, 3, 10, 4, 1), HALF, place)
    case.x, case.weights = torch.ones_like(case.x), case.weights * 2000
    for folded in both(monkeypatch, lambda: case.fold(has_biases=False)):
        assert float(folded[3].abs().max()) == 65504.0
        mean = folded[3].flatten(1).double().sum(1) + folded[4].double()
        assert float((mean - case.beta.double()).abs().max()) < 0.02


@pytest.mark.parametrize(
    ("end", "dtype", "kind"), pairs(ENDS, [FLOAT, HALF], ["image", "slice", "projection", "few terms"]), ids=str
)
def test_ends_and_what_passes(
    end: tuple[tuple[int, ...], Neuron], dtype, kind: str, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, neuron = end
    from openmps.ops.triton.normalization import second_moments as kernels

    monkeypatch.setattr(kernels, "library_end", _by_hand)
    monkeypatch.setattr(kernels, "has_library", lambda x: True)
    monkeypatch.setattr(kernels, "FEW", 0 if kind == "image" else kernels.FEW)
    case = Case(shape, dtype, place, "slice" if kind == "slice" else "whole")
    folded = case.fold(has_biases=False)
    given = [case.x, *folded[3:5], case.other]
    if kind == "projection":
        given[3:] = [case.x.flip(0), *folded[3:5]]
    op = MomentsEnd(neuron, case.is_half)
    (y, kept), (slow, z) = both(monkeypatch, lambda: op.run((True, True), *given))
    assert y.dtype == slow.dtype
    assert_near(y, slow, dtype)
    back = MomentsPassed(neuron, case.is_half, case.is_half)
    more = () if shape[0] == 1 else (case.second,)
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    flow, sums = back.run((True, True), kept, case.gradient, *more)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    known, slow_sums = back.run((True, True), z, case.gradient, *more)
    near = z.abs() < 4 * BOUNDS[dtype]
    near |= (z - neuron.b).abs() < 4 * BOUNDS[dtype]
    assert torch.equal(flow.masked_fill(near, 0), known.masked_fill(near, 0))
    if torch.equal(flow, known):
        assert_near(sums.sum(0), slow_sums.sum(0), FLOAT)


def _by_hand(x: Tensor, weights: Tensor, shift: Tensor, other: Tensor) -> Tensor:
    """What cuDNN computes."""
    product = torch.einsum("nchw,qc->nqhw", x.float(), weights.flatten(1).float())
    made = (product + shift.view(-1, 1, 1) + other.float()).clamp_min(0).to(HALF)
    return made.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("shape", "dtype", "layout"), pairs(SHAPES, [FLOAT, HALF], ["whole", "slice"]), ids=str)
def test_gradients(shape, dtype, layout: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(shape, dtype, place, layout)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    folded, flow = case.fold(has_biases=False), case.gradient
    parts = torch.stack([flow.float().sum((0, 2, 3)) * share for share in (0.25, 0.75)])
    found, expected = both(monkeypatch, lambda: case.back(flow, parts, folded))
    scale = max(1.0, *(float(each.abs().max()) for each in expected))
    for place_of, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_near(one / scale, other / scale, dtype if place_of == 0 else FLOAT)


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1e6])
def test_gradients_of_any_size(size: float, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the source is multiplied with stays in float16's range."""
    case = Case((2, 40, 70, 3, 5), HALF, place)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    folded = case.fold(has_biases=False)
    from openmps.ops.triton.normalization import second_moments as kernels

    slopes = torch.randn(70, 40, generator=torch.Generator().manual_seed(1)).to(place) * size
    slopes = case.weights.flatten(1).float() * slopes[:, :1]
    levels = torch.randn(70, generator=torch.Generator().manual_seed(2)).to(place) * size
    means = folded[5]
    back, scales, constants = kernels.back_products(case.weights, slopes, levels, means)
    exact = case.weights.flatten(1).double().t() @ slopes.double()
    assert_near((back.double() * scales.double()[:, None] / size).float(), (exact / size).float(), HALF)
    expected = case.weights.flatten(1).double().t() @ levels.double() - exact @ means.double()
    assert_near((constants.double() / size).float(), (expected / size).float(), HALF)


@pytest.mark.parametrize("rounds", [True, False])
def test_the_gradient_of_a_mean(rounds: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((3, 2, 12, 4, 5), HALF, place)
    window = Window(x=Axis(5, 1, 5, 1, 1, 2), y=Axis(4, 1, 4, 1, 1, 2))
    assert not window.leaves_source
    spread = AveragePoolingGradient(window, MPSImageEdgeMode.ZERO, (0, 0))
    masks = torch.randint(0, 256, (60, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)).to(place)
    gradient = case.gradient[:, :, :1, :1]
    op = MomentsPassed(RELU, rounds, rounds, spread)
    (flow, sums), (expected, slow) = both(monkeypatch, lambda: op.run((True, True), masks, gradient))
    assert_near(flow, expected, HALF)
    assert_near(sums.sum(0), slow.sum(0), HALF)


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize(
    "window",
    [
        Window(x=Axis(7, 4, 1, 2), y=Axis(6, 3, 1, 2)),
        Window(x=Axis(8, 4, 1, 2, 1, 1), y=Axis(5, 5, 1, 1)),
        Window(x=Axis(7, 2, 1, 3), y=Axis(1, 1, 1, 2)),
    ],
    ids=str,
)
def test_pixels_that_strides_pick(window: Window, dtype, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, *window.source, 300, generator=torch.Generator().manual_seed(1)).to(place, dtype)
    image = x.permute(0, 3, 1, 2)[:, 3:]
    assert not window.leaves_source
    found, expected = both(monkeypatch, lambda: PickedPixels(window).run((True,), image))
    assert torch.equal(found, expected)
    columns, rows = ([axis.taps(index)[0] for index in range(axis.result)] for axis in (window.x, window.y))
    assert torch.equal(expected, image[:, :, rows][:, :, :, columns])
    back, slow = both(monkeypatch, lambda: SpreadPixels(window).run((True,), expected))
    assert torch.equal(back, slow)
    assert torch.equal(slow[:, :, rows][:, :, :, columns], expected)
    assert int((slow != 0).sum()) == int((expected != 0).sum())
