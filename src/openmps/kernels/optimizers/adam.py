"""MPSNNOptimizerAdam (MPSNNOptimizers.h, macOS 10.14; AMSGrad macOS 10.15)."""

from __future__ import annotations

from numbers import Real
from typing import Any, Unpack, overload

from openmps.checks import Shown, finite, number, store
from openmps.core.numbers import integer
from openmps.core.training_state import TrainingState, whole_number
from openmps.errors import MPSArgumentError
from openmps.kernels.optimizers.arguments import AdamOperands
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.update import optimizers as ops
from openmps.runtime.step_trace import declared
from openmps.selectors import takes


class MPSNNOptimizerAdam(MPSNNOptimizer, takes=AdamOperands):
    """Adam (MPSNNOptimizers.h, macOS 10.14), in its AMSGrad form if maximum velocities are given (macOS 10.15).

    ``t += 1; m = b1 m + (1 - b1) g; u = b2 u + (1 - b2) g^2;
    v -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(u) + epsilon)``; AMSGrad divides by the root of ``x = max(x, u)``.
    In PyTorch epsilon comes behind the correction: it would be ``epsilon / sqrt(1 - b2^t)`` there.
    `time_step` t counts encodes.
    """

    _optional = frozenset({"maximum_velocity"})

    _shown = ("learning_rate", "beta1", "beta2", "epsilon", "time_step")
    beta1 = Shown[float]("_beta1", "Share of the old momentum that is kept.")
    beta2 = Shown[float]("_beta2", "Share of the old velocity that is kept.")
    epsilon = Shown[float]("_epsilon", "Added to the root.")

    @overload
    def __init__(
        self,
        device: MTLDevice,
        beta1: float,
        beta2: float,
        epsilon: float,
        time_step: int,
        optimizer_descriptor: MPSNNOptimizerDescriptor,
        /,
    ) -> None: ...
    @overload
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
    ) -> None: ...
    @takes(
        {
            "device": object,
            "beta1": Real,
            "beta2": Real,
            "epsilon": Real,
            "time_step": Real,
            "optimizer_descriptor": MPSNNOptimizerDescriptor,
        }
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
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
        self._epsilon = finite(self.name, "epsilon", epsilon)
        self.time_step = time_step
        self._step = ops.Adam(1, self._rule, self._beta1, self._beta2, self._epsilon)

    @property
    def time_step(self) -> int:
        """Number of encodes so far; may be set, for example to continue a training."""
        return self._time_step

    @time_step.setter
    def time_step(self, value: int) -> None:
        self._time_step = integer(self.name, "time_step", value, most=2**64 - 1)

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps: the learning rate and `time_step`. Our addition."""
        return {**super().training_state(), "time_step": self._time_step}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the optimizer would that gave ``state``. Our addition."""
        super().restore_training_state(state)
        self.time_step = whole_number(self.name, state, "time_step")

    def _rate(self) -> float:
        while True:
            step = self._time_step + 1
            rate = ops.adam_rate(self._learning_rate, self._beta1, self._beta2, step)
            if self._time_step + 1 == step:
                store(self, "_time_step", step)  # counted whole; see core/numbers.py
                return rate

    @declared
    def encode(self, command_buffer: CommandBuffer, *operands: Any, **named: Unpack[AdamOperands]) -> None:
        """Record one update, which advances `time_step`; see `MPSNNOptimizerStochasticGradientDescent.encode`."""
        self._update_operands(command_buffer, operands, named)
