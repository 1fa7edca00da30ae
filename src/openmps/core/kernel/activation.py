"""Neurons in the functions of kernels: those of neuron kernels, and those fused into others."""

from __future__ import annotations

from openmps.checks import of_kind
from openmps.core.kernel.base import KernelProperties
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.neuron import MPSNNNeuronDescriptor, NeuronParameters
from openmps.ops.op import Value
from openmps.ops.pointwise.neuron import Neuron, NeuronGradient, PrintedGeLUGradient, ReplaceNaN
from openmps.types import MPSCNNNeuronType


def neuron_parameters(who: str, argument: str, descriptor: object) -> NeuronParameters:
    """The values of a descriptor as they are now, so that later changes to it change no kernel."""
    return of_kind(who, argument, descriptor, MPSNNNeuronDescriptor).parameters()


def activated(
    at: LoweringContext, kernel: KernelProperties, x: Value, neuron: NeuronParameters | None, channels: int
) -> Value:
    """The neuron of ``x``, an image of so many channels; ``x`` itself without a neuron."""
    if neuron is None or neuron.is_identity:
        return x
    if neuron.neuron_type is MPSCNNNeuronType.RELU and kernel.conventions.unnoted("maxima_of_nan") == "lost":
        x = ReplaceNaN(0.0)(x)
    return Neuron(*neuron[:4])(x, *_slopes(at, kernel.name, neuron, channels))


def activation_gradient(
    at: LoweringContext,
    kernel: KernelProperties,
    gradient: Value,
    x: Value,
    neuron: NeuronParameters | None,
    channels: int,
) -> Value:
    """``gradient`` times the neuron's derivative at ``x``; ``gradient`` itself without a neuron."""
    if neuron is None or neuron.is_identity:
        return gradient
    if neuron.neuron_type is MPSCNNNeuronType.GELU and kernel.conventions["gelu_slope"] == "printed":
        return PrintedGeLUGradient()(gradient, x)
    return NeuronGradient(*neuron[:4])(gradient, x, *_slopes(at, kernel.name, neuron, channels))


def _slopes(at: LoweringContext, who: str, neuron: NeuronParameters, channels: int) -> tuple[Value, ...]:
    slopes = neuron.slopes(who, channels)
    return () if slopes is None else (at.constant(slopes),)
