"""What a command buffer holds: a function of equations, and what its inputs and outputs are bound to in this encode."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.storage import Block, Stack, Target
from openmps.metal.device import CommandBuffer, MTLBuffer
from openmps.metal.execution import Release
from openmps.metal.pending import Region, Writer
from openmps.ops.op import Equation, Function, Input, Op, Role


class Bound(Protocol):
    """Where the value of a function's input is found when the function runs."""

    def value(self) -> Any:
        """The value now."""
        ...

    def regions(self) -> Iterable[Region]:
        """The memory that it is found in; none where nobody else can have it."""
        ...


class Sink(Protocol):
    """Where the value of a function's output goes when the function has run."""

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Keep the value; ``is_shared`` says that its memory may be somebody else's too."""
        ...

    def regions(self) -> Iterable[Region]:
        """The memory that it goes to."""
        ...


class Cell(Protocol):
    """Memory that may be bound: of images, of a buffer, of what a state carries."""

    stays: ClassVar[bool]
    """Whether memory that is there is used as it is by what is encoded again and again; else it is each encode's."""

    @property
    def present(self) -> Any:
        """What is there now: a tensor, or None."""
        ...

    def likeness(self) -> Hashable:
        """What cells that can stand for one another have in common."""
        ...

    def twin(self) -> Self:
        """Another cell of this kind, without memory."""
        ...


class OverCells(Protocol):
    """A bound or a sink that can be told from others and made again over other memory."""

    def cells(self) -> Sequence[Any]:
        """The memory that it reads or writes."""
        ...

    def form(self) -> Hashable:
        """How it does so: all that it is besides its memory."""
        ...

    def over(self, cells: Sequence[Any]) -> Any:
        """The same over other memory, as many cells."""
        ...


class Number(NamedTuple):
    """A number that is this encode's own."""

    number: float

    def value(self) -> float:
        """The number."""
        return self.number

    def regions(self) -> tuple[()]:
        """None."""
        return ()


class Held:
    """A tensor that stays, whatever is encoded."""

    __slots__ = ("identity", "tensor")

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = tensor
        self.identity: Any = None
        """What a look at it found; see `openmps.core.kernel.replay`."""

    def value(self) -> Tensor | None:
        """The tensor."""
        return self.tensor

    def kept(self) -> tuple[Tensor | None]:
        """The tensors that it is bound to, whatever is encoded."""
        return (self.tensor,)

    def regions(self) -> list[Region]:
        """Its memory."""
        return [] if self.tensor is None else [Region(None, (), self.tensor)]


class Numbers:
    """Float32 numbers in a buffer, from a byte on; all of them without a count."""

    __slots__ = ("buffer", "count", "identity", "offset")

    def __init__(self, buffer: MTLBuffer, offset: int = 0, count: int | None = None) -> None:
        self.identity: Any = None
        self.buffer = buffer
        self.offset = offset
        self.count = count

    def cells(self) -> tuple[MTLBuffer]:
        """The memory that it reads or writes."""
        return (self.buffer,)

    def form(self) -> Hashable:
        """Which part of it."""
        return self.offset, self.count

    def over(self, cells: Sequence[MTLBuffer]) -> Self:
        """The same of another buffer."""
        return type(self)(cells[0], self.offset, self.count)

    def value(self) -> Tensor:
        """The numbers, sharing the buffer's memory."""
        return self.buffer.memory(torch.float32, self.offset, self.count)

    def regions(self) -> tuple[Region]:
        """The bytes of the numbers."""
        size = self.buffer.length - self.offset if self.count is None else 4 * self.count
        return (self.buffer.region(self.offset, size),)

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Put numbers in their place; where there is none yet, they become the buffer's memory."""
        buffer = self.buffer
        if not buffer.is_allocated and self._is_all_of(value):
            own = value.clone() if is_shared else value
            if buffer.bind_unless_allocated(own):
                return
        self.value().copy_(value)

    def _is_all_of(self, value: Tensor) -> bool:
        """Whether numbers can be the whole buffer's memory."""
        buffer = self.buffer
        return (
            self.offset == 0
            and value.nbytes == buffer.length
            and value.dtype == torch.float32
            and buffer.heap is None
            and value.is_contiguous()
            and value.device == buffer.device.torch_device
        )


class Sum(Numbers):
    """Numbers that are added to those in the buffer, which is zero at first."""

    __slots__ = ()

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Add numbers in their place."""
        self.value().add_(value)


class Replaced(NamedTuple):
    """Numbers that take the place of those in memory that is bound."""

    place: Any

    def cells(self) -> Sequence[Any]:
        """The memory that it writes."""
        return self.place.cells()

    def form(self) -> Hashable:
        """Which part of it."""
        return self.place.form()

    def over(self, cells: Sequence[Any]) -> Replaced:
        """The same of other memory."""
        return Replaced(self.place.over(cells))

    def regions(self) -> Iterable[Region]:
        """The memory that it writes."""
        return self.place.regions()

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Put numbers in the place of those before."""
        room = self.place.value()
        room.copy_(value.reshape(room.shape))


class Constant:
    """Numbers of a configuration; copied to a device when they are first used there."""

    __slots__ = ("_made", "numbers")

    def __init__(self, numbers: NDArray[Any]) -> None:
        self.numbers = numbers
        self._made: dict[torch.device, Held] = {}

    def on(self, device: torch.device) -> Held:
        """The numbers on a device; the same tensor each time."""
        made = self._made.get(device)
        if made is None:
            made = self._made.setdefault(device, Held(torch.from_numpy(self.numbers.copy()).to(device)))
        return made


class Pixels(NamedTuple):
    """The part of a destination that results are written to."""

    stack: Stack
    target: Target

    def cells(self) -> tuple[Block, ...]:
        """The memory that it writes."""
        return self.stack.cells()

    def form(self) -> Hashable:
        """How it writes it."""
        return self.target, self.stack.form()

    def over(self, cells: Sequence[Block]) -> Pixels:
        """The same of other memory."""
        return Pixels(self.stack.over(cells), self.target)

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Write the elements; nothing where nothing was computed."""
        if value is not None:
            self.stack.write(value, self.target, is_shared=is_shared)

    def regions(self) -> list[Region]:
        """The images; the target is not looked at."""
        return self.stack.regions()


class Several(NamedTuple):
    """Sinks that take one value together, each a memory of its own."""

    sinks: Sequence[Sink]

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Hand the value to each."""
        for sink in self.sinks:
            sink.take(value, is_shared=True)

    def regions(self) -> list[Region]:
        """The memory of each."""
        return [region for sink in self.sinks for region in sink.regions()]


class Nowhere(NamedTuple):
    """Takes what nobody asked for."""

    def take(self, value: Any, *, is_shared: bool) -> None:
        """Let go of the value."""

    def regions(self) -> tuple[()]:
        """None."""
        return ()


NOWHERE = Nowhere()


class Frame:
    """What dispatches of one function share: all but some of their bindings. The same object for all of them."""

    __slots__ = ("__weakref__", "anew", "anew_sinks", "serial")

    def __init__(self, anew: tuple[int, ...], anew_sinks: tuple[int, ...] | None = ()) -> None:
        self.serial = next(_serials)
        """A number that no other frame has."""
        self.anew = anew
        """The inputs that each encode binds."""
        self.anew_sinks = anew_sinks
        """The sinks that are each encode's own; None for all of them."""


_serials = itertools.count()


class Dispatch(Writer):
    """One encode: a function and its bindings. Running it reads the inputs, computes, and hands the outputs out."""

    __slots__ = ("frame", "function", "inputs", "sinks", "used")

    guards: ClassVar[bool] = False
    """Whether it looks at its results when it runs, and may raise; see `sound`."""

    def __init__(
        self,
        function: Function,
        inputs: tuple[Bound, ...],
        used: tuple[bool, ...],
        sinks: tuple[Sink, ...],
        frame: Frame | None = None,
    ) -> None:
        self.function = function
        self.frame = frame
        """All dispatches of this very frame share the function, and the bindings that the frame does not name."""
        self.inputs = inputs
        """What each input of the function is bound to, in the function's order."""
        self.used = used
        """Of each input, whether it is read at all."""
        self.sinks = sinks
        """Where each output of the function goes, in the function's order."""

    def __call__(self) -> None:
        """Run the function. On the queue's thread, in the order of the command buffer."""
        self.hand_out(self.function.run(self.values()))

    def writes(self) -> Iterator[Region]:
        """The memory of the sinks, and of the inputs that are overwritten."""
        places: list[Any] = [*self.sinks, *(self.inputs[index] for index in self.function.overwritten())]
        for place in places:
            yield from place.regions()

    def reads(self) -> Iterator[Region]:
        """The memory of the inputs that are read, but for those that are overwritten."""
        overwritten = set(self.function.overwritten())
        for index, (each, used) in enumerate(zip(self.inputs, self.used, strict=True)):
            if used and index not in overwritten:
                yield from each.regions()

    def sound(self, made: list[Any]) -> Tensor | None:
        """Of an encode that guards: whether its results are certainly in order, told on the device; None for yes."""
        return None

    def values(self) -> list[Any]:
        """The inputs' values now; None for those that nobody reads."""
        return [each.value() if used else None for each, used in zip(self.inputs, self.used, strict=True)]

    def hand_out(self, made: list[Any]) -> None:
        """Hand the outputs to their sinks."""
        for sink, value, is_shared in zip(self.sinks, made, self.function.may_share, strict=True):
            sink.take(value, is_shared=is_shared)

    def __repr__(self) -> str:
        return f"Dispatch({self.function!r})"


def record_op(
    command_buffer: CommandBuffer, label: str, op: Op, operands: Sequence[Bound], sinks: Sequence[Sink] = ()
) -> None:
    """Record one operation: an update, a reload, a copy. It writes its operands' memory, or ``sinks`` take its results.

    There are as many sinks as results, or none.
    """
    record_function(command_buffer, label, function_of_op(op, tuple(map(type, operands)), len(sinks)), operands, sinks)


def prepared_op(op: Op, operands: Sequence[Bound]) -> Dispatch:
    """One operation that writes its operands' memory, to be recorded as often as it is bound to the same."""
    bound = tuple(operands)
    return Dispatch(function_of_op(op, tuple(map(type, bound))), bound, (True,) * len(bound), (), Frame(()))


def record_function(
    command_buffer: CommandBuffer, label: str, function: Function, operands: Sequence[Bound], sinks: Sequence[Sink] = ()
) -> None:
    """Record a function that reads all its inputs."""
    command_buffer.record(label, Dispatch(function, tuple(operands), (True,) * len(operands), tuple(sinks)))


def bound_last(command_buffer: CommandBuffer) -> tuple[Bound, ...]:
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
