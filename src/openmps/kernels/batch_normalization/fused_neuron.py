"""The neuron that batch normalization applies to its result, and its derivative (macOS 10.14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSTypeError
from openmps.ops.neuron import neuron, neuron_gradient
from openmps.types import MPSCNNNeuronType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class NeuronProperty:
    """What the kernels with a fused neuron have in common."""

    _neuron: MPSNNNeuronDescriptor | None

    @property
    def fused_neuron_descriptor(self) -> MPSNNNeuronDescriptor | None:
        """A copy of the descriptor of the fused neuron that the kernel was made with, or None."""
        return None if self._neuron is None else self._neuron.copy()


def check_neuron(who: str, descriptor: object) -> MPSNNNeuronDescriptor | None:
    """A copy of ``descriptor``, so that later changes to it change no kernel."""
    if descriptor is None:
        return None
    if not isinstance(descriptor, MPSNNNeuronDescriptor):
        rule = "must be an MPSNNNeuronDescriptor or None"
        raise MPSTypeError(who, "fused_neuron_descriptor", rule, type(descriptor).__name__)
    return descriptor.copy()


@dataclass(frozen=True, slots=True)
class FusedNeuron:
    """A neuron with its numbers on the device of one encode; the identity without a descriptor."""

    descriptor: MPSNNNeuronDescriptor | None
    slopes: Tensor | None

    @classmethod
    def of(cls, who: str, descriptor: MPSNNNeuronDescriptor | None, channels: int, device: MTLDevice) -> FusedNeuron:
        """The neuron for images of ``channels`` channels."""
        if descriptor is None or descriptor.neuron_type is MPSCNNNeuronType.NONE:
            return cls(None, None)
        return cls(descriptor, descriptor.slopes(who, channels, device.torch_device))

    @property
    def is_identity(self) -> bool:
        """Whether there is nothing to apply."""
        return self.descriptor is None

    def value(self, z: Tensor) -> Tensor:
        """The neuron of ``z``."""
        fused = self.descriptor
        return z if fused is None else neuron(z, fused.neuron_type, fused.a, fused.b, fused.c, self.slopes)

    def gradient(self, gradient: Tensor, z: Tensor) -> Tensor:
        """``gradient`` times the neuron's derivative at ``z``."""
        fused = self.descriptor
        if fused is None:
            return gradient
        return neuron_gradient(gradient, z, fused.neuron_type, fused.a, fused.b, fused.c, self.slopes)
