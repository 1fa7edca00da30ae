"""MPSNNOptimizerAdam (MPSNNOptimizers.h, macOS 10.14; AMSGrad macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from openmps.core.numbers import number
from openmps.core.training_state import TrainingState, whole_number
from openmps.errors import MPSArgumentError
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer, Update
from openmps.ops import optimizers as ops

if TYPE_CHECKING:
    from openmps.core.state.state import MPSState
    from openmps.core.vector import MPSMatrix, MPSVector
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSNNOptimizerAdam(MPSNNOptimizer):
    """Adam (MPSNNOptimizers.h, macOS 10.14), in its AMSGrad form if maximum velocities are given (macOS 10.15).

    ``t += 1; m = b1 m + (1 - b1) g; u = b2 u + (1 - b2) g^2;
    v -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(u) + epsilon)``; AMSGrad divides by the root of ``x = max(x, u)``.
    `time_step` t counts encodes.
    """

    _accumulators = ("input_momentum", "input_velocity", "maximum_velocity")
    _optional = frozenset({"maximum_velocity"})

    def __init__(
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        time_step: int = 0,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
    ) -> None:
        super().__init__(device, described(learning_rate, optimizer_descriptor))
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= number(self.name, name, value) < 1:
                raise MPSArgumentError(self.name, name, "must lie in [0, 1)", value)
        self._beta1, self._beta2 = float(beta1), float(beta2)
        self._epsilon = number(self.name, "epsilon", epsilon)
        self.time_step = time_step

    @property
    def beta1(self) -> float:
        """Share of the old momentum that is kept."""
        return self._beta1

    @property
    def beta2(self) -> float:
        """Share of the old velocity that is kept."""
        return self._beta2

    @property
    def epsilon(self) -> float:
        """Added to the root."""
        return self._epsilon

    @property
    def time_step(self) -> int:
        """Number of encodes so far; may be set, for example to continue a training."""
        return self._time_step

    @time_step.setter
    def time_step(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise MPSArgumentError(self.name, "time_step", "must be an integer of at least 0", repr(value))
        self._time_step = value

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps: the learning rate and `time_step`. Our addition."""
        return {**super().training_state(), "time_step": self._time_step}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the optimizer would that gave ``state``. Our addition."""
        super().restore_training_state(state)
        self.time_step = whole_number(self.name, state, "time_step")

    def _encoded(self) -> None:
        self._time_step += 1

    def _update(self) -> Update:
        rate = ops.adam_rate(self._learning_rate, self._beta1, self._beta2, self._time_step + 1)
        beta1, beta2, epsilon, rule = self._beta1, self._beta2, self._epsilon, self._rule()

        def update(slots: list[tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]]) -> None:
            gradients, values, accumulators, results = zip(*slots, strict=True)
            momenta, velocities, *maxima = zip(*accumulators, strict=True)
            ops.adam_step(
                values,
                gradients,
                momenta,
                velocities,
                results,
                rate=rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                rule=rule,
                maximum_velocities=maxima[0] if maxima else None,
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
        input_momentum_vectors: Sequence[MPSVector] | None = None,
        input_velocity_vectors: Sequence[MPSVector] | None = None,
        maximum_velocity_vectors: Sequence[MPSVector] | None = None,
        result_state: MPSState | None = None,
        input_gradient_vector: MPSVector | None = None,
        input_values_vector: MPSVector | None = None,
        input_momentum_vector: MPSVector | None = None,
        input_velocity_vector: MPSVector | None = None,
        maximum_velocity_vector: MPSVector | None = None,
        result_values_vector: MPSVector | None = None,
        input_gradient_matrix: MPSMatrix | None = None,
        input_values_matrix: MPSMatrix | None = None,
        input_momentum_matrix: MPSMatrix | None = None,
        input_velocity_matrix: MPSMatrix | None = None,
        maximum_velocity_matrix: MPSMatrix | None = None,
        result_values_matrix: MPSMatrix | None = None,
    ) -> None:
        """Record one update, which advances `time_step`; see `MPSNNOptimizerStochasticGradientDescent.encode`."""
        self._encode(command_buffer, locals())
