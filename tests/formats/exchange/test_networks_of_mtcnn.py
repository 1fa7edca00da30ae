"""MTCNN's trained networks by their state dicts: read as data, built of nodes, compared with PyTorch's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.core.padding.explicit import ExplicitPadding
from openmps.formats import WeightLayer, export_weights, import_weights, load_tensors, network_arrays
from openmps.types import MPSImageEdgeMode, MPSImageFeatureChannelFormat, MPSNNPaddingMethod
from trained_networks import FACES, faces, faces_file

CPU = mps.mtl_device("cpu")
VALID = mps.MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
CEILED = ExplicitPadding(0, 0, 0, 0, ceil_mode=True, edge_mode=MPSImageEdgeMode.CLAMP)
DENSE_SIDES = {"dense4": (3, 64), "dense5": (3, 128), "dense5_1": (1, 128), "dense5_2": (1, 128)}
DENSE_SIDES |= {f"dense6_{place}": (1, 256) for place in (1, 2, 3)}
"""Rows, and columns, and channels of what is connected."""


def _layers(tensors: dict[str, Any]) -> dict[str, Any]:
    """Descriptors by the names and the shapes of the file: O I H W, and O by all that is flattened."""
    found: dict[str, Any] = {}
    for name, weight in ((each.split(".")[0], array) for each, array in tensors.items() if each.endswith(".weight")):
        if name.startswith("conv"):
            outputs, inputs, height, width = weight.shape
            found[name] = mps.MPSCNNConvolutionDescriptor(width, height, inputs, outputs)
        elif name.startswith("prelu"):
            found[name] = WeightLayer.prelu(name, weight.size)
        else:
            side, inputs = DENSE_SIDES[name]
            descriptor = mps.MPSCNNConvolutionDescriptor(side, side, inputs, weight.shape[0])
            found[name] = WeightLayer.fully_connected(name, descriptor)
    return found


class _Builder:
    """Nodes over imported arrays."""

    def __init__(self, tensors: dict[str, Any], arrays: Any) -> None:
        self._tensors, self._arrays = tensors, arrays

    def layer(self, name: str, image: Any) -> Any:
        is_convolution = name.startswith("conv")
        weights, biases = (self._arrays[f"{name}.{part}"] for part in ("weights", "biases"))
        outputs, height, width, inputs = weights.shape
        descriptor = mps.MPSCNNConvolutionDescriptor(width, height, inputs, outputs)
        source = mps.ArrayConvolutionDataSource(descriptor, weights, biases, name)
        node = (mps.MPSCNNConvolutionNode if is_convolution else mps.MPSCNNFullyConnectedNode)(image, source)
        if is_convolution:
            node.padding_policy = VALID
        return node.result_image

    def network(self, name: str) -> mps.MPSNNGraph:
        names = sorted({each.split(".")[0] for each in self._tensors})
        image = mps.MPSNNImageNode(mps.Handle("image"))
        for each in (each for each in names if "_" not in each and not each.startswith("prelu")):
            image = self.layer(each, image)
            place = int(each[-1])
            neuron = mps.MPSCNNNeuronPReLUNode(image, self._arrays[f"prelu{place}.slopes"])
            neuron.label = f"prelu{place}"
            image = neuron.result_image
            if each.startswith("conv") and place <= len(FACES[name][0]):
                size, stride = FACES[name][0][place - 1]
                pooling = mps.MPSCNNPoolingMaxNode(image, size, stride)
                pooling.padding_policy = CEILED
                image = pooling.result_image
        heads = [self.layer(each, image) for each in names if "_" in each]
        heads[0] = mps.MPSCNNSoftMaxNode(heads[0]).result_image
        for head in heads:
            head.image_allocator = mps.MPSImage.default_allocator()
        graph = mps.MPSNNGraph(CPU, result_images=heads, results_are_needed=[True] * len(heads))
        graph.format = MPSImageFeatureChannelFormat.FLOAT32
        return graph


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", FACES)
def test_a_trained_network_out_of_its_state_dict(name: str, batch: int, rng: np.random.Generator) -> None:
    """Its fully connected layers take images that were flattened column by column."""
    path = faces_file(name)
    tensors = load_tensors(path)
    theirs = torch.load(path, weights_only=True)
    assert {each: array.tobytes() for each, array in tensors.items()} == {
        each: tensor.numpy().tobytes() for each, tensor in theirs.items()
    }
    layers = _layers(tensors)
    mapping = import_weights(tensors, layers, "pytorch", flatten="WHC")
    graph = _Builder(tensors, mapping.arrays).network(name)
    side = FACES[name][1]
    pixels = rng.normal(size=(batch, side, side, 3)).astype(np.float32)
    command_buffer = CPU.new_command_queue().command_buffer()
    others: list[Any] = []
    first: Any = graph.encode_batch(
        command_buffer, [mps.MPSImageBatch.from_numpy(CPU, pixels)], intermediate_images=others
    )
    command_buffer.commit()
    command_buffer.wait_until_completed()
    module = faces(name).double()
    with torch.no_grad():
        wanted = module(torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float64)))
    found = [first, *others]
    assert len(found) == len(wanted)
    for mine, other in zip(found, wanted, strict=True):
        array = other.numpy()
        expected = (array if array.ndim == 2 else array.transpose(0, 2, 3, 1)).reshape(batch, -1)
        error = np.abs(mine.numpy().reshape(batch, -1) - expected).max()
        assert error < 1e-5 * max(1.0, float(np.abs(expected).max()))
    back = export_weights(network_arrays(graph), layers, "pytorch", flatten="WHC").arrays
    assert {each: array.tobytes() for each, array in back.items()} == {
        each: array.tobytes() for each, array in tensors.items()
    }


def test_another_order_of_flattening_gives_other_numbers() -> None:
    tensors = load_tensors(faces_file("rnet"))
    arrays = [import_weights(tensors, _layers(tensors), "pytorch", flatten=order).arrays for order in ("WHC", "CHW")]
    assert not np.array_equal(arrays[0]["dense4.weights"], arrays[1]["dense4.weights"])
