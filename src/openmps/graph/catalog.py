"""One row for each node class: how its kernel is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openmps.core.kernel.encode import ImageKernel
from openmps.errors import MPSTypeError
from openmps.graph.arithmetic_nodes import MPSNNAdditionGradientNode, MPSNNAdditionNode
from openmps.graph.concatenation_nodes import MPSNNConcatenationGradientNode, MPSNNConcatenationNode
from openmps.graph.convolution_nodes import (
    MPSCNNConvolutionGradientNode,
    MPSCNNConvolutionNode,
    MPSCNNFullyConnectedGradientNode,
    MPSCNNFullyConnectedNode,
)
from openmps.graph.dropout_nodes import MPSCNNDropoutGradientNode, MPSCNNDropoutNode
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.neuron_nodes import MPSCNNNeuronGradientNode, MPSCNNNeuronNode
from openmps.graph.nodes import MPSNNFilterNode
from openmps.graph.pooling_nodes import (
    MPSCNNPoolingAverageGradientNode,
    MPSCNNPoolingAverageNode,
    MPSCNNPoolingMaxGradientNode,
    MPSCNNPoolingMaxNode,
)
from openmps.graph.softmax_nodes import (
    MPSCNNLogSoftMaxGradientNode,
    MPSCNNLogSoftMaxNode,
    MPSCNNSoftMaxGradientNode,
    MPSCNNSoftMaxNode,
)
from openmps.kernels import arithmetic, concatenation, convolution, dropout, loss, neuron, pooling, softmax
from openmps.metal.device import MTLDevice
from openmps.types import MPSImageEdgeMode

MakeKernel = Callable[[Any, "MTLDevice"], ImageKernel]


def _convolution(make: Callable[..., convolution.MPSCNNConvolution]) -> MakeKernel:
    def kernel(node: MPSCNNConvolutionNode, device: MTLDevice) -> ImageKernel:
        made = make(device, weights=node.weights)
        made.accumulator_precision_option = node.accumulator_precision
        return made

    return kernel


def _convolution_gradient(make: Callable[..., ImageKernel]) -> MakeKernel:
    return lambda node, device: make(device, node.weights)


def _pooling(make: Callable[..., ImageKernel]) -> MakeKernel:
    def kernel(node: Any, device: MTLDevice) -> ImageKernel:
        made = make(device, node.kernel_width, node.kernel_height, node.stride_in_pixels_x, node.stride_in_pixels_y)
        if isinstance(made, pooling.MPSCNNPooling):
            # Nodes clamp where kernels default to zeros (MPSNNGraphNodes.h).
            made.edge_mode = MPSImageEdgeMode.CLAMP
        return made

    return kernel


def _dropout(make: Callable[..., ImageKernel]) -> MakeKernel:
    return lambda node, device: make(device, node.keep_probability, node.seed, node.mask_stride_in_pixels)


_ARITHMETIC = (
    "primary_scale",
    "secondary_scale",
    "bias",
    "minimum_value",
    "maximum_value",
    "primary_stride_in_pixels_x",
    "primary_stride_in_pixels_y",
    "primary_stride_in_feature_channels",
    "secondary_stride_in_pixels_x",
    "secondary_stride_in_pixels_y",
    "secondary_stride_in_feature_channels",
)


def _arithmetic(make: Callable[[MTLDevice], ImageKernel]) -> MakeKernel:
    def kernel(node: Any, device: MTLDevice) -> ImageKernel:
        made = make(device)
        for name in _ARITHMETIC:
            setattr(made, name, getattr(node, name))
        return made

    return kernel


KERNELS: dict[type[MPSNNFilterNode], MakeKernel] = {
    MPSCNNConvolutionNode: _convolution(convolution.MPSCNNConvolution),
    MPSCNNConvolutionGradientNode: _convolution_gradient(convolution.MPSCNNConvolutionGradient),
    MPSCNNFullyConnectedNode: _convolution(convolution.MPSCNNFullyConnected),
    MPSCNNFullyConnectedGradientNode: _convolution_gradient(convolution.MPSCNNFullyConnectedGradient),
    MPSCNNNeuronNode: lambda node, device: neuron.MPSCNNNeuron(device, node.descriptor),
    MPSCNNNeuronGradientNode: lambda node, device: neuron.MPSCNNNeuronGradient(device, node.descriptor),
    MPSCNNPoolingMaxNode: _pooling(pooling.MPSCNNPoolingMax),
    MPSCNNPoolingMaxGradientNode: _pooling(pooling.MPSCNNPoolingMaxGradient),
    MPSCNNPoolingAverageNode: _pooling(pooling.MPSCNNPoolingAverage),
    MPSCNNPoolingAverageGradientNode: _pooling(pooling.MPSCNNPoolingAverageGradient),
    MPSCNNSoftMaxNode: lambda node, device: softmax.MPSCNNSoftMax(device),
    MPSCNNSoftMaxGradientNode: lambda node, device: softmax.MPSCNNSoftMaxGradient(device),
    MPSCNNLogSoftMaxNode: lambda node, device: softmax.MPSCNNLogSoftMax(device),
    MPSCNNLogSoftMaxGradientNode: lambda node, device: softmax.MPSCNNLogSoftMaxGradient(device),
    MPSCNNDropoutNode: _dropout(dropout.MPSCNNDropout),
    MPSCNNDropoutGradientNode: _dropout(dropout.MPSCNNDropoutGradient),
    MPSCNNLossNode: lambda node, device: loss.MPSCNNLoss(device, node.loss_descriptor),
    MPSNNAdditionNode: _arithmetic(arithmetic.MPSCNNAdd),
    MPSNNAdditionGradientNode: lambda node, device: arithmetic.MPSCNNAddGradient(
        device, node.is_secondary_source_filter
    ),
    MPSNNConcatenationNode: lambda node, device: concatenation.Concatenation(device, len(node.sources)),
    MPSNNConcatenationGradientNode: lambda node, device: concatenation.ConcatenationGradient(device, node.index),
}
"""A node's kernel is made by the row of its class, or of the nearest class that it inherits from."""

READS_FORWARD_RESULT = (MPSCNNSoftMaxGradientNode, MPSCNNLogSoftMaxGradientNode)
"""Gradient nodes whose kernel takes the forward result in the place of the forward source."""


def make_kernel(node: MPSNNFilterNode, device: MTLDevice) -> ImageKernel:
    """The kernel of a node on a device, with the node's padding policy, allocator and label."""
    for base in type(node).__mro__:
        make = KERNELS.get(base)
        if make is not None:
            kernel = make(node, device)
            kernel.padding = node.padding_policy
            kernel.destination_image_allocator = node.result_image.image_allocator
            kernel.label = node.label or kernel.label
            return kernel
    remedy = "Use a subclass of it, MPSCNNPoolingMaxNode instead of MPSCNNPoolingNode for example"
    raise MPSTypeError("MPSNNGraph", "node", "must be of a class that has a kernel", repr(node), remedy)
