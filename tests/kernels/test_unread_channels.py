"""A source with more channels than a kernel's parameters are for: named once, where it may be a mistake."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import keep_results
from in_one_test import in_one_test
from openmps.training.normalization_sources import ArrayBatchNormalizationDataSource

CPU = mps.mtl_device("cpu")
SOURCES = mps.TrainableDataSources(lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.1))
ONES = np.ones(4, np.float32)


def weights(size: int = 1, kind: Any = mps.MPSCNNConvolutionDescriptor) -> Any:
    descriptor = kind(size, size, 4, 4)
    return mps.ArrayConvolutionDataSource(descriptor, np.ones(descriptor.weight_shape(), np.float32), label="conv")


def binary() -> Any:
    words = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4), np.ones((4, 1, 1, 4)))
    words.data_type = lambda: mps.MPSDataType.UINT32  # type: ignore[method-assign]
    words.weights = lambda: np.full((4, 1, 1, 1), 15, np.uint32)  # type: ignore[method-assign]
    kinds = mps.MPSCNNBinaryConvolutionType, mps.MPSCNNBinaryConvolutionFlags
    return mps.MPSCNNBinaryConvolution(CPU, words, 1.0, kinds[0].XNOR, kinds[1].NONE)


KERNELS: dict[str, Callable[[], Any]] = {
    "convolution": lambda: mps.MPSCNNConvolution(CPU, weights()),
    "depthwise": lambda: mps.MPSCNNConvolution(CPU, weights(kind=mps.MPSCNNDepthWiseConvolutionDescriptor)),
    "transposed": lambda: mps.MPSCNNConvolutionTranspose(CPU, weights()),
    "fully connected": lambda: mps.MPSCNNFullyConnected(CPU, weights()),
    "binary": binary,
    "batch": lambda: mps.MPSCNNBatchNormalization(
        CPU, ArrayBatchNormalizationDataSource(4, ONES, ONES, ONES, ONES, label="norm")
    ),
    "instance": lambda: mps.MPSCNNInstanceNormalization(CPU, SOURCES.instance_normalization(ONES, ONES, 1e-5, "n")),
    "group": lambda: mps.MPSCNNGroupNormalization(CPU, SOURCES.group_normalization(ONES, ONES, 2, 1e-5, "n")),
}


def encoded(kernel: Any, channels: int, side: int = 4) -> list[str]:
    """What is warned of when images of so many channels are encoded."""
    batch = mps.MPSImageBatch.from_numpy(CPU, np.ones((2, 4, side, channels), np.float32))
    return told(lambda: kernel.encode_batch(mps.MPSCommandBuffer(CPU.new_command_queue()), batch))


def told(action: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in found]


@in_one_test
@pytest.mark.parametrize("name", KERNELS)
def test_a_slice_that_is_not_read_is_named_once(name: str) -> None:
    kernel = KERNELS[name]()
    keep_results(kernel)
    assert encoded(kernel, 4) == []
    (text,) = encoded(kernel, 8)
    assert text.startswith(
        f"{kernel.name}: 4 feature channels of source_image are not read; images are [images, height"
    )
    assert "array.transpose(0, 2, 3, 1)" in text and "image.sub_image(range(…))" in text
    assert encoded(kernel, 8) == encoded(kernel, 32) == []


def test_channels_of_a_slice_that_is_read_are_not_named() -> None:
    """As of gray values in an image of four channels: slices come whole."""
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 4)
    kernel = mps.MPSCNNConvolution(CPU, mps.ArrayConvolutionDataSource(descriptor, np.ones((4, 1, 1, 1), np.float32)))
    keep_results(kernel)
    assert encoded(kernel, 4) == []
    (text,) = encoded(kernel, 5)
    assert ": 4 feature channels of source_image are not read" in text


@pytest.mark.parametrize("name", [each for each in KERNELS if each != "binary"])
def test_a_part_that_was_asked_for_is_not(name: str) -> None:
    kernel = KERNELS[name]()
    keep_results(kernel)
    kernel.source_feature_channel_offset = 4
    assert encoded(kernel, 32) == []
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 0, 4
    assert encoded(kernel, 32) == []
    other = KERNELS[name]()
    keep_results(other)
    image = mps.MPSImage.from_numpy(CPU, np.ones((4, 4, 32), np.float32)).sub_image(range(4))
    assert told(lambda: other.encode(mps.MPSCommandBuffer(CPU.new_command_queue()), image)) == []


def test_a_batch_in_the_order_of_torch_is_named_by_its_layer() -> None:
    """Four rows of pixels that are taken for four channels, in a graph, and once for all its encodes."""
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("x")), weights())
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(node.result_image).result_image)
    batch = mps.MPSImageBatch.from_numpy(CPU, np.ones((2, 4, 16, 16), np.float32))

    def encode() -> None:
        graph.encode_batch(mps.MPSCommandBuffer(CPU.new_command_queue()), [batch])

    (text,) = told(encode)
    assert "'conv'" in text and "12 feature channels of source_image are not read" in text
    assert told(encode) == []
