"""Precision of weights and sums: what data sources call for, the switch for float16 hardware's numbers, and HALF."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.image.image import MPSImage, MPSImageDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
    MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.types import MPSDataType, MPSNNConvolutionAccumulatorPrecisionOption
from openmps.types import MPSImageFeatureChannelFormat as Format
from oracles import convolution as oracle
from oracles.geometry import Axis
from samples.convolution import ArraySource, Layer
from samples.sample import exact, readings

CPU = mtl_device("cpu")
TOLERANCE = 1e-5
HALF = MPSNNConvolutionAccumulatorPrecisionOption.HALF
FLOAT = MPSNNConvolutionAccumulatorPrecisionOption.FLOAT
FLOAT16, FLOAT32, UINT8 = MPSDataType.FLOAT16, MPSDataType.FLOAT32, MPSDataType.UINT8
FORWARDS = [MPSCNNConvolution, MPSCNNFullyConnected, MPSCNNConvolutionTranspose]


def _half(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype(np.float16).astype(np.float64)


def _asking(layer: Layer, kind: Any, descriptor: Any = None) -> ArraySource:
    """The layer's source with `kernel_weights_data_type`."""
    source = layer.source()
    if descriptor is not None:
        source._descriptor = descriptor
    source.kernel_weights_data_type = lambda: kind  # type: ignore[attr-defined]
    return source


def _layer(kernel: Any) -> Layer:
    return Layer(3, 4, 4, 5) if kernel is MPSCNNFullyConnected else Layer(3, 4, 2, 3)


def _expected(kernel: Any, layer: Layer, x: np.ndarray, weights: np.ndarray, how: Any) -> np.ndarray:
    """The float64 loops with some weights."""
    (rows, columns, edge), biases = how, layer.bias_terms()
    if kernel is MPSCNNConvolutionTranspose:
        return oracle.transpose(x, weights, biases, rows, columns)
    if kernel is MPSCNNFullyConnected:
        return oracle.fully_connected(x, weights, biases)
    return oracle.forward(x, weights, biases, rows, columns, 1, edge)


# --- weights ---------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("kind", FORWARDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("asked", [None, FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("switch", [False, True])
def test_weights_are_rounded_where_it_is_asked_for(
    kind: Any, asked: Any, switch: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """By the data source's `kernel_weights_data_type`, or by the switch; else float32 weights stay as they are."""
    bench = Bench.on(device)
    layer = _layer(kind)
    kernel = kind(bench.device, weights=layer.source() if asked is None else _asking(layer, asked))
    kernel.weights_fp16 = switch
    x = exact(rng.normal(size=(2, 3, 4, 5)))
    found = run(bench, kernel, [bench.batch(x)])
    (how,) = readings(kernel, found.shape[3], found.shape[2])
    rounded = _expected(kind, layer, x, _half(layer.weights()), how)
    single = _expected(kind, layer, x, layer.weights(), how)
    is_rounded = switch or asked is FLOAT16
    assert_close(found, rounded if is_rounded else single, TOLERANCE)
    assert np.abs(rounded - single).max() > 1e-4 > np.abs(found - (rounded if is_rounded else single)).max()
    assert_close(run(bench, kernel.copy(), [bench.batch(x)]), found, 0.0)


def test_the_switch_is_open_and_is_captured_by_the_encode(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNConvolution(bench.device, MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0 + 2.0**-12])
    assert kernel.weights_fp16 is None
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    image = bench.image(np.ones((1, 1, 1, 1)))
    single = kernel.encode(command_buffer, image)
    kernel.weights_fp16 = True
    half = kernel.encode(command_buffer, image)
    kernel.weights_fp16 = False
    finish(command_buffer)
    assert (numbers(single).item(), numbers(half).item()) == (1.0 + 2.0**-12, 1.0)


@pytest.mark.parametrize("switch", [None, False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_gradient_has_the_weights_of_its_forward_encode(
    transposed: bool, switch: bool | None, device: torch.device
) -> None:
    """Unless it is told otherwise: ``W = 1 + 2^-12`` is 1 where it is rounded, by the switch or for float16 images."""
    bench = Bench.on(device)
    kinds = (MPSCNNConvolution, MPSCNNConvolutionGradient)
    if transposed:
        kinds = (MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient)
    weights = np.full((1, 1, 1, 1), 1.0 + 2.0**-12, np.float32)
    source = ArrayConvolutionDataSource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), weights)
    forward, gradient = (kind(bench.device, weights=source) for kind in kinds)
    keep_results(forward)
    for form, rounded in ((Format.FLOAT16, switch is not False), (Format.FLOAT32, switch is True)):
        for own, expected in ((None, rounded), (True, True), (False, False)):
            forward.weights_fp16, gradient.weights_fp16 = switch, own
            command_buffer = bench.command_buffer()
            x = MPSImage.from_numpy(bench.device, np.ones((1, 1, 1), np.float32), form)
            flow = MPSImage.from_numpy(bench.device, np.ones((1, 1, 1), np.float32))
            _, state = forward.encode(command_buffer, x, destination_state_is_temporary=False)
            result = MPSImage(bench.device, MPSImageDescriptor(Format.FLOAT32, 1, 1, 1))
            gradient.encode(command_buffer, flow, x, state, destination_gradient=result)
            finish(command_buffer)
            assert numbers(result).item() == (1.0 if expected else 1.0 + 2.0**-12), (form, own)


@pytest.mark.parametrize("way", ["switch", "source"])
def test_normalization_is_folded_before_rounding(way: str, device: torch.device, rng: np.random.Generator) -> None:
    """``W I`` is rounded once, not W; the biases are never rounded."""
    bench = Bench.on(device)
    layer = Layer(3, 5)
    gamma, mean = exact(rng.uniform(0.5, 2.0, size=5)), exact(rng.normal(size=5))
    descriptor = layer.descriptor()
    descriptor.set_batch_normalization_parameters_for_inference(mean, None, gamma, None, 0.0)
    source = _asking(layer, FLOAT16 if way == "source" else FLOAT32, descriptor)
    kernel = MPSCNNConvolution(bench.device, weights=source)
    kernel.weights_fp16 = way == "switch"
    x = exact(rng.normal(size=(1, 3, 4, 4)))
    found = run(bench, kernel, [bench.image(x)])
    folded = (layer.weights() * gamma[:, None, None, None]).astype(np.float32)
    biases = layer.bias_terms()
    assert biases is not None
    expected = oracle.forward(x, _half(folded), (biases - mean) * gamma, Axis(4, 3), Axis(4, 3))
    assert_close(found, expected, TOLERANCE)
    twice = oracle.forward(
        x, _half(_half(layer.weights()) * gamma[:, None, None, None]), (biases - mean) * gamma, Axis(4, 3), Axis(4, 3)
    )
    assert np.abs(found - twice).max() > 1e-5, "the two differ here"


def test_rounding_follows_a_reload(device: torch.device) -> None:
    bench = Bench.on(device)
    source = ArraySource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.array([1.0], np.float32))
    kernel = MPSCNNConvolution(bench.device, weights=source)
    kernel.weights_fp16 = True
    image = bench.image(np.ones((1, 1, 1, 1)))
    assert run(bench, kernel, [image]).item() == 1.0
    source._weights = np.array([3.0 + 2.0**-12], np.float32)
    kernel.reload_weights_and_biases_from_data_source()
    assert run(bench, kernel, [image]).item() == 3.0
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    assert state.weights.tensor(torch.float32).item() == 3.0 + 2.0**-12, "exported as the source gave it"
    state.weights.tensor(torch.float32).fill_(5.0 + 2.0**-12)
    command_buffer = bench.command_buffer()
    kernel.reload_weights_and_biases(command_buffer, state)
    finish(command_buffer)
    assert run(bench, kernel, [image]).item() == 5.0


@pytest.mark.parametrize(
    ("forward", "gradient"),
    [
        (MPSCNNConvolution, MPSCNNConvolutionGradient),
        (MPSCNNFullyConnected, MPSCNNFullyConnectedGradient),
        (MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient),
    ],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("way", ["switch", "source"])
def test_gradients_use_the_same_weights(
    forward: Any, gradient: Any, way: str, device: torch.device, rng: np.random.Generator
) -> None:
    """The data gradient is the adjoint of what the forward kernel computed; parameter gradients need no weights."""
    bench = Bench.on(device)
    layer = _layer(forward)
    sources = [_asking(layer, FLOAT16) if way == "source" else layer.source() for _ in range(2)]
    kernels = [kind(bench.device, weights=source) for kind, source in zip((forward, gradient), sources, strict=True)]
    for kernel in kernels:
        kernel.weights_fp16 = way == "switch"
        keep_results(kernel)
    x = exact(rng.normal(size=(2, 3, 4, 5)))
    images, zeros = bench.batch(x), bench.batch(np.zeros(x.shape))
    command_buffer = bench.command_buffer()
    result, states = kernels[0].encode_batch(command_buffer, images, destination_state_is_temporary=False)
    constant = kernels[0].encode_batch(command_buffer, zeros)
    flow = exact(rng.normal(size=(2, 4, result[0].height, result[0].width)))
    back = kernels[1].encode_batch(command_buffer, bench.batch(flow), images, states)
    finish(command_buffer)
    forth = float(np.sum((numbers(result).astype(np.float64) - numbers(constant)) * flow))
    scale = float(np.abs(numbers(result) * flow).sum())
    assert abs(forth - float(np.sum(numbers(back).astype(np.float64) * x))) <= 1e-6 * scale


# --- what the data source may ask for --------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, FLOAT16], ids=str)
def test_float16_weights_are_used_as_float16(asked: Any) -> None:
    layer = Layer(2, 3)
    source = ArraySource(layer.descriptor(), layer.weights().astype(np.float16), None, FLOAT16)
    if asked is not None:
        source.kernel_weights_data_type = lambda: asked  # type: ignore[attr-defined]
    kernel = MPSCNNConvolution(CPU, weights=source)
    np.testing.assert_array_equal(kernel.parameters.weights.numpy(), _half(layer.weights()))
    assert kernel.parameters.precision is FLOAT16


@pytest.mark.parametrize(
    ("kind", "asked", "rule"),
    [
        (FLOAT16, FLOAT32, "must be FLOAT16 for weights of FLOAT16"),
        (UINT8, FLOAT32, "must be FLOAT16 for weights of UINT8"),
        (FLOAT32, UINT8, "must be FLOAT16 or FLOAT32 for weights of FLOAT32"),
        (FLOAT32, "half", "must be FLOAT16 or FLOAT32 for weights of FLOAT32, got half"),
    ],
)
def test_precisions_that_the_framework_refuses(kind: MPSDataType, asked: Any, rule: str) -> None:
    weights = np.zeros(1, {FLOAT32: np.float32, FLOAT16: np.float16, UINT8: np.uint8}[kind])
    source: Any = ArraySource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), weights, None, kind)
    source.ranges_for_uint8_kernel = lambda: [0.0, 1.0]
    source.kernel_weights_data_type = lambda: asked
    message = rf"^MPSCNNConvolution 'source': data source kernel_weights_data_type\(\) {rule}"
    with pytest.raises(MPSArgumentError, match=message):
        MPSCNNConvolution(CPU, weights=source)
    assert source.loads == source.purges


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORWARDS, ids=lambda kind: kind.__name__)
def test_the_accumulators_precision(kind: Any) -> None:
    kernel = kind(CPU, weights=_layer(kind).source())
    assert kernel.accumulator_precision_option is FLOAT
    kernel.accumulator_precision_option = 0
    assert kernel.accumulator_precision_option is HALF
    with pytest.raises(MPSArgumentError, match="accumulator_precision_option must be HALF or FLOAT, got 'half'"):
        kernel.accumulator_precision_option = "half"


def test_half_alone_still_sums_in_single_precision(rng: np.random.Generator) -> None:
    """On the CPU it changes nothing; a GPU may take TF32 for it."""
    bench = Bench(CPU)
    kernel = MPSCNNConvolution(CPU, weights=Layer(8, 4).source())
    image = bench.image(rng.normal(size=(1, 8, 5, 5)))
    expected = run(bench, kernel, [image])
    kernel.accumulator_precision_option = HALF
    np.testing.assert_array_equal(run(bench, kernel, [image]), expected)


def test_half_alone_on_a_gpu_keeps_ten_bits(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(8, 4)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    kernel.accumulator_precision_option = HALF
    x = exact(rng.normal(size=(2, 8, 9, 9)))
    assert_close(run(bench, kernel, [bench.batch(x)]), layer.forward([x], readings(kernel, 9, 9)), 2e-3)


@pytest.mark.parametrize("kind", FORWARDS, ids=lambda kind: kind.__name__)
def test_the_numbers_of_a_float16_accumulator(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """With the switch HALF rounds after each product, in the order row, column, channel: the very numbers."""
    bench = Bench.on(device)
    layer = _layer(kind)
    kernel = kind(bench.device, weights=layer.source())
    kernel.weights_fp16, kernel.accumulator_precision_option = True, HALF
    x = _half(rng.normal(size=(2, 3, 4, 5)))
    found = run(bench, kernel, [bench.batch(x)])
    weights = _half(layer.weights())
    (rows, columns, edge), biases = readings(kernel, found.shape[3], found.shape[2])[0], layer.bias_terms()
    assert biases is not None
    if kind is MPSCNNFullyConnected:
        rows, columns = Axis(1, 4, offset=2), Axis(1, 5, offset=2)
    sums = oracle.half_precision(x, weights, None, rows, columns, 1, edge)
    expected = (sums + biases[:, None, None]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    single = _expected(kind, layer, x, weights, (rows, columns, edge))
    assert 1e-5 < np.abs(found - single).max() < 2e-2 * np.abs(single).max()


@pytest.mark.parametrize("change", [{"groups": 2}, {"depthwise": True}, {"sub_pixels": 2}], ids=str)
def test_a_float16_accumulator_of_other_convolutions(
    change: dict[str, Any], device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    layer = Layer(8, 8, 2, 2, stride=(2, 1), **change)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    kernel.weights_fp16, kernel.accumulator_precision_option = True, HALF
    x = _half(rng.normal(size=(1, 8, 4, 3)))
    found = run(bench, kernel, [bench.image(x)])
    if "sub_pixels" in change:
        ((rows, columns, _),) = readings(kernel, 3, 2)
    else:
        ((rows, columns, _),) = readings(kernel, found.shape[3], found.shape[2])
    biases = layer.bias_terms()
    sums = oracle.half_precision(x, _half(layer.weights()), None, rows, columns, layer.engine_groups)
    assert biases is not None
    expected = (sums + biases[:, None, None]).astype(np.float32)
    if "sub_pixels" in change:
        expected = oracle.sub_pixels(expected, 2, 4, 6)
    np.testing.assert_array_equal(found, expected)


def test_float32_weights_need_a_float_accumulator() -> None:
    """16.5: where the source says FLOAT32. One that does not say so leaves the choice open."""
    bench = Bench(CPU)
    image = bench.image(np.zeros((1, 3, 4, 5)))
    for kind in FORWARDS:
        layer = _layer(kind)
        kernel = kind(CPU, weights=_asking(layer, FLOAT32))
        kernel.accumulator_precision_option = HALF
        message = "accumulator_precision_option must be FLOAT where the data source's kernel_weights_data_type"
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'source': {message}"):
            kernel.encode(bench.command_buffer(), image)
        kernel.accumulator_precision_option = FLOAT
        kernel.encode(bench.command_buffer(), image)
        for source in (layer.source(), _asking(layer, FLOAT16)):
            open_kernel = kind(CPU, weights=source)
            open_kernel.accumulator_precision_option = HALF
            open_kernel.encode(bench.command_buffer(), image)


# --- float16 images ---------------------------------------------------------------------------------------------------

PAIRS = [
    (MPSCNNConvolution, MPSCNNConvolutionGradient),
    (MPSCNNFullyConnected, MPSCNNFullyConnectedGradient),
    (MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient),
]


@in_one_test
@pytest.mark.parametrize(("forward", "backward"), PAIRS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("switch", [None, False, True])
@pytest.mark.parametrize("asked", [None, FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("stored", [Format.FLOAT16, Format.FLOAT32], ids=lambda value: value.name)
def test_weights_for_float16_images(
    forward: Any,
    backward: Any,
    switch: bool | None,
    asked: Any,
    stored: Format,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    """Rounded by default where the forward source is FLOAT16, unless its data source says FLOAT32; gradients alike."""
    bench = Bench.on(device)
    layer = _layer(forward)
    kernels = [
        kind(bench.device, weights=layer.source() if asked is None else _asking(layer, asked))
        for kind in (forward, backward)
    ]
    half = replace(layer, half=True)
    twins = [kind(bench.device, weights=_asking(half, FLOAT32)) for kind in (forward, backward)]
    singles = [kind(bench.device, weights=layer.source()) for kind in (forward, backward)]
    for kernel in (*twins, *singles):
        kernel.weights_fp16 = False
    for kernel in kernels:
        kernel.weights_fp16 = switch
    is_rounded = asked is FLOAT16 or bool(switch) or (switch is None and stored is Format.FLOAT16 and asked is None)
    x = _half(rng.normal(size=(2, 3, 4, 5)))
    images = bench.batch(x, stored)
    command_buffer = bench.command_buffer()
    flow: Any = None
    found = []
    for pair in (kernels, twins, singles):
        for kernel in pair:
            keep_results(kernel)
        # Results of FLOAT32, so that nothing but the weights is rounded.
        probe = pair[0].destination_image_descriptor([images[0]])
        result = bench.batch(np.zeros((2, 4, probe.height, probe.width)))
        states = pair[0].result_state_batch(images)
        pair[0].encode_batch(command_buffer, images, destination_images=result, destination_states=states)
        if flow is None:
            flow = bench.batch(_half(rng.normal(size=(2, 4, probe.height, probe.width))))
        back = pair[1].encode_batch(command_buffer, flow, images, states)
        found.append((result, back, states[0]))
    finish(command_buffer)
    for index in (0, 1):
        mine, rounded, single = (numbers(each[index]) for each in found)
        assert_close(mine, rounded if is_rounded else single, 1e-6)
        assert np.abs(rounded - single).max() > 1e-4
    mine, _, single = (each[2].gradient_for_weights.tensor(torch.float32).cpu() for each in found)
    assert_close(mine, single, 1e-6, "parameter gradients need no weights")


def test_the_master_weights_stay_float32(device: torch.device) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 3)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    run(bench, kernel, [bench.batch(np.ones((1, 3, 4, 5)), Format.FLOAT16)])
    np.testing.assert_array_equal(kernel.parameters.weights.cpu().numpy(), layer.weights().astype(np.float32))
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    exported = state.weights.tensor(torch.float32).cpu().numpy()
    np.testing.assert_array_equal(exported, layer.weights().astype(np.float32).ravel())


def test_rounded_weights_follow_a_reload_that_is_queued_behind_an_encode(device: torch.device) -> None:
    """What is multiplied with is looked up when the work runs, in its order."""
    bench = Bench.on(device)
    source = ArraySource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.array([1.0 + 2.0**-12], np.float32))
    kernel = MPSCNNConvolution(bench.device, weights=source)
    keep_results(kernel)
    image = bench.image(np.ones((1, 1, 1, 1)), Format.FLOAT16)
    new = MPSCNNConvolutionWeightsAndBiasesState(weights=bench.device.new_buffer(data=np.full(1, 3.0, np.float32)))
    command_buffer = bench.command_buffer()
    before = kernel.encode(command_buffer, image)
    kernel.reload_weights_and_biases(command_buffer, new)
    after = kernel.encode(command_buffer, image)
    finish(command_buffer)
    assert (numbers(before).item(), numbers(after).item()) == (1.0, 3.0)


@pytest.mark.parametrize("value", ["yes", 2, 0.5])
def test_switches_that_there_are_not(value: Any) -> None:
    kernel = MPSCNNConvolution(CPU, weights=Layer(1, 1).source())
    with pytest.raises(MPSTypeError, match="weights_fp16 must be None, True or False"):
        kernel.weights_fp16 = value
    assert kernel.weights_fp16 is None
