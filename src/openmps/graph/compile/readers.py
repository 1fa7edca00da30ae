"""Who reads each slot of a body, and who fills it: what rules ask before they replace steps."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.ops.elements import Load, Store
from openmps.ops.op import Body, Step
from openmps.types import MPSImageFeatureChannelFormat

_LOAD_HALF = Load(MPSImageFeatureChannelFormat.FLOAT16)
_STORE_HALF = Store(MPSImageFeatureChannelFormat.FLOAT16)


class Readers:
    """Who reads each slot of a body, and who fills it."""

    def __init__(self, body: Body) -> None:
        self.outputs = set(body.output_slots)
        self.makers = {slot: step for step in body.steps for slot in step.writes}
        self._readers: dict[int, list[Step]] = {}
        for step in body.steps:
            for index in step.reads:
                self._readers.setdefault(index, []).append(step)

    def of(self, slot: int) -> list[Step]:
        """The steps that read a slot."""
        return self._readers.get(slot, [])

    def is_read(self, slot: int) -> bool:
        """Whether any step reads a slot, or it comes out."""
        return slot in self._readers or slot in self.outputs

    def only(self, slot: int) -> Step | None:
        """The one step that reads a slot; None if there is another, or if the slot comes out."""
        readers = self.of(slot)
        return readers[0] if len(readers) == 1 and slot not in self.outputs else None

    def stored(self, slot: int) -> int:
        """The slot that ``slot`` is stored in as float16, if that is all that reads it; else the slot itself."""
        reader = self.only(slot)
        return reader.writes[0] if reader is not None and reader.op == _STORE_HALF else slot

    def uses(self, slot: int) -> list[Step]:
        """The steps that read a slot, also by way of its numbers in float32."""
        found: list[Step] = []
        for step in self.of(slot):
            found += self.uses(step.writes[0]) if step.op == _LOAD_HALF else [step]
        return found

    def inner(self, slot: int, readers: Sequence[Step]) -> bool:
        """Whether these steps alone use a slot."""
        known, loads = {id(each) for each in readers}, [each for each in self.of(slot) if each.op == _LOAD_HALF]
        comes_out = slot in self.outputs or any(each.writes[0] in self.outputs for each in loads)
        return not comes_out and all(id(each) in known for each in self.uses(slot))

    def origin(self, slot: int) -> int:
        """The slot that holds the numbers of ``slot`` as they are stored."""
        maker = self.makers.get(slot)
        return self.origin(maker.reads[0]) if maker is not None and maker.op == _LOAD_HALF else slot
