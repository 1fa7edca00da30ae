"""Convolution: golden numbers, what a descriptor may ask for, gradients' options and accumulation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.kernels.neuron import MPSCNNNeuronReLU, MPSCNNNeuronSigmoid
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNConvolutionGradientOption,
    MPSCNNConvolutionWeightsLayout,
    MPSCNNNeuronType,
    MPSImageEdgeMode,
    MPSOffset,
)
from oracles import convolution as oracle
from oracles import neuron as neuron_oracle
from samples.convolution import ArraySource, Layer
from samples.sample import Reading, exact, readings

CPU = mtl_device("cpu")
TOLERANCE = 1e-5


def _line(values: Any) -> np.ndarray:
    """Numbers along x of one channel of one image."""
    return np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1)


def _line_kernel(bench: Bench, weights: list[float], *, stride: int = 1, dilation: int = 1) -> MPSCNNConvolution:
    descriptor = MPSCNNConvolutionDescriptor(len(weights), 1, 1, 1)
    descriptor.stride_in_pixels_x, descriptor.dilation_rate_x = stride, dilation
    return MPSCNNConvolution(bench.device, descriptor, weights)


# --- golden numbers --------------------------------------------------------------------------------------------------

GOLDEN = [
    ([1, 10, 100], 1, 1, 0, [210, 321, 432, 543, 54]),
    ([1, 10], 1, 1, 0, [10, 21, 32, 43, 54]),
    ([1, 10], 1, 1, 1, [21, 32, 43, 54, 5]),
    ([1, 10], 1, 3, 0, [20, 30, 41, 52, 3]),
    ([1, 10, 100], 2, 1, 1, [321, 543]),
]


@pytest.mark.parametrize(("weights", "stride", "dilation", "offset", "expected"), GOLDEN)
def test_golden_forward(weights, stride, dilation, offset, expected, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = _line_kernel(bench, weights, stride=stride, dilation=dilation)
    kernel.offset = MPSOffset(offset, 0, 0)
    destination = bench.empty((1, 1, 1, len(expected)))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(_line([1, 2, 3, 4, 5])), destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination).ravel(), expected)


def test_golden_gradient(device: torch.device) -> None:
    """k = 3, s = 2, o = 0, five source pixels, three results."""
    bench = Bench.on(device)
    descriptor = MPSCNNConvolutionDescriptor(3, 1, 1, 1)
    descriptor.stride_in_pixels_x = 2
    source = ArraySource(descriptor, np.array([1, 10, 100], np.float32))
    forward = MPSCNNConvolution(bench.device, weights=source)
    gradient = MPSCNNConvolutionGradient(bench.device, weights=source)
    keep_results(gradient)
    image = bench.image(_line([1, 2, 3, 4, 5]))
    command_buffer = bench.command_buffer()
    result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    assert forward.offset == MPSOffset(0, 0, 0)
    assert (result.width, result.height) == (3, 1)
    flow = gradient.encode(command_buffer, bench.image(_line([1, 2, 3])), image, state)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(flow).ravel(), [10, 102, 20, 203, 30])
    assert state.gradient_for_weights.tensor(torch.float32).tolist() == [16, 22, 10]
    assert state.gradient_for_biases.tensor(torch.float32).tolist() == [6]


def test_golden_gradient_of_a_clamped_edge(device: torch.device) -> None:
    """Three taps over two pixels: what was read of the repeated edge flows back to the edge, an exact adjoint."""
    bench = Bench.on(device)
    source = ArraySource(MPSCNNConvolutionDescriptor(3, 1, 1, 1), np.array([1, 10, 100], np.float32))
    forward = MPSCNNConvolution(bench.device, weights=source)
    gradient = MPSCNNConvolutionGradient(bench.device, weights=source)
    forward.edge_mode = MPSImageEdgeMode.CLAMP
    keep_results(forward)
    keep_results(gradient)
    image, command_buffer = bench.image(_line([1, 2])), bench.command_buffer()
    result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    flow = gradient.encode(command_buffer, bench.image(_line([1, 2])), image, state)
    finish(command_buffer)
    assert numbers(result).ravel().tolist() == [211, 221]
    assert numbers(flow).ravel().tolist() == [11 * 1 + 1 * 2, 100 * 1 + 110 * 2]
    assert state.gradient_for_weights.tensor(torch.float32).tolist() == [1 + 2, 1 + 4, 2 + 4]


# --- descriptors -----------------------------------------------------------------------------------------------------


def test_descriptor_defaults() -> None:
    descriptor = MPSCNNConvolutionDescriptor()
    assert (descriptor.kernel_width, descriptor.kernel_height) == (3, 3)
    assert (descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y) == (1, 1)
    assert (descriptor.dilation_rate_x, descriptor.dilation_rate_y) == (1, 1)
    assert descriptor.groups == 1
    assert descriptor.fused_neuron_descriptor is None
    assert descriptor.channel_multiplier == 0


def test_kernel_repeats_the_descriptor() -> None:
    layer = Layer(8, 16, 2, 5, stride=(2, 3), dilation=(3, 1), groups=2)
    kernel = MPSCNNConvolution(CPU, weights=layer.source())
    assert (kernel.kernel_width, kernel.kernel_height) == (5, 2)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (3, 2)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (1, 3)
    assert (kernel.input_feature_channels, kernel.output_feature_channels, kernel.groups) == (8, 16, 2)
    assert (kernel.channel_multiplier, kernel.sub_pixel_scale_factor) == (0, 1)
    assert (kernel.neuron_parameter_a, kernel.neuron_parameter_b, kernel.neuron_parameter_c) == (1.0, 1.0, 1.0)
    assert kernel.label == "source"
    gradient = MPSCNNConvolutionGradient(CPU, weights=layer.source())
    assert (gradient.source_gradient_feature_channels, gradient.source_image_feature_channels) == (16, 8)
    assert gradient.is_state_modified


def test_the_kernel_keeps_its_own_descriptor() -> None:
    """Changing the descriptor that a kernel was made with does not change the kernel."""
    bench = Bench(CPU)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    kernel = MPSCNNConvolution(CPU, descriptor, [2.0])
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, 5.0, 5.0)
    assert run(bench, kernel, [bench.image(_line([3]))]).item() == 6.0


def test_a_fused_neuron_changed_after_the_encode(device: torch.device) -> None:
    bench = Bench.on(device)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, 5.0, 1.0)
    kernel = MPSCNNConvolution(bench.device, descriptor, [2.0])
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, bench.image(_line([3])))
    assert kernel.fused_neuron_descriptor is not None
    kernel.fused_neuron_descriptor.a = -1.0
    finish(command_buffer)
    assert numbers(result).item() == 31.0


@pytest.mark.parametrize("depthwise", [False, True])
def test_the_older_constructor(depthwise: bool, device: torch.device, rng: np.random.Generator) -> None:
    """Descriptor, weights in OHWI (depthwise: [O][ky][kx]) and biases as plain arrays."""
    bench = Bench.on(device)
    layer = Layer(3, 3, 2, 3, depthwise=depthwise)
    weights = layer.weights()
    given = weights[..., 0] if depthwise else weights
    x = rng.normal(size=(2, 3, 4, 5))
    by_array = MPSCNNConvolution(bench.device, layer.descriptor(), given.ravel().tolist(), layer.bias_terms())
    by_source = MPSCNNConvolution(bench.device, weights=layer.source())
    images = bench.batch(x)
    np.testing.assert_array_equal(run(bench, by_array, [images]), run(bench, by_source, [images]))


def test_depthwise_is_the_formula(device: torch.device, rng: np.random.Generator) -> None:
    """``Y[k m + q] = X[k] * F[k][q]`` with filters [C][m][ky][kx]."""
    bench = Bench.on(device)
    layer = Layer(3, 6, 3, 2, depthwise=True)
    x = rng.normal(size=(1, 3, 5, 4)).astype(np.float32).astype(np.float64)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    found = run(bench, kernel, [bench.image(x)])
    (how,) = readings(kernel, 4, 5)
    filters = layer.weights().reshape(3, 2, 3, 2)
    assert_close(found, oracle.depthwise(x, filters, layer.bias_terms(), how.rows, how.columns), TOLERANCE)
    assert kernel.channel_multiplier == 2
    assert MPSCNNConvolutionGradient(bench.device, weights=layer.source()).channel_multiplier == 2


def test_groups_that_the_hardware_refuses_warn_and_compute(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(6, 4, groups=2)
    with pytest.warns(UserWarning, match="MPSCNNConvolution.*multiples of 4"):
        kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    x = rng.normal(size=(1, 6, 3, 3)).astype(np.float32).astype(np.float64)
    found = run(bench, kernel, [bench.image(x)])
    assert_close(found, layer.forward([x], readings(kernel, 3, 3)), TOLERANCE)


def test_the_weights_say_how_many_channels_are_read() -> None:
    """More may be there; a maximum below the weights' count leaves too few."""
    bench = Bench(CPU)
    kernel = MPSCNNConvolution(CPU, weights=Layer(4, 3).source())
    image = bench.image(np.zeros((1, 6, 3, 3)))
    kernel.source_feature_channel_max_count = 5
    kernel.encode(bench.command_buffer(), image)
    kernel.source_feature_channel_max_count = 3
    message = "source_image must have at least 4 feature channel.s. from channel 0 on, got 3 by the source feature"
    with pytest.raises(MPSArgumentError, match=f"^MPSCNNConvolution 'source': {message}"):
        kernel.encode(bench.command_buffer(), image)


@in_one_test
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel_width", 0),
        ("kernel_height", -1),
        ("input_feature_channels", 0),
        ("output_feature_channels", 2.5),
        ("stride_in_pixels_x", 0),
        ("stride_in_pixels_y", True),
        ("dilation_rate_x", 0),
        ("dilation_rate_y", "2"),
        ("dilation_rate_x", 2**31 - 1),
        ("dilation_rate_y", 2**23 + 1),
        ("groups", 0),
        ("groups", 3),
    ],
)
def test_bad_descriptors(name: str, value: Any) -> None:
    descriptor = MPSCNNConvolutionDescriptor(3, 3, 4, 8)
    setattr(descriptor, name, value)
    with pytest.raises(MPSArgumentError, match=rf"^MPSCNNConvolution: descriptor.{name} must"):
        MPSCNNConvolution(CPU, descriptor, np.zeros(288))


@pytest.mark.parametrize("name", ["fused_neuron_descriptor", "batch_normalization"])
def test_bad_parts_of_descriptors(name: str) -> None:
    descriptor = MPSCNNConvolutionDescriptor(3, 3, 4, 8)
    setattr(descriptor, name, ["relu"])
    with pytest.raises(MPSTypeError, match=rf"^MPSCNNConvolution: descriptor.{name} must be an .* or None, got list"):
        MPSCNNConvolution(CPU, descriptor, np.zeros(288))


def test_bad_depthwise_descriptors() -> None:
    descriptor = MPSCNNDepthWiseConvolutionDescriptor(1, 1, 3, 4)
    with pytest.raises(MPSArgumentError, match="output_feature_channels must be a multiple of the 3 input"):
        MPSCNNConvolution(CPU, descriptor, np.zeros(4))
    descriptor = MPSCNNDepthWiseConvolutionDescriptor(1, 1, 4, 4)
    descriptor.groups = 4
    with pytest.raises(MPSArgumentError, match="groups must be 1"):
        MPSCNNConvolution(CPU, descriptor, np.zeros(4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, [1.0]), MPSTypeError, "arguments must be weights="),
        ((MPSCNNConvolutionDescriptor(1, 1, 1, 1), None), MPSTypeError, "arguments must be weights="),
        ((MPSCNNConvolutionDescriptor(1, 1, 1, 2), [1.0]), MPSArgumentError, "kernel_weights must hold 2"),
        ((MPSCNNConvolutionDescriptor(1, 1, 1, 1), ["a"]), MPSTypeError, "kernel_weights must be numbers"),
        ((MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], [1.0, 2.0]), MPSArgumentError, "bias_terms must hold 1"),
    ],
)
def test_bad_arrays(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^MPSCNNConvolution: {message}"):
        MPSCNNConvolution(CPU, *arguments)


# --- fused neurons and batch normalization ---------------------------------------------------------------------------


def _fused(descriptor: MPSCNNConvolutionDescriptor, layer: Layer) -> ArraySource:
    return ArraySource(descriptor, layer.weights().astype(np.float32), layer.bias_terms())


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (MPSCNNNeuronType.RELU, (0.1,)),
        (MPSCNNNeuronType.TANH, (1.5, 0.5)),
        (MPSCNNNeuronType.RELU_N, (0.0, 1.0)),
        (MPSCNNNeuronType.EXPONENTIAL, (0.25, 0.0, 2.0)),
        (MPSCNNNeuronType.GELU, ()),
        (MPSCNNNeuronType.NONE, ()),
    ],
)
def test_fused_neurons(kind, parameters, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 5)
    descriptor = layer.descriptor()
    descriptor.fused_neuron_descriptor = neuron = MPSNNNeuronDescriptor(kind, *parameters)
    kernel = MPSCNNConvolution(bench.device, weights=_fused(descriptor, layer))
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32).astype(np.float64)
    plain = layer.forward([x], readings(kernel, 4, 4))
    expected = neuron_oracle.forward(plain, int(kind), neuron.a, neuron.b, neuron.c)
    assert_close(run(bench, kernel, [bench.batch(x)]), expected, TOLERANCE)
    assert kernel.neuron_type is kind


def test_fused_prelu_takes_its_slope_by_output_channel(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(2, 3, 1, 1)
    slopes = [0.5, -1.0, 2.0]
    descriptor = layer.descriptor()
    descriptor.set_neuron_to_prelu(slopes)
    kernel = MPSCNNConvolution(bench.device, weights=_fused(descriptor, layer))
    x = rng.normal(size=(1, 2, 3, 3)).astype(np.float32).astype(np.float64)
    plain = layer.forward([x], readings(kernel, 3, 3))
    expected = neuron_oracle.forward(plain, int(MPSCNNNeuronType.PRELU), 0, 0, 0, np.array(slopes))
    assert_close(run(bench, kernel, [bench.image(x)]), expected, TOLERANCE)


def test_fused_prelu_with_too_few_slopes() -> None:
    bench = Bench(CPU)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 3)
    descriptor.set_neuron_to_prelu(np.array([0.5, 0.25], np.float32).tobytes())
    kernel = MPSCNNConvolution(CPU, descriptor, np.ones(3))
    kernel.label = "c1"
    with pytest.raises(
        MPSArgumentError, match="^MPSCNNConvolution 'c1': neuron data must hold one number a channel, 3"
    ):
        kernel.encode(bench.command_buffer(), bench.image(_line([1])))


def test_deprecated_ways_to_a_fused_neuron() -> None:
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    descriptor.set_neuron_type(MPSCNNNeuronType.LINEAR, 2.0, 3.0)
    assert descriptor.fused_neuron_descriptor == MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, 2.0, 3.0)
    assert (descriptor.neuron_type(), descriptor.neuron_parameter_a(), descriptor.neuron_parameter_b()) == (
        MPSCNNNeuronType.LINEAR,
        2.0,
        3.0,
    )
    neuron = MPSCNNNeuronReLU(CPU, 0.5)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1, neuron)
    assert descriptor.neuron is neuron
    assert descriptor.fused_neuron_descriptor == MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, 0.5)
    kernel = MPSCNNConvolution(CPU, descriptor, [1.0])
    assert (kernel.neuron, kernel.neuron_type, kernel.neuron_parameter_a) == (neuron, MPSCNNNeuronType.RELU, 0.5)
    descriptor.neuron = None
    assert descriptor.fused_neuron_descriptor is None
    with pytest.raises(MPSTypeError, match="^MPSCNNConvolutionDescriptor: neuron must be an MPSCNNNeuron"):
        descriptor.neuron = 7
    descriptor.neuron = MPSCNNNeuronSigmoid(CPU)
    assert descriptor.neuron_type() is MPSCNNNeuronType.SIGMOID


@pytest.mark.parametrize("biases", [True, False])
def test_folded_batch_normalization(biases: bool, device: torch.device, rng: np.random.Generator) -> None:
    """Before the neuron: ``neuron((conv + b - mean) gamma / sqrt(variance + epsilon) + beta)``."""
    bench = Bench.on(device)
    layer = Layer(3, 5, biases=biases)
    mean, beta = rng.normal(size=5), rng.normal(size=5)
    variance, gamma = rng.uniform(0.5, 2.0, size=5), rng.uniform(0.5, 2.0, size=5)
    descriptor = layer.descriptor()
    descriptor.set_batch_normalization_parameters_for_inference(mean, variance, gamma, beta, 1e-3)
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU)
    kernel = MPSCNNConvolution(bench.device, weights=_fused(descriptor, layer))
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32).astype(np.float64)
    plain = layer.forward([x], readings(kernel, 4, 4))
    factor = (gamma / np.sqrt(variance + 1e-3))[:, None, None]
    expected = np.maximum((plain - mean[:, None, None]) * factor + beta[:, None, None], 0.0)
    images = bench.batch(x)
    assert_close(run(bench, kernel, [images]), expected, TOLERANCE)
    assert_close(run(bench, kernel.copy(), [images]), expected, TOLERANCE)


def test_batch_normalization_defaults() -> None:
    """None stands for mean 0, variance 1, gamma 1, beta 0."""
    bench = Bench(CPU)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    descriptor.set_batch_normalization_parameters_for_inference(None, None)
    assert run(bench, MPSCNNConvolution(CPU, descriptor, [3.0]), [bench.image(_line([2]))]).item() == 6.0


def test_bad_batch_normalization() -> None:
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 2)
    with pytest.raises(MPSArgumentError, match="mean must hold one number an output channel, 2, got 1"):
        descriptor.set_batch_normalization_parameters_for_inference([1.0], [1.0, 1.0])
    with pytest.raises(MPSArgumentError, match=r"variance must be variances, .*, got -1.0 for channel 1"):
        descriptor.set_batch_normalization_parameters_for_inference([0.0, 0.0], [1.0, -1.0])
    for wrong in (["a", "b"], [10**400, 1], object()):
        with pytest.raises(MPSTypeError, match="^MPSCNNConvolutionDescriptor: gamma must be float32 numbers, got "):
            descriptor.set_batch_normalization_parameters_for_inference(None, None, wrong)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^MPSCNNConvolutionDescriptor: epsilon must be a number"):
        descriptor.set_batch_normalization_parameters_for_inference(None, None, epsilon="small")  # type: ignore[arg-type]
    descriptor.output_feature_channels = -1
    with pytest.raises(MPSArgumentError, match="output_feature_channels must be an integer of at least 1, got -1"):
        descriptor.set_batch_normalization_parameters_for_inference(None, None)


def test_defaults_of_batch_normalization_take_no_memory_a_channel() -> None:
    """Before a kernel is made nothing has looked whether so many channels can be meant."""
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 2**31 - 1)
    tracemalloc.start()
    descriptor.set_batch_normalization_parameters_for_inference(None, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


# --- gradients -------------------------------------------------------------------------------------------------------


def _pass(
    bench: Bench,
    layer: Layer,
    x: np.ndarray,
    flow: np.ndarray,
    option: MPSCNNConvolutionGradientOption = MPSCNNConvolutionGradientOption.ALL,
) -> tuple[np.ndarray, Any, list[Reading]]:
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    gradient = MPSCNNConvolutionGradient(bench.device, weights=layer.source())
    gradient.gradient_option = option
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    images = bench.batch(x)
    result, states = forward.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    return numbers(found), states[0], readings(forward, result[0].width, result[0].height)


def test_gradient_options(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 3)
    x, flow = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 4, 4, 5))
    both, state, _ = _pass(bench, layer, x, flow)
    data, untouched, _ = _pass(bench, layer, x, flow, MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA)
    nothing, weights, _ = _pass(bench, layer, x, flow, MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS)
    assert_close(data, both, 1e-6)
    assert (nothing == 0).all()
    for name in ("gradient_for_weights", "gradient_for_biases"):
        expected = getattr(state, name).tensor(torch.float32)
        assert_close(getattr(weights, name).tensor(torch.float32), expected, 1e-6)
        assert (getattr(untouched, name).tensor(torch.float32) == 0).all()


def test_option_values() -> None:
    """3 is both; the older headers' Swift names gave it the name of 2 as well."""
    assert MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA == 1
    assert MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS == 2
    assert MPSCNNConvolutionGradientOption.ALL == 3


@in_one_test
@pytest.mark.parametrize(("size", "dilation"), [(3, 1), (4, 1), (2, 2), (2, 3), (3, 2), (1, 1)])
@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_what_the_state_sets(size: int, dilation: int, offset: int) -> None:
    """``kernel_offset = -o``, plus 1 where the dilated size is even; `secondary_offset` is the forward offset."""
    bench = Bench(CPU)
    source = Layer(1, 1, size, size, dilation=(dilation, dilation)).source()
    forward, gradient = MPSCNNConvolution(CPU, weights=source), MPSCNNConvolutionGradient(CPU, weights=source)
    forward.offset = MPSOffset(offset, 1, 0)
    image, destination = bench.empty((1, 1, 6, 6)), bench.empty((1, 1, 5, 5))
    command_buffer = bench.command_buffer()
    state = forward.result_state(image, destination_image=destination)
    forward.encode(command_buffer, image, destination, destination_state=state)
    gradient.encode(command_buffer, bench.empty((1, 1, 5, 5)), image, state)
    is_even = ((size - 1) * dilation + 1) % 2 == 0
    assert (gradient.kernel_offset_x, gradient.kernel_offset_y) == (int(is_even) - offset, int(is_even) - 1)
    assert gradient.primary_offset == MPSOffset(0, 0, 0)
    assert gradient.secondary_offset == MPSOffset(offset, 1, 0)


def test_an_even_dilated_kernel_begins_half_its_dilated_size_before_the_offset(device: torch.device) -> None:
    """Taps at ``o - kD / 2``: -3 and +2 for k = 2, d = 5, not the -5 of ``d (k / 2)``."""
    bench = Bench.on(device)
    kernel = _line_kernel(bench, [1, 10], dilation=5)
    found = run(bench, kernel, [bench.image(_line([1, 2, 3, 4, 5, 6, 7]))])
    np.testing.assert_array_equal(found.ravel(), [30, 40, 50, 61, 72, 3, 4])


def test_a_gradient_of_biases_that_are_not_there(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(1, 2, biases=False)
    flow = exact(rng.normal(size=(2, 2, 3, 3)))
    _, state, _ = _pass(bench, layer, np.ones((2, 1, 3, 3)), flow)
    assert_close(state.gradient_for_biases.tensor(torch.float32), flow.sum((0, 2, 3)), TOLERANCE)


def test_gradients_of_a_depthwise_convolution_are_laid_out_as_its_filters(
    device: torch.device, rng: np.random.Generator
) -> None:
    """``[O][ky][kx]``, ``dW[k m + q] = sum G[k m + q] X[k]``: rows before columns."""
    bench = Bench.on(device)
    layer = Layer(2, 4, 3, 2, depthwise=True)
    x, flow = exact(rng.normal(size=(1, 2, 4, 5))), exact(rng.normal(size=(1, 4, 4, 5)))
    _, state, ((rows, columns, _),) = _pass(bench, layer, x, flow)
    found = state.gradient_for_weights.tensor(torch.float32).cpu().numpy().reshape(4, 3, 2)
    for channel in range(4):
        filters = np.zeros((2, 2, 3, 2))
        one = filters.reshape(4, 3, 2)[channel]
        for j in range(3):
            for i in range(2):
                one[j, i] = 1.0
                seen = oracle.depthwise(x, filters, None, rows, columns)
                assert abs(found[channel, j, i] - float(np.sum(seen * flow))) <= 1e-5 * np.abs(seen * flow).sum()
                one[j, i] = 0.0


def test_data_gradient_needs_no_convolution_state(device: torch.device) -> None:
    """With the option for data alone and a destination given, no state is asked for."""
    bench = Bench.on(device)
    layer = Layer(1, 1, 1, 1)
    gradient = MPSCNNConvolutionGradient(bench.device, weights=layer.source())
    gradient.gradient_option = MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA
    destination = bench.empty((1, 1, 1, 3))
    command_buffer = bench.command_buffer()
    flow = bench.image(_line([1, 2, 3]))
    gradient.encode(command_buffer, flow, bench.image(_line([0, 0, 0])), None, destination)
    finish(command_buffer)
    assert_close(numbers(destination).ravel(), np.array([1, 2, 3]) * layer.weights().item(), 1e-6)


def test_a_state_adds_up_what_comes_in_pieces(device: torch.device, rng: np.random.Generator) -> None:
    """Two sub-batches into one state: the sum over all images, never a mean; a fresh state starts at zero."""
    bench = Bench.on(device)
    layer = Layer(3, 4)
    x, flow = rng.normal(size=(3, 3, 4, 4)), rng.normal(size=(3, 4, 4, 4))
    _, whole, how = _pass(bench, layer, x, flow)
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    gradient = MPSCNNConvolutionGradient(bench.device, weights=layer.source())
    images, flows = bench.batch(x), bench.batch(flow)
    states = forward.result_state_batch(images)
    assert states is not None
    command_buffer = bench.command_buffer()
    for part in (slice(0, 2), slice(2, 3)):
        forward.encode_batch(command_buffer, images[part], destination_states=states[part])
        gradient.encode_batch(command_buffer, flows[part], images[part], states[part])
    finish(command_buffer)
    expected = layer.gradient(flow, [x], how)
    for state in (whole, states[0]):
        assert_close(state.gradient_for_weights.tensor(torch.float32), expected[1].ravel(), TOLERANCE)
        assert_close(state.gradient_for_biases.tensor(torch.float32), expected[2], TOLERANCE)


def test_the_state(device: torch.device) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 5, biases=False)
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    states = forward.result_state_batch(bench.batch(np.zeros((2, 3, 6, 7))))
    assert states is not None
    state = states[0]
    assert state is states[1]
    assert state.convolution is forward
    assert state.gradient_for_weights.length == 4 * 4 * 2 * 5 * 3
    assert state.gradient_for_biases.length == 4 * 4, "there even without biases"
    assert state.gradient_for_weights_layout is MPSCNNConvolutionWeightsLayout.OHWI
    assert state.resource_size() == state.gradient_for_weights.length + state.gradient_for_biases.length
    assert not state.gradient_for_weights.tensor(torch.float32).any()


def test_wrong_states() -> None:
    bench = Bench(CPU)
    gradient = MPSCNNConvolutionGradient(CPU, weights=Layer(2, 3).source())
    gradient.label = "g1"
    image, flow = bench.image(np.zeros((1, 2, 4, 4))), bench.image(np.zeros((1, 3, 4, 4)))
    command_buffer = bench.command_buffer()
    other = MPSCNNConvolution(CPU, weights=Layer(2, 3, 5, 5).source())
    _, state = other.encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSArgumentError, match=r"^MPSCNNConvolutionGradient 'g1': gradient_state must be of a conv.*5"):
        gradient.encode(command_buffer, flow, image, state)
    neuron = MPSCNNNeuronReLU(CPU)
    _, state = neuron.encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSArgumentError, match="gradient_state must come from an encode of MPSCNNConvolution, got one"):
        gradient.encode(command_buffer, flow, image, state)
    with pytest.raises(MPSTypeError, match="gradient_state is needed"):
        gradient.encode(command_buffer, flow, image)
    with pytest.raises(
        MPSTypeError, match="gradient_state must be the one MPSCNNConvolutionGradientState of the batch"
    ):
        gradient.encode(command_buffer, flow, image, None, bench.empty((1, 2, 4, 4)))


# --- fully connected -------------------------------------------------------------------------------------------------


def test_fully_connected_is_a_convolution_of_the_whole_image(device: torch.device, rng: np.random.Generator) -> None:
    """The flattened source runs through rows, columns, channels, channels fastest: OHWI as it lies in memory."""
    bench = Bench.on(device)
    layer = Layer(5, 7, 3, 4)
    x = rng.normal(size=(2, 5, 3, 4)).astype(np.float32).astype(np.float64)
    dense = MPSCNNFullyConnected(bench.device, weights=layer.source())
    images = bench.batch(x)
    found = run(bench, dense, [images])
    assert found.shape == (2, 7, 1, 1)
    flat = x.transpose(0, 2, 3, 1).reshape(2, -1)
    assert_close(found[:, :, 0, 0], flat @ layer.weights().reshape(7, -1).T + layer.bias_terms(), TOLERANCE)
    assert_close(found, oracle.fully_connected(x, layer.weights(), layer.bias_terms()), TOLERANCE)
    convolution = MPSCNNConvolution(bench.device, weights=layer.source())
    convolution.padding = dense.padding
    assert_close(found, run(bench, convolution, [images]), 1e-6)


def test_a_linear_layer_of_pytorch_is_permuted(device: torch.device, rng: np.random.Generator) -> None:
    """PyTorch flattens C, H, W: its rows become H, W, C. A matrix does not say which it is; a flat one is H, W, C."""
    bench = Bench.on(device)
    x, weights = exact(rng.normal(size=(2, 5, 3, 4))), exact(rng.normal(size=(7, 5 * 3 * 4)))
    expected = torch.nn.functional.linear(torch.tensor(x).flatten(1), torch.tensor(weights)).numpy()
    permuted = weights.reshape(7, 5, 3, 4).transpose(0, 2, 3, 1)
    descriptor = MPSCNNConvolutionDescriptor(4, 3, 5, 7)
    with pytest.raises(MPSArgumentError, match=r"Pass numpy.transpose\(w.reshape\(7, 5, 3, 4\), \(0, 2, 3, 1\)\) if"):
        MPSCNNFullyConnected(bench.device, descriptor, weights)
    for given, is_same in ((permuted, True), (weights.ravel(), False)):
        kernel = MPSCNNFullyConnected(bench.device, descriptor, np.ascontiguousarray(given))
        error = np.abs(run(bench, kernel, [bench.batch(x)])[:, :, 0, 0] - expected).max()
        assert bool(error <= TOLERANCE * np.abs(expected).max()) is is_same


def test_fully_connected_gradient(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(5, 7, 3, 4)
    x = rng.normal(size=(2, 5, 3, 4)).astype(np.float32).astype(np.float64)
    flow = rng.normal(size=(2, 7, 1, 1)).astype(np.float32).astype(np.float64)
    forward = MPSCNNFullyConnected(bench.device, weights=layer.source())
    gradient = MPSCNNFullyConnectedGradient(bench.device, weights=layer.source())
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    images = bench.batch(x)
    _, states = forward.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    data, weights, biases = oracle.fully_connected_gradient(flow, x, layer.weights())
    assert_close(numbers(found), data, TOLERANCE)
    assert_close(states[0].gradient_for_weights.tensor(torch.float32), weights.ravel(), TOLERANCE)
    assert_close(states[0].gradient_for_biases.tensor(torch.float32), biases, TOLERANCE)


@pytest.mark.parametrize("offset", [(0, 0), (2, 1), (-5, 9)])
def test_fully_connected_ignores_the_offset(offset, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    for height, width in ((2, 3), (4, 5)):
        layer = Layer(4, 3, 2, 3)
        x = rng.normal(size=(1, 4, height, width))
        kernel = MPSCNNFullyConnected(bench.device, weights=layer.source())
        expected = run(bench, kernel, [bench.image(x)])
        kernel.offset = MPSOffset(*offset, 0)
        destination = bench.empty(expected.shape)
        command_buffer = bench.command_buffer()
        kernel.encode(command_buffer, bench.image(x), destination)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(destination), expected)


def test_fully_connected_refusals() -> None:
    bench = Bench(CPU)
    layer = Layer(2, 3, 3, 3)
    kernel = MPSCNNFullyConnected(CPU, weights=layer.source())
    kernel.label = "fc1"
    with pytest.raises(MPSArgumentError, match="^MPSCNNFullyConnected 'fc1': "):
        kernel.encode(bench.command_buffer(), bench.image(np.zeros((1, 2, 2, 3))))
    with pytest.raises(MPSArgumentError, match="^MPSCNNFullyConnected 'fc1': source_image must be as large as the ker"):
        kernel.encode(bench.command_buffer(), bench.image(np.zeros((1, 2, 2, 3))), bench.empty((1, 3, 1, 1)))
    for change in ({"stride": (2, 1)}, {"dilation": (1, 2)}, {"depthwise": True}):
        with pytest.raises(MPSArgumentError, match="descriptor must have stride, dilation and groups 1"):
            MPSCNNFullyConnected(CPU, weights=Layer(2, 2, 3, 3, **change).source())
    gradient = MPSCNNFullyConnectedGradient(CPU, weights=layer.source())
    gradient.label = "fcg"
    state = kernel.result_state(bench.image(np.zeros((1, 2, 3, 3))))
    image, flow = bench.image(np.zeros((1, 2, 3, 3))), bench.image(np.zeros((1, 3, 2, 2)))
    with pytest.raises(MPSArgumentError, match="^MPSCNNFullyConnectedGradient 'fcg': source_gradient must have 1x1"):
        gradient.encode(bench.command_buffer(), flow, image, state, bench.empty((1, 2, 3, 3)))


def test_a_kernel_says_the_neuron_that_it_applies() -> None:
    """The descriptors that it gives out are copies: changing them changes neither what it says nor what it does."""
    bench, source = Bench(CPU), Layer(1, 1, 1, 1, biases=False).source()
    source.descriptor().fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.LINEAR, 2.0, 0.0)
    kernel, image = MPSCNNConvolution(CPU, weights=source), bench.batch(np.ones((1, 1, 1, 1)))
    before = run(bench, kernel, [image])
    neuron = kernel.fused_neuron_descriptor
    assert neuron is not None
    neuron.a = 5.0
    kernel.convolution_descriptor.stride_in_pixels_x = 3
    assert kernel.neuron_parameter_a == 2.0
    assert kernel.convolution_descriptor.stride_in_pixels_x == 1
    assert_close(run(bench, kernel, [image]), before, 0.0)
