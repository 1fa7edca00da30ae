"""Who reads each value of a function, and who fills it: what rules ask before they replace equations."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.ops.elements import Load, Store
from openmps.ops.op import Equation, Function
from openmps.types import MPSImageFeatureChannelFormat

_LOAD_HALF = Load(MPSImageFeatureChannelFormat.FLOAT16)
_STORE_HALF = Store(MPSImageFeatureChannelFormat.FLOAT16)


class Readers:
    """Who reads each value of a function, and who fills it."""

    def __init__(self, function: Function) -> None:
        self.outputs = set(function.output_values)
        self.makers = {value: equation for equation in function.equations for value in equation.writes}
        self._readers: dict[int, list[Equation]] = {}
        for equation in function.equations:
            for index in equation.reads:
                self._readers.setdefault(index, []).append(equation)

    def of(self, value: int) -> list[Equation]:
        """The equations that read a value."""
        return self._readers.get(value, [])

    def is_read(self, value: int) -> bool:
        """Whether any equation reads a value, or it comes out."""
        return value in self._readers or value in self.outputs

    def only(self, value: int) -> Equation | None:
        """The one equation that reads a value; None if there is another, or if the value comes out."""
        readers = self.of(value)
        return readers[0] if len(readers) == 1 and value not in self.outputs else None

    def stored(self, value: int) -> int:
        """The value that ``value`` is stored in as float16, if that is all that reads it; else the value itself."""
        reader = self.only(value)
        return reader.writes[0] if reader is not None and reader.op == _STORE_HALF else value

    def uses(self, value: int) -> list[Equation]:
        """The equations that read a value, also by way of its numbers in float32."""
        found: list[Equation] = []
        for equation in self.of(value):
            found += self.uses(equation.writes[0]) if equation.op == _LOAD_HALF else [equation]
        return found

    def inner(self, value: int, readers: Sequence[Equation]) -> bool:
        """Whether these equations alone use a value."""
        known, loads = {id(each) for each in readers}, [each for each in self.of(value) if each.op == _LOAD_HALF]
        comes_out = value in self.outputs or any(each.writes[0] in self.outputs for each in loads)
        return not comes_out and all(id(each) in known for each in self.uses(value))

    def origin(self, value: int) -> int:
        """The value that holds the numbers of ``value`` as they are stored."""
        maker = self.makers.get(value)
        return self.origin(maker.reads[0]) if maker is not None and maker.op == _LOAD_HALF else value
