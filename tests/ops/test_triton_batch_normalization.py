"""Batch normalization's passes in Triton against those of `openmps.ops`: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from openmps.ops import triton
from openmps.ops.normalization.batch_normalization import (
    BatchMoments,
    DataGradient,
    Moments,
    Normalize,
    ParameterSums,
    batch_moments,
)
from openmps.ops.normalization.normalized_neuron import (
    NormalizedNeuron,
    NormalizedNeuronGradient,
    NormalizedNeuronSums,
    PassedSums,
    unpacked,
)
from openmps.ops.pointwise.neuron import Neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType
from pairs import pairs
from triton_images import EPSILON, TYPES, assert_alike, image, rows

SHAPES = [(1, 1, 1, 1), (3, 4, 1, 1), (1, 5, 7, 3), (2, 130, 3, 2), (9, 3, 40, 13)]
GELU = Neuron(MPSCNNNeuronType.GELU, 0.0, 0.0, 0.0)
NEURONS = [
    Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0),
    Neuron(MPSCNNNeuronType.RELU, 0.25, 0.0, 0.0),
    Neuron(MPSCNNNeuronType.RELU_N, 0.0, 0.75, 0.0),
]


def both(monkeypatch: pytest.MonkeyPatch, call: Any) -> tuple[Any, Any]:
    """What a call gives with Triton, and without."""
    found = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        made = call()
        found.append(made if isinstance(made, tuple) else (made,))
    return found[0], found[1]


@pytest.mark.parametrize(("shape", "types", "layout"), pairs(SHAPES, TYPES, ["whole", "slice"]), ids=str)
def test_the_passes(shape, types, layout: str, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, gradient = image(shape, types[0], place, 1, layout), image(shape, types[1], place, 2, "whole")
    gamma, beta = rows(shape[1], place)
    found, expected = both(monkeypatch, lambda: BatchMoments().run((True,) * 3, x))
    assert_alike((found[0] + found[1], found[2]), (expected[0] + expected[1], expected[2]), dtype=torch.float32)
    assert float(found[2][0]) == 0.0, "a channel that is constant"
    assert float(found[0][0]) == float(x[0, 0, 0, 0])
    pixels = shape[0] * shape[2] * shape[3]
    for known in (expected, (expected[0], None, expected[2])):
        for is_rounded in (True, False):
            op = Normalize(EPSILON, is_rounded)
            given = both(monkeypatch, lambda op=op, known=known: op.run((True,), x, *known, gamma, beta))
            assert_alike(*given, dtype=types[0] if is_rounded else torch.float32)
        for before in ((), (gamma, beta)):
            op = ParameterSums(EPSILON)
            sums, slow = both(
                monkeypatch,
                lambda op=op, known=known, before=before: tuple(op.run((True, True), gradient, x, *known, *before)),
            )
            assert_alike(sums, slow, dtype=torch.float32, terms=float(gradient.abs().float().mean()) * pixels)
        for batch in ((), (*slow, pixels)):
            op = DataGradient(EPSILON)
            given = both(
                monkeypatch, lambda op=op, known=known, b=batch: op.run((True,), gradient, x, *known, gamma, *b)
            )
            assert_alike(*given, dtype=types[0])


@pytest.mark.parametrize(("shape", "types", "neuron"), pairs(SHAPES, TYPES, NEURONS), ids=str)
def test_with_a_neuron(shape, types, neuron: Neuron, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, gradient = image(shape, types[0], place, 1, "whole"), image(shape, types[1], place, 2, "slice")
    other = image(shape, types[0], place, 3, "slice")
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    known = (*batch_moments(x), *rows(shape[1], place))
    is_half, pixels = types[0] == torch.float16, shape[0] * shape[2] * shape[3]
    flips = 2 if is_half else 1
    for added in ((), (other,)):
        op = NormalizedNeuron(EPSILON, neuron, is_half, False, is_half, is_half)
        found, expected = both(monkeypatch, lambda op=op, added=added: op.run((True, True), x, *known, *added))
        assert_alike(found[:1], expected[:1], dtype=types[0])
        seen = unpacked(found[1], shape, neuron)
        assert seen.shape == x.shape
        passes = neuron_gradient(torch.ones_like(expected[1]), expected[1], neuron.function, neuron.a, neuron.b, 0.0)
        by_bits = neuron_gradient(torch.ones_like(expected[1]), seen, neuron.function, neuron.a, neuron.b, 0.0)
        assert int((passes != by_bits).sum()) <= flips
        for pair in ((gradient,), (gradient, gradient.flip(0))):
            op = PassedSums(EPSILON, neuron, is_half, types[1] == torch.float16)
            terms = 2 * float(gradient.abs().float().mean()) * pixels
            ran = both(
                monkeypatch, lambda op=op, kept=found[1], pair=pair: op.run((True,) * 3, kept, x, *known[:3], *pair)
            )
            assert_alike(ran[0][:1], ran[1][:1], dtype=types[1])
            assert_alike(ran[0][1:], ran[1][1:], dtype=torch.float32, terms=terms)
    _assert_gradients_alike(monkeypatch, neuron, gradient, x, known, flips=flips)


def _assert_gradients_alike(
    monkeypatch: pytest.MonkeyPatch, neuron: Neuron, gradient: torch.Tensor, x: torch.Tensor, known: Any, *, flips: int
) -> None:
    """The sums behind a neuron's gradient, and the gradient of the images, with Triton and without."""
    is_half, stored = (each.dtype == torch.float16 for each in (x, gradient))
    pixels = x.numel() // x.shape[1]
    op = NormalizedNeuronSums(EPSILON, neuron, is_half, False, stored)
    sums, slow = both(monkeypatch, lambda: tuple(op.run((True, True), gradient, x, *known)))
    assert_alike(sums, slow, dtype=torch.float32, flips=flips, terms=float(gradient.abs().float().mean()) * pixels)
    for is_wide in (True, False):
        last = NormalizedNeuronGradient(EPSILON, neuron, is_half, True, stored, is_wide)
        given = both(monkeypatch, lambda last=last: last.run((True,), gradient, x, *known, *slow, pixels))
        assert_alike(*given, dtype=x.dtype, flips=flips)


@pytest.mark.parametrize(("shape", "types"), pairs(SHAPES, TYPES), ids=str)
def test_with_gelu(shape, types, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers up to some ten deviations away, where nothing or all of a number is left."""
    x, gradient = image(shape, types[0], place, 1, "whole"), image(shape, types[1], place, 2, "slice")
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    mean, correction, variance = batch_moments(x)
    known = (mean, correction, variance / 16, *rows(shape[1], place))
    op = NormalizedNeuron(EPSILON, GELU, types[0] == torch.float16, False, types[0] == torch.float16)
    found, expected = both(monkeypatch, lambda: op.run((True, False), x, *known)[:1])
    assert_alike(found, expected, dtype=types[0])
    _assert_gradients_alike(monkeypatch, GELU, gradient, x, known, flips=0)


def test_what_no_neuron_passes_stays_where_it_is(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities and NaN in a channel reach no other, and those of gradients end at a rectifier."""
    x, gradient = image((2, 3, 4, 4), torch.float32, place, 1, "whole"), torch.ones(2, 3, 4, 4, device=place)
    x[0, 1, 2, 2], gradient[:, 2] = float("nan"), float("inf")
    zero, one = torch.zeros(3, device=place), torch.ones(3, device=place)
    known = (zero, None, one, one, torch.tensor([0.0, 0.0, -100.0], device=place))
    op = NormalizedNeuron(EPSILON, NEURONS[0], False, False, False)
    found, expected = both(monkeypatch, lambda: op.run((True, False), x, *known)[:1])
    assert torch.equal(found[0].isnan(), expected[0].isnan())
    back = NormalizedNeuronSums(EPSILON, NEURONS[0], False, False, False)
    found, expected = both(monkeypatch, lambda: tuple(back.run((True, True), gradient, x, *known)))
    for one_of, other in zip(found, expected, strict=True):
        assert torch.equal(one_of.isnan(), other.isnan())
        assert torch.equal(one_of[2:], zero[2:])


def test_repeats_are_equal(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    x = image((5, 33, 31, 17), torch.float16, place, 1, "whole")
    first, second = (Moments(*batch_moments(x)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
