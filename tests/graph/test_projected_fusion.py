"""When a convolution takes in the one whose result it adds, as the rule "projected end" says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from openmps.debug.work import operations_of
from openmps.ops.convolution.fused_convolution import Activation, Fused, FusedConvolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Action, Equation, Function, Input, Role
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rule import Place, Situation
from openmps.ops.rewrite.table import RULES
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

RELU = Activation(MPSCNNNeuronType.RELU, 0.0, 0.0)
ADDING = Fused(Window(Axis(4, 4, 3), Axis(4, 4, 3)), MPSImageEdgeMode.ZERO, 1, False, RELU)
STEPPED = replace(ADDING, window=Window(Axis(8, 4, 1, 2), Axis(8, 4, 1, 2)), activation=None)
OUTSIDE = replace(STEPPED, window=Window(Axis(6, 4, 1, 2), Axis(8, 4, 1, 2)))
LARGER = replace(STEPPED, window=Window(Axis(8, 4, 3, 2), Axis(8, 4, 3, 2)))
X, W, Z, OF_Z, BETWEEN, RESULT = range(6)


@pytest.mark.parametrize(
    ("projection", "adding", "reads", "outputs", "is_taken"),
    [
        (STEPPED, ADDING, (X, W, BETWEEN), (RESULT,), True),
        (replace(STEPPED, activation=RELU), ADDING, (X, W, BETWEEN), (RESULT,), False),
        (LARGER, ADDING, (X, W, BETWEEN), (RESULT,), False),
        (OUTSIDE, ADDING, (X, W, BETWEEN), (RESULT,), False),
        (replace(STEPPED, groups=2), ADDING, (X, W, BETWEEN), (RESULT,), False),
        (STEPPED, replace(ADDING, groups=2), (X, W, BETWEEN), (RESULT,), False),
        (STEPPED, ADDING, (BETWEEN, W, X), (RESULT,), False),
        (STEPPED, ADDING, (X, W, BETWEEN, Z), (RESULT,), False),
        (STEPPED, ADDING, (X, W, BETWEEN), (RESULT, BETWEEN), False),
    ],
    ids=[
        "single pixels", "a neuron behind it", "larger windows", "zeros outside its image", "its groups",
        "groups of the other", "the source of the other", "more to read", "a result of its own",
    ],
)  # fmt: skip
def test_a_projection_becomes_part_of_what_adds_it(
    projection: Fused, adding: Fused, reads: tuple[int, ...], outputs: tuple[int, ...], is_taken: bool
) -> None:
    inputs = [Input(Role.SOURCE if value in (X, Z) else Role.PREPARED, str(value)) for value in (X, W, Z, OF_Z)]
    steps = [
        Equation(FusedConvolution(projection), (Z, OF_Z), (BETWEEN,)),
        Equation(FusedConvolution(adding), reads, (RESULT,)),
    ]
    names = tuple(map(str, outputs))
    (row,) = (each for each in RULES if each.name == "projected end")
    before = FusedFunction(Function(tuple(inputs), steps, names, outputs, 6), {}, {})
    after = row.apply(before, Situation(Place.TRITON, 1)).function
    assert list(after.equations) == (
        [Equation(ProjectedConvolution(adding, projection), (X, W, Z, OF_Z), (RESULT,))] if is_taken else steps
    )


def test_a_profile_counts_both() -> None:
    x, z, result = (torch.zeros(2, channels, side, side) for channels, side in ((3, 4), (6, 8), (5, 4)))
    action = Action(ProjectedConvolution(ADDING, STEPPED), (X, W, Z, OF_Z), (RESULT,), (True,), ())
    assert operations_of(action, [x, None, z, None], [result]) == 2 * 2 * 5 * 4 * 4 * (9 * 3 + 6)
