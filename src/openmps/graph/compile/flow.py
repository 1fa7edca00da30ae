"""Where the slots of a body come from and go to, for rules that look through conversions between formats."""

from __future__ import annotations

from openmps.ops.elements import Load, Store
from openmps.ops.normalization.batch_normalization import JoinRows, SplitRows
from openmps.ops.op import Body, Step
from openmps.types import MPSImageFeatureChannelFormat

STORE, LOAD = Store(MPSImageFeatureChannelFormat.FLOAT16), Load(MPSImageFeatureChannelFormat.FLOAT16)


def filled(body: Body) -> set[int]:
    """The slots that steps of a body fill."""
    return {slot for step in body.steps for slot in step.writes}


class Flow:
    """Where the slots of a body come from and go to, conversions between formats left out."""

    def __init__(self, body: Body) -> None:
        self.outputs = set(body.output_slots)
        self.makers = {slot: step for step in body.steps for slot in step.writes}
        self._readers: dict[int, list[Step]] = {}
        for step in body.steps:
            for slot in step.reads:
                self._readers.setdefault(slot, []).append(step)

    def readers(self, slot: int) -> list[Step]:
        """The steps that read a slot as it is."""
        return self._readers.get(slot, [])

    def uses(self, slot: int) -> list[Step] | None:
        """The steps that read a slot, also by way of its numbers in float32; None if it, or these, come out."""
        found: list[Step] = []
        if slot in self.outputs:
            return None
        for step in self._readers.get(slot, []):
            if step.op == LOAD:
                further = self.uses(step.writes[0])
                if further is None:
                    return None
                found += further
            else:
                found.append(step)
        return found

    def stored(self, slot: int) -> int | None:
        """The slot that ``slot`` is stored in as float16, if that is all that becomes of it; None if it is not."""
        uses = self._readers.get(slot, [])
        is_stored = len(uses) == 1 and uses[0].op == STORE and slot not in self.outputs
        return uses[0].writes[0] if is_stored else None

    def origin(self, slot: int) -> int:
        """The slot that holds the numbers of ``slot`` as they are stored."""
        maker = self.makers.get(slot)
        return self.origin(maker.reads[0]) if maker is not None and maker.op == LOAD else slot

    def made(self, slot: int) -> tuple[Step | None, bool]:
        """The step that made a slot, and whether its result was stored as float16 between."""
        maker = self.makers.get(self.origin(slot))
        if maker is not None and maker.op == STORE:
            return self.makers.get(maker.reads[0]), True
        return maker, False

    def row(self, slot: int) -> int:
        """The row of numbers that a slot is, before it was joined with others and split off again."""
        maker = self.makers.get(slot)
        if maker is None or not isinstance(maker.op, SplitRows):
            return slot
        joined = self.makers.get(maker.reads[0])
        if joined is None or not isinstance(joined.op, JoinRows):
            return slot
        return joined.reads[maker.writes.index(slot)]
