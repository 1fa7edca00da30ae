"""Convolution to sub-pixels: golden numbers, sizes, clip rectangles off the blocks' grid, channels, refusals."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers, run
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.errors import MPSArgumentError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNFullyConnected,
    MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNNeuronType, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from oracles import convolution as oracle
from oracles import neuron as neuron_oracle
from oracles.geometry import CLAMP, ZERO, Axis
from samples.convolution import ArraySource, Layer
from samples.sample import VALID, exact, readings

CPU = mtl_device("cpu")
TOLERANCE = 1e-5
UNTOUCHED = -7.0


def test_golden(device: torch.device) -> None:
    """f = 2 and eight channels 0 to 7 of one pixel give the block [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]."""
    bench = Bench.on(device)
    descriptor = MPSCNNSubPixelConvolutionDescriptor(1, 1, 1, 8)
    descriptor.sub_pixel_scale_factor = 2
    kernel = MPSCNNConvolution(bench.device, descriptor, np.arange(8.0))
    found = run(bench, kernel, [bench.image(np.ones((1, 1, 1, 1)))])
    assert found[0].transpose(1, 2, 0).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_properties() -> None:
    descriptor = MPSCNNSubPixelConvolutionDescriptor(3, 3, 4, 12)
    assert descriptor.sub_pixel_scale_factor == 1
    assert (descriptor.result_channels, descriptor.channel_multiplier) == (12, 0)
    descriptor.sub_pixel_scale_factor = 2
    kernel = MPSCNNConvolution(CPU, descriptor, np.zeros(432))
    descriptor.sub_pixel_scale_factor = 1
    assert kernel.sub_pixel_scale_factor == 2, "the kernel has its own descriptor"
    assert kernel.output_feature_channels == 12, "of the weights, as the descriptor says"
    assert kernel.copy().sub_pixel_scale_factor == 2
    assert MPSCNNConvolution(CPU, MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0]).sub_pixel_scale_factor == 1


def test_factor_1_is_a_plain_convolution(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    layer = Layer(3, 5)
    descriptor = MPSCNNSubPixelConvolutionDescriptor(3, 3, 3, 5)
    source = ArraySource(descriptor, layer.weights().astype(np.float32), layer.bias_terms())
    image = bench.image(rng.normal(size=(1, 3, 4, 5)))
    plain, same = (MPSCNNConvolution(bench.device, weights=each) for each in (layer.source(), source))
    np.testing.assert_array_equal(run(bench, same, [image]), run(bench, plain, [image]))
    assert same.result_state(image) is not None
    MPSCNNConvolutionGradient(bench.device, weights=source)


@pytest.mark.parametrize("padding", [None, VALID])
def test_results_are_as_many_times_larger(padding: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSCNNConvolution(bench.device, weights=Layer(2, 18, stride=(2, 1), sub_pixels=3).source())
    plain = MPSCNNConvolution(bench.device, weights=Layer(2, 18, stride=(2, 1)).source())
    for each in (kernel, plain):
        keep_results(each)
        if padding is not None:
            each.padding = padding
    command_buffer = bench.command_buffer()
    image = bench.empty((1, 2, 7, 8))
    result, small = kernel.encode(command_buffer, image), plain.encode(command_buffer, image)
    finish(command_buffer)
    assert (result.width, result.height, result.feature_channels) == (3 * small.width, 3 * small.height, 2)
    assert kernel.offset == plain.offset


@in_one_test
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("size", [(1, 1), (5, 4), (4, 7), (6, 6)])
@pytest.mark.parametrize("origin", [(0, 0), (1, 2), (3, 1)])
def test_clip_rectangles_off_the_grid_of_blocks(
    origin, size, factor, edge, device: torch.device, rng: np.random.Generator
) -> None:
    """The first block begins at the clip rectangle's corner; the last ones are cut. Channels land from 4 on."""
    bench = Bench.on(device)
    layer = Layer(3, 2 * factor**2, 2, 3, stride=(2, 1), sub_pixels=factor)
    kernel = MPSCNNConvolution(bench.device, weights=layer.source())
    kernel.offset, kernel.edge_mode = MPSOffset(1, -1, 0), edge
    kernel.destination_feature_channel_offset = 4
    (x, y), (width, height) = origin, size
    kernel.clip_rect = MTLRegion(MTLOrigin(x, y, 0), MTLSize(width, height, 1))
    images = exact(rng.normal(size=(2, 3, 5, 4)))
    destination = bench.batch(np.full((2, 7, 9, 10), UNTOUCHED))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(images), destination)
    finish(command_buffer)
    rows = Axis(-(-height // factor), 2, 2, 1, -1)
    columns = Axis(-(-width // factor), 3, 1, 1, 1)
    plain = oracle.forward(images, layer.weights(), layer.bias_terms(), rows, columns, 1, edge)
    found, expected = numbers(destination), np.full((2, 7, 9, 10), UNTOUCHED)
    expected[:, 4:6, y : y + height, x : x + width] = oracle.sub_pixels(plain, factor, height, width)
    assert_close(found, expected, TOLERANCE)
    assert (found[expected == UNTOUCHED] == UNTOUCHED).all()


def test_neuron_bias_and_normalization_come_before_the_blocks(device: torch.device, rng: np.random.Generator) -> None:
    """PReLU, biases and normalization have one number for each of the output channels of the weights."""
    bench = Bench.on(device)
    layer = Layer(2, 8, sub_pixels=2)
    slopes, gamma, mean = rng.normal(size=8), rng.uniform(0.5, 2, size=8), rng.normal(size=8)
    descriptor = layer.descriptor()
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.PRELU, data=slopes)
    descriptor.set_batch_normalization_parameters_for_inference(mean, None, gamma, None, 0.0)
    source = ArraySource(descriptor, layer.weights().astype(np.float32), layer.bias_terms())
    kernel = MPSCNNConvolution(bench.device, weights=source)
    x = exact(rng.normal(size=(2, 2, 3, 4)))
    plain = layer.forward([x], readings(kernel, 4, 3))
    normalized = (plain - mean[:, None, None]) * gamma[:, None, None]
    activated = neuron_oracle.forward(normalized, int(MPSCNNNeuronType.PRELU), 0, 0, 0, slopes)
    assert_close(run(bench, kernel, [bench.batch(x)]), oracle.sub_pixels(activated, 2, 6, 8), TOLERANCE)


def test_groups(device: torch.device, rng: np.random.Generator) -> None:
    """Four channels a sub-pixel are what Apple's devices take with groups; others warn and compute."""
    bench = Bench.on(device)
    x = exact(rng.normal(size=(1, 8, 3, 4)))
    for outputs, expected in ((16, []), (8, ["sub-pixel"])):
        layer = Layer(8, outputs, groups=2, sub_pixels=2)
        with pytest.warns(UserWarning, match="4 channels a sub-pixel") if expected else nullcontext():
            kernel = MPSCNNConvolution(bench.device, weights=layer.source())
        found = run(bench, kernel, [bench.image(x)])
        assert_close(found, layer.sub_pixel_forward([x], readings(kernel, 8, 6)), TOLERANCE)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "rule"),
    [
        (0, "must be an integer of at least 1, got 0"),
        (-2, "must be an integer"),
        (1.5, "must be an integer"),
        (True, "must be an integer"),
        ("2", "must be an integer"),
        (3, "squared must divide the 8 output channels, got 3"),
    ],
)
def test_bad_factors(factor: Any, rule: str) -> None:
    descriptor = MPSCNNSubPixelConvolutionDescriptor(1, 1, 1, 8)
    descriptor.sub_pixel_scale_factor = factor
    with pytest.raises(MPSArgumentError, match=f"^MPSCNNConvolution: descriptor.sub_pixel_scale_factor {rule}"):
        MPSCNNConvolution(CPU, descriptor, np.zeros(8))


def test_the_destination_needs_the_channels_of_a_sub_pixel() -> None:
    bench = Bench(CPU)
    kernel = MPSCNNConvolution(CPU, weights=Layer(1, 12, sub_pixels=2).source())
    kernel.encode(bench.command_buffer(), bench.empty((1, 1, 2, 2)), bench.empty((1, 3, 4, 4)))
    with pytest.raises(MPSArgumentError, match=r"destination_image must have at least 3 feature channels \(3 written"):
        kernel.encode(bench.command_buffer(), bench.empty((1, 1, 2, 2)), bench.empty((1, 2, 4, 4)))


def test_there_is_no_gradient() -> None:
    """No state is made, and a gradient kernel over such a data source says why it cannot be."""
    bench = Bench(CPU)
    source = Layer(1, 4, sub_pixels=2).source()
    kernel = MPSCNNConvolution(CPU, weights=source)
    image = bench.empty((1, 1, 2, 2))
    assert kernel.result_state(image) is None
    assert kernel.result_state_batch([image]) is None
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    assert (result.width, state) == (4, None)
    message = "descriptor.sub_pixel_scale_factor must be 1: only a forward convolution makes sub-pixels.*, got 2"
    with pytest.raises(MPSArgumentError, match=f"^MPSCNNConvolutionGradient: {message}"):
        MPSCNNConvolutionGradient(CPU, weights=source)
    assert source.loads == source.purges


def test_a_fully_connected_layer_makes_no_sub_pixels() -> None:
    with pytest.raises(MPSArgumentError, match="^MPSCNNFullyConnected 'source': descriptor must .* no sub-pixels"):
        MPSCNNFullyConnected(CPU, weights=Layer(1, 4, sub_pixels=2).source())
