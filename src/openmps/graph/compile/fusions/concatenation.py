"""Images that grow by concatenations, as in DenseNet; see `openmps.graph.compile.fusions.fusion`.

The slow steps are concatenations of which each begins with the result of the one before. Where no gradients are
computed, and where normalizations with prepared factors alone read what stands between, the first makes room for all:
the others put their own channels there, and copy nothing else.
"""

from __future__ import annotations

from openmps.graph.compile.readers import Readers
from openmps.ops.convolution.convolution import ContractionGradient
from openmps.ops.convolution.preactivated_convolution import PreactivatedConvolution
from openmps.ops.layout.concatenation import Concatenate, Grow
from openmps.ops.normalization.stored_normalization import StoredNormalization
from openmps.ops.op import Body, Step

_READERS = StoredNormalization, PreactivatedConvolution
"""Operations that read a part of an image's memory as fast as all of it."""


def growing_concatenations(body: Body) -> tuple[Body, set[int]]:
    """The body with concatenations that share memory, and the slots that are never filled any more: none."""
    if any(isinstance(step.op, ContractionGradient) for step in body.steps):
        return body, set()
    readers = Readers(body)
    following = {step.writes[0]: after for step in body.steps if (after := _after(readers, step)) is not None}
    places = {after.writes[0] for after in following.values()}
    if not places:
        return body, set()
    steps = [_step(step, places, following) for step in body.steps]
    return body.with_steps(steps, body.slots), set()


def _step(step: Step, places: set[int], following: dict[int, Step]) -> Step:
    """What becomes of a step: a concatenation makes room for those that follow, or grows."""
    if not isinstance(step.op, Concatenate):
        return step
    channels, end = step.op.channels, step.writes[0]
    if end in places:
        return step._replace(op=Grow(channels[1:]))
    room = 0
    while (after := following.get(end)) is not None:
        assert isinstance(after.op, Concatenate)
        room, end = room + sum(after.op.channels[1:]), after.writes[0]
    return step._replace(op=Concatenate(channels, room))


def _after(readers: Readers, step: Step) -> Step | None:
    """The concatenation that a step's result may grow by."""
    if not isinstance(step.op, Concatenate) or step.writes[0] in readers.outputs:
        return None
    end, found = step.writes[0], readers.of(step.writes[0])
    growing = [each for each in found if isinstance(each.op, Concatenate)]
    if len(growing) != 1 or not all(isinstance(each.op, (Concatenate, *_READERS)) for each in found):
        return None
    op, reads = growing[0].op, growing[0].reads
    assert isinstance(op, Concatenate)
    is_begin = reads[0] == end and end not in reads[1:] and op.channels[0] == sum(step.op.channels)
    return growing[0] if is_begin else None
