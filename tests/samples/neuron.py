"""Neurons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from openmps.core.kernel.encode import ImageKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.kernels import neuron as kernels
from openmps.metal.device import MTLDevice
from openmps.types import MPSCNNNeuronType
from oracles import neuron
from samples.sample import Array, GradientSample, Reading, Sample, Shape

_NEURON_PARAMETERS: dict[MPSCNNNeuronType, tuple[tuple[float, ...], str]] = {
    MPSCNNNeuronType.NONE: ((), "normal"),
    MPSCNNNeuronType.RELU: ((0.1,), "normal"),
    MPSCNNNeuronType.LINEAR: ((1.5, 0.25), "normal"),
    MPSCNNNeuronType.SIGMOID: ((), "normal"),
    MPSCNNNeuronType.HARD_SIGMOID: ((0.3, 0.4), "wide"),
    MPSCNNNeuronType.TANH: ((1.5, 0.75), "normal"),
    MPSCNNNeuronType.ABSOLUTE: ((), "normal"),
    MPSCNNNeuronType.SOFT_PLUS: ((1.5, 2.0), "wide"),
    MPSCNNNeuronType.SOFT_SIGN: ((), "normal"),
    MPSCNNNeuronType.ELU: ((0.75,), "normal"),
    MPSCNNNeuronType.RELU_N: ((0.25, 1.0), "normal"),
    MPSCNNNeuronType.POWER: ((1.5, 0.5, 2.5), "positive"),
    MPSCNNNeuronType.EXPONENTIAL: ((0.5, 0.25, 2.0), "normal"),
    MPSCNNNeuronType.LOGARITHM: ((1.5, 0.5, 3.0), "positive"),
    MPSCNNNeuronType.GELU: ((), "normal"),
}
_SMOOTH = {
    MPSCNNNeuronType.SIGMOID,
    MPSCNNNeuronType.TANH,
    MPSCNNNeuronType.SOFT_PLUS,
    MPSCNNNeuronType.POWER,
    MPSCNNNeuronType.EXPONENTIAL,
    MPSCNNNeuronType.LOGARITHM,
    MPSCNNNeuronType.GELU,
}
_AFFINE = {MPSCNNNeuronType.NONE, MPSCNNNeuronType.LINEAR}


def _neuron(
    descriptor: MPSNNNeuronDescriptor,
    domain: str,
    shape: Shape,
    make: Callable[[MTLDevice], ImageKernel] | None = None,
    name: str | None = None,
) -> Sample:
    kind = descriptor.neuron_type
    defaults = neuron.DEFAULTS[neuron.NAMES[int(kind)]]
    used = tuple(
        float(value) for value in (descriptor.a, descriptor.b, descriptor.c)
    ) if kind in _NEURON_PARAMETERS else defaults  # fmt: skip
    data = None if descriptor.data is None else descriptor.data.astype(np.float64)
    arguments = (int(kind), *used, data)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        region = how[0].region(sources[0])
        return how[0].back(neuron.gradient(g, region, *arguments), sources[0].shape)

    traits = {"pointwise", "in place"}
    traits |= {"smooth"} if kind in _SMOOTH else set()
    traits |= {"affine"} if kind in _AFFINE else set()
    return Sample(
        name or f"neuron {kind.name.lower()}",
        make or (lambda device: kernels.MPSCNNNeuron(device, descriptor)),
        (shape,),
        lambda sources, how: neuron.forward(how[0].region(sources[0]), *arguments),
        (GradientSample(lambda device: kernels.MPSCNNNeuronGradient(device, descriptor), differentiate),),
        domain,
        frozenset(traits),
    )


def _neuron_class(kind: Any, *parameters: Any) -> Sample:
    """A kernel class of one neuron type, with its own arguments or its defaults."""
    code = _CLASS_TYPES[kind.__name__.removeprefix("MPSCNNNeuron")]
    positive = code in (MPSCNNNeuronType.POWER, MPSCNNNeuronType.LOGARITHM)
    if code is MPSCNNNeuronType.PRELU:
        descriptor = MPSNNNeuronDescriptor(code, data=parameters[0])
    else:
        descriptor = MPSNNNeuronDescriptor(code, *parameters)
    return _neuron(
        descriptor,
        "positive" if positive else "normal",
        (3, 2, 3),
        lambda device: kind(device, *parameters),
        f"neuron class {kind.__name__}",
    )


_CLASS_TYPES = {
    "Absolute": MPSCNNNeuronType.ABSOLUTE,
    "ELU": MPSCNNNeuronType.ELU,
    "Exponential": MPSCNNNeuronType.EXPONENTIAL,
    "HardSigmoid": MPSCNNNeuronType.HARD_SIGMOID,
    "Linear": MPSCNNNeuronType.LINEAR,
    "Logarithm": MPSCNNNeuronType.LOGARITHM,
    "PReLU": MPSCNNNeuronType.PRELU,
    "Power": MPSCNNNeuronType.POWER,
    "ReLU": MPSCNNNeuronType.RELU,
    "ReLUN": MPSCNNNeuronType.RELU_N,
    "Sigmoid": MPSCNNNeuronType.SIGMOID,
    "SoftPlus": MPSCNNNeuronType.SOFT_PLUS,
    "SoftSign": MPSCNNNeuronType.SOFT_SIGN,
    "TanH": MPSCNNNeuronType.TANH,
}
NEURONS = [
    *(
        _neuron(MPSNNNeuronDescriptor(kind, *parameters), domain, (channels, 3, 4))
        for channels, (kind, (parameters, domain)) in zip((1, 3, 4, 5, 8) * 3, _NEURON_PARAMETERS.items(), strict=True)
    ),
    _neuron(MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=[0.1, -0.2, 0.3, 0.4, 0.5]), "normal", (5, 3, 2)),
    _neuron(MPSNNNeuronDescriptor(MPSCNNNeuronType.TANH), "normal", (1, 1, 1), name="neuron tanh, default, one pixel"),
]
NEURON_CLASSES = [
    *(
        _neuron_class(getattr(kernels, f"MPSCNNNeuron{name}"))
        for name, kind in _CLASS_TYPES.items()
        if kind is not MPSCNNNeuronType.PRELU
    ),
    _neuron_class(kernels.MPSCNNNeuronPReLU, [0.5, -0.25, 0.125]),
]
