"""What rules leave to be made besides a function: inputs that are derived from memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from openmps.ops.convolution.fused_convolution import UNROUNDED, PrepareConvolution
from openmps.ops.convolution.preactivated_convolution import PreparePreactivated
from openmps.ops.normalization.stored_normalization import PrepareNormalization
from openmps.ops.op import Equation, Function, Input, Role


class Recipe(NamedTuple):
    """How a prepared input of a function is made: an operation of other inputs; None for those that are left out."""

    op: PrepareConvolution | PrepareNormalization | PreparePreactivated
    reads: tuple[Input | None, ...]


class FusedFunction(NamedTuple):
    """A function after fusions."""

    function: Function
    gone: Mapping[int, str]
    """The values that are never filled any more, with the name of the rule that did without each."""
    recipes: Mapping[Input, Recipe]


def computed(fused: FusedFunction, before: Function) -> Function:
    """The function that makes its prepared inputs itself each time that it runs, of the inputs ``before`` had."""
    function, places = fused.function, dict(zip(before.inputs, before.input_values, strict=True))
    inputs = dict(zip(function.inputs, function.input_values, strict=True))
    first: list[Equation] = []
    for prepared, recipe in fused.recipes.items():
        reads = [
            None if each is None else each._replace(name=each.name.removesuffix(UNROUNDED)) for each in recipe.reads
        ]
        inputs |= {each: places[each] for each in reads if each is not None}
        made = inputs.pop(prepared)
        first.append(Equation(recipe.op, tuple([-1 if each is None else places[each] for each in reads]), (made,)))
    inputs = {each: value for each, value in inputs.items() if each.role is not Role.PREPARED}
    return function.with_equations([*first, *function.equations], function.value_count, inputs)
