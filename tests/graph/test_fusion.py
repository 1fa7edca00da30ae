"""Fused operations against the steps that they replace, on sources full of ties."""

from __future__ import annotations

import itertools

import pytest
import torch

from openmps.ops.geometry import Axis, Window
from openmps.ops.neuron import neuron, neuron_gradient
from openmps.ops.pooling import max_pooling, max_pooling_gradient
from openmps.ops.relu_pooling import ReluPoolGradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

RELU = MPSCNNNeuronType.RELU
AXES = [
    # size, stride, dilation, offset, source, result
    (2, 2, 1, 1, 8, 4),
    (2, 2, 1, 0, 7, 4),
    (3, 2, 1, 1, 7, 3),
    (3, 1, 1, 0, 5, 5),
    (3, 2, 2, 0, 6, 4),
    (2, 3, 3, -1, 7, 4),
    (3, 1, 2, -3, 4, 8),
    (1, 2, 1, 0, 5, 3),
    (4, 5, 1, 4, 12, 2),
]


def axis(size: int, stride: int, dilation: int, offset: int, source: int, result: int) -> Axis:
    return Axis(source=source, result=result, size=size, stride=stride, dilation=dilation, offset=offset)


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("edge_mode", [MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP])
@pytest.mark.parametrize(("rows", "columns"), list(itertools.product(AXES, AXES)))
def test_the_gradient_of_a_pooling_before_a_relu_is_that_of_both_in_turn(
    rows: tuple[int, ...], columns: tuple[int, ...], edge_mode: MPSImageEdgeMode, slope: float, device: torch.device
) -> None:
    window = Window(axis(*columns), axis(*rows))
    generator = torch.Generator().manual_seed(sum(rows) + 7 * sum(columns))
    source = torch.randint(-2, 2, (3, 4, *window.source), generator=generator).float().to(device)
    gradient = torch.randn((3, 4, *window.result), generator=generator).to(device)
    rectified = neuron(source, RELU, slope, 0.0, 0.0)
    apart = max_pooling_gradient(gradient, rectified, None, window, edge_mode)
    expected = neuron_gradient(apart, source, RELU, slope, 0.0, 0.0)
    pooled, choice = max_pooling(source, window, edge_mode)
    fused = ReluPoolGradient(window, edge_mode, slope).run((True,), gradient, pooled, source, choice)
    assert torch.equal(fused, expected)
