"""Convolutions of float16 images by tiles in Triton against the slow one: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from inspect import signature
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution import half_forms
from openmps.ops.convolution.convolution import convolution, with_biases
from openmps.ops.convolution.fused_convolution import Activation, Fused, Prepared, fused_convolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
NONE = "NONE", 0.0, 0.0


class Case(NamedTuple):
    """A convolution, and how it is divided."""

    images: int
    inputs: int
    outputs: int
    window: Window
    tile: tuple[int, ...]
    """Pixels, channels and terms of a program, and programs that share a tile."""
    rectifier: str = "RELU"
    adds: bool = False
    addend: Window | None = None


def _window(side: int, size: int, stride: int = 1, dilation: int = 1, *, wide: int = 0) -> Window:
    axes = [Axis(source, -(-source // stride), size, stride, dilation) for source in (side, side + wide)]
    return Window(y=axes[0], x=axes[1])


CASES = {
    "single pixels": Case(2, 32, 40, _window(5, 1), (16, 16, 16)),
    "single pixels of an image to add to": Case(1, 16, 16, _window(5, 1), (16, 16, 16), "LEAKY", adds=True),
    "terms of a pixel shared": Case(2, 64, 24, _window(3, 1), (16, 16, 16, 4), "NONE", adds=True),
    "windows over edges": Case(2, 16, 24, _window(5, 3, wide=2), (16, 16, 16)),
    "windows whose terms are shared unevenly": Case(1, 32, 16, _window(3, 3), (16, 16, 16, 4)),
    "windows apart": Case(2, 16, 16, _window(7, 3, 2), (16, 16, 16, 2), "RELU_N", adds=True),
    "spread windows": Case(1, 16, 16, _window(6, 3, 1, 2, wide=14), (16, 16, 16)),
    "pixels apart": Case(1, 16, 16, _window(6, 1, 2), (16, 16, 16)),
    "products of two images": Case(2, 32, 24, _window(5, 1), (16, 16, 16), addend=_window(5, 1)),
    "pixels apart of another image": Case(2, 16, 24, _window(4, 1), (16, 16, 16), addend=_window(8, 1, 2)),
    "windows and pixels of another image": Case(1, 16, 16, _window(4, 3), (16, 16, 16), addend=_window(7, 1, 2)),
}


def _numbers(shape: tuple[int, ...], place: torch.device, scale: float = 1.0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return numbers.to(place, torch.float16)


def _image(images: int, channels: int, size: tuple[int, int], place: torch.device) -> Tensor:
    return _numbers((images, *size, channels), place).permute(0, 3, 1, 2)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tiles_equal_the_convolution(case: Case, place: torch.device) -> None:
    from openmps.ops.triton.convolution.half_convolution import Addend, Tile, half_convolution

    window, inputs, outputs = case.window, case.inputs, case.outputs
    x = _image(case.images, inputs, window.source, place)
    x[0, 1, 1, 1], x[-1, 0, 2, 2] = torch.inf, torch.nan
    weights = _numbers((outputs, *window.size, inputs), place, 0.2)
    biases = _numbers((outputs,), place).float()
    residual = _image(case.images, outputs, window.result, place) if case.adds else None
    expected = with_biases(convolution(x.double(), weights.double(), None, window), biases.double())
    expected = expected if residual is None else expected + residual
    addend = None
    if case.addend is not None:
        z = _image(case.images, 48, case.addend.source, place)
        addend = Addend(z, _numbers((outputs, 1, 1, 48), place, 0.2), case.addend)
        expected += convolution(addend.image.double(), addend.weights.double(), None, case.addend)
    slope, limit = 0.25 if "LEAKY" in case.rectifier else 0.0, 1.5
    if "LEAKY" in case.rectifier:
        expected = torch.where(expected < 0, expected * slope, expected)
    elif case.rectifier != "NONE":
        expected = expected.clamp(0.0, limit if case.rectifier == "RELU_N" else torch.inf)
    rectifier = case.rectifier, slope, limit
    found = half_convolution(x, weights, biases, residual, window, rectifier, Tile(*case.tile), addend)
    assert found.dtype == torch.float16
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=4e-3, equal_nan=True)


def test_programs_that_share_a_tile_leave_zeros(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their counts of each other are cleared by no launch: a replay finds what the one before has left."""
    from openmps.ops.triton.convolution import half_convolution as kernels

    window, counts = _window(3, 3), torch.zeros(2, dtype=torch.int64, device=place)
    monkeypatch.setattr(kernels, "zeros", lambda count, device: counts[:count])
    x, weights = _image(1, 32, (3, 3), place), _numbers((32, 3, 3, 32), place, 0.2)
    results = [
        kernels.half_convolution(x, weights, None, None, window, NONE, kernels.Tile(16, 16, 16, splits))
        for splits in (3, 3, 1)
    ]
    assert not counts.any()
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], rtol=2e-3, atol=2e-3)


def test_a_first_layer_is_given_four_channels(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit those that there are, and zeros; others are given as they are."""
    x, weights = _image(2, 3, (19, 21), place), _numbers((64, 7, 7, 3), place)
    x[0, 2, 1, 1], x[1, 0, 18, 20] = -torch.inf, torch.nan
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    image, factors = half_forms.for_first_layer(x, weights, (2, 2))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert factors.is_contiguous()
    assert torch.equal(image[:, :3].view(torch.int16), x.view(torch.int16))
    assert torch.equal(factors[..., :3], weights)
    assert not image[:, 3].any()
    assert not factors[..., 3].any()
    others = (x, weights, (1, 1)), (x, weights[:, 1:].contiguous(), (2, 2)), (x[:, :, ::2], weights, (2, 2))
    for given in others:
        assert half_forms.for_first_layer(*given)[0] is given[0]


class Layer(NamedTuple):
    """A convolution by its images, channels and sizes, and how it is divided: channels, terms and splits."""

    images: int
    inputs: int
    outputs: int
    side: int
    size: int
    expected: tuple[int, int, int] | None
    inputs_of_z: int = 0


LAYERS = (
    Layer(1, 64, 64, 56, 3, (64, 64, 1)),
    Layer(1, 512, 128, 28, 1, (32, 128, 1)),
    Layer(1, 256, 256, 14, 3, (16, 128, 2)),
    Layer(1, 1024, 256, 14, 1, (16, 128, 1)),
    Layer(1, 2048, 512, 7, 1, (16, 128, 4)),
    Layer(1, 1024, 512, 7, 3, (16, 128, 1), 512),
    Layer(2, 64, 64, 56, 1, None),
    Layer(8, 64, 256, 56, 1, (256, 64, 1), 64),
    Layer(8, 64, 128, 56, 1, None, 64),
    Layer(8, 64, 256, 56, 1, None, 128),
    Layer(1, 96, 64, 7, 1, None),
    Layer(1, 192, 64, 7, 1, None),
    Layer(1, 128, 64, 7, 1, None, 64),
)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_tiles_are_those_that_were_fastest(layer: Layer) -> None:
    from openmps.ops.triton.convolution.half_convolution import Addend

    def image(channels: int) -> Tensor:
        return torch.empty((layer.images, channels, layer.side, layer.side), device="meta")

    addend = None
    if layer.inputs_of_z:
        of_z = torch.empty((layer.outputs, 1, 1, layer.inputs_of_z), device="meta")
        addend = Addend(image(layer.inputs_of_z), of_z, _window(layer.side, 1))
    weights = torch.empty((layer.outputs, layer.size, layer.size, layer.inputs), device="meta")
    tile = half_forms.tile_for(image(layer.inputs), weights, _window(layer.side, layer.size), addend)
    assert (None if tile is None else (tile.channels, tile.terms, tile.splits)) == layer.expected


def test_what_it_has_no_form_for(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    x, weights = _image(1, 64, (4, 4), place), _numbers((16, 3, 3, 64), place, 0.1)
    inside, over = Window(Axis(4, 2, 3, offset=1), Axis(4, 2, 3, offset=1)), _window(4, 3)
    form = half_forms.half_convolution
    for window, edge_mode in ((inside, CLAMP), (over, ZERO)):
        found = form(x, weights, None, None, window, edge_mode, NONE)
        assert found is not None
        expected = convolution(x.double(), weights.double(), None, window)
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)
    assert form(x, weights, None, None, over, CLAMP, NONE) is None
    assert form(x.float(), weights.float(), None, None, over, ZERO, NONE) is None
    assert form(x, weights.flip(1).permute(0, 2, 1, 3), None, None, over, ZERO, NONE) is None
    assert form(x[:0], weights, None, None, over, ZERO, NONE) is None
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    assert form(x, weights, None, None, over, ZERO, NONE) is None


@pytest.mark.parametrize("has_biases", [False, True])
def test_a_projection_is_added_where_it_is_made(
    has_biases: bool, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it has biases of its own: then as the two convolutions one after the other."""
    x, z = _image(2, 64, (4, 4), place), _image(2, 64, (8, 8), place)
    biases = _numbers((32,), place).float()
    weights, of_z = _numbers((32, 3, 3, 64), place, 0.1), _numbers((32, 1, 1, 64), place, 0.1)
    prepared, other = Prepared(weights, biases, None), Prepared(of_z, biases if has_biases else None, None)
    how = Fused(_window(4, 3), ZERO, 1, False, Activation(MPSCNNNeuronType.RELU, 0.0, 0.0))
    projection = Fused(_window(8, 1, 2), ZERO, 1, False, None)
    expected = fused_convolution(x, prepared, fused_convolution(z, other, None, projection), how)
    made, form = list[Tensor | None](), half_forms.half_convolution

    def watched(*given: Any) -> Tensor | None:
        found = form(*given)
        # On CUDA each of two convolutions by themselves asks for this form, too, without an addend.
        made.extend([found] * (len(given) == len(signature(form).parameters)))
        return found

    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    monkeypatch.setattr(half_forms, "half_convolution", watched)
    found = ProjectedConvolution(how, projection).run((True,), x, prepared, z, other)
    assert [each is None for each in made] == ([] if has_biases else [False])
    torch.testing.assert_close(found.float(), expected.float(), rtol=4e-3, atol=4e-3)
