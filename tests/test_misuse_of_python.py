"""What Python lets a program do with any object, and what its users spell as the framework does: named errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps.errors import MPSAttributeError, MPSTypeError

DEVICE = mps.mtl_device("cpu")


def source(kind: type = mps.ArrayConvolutionDataSource) -> Any:
    return kind(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4), np.eye(4, dtype=np.float32))


def image() -> mps.MPSImage:
    return mps.MPSImage.from_numpy(DEVICE, np.ones((2, 2, 4), np.float32))


def loss(source: Any) -> mps.MPSCNNLossNode:
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    return mps.MPSCNNLossNode(mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image, descriptor)


# --- copies and pickles -----------------------------------------------------------------------------------------------


def test_a_deep_copy_of_a_kernel_or_graph_is_its_copy() -> None:
    kernel = mps.MPSCNNConvolution(DEVICE, weights=source())
    graph = mps.MPSNNGraph(DEVICE, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source()).result_image)
    for original in (kernel, graph):
        twin = copy.deepcopy(original)
        assert type(twin) is type(original) and twin is not original and twin.device is DEVICE
    (copied,), (own,) = copy.deepcopy(graph).kernels.values(), graph.kernels.values()
    assert copied.parameters is not own.parameters


@pytest.mark.parametrize("kind", ["kernel", "graph", "state", "normalization"])
def test_what_holds_weights_is_not_pickled(kind: str) -> None:
    kernel = mps.MPSCNNConvolution(DEVICE, weights=source())
    thing = {
        "kernel": lambda: kernel,
        "graph": lambda: mps.MPSNNGraph(DEVICE, loss(source()).training_graph()[0].result_image),
        "state": lambda: kernel.result_state(image()),
        "normalization": lambda: mps.MPSCNNBatchNormalization(DEVICE, mps.ArrayBatchNormalizationDataSource(4)),
    }[kind]()
    with pytest.raises(MPSTypeError, match=r"pickle is not offered .* write an archive with MPSKeyedArchiver"):
        pickle.dumps(thing)


SINGLE: dict[str, tuple[Any, str]] = {
    "queue": (DEVICE.new_command_queue, r"^MTLCommandQueue: .* Make another with new_command_queue\(\) of the device$"),
    "command buffer": (
        lambda: DEVICE.new_command_queue().command_buffer(),
        r"^MTLCommandBuffer: .* Make another with command_buffer\(\) of a queue",
    ),
    "command buffer of the framework": (
        lambda: mps.MPSCommandBuffer(DEVICE.new_command_queue()),
        r"^MPSCommandBuffer: .* Make another with command_buffer\(\) of a queue",
    ),
    "heap": (
        lambda: DEVICE.new_heap(mps.MTLHeapDescriptor(64)),
        r"^MTLHeap: .* Make another with new_heap\(\) of the device",
    ),
    "blit encoder": (
        lambda: DEVICE.new_command_queue().command_buffer().blit_command_encoder(),
        r"^MTLBlitCommandEncoder: .* Make another with blit_command_encoder\(\)",
    ),
}


@in_one_test
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", SINGLE)
def test_what_there_is_one_of_is_not_copied(kind: str, way: Any) -> None:
    """A copy of a queue would lose its thread with the queue, that of a command buffer would run its work twice."""
    make, rule = SINGLE[kind]
    thing = make()
    with pytest.raises(MPSTypeError, match=rule):
        way(thing)


@in_one_test
@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", ["image", "state", "vector", "buffer of a heap"])
def test_what_belongs_to_one_of_them_is_not_copied_either(kind: str, way: Any) -> None:
    command_buffer = DEVICE.new_command_queue().command_buffer()
    thing = {
        "image": lambda: mps.MPSTemporaryImage(
            command_buffer, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32)
        ),
        "state": lambda: mps.MPSState.temporary_state(command_buffer, buffer_size=4),
        "vector": lambda: mps.MPSTemporaryVector(command_buffer, mps.MPSVectorDescriptor(3)),
        "buffer of a heap": lambda: DEVICE.new_heap(mps.MTLHeapDescriptor(64)).new_buffer(4),
    }[kind]()
    with pytest.raises(MPSTypeError, match=r"a copy or pickle is not offered\. Make another"):
        way(thing)


def test_a_copy_of_a_device_is_the_device() -> None:
    assert copy.copy(DEVICE) is copy.deepcopy(DEVICE) is pickle.loads(pickle.dumps(DEVICE)) is DEVICE


# --- classes and functions of one's own -------------------------------------------------------------------------------


class Unfinished(mps.MPSCNNNeuronReLUNode):
    def __init__(self, source: Any) -> None:
        self.rate = 2


def test_a_node_whose_constructor_calls_no_other() -> None:
    with pytest.raises(MPSAttributeError, match=r"^Unfinished: result_image is not set\. .*super\(\).__init__"):
        mps.MPSNNGraph(DEVICE, Unfinished(mps.MPSNNImageNode()).result_image)


class Wrong(mps.ArrayConvolutionDataSource):
    def update(self, command_buffer: Any) -> None:  # type: ignore[override]
        return None


def test_an_update_that_does_not_take_what_it_is_given() -> None:
    rule = r"^Wrong: update\(\) must take \(command_buffer, gradient_state, source_state\), got update\(command_buffer"
    with pytest.raises(MPSTypeError, match=rule):
        mps.MPSNNGraph(DEVICE, loss(source(Wrong)).training_graph()[0].result_image, False)


def test_handlers_that_do_not_take_what_they_are_given() -> None:
    with pytest.raises(MPSTypeError, match=r"node_handler must take \(gradient_node, forward_node, source_image, sou"):
        loss(source()).training_graph(None, lambda node: None)  # type: ignore[arg-type,misc]
    graph = mps.MPSNNGraph(DEVICE, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source()).result_image)
    with pytest.raises(MPSTypeError, match=r"completion_handler must take \(image, error\), got <lambda>"):
        graph.execute_async([image()], lambda result: None)  # type: ignore[arg-type,misc]


# --- the framework's spelling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enumeration", "name", "member"),
    [
        (mps.MPSCNNNeuronType, "reLU", "RELU"),
        (mps.MPSCNNNeuronType, "MPSCNNNeuronTypeReLU", "RELU"),
        (mps.MPSCNNNeuronType, "reLUN", "RELU_N"),
        (mps.MPSImageFeatureChannelFormat, "float16", "FLOAT16"),
        (mps.MPSNNPaddingMethod, "sizeSame", "SIZE_SAME"),
        (mps.MPSCNNLossType, "softMaxCrossEntropy", "SOFT_MAX_CROSS_ENTROPY"),
    ],
)
def test_members_of_enumerations(enumeration: Any, name: str, member: str) -> None:
    rule = rf"^{enumeration.__name__}: {name} is no member of this enumeration\. Use {member}$"
    with pytest.raises(MPSAttributeError, match=rule):
        getattr(enumeration, name)
    assert not hasattr(enumeration, "something")
    assert enumeration[member].name == member and pickle.loads(pickle.dumps(enumeration[member])) is enumeration[member]


@pytest.mark.parametrize(("name", "own"), [("encodeBatch", "encode_batch"), ("resultHandle", "result_handle")])
def test_members_of_graphs(name: str, own: str) -> None:
    graph = mps.MPSNNGraph(DEVICE, mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source()).result_image)
    with pytest.raises(MPSAttributeError, match=rf"^MPSNNGraph: {name} is no attribute of this class\. Use {own}$"):
        getattr(graph, name)
