"""Transposed convolution: golden numbers, sizes and offsets, the convolution that it undoes, states, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close, inner
from in_one_test import in_one_test
from openmps.core.image.image import MPSImage
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
    MPSCNNConvolutionTransposeGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.neuron import MPSCNNNeuronReLU
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNConvolutionGradientOption,
    MPSCNNNeuronType,
    MPSDataType,
    MPSImageEdgeMode,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSOffset,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles import convolution as oracle
from oracles import neuron as neuron_oracle
from samples.convolution import ArraySource, Layer
from samples.sample import BOTTOM_RIGHT, FULL, VALID, exact, readings

CPU = mtl_device("cpu")
TOLERANCE = 1e-5
OPTION = MPSCNNConvolutionGradientOption


def _line(values: Any) -> np.ndarray:
    """Numbers along x of one channel of one image."""
    return np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1)


def _line_source(weights: list[float], stride: int = 2) -> ArraySource:
    descriptor = MPSCNNConvolutionDescriptor(len(weights), 1, 1, 1)
    descriptor.stride_in_pixels_x = stride
    return ArraySource(descriptor, np.array(weights, np.float32))


def _into(bench: Bench, kernel: Any, x: np.ndarray, width: int, *more: Any) -> np.ndarray:
    """The row that an encode into a destination gives."""
    destination = bench.empty((1, 1, 1, width))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), *more, destination_image=destination)
    finish(command_buffer)
    return numbers(destination).ravel()


# --- golden numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "width", "expected"),
    [
        ([1, 10, 100], 7, [10, 201, 20, 302, 30, 403, 40]),
        ([1, 10, 100], 8, [10, 201, 20, 302, 30, 403, 40, 4]),
        ([1, 10], 8, [10, 1, 20, 2, 30, 3, 40, 4]),
    ],
)
def test_golden_forward(weights: list[float], width: int, expected: list[float], device: torch.device) -> None:
    """The weights are not turned round: 201 is 2 under the last weight and 1 under the first."""
    bench = Bench.on(device)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=_line_source(weights))
    np.testing.assert_array_equal(_into(bench, kernel, _line([1, 2, 3, 4]), width), expected)


def test_the_default_size_is_not_the_stride_times_the_source(device: torch.device) -> None:
    """``(4 - 1) 2 + 1 = 7``; the eighth pixel has to be asked for with a destination."""
    bench = Bench.on(device)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=_line_source([1, 10, 100]))
    found = run(bench, kernel, [bench.image(_line([1, 2, 3, 4]))])
    np.testing.assert_array_equal(found.ravel(), [10, 201, 20, 302, 30, 403, 40])
    assert (kernel.offset, kernel.kernel_offset_x, kernel.kernel_offset_y) == (MPSOffset(0, 0, 0), 0, 0)


@in_one_test
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize("kernel_offset", [-3, -1, 0, 1, 4])
def test_two_offsets(offset: int, kernel_offset: int, device: torch.device) -> None:
    """``T = offset s + kernel_offset``: the one in source pixels, the other in those of the source taken apart."""
    bench = Bench.on(device)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=_line_source([1, 10, 100], stride=3))
    kernel.offset = MPSOffset(offset, 0, 0)
    kernel.kernel_offset_x = kernel_offset
    stuffed = {3 * i: value for i, value in enumerate([1, 2, 3, 4])}
    first = 3 * offset + kernel_offset - 1
    expected = [sum(w * stuffed.get(first + x + j, 0) for j, w in enumerate([1, 10, 100])) for x in range(11)]
    np.testing.assert_array_equal(_into(bench, kernel, _line([1, 2, 3, 4]), 11), expected)
    assert (kernel.kernel_offset_x, kernel.offset.x) == (kernel_offset, offset), "as it was set"


def test_golden_gradient(device: torch.device) -> None:
    """``dX[u] = sum_j W[j] G[2u + 1 - j]``, ``dW[j] = sum_x G[x] Z[x - 1 + j]``, worked out by hand."""
    bench = Bench.on(device)
    source = _line_source([1, 10, 100])
    forward = MPSCNNConvolutionTranspose(bench.device, weights=source)
    gradient = MPSCNNConvolutionTransposeGradient(bench.device, weights=source)
    keep_results(gradient)
    image = bench.image(_line([1, 2, 3]))
    command_buffer = bench.command_buffer()
    result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    assert result.width == 5
    flow = gradient.encode(command_buffer, bench.image(_line([1, 2, 3, 4, 5])), image, state)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(flow).ravel(), [10 + 2, 100 * 2 + 10 * 3 + 4, 100 * 4 + 10 * 5])
    # Z = 1 0 2 0 3
    expected = [2 * 1 + 4 * 2, 1 * 1 + 3 * 2 + 5 * 3, 2 * 2 + 4 * 3]
    assert state.gradient_for_weights.tensor(torch.float32).tolist() == expected
    assert state.gradient_for_biases.tensor(torch.float32).tolist() == [15]


# --- properties ------------------------------------------------------------------------------------------------------


def test_properties() -> None:
    layer = Layer(8, 16, 2, 5, stride=(2, 3), dilation=(3, 1), groups=2)
    source = layer.source()
    kernel = MPSCNNConvolutionTranspose(CPU, weights=source)
    assert (kernel.kernel_width, kernel.kernel_height) == (5, 2)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (3, 2)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (1, 3)
    assert (kernel.input_feature_channels, kernel.output_feature_channels, kernel.groups) == (8, 16, 2)
    assert (kernel.kernel_offset_x, kernel.kernel_offset_y) == (0, 0)
    assert kernel.accumulator_precision_option is MPSNNConvolutionAccumulatorPrecisionOption.FLOAT
    assert kernel.data_source is source
    assert kernel.label == "source"
    assert kernel.is_backwards
    assert kernel.is_result_state_reused_across_batch()
    assert kernel.fused_neuron_descriptor is None
    assert kernel.weights_fp16 is None
    gradient = MPSCNNConvolutionTransposeGradient(CPU, weights=source)
    assert (gradient.source_gradient_feature_channels, gradient.source_image_feature_channels) == (16, 8)
    assert (gradient.groups, gradient.data_source, gradient.label) == (2, source, "source")
    assert gradient.gradient_option is OPTION.ALL
    assert gradient.is_state_modified
    assert (gradient.secondary_stride_in_pixels_x, gradient.secondary_kernel_height) == (3, 2)
    assert source.loads == source.purges


@in_one_test
@pytest.mark.parametrize("value", [1.5, "1", None, True])
@pytest.mark.parametrize("name", ["kernel_offset_x", "kernel_offset_y"])
def test_kernel_offsets_are_integers(name: str, value: Any) -> None:
    kernel = MPSCNNConvolutionTranspose(CPU, weights=Layer(1, 1).source())
    with pytest.raises(MPSTypeError, match=f"^MPSCNNConvolutionTranspose 'source': {name} must be an integer, got"):
        setattr(kernel, name, value)


@pytest.mark.parametrize(
    ("padding", "size", "kernel_offset"),
    [
        (None, (5, 10), (0, 0)),
        (BOTTOM_RIGHT, (5, 10), (0, 1)),
        (VALID, (3, 7), (1, 2)),
        (FULL, (7, 13), (-1, -1)),
    ],
    ids=["same", "same, bottom right", "valid", "full"],
)
def test_sizes_by_policy(padding: Any, size: tuple[int, int], kernel_offset: tuple[int, int]) -> None:
    """Rows: 3, stride 2, kernel 3. Columns: 4, stride 3, kernel 4. Valid takes k - 1 off, full adds as much."""
    bench = Bench(CPU)
    kernel = MPSCNNConvolutionTranspose(CPU, weights=Layer(1, 1, 3, 4, stride=(2, 3)).source())
    if padding is not None:
        kernel.padding = padding
    kernel.offset, kernel.kernel_offset_x = MPSOffset(3, 3, 0), 9
    result = kernel.encode(bench.command_buffer(), bench.empty((1, 1, 3, 4)))
    assert (result.height, result.width) == size
    assert kernel.offset == MPSOffset(0, 0, 0)
    assert (kernel.kernel_offset_y, kernel.kernel_offset_x) == kernel_offset


@pytest.mark.parametrize(("k", "stride", "padding"), [(3, 2, 1), (4, 2, 1), (5, 3, 2), (2, 2, 0)])
def test_pytorch(k: int, stride: int, padding: int, device: torch.device, rng: np.random.Generator) -> None:
    """By the mapping of the documentation, and by the padding policy that does the mapping itself."""
    bench = Bench.on(device)
    x, v = exact(rng.normal(size=(2, 3, 4, 5))), exact(rng.normal(size=(3, 6, k, k)))
    biases = exact(rng.normal(size=6))
    expected = torch.nn.functional.conv_transpose2d(*(torch.tensor(t) for t in (x, v, biases)), stride, padding).numpy()
    descriptor = MPSCNNConvolutionDescriptor(k, k, 3, 6)
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = stride
    weights = np.ascontiguousarray(v.transpose(1, 2, 3, 0)[:, ::-1, ::-1]).astype(np.float32)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=ArraySource(descriptor, weights, biases))
    kernel.kernel_offset_x = kernel.kernel_offset_y = padding - (k - 1) + k // 2
    destination = bench.batch(np.zeros(expected.shape))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(x), destination_images=destination)
    finish(command_buffer)
    assert_close(numbers(destination), expected, TOLERANCE)
    kernel.padding = ExplicitPadding.pytorch(padding)
    assert_close(run(bench, kernel, [bench.batch(x)]), expected, TOLERANCE)


def test_the_edge_mode_is_not_looked_at(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=Layer(2, 3, 5, 5).source())
    image = bench.image(rng.normal(size=(1, 2, 3, 3)))
    expected = run(bench, kernel, [image])
    kernel.edge_mode = MPSImageEdgeMode.CLAMP
    np.testing.assert_array_equal(run(bench, kernel, [image]), expected)


def test_neuron_and_batch_normalization(device: torch.device, rng: np.random.Generator) -> None:
    """As in a convolution: normalization is folded into the weights of each output channel, then comes the neuron."""
    bench = Bench.on(device)
    layer = Layer(3, 5, stride=(2, 2))
    mean, beta = rng.normal(size=5), rng.normal(size=5)
    variance, gamma = rng.uniform(0.5, 2.0, size=5), rng.uniform(0.5, 2.0, size=5)
    descriptor = layer.descriptor()
    descriptor.set_batch_normalization_parameters_for_inference(mean, variance, gamma, beta, 1e-3)
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.TANH, 1.5, 0.5)
    source = ArraySource(descriptor, layer.weights().astype(np.float32), layer.bias_terms())
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=source)
    x = exact(rng.normal(size=(2, 3, 4, 4)))
    found = run(bench, kernel, [bench.batch(x)])
    plain = layer.transpose_forward([x], readings(kernel, 7, 7))
    factor = (gamma / np.sqrt(variance + 1e-3))[:, None, None]
    normalized = (plain - mean[:, None, None]) * factor + beta[:, None, None]
    assert_close(found, neuron_oracle.forward(normalized, int(MPSCNNNeuronType.TANH), 1.5, 0.5, 0.0), TOLERANCE)
    assert_close(run(bench, kernel.copy(), [bench.batch(x)]), found, 0.0)


# --- the convolution that is undone ----------------------------------------------------------------------------------


def _undoing(layer: Layer) -> ArraySource:
    """The weights that make a transposed convolution the adjoint of a convolution, without biases."""
    back = Layer(layer.outputs, layer.inputs, layer.height, layer.width, layer.stride, layer.dilation, biases=False)
    turned = layer.weights().transpose(3, 1, 2, 0)[:, ::-1, ::-1]
    return ArraySource(back.descriptor(), np.ascontiguousarray(turned).astype(np.float32))


LAYERS = [
    Layer(3, 4, 3, 3, biases=False),
    Layer(3, 4, 3, 3, stride=(2, 2), biases=False),
    Layer(2, 3, 4, 2, stride=(2, 3), biases=False),
    Layer(2, 3, 2, 2, stride=(1, 2), dilation=(3, 2), biases=False),
    Layer(1, 2, 1, 1, stride=(3, 2), biases=False),
]


@in_one_test
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("padding", [None, BOTTOM_RIGHT, VALID, FULL], ids=["same", "bottom right", "valid", "full"])
def test_with_a_convolutions_state_it_is_its_adjoint(
    layer: Layer, padding: Any, device: torch.device, rng: np.random.Generator
) -> None:
    """``<conv(x), y> = <x, transposed(y)>``: as large as the convolution's source, windows on the same pixels."""
    bench = Bench.on(device)
    x = exact(rng.normal(size=(2, layer.inputs, 9, 8)))
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    back = MPSCNNConvolutionTranspose(bench.device, weights=_undoing(layer))
    if padding is not None:
        forward.padding = padding
    keep_results(forward)
    keep_results(back)
    back.offset, back.kernel_offset_x = MPSOffset(5, 5, 0), 7
    command_buffer = bench.command_buffer()
    convolved, states = forward.encode_batch(command_buffer, bench.batch(x), destination_state_is_temporary=False)
    y = exact(rng.normal(size=(2, layer.outputs, convolved[0].height, convolved[0].width)))
    undone = back.encode_batch(command_buffer, bench.batch(y), convolution_gradient_states=states)
    finish(command_buffer)
    assert (undone[0].height, undone[0].width, undone[0].feature_channels) == (9, 8, layer.inputs)
    scale = float(np.abs(numbers(convolved) * y).sum())
    assert abs(inner(numbers(convolved), y) - inner(x, numbers(undone))) <= 1e-6 * scale
    for axis, size in (("x", layer.width), ("y", layer.height)):
        extent = (size - 1) * getattr(forward, f"dilation_rate_{axis}") + 1
        expected = (extent + 1) % 2 - getattr(forward.offset, axis)
        assert getattr(back, f"kernel_offset_{axis}") == expected
        assert getattr(back.offset, axis) == 0


def test_the_state_of_a_clipped_convolution(device: torch.device, rng: np.random.Generator) -> None:
    """What the convolution did not write takes part as if it had gone on there."""
    bench = Bench.on(device)
    layer = Layer(2, 3, 3, 3, stride=(2, 2), biases=False)
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    forward.offset = MPSOffset(1, 2, 0)
    forward.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(3, 2, 1))
    x = exact(rng.normal(size=(1, 2, 7, 8)))
    image, destination = bench.image(x), bench.image(np.zeros((1, 3, 5, 6)))
    state = forward.result_state(image, destination_image=destination)
    back = MPSCNNConvolutionTranspose(bench.device, weights=_undoing(layer))
    keep_results(back)
    command_buffer = bench.command_buffer()
    forward.encode(command_buffer, image, destination, destination_state=state)
    y = np.zeros((1, 3, 5, 6))
    y[:, :, 2:4, 1:4] = exact(rng.normal(size=(1, 3, 2, 3)))
    undone = back.encode(command_buffer, bench.image(y), state)
    finish(command_buffer)
    assert (undone.height, undone.width) == (7, 8)
    assert abs(inner(numbers(destination), y) - inner(x, numbers(undone))) <= 1e-5 * float(np.abs(y).sum())


def _pair(bench: Bench, temporary: bool = False) -> tuple[Any, Any, Any, MPSCNNConvolutionTranspose]:
    """A command buffer, a convolution's result and state (one image), and the transposed convolution that undoes it."""
    layer = Layer(1, 1, 3, 3, stride=(2, 2))
    command_buffer = bench.command_buffer()
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    result, state = forward.encode(
        command_buffer, bench.image(np.ones((1, 1, 6, 8))), destination_state_is_temporary=temporary
    )
    back = MPSCNNConvolutionTranspose(bench.device, weights=_undoing(layer))
    keep_results(back)
    return command_buffer, result, state, back


def test_ways_to_say_state_and_destination(device: torch.device) -> None:
    """The state in the third place, or by name; an image in the third place is the destination, as for any kernel."""
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench)
    image.read_count = 9
    by_place = back.encode(command_buffer, image, state)
    by_name = back.encode(command_buffer, image, convolution_gradient_state=state)
    destinations = [bench.empty((1, 1, 6, 8)) for _ in range(3)]
    assert back.encode(command_buffer, image, destinations[0]) is destinations[0]
    assert back.encode(command_buffer, image, state, destinations[1]) is destinations[1]
    assert back.encode(command_buffer, image, None, destinations[2]) is destinations[2]
    without = back.encode(command_buffer, image)
    with pytest.raises(MPSTypeError, match="convolution_gradient_state must be a state, not an image"):
        back.encode(command_buffer, image, destinations[0], destinations[1])
    finish(command_buffer)
    for other in (by_name, *destinations):
        np.testing.assert_array_equal(numbers(other), numbers(by_place))
    assert (without.height, without.width) == (5, 7), "by the padding policy alone"


def test_ways_to_say_states_and_destinations(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(2, 3, 3, 3, stride=(2, 2))
    forward = MPSCNNConvolution(bench.device, weights=layer.source())
    back = MPSCNNConvolutionTranspose(bench.device, weights=_undoing(layer))
    for each in (forward, back):
        keep_results(each)
    command_buffer = bench.command_buffer()
    images = bench.batch(rng.normal(size=(3, 2, 6, 8)))
    results, states = forward.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    assert states is not None
    by_place = back.encode_batch(command_buffer, results, states)
    destinations = [bench.batch(np.zeros((3, 2, 6, 8))) for _ in range(2)]
    back.encode_batch(command_buffer, results, destinations[0])
    back.encode_batch(command_buffer, results, list(states), list(destinations[1]))
    finish(command_buffer)
    for other in destinations:
        np.testing.assert_array_equal(numbers(other), numbers(by_place))
    with pytest.raises(MPSTypeError, match="convolution_gradient_state must be a state, not an image"):
        back.encode_batch(bench.command_buffer(), results, destinations[0], destinations[1])
    with pytest.raises(MPSArgumentError, match="convolution_gradient_states must be one state an image, 3, got 1"):
        back.encode_batch(bench.command_buffer(), results, [states[0]])


def test_into_a_destination_the_state_changes_nothing(device: torch.device) -> None:
    """The properties hold as they stand, whatever the state says."""
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench)
    image.read_count = 2
    back.offset, back.kernel_offset_x = MPSOffset(0, 1, 0), -2
    expected, found = bench.empty((1, 1, 4, 4)), bench.empty((1, 1, 4, 4))
    back.encode(command_buffer, image, expected)
    back.encode(command_buffer, image, state, found)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(found), numbers(expected))
    assert (back.offset, back.kernel_offset_x) == (MPSOffset(0, 1, 0), -2)


@pytest.mark.parametrize("with_destination", [False, True])
def test_a_temporary_state_is_read_once(with_destination: bool, device: torch.device) -> None:
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench, temporary=True)
    image.read_count = 2
    destination = bench.empty((1, 1, 6, 8)) if with_destination else None
    assert state.read_count == 1
    back.encode(command_buffer, image, state, destination)
    assert state.read_count == 0
    with pytest.raises(Exception, match="convolution_gradient_state"):
        back.encode(command_buffer, image, state, destination)
    finish(command_buffer)


def test_the_size_can_be_asked_for(device: torch.device) -> None:
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench)
    descriptor = back.destination_image_descriptor([image], [state])
    assert (descriptor.width, descriptor.height, descriptor.feature_channels) == (8, 6, 1)
    descriptor = back.destination_image_descriptor([image])
    assert (descriptor.width, descriptor.height) == (7, 5)
    finish(command_buffer)


def test_states_that_cannot_be_undone() -> None:
    bench = Bench(CPU)
    command_buffer, image, state, back = _pair(bench)
    image.read_count = 9
    back.label = "up"
    start = "^MPSCNNConvolutionTranspose 'up': convolution_gradient_state"
    _, other = back.encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSTypeError, match=f"{start} must be an MPSCNNConvolutionGradientState of an MPSCNNConvol"):
        back.encode(command_buffer, image, other)
    _, neuron = MPSCNNNeuronReLU(CPU).encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSTypeError, match=f"{start} must be an MPSCNNConvolutionGradientState"):
        back.encode(command_buffer, image, neuron)
    for method in (back.result_state, back.result_state_batch):
        given = image if method == back.result_state else [image]
        with pytest.raises(MPSTypeError, match=start):
            method(given, source_states=[other])
    empty = state.convolution.result_state(bench.empty((1, 1, 6, 8)))
    with pytest.raises(MPSArgumentError, match="gradient state must come from a forward encode"):
        back.encode(command_buffer, image, empty)
    with pytest.raises(MPSTypeError, match="must be a sequence of MPSState"):
        back.encode(command_buffer, image, 7)  # type: ignore[arg-type]


# --- its own states --------------------------------------------------------------------------------------------------


def test_the_state(device: torch.device) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 5, biases=False)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=layer.source())
    states = kernel.result_state_batch(bench.batch(np.zeros((2, 3, 6, 7))))
    assert states is not None
    state = states[0]
    assert state is states[1]
    assert isinstance(state, MPSCNNConvolutionTransposeGradientState)
    assert isinstance(state, MPSCNNConvolutionGradientState)
    assert state.convolution_transpose is kernel
    assert state.convolution is None
    assert state.convolution_gradient_state is None
    assert state.gradient_for_weights.length == 4 * 4 * 2 * 5 * 3
    assert state.gradient_for_biases.length == 4 * 4
    assert not state.gradient_for_weights.tensor(torch.float32).any()


def test_states_refer_to_the_convolution_that_is_undone(device: torch.device) -> None:
    """However they are made."""
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench)
    image.read_count = 9
    _, by_encode = back.encode(command_buffer, image, state, destination_state_is_temporary=False)
    _, (by_batch,) = back.encode_batch(command_buffer, [image], [state], destination_state_is_temporary=True)
    destination = bench.empty((1, 1, 6, 8))
    made = [
        by_encode,
        by_batch,
        back.result_state(image, [state]),
        back.result_state(image, [state], destination),
        back.temporary_result_state(command_buffer, image, [state]),
        back.result_state_batch([image], [[state]])[0],  # type: ignore[index]
        back.temporary_result_state_batch(command_buffer, [image], [[state]], [destination])[0],  # type: ignore[index]
    ]
    for each in made:
        assert isinstance(each, MPSCNNConvolutionTransposeGradientState)
        assert each.convolution is state.convolution
        assert each.convolution_gradient_state is state
        assert each.convolution_transpose is back
    finish(command_buffer)


def test_a_destination_state_brings_the_convolutions_along(device: torch.device) -> None:
    """It sizes the result like one passed to the encode, and a temporary one is read."""
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench, temporary=True)
    result = back.encode(command_buffer, image, destination_state=back.result_state(image, [state]))
    assert (result.height, result.width) == (6, 8)
    assert state.read_count == 0
    finish(command_buffer)


def test_the_state_tells_the_size_of_the_source(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=Layer(1, 1, stride=(2, 2)).source())
    command_buffer = bench.command_buffer()
    image = bench.empty((1, 1, 3, 4))
    _, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    assert isinstance(state, MPSCNNConvolutionTransposeGradientState)
    assert (state.source_width, state.source_height) == (4, 3)
    finish(command_buffer)


# --- gradients -------------------------------------------------------------------------------------------------------


def _pass(bench: Bench, layer: Layer, x: np.ndarray, flow: np.ndarray, option: Any = OPTION.ALL) -> tuple[Any, Any]:
    forward = MPSCNNConvolutionTranspose(bench.device, weights=layer.source())
    gradient = MPSCNNConvolutionTransposeGradient(bench.device, weights=layer.source())
    gradient.gradient_option = option
    keep_results(gradient)
    command_buffer = bench.command_buffer()
    images = bench.batch(x)
    _, states = forward.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    found = gradient.encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    return numbers(found), states[0]


def test_gradient_options(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 3, stride=(2, 2))
    x, flow = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 4, 7, 9))
    both, state = _pass(bench, layer, x, flow)
    data, untouched = _pass(bench, layer, x, flow, OPTION.GRADIENT_WITH_DATA)
    nothing, weights = _pass(bench, layer, x, flow, OPTION.GRADIENT_WITH_WEIGHTS_AND_BIAS)
    assert_close(data, both, 1e-6)
    assert (nothing == 0).all()
    for name in ("gradient_for_weights", "gradient_for_biases"):
        expected = getattr(state, name).tensor(torch.float32)
        assert_close(getattr(weights, name).tensor(torch.float32), expected, 1e-6)
        assert (getattr(untouched, name).tensor(torch.float32) == 0).all()


def test_training_an_auto_encoder(device: torch.device, rng: np.random.Generator) -> None:
    """Convolution and the transposed one that undoes it: both states serve, gradients are autograd's."""
    bench = Bench.on(device)
    down = Layer(2, 3, 4, 3, stride=(2, 2))
    up = Layer(3, 2, 4, 3, stride=(2, 2))
    convolution = MPSCNNConvolution(bench.device, weights=down.source())
    transposed = MPSCNNConvolutionTranspose(bench.device, weights=up.source())
    gradients = [
        MPSCNNConvolutionTransposeGradient(bench.device, weights=up.source()),
        MPSCNNConvolutionGradient(bench.device, weights=down.source()),
    ]
    for kernel in (convolution, transposed, *gradients):
        keep_results(kernel)
    x, flow = exact(rng.normal(size=(2, 2, 6, 7))), exact(rng.normal(size=(2, 2, 6, 7)))
    images = bench.batch(x)
    command_buffer = bench.command_buffer()
    middle, first = convolution.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    result, second = transposed.encode_batch(command_buffer, middle, first, destination_state_is_temporary=False)
    back = gradients[0].encode_batch(command_buffer, bench.batch(flow), middle, second)
    for_images = gradients[1].encode_batch(command_buffer, back, images, first)
    finish(command_buffer)
    (how,) = readings(convolution, middle[0].width, middle[0].height)
    (wide,) = readings(transposed, 7, 6)
    hidden = down.forward([x], [how])
    assert_close(numbers(result), up.transpose_forward([hidden], [wide]), TOLERANCE)
    for_hidden, *for_up = up.transpose_gradient(flow, [hidden], [wide])
    for_x, *for_down = down.gradient(for_hidden, [x], [how])
    assert_close(numbers(for_images), for_x, TOLERANCE)
    for states, expected in ((second, for_up), (first, for_down)):
        assert states is not None
        state: Any = states[0]
        assert_close(state.gradient_for_weights.tensor(torch.float32), expected[0].ravel(), TOLERANCE)
        assert_close(state.gradient_for_biases.tensor(torch.float32), expected[1], TOLERANCE)


def test_wrong_states() -> None:
    bench = Bench(CPU)
    gradient = MPSCNNConvolutionTransposeGradient(CPU, weights=Layer(2, 3).source())
    gradient.label = "g1"
    image, flow = bench.image(np.zeros((1, 2, 4, 4))), bench.image(np.zeros((1, 3, 4, 4)))
    command_buffer = bench.command_buffer()
    start = "^MPSCNNConvolutionTransposeGradient 'g1': gradient_state"
    plain = MPSCNNConvolution(CPU, weights=Layer(2, 3).source())
    _, state = plain.encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSArgumentError, match=f"{start} must come from an encode of MPSCNNConvolutionTranspose, got"):
        gradient.encode(command_buffer, flow, image, state)
    destination = bench.empty((1, 2, 4, 4))
    with pytest.raises(MPSTypeError, match=f"{start} must be the one MPSCNNConvolutionTransposeGradientState of the"):
        gradient.encode(command_buffer, flow, image, plain.result_state(image), destination)
    other = MPSCNNConvolutionTranspose(CPU, weights=Layer(2, 3, 5, 5).source())
    with pytest.raises(MPSArgumentError, match=rf"{start} must be of a convolution with weights \(3, 3, 3, 2\), got"):
        gradient.encode(command_buffer, flow, image, other.result_state(image), destination)
    forward = MPSCNNConvolutionTranspose(CPU, weights=Layer(2, 3).source())
    plain_gradient = MPSCNNConvolutionGradient(CPU, weights=Layer(2, 3).source())
    with pytest.raises(MPSTypeError, match="must be the one MPSCNNConvolutionGradientState of the batch"):
        plain_gradient.encode(command_buffer, flow, image, forward.result_state(image), destination)
    _, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    with pytest.raises(MPSArgumentError, match="must come from an encode of MPSCNNConvolution, got one from MPSCNNC"):
        plain_gradient.encode(command_buffer, flow, image, state)


# --- what it can be made of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient])
@pytest.mark.parametrize("data_type", [MPSDataType.FLOAT16, MPSDataType.UINT8])
def test_only_single_precision_weights(kind: Any, data_type: MPSDataType) -> None:
    layer = Layer(1, 1, 1, 1)
    source = ArraySource(layer.descriptor(), np.zeros(1, np.float16), None, data_type)
    message = rf"^{kind.__name__} 'source': data source data_type\(\) must be FLOAT32, got .*Convert"
    with pytest.raises(MPSArgumentError, match=message):
        kind(CPU, weights=source).parameters  # noqa: B018
    assert source.loads == source.purges


@pytest.mark.parametrize("kind", [MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient])
def test_no_sub_pixels(kind: Any) -> None:
    with pytest.raises(MPSArgumentError, match=rf"^{kind.__name__}.*: descriptor.sub_pixel_scale_factor must be 1"):
        kind(CPU, weights=Layer(1, 4, sub_pixels=2).source())


def test_needs_a_data_source() -> None:
    for kind in (MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient):
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: weights must be a data source"):
            kind(CPU, weights=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(multiplier: int, device: torch.device, rng: np.random.Generator) -> None:
    """Each input channel has its own kernels: ``Y[k m + q]`` is made of ``X[k]`` alone."""
    bench = Bench.on(device)
    layer = Layer(3, 3 * multiplier, 3, 2, stride=(2, 2), depthwise=True)
    x = exact(rng.normal(size=(1, 3, 4, 3)))
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=layer.source())
    found = run(bench, kernel, [bench.image(x)])
    ((rows, columns, _),) = readings(kernel, found.shape[3], found.shape[2])
    filters, biases = layer.weights(), layer.bias_terms()
    assert biases is not None
    for channel in range(3 * multiplier):
        one = x[:, channel // multiplier][:, None]
        expected = oracle.transpose(one, filters[[channel]], biases[[channel]], rows, columns)
        assert_close(found[:, [channel]], expected, TOLERANCE)


# --- weights that change ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*weights, newer than:openmps.errors.MPSTrainingWarning")
def test_reload_and_export(device: torch.device) -> None:
    bench = Bench.on(device)
    source = _line_source([1, 10, 100])
    kernel = MPSCNNConvolutionTranspose(bench.device, weights=source)
    gradient = MPSCNNConvolutionTransposeGradient(bench.device, weights=source)
    for each in (kernel, gradient):
        keep_results(each)
    x = bench.image(_line([1, 2]))
    state = MPSCNNConvolutionWeightsAndBiasesState(
        weights=bench.device.new_buffer(data=np.array([0, 2, 0], np.float32))
    )
    command_buffer = bench.command_buffer()
    before, made = kernel.encode(command_buffer, x, destination_state_is_temporary=False)
    kernel.reload_weights_and_biases(command_buffer, state)
    gradient.reload_weights_and_biases(command_buffer, state)
    after = kernel.encode(command_buffer, x)
    exported = kernel.export_weights_and_biases(command_buffer, result_state_can_be_temporary=False)
    flow = gradient.encode(command_buffer, bench.image(_line([1, 1, 1])), x, made)
    finish(command_buffer)
    assert [numbers(image).ravel().tolist() for image in (before, after)] == [[10, 201, 20], [2, 0, 4]]
    assert numbers(flow).ravel().tolist() == [2, 2]
    assert exported.weights.tensor(torch.float32).tolist() == [0, 2, 0]
    kernel.reload_weights_and_biases_from_data_source()
    gradient.reload_weights_and_biases_from_data_source()
    assert run(bench, kernel, [x]).ravel().tolist() == [10, 201, 20]
    assert source.loads == source.purges


def test_the_allocator_makes_the_result(device: torch.device) -> None:
    bench = Bench.on(device)
    command_buffer, image, state, back = _pair(bench)
    result = back.encode(command_buffer, image, state)
    assert type(result) is MPSImage
    finish(command_buffer)


def test_a_custom_policy_has_the_last_word(device: torch.device) -> None:
    bench = Bench.on(device)

    class Larger(MPSNNDefaultPadding):
        def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
            assert suggested_descriptor.width == 7
            suggested_descriptor.width = 8
            return suggested_descriptor

    kernel = MPSCNNConvolutionTranspose(bench.device, weights=_line_source([1, 10]))
    kernel.padding = Larger(MPSNNPaddingMethod.CUSTOM | MPSNNPaddingMethod.SIZE_SAME)
    found = run(bench, kernel, [bench.image(_line([1, 2, 3, 4]))])
    np.testing.assert_array_equal(found.ravel(), [10, 1, 20, 2, 30, 3, 40, 4])
