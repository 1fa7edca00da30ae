"""Recurrent layers that are trained, over sequences of matrices (MPSRNNLayer.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from openmps.checks import flag, listed, store
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.operand import Operand
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.recurrent.layer import BIASES, INPUTS, MEMORIES, STATES, Form, Stretch
from openmps.kernels.recurrent.sequences import Given, SequenceOperand, check_count, count_of, matrix_sequence
from openmps.kernels.recurrent.states import (
    Kept,
    KeptBy,
    MatrixTrainingStates,
    MPSRNNMatrixTrainingState,
    MPSRNNRecurrentMatrixState,
    Record,
    add_training_states,
    check_list,
    matrix_state,
    runs_of,
    state_of,
    whole_record,
)
from openmps.kernels.recurrent.training_weights import GRADIENTS, Copy, TrainedLayer, lower_copy
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.recurrent import (
    BiasGradient,
    DiagonalGradient,
    Gated,
    GateGradient,
    JoinRows,
    Member,
    Recurrence,
    RecurrenceGradient,
    RowRange,
    SourceGradient,
    Total,
)
from openmps.ops.matrix.recurrent_cells import Gru
from openmps.ops.matrix.recurrent_library import (
    GivenBefore,
    LibraryRecurrence,
    LibraryRecurrenceGradient,
    steps_of_calls,
    trains_by_library,
)
from openmps.ops.op import Value

_INPUT_STATE, _OUTPUT_STATES = "recurrent_input_state", "recurrent_output_states"


class _Asked(NamedTuple):
    """What the plan of a sequence depends on besides shapes."""

    rows: tuple[int, ...]
    has_state: bool
    states: int
    """How many come out."""
    calls: tuple[int, ...] = ()
    """Of a forward encode, see `KeptBy`."""
    is_gradient: bool = False
    has_destinations: bool = False
    has_weight_gradients: bool = False
    runs: tuple[_Run, ...] = ()
    """The training states that are read."""


class _Run(NamedTuple):
    """Steps of one record that follow one another."""

    by: KeptBy
    first: int
    last: int

    @property
    def part(self) -> RowRange:
        """Their rows, of those of all steps."""
        rows = self.by.rows
        return RowRange(sum(rows[: self.first]), sum(rows[: self.last + 1]))

    @property
    def is_whole(self) -> bool:
        """Whether they are all steps of the record."""
        return self.first == 0 and self.last + 1 == len(self.by.rows)


class MPSRNNMatrixTrainingLayer(TrainedLayer):
    """A recurrent layer over sequences of matrices that is trained (MPSRNNLayer.h, macOS 10.14).

    ``MPSRNNMatrixTrainingLayer(device, rnn_descriptor, trainable_weights)`` appends the layer's weights to the list: a
    matrix for each weight that has a source, in the order of `MPSRNNMatrixId`. Input and recurrent weights are ``[n,
    channels]``, biases and diagonal memory weights ``[1, n]``; a gate with input weights has biases, zeros where the
    source has none. They are FLOAT32 if the descriptor says `use_float32_weights`, else FLOAT16. Encodes take the
    weights, and read them when they run; the layer keeps none.

    Raises:
        MPSArgumentError: Weights do not fit the channels.
        MPSTypeError: ``trainable_weights`` is no list, or a source is none of weights.
    """

    store_all_intermediate_states = KernelProperty(
        False, flag, "Whether a state comes out of each step, and not of the end alone. Default False."
    )
    recurrent_output_is_temporary = KernelProperty(
        False, flag, "Whether states that come out live on the command buffer only. Default False."
    )
    training_state_is_temporary = KernelProperty(
        False, flag, "Whether training states live on the command buffer only. Default False."
    )
    accumulate_weight_gradients = KernelProperty(
        False, flag, "Whether gradients are added to what their matrices hold; they replace it else. Default False."
    )

    _last_calls: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """What `_calls` was asked last, and what it is."""

    def encode_forward_sequence(
        self,
        command_buffer: CommandBuffer,
        source_matrices: Sequence[MPSMatrix],
        destination_matrices: Sequence[MPSMatrix],
        training_states: list[MPSRNNMatrixTrainingState] | MatrixTrainingStates,
        weights: Sequence[MPSMatrix],
        *,
        source_offsets: Sequence[int] | None = None,
        destination_offsets: Sequence[int] | None = None,
        recurrent_input_state: MPSRNNRecurrentMatrixState | None = None,
        recurrent_output_states: list[MPSRNNRecurrentMatrixState] | None = None,
    ) -> None:
        """Record a run over a sequence, as `MPSRNNMatrixInferenceLayer.encode_sequence`, with these weights.

        Appends a training state for each step to ``training_states``, in the order of time. The last of
        ``recurrent_output_states`` is the one to hand on.
        """
        who = self.name
        check_command_buffer(who, command_buffer, self._device)
        if not isinstance(training_states, MatrixTrainingStates):
            check_list(who, "training_states", training_states)
        seen = Given("source_matrices", source_matrices, "source_offsets", source_offsets)
        wanted = Given("destination_matrices", destination_matrices, "destination_offsets", destination_offsets)
        sources = matrix_sequence(who, command_buffer, seen, self._form.inputs)
        rows, given = sources.rows, self._weights_listed(command_buffer, weights)
        results = matrix_sequence(who, command_buffer, wanted, self._form.outputs, rows, seen.argument)
        state, made = self._states(
            command_buffer, rows, recurrent_input_state, recurrent_output_states, "recurrent_output_states"
        )
        by = KeptBy(rows, self._calls(rows) if len(made) < 2 else ())
        record = Record(self._form, by)
        asked = _Asked(rows, state is not None, len(made), by.calls)
        read = [("source_matrices", sources), *_of_state(_INPUT_STATE, state), ("weights", given)]
        written = [("destination_matrices", results), *_named("training state", record.kept), *_of_states(made)]
        self._encode_lists(command_buffer, read, written, asked)
        if state is not None:
            state.count_read()
        add_training_states(training_states, command_buffer, record, temporary=self.training_state_is_temporary)
        if recurrent_output_states is not None:
            recurrent_output_states += made

    def encode_gradient_sequence(
        self,
        command_buffer: CommandBuffer,
        forward_sources: Sequence[MPSMatrix],
        source_gradients: Sequence[MPSMatrix],
        destination_gradients: Sequence[MPSMatrix] | None,
        weight_gradients: Sequence[MPSMatrix] | None,
        training_states: Sequence[MPSRNNMatrixTrainingState],
        weights: Sequence[MPSMatrix],
        *,
        forward_source_offsets: Sequence[int] | None = None,
        source_gradient_offsets: Sequence[int] | None = None,
        destination_offsets: Sequence[int] | None = None,
        recurrent_input_state: MPSRNNRecurrentMatrixState | None = None,
        recurrent_output_states: list[MPSRNNRecurrentMatrixState] | None = None,
    ) -> None:
        """Record the gradients of a sequence; all lists are in the order of time, and it works from the end.

        ``source_gradients`` are those with respect to what the layer gave, ``destination_gradients`` those with respect
        to its sources. Those with respect to weights are sums over all rows and steps, which replace what
        ``weight_gradients`` hold, or are added to it by `accumulate_weight_gradients`. ``recurrent_input_state`` are
        gradients with respect to the state behind the last step, zeros if None; those with respect to the state before
        the first step, or before each one with `store_all_intermediate_states`, are appended to
        ``recurrent_output_states``: the first is the one to hand to the part of the sequence before this one.

        Raises:
            MPSArgumentError: Lists have other lengths, training states are of other rows, or a matrix is too small.
        """
        check_command_buffer(who := self.name, command_buffer, self._device)
        count = count_of(who, "forward_sources", forward_sources)
        temporary, runs, rows = self._training_states(command_buffer, training_states, count)
        lists = [
            Given("forward_sources", forward_sources, "forward_source_offsets", forward_source_offsets),
            Given("source_gradients", source_gradients, "source_gradient_offsets", source_gradient_offsets),
            Given("destination_gradients", destination_gradients, "destination_offsets", destination_offsets),
        ][: 2 if destination_gradients is None else 3]
        widths = self._form.inputs, self._form.outputs, self._form.inputs
        found = [
            (each.argument, matrix_sequence(who, command_buffer, each, width, rows, "forward_sources"))
            for each, width in zip(lists, widths, strict=False)
        ]
        sums = [] if weight_gradients is None else self._sums_listed(command_buffer, weight_gradients)
        given = recurrent_input_state, recurrent_output_states
        state, made = self._states(command_buffer, rows, *given, _OUTPUT_STATES)
        asked = _Asked(
            rows, state is not None, len(made), (), True, len(found) > 2, bool(sums),
            tuple([_Run(record.by, first, last) for record, first, last in runs]),
        )  # fmt: skip
        kept = [each for record, _, _ in runs for each in record.kept]
        read = [
            *found[:2], *_named("training state", kept), *_of_state(_INPUT_STATE, state),
            ("weights", self._weights_listed(command_buffer, weights)),
        ]  # fmt: skip
        written = [*found[2:], *_named(GRADIENTS, sums), *_of_states(made)]
        self._encode_lists(command_buffer, read, written, asked)
        for each in temporary if state is None or not state.is_temporary else [*temporary, state]:
            each.count_read()
        if recurrent_output_states is not None:
            recurrent_output_states += made

    @property
    def _has_memory(self) -> bool:
        return self._form.cell.has_memory

    def _calls(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """The steps of each call of `LibraryRecurrence`; none where it is not the layer over steps of so many rows."""
        if (known := self._last_calls)[0] == rows:
            return known[1]
        form = self._form
        is_plain = form.has(INPUTS) and form.has(STATES) and not form.has(MEMORIES)
        takes = is_plain and trains_by_library(form.cell, form.outputs, self._device.torch_device, rows)
        calls = steps_of_calls(form.outputs, rows) if takes else ()
        store(self, "_last_calls", (rows, calls))
        return calls

    def _unshare(self) -> None:
        """See `MPSKernel`: the copy may be of another device."""
        store(self, "_last_calls", ((), ()))

    def _encode_lists(
        self,
        command_buffer: CommandBuffer,
        read: Sequence[tuple[str, Operand]],
        written: Sequence[tuple[str, Operand]],
        asked: _Asked,
    ) -> None:
        """The encode path for lists of operands, each with its argument's name."""
        arguments = _arguments(tuple([name for name, _ in read]), tuple([name for name, _ in written]))
        self._encode(command_buffer, *[each for _, each in (*read, *written)], arguments=arguments, asked=asked)

    def _states(
        self, command_buffer: CommandBuffer, rows: Sequence[int], given: Any, wanted: Any, argument: str
    ) -> tuple[MPSRNNRecurrentMatrixState | None, list[MPSRNNRecurrentMatrixState]]:
        """The state that comes in, and those that the encode fills."""
        state = state_of(self.name, _INPUT_STATE, given, [self._form], MPSRNNRecurrentMatrixState)
        if state is not None:
            state.check_usable(self.name, _INPUT_STATE, command_buffer)
            if state.rows < rows[0]:
                rule = f"must have {rows[0]} rows, as many as the first step"
                raise MPSArgumentError(self.name, _INPUT_STATE, rule, state.rows)
        if wanted is None:
            return state, []
        check_list(self.name, argument, wanted)
        count = len(rows) if self.store_all_intermediate_states else 1
        high, temporary = rows[0] if state is None else state.rows, self.recurrent_output_is_temporary
        return state, [matrix_state(command_buffer, [self._form], high, temporary=temporary) for _ in range(count)]

    def _training_states(
        self, command_buffer: CommandBuffer, given: Any, count: int
    ) -> tuple[list[MPSRNNMatrixTrainingState], list[tuple[Record, int, int]], tuple[int, ...]]:
        """The temporary ones of the states, the runs of steps that all are of, and the rows of each step."""
        form, device = self._form, command_buffer.device
        if isinstance(given, MatrixTrainingStates):
            check_count(self.name, "training_states", given, count, "forward_sources")
            record = given.record_of(device)
            if record is not None and record.form == form:
                return [], [(record, 0, count - 1)], record.by.rows
        states = listed(self.name, "training_states", given, "MPSRNNMatrixTrainingState")
        check_count(self.name, "training_states", states, count, "forward_sources")
        if (whole := whole_record(states)) is not None and whole.form == form and states[0].device is device:
            return [], [(whole, 0, count - 1)], whole.by.rows
        for index, each in enumerate(states):
            if not isinstance(each, MPSRNNMatrixTrainingState):
                rule = "must be an MPSRNNMatrixTrainingState of a forward encode"
                raise MPSTypeError(self.name, f"training_states[{index}]", rule, type(each).__name__)
            if each.record.form is not form and each.record.form != form:
                rule = "must be of a layer with this descriptor"
                raise MPSArgumentError(self.name, f"training_states[{index}]", rule, each.record.form)
            if each.is_temporary or each.device is not device:
                each.check_usable(self.name, f"training_states[{index}]", command_buffer)
        runs = runs_of(states)
        rows = [count for record, first, last in runs for count in record.by.rows[first : last + 1]]
        if rows != sorted(rows, reverse=True) or len({id(record) for record, _, _ in runs}) < len(runs):
            got = ", ".join(f"step {state.step} of {count} rows" for state, count in zip(states, rows, strict=True))
            raise MPSArgumentError(self.name, "training_states", "must be in the order of time, each once", got)
        return [each for each in states if each.is_temporary], runs, tuple(rows)

    # --- the mathematics ----------------------------------------------------------------------------------------------

    def _lower(self, at: OperandContext) -> None:
        if isinstance(at.asked, Copy):
            lower_copy(self.name, at, at.asked)
        elif at.asked.is_gradient:
            self._lower_gradient(at, at.asked)
        else:
            self._lower_forward(at, at.asked)

    def _state_values(self, at: OperandContext, *, has_state: bool) -> list[Value | None]:
        found: list[Value | None] = [None, None]
        if has_state:
            for part in range(2 if self._has_memory else 1):
                found[part] = at.numbers(f"{_INPUT_STATE}[{part}]", 0)
        return found

    def _behind(self, count: int, hidden: Value, memory: Value) -> list[Value]:
        """H and c of each of so many states, of those of all of them."""
        parts = [hidden, memory] if self._has_memory else [hidden]
        return [Member(state)(each) for state in range(count) for each in parts]

    def _store_states(self, at: OperandContext, count: int, values: Sequence[Value]) -> None:
        for index, each in enumerate(values if count else ()):
            at.store(f"{_OUTPUT_STATES}[{index}]", each, 0)

    def _lower_forward(self, at: OperandContext, asked: _Asked) -> None:
        form, rows = self._form, asked.rows
        x, weights = at.numbers("source_matrices"), self._parameters(at)
        before = self._state_values(at, has_state=asked.has_state)
        if asked.calls:
            y, own, *behind = LibraryRecurrence(asked.calls)(x, *before, *weights[:3])
            kept = [own]
        else:
            recurrence = Recurrence(form.cell, form.outputs, rows, keeps_all=asked.states > 1)
            y, hidden, memory, *kept = recurrence(x, *before, *weights)
            behind = self._behind(asked.states, hidden, memory)
        at.store("destination_matrices", y)
        for index, each in enumerate(kept[: KeptBy(rows, asked.calls).parts(form)]):
            at.store_elements(f"training state[{index}]", each)
        self._store_states(at, asked.states, behind)

    def _lower_gradient(self, at: OperandContext, asked: _Asked) -> None:
        form, rows = self._form, asked.rows
        if [run.by.by_library and run.is_whole for run in asked.runs] == [True] and asked.states < 2:
            self._lower_library_gradient(at, asked)
            return
        gradient = at.numbers("source_gradients")
        weights = self._parameters(at)
        kept = self._kept(at, asked, weights)
        recurrence = RecurrenceGradient(form.cell, form.outputs, rows, keeps_all=asked.states > 1)
        a, hidden, memory = recurrence(gradient, *kept, *self._state_values(at, has_state=asked.has_state), *weights)
        if asked.has_destinations:
            at.store("destination_gradients", SourceGradient(form.cell.gates)(a, weights[0]))
        if asked.has_weight_gradients:
            self._store_weight_gradients(at, self._weight_gradients(a, at.numbers("forward_sources"), kept))
        self._store_states(at, asked.states, self._behind(asked.states, hidden, memory))

    def _lower_library_gradient(self, at: OperandContext, asked: _Asked) -> None:
        (run,), weights = asked.runs, self._parameters(at)
        behind, (calls,) = self._state_values(at, has_state=asked.has_state), _kept_by(at, 0, run, self._form)
        operands = at.numbers("source_gradients"), at.numbers("forward_sources"), calls, *behind, *weights[:3]
        dx, inputs, states, biases, *before = LibraryRecurrenceGradient(run.by.calls)(*operands)
        if asked.has_destinations:
            at.store("destination_gradients", dx)
        if asked.has_weight_gradients:
            whole: dict[str, Value] = {INPUTS: inputs, STATES: states, BIASES: biases}
            self._store_weight_gradients(at, (self._part_of(whole[each.part], each) for each in self._form.stretches()))
        self._store_states(at, asked.states, before)

    def _kept(self, at: OperandContext, asked: _Asked, weights: Sequence[Value | None]) -> list[Value | None]:
        """What `RecurrenceGradient` needs, the rows of all steps one behind the other.

        A library's gradient is that of all its steps: for some of them the layer runs again.
        """
        form, place, columns = self._form, 0, list[Sequence[Value]]()
        parts = KeptBy(()).parts(form)
        for run in asked.runs:
            kept = _kept_by(at, place, run, form)
            place += len(kept)
            if run.by.by_library:
                given = GivenBefore()(*kept)
                kept = Recurrence(form.cell, form.outputs, run.by.rows)(*given, *weights)[3:]
            columns.append([run.part(each) for each in kept[:parts]])
        return [*(JoinRows()(*column) for column in zip(*columns, strict=True)), *[None] * (4 - parts)]

    def _part_of(self, stacked: Value, stretch: Stretch) -> Value:
        """What belongs to some gates, of all gates'."""
        if len(stretch.places()) == self._form.cell.gates:
            return stacked
        rows = 1 if stretch.part == BIASES else self._form.outputs
        return RowRange(stretch.first * rows, (stretch.last + 1) * rows)(stacked)

    def _store_weight_gradients(self, at: OperandContext, gradients: Iterator[Value]) -> None:
        for index, found in enumerate(gradients):
            name = f"{GRADIENTS}[{index}]"
            if self.accumulate_weight_gradients:
                found = Total()(at.numbers(name), found)
            at.store(name, found)

    def _weight_gradients(self, a: Value, x: Value, kept: Sequence[Value | None]) -> Iterator[Value]:
        """Those of each of `Form.stretches`; one product for the gates that see the same."""
        cell, size, is_diagonal = self._form.cell, self._form.outputs, self._form.is_diagonal
        gates, h0, c0, c1 = kept
        assert gates is not None
        assert h0 is not None
        # Uh of a GRU sees r . h0, Vh sees z . h0.
        scaled = {STATES: 1, MEMORIES: 0} if isinstance(cell, Gru) else {}
        parts = {part for part, _ in self._places}
        whole = {BIASES: BiasGradient(cell.gates)(a)} if BIASES in parts else {}
        for part, seen in ((INPUTS, x), (STATES, h0)):
            if part in parts:
                whole[part] = GateGradient(0, cell.gates - (part in scaled), size)(a, seen)
        for each in self._form.stretches():
            part, gate = each.part, each.first
            if isinstance(cell, Gru) and gate == 2 and part in scaled:
                of_state = Gated(cell.neurons, scaled[part], size)(gates, h0)
                yield GateGradient(gate, 1, size)(a, of_state)
            elif part == MEMORIES:
                memory = c1 if gate == 3 else c0
                assert memory is not None
                yield (DiagonalGradient(gate, size) if is_diagonal else GateGradient(gate, 1, size))(a, memory)
            else:
                yield self._part_of(whole[part], each)


@lru_cache(maxsize=256)
def _arguments(read: Sequence[str], written: Sequence[str]) -> tuple[Argument, ...]:
    kinds = MPSMatrix, SequenceOperand, Kept
    return tuple(
        [
            Argument(name, kinds, FLOATS, is_result=is_result)
            for names, is_result in ((read, False), (written, True))
            for name in names
        ]
    )


def _kept_by(at: OperandContext, place: int, run: _Run, form: Form) -> list[Value]:
    """What the training states of a run keep, from the operand at this place on."""
    return [at.elements(f"training state[{place + each}]") for each in range(run.by.parts(form))]


def _named(argument: str, operands: Sequence[Operand]) -> list[tuple[str, Operand]]:
    return [*zip(_names(argument, len(operands)), operands, strict=True)]


@lru_cache(maxsize=256)
def _names(argument: str, count: int) -> list[str]:
    return [f"{argument}[{index}]" for index in range(count)]


def _of_state(argument: str, state: MPSRNNRecurrentMatrixState | None) -> list[tuple[str, Operand]]:
    return [] if state is None else _named(argument, state.layers[0].parts())


def _of_states(states: Sequence[MPSRNNRecurrentMatrixState]) -> list[tuple[str, Operand]]:
    return _named(_OUTPUT_STATES, [each for state in states for each in state.layers[0].parts()])
