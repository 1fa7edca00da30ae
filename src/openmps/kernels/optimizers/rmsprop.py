"""MPSNNOptimizerRMSProp (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from openmps.core.numbers import number
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer, Update
from openmps.ops import optimizers as ops

if TYPE_CHECKING:
    from openmps.core.state.state import MPSState
    from openmps.core.vector import MPSMatrix, MPSVector
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSNNOptimizerRMSProp(MPSNNOptimizer):
    """RMSProp (MPSNNOptimizers.h, macOS 10.14): ``s = decay s + (1 - decay) g^2; v -= lr g / (sqrt(s) + epsilon)``."""

    _accumulators = ("input_sum_of_squares",)

    def __init__(
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-8,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
    ) -> None:
        super().__init__(device, described(learning_rate, optimizer_descriptor))
        self._decay = number(self.name, "decay", decay)
        self._epsilon = number(self.name, "epsilon", epsilon)

    @property
    def decay(self) -> float:
        """Share of the old mean of squares that is kept."""
        return self._decay

    @property
    def epsilon(self) -> float:
        """Added to the root."""
        return self._epsilon

    def _update(self) -> Update:
        learning_rate, decay, epsilon, rule = self._learning_rate, self._decay, self._epsilon, self._rule()

        def update(slots: list[tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]]) -> None:
            for gradient, values, (squares,), result in slots:
                ops.rmsprop(
                    values,
                    gradient,
                    squares,
                    result,
                    learning_rate=learning_rate,
                    decay=decay,
                    epsilon=epsilon,
                    rule=rule,
                )

        return update

    def encode(
        self,
        command_buffer: CommandBuffer,
        *,
        convolution_gradient_state: MPSState | None = None,
        convolution_source_state: MPSState | None = None,
        batch_normalization_state: MPSState | None = None,
        batch_normalization_gradient_state: MPSState | None = None,
        batch_normalization_source_state: MPSState | None = None,
        input_sum_of_squares_vectors: Sequence[MPSVector] | None = None,
        result_state: MPSState | None = None,
        input_gradient_vector: MPSVector | None = None,
        input_values_vector: MPSVector | None = None,
        input_sum_of_squares_vector: MPSVector | None = None,
        result_values_vector: MPSVector | None = None,
        input_gradient_matrix: MPSMatrix | None = None,
        input_values_matrix: MPSMatrix | None = None,
        input_sum_of_squares_matrix: MPSMatrix | None = None,
        result_values_matrix: MPSMatrix | None = None,
    ) -> None:
        """Record one update; see `MPSNNOptimizerStochasticGradientDescent.encode`."""
        self._encode(command_buffer, locals())
