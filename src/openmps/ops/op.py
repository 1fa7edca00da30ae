"""What an encode computes, as data: operations with fields, equations that apply them to values, functions of these.

An `Op` is one operation of the mathematics. Its numbers are fields, its tensors are arguments, so that operations can
be compared, hashed, listed and replaced. A kernel writes its mathematics once, by applying operations to values::

    largest, choice = MaxPooling(window, edge_mode)(x)

Each application is an `Equation`. A `Function` is the equations of one encode, or of a whole graph, over numbered
values: inputs that an encode binds (sources, saved tensors, buffers, numbers), temporaries, and outputs. Functions know
no memory: the same function serves every encode of equal kernels over equal shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, FrozenInstanceError, dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, NoReturn, dataclass_transform

from torch import Tensor

from openmps.ops.geometry import meet


class Kind(Enum):
    """What a rewrite may ask of an operation besides its fields."""

    STORAGE = auto()
    """Formats and places: no arithmetic."""
    POINTWISE = auto()
    """Each number of the result follows from the numbers at its place, and from those of its channel.

    One of a single image may run behind any operation that makes the image, as a part of it.
    """
    WINDOW = auto()
    """Each pixel of the result follows from a window of pixels of its channel, or belongs to such windows."""
    REDUCTION = auto()
    """Sums, means or extremes over axes, and what needs them."""
    CONTRACTION = auto()
    """Sums of products: convolutions and matrix products."""
    CONTRACTION_GRADIENT = auto()
    """The gradients of a contraction: where there are such, parameters are trained."""
    PREPARATION = auto()
    """What follows from memory that stays alone, and need not be made again until that changes."""
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

    What is not said is as in the base. Applied to values it adds an equation to their function and gives its results.
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
    _into: ClassVar[Callable[..., Any]]
    _reads_first: ClassVar[bool] = False  # whether ``into`` reads all operands before it writes: they may lie there
    _takes_half: ClassVar[bool] = False
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(
        cls,
        *,
        of: Callable[..., Any] | None = None,
        into: Callable[..., Any] | None = None,
        kind: Kind | None = None,
        results: int | None = None,
        half: bool | None = None,
        gives_view: bool | None = None,
        has_effect: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        function, put = (None if each is None else staticmethod(each) for each in (of, into))
        said = {"_function": function, "_into": put, "kind": kind, "results": results, "_takes_half": half}
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

    @property
    def launches(self) -> int:
        """How many operations of the engine it takes, about: where there are few, a capture gains nothing."""
        return 1

    def overwritten(self, operands: int) -> Iterable[int]:
        """Which of so many operands' memory it writes: none, unless it `has_effect`."""
        return ()

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Values:
        """Compute: ``wanted[i]`` says whether somebody reads result i; of one result a tensor, of several a tuple."""
        return self._function(*operands, **vars(self))

    def put(self, room: Tensor, operands: Sequence[Any]) -> bool | tuple[Tensor | None, ...]:
        """Have the result there, where no operand lies; of several all, None for the first. False: nothing is done."""
        shares = not self._reads_first and any(isinstance(each, Tensor) and meet(room, each) for each in operands)
        return operands[0].device == room.device and not shares and self._into(room, *operands, **vars(self))

    def __call__(self, *operands: Any) -> Any:
        """Apply to values (None for an operand that is left out): a value for each result, the one itself if one."""
        builder = next((operand.builder for operand in operands if isinstance(operand, Value)), None)
        if builder is None:
            raise TypeError("an operation is applied to at least one value")
        made = builder.add(self, operands)
        return made[0] if self.results == 1 else made


class Role(Enum):
    """What an input of a function is."""

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
    """An input of a function: what it is, and its name among those of its role."""

    role: Role
    name: str


class Equation(NamedTuple):
    """One application of an operation; -1 stands for an operand that is left out."""

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Value:
    """A value of a function that is being built."""

    __slots__ = ("builder", "index", "is_half")

    def __init__(self, builder: Builder, index: int, is_half: bool = False) -> None:
        self.builder = builder
        self.index = index
        self.is_half = is_half
        """Whether the value may be float16."""


class Builder:
    """Collects the equations of a function. ``widen`` makes the equation that turns float16 into float32."""

    def __init__(self, widen: Op | None = None) -> None:
        self._inputs: dict[Input, Value] = {}
        self._equations: list[Equation] = []
        self._outputs: dict[str, Value] = {}
        self._widened: dict[int, Value] = {}
        self._widen = widen
        self._count = 0

    def new_value(self, is_half: bool = False) -> Value:
        """A value that nothing fills yet."""
        self._count += 1
        return Value(self, self._count - 1, is_half)

    def input(self, role: Role, name: str, is_half: bool = False) -> Value:
        """The input of this role and name; the same value each time."""
        key = Input(role, name)
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = self.new_value(is_half)
        return found

    def add(self, op: Op, operands: Sequence[Value | None]) -> tuple[Value, ...]:
        """Apply ``op``: one value for each of its results."""
        if not op.takes_half:
            operands = [self._wide(operand) for operand in operands]
        is_half = op.gives_half and any(operand is not None and operand.is_half for operand in operands)
        made = tuple(self.new_value(is_half) for _ in range(op.results))
        reads = tuple(-1 if operand is None else operand.index for operand in operands)
        self._equations.append(Equation(op, reads, tuple(value.index for value in made)))
        return made

    def _wide(self, operand: Value | None) -> Value | None:
        if operand is None or not operand.is_half or self._widen is None:
            return operand
        found = self._widened.get(operand.index)
        if found is None:
            found = self._widened[operand.index] = self.new_value()
            self._equations.append(Equation(self._widen, (operand.index,), (found.index,)))
        return found

    def output(self, name: str, value: Value) -> None:
        """Give ``value`` out under a name."""
        self._outputs[name] = value

    def splice(self, function: Function, operands: Sequence[Value | None]) -> dict[str, Value]:
        """Append all equations of another function, its inputs replaced by ``operands``; returns its outputs."""
        places = {
            index: -1 if operand is None else operand.index
            for index, operand in zip(function.input_values, operands, strict=True)
        }
        places[-1] = -1

        def place(index: int) -> int:
            if index not in places:
                places[index] = self.new_value().index
            return places[index]

        for equation in function.equations:
            reads, writes = tuple(map(place, equation.reads)), tuple(map(place, equation.writes))
            self._equations.append(Equation(equation.op, reads, writes))
        named = zip(function.outputs, function.output_values, strict=True)
        return {name: Value(self, place(index)) for name, index in named}

    @property
    def value_count(self) -> int:
        """How many values there are so far."""
        return self._count

    def finish(self) -> Function:
        """The function of what was added; the last call. Values know their builder, which lets go of them here."""
        function = Function(
            tuple(self._inputs),
            self._equations,
            tuple(self._outputs),
            tuple(value.index for value in self._outputs.values()),
            self._count,
            tuple(value.index for value in self._inputs.values()),
        )
        for values in (self._inputs, self._outputs, self._widened):
            values.clear()
        return function


class Action(NamedTuple):
    """An equation made ready to run: which results are read, and which values nobody reads afterwards."""

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    wanted: tuple[bool, ...]
    frees: tuple[int, ...]


Performer = Callable[[Action, list[Any]], Any]
"""Runs an equation on its operands, and gives what `Op.run` gives."""
Form = Callable[[list[Any], Tensor | None], list[Any] | None]
"""As `Function.run`, with None for what it wrote to the memory of the output; None where it does not run."""
Placement = Callable[[list[Any], Tensor | None], Callable[[], None] | None]
"""Gives what launches a form again over inputs and into memory at the same addresses, one object; None if not known."""


class Function:
    """Equations over numbered values. Made once, run often.

    Equations whose results nobody reads are left out, unless they have an effect.
    """

    __slots__ = (
        "_overwritten", "actions", "equations", "fills", "forms", "fused", "input_values", "inputs",
        "launches", "library", "may_share", "origin", "output_values", "outputs", "placement", "value_count",
    )  # fmt: skip

    def __init__(
        self,
        inputs: tuple[Input, ...],
        equations: Sequence[Equation],
        outputs: tuple[str, ...],
        output_values: tuple[int, ...],
        value_count: int,
        input_values: tuple[int, ...] | None = None,
    ) -> None:
        self.inputs = inputs
        self.input_values = tuple(range(len(inputs))) if input_values is None else input_values
        """Where the inputs are; the first values unless said."""
        self.outputs = outputs
        """Names of what comes out."""
        self.output_values = output_values
        self.value_count = value_count
        self.equations = _live(equations, set(output_values))
        self.actions = _actions(self.equations, set(output_values))
        last, count = self.actions[-1:], len(output_values)
        self.fills = any(each.writes[:count] == output_values and hasattr(each.op, "_into") for each in last)
        """Whether `run` may put the first output into memory that it is given: of the last operation's results."""
        self.launches = sum([action.op.launches for action in self.actions])
        """Those of all operations; see `Op.launches`."""
        self.may_share = _sharing(self.equations, self.input_values, output_values)
        """Of each output, whether it may share memory with an input or with another output."""
        self._overwritten: list[int] | None = None
        self.forms: dict[str, Form] = {}
        """Other ways to `run` on a type of device, of a function with one output."""
        self.placement: Placement | None = None  # of the form on CUDA
        self.library: Callable[[bool], str] | None = None
        """Names what computes it on the CPU where there is a choice, or will, unless it has run."""
        self.fused: tuple[str, ...] = ()
        """What runs as a part of something else, by name; whoever made the equations so says it."""
        self.origin: Callable[[], object] | None = None
        """Gives what joined the function from several, while that exists; None for the function of one kernel."""

    def is_like(self, other: Function) -> bool:
        """Whether another function has the same inputs, equations and outputs."""
        mine, theirs = (
            (each.inputs, each.input_values, each.outputs, each.output_values, each.equations) for each in (self, other)
        )
        return mine == theirs

    def overwritten(self) -> list[int]:
        """Which inputs' memory is written when the function runs, by their places; by way of views, too."""
        if self._overwritten is None:
            self._overwritten = self._find_overwritten()
        return self._overwritten

    def _find_overwritten(self) -> list[int]:
        places = {value: place for place, value in enumerate(self.input_values)}
        roots = roots_of(self)
        written = {
            root
            for equation in self.equations
            for index in equation.op.overwritten(len(equation.reads))
            for root in roots.get(equation.reads[index], ())
        }
        return [places[value] for value in sorted(written) if value in places]

    def only(self, outputs: Iterable[str]) -> Function:
        """The function that gives some of the outputs, without the work for the others."""
        wanted = set(outputs)
        kept = [(name, value) for name, value in zip(self.outputs, self.output_values, strict=True) if name in wanted]
        if len(kept) == len(self.outputs):
            return self
        names, values = tuple(name for name, _ in kept), tuple(value for _, value in kept)
        return Function(self.inputs, self.equations, names, values, self.value_count, self.input_values)

    def with_equations(
        self, equations: Sequence[Equation], value_count: int, inputs: Mapping[Input, int] | None = None
    ) -> Function:
        """The function with other equations over so many values, and with other inputs if they are given."""
        given = dict(zip(self.inputs, self.input_values, strict=True)) if inputs is None else inputs
        return Function(tuple(given), equations, self.outputs, self.output_values, value_count, tuple(given.values()))

    def operations(self) -> tuple[str, ...]:
        """The names of the operations of all equations, in order."""
        return tuple(type(action.op).__name__ for action in self.actions)

    def library_on(self, device: str, *, has_run: bool) -> str:
        """What computes it on a device, or will unless it ``has_run``, where there is a choice; else nothing."""
        return self.library(has_run) if self.library is not None and device == "cpu" else ""

    def run(self, values: list[Any], room: Tensor | None = None) -> list[Any]:
        """Run every equation. ``values`` are those of the inputs, in order; returns the outputs'.

        ``room`` is where the first output goes: the last operation, or one of the `forms`, may write it there, unless
        that is an operand's memory, too, which `Op.put` tells; the output is None then.
        """
        if self.forms and (form := self.forms.get(values[0].device.type)) is not None:
            made = form(values, room)
            if made is not None:
                return made
        given, values = values, [None] * (self.value_count + 1)  # what is left out, -1, reads the last one
        for index, value in zip(self.input_values, given, strict=True):
            values[index] = value
        given.clear()
        place, last = values.__getitem__, self.actions[-1] if self.fills else None
        for action in self.actions:
            op, reads, writes, wanted, frees = action
            put = room is not None and action is last and op.put(room, [*map(place, reads)])
            if put is True:
                return [None]
            made = put or op.run(wanted, *map(place, reads))
            if len(writes) == 1:
                values[writes[0]] = made
            elif made is not None:
                for index, value in zip(writes, made, strict=True):
                    values[index] = value
            made = None
            for index in frees:
                values[index] = None
        return [values[index] for index in self.output_values]

    def run_each(self, values: list[Any], perform: Performer) -> list[Any]:
        """As `run`, but each equation is ``perform(action, operands)``; for those who look at them or time them."""
        given, values = values, [None] * self.value_count
        for index, value in zip(self.input_values, given, strict=True):
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
        return [values[index] for index in self.output_values]

    def __repr__(self) -> str:
        lines = [f"{', '.join(map(str, each.writes)) or '-'} = {each.op}{each.reads}" for each in self.equations]
        return f"Function(inputs={[f'{each.role.name}:{each.name}' for each in self.inputs]}, " + "; ".join(lines) + ")"


def _live(equations: Sequence[Equation], outputs: set[int]) -> tuple[Equation, ...]:
    read, kept = set(outputs), list[Equation]()
    for equation in reversed(equations):
        if equation.op.has_effect or read.intersection(equation.writes):
            kept.append(equation)
            read.update(equation.reads)
    return tuple(reversed(kept))


def _actions(equations: Sequence[Equation], outputs: set[int]) -> tuple[Action, ...]:
    last: dict[int, int] = {}
    for position, equation in enumerate(equations):
        for index in (*equation.reads, *equation.writes):
            last[index] = position
    read = outputs.union(*(equation.reads for equation in equations)) if equations else outputs
    ends: dict[int, list[int]] = {}
    for index, position in last.items():
        if index >= 0 and index not in outputs:
            ends.setdefault(position, []).append(index)
    return tuple(
        Action(*equation, tuple(index in read for index in equation.writes), tuple(ends.get(position, ())))
        for position, equation in enumerate(equations)
    )


def roots_of(function: Function) -> dict[int, frozenset[int]]:
    """Of each value, the values whose memory it may be: views lead back to what they are views of."""
    return _roots(function.equations, function.input_values)


def _roots(equations: Sequence[Equation], inputs: tuple[int, ...]) -> dict[int, frozenset[int]]:
    roots: dict[int, frozenset[int]] = {index: frozenset({index}) for index in inputs}
    for equation in equations:
        seen = frozenset[int]().union(*(roots.get(index, frozenset()) for index in equation.reads))
        for index in equation.writes:
            roots[index] = seen if equation.op.gives_view else frozenset({index})
    return roots


def _sharing(equations: Sequence[Equation], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[bool, ...]:
    """Of each output, whether its memory may be an input's or another output's."""
    roots = _roots(equations, inputs)
    ends = [roots.get(index, frozenset({index})) for index in outputs]
    held = Counter([root for end in ends for root in end])
    held.update(dict.fromkeys(inputs, 1))
    return tuple(any(held[root] > 1 for root in end) for end in ends)
