"""Where the values of a function come from and go to: what rules ask before they replace equations."""

from __future__ import annotations

from collections.abc import Container, Sequence

from openmps.errors import MPSArgumentError
from openmps.ops.elements import Load, Store
from openmps.ops.normalization.batch_normalization import JoinRows, SplitRows
from openmps.ops.op import Equation, Function, Role
from openmps.types import MPSImageFeatureChannelFormat

STORE_HALF, LOAD_HALF = Store(MPSImageFeatureChannelFormat.FLOAT16), Load(MPSImageFeatureChannelFormat.FLOAT16)


def filled(function: Function) -> set[int]:
    """The values that equations of a function fill."""
    return {value for equation in function.equations for value in equation.writes}


class DataFlow:
    """Who fills each value of a function, and who reads it, as it is or by way of conversions between formats."""

    def __init__(self, function: Function) -> None:
        self.inputs = dict(zip(function.input_values, function.inputs, strict=True))
        self.outputs = set(function.output_values)
        self.makers = {value: equation for equation in function.equations for value in equation.writes}
        self._readers: dict[int, list[Equation]] = {}
        for equation in function.equations:
            for value in equation.reads:
                self._readers.setdefault(value, []).append(equation)

    def readers(self, value: int) -> list[Equation]:
        """The equations that read a value as it is."""
        return self._readers.get(value, [])

    def only_reader(self, value: int) -> Equation | None:
        """The one equation that reads a value; None if there is another, or if the value comes out."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and value not in self.outputs else None

    def is_read(self, value: int) -> bool:
        """Whether any equation reads a value, or it comes out."""
        return value in self._readers or value in self.outputs

    def uses(self, value: int) -> list[Equation]:
        """The equations that read a value, also by way of its numbers in float32."""
        found: list[Equation] = []
        for equation in self.readers(value):
            found += self.uses(equation.writes[0]) if equation.op == LOAD_HALF else [equation]
        return found

    def comes_out(self, value: int) -> bool:
        """Whether a value, or its numbers in float32, come out."""
        loads = [each.writes[0] for each in self.readers(value) if each.op == LOAD_HALF]
        return value in self.outputs or any(map(self.comes_out, loads))

    def inner_uses(self, value: int) -> list[Equation] | None:
        """The equations that use a value; None if it comes out."""
        return None if self.comes_out(value) else self.uses(value)

    def followers(self, equation: Equation) -> list[tuple[Equation, int]]:
        """The equations that read a result of one, as it is or by way of conversions to float16 and back.

        With each the value that it reads.
        """
        found: list[tuple[Equation, int]] = []
        for value in equation.writes:
            for reader in dict.fromkeys(self.readers(value)):
                found.append((reader, value))
                found += self.followers(reader) if reader.op in (LOAD_HALF, STORE_HALF) else []
        return found

    def is_input(self, value: int, roles: Container[Role]) -> bool:
        """Whether a value is an input of one of these roles, or left out."""
        found = self.inputs.get(value)
        return value == -1 or (found is not None and found.role in roles)

    def is_inner(self, value: int, users: Sequence[Equation]) -> bool:
        """Whether these equations alone use a value."""
        known = {id(each) for each in users}
        return not self.comes_out(value) and all(id(each) in known for each in self.uses(value))

    def stored_half(self, value: int) -> int | None:
        """The value that ``value`` is stored in as float16, if that is all that becomes of it; None if it is not."""
        reader = self.only_reader(value)
        return reader.writes[0] if reader is not None and reader.op == STORE_HALF else None

    def stored(self, value: int) -> int:
        """The same, or the value itself."""
        stored = self.stored_half(value)
        return value if stored is None else stored

    def origin(self, value: int) -> int:
        """The value that holds the numbers of ``value`` as they are stored."""
        maker = self.makers.get(value)
        return self.origin(maker.reads[0]) if maker is not None and maker.op == LOAD_HALF else value

    def made(self, value: int) -> tuple[Equation | None, bool]:
        """The equation that made a value, and whether its result was stored as float16 between."""
        maker = self.makers.get(self.origin(value))
        if maker is not None and maker.op == STORE_HALF:
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


def verify(function: Function) -> None:
    """Raise unless every value is filled before it is read, once, and every output is filled."""
    filled = {-1, *function.input_values}
    for equation in function.equations:
        unfilled = [index for index in equation.reads if index not in filled]
        again = [index for index in equation.writes if index in filled]
        if unfilled or again:
            got = f"{equation.op} reads {unfilled} too early, fills {again} again"
            raise MPSArgumentError(
                "MPSNNGraph", "function", "must fill values once, before they are read", got, _DEFECT
            )
        filled.update(equation.writes)
    missing = [
        name for name, value in zip(function.outputs, function.output_values, strict=True) if value not in filled
    ]
    if missing:
        raise MPSArgumentError("MPSNNGraph", "function", "must fill every output", missing, _DEFECT)


_DEFECT = "This is a defect of the graph compiler"
