"""Kernels over operands of any kind: vectors, matrices, images, and several kinds together.

A class lists its arguments, says its mathematics in `_lower`, and has an `encode` with the framework's arguments::

    class Sum(OperandKernel):
        _arguments = (
            Argument("left_matrix", MPSMatrix, FLOATS),
            Argument("right_matrix", MPSMatrix, FLOATS),
            Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
        )
        alpha = KernelProperty(1.0, number, "Factor of the right matrix.")

        def _lower(self, at: OperandContext) -> None:
            at.check_alike("left_matrix", "right_matrix", "result_matrix")
            at.store("result_matrix", WeightedSum(self.alpha)(at.numbers("left_matrix"), at.numbers("right_matrix")))

        def encode(self, command_buffer, left_matrix, right_matrix, result_matrix) -> None:
            self._encode(command_buffer, left_matrix, right_matrix, result_matrix)

Everything else is the path's: what is checked and how errors read, plans, read counts, replays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from openmps.core.elements import Elements, ElementsShape, Part
from openmps.core.image.staying import staying
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.checks import check_command_buffer, check_operand, check_reads_left
from openmps.core.kernel.lowering_context import FunctionContext
from openmps.core.kernel.path import EncodePath
from openmps.core.kernel.plan import FunctionPlan
from openmps.core.operand import Operand, OperandShape, View, members
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.metal.pending import unwritten
from openmps.ops.elements import Load, Store
from openmps.ops.op import Role, Value
from openmps.types import MPSDataType
from openmps.types import MPSImageFeatureChannelFormat as Format

FLOATS = (MPSDataType.FLOAT32, MPSDataType.FLOAT16)
"""What most arguments may hold: kernels compute in float32 and round once, where they store."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One operand of an encode: what may be passed, and what the encode does with it."""

    name: str
    kinds: type[Operand] | tuple[type[Operand], ...]
    stored_as: Collection[MPSDataType | Format] = ()
    """The types that its elements may have; any where none is named."""
    is_result: bool = False
    """Whether it is written, and takes no read of a temporary object."""
    is_optional: bool = False
    may_overlap: bool = True
    """Whether it may share memory with other operands; all of them are read before anything is stored."""
    stays: bool = False
    """Whether programs read the same object again and again, a data set: replays read it in place, and no other."""
    remedy: str = ""
    """What to do where an object of another class is passed."""

    @property
    def kind(self) -> str:
        """What may be passed, in words."""
        kinds = self.kinds if isinstance(self.kinds, tuple) else (self.kinds,)
        return " or ".join(kind.__name__ for kind in kinds)

    def view_of(self, who: str, given: object, command_buffer: CommandBuffer) -> View[Any]:
        """All of ``given``, if an encode can use it."""
        if not isinstance(given, self.kinds):
            if given is None:
                raise MPSTypeError(who, self.name, "is needed", None)
            raise MPSTypeError(who, self.name, f"must be an {self.kind}", type(given).__name__, self.remedy)
        check_operand(who, self.name, given, command_buffer)
        view = staying(given.whole()) if self.stays else given.whole()
        if self.stored_as and view.shape.stored_as not in self.stored_as:
            rule = f"must hold {' or '.join(each.name for each in self.stored_as)}"
            raise MPSArgumentError(who, self.name, rule, view.shape.stored_as.name)
        return view


_Places = Sequence[tuple[int, Part]]
"""Arguments by their numbers, and which part of each."""


class OperandPlan(FunctionPlan):
    """One encode, decided from a kernel's configuration and its operands' shapes."""

    __slots__ = ("note", "reads", "writes")

    def __init__(self, at: OperandContext) -> None:
        super().__init__(at.finish(), at.constants)
        self.reads: _Places = at.places(at.reads)
        """What the function's sources are bound to."""
        self.writes: _Places = at.places(at.writes)
        """Where its outputs go."""
        self.note: Any = at.note


class OperandContext(FunctionContext):
    """The operands of one encode, by the names of the arguments, and the function that its kernel fills.

    A part of an operand is said by an index or a range for each of the first axes; they have to lie within these.
    """

    def __init__(
        self, who: str, arguments: Sequence[Argument], shapes: Sequence[OperandShape | None], asked: Hashable
    ) -> None:
        super().__init__()
        self._who = who
        self._arguments = arguments
        self._numbers = {argument.name: number for number, argument in enumerate(arguments)}
        self._shapes = shapes
        self._is_half = {shape.number_format for shape in shapes if shape is not None} == {Format.FLOAT16}
        self.asked: Any = asked
        """What a plan depends on besides configuration and shapes."""
        self.note: Any = None
        """What the kernel wants to know of the plan when it is asked for numbers and buffers."""
        self.reads: list[tuple[int, Part]] = []
        self.writes: list[tuple[int, Part]] = []

    def places(self, parts: _Places) -> _Places:
        """The same parts of operands; a part that is all of its operand is none."""
        return tuple([(number, () if _is_all(part, self._shapes[number]) else part) for number, part in parts])

    def has(self, name: str) -> bool:
        """Whether an optional operand is given."""
        return self._shapes[self._numbers[name]] is not None

    def is_result(self, name: str) -> bool:
        """Whether an operand is written."""
        return self._arguments[self._numbers[name]].is_result

    def shape(self, name: str) -> Any:
        """The shape of an operand that is given: an `ElementsShape` of vectors and matrices, a `Shape` of images."""
        shape = self._shapes[self._numbers[name]]
        assert shape is not None
        return shape

    def sizes(self, name: str) -> tuple[int, ...]:
        """The lengths of a vector's or matrix's axes, the number of vectors or matrices first."""
        shape: ElementsShape = self.shape(name)
        return shape.sizes

    def check_alike(self, first: str, *names: str, what: str = "") -> None:
        """Raise unless vectors or matrices that are given have the sizes of the first one."""
        for name in names:
            if self.has(name) and self.sizes(name) != self.sizes(first):
                rule = f"must have {what or f'the shape of {first}'}, {self._text(first)}"
                raise MPSArgumentError(self._who, name, rule, self._text(name))

    def _text(self, name: str) -> str:
        return f"{self._arguments[self._numbers[name]].kind} of {self.sizes(name)}"

    def elements(self, name: str, *part: int | slice) -> Value:
        """The elements of an operand as they are stored; an operation with an effect may overwrite them."""
        place = self._numbers[name], part
        if place not in self.reads:
            self.reads.append(place)
        return self._builder.input(Role.SOURCE, str(self.reads.index(place)))

    def numbers(self, name: str, *part: int | slice) -> Value:
        """The numbers of an operand, float32; integers are what they are.

        Where all operands hold float16, numbers are that for operations that take it.
        """
        elements, form = self.elements(name, *part), self.shape(name).number_format
        if self._is_half:
            return Value(self._builder, elements.index, is_half=True)
        return elements if form in (None, Format.FLOAT32) else Load(form)(elements)

    def store(self, name: str, value: Value, *part: int | slice) -> None:
        """Store a result, rounded once to how the operand's elements are stored."""
        form = self.shape(name).number_format
        if form not in (None, Format.FLOAT32):
            value = Store(form)(value)
        self.store_elements(name, value, *part)

    def store_elements(self, name: str, value: Value, *part: int | slice) -> None:
        """Store elements that are already as the operand stores its own."""
        self._builder.output(str(len(self.writes)), value)
        self.writes.append((self._numbers[name], part))


class OperandKernel(MPSKernel, EncodePath):
    """A kernel whose operands are the arguments that its class lists."""

    _arguments: ClassVar[tuple[Argument, ...]] = ()

    def _lower(self, at: OperandContext) -> None:
        """The mathematics of one encode, on a draft; and what shapes must be for it."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _encode(
        self,
        command_buffer: CommandBuffer,
        *given: object,
        arguments: tuple[Argument, ...] | None = None,
        asked: Hashable = None,
    ) -> None:
        """The encode path, for operands in the order of the arguments: those of the class, unless others are named."""
        who, listed = self._name or self.name, self._arguments if arguments is None else arguments
        check_command_buffer(who, command_buffer, self._device)
        views = [
            None if one is None and each.is_optional else each.view_of(who, one, command_buffer)
            for each, one in zip(listed, given, strict=True)
        ]
        read = [
            member
            for each, one in zip(listed, given, strict=True)
            if isinstance(one, Operand) and not each.is_result
            for member in members(each.name, one)
        ]
        if len(read) > 1 and len(read) > len({id(one) for _, one in read}):
            times = Counter([id(one) for _, one in read])
            for name, one in read:
                check_reads_left(who, name, one, times[id(one)])
        for each, view in zip(listed, views, strict=True):
            if not each.may_overlap and view is not None:
                _check_apart(who, each, view, listed, views)
        plan = self._plan_for(listed, tuple([None if view is None else view.shape for view in views]), asked)
        inputs, outputs = _parts(views, plan.reads), _parts(views, plan.writes)
        if unwritten:
            self._require_written(plan, inputs, plan)
        self._dispatch(command_buffer, plan, plan.function, inputs, outputs, plan)
        for _, operand in read:
            operand.count_read()

    def _plan_for(
        self, arguments: tuple[Argument, ...], shapes: tuple[OperandShape | None, ...], asked: Hashable
    ) -> OperandPlan:
        configuration, key = self._interned_configuration(), (shapes, asked)
        plan: OperandPlan | None = configuration.plans.get(key)
        if plan is None:
            at = OperandContext(self.name, arguments, shapes, asked)
            self._draft(configuration)._lower(at)
            plan = configuration.keep(key, OperandPlan(at))
        return plan


def _is_all(part: Part, shape: OperandShape | None) -> bool:
    """Whether each range of a part is the whole axis, and no axis is left out."""
    if not isinstance(shape, ElementsShape):
        return False
    return all(
        isinstance(each, slice) and range(size)[each] == range(size)
        for each, size in zip(part, shape.sizes, strict=False)
    )


def _parts(views: Sequence[View[Any] | None], places: _Places) -> tuple[View[Any], ...]:
    """The parts of operands that a plan reads or writes."""
    found: list[View[Any]] = []
    for number, part in places:
        view = views[number]
        assert view is not None
        if part:
            assert isinstance(view, Elements)
            view = view.part(*part)
        found.append(view)
    return tuple(found)


def _check_apart(
    who: str, argument: Argument, view: View[Any], arguments: Sequence[Argument], views: Sequence[View[Any] | None]
) -> None:
    """Raise if an operand shares memory with another one."""
    for other, its in zip(arguments, views, strict=True):
        if other is not argument and its is not None and view.overlaps(its):
            rule, remedy = f"must not share memory with {other.name}", "Encode into another object"
            raise MPSArgumentError(who, argument.name, rule, "an object that does", remedy)
