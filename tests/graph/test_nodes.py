"""Nodes: their defaults, what they refuse, and the kernels that a graph makes of them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import openmps
from in_one_test import in_one_test
from networks import Weights
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.neuron import DEFAULT_PARAMETERS, MPSNNNeuronDescriptor
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSError, MPSTypeError
from openmps.formats.archive.archiver import MPSKeyedArchiver
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes import neuron as neuron_nodes
from openmps.graph.nodes.arithmetic import (
    MPSNNAdditionGradientNode,
    MPSNNAdditionNode,
    MPSNNBinaryArithmeticNode,
)
from openmps.graph.nodes.catalog import make_kernel, rows
from openmps.graph.nodes.concatenation import MPSNNConcatenationGradientNode, MPSNNConcatenationNode
from openmps.graph.nodes.convolution import (
    MPSCNNConvolutionGradientNode,
    MPSCNNConvolutionNode,
    MPSCNNFullyConnectedGradientNode,
    MPSCNNFullyConnectedNode,
)
from openmps.graph.nodes.dropout import MPSCNNDropoutGradientNode, MPSCNNDropoutNode
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.neuron import MPSCNNNeuronGradientNode, MPSCNNNeuronNode, MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import (
    Handle,
    MPSCNNConvolutionGradientStateNode,
    MPSHandle,
    MPSNNArithmeticGradientStateNode,
    MPSNNFilterNode,
    MPSNNGradientStateNode,
    MPSNNImageNode,
    MPSNNLabelsNode,
    MPSNNMultiaryGradientStateNode,
    MPSNNStateNode,
)
from openmps.graph.nodes.pooling import (
    MPSCNNPoolingAverageGradientNode,
    MPSCNNPoolingAverageNode,
    MPSCNNPoolingMaxGradientNode,
    MPSCNNPoolingMaxNode,
    MPSCNNPoolingNode,
)
from openmps.graph.nodes.softmax import (
    MPSCNNLogSoftMaxGradientNode,
    MPSCNNLogSoftMaxNode,
    MPSCNNSoftMaxGradientNode,
    MPSCNNSoftMaxNode,
)
from openmps.kernels.loss import MPSCNNLossDescriptor
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNLossType,
    MPSCNNNeuronType,
    MPSImageEdgeMode,
    MPSImageFeatureChannelFormat,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSNNTrainingStyle,
    MTLSize,
)

Format = MPSImageFeatureChannelFormat
RNG = np.random.default_rng(0)
LOSS = MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR)


def _weights(**options: Any) -> Weights:
    return Weights.of(RNG, (2, 3, 3, 1), **options)


MAKE: dict[str, Any] = {
    "convolution": lambda x: MPSCNNConvolutionNode(x, _weights()),
    "fully connected": lambda x: MPSCNNFullyConnectedNode(x, _weights()),
    "relu": MPSCNNNeuronReLUNode,
    "max": lambda x: MPSCNNPoolingMaxNode(x, 2),
    "average": lambda x: MPSCNNPoolingAverageNode(x, 2),
    "softmax": MPSCNNSoftMaxNode,
    "log softmax": MPSCNNLogSoftMaxNode,
    "dropout": MPSCNNDropoutNode,
    "addition": lambda x: MPSNNAdditionNode(x, x),
    "concatenation": lambda x: MPSNNConcatenationNode([x, x]),
}
GRADIENT_CLASSES = {
    "convolution": (MPSCNNConvolutionGradientNode, MPSCNNConvolutionGradientStateNode),
    "fully connected": (MPSCNNFullyConnectedGradientNode, MPSCNNConvolutionGradientStateNode),
    "relu": (MPSCNNNeuronGradientNode, MPSNNGradientStateNode),
    "max": (MPSCNNPoolingMaxGradientNode, MPSNNGradientStateNode),
    "average": (MPSCNNPoolingAverageGradientNode, MPSNNGradientStateNode),
    "softmax": (MPSCNNSoftMaxGradientNode, MPSNNGradientStateNode),
    "log softmax": (MPSCNNLogSoftMaxGradientNode, MPSNNGradientStateNode),
    "dropout": (MPSCNNDropoutGradientNode, MPSNNGradientStateNode),
    "addition": (MPSNNAdditionGradientNode, MPSNNArithmeticGradientStateNode),
    "concatenation": (MPSNNConcatenationGradientNode, MPSNNMultiaryGradientStateNode),
}


# --- images and states ------------------------------------------------------------------------------------------------


def test_defaults_of_an_image_node() -> None:
    node = MPSNNImageNode()
    assert node.handle is None and node.producer is None
    assert node.format is Format.NONE
    assert node.image_allocator is MPSTemporaryImage.default_allocator()
    assert (node.export_from_graph, node.synchronize_resource, node.stop_gradient) == (False, False, False)


def test_exported_node_keeps_the_temporary_allocator() -> None:
    handle = Handle("seen")
    node = MPSNNImageNode.exported_node(handle)
    assert node.export_from_graph and node.handle is handle
    assert node.image_allocator is MPSTemporaryImage.default_allocator()


def test_handles_are_any_objects_with_a_label() -> None:
    class Named:
        def label(self) -> str | None:
            return None

    handle = Named()
    assert isinstance(handle, MPSHandle) and isinstance(Handle("a"), MPSHandle)
    assert MPSNNImageNode(handle).handle is handle
    rule = r"^MPSNNImageNode: handle must have a label\(\), or be an MPSImage, got str\. Pass Handle"
    with pytest.raises(MPSTypeError, match=rule):
        MPSNNImageNode("input")


def test_an_image_is_a_handle() -> None:
    """It names the source, and the filters behind it, by its own label."""
    device = mtl_device("cpu")
    image = MPSImage(device, MPSImageDescriptor(Format.FLOAT32, 2, 2, 1))
    node = MPSNNImageNode(image)
    assert node.handle is image and repr(node) == "<MPSNNImageNode (input)>"
    graph = MPSNNGraph(device, MPSCNNNeuronReLUNode(node, 0.0).result_image)
    image.label = "picture"
    assert repr(node) == "<MPSNNImageNode 'picture' (input)>" and "'picture'" in graph.debug_description
    (handle,) = graph.source_image_handles
    assert handle is image
    with pytest.raises(MPSTypeError, match=r"^MPSKeyedArchiver: MPSImage cannot be archived"):
        MPSKeyedArchiver.archived_data(graph)


@pytest.mark.parametrize(
    ("name", "value"),
    [("format", 9), ("format", "FLOAT16"), ("format", Format.RESERVED0), ("image_allocator", None), ("handle", 1)],
)
def test_image_nodes_refuse_what_makes_no_sense(name: str, value: object) -> None:
    with pytest.raises(MPSError, match=rf"^MPSNNImageNode: {name} must"):
        setattr(MPSNNImageNode(), name, value)


def test_state_nodes_come_from_filters() -> None:
    with pytest.raises(MPSTypeError, match="MPSNNStateNode"):
        MPSNNStateNode()
    node = MPSCNNNeuronReLUNode(MPSNNImageNode())
    state = node.result_state
    assert state is not None and state.producer is node and state.handle is None
    assert (state.export_from_graph, state.synchronize_resource) == (False, False)


# --- filters ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("kind", MAKE)
def test_every_filter(kind: str) -> None:
    source = MPSNNImageNode()
    source.format = Format.UNORM8
    node = MAKE[kind](source)
    source.format = Format.FLOAT32
    assert node.sources[0] is source
    assert node.result_image.producer is node
    assert node.result_image.format is Format.UNORM8, "copied when the node is made, not later"
    assert node.label is None
    state_class = GRADIENT_CLASSES[kind][1]
    assert [type(state) for state in node.result_states] == [state_class]
    assert node.result_state is node.result_states[0]
    expected = MPSNNPaddingMethod.SIZE_VALID_ONLY if kind == "fully connected" else MPSNNPaddingMethod.SIZE_SAME
    assert node.padding_policy.padding_method() == expected
    assert node.name in repr(node)


@in_one_test
@pytest.mark.parametrize("kind", MAKE)
def test_every_gradient_filter(kind: str) -> None:
    source, gradient = MPSNNImageNode(), MPSNNImageNode()
    gradient.format = Format.FLOAT32
    node = MAKE[kind](source)
    made = node.gradient_filters(gradient)
    assert len(made) == len(node.sources)
    for each in made:
        assert type(each) is GRADIENT_CLASSES[kind][0]
        assert each.sources == (gradient, source)
        assert each.source_states == (node.result_state,)
        assert each.forward is node
        assert each.result_image.format is Format.FLOAT32, "that of the gradient, its first source"
        assert each.result_states is None and each.result_state is None
        for refused in (each.gradient_filter, each.gradient_filters):
            with pytest.raises(MPSTypeError, match="there are no second derivatives"):
                refused(gradient)
    assert [type(each) for each in node.gradient_filters(sources=[gradient])] == [type(each) for each in made]
    if len(made) == 1:
        assert type(node.gradient_filter(gradient)) is type(made[0])
    else:
        with pytest.raises(MPSTypeError, match="would make 2 nodes. Call gradient_filters"):
            node.gradient_filter(gradient)


@pytest.mark.parametrize("given", [(), (None, []), (MPSNNImageNode(), [MPSNNImageNode()]), ("gradient",)])
def test_a_gradient_is_one_image_node(given: tuple[Any, ...]) -> None:
    with pytest.raises(MPSTypeError, match="source must be one MPSNNImageNode"):
        MPSCNNNeuronReLUNode(MPSNNImageNode()).gradient_filter(*given)


@in_one_test
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("source", [None, "image", 3])
def test_sources_are_image_nodes(kind: str, source: object) -> None:
    with pytest.raises(MPSError, match="source"):
        MAKE[kind](source)


def test_a_filter_is_not_a_source() -> None:
    node = MPSCNNNeuronReLUNode(MPSNNImageNode())
    with pytest.raises(MPSTypeError, match="got MPSCNNNeuronReLUNode. Pass the result_image of the filter before"):
        MPSCNNSoftMaxNode(node)


def test_padding_policies_are_checked() -> None:
    node = MPSCNNNeuronReLUNode(MPSNNImageNode())
    node.label = "mine"
    with pytest.raises(MPSTypeError, match=r"^MPSCNNNeuronReLUNode 'mine': padding_policy must have a padding_method"):
        node.padding_policy = 16


def test_every_node_class_has_a_kernel_or_is_a_base() -> None:
    classes = {kind for _, kind in inspect.getmembers(openmps, inspect.isclass) if issubclass(kind, MPSNNFilterNode)}
    listed = {row.node for row in rows()}
    bases = {kind for kind in classes if not any(base in listed for base in kind.__mro__)}
    assert {kind.__name__ for kind in bases} == {
        "MPSNNFilterNode",
        "MPSNNGradientFilterNode",
        "MPSCNNPoolingNode",
        "MPSCNNPoolingGradientNode",
        "MPSCNNNormalizationNode",
        "MPSNNBinaryArithmeticNode",
        "MPSNNArithmeticGradientNode",
        "MPSNNUnaryReductionNode",
        "MPSNNScaleNode",
    }


@pytest.mark.parametrize("make", [lambda x: MPSCNNPoolingNode(x, 2), lambda x: MPSNNBinaryArithmeticNode(x, x)])
def test_base_classes_have_no_kernel_and_no_gradient(make: Any) -> None:
    node = make(MPSNNImageNode())
    with pytest.raises(MPSTypeError, match="must be of a class that has a kernel"):
        MPSNNGraph(mtl_device("cpu"), node.result_image)
    with pytest.raises(MPSTypeError, match="is not offered: this filter has no gradient"):
        node.gradient_filters(MPSNNImageNode())


# --- by kind ----------------------------------------------------------------------------------------------------------


def test_convolution_nodes() -> None:
    weights = _weights(label="conv")
    node = MPSCNNConvolutionNode(MPSNNImageNode(), weights)
    assert node.weights is weights and node.label == "conv"
    assert node.training_style is MPSNNTrainingStyle.UPDATE_DEVICE_GPU
    assert node.accumulator_precision is MPSNNConvolutionAccumulatorPrecisionOption.FLOAT
    assert node.convolution_gradient_state is node.result_state
    node.training_style = MPSNNTrainingStyle.UPDATE_DEVICE_CPU
    gradient = node.gradient_filter(MPSNNImageNode())
    assert isinstance(gradient, MPSCNNConvolutionGradientNode)
    assert gradient.training_style is MPSNNTrainingStyle.UPDATE_DEVICE_CPU, "the forward node's"
    assert gradient.weights is weights and gradient.label == "conv"
    with pytest.raises(MPSArgumentError, match="training_style must be UPDATE_DEVICE_NONE"):
        node.training_style = 7
    with pytest.raises(MPSArgumentError, match="accumulator_precision"):
        node.accumulator_precision = 7


def test_a_gradient_node_takes_the_forward_data_source_for_none() -> None:
    image, gradient = MPSNNImageNode(), MPSNNImageNode()
    node = MPSCNNConvolutionNode(image, _weights())
    made = MPSCNNConvolutionGradientNode(gradient, image, node.convolution_gradient_state)
    assert made.weights is node.weights


def test_convolution_gradients_need_the_state_of_a_convolution() -> None:
    image = MPSNNImageNode()
    relu = MPSCNNNeuronReLUNode(image)
    with pytest.raises(MPSTypeError, match="gradient_state must be the result_state of an MPSCNNConvolutionNode"):
        MPSCNNConvolutionGradientNode(image, image, relu.result_state)
    with pytest.raises(MPSTypeError, match="gradient_state must be the result_state of an MPSCNNPoolingMaxNode"):
        MPSCNNPoolingMaxGradientNode(image, image, None, 2, 2, 2, 2)


def test_data_sources_are_checked_when_the_node_is_made() -> None:
    with pytest.raises(MPSTypeError, match="must be a data source with the methods"):
        MPSCNNConvolutionNode(MPSNNImageNode(), object())


def test_a_fused_neuron_cannot_be_trained() -> None:
    weights = _weights(label="conv")
    weights.made.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU)
    node = MPSCNNConvolutionNode(MPSNNImageNode(), weights)
    with pytest.raises(MPSArgumentError, match="'conv'.*fused_neuron_descriptor must be None.*Add a neuron node"):
        node.gradient_filter(MPSNNImageNode())
    weights.made.fused_neuron_descriptor = None
    weights.made.set_batch_normalization_parameters_for_inference(None, [2.0, 3.0])
    with pytest.raises(MPSArgumentError, match="must not fold batch normalization"):
        node.gradient_filter(MPSNNImageNode())


@pytest.mark.parametrize("kind", [MPSCNNPoolingMaxNode, MPSCNNPoolingAverageNode])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"filter_size": 3}, (3, 3, 3, 3)),
        ({"filter_size": 3, "stride": 2}, (3, 3, 2, 2)),
        ({"kernel_width": 2, "kernel_height": 3, "stride_in_pixels_x": 4, "stride_in_pixels_y": 5}, (2, 3, 4, 5)),
    ],
)
def test_pooling_nodes(kind: Any, arguments: dict[str, int], expected: tuple[int, ...]) -> None:
    node = kind(MPSNNImageNode(), **arguments)
    node.padding_policy = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
    gradient = node.gradient_filter(MPSNNImageNode())
    for each in (node, gradient):
        found = (each.kernel_width, each.kernel_height, each.stride_in_pixels_x, each.stride_in_pixels_y)
        assert found == expected
        assert each.padding_policy is node.padding_policy
        kernel: Any = make_kernel(each, mtl_device("cpu"))
        assert kernel.padding is node.padding_policy
    assert kernel is not None and make_kernel(node, mtl_device("cpu")).edge_mode is MPSImageEdgeMode.CLAMP


@pytest.mark.parametrize("arguments", [{}, {"kernel_width": 2}, {"filter_size": 0}, {"filter_size": 2, "stride": 1.5}])
def test_pooling_windows_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(MPSError, match=r"^MPSCNNPoolingMaxNode: (filter_size is needed|window and stride must)"):
        MPSCNNPoolingMaxNode(MPSNNImageNode(), **arguments)


NEURONS = {name: kind for name, kind in vars(neuron_nodes).items() if name.startswith("MPSCNNNeuron")}


@in_one_test
@pytest.mark.parametrize("kind", sorted(set(DEFAULT_PARAMETERS) - {MPSCNNNeuronType.NONE, MPSCNNNeuronType.PRELU}))
def test_neuron_nodes_have_the_descriptors_defaults(kind: MPSCNNNeuronType) -> None:
    names = [name for name, each in NEURONS.items() if each is neuron_nodes.CLASSES[kind]]
    assert len(names) == 1
    node = NEURONS[names[0]](MPSNNImageNode())
    assert node.descriptor.neuron_type is kind
    assert (node.a, node.b, node.c) == DEFAULT_PARAMETERS[kind]
    gradient = node.gradient_filter(MPSNNImageNode())
    assert gradient.descriptor == node.descriptor


@in_one_test
@pytest.mark.parametrize("kind", neuron_nodes.CLASSES)
def test_a_descriptor_picks_the_neuron_class(kind: MPSCNNNeuronType) -> None:
    data = [0.1, 0.2] if kind is MPSCNNNeuronType.PRELU else None
    descriptor = MPSNNNeuronDescriptor(kind, 0.25, 0.5, 2.0, data=data)
    node = MPSCNNNeuronNode(MPSNNImageNode(), descriptor)
    assert type(node) is neuron_nodes.CLASSES[kind]
    assert node.descriptor == descriptor and node.descriptor is not descriptor


def test_neurons_take_their_parameters() -> None:
    assert neuron_nodes.MPSCNNNeuronReLUNNode(MPSNNImageNode(), 0.0, 3.0).descriptor.b == 3.0
    assert neuron_nodes.MPSCNNNeuronPowerNode(MPSNNImageNode(), 1.0, 2.0, 3.0).c == 3.0
    prelu = neuron_nodes.MPSCNNNeuronPReLUNode(MPSNNImageNode(), a_data=[0.5, 0.25])
    assert prelu.descriptor.data is not None and prelu.descriptor.data.tolist() == [0.5, 0.25]
    with pytest.raises(MPSTypeError, match="descriptor must be an MPSNNNeuronDescriptor, got str"):
        MPSCNNNeuronNode(MPSNNImageNode(), "relu")


def test_dropout_nodes() -> None:
    node = MPSCNNDropoutNode(MPSNNImageNode())
    assert (node.keep_probability, node.seed, node.mask_stride_in_pixels) == (0.5, 0, MTLSize(1, 1, 1))
    node = MPSCNNDropoutNode(MPSNNImageNode(), 0.75, 3, MTLSize(0, 1, 1))
    gradient: Any = node.gradient_filter(MPSNNImageNode())
    for each in (node, gradient):
        assert (each.keep_probability, each.seed, each.mask_stride_in_pixels) == (0.75, 3, MTLSize(0, 1, 1))


def test_loss_nodes() -> None:
    descriptor = MPSCNNLossDescriptor(MPSCNNLossType.HUBER)
    node = MPSCNNLossNode(MPSNNImageNode(), descriptor)
    descriptor.weight = 7.0
    assert node.loss_descriptor.weight == 1.0 and node.loss_descriptor.loss_type is MPSCNNLossType.HUBER
    assert isinstance(node.input_labels, MPSNNLabelsNode) and node.source_states == (node.input_labels,)
    assert node.input_labels.producer is None and node.result_states is None
    with pytest.raises(MPSTypeError, match="the result image of a loss is its gradient"):
        node.gradient_filter(MPSNNImageNode())
    with pytest.raises(MPSTypeError, match="loss_descriptor must be an MPSCNNLossDescriptor, got str"):
        MPSCNNLossNode(MPSNNImageNode(), "huber")


def test_arithmetic_nodes() -> None:
    left, right = MPSNNImageNode(), MPSNNImageNode()
    for node in (MPSNNAdditionNode(left, right), MPSNNAdditionNode(sources=[left, right])):
        assert node.sources == (left, right)
        assert (node.primary_scale, node.secondary_scale, node.bias) == (1.0, 1.0, 0.0)
        assert node.gradient_class() is MPSNNAdditionGradientNode
    node = MPSNNAdditionNode(left, right)
    node.primary_scale, node.secondary_scale, node.secondary_stride_in_pixels_x = 2.0, 3.0, 0
    gradients: Any = node.gradient_filters(MPSNNImageNode())
    assert [each.is_secondary_source_filter for each in gradients] == [False, True]
    assert [each.sources[1] for each in gradients] == [left, right]
    assert [each.primary_scale for each in gradients] == [2.0, 2.0]
    assert [each.secondary_stride_in_pixels_x for each in gradients] == [1, 0]
    kernel: Any = make_kernel(node, mtl_device("cpu"))
    assert (kernel.primary_scale, kernel.secondary_scale, kernel.secondary_stride_in_pixels_x) == (2.0, 3.0, 0)


@pytest.mark.parametrize("sources", [[], [MPSNNImageNode()], [MPSNNImageNode()] * 3])
def test_arithmetic_takes_two(sources: list[MPSNNImageNode]) -> None:
    with pytest.raises(MPSArgumentError, match="sources must be two image nodes"):
        MPSNNAdditionNode(sources=sources)


def test_arithmetic_gradients_from_their_parts() -> None:
    left, right, gradient = MPSNNImageNode(), MPSNNImageNode(), MPSNNImageNode()
    node = MPSNNAdditionNode(left, right)
    made = MPSNNAdditionGradientNode(
        source_gradient=gradient, source_image=right, gradient_state=node.result_state, is_secondary_source_filter=True
    )
    assert made.sources == (gradient, right) and made.forward is node
    for arguments in ({}, {"source_gradient": gradient}, {"gradient_images": [gradient] * 3, "forward_filter": node}):
        with pytest.raises(MPSTypeError, match="arguments must be source_gradient, source_image and gradient_state"):
            MPSNNAdditionGradientNode(**arguments)


def test_concatenation_nodes() -> None:
    x, y, gradient = MPSNNImageNode(), MPSNNImageNode(), MPSNNImageNode()
    node = MPSNNConcatenationNode([x, y, x])
    made: Any = node.gradient_filters(gradient)
    assert [each.index for each in made] == [0, 1, 2] and [each.sources[1] for each in made] == [x, y, x]
    assert MPSNNConcatenationGradientNode(gradient, y, made[0].source_states[0]).index == 1
    with pytest.raises(MPSTypeError, match="source_image must be a source of the forward node"):
        MPSNNConcatenationGradientNode(gradient, gradient, made[0].source_states[0])
    with pytest.raises(MPSArgumentError, match="sources must be at least one image node"):
        MPSNNConcatenationNode([])


def test_kernels_take_label_policy_and_allocator() -> None:
    node = MPSCNNConvolutionNode(MPSNNImageNode(), _weights(label="of the source"))
    node.padding_policy = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL)
    node.result_image.image_allocator = MPSImage.default_allocator()
    node.accumulator_precision = MPSNNConvolutionAccumulatorPrecisionOption.HALF
    kernel: Any = make_kernel(node, mtl_device("cpu"))
    assert kernel.label == "of the source"
    assert kernel.padding is node.padding_policy
    assert kernel.destination_image_allocator is MPSImage.default_allocator()
    assert kernel.accumulator_precision_option is MPSNNConvolutionAccumulatorPrecisionOption.HALF
    node.label = "mine"
    assert make_kernel(node, mtl_device("cpu")).label == "mine"
