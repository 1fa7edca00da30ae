"""The vectors that an optimizer keeps for the parameters of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.core.elements import Elements
from openmps.core.kernel.operands import Argument
from openmps.core.vector import MPSVector, numbers_of
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer
from openmps.runtime.binding import Binding, Numbers
from openmps.types import MPSDataType


def accumulators(
    who: str, argument: str, vectors: Any, names: Sequence[str], lengths: Sequence[int], command_buffer: CommandBuffer
) -> list[Binding]:
    """Where the numbers of a vector for the first parameter, or of one for each, are; ``names`` are the parameters'.

    Raises unless they can be used.
    """
    if not isinstance(vectors, (list, tuple)) and (isinstance(vectors, str) or not isinstance(vectors, Sequence)):
        raise MPSArgumentError(who, argument, _number_rule(names), vectors)
    if len(vectors) not in (1, 2):
        raise MPSArgumentError(who, argument, _number_rule(names), f"{len(vectors)}")
    device = command_buffer.device
    found: list[Binding] = []
    for index, vector in enumerate(vectors):
        numbers = numbers_of(vector) if type(vector) is MPSVector else None
        if numbers is None or numbers.count != lengths[index] or numbers.buffer.device is not device:
            place = f"{argument}[{index}]"
            numbers = _accumulator(who, place, vector, names[index], lengths[index], command_buffer)
        found.append(numbers)
    return found


def _number_rule(names: Sequence[str]) -> str:
    return f"must be one vector for the {names[0]}, or two for {names[0]} and {names[1]}"


def _accumulator(
    who: str, place: str, vector: object, name: str, length: int, command_buffer: CommandBuffer
) -> Numbers:
    held = Argument(place, MPSVector, (MPSDataType.FLOAT32,)).view_of(who, vector, command_buffer)
    assert isinstance(held, Elements)
    if held.shape.sizes != (1, length):
        rule = f"must be one vector of {length} numbers, one for each number of {name}"
        raise MPSArgumentError(who, place, rule, "{} of {}".format(*held.shape.sizes))
    return Numbers(held.buffer, held.offset, length)
