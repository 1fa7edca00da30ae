"""Images that grow by concatenations, as in DenseNet; see `openmps.ops.rewrite.table`.

The slow equations are concatenations of which each begins with the result of the one before. Where no gradients are
computed, and where normalizations with prepared factors alone read what stands between, the first makes room for all:
the others put their own channels there, and copy nothing else.
"""

from __future__ import annotations

from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution
from openmps.ops.layout.concatenation import Concatenate, Grow
from openmps.ops.normalization.stored_normalization import StoredNormalization
from openmps.ops.op import Equation
from openmps.ops.rewrite.data_flow import DataFlow
from openmps.ops.rewrite.rule import Change, Site

_READERS = StoredNormalization, PreactivatedConvolution
"""Operations that read a part of an image's memory as fast as all of it."""


def growing(site: Site, first: Equation, *_: Equation) -> Change | None:
    """The concatenations that begin with the first one's result, and so on, in its memory."""
    changes, room, equation = dict[int, list[Equation]](), 0, first
    while (after := _after(site.flow, equation)) is not None:
        assert isinstance(after.op, Concatenate)
        more = after.op.channels[1:]
        changes[id(after)] = [after._replace(op=Grow(more, after.op.alpha))]
        room, equation = room + sum(more), after
    if not changes:
        return None
    assert isinstance(first.op, Concatenate)
    spacious = Concatenate(first.op.channels, first.op.alpha, room)
    return Change({id(first): [first._replace(op=spacious)]} | changes)


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
