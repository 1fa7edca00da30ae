"""MPSNNOptimizerStochasticGradientDescent (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from numbers import Real
from typing import Any, Unpack, overload

from openmps.checks import Shown, finite, optional_flag
from openmps.kernels.optimizers.arguments import MomentumOperands
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, described
from openmps.kernels.optimizers.optimizer import MPSNNOptimizer
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.update import optimizers as ops
from openmps.runtime.step_trace import declared
from openmps.selectors import takes


class MPSNNOptimizerStochasticGradientDescent(MPSNNOptimizer, takes=MomentumOperands):
    """Gradient descent with momentum (MPSNNOptimizers.h, macOS 10.14).

    Without momentum vectors ``v -= lr g``; with them ``m = mu m + lr g; v -= m``, or in Nesterov's form
    ``m = mu m + g; v -= lr (g + mu m)``.
    """

    _optional = frozenset({"input_momentum"})

    _shown = ("learning_rate", "momentum_scale", "use_nesterov_momentum")
    momentum_scale = Shown[float]("_momentum_scale", "mu, the share of the old momentum that is kept.")
    use_nesterov_momentum = Shown[bool]("_nesterov", "Whether Nesterov's form is used (macOS 11 spelling).")
    use_nestrov_momentum = Shown[bool]("_nesterov", "Whether Nesterov's form is used (macOS 10.14 spelling).")

    @overload
    def __init__(
        self,
        device: MTLDevice,
        momentum_scale: float,
        use_nesterov_momentum: bool,
        optimizer_descriptor: MPSNNOptimizerDescriptor,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        momentum_scale: float = 0.0,
        use_nesterov_momentum: bool | None = None,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
        use_nestrov_momentum: bool | None = None,
    ) -> None: ...
    @takes(
        {
            "device": object,
            "momentum_scale": Real,
            "use_nesterov_momentum": object,
            "optimizer_descriptor": MPSNNOptimizerDescriptor,
        }
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        momentum_scale: float = 0.0,
        use_nesterov_momentum: bool | None = None,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
        use_nestrov_momentum: bool | None = None,
    ) -> None:
        super().__init__(device, described(learning_rate, optimizer_descriptor))
        self._momentum_scale = finite(self.name, "momentum_scale", momentum_scale)
        spellings = {"use_nesterov_momentum": use_nesterov_momentum, "use_nestrov_momentum": use_nestrov_momentum}
        given = [optional_flag(self.name, name, value) for name, value in spellings.items()]
        self._nesterov = any(given)
        self._step = ops.StochasticGradientDescent(1, self._rule, self._momentum_scale, self._nesterov)

    @declared
    def encode(self, command_buffer: CommandBuffer, *operands: Any, **named: Unpack[MomentumOperands]) -> None:
        """Record one update of a layer's parameters, of a vector, or of a matrix.

        Weights and biases: ``convolution_gradient_state``, ``convolution_source_state`` and ``result_state``, an
        `MPSCNNConvolutionWeightsAndBiasesState`. Gamma and beta: ``batch_normalization_state``, or one state that
        holds the gradients and one that holds the values, and ``result_state``, an
        `MPSCNNNormalizationGammaAndBetaState`. The result may be the source. ``input_momentum_vectors`` holds a vector
        for weights or gamma and one for biases or beta; with one vector the second parameter is not updated: it is
        copied if the result is other memory. Takes one read of each temporary object that is read.

        Raises:
            MPSTypeError: Operands of several forms, or one that is missing or of another class.
            MPSArgumentError: Lengths that do not belong together, or a state without gradients.
        """
        self._update_operands(command_buffer, operands, named)
