"""Recurrent layers over sequences of matrices (MPSRNNLayer.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import flag, store
from openmps.core.kernel.arguments import member_of
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext, OperandKernel, OperandPlan
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.recurrent.descriptors import MPSRNNDescriptor, descriptors
from openmps.kernels.recurrent.layer import PARTS, Form, Layer, read_layer, stacked, unstacked
from openmps.kernels.recurrent.sequences import (
    check_count,
    read_steps,
    rows_of,
    sequence,
    step_arguments,
    store_steps,
)
from openmps.kernels.recurrent.states import MPSRNNRecurrentMatrixState, check_list, recurrent_state, state_of
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.matrix.recurrent import JoinColumns, JoinRows, Member, Recurrence, Total
from openmps.ops.op import Value
from openmps.runtime.binding import HeldTensor
from openmps.selectors import takes
from openmps.types import MPSRNNBidirectionalCombineMode as Combine

_SOURCES, _RESULTS = "source_matrices", "destination_matrices"
_SEQUENCE = "source_sequence"
_FORWARD, _BACKWARD = "destination_forward_matrices", "destination_backward_matrices"


class _Asked(NamedTuple):
    """What a plan depends on besides shapes."""

    rows: tuple[int, ...]
    has_state: bool = False
    states: int = 0
    """How many come out."""
    is_bidirectional: bool = False


class MPSRNNMatrixInferenceLayer(OperandKernel):
    """A stack of recurrent layers over sequences of matrices, whose rows are vectors (MPSRNNLayer.h, macOS 10.13).

    ``MPSRNNMatrixInferenceLayer(device, rnn_descriptor)``, or ``(device, rnn_descriptors=[…])`` for a stack, of which
    each layer reads what the one before gives. Sources of weights are read when the layer is made. Weights are rounded
    to float16 unless their descriptor says `use_float32_weights`; sums, states and biases are float32.

    Raises:
        MPSArgumentError: Layers do not fit one another, or weights do not fit the channels.
        MPSTypeError: There is no descriptor, or a source is none of weights.
    """

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
        layers = [read_layer(self._called(index, len(given)), each) for index, each in enumerate(given)]
        self._forms = tuple([each.form for each in layers])
        self._weights = [_held(layer, device) for layer in layers]
        self._check_stack(self._forms)

    def _called(self, index: int, count: int) -> str:
        return self.name if count == 1 else f"{self.name} rnn_descriptors[{index}]"

    def _check_stack(self, forms: Sequence[Form]) -> None:
        for above, below in zip(forms[1:], forms[:-1], strict=True):
            # Layers of another direction are another stack.
            if above.is_backward == below.is_backward and above.inputs != below.outputs:
                rule = f"must have {below.outputs} input channels, what the layer before gives"
                raise MPSArgumentError(self.name, "rnn_descriptors", rule, above.inputs)

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

    # --- encodes ------------------------------------------------------------------------------------------------------

    def encode_sequence(
        self,
        command_buffer: CommandBuffer,
        source_matrices: Sequence[MPSMatrix],
        destination_matrices: Sequence[MPSMatrix],
        recurrent_input_state: MPSRNNRecurrentMatrixState | None = None,
        recurrent_output_states: list[MPSRNNRecurrentMatrixState] | None = None,
        *,
        source_offsets: Sequence[int] | None = None,
        destination_offsets: Sequence[int] | None = None,
    ) -> None:
        """Record a run over a sequence, index 0 first, whatever direction the layers have.

        A matrix a step, in whose first `input_feature_channels` columns the rows are vectors. Steps may have fewer rows
        than the step before: a row that ends keeps its state. ``source_offsets`` and ``destination_offsets`` are bytes
        from which on the matrices are read and written, one a matrix (macOS 10.14). It begins with
        ``recurrent_input_state``, zeros without one; the state behind the last step, or of each step with
        `store_all_intermediate_states`, is appended to ``recurrent_output_states``.

        Raises:
            MPSArgumentError: Lists have other lengths, a matrix is too small, or a step has more rows than the one
                before.
            MPSTypeError: The state is of other layers.
        """
        who = self.name
        check_command_buffer(who, command_buffer, self._device)
        self._check_stack([replace(each, is_backward=False) for each in self._forms])
        sources = sequence(who, _SOURCES, source_matrices, source_offsets, "source_offsets")
        results = sequence(who, _RESULTS, destination_matrices, destination_offsets, "destination_offsets")
        check_count(who, _RESULTS, results, len(sources), _SOURCES)
        rows = rows_of(who, _SOURCES, sources)
        state = state_of(who, "recurrent_input_state", recurrent_input_state, self._forms)
        if state is not None and state.rows < rows[0]:
            rule = f"must have {rows[0]} rows, as many as the first source"
            raise MPSArgumentError(who, "recurrent_input_state", rule, state.rows)
        if state is not None:
            state.check_usable(who, "recurrent_input_state", command_buffer)
        made = self._new_states(command_buffer, recurrent_output_states, len(rows), state.rows if state else rows[0])
        before = [] if state is None else [each for layer in state.layers for each in layer.matrices()]
        behind = [each for one in made for layer in one.layers for each in layer.matrices()]
        arguments = (
            *step_arguments(_SOURCES, len(rows)),
            *(Argument(f"recurrent_input_state {index}", MPSMatrix, FLOATS) for index in range(len(before))),
            *step_arguments(_RESULTS, len(rows), is_result=True),
            *(Argument(f"state {index}", MPSMatrix, FLOATS, is_result=True) for index in range(len(behind))),
        )
        asked = _Asked(rows, state is not None, len(made))
        self._encode(command_buffer, *sources, *before, *results, *behind, arguments=arguments, asked=asked)
        if state is not None:
            state.count_read()
        if recurrent_output_states is not None:
            recurrent_output_states.extend(made)

    def _new_states(
        self, command_buffer: CommandBuffer, wanted: list[Any] | None, steps: int, rows: int
    ) -> list[MPSRNNRecurrentMatrixState]:
        """States that an encode fills, none if nobody wants them."""
        if wanted is None:
            return []
        check_list(self.name, "recurrent_output_states", wanted)
        count, temporary = steps if self.store_all_intermediate_states else 1, self.recurrent_output_is_temporary
        return [recurrent_state(command_buffer, self._forms, rows, temporary=temporary) for _ in range(count)]

    def encode_bidirectional_sequence(
        self,
        command_buffer: CommandBuffer,
        source_sequence: Sequence[MPSMatrix],
        destination_forward_matrices: Sequence[MPSMatrix],
        destination_backward_matrices: Sequence[MPSMatrix] | None = None,
    ) -> None:
        """Record a run of the FORWARD layers over a sequence, and one of the BACKWARD layers from its end.

        Both stacks read the sources and begin with zeros. With the combine mode NONE each has its own destinations; ADD
        adds their results, and CONCATENATE puts those of the backward layers behind the others' columns, in
        ``destination_forward_matrices`` both. A row that later steps do not have begins at its own last step.

        Raises:
            MPSArgumentError: There are no layers of one direction, lists have other lengths, or a matrix is too small.
        """
        who, mode = self.name, self.bidirectional_combine_mode
        forward, backward = self._stack(is_backward=False), self._stack(is_backward=True)
        if not forward or not backward:
            rule = "must have layers of both directions"
            got = f"{len(forward)} forward and {len(backward)} backward"
            raise MPSArgumentError(who, "rnn_descriptors", rule, got, "Set layer_sequence_direction")
        if mode is Combine.ADD and self._forms[forward[-1]].outputs != self._forms[backward[-1]].outputs:
            rule = "must give as many channels in both directions for ADD"
            raise MPSArgumentError(
                who, "rnn_descriptors", rule, [self._forms[each[-1]].outputs for each in (forward, backward)]
            )
        sources = sequence(who, _SEQUENCE, source_sequence, None, "")
        rows = rows_of(who, _SEQUENCE, sources)
        lists = {_FORWARD: sequence(who, _FORWARD, destination_forward_matrices, None, "")}
        if mode is Combine.NONE:
            if destination_backward_matrices is None:
                rule = "is needed for the combine mode NONE"
                raise MPSTypeError(who, _BACKWARD, rule, None)
            lists[_BACKWARD] = sequence(who, _BACKWARD, destination_backward_matrices, None, "")
        for name, each in lists.items():
            check_count(who, name, each, len(rows), _SEQUENCE)
        arguments = step_arguments(_SEQUENCE, len(rows))
        for name in lists:
            arguments += step_arguments(name, len(rows), is_result=True)
        results = [each for one in lists.values() for each in one]
        asked = _Asked(rows, is_bidirectional=True)
        self._encode(command_buffer, *sources, *results, arguments=tuple(arguments), asked=asked)

    # --- the mathematics ----------------------------------------------------------------------------------------------

    def _stack(self, *, is_backward: bool) -> list[int]:
        return [index for index, form in enumerate(self._forms) if form.is_backward is is_backward]

    def _lower(self, at: OperandContext) -> None:
        asked: _Asked = at.asked
        rows = asked.rows
        if asked.is_bidirectional:
            self._lower_both(at, rows)
            return
        value = JoinRows()(*read_steps(self.name, at, _SOURCES, rows, self._forms[0].inputs))
        place, behind = 0, list[Value]()
        for index, form in enumerate(self._forms):
            before: list[Value | None] = [None, None]
            if asked.has_state:
                for part in range(2 if form.cell.has_memory else 1):
                    before[part] = at.numbers(f"recurrent_input_state {place}", 0)
                    place += 1
            recurrence = Recurrence(form.cell, form.outputs, rows, keeps_all=asked.states > 1)
            value, hidden, memory, *_ = recurrence(value, *before, *self._parameters(at, index))
            behind += [hidden, memory] if form.cell.has_memory else [hidden]
        store_steps(self.name, at, _RESULTS, rows, self._forms[-1].outputs, value)
        for state in range(asked.states):
            for part, each in enumerate(behind):
                at.store(f"state {state * len(behind) + part}", Member(state)(each), 0)

    def _lower_both(self, at: OperandContext, rows: tuple[int, ...]) -> None:
        found: list[Value] = []
        for is_backward in (False, True):
            stack = self._stack(is_backward=is_backward)
            value = JoinRows()(*read_steps(self.name, at, _SEQUENCE, rows, self._forms[stack[0]].inputs))
            for index in stack:
                form = self._forms[index]
                recurrence = Recurrence(form.cell, form.outputs, rows, runs_backward=is_backward)
                value = recurrence(value, None, None, *self._parameters(at, index))[0]
            found.append(value)
        columns = [self._forms[self._stack(is_backward=each)[-1]].outputs for each in (False, True)]
        mode = self.bidirectional_combine_mode
        if mode is Combine.NONE:
            for name, value, width in zip((_FORWARD, _BACKWARD), found, columns, strict=True):
                store_steps(self.name, at, name, rows, width, value)
        elif mode is Combine.ADD:
            store_steps(self.name, at, _FORWARD, rows, columns[0], Total()(*found))
        else:
            store_steps(self.name, at, _FORWARD, rows, sum(columns), JoinColumns()(*found))

    def _parameters(self, at: OperandContext, index: int) -> list[Value | None]:
        form = self._forms[index]
        is_there = {part: form.has(part) for part in PARTS} | {"inputs": not form.is_unit}
        return [at.buffer(f"{index} {part}") if is_there[part] else None for part in PARTS]

    def _memory(self, name: str, given: OperandPlan) -> HeldTensor:
        index, part = name.split()
        return self._weights[int(index)][part]

    def _unshare(self) -> None:
        place = self._device.torch_device
        moved = [{part: _moved(each, place) for part, each in layer.items()} for layer in self._weights]
        store(self, "_weights", moved)


def layers_of(kernel: MPSRNNMatrixInferenceLayer) -> list[Layer]:
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
        if array is not None:
            found[part] = HeldTensor(torch.from_numpy(array).to(device.torch_device))
    return found


def _array(held: HeldTensor) -> NDArray[np.float32]:
    tensor = held.value()
    assert tensor is not None
    return tensor.cpu().numpy()
