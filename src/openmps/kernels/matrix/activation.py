"""Neurons of kernels over matrices: their type and parameters, and how they are set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from openmps.checks import of_kind
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.matrices import PartsKernel
from openmps.core.kernel.operands import OperandContext
from openmps.core.neuron import MPSNNNeuronDescriptor, NeuronParameters
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.metal.device import MTLDevice
from openmps.ops.matrix.layers import MatrixNeuron, MatrixNeuronGradient
from openmps.ops.op import Value
from openmps.types import MPSCNNNeuronType

_IDENTITY = MPSNNNeuronDescriptor().parameters()


class NeuronSetting(PartsKernel):
    """A kernel with a neuron, the identity unless one is set."""

    _neuron = Setting[NeuronParameters]()
    _takes_slopes = False
    """Whether it may be a PReLU."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self._neuron = _IDENTITY

    def set_neuron_type(
        self,
        neuron_type: MPSCNNNeuronType,
        parameter_a: float | None = None,
        parameter_b: float | None = None,
        parameter_c: float | None = None,
    ) -> None:
        """Set the neuron and its parameters; see `MPSNNNeuronDescriptor` for those that are left out.

        Raises:
            MPSArgumentError: There is no such neuron, it is a PReLU, or a parameter is no number of float32.
        """
        rule = "must be a neuron of MPSCNNNeuronType"
        if member(self.name, "neuron_type", MPSCNNNeuronType, neuron_type, rule) is MPSCNNNeuronType.PRELU:
            remedy = "Use set_neuron_to_prelu" if self._takes_slopes else "Use MPSMatrixNeuron behind it"
            raise MPSArgumentError(self.name, "neuron_type", "must not be PRELU, whose slopes are many", None, remedy)
        self.neuron_descriptor = MPSNNNeuronDescriptor(neuron_type, parameter_a, parameter_b, parameter_c)

    @property
    def neuron_descriptor(self) -> MPSNNNeuronDescriptor:
        """The neuron as a descriptor, a copy each time; may be set. Our addition: archives keep the neuron by it."""
        return self._neuron.descriptor()

    @neuron_descriptor.setter
    def neuron_descriptor(self, value: MPSNNNeuronDescriptor) -> None:
        neuron = of_kind(self.name, "neuron_descriptor", value, MPSNNNeuronDescriptor).parameters()
        if neuron.neuron_type is MPSCNNNeuronType.PRELU and not self._takes_slopes:
            rule, remedy = "must be no PReLU", "Use MPSMatrixNeuron behind it"
            raise MPSArgumentError(self.name, "neuron_descriptor", rule, None, remedy)
        self._neuron = neuron

    def neuron_type(self) -> MPSCNNNeuronType:
        """Which neuron. Default NONE."""
        return self._neuron.neuron_type

    def _activated(self, at: OperandContext, x: Value, bias: Value | None, columns: int, alpha: float = 1.0) -> Value:
        """``f(alpha x + bias)``; x itself where that is all."""
        if self._neuron.is_identity and bias is None and alpha == 1.0:
            return x
        return MatrixNeuron(*self._neuron[:4], alpha)(x, bias, self._slopes(at, columns))

    def _activation_gradient(
        self, at: OperandContext, gradient: Value, x: Value, bias: Value | None, columns: int, alpha: float = 1.0
    ) -> tuple[Value, Value]:
        """The gradients of x and bias of `_activated`."""
        op = MatrixNeuronGradient(*self._neuron[:4], alpha)
        return op(gradient, x, bias, self._slopes(at, columns))

    def _slopes(self, at: OperandContext, columns: int) -> Value | None:
        slopes = self._neuron.slopes(self.name, columns)
        return None if slopes is None else at.constant(slopes)


class NeuronMethods(NeuronSetting):
    """A kernel that tells its neuron's parameters by methods."""

    def neuron_parameter_a(self) -> float:
        """Parameter a of the neuron."""
        return self._neuron.a

    def neuron_parameter_b(self) -> float:
        """Parameter b of the neuron."""
        return self._neuron.b

    def neuron_parameter_c(self) -> float:
        """Parameter c of the neuron."""
        return self._neuron.c


class SlopesSetting(NeuronMethods):
    """A kernel whose neuron may be a PReLU."""

    _takes_slopes = True

    def set_neuron_to_prelu(self, parameters_a: Sequence[float] | NDArray[Any] | bytes) -> None:
        """Set the neuron to a PReLU, with a float32 slope for each column that is used; they are copied.

        Raises:
            MPSArgumentError: There is no number, or what is given are no numbers of float32 in a row.
        """
        self.neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=parameters_a)
