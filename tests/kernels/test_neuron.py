"""Neurons: golden numbers, branches at their edges, encoding in place, PReLU's channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, Bench, encode, finish, keep_results, numbers, run
from helpers import assert_digits
from in_one_test import in_one_test
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels import neuron as kernels
from openmps.kernels.neuron import MPSCNNNeuron, MPSCNNNeuronGradient, MPSCNNNeuronPReLU
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNNeuronType

CPU = mtl_device("cpu")
Type = MPSCNNNeuronType


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def _apply(bench: Bench, descriptor: MPSNNNeuronDescriptor, values: Any) -> np.ndarray:
    return run(bench, MPSCNNNeuron(bench.device, descriptor), [_line(bench, values)]).ravel()


def _derive(bench: Bench, descriptor: MPSNNNeuronDescriptor, values: Any) -> np.ndarray:
    forward, gradient = MPSCNNNeuron(bench.device, descriptor), MPSCNNNeuronGradient(bench.device, descriptor)
    keep_results(gradient)
    image = _line(bench, values)
    command_buffer = bench.command_buffer()
    _, state = forward.encode(command_buffer, image, destination_state_is_temporary=True)
    flow = gradient.encode(command_buffer, _line(bench, np.ones(len(values))), image, state)
    finish(command_buffer)
    return numbers(flow).ravel()


def test_golden_gelu(device: torch.device) -> None:
    bench = Bench.on(device)
    gelu = MPSNNNeuronDescriptor(Type.GELU)
    assert_digits(_apply(bench, gelu, [-1, 0.5, 2]), [-0.158655, 0.345731, 1.954500], 6)
    assert_digits(_derive(bench, gelu, [-1, 0.5, 2]), [-0.083315, 0.867495, 1.085232], 6)


EDGES = [
    (MPSNNNeuronDescriptor(Type.RELU, 0.25), [-4, -0.0, 0, 2], [-1, 0, 0, 2], [0.25, 1, 1, 1]),
    (MPSNNNeuronDescriptor(Type.HARD_SIGMOID), [-2.5, 2.5, -3, 3, 0], [0, 1, 0, 1, 0.5], [0.2, 0.2, 0, 0, 0.2]),
    (MPSNNNeuronDescriptor(Type.ABSOLUTE), [-2, 0, 3], [2, 0, 3], [-1, 0, 1]),
    (MPSNNNeuronDescriptor(Type.RELU_N), [-2, 0, 5, 6, 7], [-2, 0, 5, 6, 6], [1, 1, 1, 0, 0]),
    (MPSNNNeuronDescriptor(Type.RELU_N, 0.0, 6.0), [-2, 0, 5, 7], [0, 0, 5, 6], [0, 1, 1, 0]),
    (MPSNNNeuronDescriptor(Type.RELU_N, -2.0, 3.0), [-1, -2, 1, 4], [2, 3, 1, 3], [-2, 0, 1, 0]),
    (MPSNNNeuronDescriptor(Type.ELU, 2.0), [0, 1], [0, 1], [1, 1]),
    (MPSNNNeuronDescriptor(Type.LINEAR), [-1, 2], [-1, 2], [1, 1]),
    (MPSNNNeuronDescriptor(Type.POWER, 2.0, 1.0, 3.0), [0, 1, -1], [1, 27, -1], [6, 54, 6]),
    (MPSNNNeuronDescriptor(Type.EXPONENTIAL, 1.0, 1.0, 2.0), [0, 1], [2, 4], [2 * np.log(2), 4 * np.log(2)]),
    (MPSNNNeuronDescriptor(Type.LOGARITHM, 1.0, 0.0, 2.0), [1, 8], [0, 3], [1 / np.log(2), 1 / np.log(2) / 8]),
]


E = np.e
SIGMOID = 1 / (1 + 1 / E)
SMOOTH = [
    (MPSNNNeuronDescriptor(Type.SIGMOID), [0, 1], [0.5, SIGMOID], [0.25, SIGMOID * (1 - SIGMOID)]),
    (MPSNNNeuronDescriptor(Type.TANH), [0, 1], [0, np.tanh(1)], [1, 1 - np.tanh(1) ** 2]),
    (MPSNNNeuronDescriptor(Type.TANH, 2.0, 0.5), [0, 2], [0, 2 * np.tanh(1)], [1, 1 - np.tanh(1) ** 2]),
    (MPSNNNeuronDescriptor(Type.SOFT_PLUS), [0, 1], [np.log(2), np.log(1 + E)], [0.5, SIGMOID]),
    (MPSNNNeuronDescriptor(Type.SOFT_PLUS, 3.0, 2.0), [0, 0.5], [3 * np.log(2), 3 * np.log(1 + E)], [3, 6 * SIGMOID]),
    (MPSNNNeuronDescriptor(Type.SOFT_SIGN), [-3, 0, 1], [-0.75, 0, 0.5], [1 / 16, 1, 0.25]),
    (MPSNNNeuronDescriptor(Type.ELU), [-1, 2], [1 / E - 1, 2], [1 / E, 1]),
    (MPSNNNeuronDescriptor(Type.ELU, 2.0), [-1, 2], [2 / E - 2, 2], [2 / E, 1]),
    (MPSNNNeuronDescriptor(Type.POWER), [-2, 3], [-2, 3], [1, 1]),
    (MPSNNNeuronDescriptor(Type.EXPONENTIAL), [0, 1], [1, E], [1, E]),
    (MPSNNNeuronDescriptor(Type.EXPONENTIAL, 2.0, 1.0, -1.0), [0], [E], [2 * E]),
    (MPSNNNeuronDescriptor(Type.LOGARITHM), [1, E], [0, 1], [1, 1 / E]),
    (MPSNNNeuronDescriptor(Type.LOGARITHM, 2.0, 1.0, -1.0), [0, 1], [0, np.log(3)], [2, 2 / 3]),
]
"""Smooth ones, and what -1 as a base means; without parameters, the defaults."""


@in_one_test
@pytest.mark.parametrize(("descriptor", "x", "y", "slope"), SMOOTH, ids=lambda value: None)
def test_golden_formulas(descriptor, x, y, slope, device: torch.device) -> None:
    bench = Bench.on(device)
    assert_digits(_apply(bench, descriptor, x), [float(v) for v in y], 5)
    assert_digits(_derive(bench, descriptor, x), [float(v) for v in slope], 5)


def test_powers_that_are_none(device: torch.device) -> None:
    """A negative base with an exponent that is no integer has no real power; to the power of 0 everything is 1."""
    bench = Bench.on(device)
    found = _apply(bench, MPSNNNeuronDescriptor(Type.POWER, 1.0, 0.0, 0.5), [-4, 4])
    np.testing.assert_array_equal(found, [np.nan, 2])
    assert _apply(bench, MPSNNNeuronDescriptor(Type.POWER, 1.0, 0.0, 0.0), [0, -1, 5]).tolist() == [1, 1, 1]


@in_one_test
@pytest.mark.parametrize(("descriptor", "x", "y", "slope"), EDGES, ids=lambda value: None)
def test_edges(descriptor, x, y, slope, device: torch.device) -> None:
    bench = Bench.on(device)
    assert_digits(_apply(bench, descriptor, x), [float(v) for v in y], 5)
    assert_digits(_derive(bench, descriptor, x), [float(v) for v in slope], 5)


def test_no_overflow(device: torch.device) -> None:
    bench = Bench.on(device)
    for kind, expected in ((Type.SOFT_PLUS, [0, 1000]), (Type.SIGMOID, [0, 1]), (Type.TANH, [-1, 1])):
        np.testing.assert_array_equal(_apply(bench, MPSNNNeuronDescriptor(kind), [-1000, 1000]), expected)
        assert np.isfinite(_derive(bench, MPSNNNeuronDescriptor(kind), [-1000, 1000])).all()


def test_not_a_number_stays(device: torch.device) -> None:
    bench = Bench.on(device)
    for kind in Type:
        if kind in (Type.PRELU, Type.NONE) or not isinstance(kind.value, int) or kind.name == "COUNT":
            continue
        assert np.isnan(_apply(bench, MPSNNNeuronDescriptor(kind), [np.nan])).all(), kind


def test_properties_are_those_of_the_descriptor() -> None:
    for kind in (MPSCNNNeuron, MPSCNNNeuronGradient):
        kernel = kind(CPU, MPSNNNeuronDescriptor(Type.POWER, 2.0, 3.0, 4.0))
        assert (kernel.neuron_type, kernel.a, kernel.b, kernel.c, kernel.data) == (Type.POWER, 2.0, 3.0, 4.0, None)
        for name in ("neuron_type", "a", "b", "c", "data"):
            with pytest.raises(AttributeError):
                setattr(kernel, name, 1)


def test_the_kernel_keeps_its_own_descriptor(device: torch.device) -> None:
    bench = Bench.on(device)
    descriptor = MPSNNNeuronDescriptor(Type.LINEAR, 2.0)
    kernel = MPSCNNNeuron(bench.device, descriptor)
    descriptor.a = 100.0
    assert run(bench, kernel, [_line(bench, [1])]).item() == 2.0


@pytest.mark.parametrize("kind", [MPSCNNNeuron, MPSCNNNeuronGradient])
def test_a_descriptor_is_needed(kind: Any) -> None:
    with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: neuron_descriptor must be an MPSNNNeuronDescriptor"):
        kind(CPU, Type.RELU)


CLASSES = {
    "Absolute": ((), (Type.ABSOLUTE,)),
    "ELU": ((0.5,), (Type.ELU, 0.5)),
    "ReLUN": ((0.5, 2.0), (Type.RELU_N, 0.5, 2.0)),
    "Linear": ((0.5, 2.0), (Type.LINEAR, 0.5, 2.0)),
    "ReLU": ((0.5,), (Type.RELU, 0.5)),
    "Sigmoid": ((), (Type.SIGMOID,)),
    "HardSigmoid": ((0.5, 2.0), (Type.HARD_SIGMOID, 0.5, 2.0)),
    "SoftPlus": ((0.5, 2.0), (Type.SOFT_PLUS, 0.5, 2.0)),
    "SoftSign": ((), (Type.SOFT_SIGN,)),
    "TanH": ((0.5, 2.0), (Type.TANH, 0.5, 2.0)),
    "Power": ((0.5, 2.0, 3.0), (Type.POWER, 0.5, 2.0, 3.0)),
    "Exponential": ((0.5, 2.0, 3.0), (Type.EXPONENTIAL, 0.5, 2.0, 3.0)),
    "Logarithm": ((0.5, 2.0, 3.0), (Type.LOGARITHM, 0.5, 2.0, 3.0)),
}


@in_one_test
@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_one_neuron(name: str) -> None:
    arguments, descriptor = CLASSES[name]
    kernel = getattr(kernels, f"MPSCNNNeuron{name}")(CPU, *arguments)
    expected = MPSNNNeuronDescriptor(*descriptor)
    assert isinstance(kernel, MPSCNNNeuron)
    assert (kernel.neuron_type, kernel.a, kernel.b, kernel.c) == (
        expected.neuron_type,
        expected.a,
        expected.b,
        expected.c,
    )


# --- PReLU -----------------------------------------------------------------------------------------------------------


def test_prelu_counts_from_the_first_channel_read(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNNeuronPReLU(bench.device, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4)
    assert kernel.data is not None
    assert kernel.data.tolist() == [1, 2, 3, 4]
    x = np.full((1, 8, 1, 1), -1.0)
    kernel.source_feature_channel_offset = 4
    assert run(bench, kernel, [bench.image(x)]).ravel().tolist() == [-1, -2, -3, -4]


def test_prelu_needs_a_slope_for_each_channel() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNNeuronPReLU(CPU, [1.0, 2.0])
    kernel.label = "p"
    with pytest.raises(MPSArgumentError, match="^MPSCNNNeuronPReLU 'p': neuron data must hold one number a channel, 3"):
        kernel.encode(bench.command_buffer(), bench.image(np.zeros((1, 3, 1, 1))))
    gradient = MPSCNNNeuronGradient(CPU, MPSNNNeuronDescriptor(Type.PRELU, data=[1.0, 2.0]))
    image = bench.image(np.zeros((1, 3, 1, 1)))
    with pytest.raises(MPSArgumentError, match="^MPSCNNNeuronGradient: neuron data must hold one number a channel, 3"):
        gradient.encode(bench.command_buffer(), image, image, None, bench.empty((1, 3, 1, 1)))


# --- in place --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image", "batch"])
def test_from_an_image_into_itself(kind: str, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(2, 5, 3, 4)).astype(np.float32)
    images = getattr(bench, kind)(x, FLOAT16)
    kernel = MPSCNNNeuron(bench.device, MPSNNNeuronDescriptor(Type.RELU))
    command_buffer = bench.command_buffer()
    returned = encode(kernel, command_buffer, [images], images)
    finish(command_buffer)
    assert returned is images
    np.testing.assert_array_equal(numbers(images), np.maximum(x.astype(np.float16), 0))


def test_none_gives_memory_of_its_own(device: torch.device) -> None:
    """A neuron that does nothing still copies: writing to the result leaves the source alone."""
    bench = Bench.on(device)
    source = _line(bench, [1, 2, 3])
    kernel = MPSCNNNeuron(bench.device, MPSNNNeuronDescriptor())
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, source)
    finish(command_buffer)
    result.tensor().fill_(9)
    assert numbers(source).ravel().tolist() == [1, 2, 3]
