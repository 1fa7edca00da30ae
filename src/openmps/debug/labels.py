"""Which filters of a graph each step of its body belongs to, those that fusions joined together."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.graph.compile.program import Program
from openmps.graph.run.trace import layer_names, program_of
from openmps.ops.op import Body, Step


def step_labels(label: str, body: Body) -> list[str]:
    """For every step of a body the filters whose work it does, ``conv1 + relu1``; ``label`` for a kernel's body."""
    program = program_of(body)
    if program is None:
        return [label] * len(body.steps)
    names = layer_names(program)
    return [joined_label(names, places) or label for places in step_places(program, body)]


def joined_label(names: Sequence[str], places: Sequence[int]) -> str:
    """What a step is called that does the work of these filters."""
    return " + ".join(names[place] for place in places)


def step_places(program: Program, body: Body) -> list[list[int]]:
    """For every step of a program's body the places of the filters whose work it does; none for those of all."""
    whole, _ = program.assemble()
    makers = {slot: step for step in whole.steps for slot in step.writes}
    there = {slot for step in body.steps for slot in step.writes}.union(body.input_slots)
    return [_places(program, step, makers, there) for step in body.steps]


def _places(program: Program, step: Step, makers: dict[int, Step], there: set[int]) -> list[int]:
    """The stages of the unfused steps that lead to what a step writes, back to what is there without it."""
    places: set[int] = set()
    ahead, seen = [slot for slot in step.writes if slot in makers], set[int]()
    while ahead:
        slot = ahead.pop()
        if slot in seen:
            continue
        seen.add(slot)
        place = program.maker(slot)
        if place is not None:
            places.add(place)
        ahead += [read for read in makers[slot].reads if read in makers and read not in there]
    return sorted(places)
