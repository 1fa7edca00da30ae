"""Who reads each slot of a body: what rules ask before they replace steps."""

from __future__ import annotations

from openmps.ops.elements import Store
from openmps.ops.op import Body, Step
from openmps.types import MPSImageFeatureChannelFormat

_STORE_HALF = Store(MPSImageFeatureChannelFormat.FLOAT16)


class Readers:
    """Who reads each slot of a body."""

    def __init__(self, body: Body) -> None:
        self.outputs = set(body.output_slots)
        self._readers: dict[int, list[Step]] = {}
        for step in body.steps:
            for index in step.reads:
                self._readers.setdefault(index, []).append(step)

    def of(self, slot: int) -> list[Step]:
        """The steps that read a slot."""
        return self._readers.get(slot, [])

    def only(self, slot: int) -> Step | None:
        """The one step that reads a slot; None if there is another, or if the slot comes out."""
        readers = self.of(slot)
        return readers[0] if len(readers) == 1 and slot not in self.outputs else None

    def stored(self, slot: int) -> int:
        """The slot that ``slot`` is stored in as float16, if that is all that reads it; else the slot itself."""
        reader = self.only(slot)
        return reader.writes[0] if reader is not None and reader.op == _STORE_HALF else slot
