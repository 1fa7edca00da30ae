"""Two normalizations with a neuron, and means of whole images, in Triton against the operations one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization.batch_normalization import DataGradient, Normalize, ParameterSums, batch_moments
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.normalization.projected_neuron import ProjectedGradients, ProjectedNeuron, ProjectedSums, SpreadSums
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.pooling.pooling import AveragePoolingGradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from triton_images import EPSILON, TYPES, assert_alike, image, rows

SHAPES = [(3, 4, 1, 1), (1, 5, 7, 3), (2, 130, 3, 2)]
RELU = Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0)


def both(monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a call gives with Triton, and without."""
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        found.append(tuple(call()))
    return found[0], found[1]


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_normalizations(shape, types, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = image(shape, types[0], place, 1, "whole"), image(shape, types[0], place, 3, "slice")
    gradient = image(shape, types[1], place, 2, "slice")
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    known, others = ((*batch_moments(each), *rows(shape[1], place, seed)) for each, seed in ((x, 5), (other, 6)))
    others = (others[0], None, *others[2:])
    is_half, rounds = types[0] == torch.float16, types[1] == torch.float16
    first = NormalizedNeuron(EPSILON, RELU, is_half, False, is_half, is_half)
    op = ProjectedNeuron(first, Normalize(2 * EPSILON, True), is_half)
    found, expected = both(monkeypatch, lambda: op.run((True, True), x, *known, other, *others))
    assert_alike(found[:1], expected[:1], dtype=types[0], flips=2)
    terms = 2 * float(gradient.abs().float().mean()) * shape[0] * shape[2] * shape[3]
    for pair in ((gradient,), (gradient, gradient.flip(0))):
        passed = PassedSums(EPSILON, RELU, is_half and len(pair) == 2, rounds)
        sums = ProjectedSums(passed, ParameterSums(2 * EPSILON))
        given = (x, *known[:3], other, *others[:3], *pair)
        made, slow = both(monkeypatch, lambda sums=sums, given=given: sums.run((True,) * 5, found[1], *given))
        assert_alike(made[:1], slow[:1], dtype=types[1], flips=2)
        assert_alike(made[1:], slow[1:], dtype=torch.float32, terms=terms)
        assert torch.equal(made[2], made[4]), "gradients of beta are the same sums"
    pixels = shape[0] * shape[2] * shape[3]
    back = ProjectedGradients(DataGradient(EPSILON), DataGradient(2 * EPSILON))
    given = (slow[0], x, *known[:4], other, *others[:4], *slow[1:], pixels, pixels)
    assert_alike(*both(monkeypatch, lambda: back.run((True, True), *given)), dtype=types[0])


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_a_mean(shape, types, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    images, channels, height, width = shape
    x = image(shape, types[0], place, 1, "whole")
    gradient = image((images, channels, 1, 1), types[1], place, 2, "slice")
    window = Window(x=Axis(width, 1, width, 1, 1, width // 2), y=Axis(height, 1, height, 1, 1, height // 2))
    assert not window.leaves_source
    rounds = types[1] == torch.float16
    spread = AveragePoolingGradient(window, MPSImageEdgeMode.CLAMP, (0, 0))
    op = SpreadSums(PassedSums(EPSILON, RELU, False, rounds), spread, rounds)
    masks = torch.full((images * height * width, -(-channels // 8)), 0b10110110, dtype=torch.uint8, device=place)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    known = batch_moments(x)
    found, expected = both(monkeypatch, lambda: op.run((True,) * 3, masks, x, *known, gradient))
    assert_alike(found[:1], expected[:1], dtype=types[1])
    assert_alike(found[1:], expected[1:], dtype=torch.float32, terms=float(gradient.abs().float().sum()))
