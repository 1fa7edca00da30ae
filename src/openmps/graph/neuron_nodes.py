"""The neuron nodes and their gradient node (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSTypeError
from openmps.graph.nodes import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNGradientStateNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.types import MPSCNNNeuronType


class MPSCNNNeuronNode(MPSNNFilterNode):
    """A pointwise function (MPSNNGraphNodes.h, macOS 10.13); see `MPSNNNeuronDescriptor` for the formulas.

    ``MPSCNNNeuronNode(source, descriptor)`` makes a node of the subclass that belongs to the descriptor's type.
    """

    _state_class = MPSNNGradientStateNode

    def __init__(self, source: MPSNNImageNode, descriptor: MPSNNNeuronDescriptor) -> None:
        super().__init__([source])
        if not isinstance(descriptor, MPSNNNeuronDescriptor):
            raise MPSTypeError(self.name, "descriptor", "must be an MPSNNNeuronDescriptor", type(descriptor).__name__)
        self._descriptor = descriptor.copy()
        if type(self) is MPSCNNNeuronNode:
            # The subclasses differ in their constructors only.
            self.__class__ = _CLASSES.get(descriptor.neuron_type, MPSCNNNeuronNode)

    @property
    def descriptor(self) -> MPSNNNeuronDescriptor:
        """Type and parameters: a copy of what was given."""
        return self._descriptor

    @property
    def a(self) -> float:
        """Parameter a."""
        return self._descriptor.a

    @property
    def b(self) -> float:
        """Parameter b."""
        return self._descriptor.b

    @property
    def c(self) -> float:
        """Parameter c."""
        return self._descriptor.c

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        return [MPSCNNNeuronGradientNode(gradient, self.sources[0], self._result_states[0], self._descriptor)]


class MPSCNNNeuronGradientNode(MPSNNGradientFilterNode):
    """The gradient of a neuron (MPSNNGraphNodes.h, macOS 10.13.4)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNNeuronNode

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        descriptor: MPSNNNeuronDescriptor,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        if not isinstance(descriptor, MPSNNNeuronDescriptor):
            raise MPSTypeError(self.name, "descriptor", "must be an MPSNNNeuronDescriptor", type(descriptor).__name__)
        self._descriptor = descriptor.copy()

    @property
    def descriptor(self) -> MPSNNNeuronDescriptor:
        """Type and parameters of the forward neuron."""
        return self._descriptor


class MPSCNNNeuronAbsoluteNode(MPSCNNNeuronNode):
    """abs(x) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.ABSOLUTE))


class MPSCNNNeuronELUNode(MPSCNNNeuronNode):
    """x >= 0 ? x : a (exp(x) - 1) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.ELU, a))


class MPSCNNNeuronReLUNNode(MPSCNNNeuronNode):
    """min(x >= 0 ? x : a x, b) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU_N, a, b))


class MPSCNNNeuronLinearNode(MPSCNNNeuronNode):
    """a x + b (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, a, b))


class MPSCNNNeuronReLUNode(MPSCNNNeuronNode):
    """x >= 0 ? x : a x (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, a))


class MPSCNNNeuronSigmoidNode(MPSCNNNeuronNode):
    """1 / (1 + exp(-x)) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.SIGMOID))


class MPSCNNNeuronHardSigmoidNode(MPSCNNNeuronNode):
    """clamp(a x + b, 0, 1) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.HARD_SIGMOID, a, b))


class MPSCNNNeuronSoftPlusNode(MPSCNNNeuronNode):
    """a log(1 + exp(b x)) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.SOFT_PLUS, a, b))


class MPSCNNNeuronSoftSignNode(MPSCNNNeuronNode):
    """x / (1 + abs(x)) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.SOFT_SIGN))


class MPSCNNNeuronTanHNode(MPSCNNNeuronNode):
    """a tanh(b x) (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.TANH, a, b))


class MPSCNNNeuronPowerNode(MPSCNNNeuronNode):
    """(a x + b) ^ c (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self, source: MPSNNImageNode, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.POWER, a, b, c))


class MPSCNNNeuronExponentialNode(MPSCNNNeuronNode):
    """c ^ (a x + b), base e if c = -1 (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self, source: MPSNNImageNode, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.EXPONENTIAL, a, b, c))


class MPSCNNNeuronLogarithmNode(MPSCNNNeuronNode):
    """log_c(a x + b), natural if c = -1 (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self, source: MPSNNImageNode, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.LOGARITHM, a, b, c))


class MPSCNNNeuronGeLUNode(MPSCNNNeuronNode):
    """x / 2 (1 + erf(x / sqrt 2)) (MPSNNGraphNodes.h, macOS 10.15)."""

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.GELU))


class MPSCNNNeuronPReLUNode(MPSCNNNeuronNode):
    """x >= 0 ? x : a[channel] x (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a_data: Sequence[float] | NDArray[Any]) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=a_data))


_CLASSES: dict[MPSCNNNeuronType, type[MPSCNNNeuronNode]] = {
    MPSCNNNeuronType.ABSOLUTE: MPSCNNNeuronAbsoluteNode,
    MPSCNNNeuronType.ELU: MPSCNNNeuronELUNode,
    MPSCNNNeuronType.RELU_N: MPSCNNNeuronReLUNNode,
    MPSCNNNeuronType.LINEAR: MPSCNNNeuronLinearNode,
    MPSCNNNeuronType.RELU: MPSCNNNeuronReLUNode,
    MPSCNNNeuronType.SIGMOID: MPSCNNNeuronSigmoidNode,
    MPSCNNNeuronType.HARD_SIGMOID: MPSCNNNeuronHardSigmoidNode,
    MPSCNNNeuronType.SOFT_PLUS: MPSCNNNeuronSoftPlusNode,
    MPSCNNNeuronType.SOFT_SIGN: MPSCNNNeuronSoftSignNode,
    MPSCNNNeuronType.TANH: MPSCNNNeuronTanHNode,
    MPSCNNNeuronType.POWER: MPSCNNNeuronPowerNode,
    MPSCNNNeuronType.EXPONENTIAL: MPSCNNNeuronExponentialNode,
    MPSCNNNeuronType.LOGARITHM: MPSCNNNeuronLogarithmNode,
    MPSCNNNeuronType.GELU: MPSCNNNeuronGeLUNode,
    MPSCNNNeuronType.PRELU: MPSCNNNeuronPReLUNode,
}
