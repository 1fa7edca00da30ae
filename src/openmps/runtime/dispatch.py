"""What a command buffer holds: a function of equations, and what its inputs and outputs are bound to in this encode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

from torch import Tensor

from openmps.metal.device import CommandBuffer
from openmps.metal.execution import Release
from openmps.metal.pending import Region, Writer
from openmps.metal.version import Version
from openmps.ops.op import Equation, Function, Input, Op, Role
from openmps.runtime.binding import Binding, MemoryBinding, Number, PersistentBinding, flat


class Frame:
    """What dispatches of one function share: all but some of their bindings. The same object for all of them."""

    __slots__ = ("__weakref__", "_kept", "anew", "anew_outputs", "serial")

    def __init__(self, anew: tuple[int, ...], anew_outputs: tuple[int, ...] | None = ()) -> None:
        self.serial = next(_serials)
        """A number that no other frame has."""
        self.anew = anew
        """The inputs that each encode binds."""
        self.anew_outputs = anew_outputs
        """The output bindings that are each encode's own; None for all of them."""
        self._kept: _Kept | None = None

    def values(self, dispatch: Dispatch) -> list[object]:
        """The values of a dispatch's inputs; those that stay are not looked up again."""
        kept = self._kept
        if kept is None or [each.number for each in kept.versions] != kept.numbers:
            kept = self._kept = _Kept.of(dispatch, self.anew)
        found, inputs = kept.values.copy(), dispatch.inputs
        for index in kept.asked:
            each = inputs[index]
            found[index] = each.number if type(each) is Number else each.value()
        return found

    def apart(self, label: str, dispatch: Dispatch) -> list[tuple[str, Dispatch]]:
        """What a dispatch of the frame joins, each by itself; for those who look at each."""
        return [(label, dispatch)]


class _Kept(NamedTuple):
    """Values of inputs that the dispatches of a frame share, in these versions."""

    versions: list[Version]
    numbers: list[int]
    values: list[object]
    asked: list[int]
    """The inputs whose values are looked up each time."""

    @classmethod
    def of(cls, dispatch: Dispatch, anew: Sequence[int]) -> _Kept:
        """What stays of the inputs of a dispatch but for those that each encode binds."""
        used = [index for index, is_used in enumerate(dispatch.used) if is_used]
        stays = [index for index in used if dispatch.inputs[index].value_stays and index not in anew]
        found = {id(each): each for index in stays for each in dispatch.inputs[index].versions()}
        versions = [*found.values()]
        # Before the values: what changes meanwhile, by another thread or because it is asked for, is looked up again.
        numbers = [each.number for each in versions]
        values: list[object] = [None] * len(dispatch.inputs)
        for index in stays:
            values[index] = dispatch.inputs[index].value()
        return cls(versions, numbers, values, [index for index in used if index not in set(stays)])


_serials = itertools.count()


class Dispatch(Writer):
    """One encode: a function and its bindings. Running it reads the inputs, computes, and hands the outputs out."""

    __slots__ = ("__weakref__", "frame", "function", "inputs", "output_bindings", "used")

    guards: ClassVar[bool] = False
    """Whether it looks at its results when it runs, and may raise; see `sound`."""

    def __init__(
        self,
        function: Function,
        inputs: tuple[Binding, ...],
        used: tuple[bool, ...],
        output_bindings: tuple[Binding, ...],
        frame: Frame | None = None,
    ) -> None:
        self.function = function
        self.frame = frame
        """All dispatches of this very frame share the function, and the bindings that the frame does not name."""
        self.inputs = inputs
        """What each input of the function is bound to, in the function's order."""
        self.used = used
        """Of each input, whether it is read at all."""
        self.output_bindings = output_bindings
        """Where each output of the function goes, in the function's order."""

    @property
    def single_use(self) -> str:
        """See `Writer`."""
        if type(self) is not Dispatch:
            return "an encode that looks at its results"
        for each, (_, name), is_used in zip(self.inputs, self.function.inputs, self.used, strict=True):
            if is_used and not isinstance(each, MemoryBinding | PersistentBinding):
                return f"an encode with a number of its own, {name!r}"
        if any(each.adds for each in flat(self.output_bindings)):
            return "an encode that adds to what a gradient state holds"
        return ""

    def apart(self, label: str) -> list[tuple[str, Dispatch]]:
        """What it joins, each by itself with a label; most often itself."""
        return [(label, self)] if self.frame is None else self.frame.apart(label, self)

    def __call__(self) -> None:
        """Run the function. On the queue's thread, in the order of the command buffer."""
        function = self.function
        has_room = function.forms or function.fills
        room = self.output_bindings[0].room() if has_room else None
        made = function.run(self.values(), room)
        # The only output of a function that had room for it is where it goes.
        if room is None or len(made) > 1 or made[0] is not None:
            self.hand_out(made)

    def writes(self) -> Iterator[Region]:
        """The memory of the output bindings, and of the inputs that are overwritten."""
        places = [*self.output_bindings, *(self.inputs[index] for index in self.function.overwritten())]
        for place in places:
            yield from place.regions()

    def reads(self) -> Iterator[Region]:
        """The memory of the inputs that are read, but for those that are overwritten."""
        overwritten = set(self.function.overwritten())
        for index, (each, used) in enumerate(zip(self.inputs, self.used, strict=True)):
            if used and index not in overwritten:
                yield from each.regions()

    def sound(self, made: Sequence[object]) -> Tensor | None:
        """Of an encode that guards: whether its results are certainly in order, told on the device; None for yes."""
        return None

    def values(self) -> list[object]:
        """The inputs' values now; None for those that nobody reads."""
        if self.frame is not None:
            return self.frame.values(self)
        return [each.value() if used else None for each, used in zip(self.inputs, self.used, strict=True)]

    def hand_out(self, made: Sequence[object]) -> None:
        """Hand the outputs to their bindings."""
        for output_binding, value, is_shared in zip(self.output_bindings, made, self.function.may_share, strict=True):
            output_binding.take(value, is_shared=is_shared)

    def __repr__(self) -> str:
        return f"Dispatch({self.function!r})"


def record_op(
    command_buffer: CommandBuffer,
    label: str,
    op: Op,
    operands: Sequence[Binding],
    output_bindings: Sequence[Binding] = (),
) -> None:
    """Record one operation: an update, a reload, a copy.

    It writes its operands' memory, or ``output_bindings`` take its results: as many as there are results, or none.
    """
    record_function(
        command_buffer,
        label,
        function_of_op(op, tuple(map(type, operands)), len(output_bindings)),
        operands,
        output_bindings,
    )


def prepared_op(op: Op, operands: Sequence[Binding]) -> Dispatch:
    """One operation that writes its operands' memory, to be recorded as often as it is bound to the same."""
    bound = tuple(operands)
    return Dispatch(function_of_op(op, tuple(map(type, bound))), bound, (True,) * len(bound), (), Frame(()))


def record_function(
    command_buffer: CommandBuffer,
    label: str,
    function: Function,
    operands: Sequence[Binding],
    output_bindings: Sequence[Binding] = (),
) -> None:
    """Record a function that reads all its inputs."""
    command_buffer.record(label, Dispatch(function, tuple(operands), (True,) * len(operands), tuple(output_bindings)))


def bound_last(command_buffer: CommandBuffer) -> tuple[Binding, ...]:
    """What the encode recorded last is bound to; nothing where other work came last, or an encoder is open."""
    recording = command_buffer.recording
    works = recording.execution.works
    last = works[-1][1] if works else None
    if isinstance(last, Release):
        last = next((work for _, work in reversed(works) if not isinstance(work, Release)), None)
    return last.inputs if isinstance(last, Dispatch) and recording.is_open else ()


@lru_cache(maxsize=1024)
def function_of_op(op: Op, operands: tuple[type, ...], outputs: int = 0) -> Function:
    """The function of one operation; ``operands`` are the classes of what its inputs will be bound to."""
    count = len(operands)
    roles = (Role.NUMBER if kind is Number else Role.BUFFER for kind in operands)
    inputs = tuple(Input(role, str(index)) for index, role in enumerate(roles))
    writes = tuple(range(count, count + op.results))
    equation = Equation(op, tuple(range(count)), writes)
    return Function(inputs, (equation,), tuple(map(str, range(outputs))), writes[:outputs], count + op.results)
