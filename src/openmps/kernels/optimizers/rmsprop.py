"""MPSNNOptimizerRMSProp (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, overload

from openmps.checks import Shown, number
from openmps.core.state.state import MPSState
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.update import optimizers as ops
from openmps.runtime.step_trace import declared
from openmps.selectors import takes


class MPSNNOptimizerRMSProp(MPSNNOptimizer):
    """RMSProp (MPSNNOptimizers.h, macOS 10.14): ``s = decay s + (1 - decay) g^2; v -= lr g / (sqrt(s) + epsilon)``."""

    _accumulators = ("input_sum_of_squares",)

    _shown = ("learning_rate", "decay", "epsilon")
    decay = Shown[float]("_decay", "Share of the old mean of squares that is kept.")
    epsilon = Shown[float]("_epsilon", "Added to the root.")

    @overload
    def __init__(
        self, device: MTLDevice, decay: float, epsilon: float, optimizer_descriptor: MPSNNOptimizerDescriptor, /
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-8,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
    ) -> None: ...
    @takes({"device": object, "decay": Real, "epsilon": Real, "optimizer_descriptor": MPSNNOptimizerDescriptor})
    def __init__(  # pyright: ignore[reportInconsistentOverload]
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

    def _update(self, vectors: int, rule: ops.GradientRule) -> ops.RmsProp:
        return ops.RmsProp(vectors, rule, self._decay, self._epsilon)

    @declared
    def encode(
        self,
        command_buffer: CommandBuffer,
        *operands: Any,
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
