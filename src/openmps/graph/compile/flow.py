"""Where the values of a function come from and go to, for rules that look through conversions between formats."""

from __future__ import annotations

from openmps.ops.elements import Load, Store
from openmps.ops.normalization.batch_normalization import JoinRows, SplitRows
from openmps.ops.op import Equation, Function
from openmps.types import MPSImageFeatureChannelFormat

STORE, LOAD = Store(MPSImageFeatureChannelFormat.FLOAT16), Load(MPSImageFeatureChannelFormat.FLOAT16)


def filled(function: Function) -> set[int]:
    """The values that equations of a function fill."""
    return {value for equation in function.equations for value in equation.writes}


class Flow:
    """Where the values of a function come from and go to, conversions between formats left out."""

    def __init__(self, function: Function) -> None:
        self.outputs = set(function.output_values)
        self.makers = {value: equation for equation in function.equations for value in equation.writes}
        self._readers: dict[int, list[Equation]] = {}
        for equation in function.equations:
            for value in equation.reads:
                self._readers.setdefault(value, []).append(equation)

    def readers(self, value: int) -> list[Equation]:
        """The equations that read a value as it is."""
        return self._readers.get(value, [])

    def uses(self, value: int) -> list[Equation] | None:
        """The equations that read a value, also by way of its numbers in float32; None if it, or these, come out."""
        found: list[Equation] = []
        if value in self.outputs:
            return None
        for equation in self._readers.get(value, []):
            if equation.op == LOAD:
                further = self.uses(equation.writes[0])
                if further is None:
                    return None
                found += further
            else:
                found.append(equation)
        return found

    def stored(self, value: int) -> int | None:
        """The value that ``value`` is stored in as float16, if that is all that becomes of it; None if it is not."""
        uses = self._readers.get(value, [])
        is_stored = len(uses) == 1 and uses[0].op == STORE and value not in self.outputs
        return uses[0].writes[0] if is_stored else None

    def origin(self, value: int) -> int:
        """The value that holds the numbers of ``value`` as they are stored."""
        maker = self.makers.get(value)
        return self.origin(maker.reads[0]) if maker is not None and maker.op == LOAD else value

    def made(self, value: int) -> tuple[Equation | None, bool]:
        """The equation that made a value, and whether its result was stored as float16 between."""
        maker = self.makers.get(self.origin(value))
        if maker is not None and maker.op == STORE:
            return self.makers.get(maker.reads[0]), True
        return maker, False

    def row(self, value: int) -> int:
        """The row of numbers that a value is, before it was joined with others and split off again."""
        maker = self.makers.get(value)
        if maker is None or not isinstance(maker.op, SplitRows):
            return value
        joined = self.makers.get(maker.reads[0])
        if joined is None or not isinstance(joined.op, JoinRows):
            return value
        return joined.reads[maker.writes.index(value)]
