"""Binary convolution: golden numbers, its two constructors, the words of its weights, and what it refuses."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, Bench, finish, keep_results, numbers, run
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.padding.policy import MPSNNPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.binary import MPSCNNBinaryConvolution, MPSCNNBinaryFullyConnected
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNNeuronType,
    MPSDataType,
    MPSImageEdgeMode,
    MPSNNPaddingMethod,
    MPSOffset,
)
from oracles import binary_convolution as oracle
from oracles.geometry import Axis
from samples.convolution import ArraySource

Type, Flags = MPSCNNBinaryConvolutionType, MPSCNNBinaryConvolutionFlags
CPU = mtl_device("cpu")
GOLDEN_X = np.array([0.5, -1.0, 2.0]).reshape(1, 3, 1, 1)
GOLDEN_WORD = np.array([0b101], np.uint32)
"""Bits 1, 0, 1."""


def _source(words: Any, inputs: int, outputs: int = 1, size: int = 1, biases: Any = None, **properties: Any) -> Any:
    descriptor = MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
    for name, value in properties.items():
        setattr(descriptor, name, value)
    return ArraySource(descriptor, words, biases, MPSDataType.UINT32)


def _run(bench: Bench, kernel: Any, x: np.ndarray) -> np.ndarray:
    return run(bench, kernel, [bench.image(x)])


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "expected"), [(Type.BINARY_WEIGHTS, 3.5), (Type.XNOR, 3.0), (Type.AND, 2.0)])
@pytest.mark.parametrize("kernel", [MPSCNNBinaryConvolution, MPSCNNBinaryFullyConnected])
def test_golden(kernel: Any, kind: Type, expected: float, device: torch.device) -> None:
    bench = Bench.on(device)
    plain = kernel(bench.device, _source(GOLDEN_WORD, 3), type=kind)
    assert _run(bench, plain, GOLDEN_X).item() == expected
    scaled = kernel(bench.device, _source(GOLDEN_WORD, 3), type=kind, flags=Flags.USE_BETA_SCALING)
    assert_digits(_run(bench, scaled, GOLDEN_X), expected * 3.5 / 3, 5)


def test_bits_beyond_the_last_channel_do_not_matter(device: torch.device) -> None:
    bench = Bench.on(device)
    for kind in Type:
        found = [
            _run(bench, MPSCNNBinaryConvolution(bench.device, _source(words, 3), type=kind), GOLDEN_X).item()
            for words in (GOLDEN_WORD, GOLDEN_WORD | np.uint32(0xFFFFFFF8))
        ]
        assert found[0] == found[1]


def test_border_of_zeros_is_positive(device: torch.device) -> None:
    """A zero outside the image has bit 1; with terms it is `bias * scale`, as the pixels inside."""
    bench = Bench.on(device)
    source = _source(np.full(9, 1, np.uint32), 1, size=3)
    x = np.full((1, 1, 1, 1), -5.0)
    plain = MPSCNNBinaryConvolution(bench.device, source, type=Type.XNOR)
    assert _run(bench, plain, x).item() == 8 - 1
    shifted = MPSCNNBinaryConvolution(bench.device, source, type=Type.XNOR, input_bias_terms=[-1.0])
    assert _run(bench, shifted, x).item() == -9
    turned = MPSCNNBinaryConvolution(
        bench.device, source, type=Type.AND, input_bias_terms=[-1.0], input_scale_terms=[-2.0]
    )
    assert _run(bench, turned, x).item() == 9
    plain.edge_mode = MPSImageEdgeMode.CLAMP
    assert _run(bench, plain, x).item() == -9


def test_scale_value_takes_the_sources_biases(device: torch.device) -> None:
    bench = Bench.on(device)
    source = _source(np.array([0b101, 0b010], np.uint32), 3, 2, biases=[10.0, 20.0])
    kernel = MPSCNNBinaryConvolution(bench.device, source, scale_value=2.0, type=Type.BINARY_WEIGHTS)
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [17.0, 13.0])
    without = _source(np.array([0b101, 0b010], np.uint32), 3, 2)
    kernel = MPSCNNBinaryConvolution(bench.device, without, scale_value=2.0, type=Type.BINARY_WEIGHTS)
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [7.0, -7.0])


def test_arrays_take_the_place_of_the_sources_biases(device: torch.device) -> None:
    bench = Bench.on(device)
    source = _source(np.array([0b101, 0b010], np.uint32), 3, 2, biases=[10.0, 20.0])
    kernel = MPSCNNBinaryConvolution(bench.device, source, type=Type.BINARY_WEIGHTS)
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [3.5, -3.5])
    kernel = MPSCNNBinaryConvolution(
        bench.device, source, [1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 3.0], [1.0, 2.0, -1.0], type=Type.BINARY_WEIGHTS
    )
    # Prepared source: 1.5, 2, -5.
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [1 + 3 * -5.5, 2 + 4 * 5.5])


def test_the_fused_neuron_comes_last(device: torch.device) -> None:
    bench = Bench.on(device)
    words = np.array([0b101, 0b010], np.uint32)
    neuron = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, 0.5)
    source = _source(words, 3, 2, biases=[0.0, 1.0], fused_neuron_descriptor=neuron)
    kernel = MPSCNNBinaryConvolution(bench.device, source, scale_value=2.0, type=Type.BINARY_WEIGHTS)
    neuron.a = 99.0
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [7.0, -3.0])
    slopes = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=[2.0, 3.0])
    source = _source(words, 3, 2, fused_neuron_descriptor=slopes)
    kernel = MPSCNNBinaryConvolution(bench.device, source, type=Type.BINARY_WEIGHTS)
    np.testing.assert_array_equal(_run(bench, kernel, GOLDEN_X).ravel(), [3.5, -10.5])


def test_batch_normalization_is_not_folded_in(device: torch.device) -> None:
    bench = Bench.on(device)
    source = _source(GOLDEN_WORD, 3)
    source.descriptor().set_batch_normalization_parameters_for_inference([1.0], [4.0], [3.0], [5.0])
    kernel = MPSCNNBinaryConvolution(bench.device, source, type=Type.XNOR)
    assert _run(bench, kernel, GOLDEN_X).item() == 3.0


def test_offset_and_stride_move_the_window_of_beta_too(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    bits = rng.integers(0, 2, size=(2, 3, 3, 5))
    source = _source(oracle.pack(bits), 5, 2, 3, stride_in_pixels_x=2, stride_in_pixels_y=3, dilation_rate_x=2)
    kernel = MPSCNNBinaryConvolution(bench.device, source, type=Type.XNOR, flags=Flags.USE_BETA_SCALING)
    kernel.offset = MPSOffset(-1, 2, 0)
    x = rng.normal(size=(2, 5, 7, 6)).astype(np.float32).astype(np.float64)
    destination = bench.empty((2, 2, 3, 4))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), destination)
    finish(command_buffer)
    rows, columns = Axis(3, 3, 3, 1, 2), Axis(4, 3, 2, 2, -1)
    assert_close(numbers(destination), oracle.forward(x, oracle.pack(bits), 1, rows, columns, beta=True), 1e-6)


def test_more_source_channels_than_are_read(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNBinaryConvolution(bench.device, _source(GOLDEN_WORD, 3), type=Type.BINARY_WEIGHTS)
    kernel.source_feature_channel_offset = 4
    x = np.concatenate([np.full((1, 4, 1, 1), 7.0), GOLDEN_X, np.full((1, 2, 1, 1), 9.0)], axis=1)
    assert _run(bench, kernel, x).item() == 3.5


def test_fully_connected_covers_the_image(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    bits = rng.integers(0, 2, size=(6, 4, 4, 40))
    kernel = MPSCNNBinaryFullyConnected(bench.device, _source(oracle.pack(bits), 40, 6, 4), type=Type.XNOR)
    kernel.offset = MPSOffset(3, -2, 0)  # ignored
    x = rng.normal(size=(3, 40, 4, 4))
    found = run(bench, kernel, [bench.batch(x)])
    expected = np.einsum("nchw,qhwc->nq", np.where(x < 0, -1.0, 1.0), 2.0 * bits - 1.0)
    np.testing.assert_array_equal(found[..., 0, 0], expected)


def test_half_precision_stores_the_rounded_sum(device: torch.device) -> None:
    bench = Bench.on(device)
    words = np.full((1, 1, 1, 128), 0xFFFFFFFF, np.uint32)
    kernel = MPSCNNBinaryConvolution(bench.device, _source(words, 4095), [0.0], [1.0], type=Type.XNOR)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode(command_buffer, bench.image(np.ones((1, 4095, 1, 1)), FLOAT16))
    finish(command_buffer)
    assert numbers(result).item() == np.float16(4095)


# --- properties ------------------------------------------------------------------------------------------------------


def test_properties() -> None:
    source = _source(oracle.pack(np.ones((7, 3, 3, 33))), 33, 7, 3, stride_in_pixels_x=2, dilation_rate_y=3)
    kernel = MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR)
    assert isinstance(kernel, MPSCNNKernel)
    assert (kernel.input_feature_channels, kernel.output_feature_channels) == (33, 7)
    assert (kernel.kernel_width, kernel.kernel_height) == (3, 3)
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (2, 1)
    assert (kernel.dilation_rate_x, kernel.dilation_rate_y) == (1, 3)
    assert kernel.edge_mode is MPSImageEdgeMode.ZERO
    assert kernel.label == "source"
    assert (source.loads, source.purges) == (1, 1)
    with pytest.raises(AttributeError):
        kernel.input_feature_channels = 3  # type: ignore[misc]


@in_one_test
@pytest.mark.parametrize("inputs", [1, 8, 31, 32, 33, 70])
@pytest.mark.parametrize("kind", Type)
def test_what_made_a_kernel_is_read_back(inputs: int, kind: Type, rng: np.random.Generator) -> None:
    """The words, without the bits beyond the last channel, and the terms make the same kernel again."""
    bits = rng.integers(0, 2, size=(3, 2, 2, inputs))
    source = _source(oracle.pack(bits), inputs, 3, 2, biases=[1.0, 2.0, 3.0])
    kernel = MPSCNNBinaryConvolution(CPU, source, scale_value=0.5, type=kind, flags=Flags.USE_BETA_SCALING)
    words = kernel.weight_words()
    last = np.uint32(2 ** (inputs % 32 or 32) - 1)
    expected = oracle.pack(bits)
    expected[..., -1] &= last
    np.testing.assert_array_equal(words, expected)
    assert words.dtype == np.uint32
    assert (kernel.type, kernel.flags) == (kind, Flags.USE_BETA_SCALING)
    assert kernel.convolution_descriptor.input_feature_channels == inputs
    assert kernel.terms.output_bias is not None
    assert kernel.terms.output_scale is not None
    again = MPSCNNBinaryConvolution(
        CPU,
        ArraySource(kernel.convolution_descriptor, words, None, MPSDataType.UINT32),
        kernel.terms.output_bias,
        kernel.terms.output_scale,
        type=kernel.type,
        flags=kernel.flags,
    )
    bench, x = Bench(CPU), rng.normal(size=(1, inputs, 3, 3))
    np.testing.assert_array_equal(_run(bench, again, x), _run(bench, kernel, x))


def test_default_padding() -> None:
    def method(padding: MPSNNPadding) -> int:
        return int(padding.padding_method())

    plain = MPSCNNBinaryConvolution(CPU, _source(GOLDEN_WORD, 3), type=Type.XNOR)
    whole = MPSCNNBinaryFullyConnected(CPU, _source(GOLDEN_WORD, 3), type=Type.XNOR)
    assert method(plain.padding) == MPSNNPaddingMethod.SIZE_SAME
    assert method(whole.padding) == MPSNNPaddingMethod.SIZE_VALID_ONLY


def test_keywords_are_the_selectors_words() -> None:
    names = list(inspect.signature(MPSCNNBinaryConvolution).parameters)
    assert sorted(names) == sorted(
        [
            "device",
            "convolution_data",
            "scale_value",
            "output_bias_terms",
            "output_scale_terms",
            "input_bias_terms",
            "input_scale_terms",
            "type",
            "flags",
        ]
    )


def test_no_state_is_left() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNBinaryConvolution(CPU, _source(GOLDEN_WORD, 3), type=Type.XNOR)
    assert kernel.result_state(bench.image(GOLDEN_X)) is None


def test_a_copy_on_another_device(device: torch.device) -> None:
    source = _source(GOLDEN_WORD, 3)
    kernel = MPSCNNBinaryConvolution(CPU, source, [1.0], [2.0], type=Type.XNOR)
    other = mtl_device(device) if device.type == "cuda" else MTLDevice(torch.device("cpu"))
    bench = Bench(other)
    assert _run(bench, kernel.copy(other), GOLDEN_X).item() == 7.0


def test_the_arrays_are_copied() -> None:
    words, terms = GOLDEN_WORD.copy(), np.array([2.0], np.float32)
    kernel = MPSCNNBinaryConvolution(CPU, _source(words, 3), terms, terms, type=Type.BINARY_WEIGHTS)
    words[:] = 0
    terms[:] = 0
    assert _run(Bench(CPU), kernel, GOLDEN_X).item() == 9.0


# --- words -----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    "words",
    [
        GOLDEN_WORD,
        [5],
        np.array([[[[5]]]], np.int64),
        np.array([5 - 2**31], np.int32),
        np.array([5], np.uint64),
        GOLDEN_WORD.tobytes(),
        bytearray(GOLDEN_WORD.tobytes()),
        GOLDEN_WORD.view(np.uint8),
        torch.tensor([5]),
        CPU.new_buffer(data=GOLDEN_WORD),
    ],
    ids=["uint32", "list", "int64", "int32", "uint64", "bytes", "bytearray", "uint8", "tensor", "buffer"],
)
def test_words_of_many_types(words: Any) -> None:
    kernel = MPSCNNBinaryConvolution(CPU, _source(words, 3), type=Type.BINARY_WEIGHTS)
    assert _run(Bench(CPU), kernel, GOLDEN_X).item() == 3.5


# --- misuse ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("words", "kind", "match"),
    [
        ([1, 2], MPSArgumentError, r"must hold 1 words of 32 bits, OHWI .* \(1, 1, 1, 1\), .*, got 2 words"),
        ([1.5], MPSTypeError, "must be integers of 32 bits, or raw bytes, got float64"),
        ([2**32], MPSArgumentError, "must fit 32 bits, got 4294967296 to 4294967296"),
        ([-(2**31) - 1], MPSArgumentError, "must fit 32 bits"),
        (b"abc", MPSArgumentError, "must be whole uint32 numbers, got 3 bytes"),
        ("words", MPSTypeError, "must be integers of 32 bits"),
        (None, MPSTypeError, "must be integers of 32 bits"),
        ([[1], [2, 3]], MPSTypeError, "must be integers of 32 bits"),
    ],
)
def test_wrong_words(words: Any, kind: type[Exception], match: str) -> None:
    source = _source(words, 3)
    with pytest.raises(kind, match=rf"^MPSCNNBinaryConvolution 'source': data source weights\(\) {match}"):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR)
    assert source.purges == 1


def test_wrong_sources() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNBinaryConvolution: .* must be a data source"):
        MPSCNNBinaryConvolution(CPU, GOLDEN_WORD, type=Type.XNOR)  # type: ignore[arg-type]
    floats = ArraySource(MPSCNNConvolutionDescriptor(1, 1, 3, 1), np.ones(3, np.float32))
    with pytest.raises(MPSArgumentError, match=r"'source': data source data_type\(\) must be UINT32"):
        MPSCNNBinaryConvolution(CPU, floats, type=Type.XNOR)
    nothing = ArraySource("descriptor", GOLDEN_WORD, kind=MPSDataType.UINT32)
    with pytest.raises(MPSTypeError, match=r"data source descriptor\(\) must return an MPSCNNConvolutionDescriptor"):
        MPSCNNBinaryConvolution(CPU, nothing, type=Type.XNOR)
    unready = _source(GOLDEN_WORD, 3)
    unready.load = lambda: False
    with pytest.raises(MPSArgumentError, match=r"data source load\(\) must return True, got False"):
        MPSCNNBinaryConvolution(CPU, unready, type=Type.XNOR)


def test_wrong_descriptors() -> None:
    words = np.zeros(64, np.uint32)
    with pytest.raises(MPSArgumentError, match="descriptor must have groups 1"):
        MPSCNNBinaryConvolution(CPU, _source(words[:8], 8, 8, groups=2), type=Type.XNOR)
    depthwise = ArraySource(MPSCNNDepthWiseConvolutionDescriptor(1, 1, 8, 8), words[:8], None, MPSDataType.UINT32)
    with pytest.raises(MPSArgumentError, match="descriptor must have groups 1, not be depthwise"):
        MPSCNNBinaryConvolution(CPU, depthwise, type=Type.XNOR)
    with pytest.raises(MPSArgumentError, match=r"descriptor\.kernel_width must be an integer of at least 1"):
        MPSCNNBinaryConvolution(CPU, _source(words, 8, kernel_width=0), type=Type.XNOR)
    for name in ("stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "dilation_rate_y"):
        with pytest.raises(
            MPSArgumentError,
            match=r"^MPSCNNBinaryFullyConnected 'source': descriptor must have stride and dilation 1.*Use MPSCNNBinary",
        ):
            MPSCNNBinaryFullyConnected(CPU, _source(words[:1], 8, **{name: 2}), type=Type.XNOR)


@pytest.mark.parametrize(
    ("name", "count"),
    [("output_bias_terms", 2), ("output_scale_terms", 2), ("input_bias_terms", 3), ("input_scale_terms", 3)],
)
def test_wrong_terms(name: str, count: int) -> None:
    source = _source(np.array([5, 2], np.uint32), 3, 2)
    rule = f"^MPSCNNBinaryConvolution 'source': {name} must hold one number a channel, {count}, got 4"
    with pytest.raises(MPSArgumentError, match=rule):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR, **{name: [1.0] * 4})  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match=f"{name} must be numbers"):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR, **{name: "terms"})  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match=f"scale_value cannot be given together with {name}"):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR, scale_value=1.0, **{name: [1.0] * count})  # type: ignore[arg-type]


def test_wrong_biases_and_scale() -> None:
    source = _source(np.array([5, 2], np.uint32), 3, 2, biases=[1.0, 2.0, 3.0])
    with pytest.raises(MPSArgumentError, match="output_bias_terms must hold one number a channel, 2, got 3"):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR, scale_value=1.0)
    with pytest.raises(MPSTypeError, match="scale_value must be a number, got 'much'"):
        MPSCNNBinaryConvolution(CPU, source, type=Type.XNOR, scale_value="much")  # type: ignore[arg-type]


def test_wrong_type_and_flags() -> None:
    with pytest.raises(MPSArgumentError, match="type must be one of BINARY_WEIGHTS, XNOR, AND of MPSCNNBinaryConvolut"):
        MPSCNNBinaryConvolution(CPU, _source(GOLDEN_WORD, 3), type=3)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match="flags must be one of NONE, USE_BETA_SCALING"):
        MPSCNNBinaryConvolution(CPU, _source(GOLDEN_WORD, 3), type=Type.XNOR, flags=2)  # type: ignore[arg-type]


def test_images_that_do_not_fit() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNBinaryFullyConnected(CPU, _source(np.zeros(9, np.uint32), 3, size=3), type=Type.XNOR)
    rule = "^MPSCNNBinaryFullyConnected 'source': source_image must be as large as the kernel, 3x3 pixels, got 2x3"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.empty((1, 3, 3, 2)), bench.empty((1, 1, 1, 1)))
    with pytest.raises(MPSArgumentError, match="source_image must have at least 3 feature channel"):
        kernel.encode(bench.command_buffer(), bench.empty((1, 2, 3, 3)))
