"""What an encode computes, as data: operations with fields, the steps that apply them to slots, bodies of steps.

An `Op` is one operation of the mathematics. Its numbers are fields, its tensors are arguments, so that operations can
be compared, hashed, listed and replaced. A kernel writes its mathematics once, by applying operations to slots::

    largest, choice = MaxPooling(window, edge_mode)(x)

Each application is a `Step`. A `Body` is the steps of one encode, or of a whole graph, over numbered slots: inputs that
an encode binds (sources, saved tensors, buffers, numbers), temporaries, and outputs. Bodies know no memory: the same
body serves every encode of equal kernels over equal shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, FrozenInstanceError, dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, NoReturn, dataclass_transform

from torch import Tensor


class Kind(Enum):
    """What a rewrite may ask of an operation besides its fields."""

    STORAGE = auto()
    """Formats and places: no arithmetic."""
    POINTWISE = auto()
    """Each number of the result follows from the numbers at its place, and from those of its channel."""
    WINDOW = auto()
    """Each pixel of the result follows from a window of pixels of its channel."""
    REDUCTION = auto()
    """Sums, means or extremes over axes."""
    CONTRACTION = auto()
    """Sums of products: convolutions and matrix products."""
    RANDOM = auto()
    """Made of a seed and a number that counts."""
    UPDATE = auto()
    """Writes the memory of its operands."""
    COLLECTIVE = auto()
    """Done by several processes together: all of them run it, in the same order."""


Values = Tensor | tuple[Tensor | None, ...] | None
"""What an operation gives: its one result, or a tuple of several; None in the place of what nobody wanted."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Op:
    """One operation: numbers are fields, tensors are arguments.

    A subclass is a frozen dataclass: its annotations are its fields. It names what it is ``of``, the function that gets
    the operands, and the fields by name, or has a ``run`` of its own::

        class AveragePooling(Op, of=average_pooling, kind=Kind.WINDOW):
            window: Window
            edge_mode: MPSImageEdgeMode

    What is not said is as in the base. Applied to slots it adds a step to their body and gives its results.
    """

    kind: ClassVar[Kind] = Kind.POINTWISE
    results: ClassVar[int] = 1
    gives_view: ClassVar[bool] = False
    """Whether a result may share the memory of an operand."""
    has_effect: ClassVar[bool] = False
    """Whether it writes the memory of operands, so that it runs even if nobody reads its results."""
    takes_device_numbers: ClassVar[bool] = False
    """Whether a number among its operands may come as a tensor without axes on the device: float64 or int64."""
    _function: ClassVar[Callable[..., Any]]
    _takes_half: ClassVar[bool] = False
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(
        cls,
        *,
        of: Callable[..., Any] | None = None,
        kind: Kind | None = None,
        results: int | None = None,
        half: bool | None = None,
        gives_view: bool | None = None,
        has_effect: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        function = None if of is None else staticmethod(of)
        said = {"_function": function, "kind": kind, "results": results, "_takes_half": half}
        for name, value in {**said, "gives_view": gives_view, "has_effect": has_effect}.items():
            if value is not None:
                setattr(cls, name, value)
        if "__dataclass_fields__" not in cls.__dict__:
            dataclass(frozen=True)(cls)
            # `Op` has them; a class of its own ones could not be decorated as a dataclass again, with slots.
            for name in ("__setattr__", "__delattr__"):
                delattr(cls, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    @property
    def takes_half(self) -> bool:
        """Whether float16 operands may come as they are stored; the result is float16 or better then, rounded once."""
        return self._takes_half

    @property
    def gives_half(self) -> bool:
        """Whether results may be float16 where operands are; else they are float32."""
        return self.takes_half

    def overwritten(self, operands: int) -> Iterable[int]:
        """Which of so many operands' memory it writes: none, unless it `has_effect`."""
        return ()

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Values:
        """Compute: ``wanted[i]`` says whether somebody reads result i; of one result a tensor, of several a tuple."""
        return self._function(*operands, **vars(self))

    def __call__(self, *operands: Any) -> Any:
        """Apply to slots (or None, for an operand that is left out): a slot for each result, the one itself if one."""
        builder = next((operand.builder for operand in operands if isinstance(operand, Slot)), None)
        if builder is None:
            raise TypeError("an operation is applied to at least one slot")
        made = builder.add(self, operands)
        return made[0] if self.results == 1 else made


class Role(Enum):
    """What an input of a body is."""

    SOURCE = auto()
    """Elements of an image as they are stored."""
    SAVED = auto()
    """What a forward encode left for its gradient."""
    BUFFER = auto()
    """Memory that stays: weights, statistics, labels."""
    PREPARED = auto()
    """What follows from memory that stays, made again when that changes."""
    CONSTANT = auto()
    """Numbers that the configuration holds, the same at every encode."""
    NUMBER = auto()
    """A number that is new at each encode: a rate, a count."""


class Input(NamedTuple):
    """An input of a body: what it is, and its name among those of its role."""

    role: Role
    name: str


class Step(NamedTuple):
    """One application of an operation; -1 stands for an operand that is left out."""

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Slot:
    """A value of a body that is being built."""

    __slots__ = ("builder", "index", "is_half")

    def __init__(self, builder: Builder, index: int, is_half: bool = False) -> None:
        self.builder = builder
        self.index = index
        self.is_half = is_half
        """Whether the value may be float16."""


class Builder:
    """Collects the steps of a body. ``widen`` makes the step that turns float16 into float32."""

    def __init__(self, widen: Op | None = None) -> None:
        self._inputs: dict[Input, Slot] = {}
        self._steps: list[Step] = []
        self._outputs: dict[str, Slot] = {}
        self._widened: dict[int, Slot] = {}
        self._widen = widen
        self._count = 0

    def new_slot(self, is_half: bool = False) -> Slot:
        """A slot that nothing fills yet."""
        self._count += 1
        return Slot(self, self._count - 1, is_half)

    def input(self, role: Role, name: str, is_half: bool = False) -> Slot:
        """The input of this role and name; the same slot each time."""
        key = Input(role, name)
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = self.new_slot(is_half)
        return found

    def add(self, op: Op, operands: Sequence[Slot | None]) -> tuple[Slot, ...]:
        """Apply ``op``: one slot for each of its results."""
        if not op.takes_half:
            operands = [self._wide(operand) for operand in operands]
        is_half = op.gives_half and any(operand is not None and operand.is_half for operand in operands)
        made = tuple(self.new_slot(is_half) for _ in range(op.results))
        reads = tuple(-1 if operand is None else operand.index for operand in operands)
        self._steps.append(Step(op, reads, tuple(slot.index for slot in made)))
        return made

    def _wide(self, operand: Slot | None) -> Slot | None:
        if operand is None or not operand.is_half or self._widen is None:
            return operand
        found = self._widened.get(operand.index)
        if found is None:
            found = self._widened[operand.index] = self.new_slot()
            self._steps.append(Step(self._widen, (operand.index,), (found.index,)))
        return found

    def output(self, name: str, slot: Slot) -> None:
        """Give ``slot`` out under a name."""
        self._outputs[name] = slot

    def splice(self, body: Body, operands: Sequence[Slot | None]) -> dict[str, Slot]:
        """Append all steps of another body, its inputs replaced by ``operands``; returns its outputs' slots here."""
        places = {
            index: -1 if operand is None else operand.index
            for index, operand in zip(body.input_slots, operands, strict=True)
        }
        places[-1] = -1

        def place(index: int) -> int:
            if index not in places:
                places[index] = self.new_slot().index
            return places[index]

        for step in body.steps:
            reads, writes = tuple(map(place, step.reads)), tuple(map(place, step.writes))
            self._steps.append(Step(step.op, reads, writes))
        return {name: Slot(self, place(index)) for name, index in zip(body.outputs, body.output_slots, strict=True)}

    @property
    def slots(self) -> int:
        """How many slots there are so far."""
        return self._count

    def finish(self) -> Body:
        """The body of what was added; the last call. Slots know their builder, which lets go of them here."""
        body = Body(
            tuple(self._inputs),
            self._steps,
            tuple(self._outputs),
            tuple(slot.index for slot in self._outputs.values()),
            self._count,
            tuple(slot.index for slot in self._inputs.values()),
        )
        for slots in (self._inputs, self._outputs, self._widened):
            slots.clear()
        return body


class Action(NamedTuple):
    """A step made ready to run: which results are read, and which slots nobody reads afterwards."""

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    wanted: tuple[bool, ...]
    frees: tuple[int, ...]


Performer = Callable[[Action, list[Any]], Any]
"""Runs a step on its operands, and gives what `Op.run` gives."""


class Body:
    """Steps over numbered slots. Made once, run often.

    Steps whose results nobody reads are left out, unless they have an effect.
    """

    __slots__ = (
        "actions",
        "fused",
        "input_slots",
        "inputs",
        "may_share",
        "origin",
        "output_slots",
        "outputs",
        "slots",
        "steps",
    )

    def __init__(
        self,
        inputs: tuple[Input, ...],
        steps: Sequence[Step],
        outputs: tuple[str, ...],
        output_slots: tuple[int, ...],
        slots: int,
        input_slots: tuple[int, ...] | None = None,
    ) -> None:
        self.inputs = inputs
        self.input_slots = tuple(range(len(inputs))) if input_slots is None else input_slots
        """Where the inputs are; the first slots unless said."""
        self.outputs = outputs
        """Names of what comes out."""
        self.output_slots = output_slots
        self.slots = slots
        self.steps = _live(steps, set(output_slots))
        self.actions = _actions(self.steps, set(output_slots))
        self.may_share = _sharing(self.steps, self.input_slots, output_slots)
        """Of each output, whether it may share memory with an input or with another output."""
        self.fused: tuple[str, ...] = ()
        """What runs as a part of something else, by name; whoever made the steps so says it."""
        self.origin: Callable[[], object] | None = None
        """Gives what joined the body from several, while that exists; None for the body of one kernel."""

    def overwritten(self) -> list[int]:
        """Which inputs' memory is written when the body runs, by their places."""
        places = {slot: place for place, slot in enumerate(self.input_slots)}
        slots = {step.reads[index] for step in self.steps for index in step.op.overwritten(len(step.reads))}
        return [places[slot] for slot in sorted(slots) if slot in places]

    def only(self, outputs: Iterable[str]) -> Body:
        """The body that gives some of the outputs, without the work for the others."""
        wanted = set(outputs)
        kept = [(name, slot) for name, slot in zip(self.outputs, self.output_slots, strict=True) if name in wanted]
        if len(kept) == len(self.outputs):
            return self
        names, slots = tuple(name for name, _ in kept), tuple(slot for _, slot in kept)
        return Body(self.inputs, self.steps, names, slots, self.slots, self.input_slots)

    def with_steps(self, steps: Sequence[Step], slots: int, inputs: Mapping[Input, int] | None = None) -> Body:
        """The body with other steps, over so many slots, and with other inputs, in these slots, if they are given."""
        given = dict(zip(self.inputs, self.input_slots, strict=True)) if inputs is None else inputs
        return Body(tuple(given), steps, self.outputs, self.output_slots, slots, tuple(given.values()))

    def operations(self) -> tuple[str, ...]:
        """The names of the operations of all steps, in order."""
        return tuple(type(action.op).__name__ for action in self.actions)

    def run(self, values: list[Any]) -> list[Any]:
        """Run every step. ``values`` are those of the inputs, in order; returns the outputs'."""
        given, values = values, [None] * self.slots
        for index, value in zip(self.input_slots, given, strict=True):
            values[index] = value
        given.clear()
        for op, reads, writes, wanted, frees in self.actions:
            made = op.run(wanted, *[None if index < 0 else values[index] for index in reads])
            if len(writes) == 1:
                values[writes[0]] = made
            elif made is not None:
                for index, value in zip(writes, made, strict=True):
                    values[index] = value
            made = None
            for index in frees:
                values[index] = None
        return [values[index] for index in self.output_slots]

    def run_each(self, values: list[Any], perform: Performer) -> list[Any]:
        """As `run`, but each step is ``perform(action, operands)``; for those who look at steps or time them."""
        given, values = values, [None] * self.slots
        for index, value in zip(self.input_slots, given, strict=True):
            values[index] = value
        given.clear()
        for action in self.actions:
            made = perform(action, [None if index < 0 else values[index] for index in action.reads])
            if len(action.writes) == 1:
                made = (made,)
            for index, value in zip(action.writes, made or (), strict=made is not None):
                values[index] = value
            made = None
            for index in action.frees:
                values[index] = None
        return [values[index] for index in self.output_slots]

    def __repr__(self) -> str:
        lines = [f"{', '.join(map(str, step.writes)) or '-'} = {step.op}{step.reads}" for step in self.steps]
        return f"Body(inputs={[f'{each.role.name}:{each.name}' for each in self.inputs]}, " + "; ".join(lines) + ")"


def _live(steps: Sequence[Step], outputs: set[int]) -> tuple[Step, ...]:
    read = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if step.op.has_effect or read.intersection(step.writes):
            kept.append(step)
            read.update(step.reads)
    return tuple(reversed(kept))


def _actions(steps: Sequence[Step], outputs: set[int]) -> tuple[Action, ...]:
    last: dict[int, int] = {}
    for position, step in enumerate(steps):
        for index in (*step.reads, *step.writes):
            last[index] = position
    read = outputs.union(*(step.reads for step in steps)) if steps else outputs
    ends: dict[int, list[int]] = {}
    for index, position in last.items():
        if index >= 0 and index not in outputs:
            ends.setdefault(position, []).append(index)
    return tuple(
        Action(*step, tuple(index in read for index in step.writes), tuple(ends.get(position, ())))
        for position, step in enumerate(steps)
    )


def _sharing(steps: Sequence[Step], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[bool, ...]:
    """Of each output, whether its memory may be an input's or another output's: a view leads back to its roots."""
    roots: dict[int, frozenset[int]] = {index: frozenset({index}) for index in inputs}
    for step in steps:
        seen = frozenset[int]().union(*(roots.get(index, frozenset()) for index in step.reads))
        for index in step.writes:
            roots[index] = seen if step.op.gives_view else frozenset({index})
    ends = [roots.get(index, frozenset({index})) for index in outputs]
    given = frozenset(inputs)
    return tuple(
        bool(end & given) or any(end & other for place, other in enumerate(ends) if place != mine)
        for mine, end in enumerate(ends)
    )
