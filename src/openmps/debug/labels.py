"""Which filters of a graph each equation of its function belongs to, those that fusions joined together."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.graph.compile.program import Program
from openmps.graph.run.trace import layer_names, program_of
from openmps.ops.op import Equation, Function


def step_labels(label: str, function: Function) -> list[str]:
    """For every equation of a function the filters whose work it does, ``conv1 + relu1``; ``label`` for a kernel's."""
    program = program_of(function)
    if program is None:
        return [label] * len(function.equations)
    names = layer_names(program)
    return [joined_label(names, places) or label for places in step_places(program, function)]


def joined_label(names: Sequence[str], places: Sequence[int]) -> str:
    """What an equation is called that does the work of these filters."""
    return " + ".join(names[place] for place in places)


def step_places(program: Program, function: Function) -> list[list[int]]:
    """For every equation of a program's function the places of the filters whose work it does; none for all."""
    whole, _ = program.assemble()
    makers = {value: equation for equation in whole.equations for value in equation.writes}
    there = {value for equation in function.equations for value in equation.writes}.union(function.input_values)
    return [_places(program, equation, makers, there) for equation in function.equations]


def _places(program: Program, equation: Equation, makers: dict[int, Equation], there: set[int]) -> list[int]:
    """The stages of the unfused equations that lead to what an equation writes, back to what is there without it."""
    places: set[int] = set()
    ahead, seen = [value for value in equation.writes if value in makers], set[int]()
    while ahead:
        value = ahead.pop()
        if value in seen:
            continue
        seen.add(value)
        place = program.maker(value)
        if place is not None:
            places.add(place)
        ahead += [read for read in makers[value].reads if read in makers and read not in there]
    return sorted(places)
