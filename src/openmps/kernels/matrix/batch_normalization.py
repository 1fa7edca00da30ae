"""Batch normalization of matrices, and its gradients (MPSMatrixBatchNormalization.h, macOS 10.14)."""

from __future__ import annotations

from openmps.checks import flag
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.matrices import MPSMatrixBinaryKernel, MPSMatrixUnaryKernel
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext
from openmps.core.numbers import not_negative
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.kernels.matrix.activation import NeuronMethods
from openmps.kernels.matrix.feature_vectors import FeatureVectors
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.layers import NormalizedColumns, NormalizedColumnsGradient, Statistics, ZerosLike
from openmps.ops.op import Value

_FLT_MIN = 2.0**-126
_SOURCE = Argument("input_matrix", MPSMatrix, FLOATS)
_PARAMETERS = (
    Argument("gamma_vector", MPSVector, FLOATS, is_optional=True),
    Argument("beta_vector", MPSVector, FLOATS, is_optional=True),
)
_STATISTICS = ("mean_vector", "variance_vector")


class _Normalization(NeuronMethods, FeatureVectors):
    """What the normalization and its gradient share."""

    epsilon = KernelProperty(_FLT_MIN, not_negative, "Added to variances. Default 2^-126.")

    def _vector(self, at: OperandContext, name: str, members: slice, columns: int) -> Value | None:
        """The numbers of a vector, one a column; None of one that is left out."""
        return at.numbers(name, *self._row(at, name, members, columns)) if at.has(name) else None


class MPSMatrixBatchNormalization(_Normalization, MPSMatrixUnaryKernel):
    """y = f(gamma (x - mean) / sqrt(variance + epsilon) + beta) (MPSMatrixBatchNormalization.h, macOS 10.14).

    One feature vector is a row, and the batch are the rows: means and variances are those of columns.
    `compute_statistics` says whether mean and variance are computed of the rows that are used, and written to their
    vectors, or read from these. Variances are those of the population. Without gamma it is 1, without beta 0. f is the
    identity until `set_neuron_type` sets another one. Used are `source_number_of_feature_vectors` rows and
    `source_input_feature_channels` columns from the origin on.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, or the result or a vector is too small.
    """

    _given = (
        _SOURCE,
        *(Argument(name, MPSVector, FLOATS) for name in _STATISTICS),
        *_PARAMETERS,
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _computed = (
        _SOURCE,
        *(Argument(name, MPSVector, FLOATS, is_result=True) for name in _STATISTICS),
        *_PARAMETERS,
        Argument("result_matrix", MPSMatrix, FLOATS, is_result=True),
    )
    _origins = {"input_matrix": "source_matrix_origin", "result_matrix": "result_matrix_origin"}  # noqa: RUF012

    compute_statistics = KernelProperty(
        False, flag, "Whether mean and variance are computed and written. Default False."
    )

    def encode(
        self,
        command_buffer: CommandBuffer,
        input_matrix: MPSMatrix,
        mean_vector: MPSVector,
        variance_vector: MPSVector,
        gamma_vector: MPSVector | None,
        beta_vector: MPSVector | None,
        result_matrix: MPSMatrix,
    ) -> None:
        """Record it; gamma and beta may be None."""
        operands = input_matrix, mean_vector, variance_vector, gamma_vector, beta_vector, result_matrix
        self._encode(command_buffer, *operands, arguments=self._computed if self.compute_statistics else self._given)

    def _lower(self, at: OperandContext) -> None:
        source, *vectors, result = (argument.name for argument in self._given)
        members = self._batch(at, (source, result), vectors)
        rows, columns = self._used(at, source)
        part = self._part(at, source, members, rows, columns)
        x = at.numbers(source, *part)
        if self.compute_statistics:
            mean, variance = Statistics()(x)
            for name, value in zip(_STATISTICS, (mean, variance), strict=True):
                at.store(name, value, *self._row(at, name, members, columns))
        else:
            mean, variance = (self._vector(at, name, members, columns) for name in _STATISTICS)
        gamma, beta = (self._vector(at, argument.name, members, columns) for argument in _PARAMETERS)
        normalized = NormalizedColumns(self.epsilon)(x, mean, variance, gamma, beta)
        y = self._activated(at, normalized, None, columns)
        at.store(result, y, *self._part(at, result, members, rows, columns))


class MPSMatrixBatchNormalizationGradient(_Normalization, MPSMatrixBinaryKernel):
    """The gradients of a batch normalization's data, gamma and beta (MPSMatrixBatchNormalization.h, macOS 10.14).

    The first source is the gradient G, the second the forward **source** x, of M rows that are used. With
    ``s = sqrt(variance + epsilon)``, ``n = (x - mean) / s`` and ``g = G f'(gamma n + beta)``:
    ``dbeta = sum g``, ``dgamma = sum(g n)``, ``dx = gamma / s (g - dbeta / M - n dgamma / M)``, column by column. This
    is the derivative where mean and variance are those of x; so the kernel computes with any. Under the convention
    ``matrix_normalization_sums`` "zeros" dgamma and dbeta are written as 0; dx is the same.

    Raises:
        MPSArgumentError: In an encode, an origin lies outside, or a result or a vector is too small.
    """

    _arguments = (
        Argument("gradient_matrix", MPSMatrix, FLOATS),
        _SOURCE,
        *(Argument(name, MPSVector, FLOATS) for name in _STATISTICS),
        *_PARAMETERS,
        Argument("result_gradient_for_data_matrix", MPSMatrix, FLOATS, is_result=True),
        Argument("result_gradient_for_gamma_vector", MPSVector, FLOATS, is_result=True, is_optional=True),
        Argument("result_gradient_for_beta_vector", MPSVector, FLOATS, is_result=True, is_optional=True),
    )
    _origins = {  # noqa: RUF012
        "gradient_matrix": "primary_source_matrix_origin",
        "input_matrix": "secondary_source_matrix_origin",
        "result_gradient_for_data_matrix": "result_matrix_origin",
    }

    def encode(
        self,
        command_buffer: CommandBuffer,
        gradient_matrix: MPSMatrix,
        input_matrix: MPSMatrix,
        mean_vector: MPSVector,
        variance_vector: MPSVector,
        gamma_vector: MPSVector | None,
        beta_vector: MPSVector | None,
        result_gradient_for_data_matrix: MPSMatrix,
        result_gradient_for_gamma_vector: MPSVector | None = None,
        result_gradient_for_beta_vector: MPSVector | None = None,
    ) -> None:
        """Record it; gamma, beta and their gradients may be None."""
        vectors = mean_vector, variance_vector, gamma_vector, beta_vector
        results = result_gradient_for_gamma_vector, result_gradient_for_beta_vector
        self._encode(command_buffer, gradient_matrix, input_matrix, *vectors, result_gradient_for_data_matrix, *results)

    def _lower(self, at: OperandContext) -> None:
        gradient, source, *vectors, result, of_gamma, of_beta = (argument.name for argument in self._arguments)
        members = self._batch(at, (gradient, source, result), (*vectors, of_gamma, of_beta))
        rows, columns = self._used(at, gradient, source)
        g, x = (at.numbers(name, *self._part(at, name, members, rows, columns)) for name in (gradient, source))
        mean, variance, gamma, beta = (self._vector(at, name, members, columns) for name in vectors)
        if not self._neuron.is_identity:
            normalized = NormalizedColumns(self.epsilon)(x, mean, variance, gamma, beta)
            g, _ = self._activation_gradient(at, g, normalized, None, columns)
        found = NormalizedColumnsGradient(self.epsilon)(g, x, mean, variance, gamma)
        at.store(result, found[0], *self._part(at, result, members, rows, columns))
        is_zero = self.conventions["matrix_normalization_sums"] == "zeros"
        for name, computed in zip((of_gamma, of_beta), found[1:], strict=True):
            if at.has(name):
                value = ZerosLike()(computed) if is_zero else computed
                at.store(name, value, *self._row(at, name, members, columns))
