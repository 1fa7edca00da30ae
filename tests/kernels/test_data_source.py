"""Data sources: what is asked of them and when, the types of weights that they may give, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, keep_results, numbers, run
from helpers import assert_close
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDataSource,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNConvolutionWeightsLayout, MPSCNNWeightsQuantizationType, MPSDataType
from oracles import convolution as oracle
from samples.convolution import ArraySource, Layer
from samples.sample import exact, readings

CPU = mtl_device("cpu")
SHAPE = (4, 2, 3, 2)


def _descriptor() -> MPSCNNConvolutionDescriptor:
    outputs, rows, columns, inputs = SHAPE
    return MPSCNNConvolutionDescriptor(columns, rows, inputs, outputs)


def _weights(kernel: MPSCNNConvolution) -> np.ndarray:
    """What the kernel multiplies with."""
    return kernel.parameters.weights.cpu().numpy()


# --- what is asked, and when -----------------------------------------------------------------------------------------


def test_load_and_purge_come_in_pairs(device: torch.device) -> None:
    """The source itself fails a read outside a pair."""
    bench = Bench.on(device)
    source = ArraySource(_descriptor(), np.zeros(SHAPE, np.float32), np.zeros(4, np.float32))
    forward = MPSCNNConvolution(bench.device, weights=source)
    assert source.loads == source.purges == 1
    gradient = MPSCNNConvolutionGradient(bench.device, weights=source)
    assert source.loads == source.purges
    image, flow = bench.image(np.zeros((1, 2, 3, 3))), bench.image(np.zeros((1, 4, 3, 3)))
    command_buffer = bench.command_buffer()
    before = source.loads
    for _ in range(2):
        _, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
        gradient.encode(command_buffer, flow, image, state)
        assert source.loads == before + 1, "the gradient kernel reads the weights at its first encode"
    forward.reload_weights_and_biases_from_data_source()
    gradient.reload_weights_and_biases_from_data_source()
    assert source.loads == source.purges == before + 3
    assert (forward.data_source, gradient.data_source) == (source, source)


class _Failing(ArraySource):
    """A source one of whose methods raises."""

    def __init__(self, method: str) -> None:
        super().__init__(_descriptor(), np.zeros(SHAPE, np.float32))
        self._method = method

    def __getattribute__(self, name: str) -> Any:
        if name != "_method" and name == object.__getattribute__(self, "__dict__").get("_method"):
            raise_error: Any = _raise
            return raise_error
        return super().__getattribute__(name)


def _raise() -> None:
    raise OSError("disk on fire")


@pytest.mark.parametrize("method", ["weights", "bias_terms", "data_type", "descriptor"])
def test_a_source_that_fails_is_purged(method: str) -> None:
    source = _Failing(method)
    with pytest.raises(OSError, match="disk on fire"):
        MPSCNNConvolution(CPU, weights=source)
    assert source.loads == source.purges == 1


def test_load_may_refuse() -> None:
    class Refusing(ArraySource):
        def load(self) -> bool:
            return False

    source = Refusing(_descriptor(), np.zeros(SHAPE, np.float32))
    for kind in (MPSCNNConvolution, MPSCNNConvolutionGradient):
        with pytest.raises(MPSArgumentError, match=rf"^{kind.__name__}.*: data source load\(\) must return True"):
            kind(CPU, weights=source)
    assert source.purges == 0


@pytest.mark.parametrize("missing", ["data_type", "descriptor", "weights", "bias_terms", "load", "purge", "label"])
def test_missing_methods_are_named(missing: str) -> None:
    methods = {name: (lambda: None) for name in dir(ArraySource) if not name.startswith("_")}
    del methods[missing]
    source: Any = type("Incomplete", (), methods)()
    for kind in (MPSCNNConvolution, MPSCNNConvolutionGradient):
        with pytest.raises(MPSTypeError, match=rf"^{kind.__name__}: weights must be a data source.*without {missing}"):
            kind(CPU, weights=source)


def test_a_method_that_is_a_property_is_named() -> None:
    """Also where nothing says that it was meant to be a data source."""
    numbers = property(lambda self: np.zeros(SHAPE, np.float32))
    source: Any = type("OfProperties", (ArraySource,), {"weights": numbers})(_descriptor(), np.zeros(SHAPE, np.float32))
    with pytest.raises(MPSTypeError, match=r"^MPSCNNConvolution: weights must be a data source .*without weights"):
        MPSCNNConvolution(CPU, source)


def test_any_object_with_the_methods_will_do() -> None:
    source = ArraySource(_descriptor(), np.zeros(SHAPE, np.float32))
    assert isinstance(source, MPSCNNConvolutionDataSource)
    assert not isinstance(object(), MPSCNNConvolutionDataSource)


def test_the_label_is_the_sources(device: torch.device) -> None:
    source = ArraySource(_descriptor(), np.zeros(SHAPE, np.float32))
    source.name = None
    assert MPSCNNConvolution(CPU, weights=source).label is None
    source.name = "conv7"
    assert MPSCNNConvolution(CPU, weights=source).name == "MPSCNNConvolution 'conv7'"
    assert MPSCNNConvolutionGradient(CPU, weights=source).label == "conv7"


# --- what it may give ------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("form", ["array", "flat", "list", "bytes", "bytearray", "tensor", "buffer", "byte view"])
@pytest.mark.parametrize("kind", [MPSDataType.FLOAT32, MPSDataType.FLOAT16])
def test_forms_of_weights(form: str, kind: MPSDataType, rng: np.random.Generator) -> None:
    dtype = np.float32 if kind is MPSDataType.FLOAT32 else np.float16
    weights = rng.normal(size=SHAPE).astype(dtype)
    given: Any = {
        "array": weights,
        "flat": weights.ravel(),
        "list": weights.astype(np.float64).tolist(),
        "bytes": weights.tobytes(),
        "bytearray": bytearray(weights.tobytes()),
        "tensor": torch.from_numpy(weights),
        "buffer": CPU.new_buffer(data=weights),
        "byte view": weights.view(np.uint8),
    }[form]
    biases = np.arange(4, dtype=np.float32)
    kernel = MPSCNNConvolution(CPU, weights=ArraySource(_descriptor(), given, biases.tobytes(), kind))
    np.testing.assert_array_equal(_weights(kernel), weights.astype(np.float32))
    assert kernel.parameters.biases is not None
    np.testing.assert_array_equal(kernel.parameters.biases.numpy(), biases)


def test_half_precision_weights_are_rounded() -> None:
    weights = np.full(SHAPE, 1.0 + 2.0**-12, np.float32)
    source = ArraySource(_descriptor(), np.zeros(SHAPE, np.float16), None, MPSDataType.FLOAT16)
    source.weights = weights.tolist  # plain numbers have no type of their own
    np.testing.assert_array_equal(_weights(MPSCNNConvolution(CPU, weights=source)), 1.0)


def test_the_weights_are_copied() -> None:
    weights = np.ones(SHAPE, np.float32)
    kernel = MPSCNNConvolution(CPU, weights=ArraySource(_descriptor(), weights))
    weights[:] = 7
    np.testing.assert_array_equal(_weights(kernel), 1.0)


class _Quantized(ArraySource):
    """Bytes with ranges, with a table, or with both."""

    def __init__(self, weights: Any, ranges: Any = None, table: Any = None, kind: Any = None) -> None:
        super().__init__(_descriptor(), weights, None, MPSDataType.UINT8)
        if ranges is not None:
            self.ranges_for_uint8_kernel = lambda: ranges
        if table is not None:
            self.lookup_table_for_uint8_kernel = lambda: table
        if kind is not None:
            self.weights_quantization_type = lambda: kind


RANGES = np.array([[-1, 1], [0, 5], [2, 2], [-3, -1]], np.float32)
TABLE = np.linspace(-4, 4, 256, dtype=np.float32)
QUANTIZATION = MPSCNNWeightsQuantizationType


@pytest.mark.parametrize("kind", [None, QUANTIZATION.LINEAR])
def test_linear_bytes(kind: Any, rng: np.random.Generator) -> None:
    """``u / 255 (max - min) + min`` with a pair for each output channel, as float16."""
    weights = rng.integers(0, 256, size=SHAPE).astype(np.uint8)
    kernel = MPSCNNConvolution(CPU, weights=_Quantized(weights, RANGES, None, kind))
    np.testing.assert_array_equal(_weights(kernel), _as_float16(_linear(weights, RANGES)))


def _linear(weights: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    low, high = (ranges[:, side].reshape(-1, 1, 1, 1).astype(np.float64) for side in (0, 1))
    return weights / 255.0 * (high - low) + low


def _as_float16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("kind", [None, QUANTIZATION.LOOKUP_TABLE])
def test_bytes_with_a_table(kind: Any, rng: np.random.Generator) -> None:
    weights = rng.integers(0, 256, size=SHAPE).astype(np.uint8)
    kernel = MPSCNNConvolution(CPU, weights=_Quantized(weights.tobytes(), None, TABLE, kind))
    np.testing.assert_array_equal(_weights(kernel), _as_float16(TABLE[weights]))


def test_ranges_and_table() -> None:
    """The quantization type chooses; without one the ranges win."""
    weights = np.full(SHAPE, 255, np.uint8)
    linear = np.broadcast_to(RANGES[:, 1].reshape(-1, 1, 1, 1), SHAPE)
    for kind, expected in ((None, linear), (QUANTIZATION.LINEAR, linear), (QUANTIZATION.LOOKUP_TABLE, TABLE[255])):
        kernel = MPSCNNConvolution(CPU, weights=_Quantized(weights, RANGES, TABLE, kind))
        np.testing.assert_array_equal(_weights(kernel), _as_float16(np.broadcast_to(expected, SHAPE)))


def test_a_quantization_type_of_none_says_nothing() -> None:
    """The bytes then mean what the method that is there says, as before the type existed."""
    weights = np.full(SHAPE, 255, np.uint8)
    kernel = MPSCNNConvolution(CPU, weights=_Quantized(weights, None, TABLE, QUANTIZATION.NONE))
    np.testing.assert_array_equal(_weights(kernel), np.full(SHAPE, TABLE[255]))


QUANTIZED_LAYERS = [
    (MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(2, 4, 3, 2, stride=(2, 1), biases=False)),
    (MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(4, 4, 3, 3, depthwise=True, biases=False)),
    (MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(2, 4, 3, 3, depthwise=True, biases=False)),
    (MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(8, 4, 2, 2, groups=4, biases=False)),
    (MPSCNNFullyConnected, MPSCNNFullyConnectedGradient, Layer(2, 4, 5, 6, biases=False)),
]


@pytest.mark.filterwarnings("ignore:.*groups of")
@pytest.mark.parametrize("way", ["ranges", "table", "float16"])
@pytest.mark.parametrize(
    ("forward", "gradient", "layer"), QUANTIZED_LAYERS, ids=lambda case: getattr(case, "name", None)
)
def test_small_weights_in_kernels(
    forward, gradient, layer, way, device: torch.device, rng: np.random.Generator
) -> None:
    """Bytes and float16 through the kernels and their gradients: the loops' numbers with the weights that they mean."""
    bench = Bench.on(device)
    shape = layer.descriptor().weight_shape()
    if way == "float16":
        given = rng.normal(size=shape).astype(np.float16)
        source = ArraySource(layer.descriptor(), given, None, MPSDataType.FLOAT16)
        meant = given.astype(np.float64)
    else:
        given = rng.integers(0, 256, size=shape).astype(np.uint8)
        source = _Quantized(given, RANGES if way == "ranges" else None, TABLE if way == "table" else None)
        source._descriptor = layer.descriptor()
        meant = _as_float16(_linear(given, RANGES) if way == "ranges" else TABLE[given]).astype(np.float64)
    kernel, backward = forward(bench.device, weights=source), gradient(bench.device, weights=source)
    for each in (kernel, backward):
        keep_results(each)
    x = exact(rng.normal(size=(2, layer.inputs, 5, 6)))
    images = bench.batch(x)
    command_buffer = bench.command_buffer()
    result, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    flow = exact(rng.normal(size=(2, layer.outputs, result[0].height, result[0].width)))
    back = backward.encode_batch(command_buffer, bench.batch(flow), images, states)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    ((rows, columns, _),) = readings(kernel, result[0].width, result[0].height)
    if forward is MPSCNNFullyConnected:
        rows, columns = rows._replace(offset=2), columns._replace(offset=3)
    groups = layer.engine_groups
    assert_close(numbers(result), oracle.forward(x, meant, None, rows, columns, groups), 1e-5)
    data, parameters, _ = oracle.gradient(flow, x, meant, rows, columns, groups)
    assert_close(numbers(back), data, 1e-5)
    assert_close(states[0].gradient_for_weights.tensor(torch.float32), parameters.ravel(), 1e-5)


def test_the_only_layout() -> None:
    source: Any = ArraySource(_descriptor(), np.ones(SHAPE, np.float32))
    source.weights_layout = lambda: MPSCNNConvolutionWeightsLayout.OHWI
    MPSCNNConvolution(CPU, weights=source)
    source.weights_layout = lambda: 1
    with pytest.raises(MPSArgumentError, match=r"data source weights_layout\(\) must be OHWI, .* got 1"):
        MPSCNNConvolution(CPU, weights=source)
    assert source.loads == source.purges


# --- what is refused -------------------------------------------------------------------------------------------------

BYTES = np.zeros(SHAPE, np.uint8)


@in_one_test
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (ArraySource(None, np.zeros(SHAPE)), MPSTypeError, r"data source descriptor\(\) must return an MPSCNNConv"),
        (ArraySource(_descriptor(), np.zeros(47)), MPSArgumentError, r"data source weights\(\) must hold 48 numbers"),
        (ArraySource(_descriptor(), np.zeros(49)), MPSArgumentError, r"data source weights\(\) must hold 48 numbers"),
        (ArraySource(_descriptor(), b"\0" * 190), MPSArgumentError, r"data source weights\(\) must be whole float32"),
        (ArraySource(_descriptor(), ["a"] * 48), MPSTypeError, r"data source weights\(\) must be numbers that fit"),
        (ArraySource(_descriptor(), None), MPSTypeError, r"data source weights\(\) must be numbers that fit"),
        (
            ArraySource(_descriptor(), np.zeros(SHAPE), np.zeros(3)),
            MPSArgumentError,
            r"data source bias_terms\(\) must hold one number an output channel, 4",
        ),
        (
            ArraySource(_descriptor(), np.zeros(SHAPE), None, MPSDataType.INT16),
            MPSArgumentError,
            r"data source data_type\(\) must be one of FLOAT32, FLOAT16, UINT8",
        ),
        (
            ArraySource(_descriptor(), np.zeros(SHAPE), None, "float"),  # type: ignore[arg-type]
            MPSArgumentError,
            r"data source data_type\(\) must be one of",
        ),
        (
            _Quantized(BYTES),
            MPSArgumentError,
            r"data source of UINT8 weights must offer ranges_for_uint8_kernel\(\) or lookup_table_for_uint8_kernel\(\)",
        ),
        (
            _Quantized(BYTES, RANGES, None, QUANTIZATION.LOOKUP_TABLE),
            MPSArgumentError,
            r"must offer lookup_table_for_uint8_kernel\(\), got quantization type LOOKUP_TABLE",
        ),
        (
            _Quantized(BYTES, None, TABLE, QUANTIZATION.LINEAR),
            MPSArgumentError,
            r"must offer ranges_for_uint8_kernel\(\), got quantization type LINEAR",
        ),
        (_Quantized(BYTES, RANGES[:3]), MPSArgumentError, r"ranges_for_uint8_kernel\(\) must hold 8 numbers"),
        (_Quantized(BYTES, None, TABLE[:16]), MPSArgumentError, r"lookup_table_for_uint8_kernel\(\) must hold 256"),
        (_Quantized(np.zeros(SHAPE), RANGES), MPSTypeError, r"weights\(\) must be numbers that fit uint8"),
    ],
)
def test_refusals(source: Any, error: type[Exception], message: str) -> None:
    source.name = "broken"
    with pytest.raises(error, match=f"^MPSCNNConvolution 'broken': .*{message}"):
        MPSCNNConvolution(CPU, weights=source)
    assert source.loads == source.purges, "purged also when it is refused"


# --- reload and export -----------------------------------------------------------------------------------------------


def _line(bench: Bench) -> Any:
    return bench.image(np.ones((1, 1, 1, 1)))


def _one(weight: float, bias: float | None) -> ArraySource:
    biases = None if bias is None else np.array([bias], np.float32)
    return ArraySource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.array([weight], np.float32), biases)


def test_reload_from_the_source(device: torch.device) -> None:
    bench = Bench.on(device)
    source = _one(2, 1)
    kernel = MPSCNNConvolution(bench.device, weights=source)
    buffer = kernel.parameters.weights_buffer
    source._weights = np.array([5], np.float32)
    assert run(bench, kernel, [_line(bench)]).item() == 3
    kernel.reload_weights_and_biases_from_data_source()
    assert run(bench, kernel, [_line(bench)]).item() == 6
    assert kernel.parameters.weights_buffer is buffer, "updated in place"
    source._biases = np.array([10], np.float32)
    kernel.reload_weights_and_biases(data_source=_one(99, 99))
    assert run(bench, kernel, [_line(bench)]).item() == 15, "the deprecated argument is not looked at"


def test_reload_refuses_new_shapes() -> None:
    source = _one(2, 1)
    kernel = MPSCNNConvolution(CPU, weights=source)
    source._biases = None
    with pytest.raises(MPSArgumentError, match="^MPSCNNConvolution 'source': data source must keep the weights' shape"):
        kernel.reload_weights_and_biases_from_data_source()
    source._descriptor, source._weights = MPSCNNConvolutionDescriptor(2, 1, 1, 1), np.zeros(2, np.float32)
    with pytest.raises(MPSArgumentError, match="must keep the weights' shape"):
        kernel.reload_weights_and_biases_from_data_source()


def test_reload_without_a_source() -> None:
    kernel = MPSCNNConvolution(CPU, MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0])
    with pytest.raises(MPSArgumentError, match="^MPSCNNConvolution: data_source is needed to reload"):
        kernel.reload_weights_and_biases_from_data_source()


def test_reload_from_a_state_runs_in_the_queue(device: torch.device) -> None:
    """Encodes before it in the command buffer see the old weights, those after it the new ones."""
    bench = Bench.on(device)
    kernel = MPSCNNConvolution(bench.device, weights=_one(2, 1))
    gradient = MPSCNNConvolutionGradient(bench.device, weights=_one(2, 1))
    for each in (kernel, gradient):
        each.destination_image_allocator = type(_line(bench)).default_allocator()
    state = MPSCNNConvolutionWeightsAndBiasesState(
        weights=bench.device.new_buffer(data=np.array([0, 7], np.float32)),
        biases=bench.device.new_buffer(data=np.array([0, 0, -1], np.float32)),
        weights_offset=4,
        biases_offset=8,
    )
    command_buffer = bench.command_buffer()
    before, made = kernel.encode(command_buffer, _line(bench), destination_state_is_temporary=False)
    kernel.reload_weights_and_biases(command_buffer, state)
    gradient.reload_weights_and_biases(command_buffer, state)
    after = kernel.encode(command_buffer, _line(bench))
    flow = gradient.encode(command_buffer, _line(bench), _line(bench), made)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert (numbers(before).item(), numbers(after).item(), numbers(flow).item()) == (3, 6, 7)


def test_reload_takes_a_read(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNConvolution(bench.device, weights=_one(2, 1))
    command_buffer = bench.command_buffer()
    state = MPSCNNConvolutionWeightsAndBiasesState.temporary_cnn_convolution_weights_and_biases_state(
        command_buffer, kernel.convolution_descriptor
    )
    assert state.is_temporary
    assert state.read_count == 1
    kernel.reload_weights_and_biases(command_buffer, state)
    assert state.read_count == 0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert run(bench, kernel, [_line(bench)]).item() == 0, "new buffers hold zeros"


@pytest.mark.parametrize("biases", [True, False])
def test_export(biases: bool, device: torch.device) -> None:
    """A copy as of its place in the queue, in the data source's layout."""
    bench = Bench.on(device)
    layer = Layer(3, 4, 2, 5, biases=biases)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_array_equal(state.weights.tensor(torch.float32).cpu().numpy(), layer.weights().ravel())
    if biases:
        assert state.biases is not None
        np.testing.assert_array_equal(state.biases.tensor(torch.float32).cpu().numpy(), layer.bias_terms())
    else:
        assert state.biases is None
    assert not state.is_temporary
    state.weights.tensor(torch.float32).zero_()
    assert kernel.parameters.weights.any(), "a copy"


def test_export_and_reload_with_folded_batch_normalization(device: torch.device) -> None:
    """Exported before folding; folded anew when reloaded: a round trip changes nothing."""
    bench = Bench.on(device)
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    descriptor.set_batch_normalization_parameters_for_inference([1.0], [4.0], [2.0], [0.5], 0.0)
    source = ArraySource(descriptor, np.array([3], np.float32), np.array([2], np.float32))
    kernel = MPSCNNConvolution(bench.device, weights=source)
    expected = (3 + 2 - 1) * 1.0 + 0.5
    assert run(bench, kernel, [_line(bench)]).item() == expected
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer)
    kernel.reload_weights_and_biases(command_buffer, state)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert state.weights.tensor(torch.float32).tolist() == [3]
    assert run(bench, kernel, [_line(bench)]).item() == expected
    assert run(bench, kernel.copy(), [_line(bench)]).item() == expected


def test_wrong_reload_states() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNConvolution(CPU, weights=Layer(3, 4).source())
    command_buffer = bench.command_buffer()
    small = MPSCNNConvolutionWeightsAndBiasesState(CPU, MPSCNNConvolutionDescriptor(1, 1, 1, 1))
    with pytest.raises(MPSArgumentError, match="^MPSCNNConvolution 'source': state.weights must hold 432 bytes, got 4"):
        kernel.reload_weights_and_biases(command_buffer, small)
    with pytest.raises(MPSTypeError, match="state must be an MPSCNNConvolutionWeightsAndBiasesState"):
        kernel.reload_weights_and_biases(command_buffer, kernel.result_state(bench.empty((1, 3, 4, 4))))
    buffer = CPU.new_buffer(length=432)
    short = MPSCNNConvolutionWeightsAndBiasesState(weights=buffer, biases=CPU.new_buffer(length=12))
    with pytest.raises(MPSArgumentError, match="state.biases must hold 16 bytes, got 12"):
        kernel.reload_weights_and_biases(command_buffer, short)


@pytest.mark.parametrize("offsets", [{"weights_offset": 2}, {"biases_offset": -4}])
def test_state_offsets_are_multiples_of_four(offsets: dict[str, int]) -> None:
    with pytest.raises(MPSArgumentError, match=f"{next(iter(offsets))} must be a multiple of 4 bytes"):
        MPSCNNConvolutionWeightsAndBiasesState(weights=CPU.new_buffer(length=16), **offsets)


def test_state_needs_buffers_or_a_shape() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNConvolutionWeightsAndBiasesState: arguments must be weights, or"):
        MPSCNNConvolutionWeightsAndBiasesState(CPU)


# --- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*another kernel of the same data source:openmps.errors.MPSTrainingWarning")
def test_a_copy_has_weights_of_its_own(device: torch.device) -> None:
    """It starts with the original's numbers as they are now, not with the data source's."""
    bench = Bench.on(device)
    for source in (_one(2, 1), None):
        if source is None:
            kernel = MPSCNNConvolution(bench.device, MPSCNNConvolutionDescriptor(1, 1, 1, 1), [2.0], [1.0])
        else:
            kernel = MPSCNNConvolution(bench.device, weights=source)
        state = MPSCNNConvolutionWeightsAndBiasesState(bench.device, kernel.convolution_descriptor)
        state.weights.tensor(torch.float32).fill_(5)
        command_buffer = bench.command_buffer()
        kernel.reload_weights_and_biases(command_buffer, state)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        twin = kernel.copy()
        assert run(bench, twin, [_line(bench)]).item() == 5
        state.weights.tensor(torch.float32).fill_(-3)
        command_buffer = bench.command_buffer()
        twin.reload_weights_and_biases(command_buffer, state)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert run(bench, twin, [_line(bench)]).item() == -3
        assert run(bench, kernel, [_line(bench)]).item() == 5


def test_a_copy_asks_the_source_for_a_copy(device: torch.device) -> None:
    bench = Bench.on(device)

    class Copying(ArraySource):
        def copy(self, device: Any = None) -> Any:
            twin = _one(2, 1)
            twin.copied_for = device  # type: ignore[attr-defined]
            return twin

    class Plain(ArraySource):
        def copy(self) -> Any:
            return _one(2, 1)

    for kind in (MPSCNNConvolution, MPSCNNConvolutionGradient):
        source: Any = Copying(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.ones(1), np.ones(1))
        twin: Any = kind(bench.device, weights=source).copy(bench.device)
        assert twin.data_source is not source
        assert twin.data_source.copied_for is bench.device
        source = Plain(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.ones(1), np.ones(1))
        assert kind(bench.device, weights=source).copy().data_source is not source
        source = _one(1, 1)
        assert kind(bench.device, weights=source).copy().data_source is source


# --- arrays of another type than an app would read ------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(
    ("says", "weights", "biases", "argument"),
    [
        (MPSDataType.FLOAT16, np.float32, np.float32, "weights()"),
        (MPSDataType.FLOAT16, np.float64, np.float32, "weights()"),
        (MPSDataType.FLOAT32, np.float16, np.float32, "weights()"),
        (MPSDataType.FLOAT32, np.float32, np.float16, "bias_terms()"),
        (MPSDataType.FLOAT16, np.float16, np.float16, "bias_terms()"),
        (MPSDataType.FLOAT32, np.float32, np.float32, ""),
        (MPSDataType.FLOAT16, np.float16, np.float32, ""),
    ],
)
def test_arrays_are_of_the_type_that_the_source_says(
    says: MPSDataType, weights: Any, biases: Any, argument: str, as_tensor: bool
) -> None:
    source = ArraySource(_descriptor(), np.zeros(SHAPE, np.float32), np.zeros(4, np.float32))
    arrays = np.ones(SHAPE, weights), np.ones(4, biases)
    given = tuple(map(torch.from_numpy, arrays)) if as_tensor else arrays
    source.data_type, source.weights, source.bias_terms = lambda: says, lambda: given[0], lambda: given[1]
    if not argument:
        assert (_weights(MPSCNNConvolution(CPU, weights=source)) == 1).all()
        return
    with pytest.raises(
        MPSTypeError, match=rf"data source {re.escape(argument)} must be numbers of float.*got an array"
    ):
        MPSCNNConvolution(CPU, weights=source)
