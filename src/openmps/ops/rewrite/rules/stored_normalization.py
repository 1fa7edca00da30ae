"""Normalizations of inference before a convolution, with the neuron behind them; see `ops.rewrite.fuse`.

The slow equations are a batch normalization with stored statistics and a neuron (`ACTIVATIONS`) that alone reads its
result. What follows from the statistics is prepared, and made again only when they change.
"""

from __future__ import annotations

from openmps.ops.convolution.convolution import ContractionGradient
from openmps.ops.convolution.fused_convolution import ACTIVATIONS, Activation
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Equation, Function, Input, Role
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.recipe import FusedFunction, Recipe
from openmps.ops.rewrite.rules.convolution import is_memory


def fuse_stored_normalizations(function: Function) -> FusedFunction:
    """The function with its normalizations fused; itself where gradients are computed."""
    if any(isinstance(equation.op, ContractionGradient) for equation in function.equations):
        return FusedFunction(function, set(), {})
    flow, inputs = DataFlow(function), dict(zip(function.input_values, function.inputs, strict=True))
    recipes, places = dict[Input, Recipe](), dict[Input, int]()
    equations, value_count, gone = list[Equation](), function.value_count, set[int]()
    for equation in function.equations:
        if gone.intersection(equation.reads):
            continue  # The neuron of one that was fused.
        op, rows = equation.op, equation.reads[1:]
        if not isinstance(op, Normalize) or not all(is_memory(inputs, value) for value in rows):
            equations.append(equation)
            continue
        prepared = Input(Role.PREPARED, inputs[rows[0]].name)
        recipes[prepared] = Recipe(PrepareNormalization(op.epsilon), tuple(map(inputs.get, rows)))
        places[prepared], end, activation = value_count, equation.writes[0], None
        neuron = flow.only_reader(end)
        if neuron is not None and isinstance(neuron.op, Neuron) and neuron.op.function in ACTIVATIONS:
            activation = Activation(neuron.op.function, neuron.op.a, neuron.op.b)
            gone.add(end)
            end = neuron.writes[0]
        equations.append(
            Equation(StoredNormalization(activation, op.is_rounded), (equation.reads[0], value_count), (end,))
        )
        value_count += 1
    if not recipes:
        return FusedFunction(function, set(), {})
    read = set(function.output_values).union(*(equation.reads for equation in equations))
    before = set().union(*(equation.reads for equation in function.equations))
    kept = {each: value for value, each in inputs.items() if value in read or value not in before}
    return FusedFunction(function.with_equations(equations, value_count, kept | places), gone, recipes)
