"""Neurons of matrices, and gradients (MPSMatrixNeuron.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from openmps.checks import number
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.matrices import MPSMatrixBinaryKernel, MPSMatrixUnaryKernel
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.kernels.matrix.activation import SlopesSetting
from openmps.kernels.matrix.feature_vectors import FeatureVectors
from openmps.metal.device import CommandBuffer


class MPSMatrixNeuron(SlopesSetting, FeatureVectors, MPSMatrixUnaryKernel):
    """Y = f(alpha X + bias), number by number, one bias a column (MPSMatrixNeuron.h, macOS 10.13).

    f is the identity until `set_neuron_type` or `set_neuron_to_prelu` set another one; `MPSNNNeuronDescriptor` lists
    the formulas. Used are `source_number_of_feature_vectors` rows and `source_input_feature_channels` columns of X from
    `source_matrix_origin` on; the bias is read from its first element. A single bias serves all of several matrices.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, the result, the bias or a PReLU's slopes are too small.
    """

    _arguments = (
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("bias_vector", MPSVector, FLOATS, is_optional=True),
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {"input_matrix": "source_matrix_origin", "result_matrix": "result_matrix_origin"}  # noqa: RUF012

    alpha = KernelProperty(1.0, number, "Factor of X. Default 1.")

    def encode(
        self,
        command_buffer: CommandBuffer,
        input_matrix: MPSMatrix,
        bias_vector: MPSVector | None,
        result_matrix: MPSMatrix,
    ) -> None:
        """Record it; the bias may be None."""
        self._encode(command_buffer, input_matrix, bias_vector, result_matrix)

    def _lower(self, at: OperandContext) -> None:
        source, bias, result = (argument.name for argument in self._arguments)
        members = self._batch(at, (source, result), (bias,))
        rows, columns = self._used(at, source)
        x = at.numbers(source, *self._part(at, source, members, rows, columns))
        bias = at.numbers(bias, *self._row(at, bias, members, columns)) if at.has(bias) else None
        at.store(
            result,
            self._activated(at, x, bias, columns, self.alpha),
            *self._part(at, result, members, rows, columns),
        )


class MPSMatrixNeuronGradient(SlopesSetting, FeatureVectors, MPSMatrixBinaryKernel):
    """dX = alpha G f'(alpha X + bias), dbias = the sums of G f'(alpha X + bias) (MPSMatrixNeuron.h, macOS 10.14).

    The first source is the gradient G, the second the forward **source** X; used are rows and columns as in
    `MPSMatrixNeuron`, of both. The sums are over the rows, for each column. A PReLU's slopes have no gradient.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, a result, the bias or a PReLU's slopes are too small.
    """

    _arguments = (
        Argument("gradient_matrix", MPSMatrix, FLOATS),
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("bias_vector", MPSVector, FLOATS, is_optional=True),
        Argument("result_gradient_for_data_matrix", MPSMatrix, FLOATS, is_result=True),
        Argument("result_gradient_for_bias_vector", MPSVector, FLOATS, is_result=True, is_optional=True),
    )
    _origins = {  # noqa: RUF012
        "gradient_matrix": "primary_source_matrix_origin",
        "input_matrix": "secondary_source_matrix_origin",
        "result_gradient_for_data_matrix": "result_matrix_origin",
    }

    alpha = KernelProperty(1.0, number, "Factor of X. Default 1.")

    def encode(
        self,
        command_buffer: CommandBuffer,
        gradient_matrix: MPSMatrix,
        input_matrix: MPSMatrix,
        bias_vector: MPSVector | None,
        result_gradient_for_data_matrix: MPSMatrix,
        result_gradient_for_bias_vector: MPSVector | None = None,
    ) -> None:
        """Record it; both vectors may be None."""
        results = result_gradient_for_data_matrix, result_gradient_for_bias_vector
        self._encode(command_buffer, gradient_matrix, input_matrix, bias_vector, *results)

    def _lower(self, at: OperandContext) -> None:
        gradient, source, bias, result, of_bias = (argument.name for argument in self._arguments)
        members = self._batch(at, (gradient, source, result), (bias, of_bias))
        rows, columns = self._used(at, gradient, source)
        g, x = (at.numbers(name, *self._part(at, name, members, rows, columns)) for name in (gradient, source))
        given = at.numbers(bias, *self._row(at, bias, members, columns)) if at.has(bias) else None
        of_data, sums = self._activation_gradient(at, g, x, given, columns, self.alpha)
        at.store(result, of_data, *self._part(at, result, members, rows, columns))
        if at.has(of_bias):
            at.store(of_bias, sums, *self._row(at, of_bias, members, columns))
