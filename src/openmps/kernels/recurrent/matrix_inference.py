"""Recurrent layers over sequences of matrices (MPSRNNLayer.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.operands import Argument
from openmps.core.vector import MPSMatrix
from openmps.errors import MPSArgumentError
from openmps.kernels.recurrent.sequences import Given, matrix_argument, matrix_sequence
from openmps.kernels.recurrent.stack import SEQUENCE, RecurrentStack
from openmps.kernels.recurrent.states import MPSRNNRecurrentMatrixState, matrix_state, state_of
from openmps.metal.device import CommandBuffer


class MPSRNNMatrixInferenceLayer(RecurrentStack[MPSMatrix]):
    """A stack of recurrent layers over sequences of matrices, whose rows are vectors (MPSRNNLayer.h, macOS 10.13).

    ``MPSRNNMatrixInferenceLayer(device, rnn_descriptor)``, or ``(device, rnn_descriptors=[…])`` for a stack, of which
    each layer reads what the one before gives. Sources of weights are read when the layer is made. Weights are rounded
    to float16 unless their descriptor says `use_float32_weights`; sums, states and biases are float32.

    Raises:
        MPSArgumentError: Layers do not fit one another, or weights do not fit the channels.
        MPSTypeError: There is no descriptor, or a source is none of weights.
    """

    _source_list, _result_list = "source_matrices", "destination_matrices"
    _whole = (0,)

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
        self._check_stack(range(self.number_of_layers))
        given = Given(self._source_list, source_matrices, "source_offsets", source_offsets)
        wanted = Given(self._result_list, destination_matrices, "destination_offsets", destination_offsets)
        sources = matrix_sequence(who, command_buffer, given, self.input_feature_channels)
        rows = sources.rows
        results = matrix_sequence(who, command_buffer, wanted, self.output_feature_channels, rows, given.argument)
        kind = MPSRNNRecurrentMatrixState
        state = state_of(who, "recurrent_input_state", recurrent_input_state, self._forms, kind)
        if state is not None and state.rows < rows[0]:
            rule = f"must have {rows[0]} rows, as many as the first source"
            raise MPSArgumentError(who, "recurrent_input_state", rule, state.rows)
        high, temporary = state.rows if state else rows[0], self.recurrent_output_is_temporary
        made = [
            matrix_state(command_buffer, self._forms, high, temporary=temporary)
            for _ in range(self._count_of_states(recurrent_output_states, len(rows)))
        ]
        self._encode_run(command_buffer, sources, results, rows, state, made)
        if recurrent_output_states is not None:
            recurrent_output_states.extend(made)

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
        check_command_buffer(self.name, command_buffer, self._device)
        lists = self._lists_of_both(
            ("destination_forward_matrices", destination_forward_matrices),
            ("destination_backward_matrices", destination_backward_matrices),
        )
        given = Given(SEQUENCE, source_sequence)
        sources = matrix_sequence(self.name, command_buffer, given, self._inputs_of_both())
        rows = sources.rows
        results = {
            name: matrix_sequence(self.name, command_buffer, Given(name, wanted), width, rows, SEQUENCE)
            for name, (wanted, width) in lists.items()
        }
        self._encode_both(command_buffer, sources, results, rows)

    def _argument(self, name: str, *, is_result: bool = False) -> Argument:
        return matrix_argument(name, is_result=is_result)
