"""Neurons: pointwise functions and their gradients (MPSCNNNeuron.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import Shown
from openmps.core.arrays import numbers
from openmps.core.kernel.activation import activated, activation_gradient, neuron_parameters
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor, NeuronParameters
from openmps.core.numbers import integer
from openmps.core.state.gradient import MPSNNGradientState
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.ops.pointwise.neuron import Neuron
from openmps.selectors import takes
from openmps.types import MPSCNNNeuronType


class _NeuronParameters(MPSKernel):
    """The parameters that a neuron and its gradient share, read-only once the kernel exists."""

    _neuron = Setting[NeuronParameters]()

    _shown = ("neuron_type", "a", "b", "c")
    neuron_type = Shown[MPSCNNNeuronType]("_neuron.neuron_type", "The function.")
    a = Shown[float]("_neuron.a", "Parameter a of the function.")
    b = Shown[float]("_neuron.b", "Parameter b of the function.")
    c = Shown[float]("_neuron.c", "Parameter c of the function.")

    @takes()
    def __init__(self, device: MTLDevice, neuron_descriptor: MPSNNNeuronDescriptor) -> None:
        super().__init__(device)
        self._neuron = neuron_parameters(self.name, "neuron_descriptor", neuron_descriptor)

    @property
    def data(self) -> NDArray[np.float32] | None:
        """PReLU's parameter a, one number a channel."""
        return None if self._neuron.data is None else np.array(self._neuron.data, np.float32)


class MPSCNNNeuron(_NeuronParameters, MPSCNNKernel, leaves=MPSNNGradientState):
    """Y = f(X), number by number (MPSCNNNeuron.h, macOS 10.13.4).

    The function and its parameters come from ``neuron_descriptor``; `MPSNNNeuronDescriptor`
    lists the formulas. Result as large as the source. A neuron may be encoded from an image into itself.
    """

    _in_place = True

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        region = at.read(images[0])
        if self._neuron.is_identity:
            return Neuron(*self._neuron[:4])(region)
        return activated(at, self, region, self._neuron, at.sources[0].channels)


class MPSCNNNeuronGradient(_NeuronParameters, MPSCNNGradientKernel, of=MPSCNNNeuron):
    """dX = G · f'(X) (MPSCNNNeuron.h, macOS 10.13.4); X is the forward source.

    At 0 the derivative of ReLU is that of the branch x >= 0; hard sigmoid and ReLUN use the true derivatives where the
    header's printed ones are wrong.
    """

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        channels = at.sources[1].channels
        return at.back(activation_gradient(at, self, gradient, at.read(source), self._neuron, channels))


class MPSCNNNeuronAbsolute(MPSCNNNeuron):
    """Y = abs(X) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.ABSOLUTE))


class MPSCNNNeuronELU(MPSCNNNeuron):
    """Y = X >= 0 ? X : a (exp(X) - 1) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.ELU, a))


class MPSCNNNeuronReLUN(MPSCNNNeuron):
    """Y = min(X >= 0 ? X : a X, b) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None, b: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU_N, a, b))


class MPSCNNNeuronLinear(MPSCNNNeuron):
    """Y = a X + b (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None, b: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, a, b))


class MPSCNNNeuronReLU(MPSCNNNeuron):
    """Y = X >= 0 ? X : a X (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, a))


class MPSCNNNeuronSigmoid(MPSCNNNeuron):
    """Y = 1 / (1 + exp(-X)) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.SIGMOID))


class MPSCNNNeuronHardSigmoid(MPSCNNNeuron):
    """Y = clamp(a X + b, 0, 1) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None, b: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.HARD_SIGMOID, a, b))


class MPSCNNNeuronSoftPlus(MPSCNNNeuron):
    """Y = a log(1 + exp(b X)) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None, b: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.SOFT_PLUS, a, b))


class MPSCNNNeuronSoftSign(MPSCNNNeuron):
    """Y = X / (1 + abs(X)) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.SOFT_SIGN))


class MPSCNNNeuronTanH(MPSCNNNeuron):
    """Y = a tanh(b X) (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: float | None = None, b: float | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.TANH, a, b))


class MPSCNNNeuronPower(MPSCNNNeuron):
    """Y = (a X + b) ^ c (MPSCNNNeuron.h, macOS 10.13.4; deprecated there)."""

    def __init__(
        self, device: MTLDevice, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.POWER, a, b, c))


class MPSCNNNeuronExponential(MPSCNNNeuron):
    """Y = c ^ (a X + b), base e if c = -1 (MPSCNNNeuron.h, macOS 10.13.4; deprecated there)."""

    def __init__(
        self, device: MTLDevice, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.EXPONENTIAL, a, b, c))


class MPSCNNNeuronLogarithm(MPSCNNNeuron):
    """Y = log_c(a X + b), natural if c = -1 (MPSCNNNeuron.h, macOS 10.13.4; deprecated there)."""

    def __init__(
        self, device: MTLDevice, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.LOGARITHM, a, b, c))


class MPSCNNNeuronPReLU(MPSCNNNeuron):
    """Y = X >= 0 ? X : a[channel] X (MPSCNNNeuron.h, macOS 10.13; deprecated there)."""

    def __init__(self, device: MTLDevice, a: Sequence[float] | NDArray[Any], count: int | None = None) -> None:
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=_first(a, count)))


def _first(a: Any, count: int | None) -> Any:
    """The first ``count`` numbers."""
    if count is None:
        return a
    given = numbers("MPSCNNNeuronPReLU", "a", a).reshape(-1)
    rule = f"must be an integer of 1 to {given.size}, as there are numbers"
    return given[: integer("MPSCNNNeuronPReLU", "count", count, 1, given.size, rule=rule)]
