"""What recurrent layers hand from one encode to the next (MPSRNNLayer.h, macOS 10.13; training states 10.14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload

from openmps.checks import KnownAttributes, store
from openmps.core.image.image import MPSImage
from openmps.core.lifetime import TemporaryCounts
from openmps.core.numbers import integer, position
from openmps.core.operand import Operand, View
from openmps.core.state.resources import Slot
from openmps.core.state.state import MPSState, Saved
from openmps.core.vector import MPSMatrix, MPSMatrixDescriptor, MPSTemporaryMatrix
from openmps.errors import MPSTypeError
from openmps.kernels.recurrent.layer import Form
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.selectors import name_arguments
from openmps.types import MPSDataType

Held = TypeVar("Held", MPSMatrix, MPSImage)
"""What holds the numbers of a state."""


class LayerState(NamedTuple, Generic[Held]):
    """h and c of one layer; c of a long short-term memory alone."""

    hidden: Held
    memory: Held | None

    def parts(self) -> list[Held]:
        """Those that there are."""
        return [self.hidden] if self.memory is None else [self.hidden, self.memory]


def float_matrix(command_buffer: CommandBuffer, rows: int, columns: int, *, temporary: bool) -> MPSMatrix:
    """A matrix of float32, one that lives on the command buffer if it is temporary."""
    descriptor = MPSMatrixDescriptor(rows, columns, data_type=MPSDataType.FLOAT32)
    if temporary:
        return MPSTemporaryMatrix(command_buffer, descriptor)
    return MPSMatrix(device=command_buffer.device, descriptor=descriptor)


def _slot(held: MPSMatrix | MPSImage) -> Slot:
    if isinstance(held, MPSImage):
        return Slot(descriptor=held.descriptor(), resource=held)
    return Slot(size=held.data.length, resource=held.data)


class _MadeByLayers(MPSState):
    """A state that layers make, and nobody else."""

    def __init__(self, *_: object, **__: object) -> None:
        rule, remedy = "has no public initializer: layers make it", "Encode a sequence with a list for the states"
        raise MPSTypeError(type(self).__name__, "device", rule, None, remedy)

    @classmethod
    def _of(cls, command_buffer: CommandBuffer, slots: Sequence[Slot], *, temporary: bool) -> Self:
        state = cls.__new__(cls)
        MPSState.__init__(state, command_buffer.device)
        store(state, "_slots", [*slots])
        if temporary:
            state.make_temporary(command_buffer)
        return state


class RecurrentState(_MadeByLayers, Generic[Held]):
    """h and c of the layers of a stack, in matrices or in images."""

    layers: tuple[LayerState[Held], ...]
    """h and c of each layer, layer 0 first; for those who extend the framework."""
    forms: tuple[Form, ...]
    """What the layers were that made it."""

    def parts_of_layers(self) -> list[Held]:
        """H and c of layer 0, then those of the next one."""
        return [each for layer in self.layers for each in layer.parts()]

    def _layer(self, index: int) -> LayerState[Held] | None:
        index = integer(self.name, "layer_index", index, 0)
        return self.layers[index] if index < len(self.layers) else None


class MPSRNNRecurrentMatrixState(RecurrentState[MPSMatrix]):
    """The states h and c of the layers of a stack behind a step, or gradients with respect to them.

    (MPSRNNLayer.h, macOS 10.13.) Matrices of float32 with a row for each row of the first source; those of a temporary
    state are temporary.
    """

    @property
    def rows(self) -> int:
        """Rows of each matrix. Our addition."""
        return self.layers[0].hidden.rows

    def get_recurrent_output_matrix(self, layer_index: int) -> MPSMatrix | None:
        """The output h of a layer; None where there is no such layer."""
        layer = self._layer(layer_index)
        return None if layer is None else layer.hidden

    def get_memory_cell_matrix(self, layer_index: int) -> MPSMatrix | None:
        """The memory c of a layer; None where there is no such layer, or it is no long short-term memory."""
        layer = self._layer(layer_index)
        return None if layer is None else layer.memory


class MPSRNNRecurrentImageState(RecurrentState[MPSImage]):
    """The states h and c of the layers of a stack over images behind a step (MPSRNNLayer.h, macOS 10.13).

    Images of FLOAT32 as large and as many as a source; those of a temporary state are temporary.
    """

    def get_recurrent_output_image(self, layer_index: int) -> MPSImage | None:
        """The output h of a layer; None where there is no such layer."""
        layer = self._layer(layer_index)
        return None if layer is None else layer.hidden

    def get_memory_cell_image(self, layer_index: int) -> MPSImage | None:
        """The memory c of a layer; None where there is no such layer, or it is no long short-term memory."""
        layer = self._layer(layer_index)
        return None if layer is None else layer.memory


StateT = TypeVar("StateT", bound=RecurrentState[Any])


def recurrent_state(
    kind: type[StateT], command_buffer: CommandBuffer, forms: Sequence[Form], new: Callable[[int], Any], temporary: bool
) -> StateT:
    """A state that layers of such forms are about to fill; ``new`` makes what holds so many channels."""
    layers = tuple(
        [LayerState(new(each.outputs), new(each.outputs) if each.cell.has_memory else None) for each in forms]
    )
    slots = [_slot(each) for layer in layers for each in layer.parts()]
    state = kind._of(command_buffer, slots, temporary=temporary)  # pyright: ignore[reportPrivateUsage]
    store(state, "layers", layers)
    store(state, "forms", tuple(forms))
    return state


def matrix_state(
    command_buffer: CommandBuffer, forms: Sequence[Form], rows: int, *, temporary: bool
) -> MPSRNNRecurrentMatrixState:
    """The same with matrices of so many rows."""

    def new(columns: int) -> MPSMatrix:
        return float_matrix(command_buffer, rows, columns, temporary=temporary)

    return recurrent_state(MPSRNNRecurrentMatrixState, command_buffer, forms, new, temporary)


class KeptShape(NamedTuple):
    """What a plan knows of a tensor that training states keep: which one it is; `KeptBy` says what that means."""

    number: int
    stored_as: MPSDataType = MPSDataType.FLOAT32
    number_format: None = None
    """Its numbers are what kernels work on."""


class KeptBy(NamedTuple):
    """How a forward encode of a training layer went, which says what is kept."""

    rows: tuple[int, ...]
    """Of each step."""
    calls: tuple[int, ...] = ()
    """Where it was `LibraryRecurrence`, the steps of each call of it."""

    @property
    def by_library(self) -> bool:
        """Whether it was `LibraryRecurrence`."""
        return bool(self.calls)

    def parts(self, form: Form) -> int:
        """How many tensors are kept.

        What gates were given and h0; c0 and c1 of a long short-term memory. Of `LibraryRecurrence` a tuple.
        """
        return 1 if self.by_library else 4 if form.cell.has_memory else 2


class Kept(Saved, View[KeptShape], Operand):
    """One tensor that training states keep, or a tuple of a library's; an operand, filled in when the work runs."""

    __slots__ = ("shape",)

    def __init__(self, shape: KeptShape) -> None:
        super().__init__()
        self.shape = shape

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """It can be used while its training states can."""

    def whole(self) -> Kept:
        """Itself."""
        return self

    def count_read(self, amount: int = 1) -> None:
        """Reads are those of the training states."""


class Record:
    """What a forward encode of a training layer keeps for its gradient, the rows of all steps one behind the other."""

    __slots__ = ("__weakref__", "by", "form", "kept")

    def __init__(self, form: Form, by: KeptBy) -> None:
        self.form = form
        self.by = by
        self.kept = [Kept(KeptShape(number)) for number in range(by.parts(form))]

    def parts(self) -> tuple[object, ...]:
        """All that is given back when no training state is read any more."""
        return tuple(self.kept)

    def release(self) -> None:
        """Give it back."""
        for each in self.kept:
            each.content = None


class MPSRNNMatrixTrainingState(_MadeByLayers):
    """What one step of a training layer leaves for its gradient (MPSRNNLayer.h, macOS 10.14). Opaque.

    It has no resources that a program could ask for.
    """

    record: Record
    """What all steps of the encode keep; for those who extend the framework."""
    step: int
    """Which of them it is."""

    @property
    def is_temporary(self) -> bool:
        """Whether it lives on one command buffer."""
        return self._counts is not None


def add_training_states(
    known: list[MPSRNNMatrixTrainingState] | MatrixTrainingStates,
    command_buffer: CommandBuffer,
    record: Record,
    *,
    temporary: bool,
) -> None:
    """Append the states of all steps of an encode; what they keep goes back with the last of temporary ones."""
    counts = TemporaryCounts(command_buffer, record, len(record.by.rows)) if temporary else None
    if isinstance(known, MatrixTrainingStates):
        known.append_steps(command_buffer.device, record, counts)
    else:
        known += _states_of(command_buffer.device, record, counts)


def _states_of(device: MTLDevice, record: Record, counts: TemporaryCounts | None) -> list[MPSRNNMatrixTrainingState]:
    common = {"_device": device, "_slots": (), "_counts": counts, "saved": Saved(), "record": record}
    found = [MPSRNNMatrixTrainingState.__new__(MPSRNNMatrixTrainingState) for _ in record.by.rows]
    for step, state in enumerate(found):
        vars(state).update(common, step=step, _members=(step,))
    return found


@name_arguments
class MatrixTrainingStates(KnownAttributes, Sequence[MPSRNNMatrixTrainingState]):
    """Training states in the place of a list, made when they are asked for. Our addition to the framework.

    Forward encodes append to it as to a list. A gradient that is given all states of one encode asks none of them.
    """

    __slots__ = ("__weakref__", "_device", "_record", "_states")

    _states: list[MPSRNNMatrixTrainingState]
    _record: Record | None
    _device: MTLDevice | None

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Let go of all states."""
        self._hold([], None, None)

    def _hold(self, states: list[MPSRNNMatrixTrainingState], record: Record | None, device: MTLDevice | None) -> None:
        for name, value in (("_states", states), ("_record", record), ("_device", device)):
            store(self, name, value)

    def record_of(self, device: MTLDevice) -> Record | None:
        """The record of the one encode on a device whose states these are; None where there are others, too."""
        return self._record if self._device is device else None

    def _made(self) -> list[MPSRNNMatrixTrainingState]:
        if self._record is not None and self._device is not None and not self._states:
            store(self, "_states", _states_of(self._device, self._record, None))
        return self._states

    def __len__(self) -> int:
        return len(self._states) if self._record is None else len(self._record.by.rows)

    @overload
    def __getitem__(self, index: int) -> MPSRNNMatrixTrainingState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MPSRNNMatrixTrainingState]: ...
    def __getitem__(self, index: int | slice) -> MPSRNNMatrixTrainingState | Sequence[MPSRNNMatrixTrainingState]:
        found = position("MatrixTrainingStates", index, len(self))
        return self._made()[found] if isinstance(found, int) else [self._made()[each] for each in found]

    def __repr__(self) -> str:
        return f"<MatrixTrainingStates of {len(self)} steps>"

    def append_steps(self, device: MTLDevice, record: Record, counts: TemporaryCounts | None) -> None:
        """Append the states of an encode; for those who extend the framework."""
        if counts is None and not len(self):
            self._hold([], record, device)
        else:
            self._hold([*self._made(), *_states_of(device, record, counts)], None, device)


_record_of, _step_of = attrgetter("record"), attrgetter("step")


def whole_record(states: Sequence[Any]) -> Record | None:
    """The record of which these are all states, in order, told in few calls; None where one is temporary."""
    if {*map(type, states)} != {MPSRNNMatrixTrainingState} or states[0].is_temporary:
        return None
    record: Record = states[0].record
    is_all = [*map(_step_of, states)] == [*range(len(record.by.rows))]
    return record if is_all and [*map(_record_of, states)].count(record) == len(states) else None


def runs_of(states: Sequence[MPSRNNMatrixTrainingState]) -> list[tuple[Record, int, int]]:
    """Steps of one record that follow one another: the record, the first and the last of them."""
    found: list[tuple[Record, int, int]] = []
    for state in states:
        if found and found[-1][0] is state.record and found[-1][2] + 1 == state.step:
            found[-1] = (state.record, found[-1][1], state.step)
        else:
            found.append((state.record, state.step, state.step))
    return found


def state_of(who: str, argument: str, value: Any, forms: Sequence[Form], kind: type[StateT]) -> StateT | None:
    """A state that layers of such forms have made; None for zeros."""
    if value is None:
        return None
    if not isinstance(value, kind):
        raise MPSTypeError(who, argument, f"must be an {kind.__name__} or None", type(value).__name__)
    mine, theirs = ([(type(each.cell).__name__, each.outputs) for each in some] for some in (forms, value.forms))
    if mine != theirs:
        rule = f"must be of layers like these, {_text(mine)}"
        raise MPSTypeError(who, argument, rule, _text(theirs), "Pass a state that a layer with such a descriptor made")
    return value


def _text(layers: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} of {size}" for name, size in layers)


def check_list(who: str, argument: str, value: object) -> None:
    """Raise unless something can be appended to."""
    if not isinstance(value, list):
        raise MPSTypeError(who, argument, "must be a list, which is appended to", type(value).__name__)
