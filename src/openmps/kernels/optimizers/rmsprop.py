"""MPSNNOptimizerRMSProp (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from numbers import Real
from typing import Any, Unpack, overload

from openmps.checks import Shown, finite
from openmps.kernels.optimizers.arguments import SumOfSquaresOperands
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.update import optimizers as ops
from openmps.runtime.step_trace import declared
from openmps.selectors import takes


class MPSNNOptimizerRMSProp(MPSNNOptimizer, takes=SumOfSquaresOperands):
    """RMSProp (MPSNNOptimizers.h, macOS 10.14): ``s = decay s + (1 - decay) g^2; v -= lr g / (sqrt(s) + epsilon)``."""

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
        self._decay = finite(self.name, "decay", decay)
        self._epsilon = finite(self.name, "epsilon", epsilon)
        self._step = ops.RmsProp(1, self._rule, self._decay, self._epsilon)

    @declared
    def encode(self, command_buffer: CommandBuffer, *operands: Any, **named: Unpack[SumOfSquaresOperands]) -> None:
        """Record one update; see `MPSNNOptimizerStochasticGradientDescent.encode`."""
        self._update_operands(command_buffer, operands, named)
