"""Stacks of recurrent layers that infer, whatever holds the steps of a sequence (MPSRNNLayer.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import flag, memory_for, store
from openmps.core.elements import Part
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel, OperandPlan
from openmps.core.operand import Operand
from openmps.enumerated import member_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.recurrent.descriptors import MPSRNNDescriptor, descriptors
from openmps.kernels.recurrent.layer import INPUTS, MEMORIES, PARTS, STATES, Form, Layer, read_layer, stacked, unstacked
from openmps.kernels.recurrent.states import Held, RecurrentState, check_list
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.products import column_by_column
from openmps.ops.matrix.recurrent import FirstColumns, JoinColumns, Member, Recurrence, Total
from openmps.ops.matrix.recurrent_library import PackedRecurrence, PackLstm, packs_for_library
from openmps.ops.op import Value
from openmps.runtime.binding import Binding, HeldTensor
from openmps.runtime.derived import Derived
from openmps.selectors import takes
from openmps.types import MPSRNNBidirectionalCombineMode as Combine

SEQUENCE = "source_sequence"
_PACKED = "packed"


class _Asked(NamedTuple):
    """What a plan depends on besides shapes."""

    rows: tuple[int, ...]
    lists: tuple[str, ...]
    """The arguments of what is written, lists of a member a step: of both directions where there are two."""
    has_state: bool = False
    states: int = 0
    """How many come out."""
    is_bidirectional: bool = False
    packed: tuple[int, ...] = ()
    """The layers that take their weights as a library wants them."""


class RecurrentStack(OperandKernel, Generic[Held]):
    """A stack of recurrent layers over sequences."""

    _of_images: ClassVar[bool] = False
    _source_list: ClassVar[str]
    """The argument of what a sequence is read from, and of where it is written."""
    _result_list: ClassVar[str]
    _whole: ClassVar[Part] = ()
    """The part of an operand that a state is."""

    recurrent_output_is_temporary = KernelProperty(
        False, flag, "Whether states that come out live on the command buffer only. Default False."
    )
    store_all_intermediate_states = KernelProperty(
        False, flag, "Whether a state comes out behind each step, and not behind the last alone. Default False."
    )
    bidirectional_combine_mode = KernelProperty(
        Combine.NONE, member_of(Combine), "How bidirectional encodes join the results of both directions. Default NONE."
    )
    _forms = Setting[tuple[Form, ...]]()

    @takes({"device": object, "rnn_descriptor": MPSRNNDescriptor}, {"device": object, "rnn_descriptors": Sequence})
    def __init__(
        self,
        device: MTLDevice,
        rnn_descriptor: MPSRNNDescriptor | None = None,
        *,
        rnn_descriptors: Sequence[MPSRNNDescriptor] | None = None,
    ) -> None:
        super().__init__(device)
        given = descriptors(self.name, rnn_descriptor, rnn_descriptors)
        names = [self.name] if len(given) == 1 else [f"{self.name} rnn_descriptors[{at}]" for at in range(len(given))]
        layers = [
            read_layer(name, device, each, of_images=self._of_images) for name, each in zip(names, given, strict=True)
        ]
        self._forms = tuple([each.form for each in layers])
        with memory_for(self.name, "rnn_descriptor"):
            self._weights = [_held(layer, device) for layer in layers]
        self._packed = self._packings(self._weights)
        for is_backward in (False, True):
            self._check_stack(self._stack(is_backward=is_backward))

    @property
    def input_feature_channels(self) -> int:
        """Numbers of a vector of the source."""
        return self._forms[0].inputs

    @property
    def output_feature_channels(self) -> int:
        """Numbers of a vector of the result of the last layer."""
        return self._forms[-1].outputs

    @property
    def number_of_layers(self) -> int:
        """Layers of the stack."""
        return len(self._forms)

    # --- what holds the steps -----------------------------------------------------------------------------------------

    def _argument(self, name: str, *, is_result: bool = False) -> Argument:
        """Steps, or a part of a state, as an operand."""
        raise NotImplementedError

    def _operands(self, argument: str, steps: Any) -> list[tuple[str, Operand]]:
        """The operands of a list, named: one for all steps unless said."""
        return [(argument, steps)]

    def _read_steps(self, at: OperandContext, argument: str, rows: Sequence[int], channels: int) -> Value:
        """The rows of all steps, one behind the other, of their first channels."""
        x = at.numbers(argument)
        return x if at.sizes(argument)[1] == channels else FirstColumns(channels)(x)

    def _store_steps(self, at: OperandContext, argument: str, rows: Sequence[int], value: Value) -> None:
        at.store(argument, value)

    # --- encodes ------------------------------------------------------------------------------------------------------

    def _encode_run(
        self,
        command_buffer: CommandBuffer,
        sources: Any,
        results: Any,
        rows: tuple[int, ...],
        state: RecurrentState[Held] | None,
        made: Sequence[RecurrentState[Held]],
    ) -> None:
        """Record a run of all layers as one stack, from a state or from zeros, with the states that come out."""
        if state is not None:
            state.check_usable(self.name, "recurrent_input_state", command_buffer)
        before = [] if state is None else state.parts_of_layers()
        behind = [each for one in made for each in one.parts_of_layers()]
        packed = self._packed_over(rows) if len(made) < 2 else ()
        asked = _Asked(rows, (self._result_list,), state is not None, len(made), packed=packed)
        read = [
            *self._operands(self._source_list, sources),
            *((f"recurrent_input_state {index}", each) for index, each in enumerate(before)),
        ]
        written = [
            *self._operands(self._result_list, results),
            *((f"state {index}", each) for index, each in enumerate(behind)),
        ]
        self._encode_lists(command_buffer, read, written, asked)
        if state is not None:
            state.count_read()

    def _encode_both(
        self,
        command_buffer: CommandBuffer,
        sources: Any,
        results: Mapping[str, Any],
        rows: tuple[int, ...],
    ) -> None:
        """Record a run in both directions, into the lists of `_lists_of_both`."""
        written = [each for name, steps in results.items() for each in self._operands(name, steps)]
        asked = _Asked(rows, tuple(results), is_bidirectional=True)
        self._encode_lists(command_buffer, self._operands(SEQUENCE, sources), written, asked)

    def _inputs_of_both(self) -> int:
        """Channels that the first layers of both directions read."""
        return max(self._forms[self._stack(is_backward=each)[0]].inputs for each in (False, True))

    def _lists_of_both(self, forward: tuple[str, Any], backward: tuple[str, Any]) -> dict[str, tuple[Any, int]]:
        """The lists that a run in both directions writes, and the channels of each; checks that it can be."""
        who, mode = self.name, self.bidirectional_combine_mode
        stacks = [self._stack(is_backward=each) for each in (False, True)]
        if not all(stacks):
            rule = "must have layers of both directions"
            got = f"{len(stacks[0])} forward and {len(stacks[1])} backward"
            raise MPSArgumentError(who, "rnn_descriptors", rule, got, "Set layer_sequence_direction")
        widths = [self._forms[each[-1]].outputs for each in stacks]
        if mode is Combine.ADD and widths[0] != widths[1]:
            rule = "must give as many channels in both directions for ADD"
            raise MPSArgumentError(who, "rnn_descriptors", rule, widths)
        if mode is Combine.NONE:
            if backward[1] is None:
                raise MPSTypeError(who, backward[0], "is needed for the combine mode NONE", None)
            return {name: (given, width) for (name, given), width in zip((forward, backward), widths, strict=True)}
        return {forward[0]: (forward[1], sum(widths) if mode is Combine.CONCATENATE else widths[0])}

    def _encode_lists(
        self,
        command_buffer: CommandBuffer,
        read: Sequence[tuple[str, Operand]],
        written: Sequence[tuple[str, Operand]],
        asked: _Asked,
    ) -> None:
        arguments = [self._argument(name) for name, _ in read]
        arguments += [self._argument(name, is_result=True) for name, _ in written]
        operands = [each for _, each in (*read, *written)]
        self._encode(command_buffer, *operands, arguments=tuple(arguments), asked=asked)

    def _count_of_states(self, wanted: object, steps: int) -> int:
        """How many states an encode fills, none if nobody wants them."""
        if wanted is None:
            return 0
        check_list(self.name, "recurrent_output_states", wanted)
        return steps if self.store_all_intermediate_states else 1

    # --- the mathematics ----------------------------------------------------------------------------------------------

    def _stack(self, *, is_backward: bool) -> list[int]:
        return [index for index, form in enumerate(self._forms) if form.is_backward is is_backward]

    def _check_stack(self, stack: Sequence[int]) -> None:
        """Raise unless each of these layers takes what the one before gives."""
        for above, below in zip(stack[1:], stack[:-1], strict=True):
            given, taken = self._forms[below].outputs, self._forms[above].inputs
            if given != taken:
                rule = f"must have {given} input channels, what the layer before gives"
                raise MPSArgumentError(self.name, "rnn_descriptors", rule, taken)

    def _lower(self, at: OperandContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        asked: _Asked = at.asked
        if asked.is_bidirectional:
            self._lower_both(at, asked)
            return
        rows = asked.rows
        value = self._read_steps(at, self._source_list, rows, self._forms[0].inputs)
        place, behind = 0, list[Value]()
        for index, form in enumerate(self._forms):
            before: list[Value | None] = [None, None]
            if asked.has_state:
                for part in range(2 if form.cell.has_memory else 1):
                    before[part] = at.numbers(f"recurrent_input_state {place}", *self._whole)
                    place += 1
            if index in asked.packed:
                recurrence = PackedRecurrence(len(rows), form.outputs)
                weights = [at.buffer(f"{index} {_PACKED}"), self._weights_of(at, index)[2]]
            else:
                recurrence = Recurrence(form.cell, form.outputs, rows, keeps_all=asked.states > 1)
                weights = self._weights_of(at, index)
            value, hidden, memory, *_ = recurrence(value, *before, *weights)
            behind += [hidden, memory] if form.cell.has_memory else [hidden]
        self._store_steps(at, self._result_list, rows, value)
        for state in range(asked.states):
            for part, each in enumerate(behind):
                at.store(f"state {state * len(behind) + part}", Member(state)(each), *self._whole)

    def _lower_both(self, at: OperandContext, asked: _Asked) -> None:
        rows, found = asked.rows, list[Value]()
        for is_backward in (False, True):
            stack = self._stack(is_backward=is_backward)
            value = self._read_steps(at, SEQUENCE, rows, self._forms[stack[0]].inputs)
            for index in stack:
                form = self._forms[index]
                recurrence = Recurrence(form.cell, form.outputs, rows, runs_backward=is_backward)
                value = recurrence(value, None, None, *self._weights_of(at, index))[0]
            found.append(value)
        mode = self.bidirectional_combine_mode
        if mode is not Combine.NONE:
            found = [(Total() if mode is Combine.ADD else JoinColumns())(*found)]
        for name, value in zip(asked.lists, found, strict=True):
            self._store_steps(at, name, rows, value)

    def _weights_of(self, at: OperandContext, index: int) -> list[Value | None]:
        form = self._forms[index]
        is_there = {part: form.has(part) for part in PARTS} | {"inputs": not form.is_unit}
        return [at.buffer(f"{index} {part}") if is_there[part] else None for part in PARTS]

    def _packed_over(self, rows: Sequence[int]) -> tuple[int, ...]:
        """The layers that are `PackedRecurrence` over steps of so many rows."""
        return tuple(self._packed) if rows[-1] and rows[0] == rows[-1] else ()

    def _packings(self, weights: Sequence[dict[str, HeldTensor]]) -> dict[int, Derived]:
        """By layer, its weights of inputs and states as a library wants them, made when they are read first.

        Of layers that have both and no others.
        """
        found: dict[int, Derived] = {}
        for index, (form, each) in enumerate(zip(self._forms, weights, strict=True)):
            is_plain = INPUTS in each and STATES in each and MEMORIES not in each and not self._of_images
            if is_plain and packs_for_library(form.cell, self._device.torch_device):
                found[index] = Derived(PackLstm(), [each[INPUTS], each[STATES]])
        return found

    def _memory(self, name: str, given: OperandPlan) -> Binding:
        index, part = name.split()
        return self._packed[int(index)] if part == _PACKED else self._weights[int(index)][part]

    def _unshare(self) -> None:
        place = self._device.torch_device
        moved = [{part: _moved(each, place) for part, each in layer.items()} for layer in self._weights]
        store(self, "_weights", moved)
        store(self, "_packed", self._packings(moved))


def layers_of(kernel: RecurrentStack[Any]) -> list[Layer]:
    """Forms and numbers of a stack, as it multiplies with them; for archives."""
    forms, weights = kernel._forms, kernel._weights  # pyright: ignore[reportPrivateUsage]
    parts = [{part: _array(each) for part, each in one.items()} for one in weights]
    return [unstacked(form, each) for form, each in zip(forms, parts, strict=True)]


def _moved(held: HeldTensor, device: torch.device) -> HeldTensor:
    tensor = held.value()
    return HeldTensor(None if tensor is None else tensor.to(device))


def _held(layer: Layer, device: MTLDevice) -> dict[str, HeldTensor]:
    """The parameters of a layer on its device."""
    found: dict[str, HeldTensor] = {}
    for part in PARTS:
        array = stacked(layer, part)
        if array is None:
            continue
        tensor = torch.from_numpy(array).to(device.torch_device)
        if part == STATES and not layer.form.of_images and not packs_for_library(layer.form.cell, tensor.device):
            tensor = column_by_column(tensor)
        found[part] = HeldTensor(tensor)
    return found


def _array(held: HeldTensor) -> NDArray[np.float32]:
    tensor = held.value()
    assert tensor is not None
    return tensor.cpu().numpy()
