"""The neuron nodes and their gradient node (MPSNNGraphNodes.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from openmps.checks import Shown, of_kind
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.graph.nodes.releases import FIRST, FIRST_GRADIENTS
from openmps.selectors import takes
from openmps.types import MPSCNNNeuronType


class MPSCNNNeuronNode(MPSNNFilterNode):
    """A pointwise function (MPSNNGraphNodes.h, macOS 10.13); see `MPSNNNeuronDescriptor` for the formulas.

    ``MPSCNNNeuronNode(source, descriptor)`` makes a node of the subclass that belongs to the descriptor's type.
    """

    _neuron_type: ClassVar[MPSCNNNeuronType]

    def __init__(self, source: MPSNNImageNode, descriptor: MPSNNNeuronDescriptor) -> None:
        super().__init__([source])
        self._descriptor = of_kind(self.name, "descriptor", descriptor, MPSNNNeuronDescriptor).copy()
        if type(self) is MPSCNNNeuronNode:
            # The subclasses differ in their constructors only.
            self.__class__ = CLASSES.get(descriptor.neuron_type, MPSCNNNeuronNode)

    def __init_subclass__(cls, neuron_type: MPSCNNNeuronType | None = None, since: str = FIRST) -> None:
        super().__init_subclass__()
        if neuron_type is not None:
            cls._neuron_type = neuron_type
            CLASSES[neuron_type], SINCE[neuron_type] = cls, since

    descriptor = Shown[MPSNNNeuronDescriptor]("_descriptor", "Type and parameters: a copy of what was given.")
    a = Shown[float]("_descriptor.a", "Parameter a.")
    b = Shown[float]("_descriptor.b", "Parameter b.")
    c = Shown[float]("_descriptor.c", "Parameter c.")


CLASSES: dict[MPSCNNNeuronType, type[MPSCNNNeuronNode]] = {}
"""The subclass of each type."""
SINCE: dict[MPSCNNNeuronType, str] = {}
"""The first macOS that has it."""


class MPSCNNNeuronGradientNode(MPSNNGradientFilterNode):
    """The gradient of a neuron (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        descriptor: MPSNNNeuronDescriptor,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._descriptor = of_kind(self.name, "descriptor", descriptor, MPSNNNeuronDescriptor).copy()

    descriptor = Shown[MPSNNNeuronDescriptor]("_descriptor", "Type and parameters of the forward neuron.")


class _Plain(MPSCNNNeuronNode):
    """A function without parameters."""

    @takes()
    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(self._neuron_type))


class _WithA(MPSCNNNeuronNode):
    """A function with the parameter a."""

    @takes()
    def __init__(self, source: MPSNNImageNode, a: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(self._neuron_type, a))


class _WithAB(MPSCNNNeuronNode):
    """A function with the parameters a and b."""

    @takes()
    def __init__(self, source: MPSNNImageNode, a: float | None = None, b: float | None = None) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(self._neuron_type, a, b))


class _WithABC(MPSCNNNeuronNode):
    """A function with the parameters a, b and c."""

    @takes()
    def __init__(
        self, source: MPSNNImageNode, a: float | None = None, b: float | None = None, c: float | None = None
    ) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(self._neuron_type, a, b, c))


class MPSCNNNeuronAbsoluteNode(_Plain, neuron_type=MPSCNNNeuronType.ABSOLUTE):
    """abs(x) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronELUNode(_WithA, neuron_type=MPSCNNNeuronType.ELU):
    """x >= 0 ? x : a (exp(x) - 1) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronReLUNNode(_WithAB, neuron_type=MPSCNNNeuronType.RELU_N):
    """min(x >= 0 ? x : a x, b) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronLinearNode(_WithAB, neuron_type=MPSCNNNeuronType.LINEAR):
    """a x + b (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronReLUNode(_WithA, neuron_type=MPSCNNNeuronType.RELU):
    """x >= 0 ? x : a x (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronSigmoidNode(_Plain, neuron_type=MPSCNNNeuronType.SIGMOID):
    """1 / (1 + exp(-x)) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronHardSigmoidNode(_WithAB, neuron_type=MPSCNNNeuronType.HARD_SIGMOID):
    """clamp(a x + b, 0, 1) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronSoftPlusNode(_WithAB, neuron_type=MPSCNNNeuronType.SOFT_PLUS):
    """a log(1 + exp(b x)) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronSoftSignNode(_Plain, neuron_type=MPSCNNNeuronType.SOFT_SIGN):
    """x / (1 + abs(x)) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronTanHNode(_WithAB, neuron_type=MPSCNNNeuronType.TANH):
    """a tanh(b x) (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNNeuronPowerNode(_WithABC, neuron_type=MPSCNNNeuronType.POWER, since=FIRST_GRADIENTS):
    """(a x + b) ^ c (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNNeuronExponentialNode(_WithABC, neuron_type=MPSCNNNeuronType.EXPONENTIAL, since=FIRST_GRADIENTS):
    """c ^ (a x + b), base e if c = -1 (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNNeuronLogarithmNode(_WithABC, neuron_type=MPSCNNNeuronType.LOGARITHM, since=FIRST_GRADIENTS):
    """log_c(a x + b), natural if c = -1 (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNNeuronGeLUNode(_Plain, neuron_type=MPSCNNNeuronType.GELU, since="10.15"):
    """x / 2 (1 + erf(x / sqrt 2)) (MPSNNGraphNodes.h, macOS 10.15)."""


class MPSCNNNeuronPReLUNode(MPSCNNNeuronNode, neuron_type=MPSCNNNeuronType.PRELU):
    """x >= 0 ? x : a[channel] x (MPSNNGraphNodes.h, macOS 10.13)."""

    def __init__(self, source: MPSNNImageNode, a_data: Sequence[float] | NDArray[Any]) -> None:
        super().__init__(source, MPSNNNeuronDescriptor(self._neuron_type, data=a_data))
