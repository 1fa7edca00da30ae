"""Images that grow by concatenations, as in DenseNet; see `openmps.ops.rewrite.fuse`.

The slow equations are concatenations of which each begins with the result of the one before. Where no gradients are
computed, and where normalizations with prepared factors alone read what stands between, the first makes room for all:
the others put their own channels there, and copy nothing else.
"""

from __future__ import annotations

from openmps.ops.convolution.convolution import ContractionGradient
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution
from openmps.ops.layout.concatenation import Concatenate, Grow
from openmps.ops.normalization.stored_normalization import StoredNormalization
from openmps.ops.op import Equation, Function
from openmps.ops.rewrite.data_flow import DataFlow

_READERS = StoredNormalization, PreactivatedConvolution
"""Operations that read a part of an image's memory as fast as all of it."""


def growing_concatenations(function: Function) -> tuple[Function, set[int]]:
    """The function with concatenations that share memory, and the values that are never filled any more: none."""
    if any(isinstance(equation.op, ContractionGradient) for equation in function.equations):
        return function, set()
    flow = DataFlow(function)
    following = {
        equation.writes[0]: after for equation in function.equations if (after := _after(flow, equation)) is not None
    }
    places = {after.writes[0] for after in following.values()}
    if not places:
        return function, set()
    equations = [_equation(equation, places, following) for equation in function.equations]
    return function.with_equations(equations, function.value_count), set()


def _equation(equation: Equation, places: set[int], following: dict[int, Equation]) -> Equation:
    """What becomes of an equation: a concatenation makes room for those that follow, or grows."""
    if not isinstance(equation.op, Concatenate):
        return equation
    channels, alpha, end = equation.op.channels, equation.op.alpha, equation.writes[0]
    if end in places:
        return equation._replace(op=Grow(channels[1:], alpha))
    room = 0
    while (after := following.get(end)) is not None:
        assert isinstance(after.op, Concatenate)
        room, end = room + sum(after.op.channels[1:]), after.writes[0]
    return equation._replace(op=Concatenate(channels, alpha, room))


def _after(flow: DataFlow, equation: Equation) -> Equation | None:
    """The concatenation that an equation's result may grow by."""
    if not isinstance(equation.op, Concatenate) or equation.writes[0] in flow.outputs:
        return None
    end, found = equation.writes[0], flow.readers(equation.writes[0])
    growing = [each for each in found if isinstance(each.op, Concatenate)]
    if len(growing) != 1 or not all(isinstance(each.op, (Concatenate, *_READERS)) for each in found):
        return None
    op, reads = growing[0].op, growing[0].reads
    assert isinstance(op, Concatenate)
    is_begin = reads[0] == end and end not in reads[1:] and op.channels[0] == sum(equation.op.channels)
    return growing[0] if is_begin else None
