"""Convolutions in tiles, against float64 loops, and what decides that they are computed so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import array, assert_close, tensor
from openmps.ops.convolution import winograd
from openmps.ops.convolution.fused_convolution import Activation
from openmps.ops.convolution.packed_weights import packed_weights
from openmps.ops.convolution.winograd import Tiles, side_of_tiles
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from oracles import convolution as oracle
from oracles.geometry import Axis
from placements import window

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
RELU = Activation(MPSCNNNeuronType.RELU, 0.0, 0.0)
CPU = torch.device("cpu")
PLACES = [
    (9, 6, Axis(9, 3), Axis(6, 3)),  # around the source, in tiles that leave the result
    (8, 7, Axis(6, 3, offset=1), Axis(5, 3, offset=1)),  # inside
    (5, 11, Axis(7, 3, offset=-1), Axis(4, 3, offset=3)),  # far outside, and a part of the source
    (1, 1, Axis(1, 3), Axis(1, 3)),
]


@pytest.mark.parametrize("strips", [(2**19, 96), (1, 1), (1, 5)])
@pytest.mark.parametrize("side", [2, 4])
def test_tiles_are_the_convolution(
    side: int, strips: tuple[int, int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_CACHED", strips[0])
    monkeypatch.setattr(winograd, "_FEW_TILES", strips[1])
    for height, width, rows, columns in PLACES:
        for images, has_biases in ((1, True), (3, False)):
            x, weights = rng.normal(size=(images, 5, height, width)), rng.normal(size=(4, 3, 3, 5))
            biases = rng.normal(size=4) if has_biases else None
            given = None if biases is None else tensor(biases, torch.float32, CPU)
            place = window(rows, columns, height, width)
            tiles = Tiles(tensor(weights, torch.float32, CPU), given, place, side)
            assert tiles.are_moderate
            found = tiles.convolve(tensor(x, torch.float32, CPU), RELU)
            assert found is not None
            expected = oracle.forward(x, weights, biases, rows, columns, 1, ZERO)
            assert_close(array(found), np.maximum(expected, 0), 5e-6)


@pytest.fixture
def layer(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source, weights and biases of 128 to 128 channels, which tiles make faster."""
    numbers = rng.normal(size=(1, 128, 28, 28)), rng.normal(size=(128, 3, 3, 128)) / 30, rng.normal(size=128)
    x, weights, biases = (torch.tensor(each, dtype=torch.float32) for each in numbers)
    return x.contiguous(memory_format=torch.channels_last), weights, biases


def test_errors_are_not_much_larger_than_those_of_the_library(layer: tuple[torch.Tensor, ...]) -> None:
    x, weights, biases = layer
    place = window(Axis(28, 3), Axis(28, 3), 28, 28)
    kernel = weights.permute(0, 3, 1, 2)
    exact = torch.conv2d(x.double(), kernel.double(), biases.double(), padding=1)
    own = (torch.conv2d(x, kernel, biases, padding=1) - exact).abs()
    for side in (2, 4):
        found = Tiles(weights, biases, place, side).convolve(x, None)
        assert found is not None
        error = (found - exact).abs()
        assert error.mean() < 3 * own.mean()
        assert error.max() < 4 * own.max()


def test_numbers_that_are_not_finite_stay_where_they_are(layer: tuple[torch.Tensor, ...]) -> None:
    """Tiles would spread them; so they would what is left of numbers beside very large ones."""
    x, weights, biases = layer
    place = window(Axis(28, 3), Axis(28, 3), 28, 28)
    packed = packed_weights(weights, biases, place, ZERO, 1, 1)
    plain = torch.conv2d(x, weights.permute(0, 3, 1, 2), biases, padding=1)
    assert_close(packed(x, plain, RELU), (2 * plain).clamp_min(0), 1e-5)
    for value in (torch.inf, torch.nan, 1e30):
        given = x.clone(memory_format=torch.preserve_format)
        given[0, 3, 9, 9] = value
        expected = torch.conv2d(given, weights.permute(0, 3, 1, 2), biases, padding=1)
        touched = torch.zeros(28, 28, dtype=torch.bool)
        touched[8:11, 8:11] = True
        for residual in (None, plain):
            found = packed(given, residual, RELU)
            wanted = (expected if residual is None else expected + residual).clamp_min(0)
            assert_close(found[..., ~touched], wanted[..., ~touched], 1e-5)
            assert torch.equal(found.isnan(), wanted.isnan())
            assert torch.equal(found.isinf(), wanted.isinf())
    for value in (torch.inf, 1e30):
        too_large = weights.clone()
        too_large[0, 0, 0, 0] = value
        assert not Tiles(too_large, biases, place, 2).are_moderate
        assert packed_weights(too_large, biases, place, ZERO, 1, 1)(x, None, None)[0, 1:].isfinite().all()


def test_what_is_computed_in_tiles() -> None:
    """Windows of 3 x 3 next to one another, over many channels."""

    def side(inputs: int, outputs: int, rows: Axis, size: int, edge: MPSImageEdgeMode = ZERO, groups: int = 1) -> int:
        weights = torch.empty(outputs, rows.size, rows.size, inputs // groups, device="meta")
        return side_of_tiles(window(rows, rows, size, size), edge, groups, 1, weights)

    assert side(128, 128, Axis(28, 3), 28) == 4
    assert side(512, 512, Axis(28, 3), 28) == 2
    for inputs, outputs, rows, size, edge, groups in (
        (3, 64, Axis(224, 3), 224, ZERO, 1),
        (128, 128, Axis(14, 3, stride=2), 28, ZERO, 1),
        (128, 128, Axis(28, 3, dilation=2), 28, ZERO, 1),
        (128, 128, Axis(28, 5), 28, ZERO, 1),
        (128, 128, Axis(28, 3), 28, CLAMP, 1),
        (256, 256, Axis(28, 3), 28, ZERO, 2),
    ):
        assert side(inputs, outputs, rows, size, edge, groups) == 0
    assert side(128, 128, Axis(26, 3, offset=1), 28, CLAMP) == 4
