"""Fully connected layers of matrices, and gradients (MPSMatrixFullyConnected.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

from openmps.checks import number
from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, at_least
from openmps.core.kernel.matrices import MPSMatrixBinaryKernel
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.kernels.matrix.activation import NeuronMethods
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.multiplication import ColumnSums, MatrixProduct

_GRADIENT = Argument("gradient_matrix", MPSMatrix, FLOATS)


class _Connected(MPSMatrixBinaryKernel):
    """What a layer and its gradient share: how much of the matrices is used."""

    source_number_of_feature_vectors = KernelProperty(
        ULONG_MAX, at_least(1), "Feature vectors, rows, that are used, at most those there are. Default: all."
    )
    source_input_feature_channels = KernelProperty(
        ULONG_MAX, at_least(1), "Inputs that are used, at most those there are. Default: all."
    )
    source_output_feature_channels = KernelProperty(
        ULONG_MAX, at_least(1), "Outputs that are used, at most those there are. Default: all."
    )
    alpha = KernelProperty(1.0, number, "Factor of the product. Default 1.")


class MPSMatrixFullyConnected(NeuronMethods, _Connected):
    """Y = f(alpha X W + bias), one feature vector a row of X (MPSMatrixFullyConnected.h, macOS 10.13).

    W is ``[inputs, outputs]``, as it is multiplied; the bias is one number an output, outside of alpha. f is the
    identity until `set_neuron_type` sets another one. Inputs are the columns of X and the rows of W from their origins
    on, outputs the columns of W, vectors the rows of X: as many as all have, at most what the properties say.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, or the result or the bias is too small.
    """

    _arguments = (
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("weight_matrix", MPSMatrix, FLOATS),
        Argument("bias_vector", MPSVector, FLOATS, is_optional=True),
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {  # noqa: RUF012
        "input_matrix": "primary_source_matrix_origin",
        "weight_matrix": "secondary_source_matrix_origin",
        "result_matrix": "result_matrix_origin",
    }

    def encode(
        self,
        command_buffer: CommandBuffer,
        input_matrix: MPSMatrix,
        weight_matrix: MPSMatrix,
        bias_vector: MPSVector | None,
        result_matrix: MPSMatrix,
    ) -> None:
        """Record the layer; the bias may be None."""
        self._encode(command_buffer, input_matrix, weight_matrix, bias_vector, result_matrix)

    def _lower(self, at: OperandContext) -> None:
        source, weights, bias, result = (argument.name for argument in self._arguments)
        members = self._batch(at, (source, weights, result), (bias,))
        (vectors, columns), (rows, outputs) = self._available(at, source), self._available(at, weights)
        vectors = min(vectors, self.source_number_of_feature_vectors)
        inputs = min(columns, rows, self.source_input_feature_channels)
        outputs = min(outputs, self.source_output_feature_channels)
        x = at.numbers(source, *self._part(at, source, members, vectors, inputs))
        w = at.numbers(weights, *self._part(at, weights, members, inputs, outputs))
        given = at.numbers(bias, *self._row(at, bias, members, outputs)) if at.has(bias) else None
        y = self._activated(at, MatrixProduct(alpha=self.alpha)(x, w), given, outputs)
        at.store(result, y, *self._part(at, result, members, vectors, outputs))


class MPSMatrixFullyConnectedGradient(_Connected):
    """dX = alpha G W^T; dW = alpha X^T G, dbias = the sums of G's columns (MPSMatrixFullyConnected.h, macOS 10.14).

    G is the gradient of the layer without its neuron: put `MPSMatrixNeuronGradient` before it. Results are written
    over, and are those of each of several matrices. G begins at `primary_source_matrix_origin`, W or X at
    `secondary_source_matrix_origin`, the result that is a matrix at `result_matrix_origin`.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, or a result is too small.
    """

    _for_data = (
        _GRADIENT,
        Argument("weight_matrix", MPSMatrix, FLOATS),
        Argument("result_gradient_for_data_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _for_weights = (
        _GRADIENT,
        Argument("input_matrix", MPSMatrix, FLOATS),
        Argument("result_gradient_for_weight_matrix", MPSMatrix, FLOATS, is_result=True),
        Argument("result_gradient_for_bias_vector", MPSVector, FLOATS, is_result=True, is_optional=True),
    )
    _origins = {  # noqa: RUF012
        "gradient_matrix": "primary_source_matrix_origin",
        "weight_matrix": "secondary_source_matrix_origin",
        "input_matrix": "secondary_source_matrix_origin",
        "result_gradient_for_data_matrix": "result_matrix_origin",
        "result_gradient_for_weight_matrix": "result_matrix_origin",
    }

    def encode_gradient_for_data(
        self,
        command_buffer: CommandBuffer,
        gradient_matrix: MPSMatrix,
        weight_matrix: MPSMatrix,
        result_gradient_for_data_matrix: MPSMatrix,
    ) -> None:
        """Record dX."""
        operands = gradient_matrix, weight_matrix, result_gradient_for_data_matrix
        self._encode(command_buffer, *operands, arguments=self._for_data, asked=True)

    def encode_gradient_for_weights_and_bias(
        self,
        command_buffer: CommandBuffer,
        gradient_matrix: MPSMatrix,
        input_matrix: MPSMatrix,
        result_gradient_for_weight_matrix: MPSMatrix,
        result_gradient_for_bias_vector: MPSVector | None = None,
    ) -> None:
        """Record dW and dbias, the latter unless it is None."""
        results = result_gradient_for_weight_matrix, result_gradient_for_bias_vector
        self._encode(command_buffer, gradient_matrix, input_matrix, *results, arguments=self._for_weights, asked=False)

    def _lower(self, at: OperandContext) -> None:
        (self._lower_data if at.asked else self._lower_weights)(at)

    def _lower_data(self, at: OperandContext) -> None:
        gradient, weights, result = names = [argument.name for argument in self._for_data]
        members = self._members(at, *names)
        (vectors, columns), (rows, outputs) = self._available(at, gradient), self._available(at, weights)
        vectors = min(vectors, self.source_number_of_feature_vectors)
        outputs = min(columns, outputs, self.source_output_feature_channels)
        inputs = min(rows, self.source_input_feature_channels)
        g = at.numbers(gradient, *self._part(at, gradient, members, vectors, outputs))
        w = at.numbers(weights, *self._part(at, weights, members, inputs, outputs))
        product = MatrixProduct(transpose_right=True, alpha=self.alpha)
        at.store(result, product(g, w), *self._part(at, result, members, vectors, inputs))

    def _lower_weights(self, at: OperandContext) -> None:
        gradient, source, result, of_bias = (argument.name for argument in self._for_weights)
        members = self._batch(at, (gradient, source, result), (of_bias,))
        (rows, outputs), (vectors, inputs) = self._available(at, gradient), self._available(at, source)
        vectors = min(rows, vectors, self.source_number_of_feature_vectors)
        outputs = min(outputs, self.source_output_feature_channels)
        inputs = min(inputs, self.source_input_feature_channels)
        g = at.numbers(gradient, *self._part(at, gradient, members, vectors, outputs))
        x = at.numbers(source, *self._part(at, source, members, vectors, inputs))
        product = MatrixProduct(transpose_left=True, alpha=self.alpha)
        at.store(result, product(x, g), *self._part(at, result, members, inputs, outputs))
        if at.has(of_bias):
            at.store(of_bias, ColumnSums()(g), *self._row(at, of_bias, members, outputs))
