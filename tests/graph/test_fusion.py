"""Fused operations against the steps that they replace, on sources full of ties."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.convolution.fused_convolution import Activation, Fused, FusedConvolution, PrepareConvolution
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Equation, Function, Input, Kind, Op, Role
from openmps.ops.pointwise.neuron import Neuron, neuron, neuron_gradient
from openmps.ops.pooling.pooling import MaxPooling, max_pooling, max_pooling_gradient
from openmps.ops.pooling.relu_pooling import ReluPoolGradient
from openmps.ops.rewrite.recipe import FusedFunction, Recipe
from openmps.ops.rewrite.rule import Place, Situation
from openmps.ops.rewrite.table import RULES
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


@in_one_test
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


class Note(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """Gives nothing, and is run all the same."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See the class."""


@pytest.mark.parametrize(
    ("rule", "name"), [("pooling before ReLU", "Neuron"), ("pooled convolution", "PooledConvolution")]
)
def test_steps_that_give_nothing_stay(rule: str, name: str) -> None:
    whole, half = Axis(4, 4), Axis(4, 2, 2, 2, offset=1)
    how = Fused(Window(whole, whole), MPSImageEdgeMode.ZERO, 1, False, Activation(RELU, 0.0, 0.0))
    first = Equation(Neuron(RELU, 0.0, 0.0, 0.0), (0,), (2,)) if name == "Neuron" else None
    steps = [
        first or Equation(FusedConvolution(how), (0, 1), (2,)),
        Equation(MaxPooling(Window(half, half), MPSImageEdgeMode.CLAMP), (2,), (3, 4)),
        Equation(Note(), (0,), ()),
    ]
    inputs = Input(Role.SOURCE, "x"), Input(Role.PREPARED, "w")
    (row,) = (each for each in RULES if each.name == rule)
    recipe = Recipe(PrepareConvolution(how.window, how.edge_mode, 1, 1, None), (inputs[1],))
    before = FusedFunction(Function(inputs, steps, ("result",), (3,), 5), {}, {inputs[1]: recipe})
    function, gone, _ = row.apply(before, Situation(Place.TRITON, 1))
    assert set(gone.values()) == {rule}
    assert sorted(function.operations()) == sorted({name, "Note"} | ({"MaxPooling"} if name == "Neuron" else set()))
