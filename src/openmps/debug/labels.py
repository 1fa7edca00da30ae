"""Which filters of a graph each step of its body belongs to, those that fusions joined together."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.graph.program import Program
from openmps.graph.trace import layer_names, program_of
from openmps.ops.op import Body, Step


def step_labels(label: str, body: Body) -> list[str]:
    """For every step of a body the filters whose work it does, ``conv1 + relu1``; ``label`` for a kernel's body."""
    program = program_of(body)
    if program is None:
        return [label] * len(body.steps)
    whole, _ = program.assemble()
    names = layer_names(program)
    makers = {slot: step for step in whole.steps for slot in step.writes}
    there = {slot for step in body.steps for slot in step.writes}.union(body.input_slots)
    return [_label(program, names, step, makers, there) or label for step in body.steps]


def _label(program: Program, names: Sequence[str], step: Step, makers: dict[int, Step], there: set[int]) -> str:
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
    return " + ".join(names[place] for place in sorted(places))
