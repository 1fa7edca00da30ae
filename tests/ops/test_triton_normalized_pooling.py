"""Normalization, rectifier and pooling in Triton against the operations one by one: on CUDA, or by the interpreter."""

from __future__ import annotations

import pytest
import torch

from openmps.ops import triton
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization.batch_normalization import batch_moments
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, NormalizedNeuronGradient, NormalizedNeuronSums
from openmps.ops.normalization.normalized_pooling import (
    NormalizedPooling,
    NormalizedPoolingGradient,
    NormalizedPoolingSums,
)
from openmps.ops.pointwise.neuron import Neuron
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode
from pairs import pairs
from triton_images import EPSILON, TYPES, assert_alike, image, rows

CLAMP = MPSImageEdgeMode.CLAMP
AXES = [
    # source, result, size, stride, dilation, offset: rows, columns
    (Axis(8, 4, 3, 2), Axis(9, 5, 3, 2)),
    (Axis(7, 4, 3, 2, 1, 1), Axis(6, 3, 2, 2, 1, 1)),
    (Axis(5, 5, 3), Axis(4, 4, 3)),
    (Axis(9, 3, 2, 3, 1, 1), Axis(10, 5, 2, 2, 1, 1)),
    (Axis(9, 3, 2, 2, 3, 3), Axis(1, 1, 1)),
]
NEURONS = [Neuron(MPSCNNNeuronType.RELU, 0.0, 0.0, 0.0), Neuron(MPSCNNNeuronType.RELU_N, 0.0, 0.75, 0.0)]


@pytest.mark.parametrize(
    ("sizes", "types", "neuron"), pairs(list(zip(AXES, (70, 1, 5, 5, 70), strict=True)), TYPES, NEURONS), ids=str
)
def test_the_same(sizes, types, neuron: Neuron, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    axes, channels = sizes
    window = Window(x=axes[1], y=axes[0])
    is_half, rounds = types[0] == torch.float16, types[1] == torch.float16
    x = image((3, channels, *window.source), types[0], place, 1, "slice")
    gradient = image((3, channels, *window.result), types[1], place, 2, "slice")
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    known = (*batch_moments(x), *rows(channels, place))
    pixels = 3 * window.y.source * window.x.source
    made = (EPSILON, neuron, is_half, False)
    forward = NormalizedPooling(window, CLAMP, NormalizedNeuron(*made, is_half))
    sums = NormalizedPoolingSums(window, CLAMP, NormalizedNeuronSums(*made, rounds), rounds)
    back = NormalizedPoolingGradient(window, CLAMP, NormalizedNeuronGradient(*made, rounds), rounds)
    found: list[tuple[torch.Tensor, ...]] = []
    for runs in (True, False):
        monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
        y, *kept = forward.run((True,) * 3, x, *known)
        assert (kept[1] is not None) == runs
        pair = sums.run((True, True), gradient, *kept, x, *known)
        joined = sums.run((True, True), gradient, *kept, x, *known, *(row.clone() for row in known[3:]))
        found.append((y, *pair, *joined))
        if not runs:
            pair = found[0][1:3]
        batches = ((), (*pair, pixels))
        found.append(tuple(back.run((True,), gradient, *kept, x, *known, *batch) for batch in batches))
    flips = 4
    assert_alike(found[0][:1], found[2][:1], dtype=types[0], flips=flips)
    terms = 2 * float(gradient.abs().float().mean()) * pixels
    rounding = torch.float16 if rounds else torch.float32
    assert_alike(found[0][1:], found[2][1:], dtype=rounding, flips=flips, terms=terms)
    assert_alike(found[1], found[3], dtype=types[0], flips=flips)


@pytest.mark.parametrize("axes", AXES[:2], ids=str)
def test_gradients_that_the_kernels_do_not_take(axes, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that do not lie side by side: what was kept serves the operations one by one."""
    window, neuron = Window(x=axes[1], y=axes[0]), NEURONS[0]
    x = image((2, 6, *window.source), torch.float32, place, 1, "whole")
    gradient = image((2, 6, *window.result), torch.float32, place, 2, "whole")
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    known = (*batch_moments(x), *rows(6, place))
    made = (EPSILON, neuron, False, False, False)
    _, *kept = NormalizedPooling(window, CLAMP, NormalizedNeuron(*made)).run((True,) * 3, x, *known)
    sums = NormalizedPoolingSums(window, CLAMP, NormalizedNeuronSums(*made), False)
    found = sums.run((True, True), gradient.contiguous(), *kept, x, *known)
    expected = sums.run((True, True), gradient, *kept, x, *known)
    assert_alike(tuple(found), tuple(expected), dtype=torch.float32, terms=float(gradient.abs().sum()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_is_not_a_number_comes_through(
    dtype: torch.dtype, place: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(x=Axis(8, 4, 3, 2), y=Axis(8, 4, 3, 2))
    x = image((1, 4, 8, 8), dtype, place, 1, "whole")
    x[0, 1, 3, 3] = float("nan")
    row, is_half = torch.ones(4, device=place), dtype == torch.float16
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    op = NormalizedPooling(window, CLAMP, NormalizedNeuron(EPSILON, NEURONS[0], is_half, False, is_half))
    y, taps, winners = op.run((True,) * 3, x, row, None, row, row, row)
    assert y.dtype == dtype
    assert int(y.isnan().sum()) == int(winners.isnan().sum()) == 4
    assert bool((taps[y.isnan()] != 255).all())
