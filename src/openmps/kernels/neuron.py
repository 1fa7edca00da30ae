"""Neurons: pointwise functions and their gradients (MPSCNNNeuron.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSTypeError
from openmps.ops.geometry import read, read_adjoint
from openmps.ops.neuron import neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class _NeuronParameters:
    """The parameters that a neuron and its gradient share, read-only once the kernel exists."""

    _neuron: MPSNNNeuronDescriptor

    @property
    def neuron_type(self) -> MPSCNNNeuronType:
        """The function."""
        return self._neuron.neuron_type

    @property
    def a(self) -> float:
        """Parameter a of the function."""
        return self._neuron.a

    @property
    def b(self) -> float:
        """Parameter b of the function."""
        return self._neuron.b

    @property
    def c(self) -> float:
        """Parameter c of the function."""
        return self._neuron.c

    @property
    def data(self) -> NDArray[np.float32] | None:
        """PReLU's parameter a, one number a channel."""
        return self._neuron.data


def _checked(who: str, descriptor: MPSNNNeuronDescriptor) -> MPSNNNeuronDescriptor:
    if not isinstance(descriptor, MPSNNNeuronDescriptor):
        raise MPSTypeError(who, "neuron_descriptor", "must be an MPSNNNeuronDescriptor", type(descriptor).__name__)
    return descriptor.copy()


class MPSCNNNeuron(_NeuronParameters, MPSCNNKernel):
    """Y = f(X), number by number (MPSCNNNeuron.h, macOS 10.13.4).

    The function and its parameters come from ``neuron_descriptor``; `MPSNNNeuronDescriptor`
    lists the formulas. Result as large as the source. A neuron may be encoded from an image into itself.
    """

    _gradient_state_class = MPSNNGradientState
    _in_place = True

    def __init__(self, device: MTLDevice, neuron_descriptor: MPSNNNeuronDescriptor) -> None:
        super().__init__(device)
        self._neuron = _checked(self.name, neuron_descriptor)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        chosen = self._neuron
        data = chosen.slopes(self.name, source.channels, self.device.torch_device)
        kind, a, b, c = chosen.neuron_type, chosen.a, chosen.b, chosen.c

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return neuron(read(values[0], source.window, source.edge_mode), kind, a, b, c, data), None

        return operation


class MPSCNNNeuronGradient(_NeuronParameters, MPSCNNGradientKernel):
    """dX = G · f'(X) (MPSCNNNeuron.h, macOS 10.13.4); X is the forward source.

    At 0 the derivative of ReLU is that of the branch x >= 0; hard sigmoid and ReLUN use the true derivatives where the
    header's printed ones are wrong.
    """

    _forward_kernels = (MPSCNNNeuron,)

    def __init__(self, device: MTLDevice, neuron_descriptor: MPSNNNeuronDescriptor) -> None:
        super().__init__(device)
        self._neuron = _checked(self.name, neuron_descriptor)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        chosen = self._neuron
        data = chosen.slopes(self.name, sources[1].channels, self.device.torch_device)
        kind, a, b, c = chosen.neuron_type, chosen.a, chosen.b, chosen.c

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            region = read(source, geometry.source, geometry.edge_mode)
            result = neuron_gradient(gradient, region, kind, a, b, c, data)
            return read_adjoint(result, geometry.data, geometry.edge_mode), None

        return differentiate


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
        super().__init__(device, MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=a if count is None else a[:count]))
