"""Convolutions of normalized and rectified images, as in DenseNet; see `openmps.ops.rewrite.fuse`.

The slow equations are a `StoredNormalization` with ReLU and the `FusedConvolution` by windows of one pixel that alone
reads its result.
"""

from __future__ import annotations

from collections.abc import Mapping

from openmps.ops.convolution.fused_convolution import FusedConvolution, PrepareConvolution
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution, PreparePreactivated
from openmps.ops.elements import Load, Store
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Equation, Function, Input
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.recipe import FusedFunction, Recipe
from openmps.types import MPSCNNNeuronType


def fuse_preactivations(function: Function, recipes: Mapping[Input, Recipe]) -> FusedFunction:
    """The function with its normalizations in the convolutions behind them, and the recipes with theirs."""
    if any(isinstance(equation.op, (Load, Store)) for equation in function.equations):
        return FusedFunction(function, set(), recipes)  # Numbers are rounded to float16 between.
    flow, inputs = DataFlow(function), dict(zip(function.input_values, function.inputs, strict=True))
    makers, gone, found = dict[int, Equation](), set[int](), dict(recipes)
    for equation in function.equations:
        behind = flow.only_reader(equation.writes[0]) if _is_rectified(equation) else None
        if behind is not None and _takes_in(behind, equation.writes[0]):
            makers[id(behind)] = equation
            gone.add(equation.writes[0])
    equations: list[Equation] = []
    for equation in function.equations:
        if (before := makers.get(id(equation))) is not None:
            before_prepared, prepared = inputs[before.reads[1]], inputs[equation.reads[1]]
            found[prepared] = _joined(found[before_prepared], found[prepared])
            equations.append(_preactivated(before, equation))
        elif gone.isdisjoint(equation.writes):
            equations.append(equation)
    read = set(function.output_values).union(*(equation.reads for equation in equations))
    unread = {before.reads[1] for before in makers.values()} - read
    kept = {each: value for value, each in inputs.items() if value not in unread}
    recipes = {prepared: recipe for prepared, recipe in found.items() if prepared in kept}
    return FusedFunction(function.with_equations(equations, function.value_count, kept), gone, recipes)


def _is_rectified(equation: Equation) -> bool:
    if not isinstance(equation.op, StoredNormalization) or equation.op.activation is None:
        return False
    return (equation.op.activation.function, equation.op.activation.a) == (MPSCNNNeuronType.RELU, 0.0)


def _takes_in(behind: Equation, image: int) -> bool:
    """Whether an equation is a convolution of ``image`` that reads nothing outside of it."""
    if not isinstance(behind.op, FusedConvolution) or behind.reads[0] != image or image in behind.reads[1:]:
        return False
    window = behind.op.how.window
    return window.size == (1, 1) and behind.op.how.groups == 1 and not window.leaves_source


def _joined(normalization: Recipe, convolution: Recipe) -> Recipe:
    assert isinstance(normalization.op, PrepareNormalization)
    assert isinstance(convolution.op, PrepareConvolution)
    op = PreparePreactivated(normalization.op, convolution.op)
    return Recipe(op, (*normalization.reads, *convolution.reads))


def _preactivated(before: Equation, equation: Equation) -> Equation:
    assert isinstance(before.op, StoredNormalization)
    assert isinstance(equation.op, FusedConvolution)
    op = PreactivatedConvolution(before.op, equation.op.how)
    return Equation(op, (before.reads[0], *equation.reads[1:]), equation.writes)
