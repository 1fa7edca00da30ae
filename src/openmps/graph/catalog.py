"""The table of nodes: for each class its kernel, its state, its gradient, and who updates its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openmps.core.kernel.encode import ImageKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSTypeError
from openmps.graph import arithmetic_nodes as arithmetic
from openmps.graph import concatenation_nodes as concatenation
from openmps.graph import convolution_nodes as convolution
from openmps.graph import dropout_nodes as dropout
from openmps.graph import loss_nodes as loss
from openmps.graph import neuron_nodes as neuron
from openmps.graph import nodes
from openmps.graph import normalization_nodes as normalization
from openmps.graph import pooling_nodes as pooling
from openmps.graph import softmax_nodes as softmax
from openmps.graph.nodes import MPSNNFilterNode, describe, row_of
from openmps.graph.rows import GradientRow, KernelRow, Reads, Row, Use
from openmps.graph.training import BATCH_STATISTICS, STATES_OF_IMAGES, WEIGHTS
from openmps.kernels import arithmetic as arithmetic_kernels
from openmps.kernels import concatenation as concatenation_kernels
from openmps.kernels import convolution as convolution_kernels
from openmps.kernels import dropout as dropout_kernels
from openmps.kernels import group_normalization as group_normalization_kernels
from openmps.kernels import loss as loss_kernels
from openmps.kernels import neuron as neuron_kernels
from openmps.kernels import pooling as pooling_kernels
from openmps.kernels import softmax as softmax_kernels
from openmps.kernels.batch_normalization import whole_batch as batch_normalization_kernels
from openmps.kernels.convolution import binary as binary_kernels
from openmps.metal.device import MTLDevice
from openmps.types import (
    MPSCNNBatchNormalizationFlags,
    MPSCNNConvolutionGradientOption,
    MPSImageEdgeMode,
    MPSNNPaddingMethod,
)

# --- kernels that need more than the node's attributes ----------------------------------------------------------------


def _weighted(make: Any) -> Any:
    def kernel(device: MTLDevice, weights: Any, precision: Any) -> Any:
        made = make(device, weights=weights)
        made.accumulator_precision_option = precision
        return made

    return kernel


def _binary(make: Any) -> Any:
    def kernel(device: MTLDevice, weights: Any, type: Any, flags: Any, scale_value: Any, *terms: Any) -> Any:
        return make(device, weights, *terms, type=type, flags=flags, scale_value=scale_value)

    return kernel


def _concatenation(device: MTLDevice, sources: Any) -> Any:
    return concatenation_kernels.Concatenation(device, len(sources))


def _parameter_gradients(kernel: Any, use: Use) -> None:
    """Only what somebody looks at is computed."""
    option = MPSCNNConvolutionGradientOption(0)
    if use.has_reader:
        option |= MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA
    if use.wants_parameter_gradients:
        option |= MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    kernel.gradient_option = option


def _batch_normalization(device: MTLDevice, data_source: Any, flags: MPSCNNBatchNormalizationFlags) -> Any:
    made = batch_normalization_kernels.WholeBatchNormalization(device, data_source)
    made.uses_batch = _FLAGS.get(flags)
    return made


_FLAGS = {
    MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS: True,
    MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER: False,
}


def _statistics(kernel: batch_normalization_kernels.WholeBatchNormalization, use: Use) -> None:
    """In training, where a gradient node takes the state, the statistics are the batch's unless flags say otherwise."""
    if kernel.uses_batch is None:
        kernel.uses_batch = use.is_consumed


# --- what many rows say -----------------------------------------------------------------------------------------------

_VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
_WINDOW = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
_DILATED = ("kernel_width", "kernel_height", "dilation_rate_x", "dilation_rate_y", *_WINDOW[2:])
_DILATION = ("dilation_rate_x", "dilation_rate_y")
_DROPOUT = ("keep_probability", "seed", "mask_stride_in_pixels")
_TERMS = ("output_bias_terms", "output_scale_terms", "input_bias_terms", "input_scale_terms")
_BINARY = ("weights", "type", "flags", "scale_value", *_TERMS)
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
_CLAMP = {"edge_mode": MPSImageEdgeMode.CLAMP}
"""Pooling nodes clamp where kernels default to zeros (MPSNNGraphNodes.h)."""
_OF_ONE = nodes.MPSNNGradientStateNode
_OF_TWO = nodes.MPSNNArithmeticGradientStateNode
_OF_WEIGHTS = nodes.MPSCNNConvolutionGradientStateNode

# --- the table --------------------------------------------------------------------------------------------------------


def _convolution(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any, **more: Any) -> Row:
    return Row(
        node, _weighted(kernel), ("weights", "accumulator_precision"), state=more.pop("state", _OF_WEIGHTS),
        gradient=GradientRow(
            gradient, gradient_kernel, ("weights",), takes=("weights",), copies=("training_style",),
            settle=_parameter_gradients,
        ),
        training=WEIGHTS,
        **more,
    )  # fmt: skip


def _plain(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any, **more: Any) -> Row:
    """A filter and a gradient whose kernels take nothing from the node."""
    reads = more.pop("reads", Reads.SOURCE)
    return Row(
        node, kernel, state=_OF_ONE, gradient=GradientRow(gradient, gradient_kernel, reads=reads), **more
    )  # fmt: skip


def _pooling(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any) -> Row:
    return Row(
        node, kernel, _WINDOW, constants=_CLAMP, state=_OF_ONE,
        gradient=GradientRow(gradient, gradient_kernel, _WINDOW, takes=(*_WINDOW, "padding_policy")),
    )  # fmt: skip


def _arithmetic(node: Any, kernel: Any, gradient: GradientRow | None = None, more: tuple[str, ...] = ()) -> Row:
    return Row(node, kernel, (), (*_ARITHMETIC, *more), state=None if gradient is None else _OF_TWO, gradient=gradient)


def _arithmetic_gradient(node: Any, kernel: Any, reads: Reads = Reads.SOURCE) -> GradientRow:
    return GradientRow(node, kernel, ("is_secondary_source_filter",), reads=reads)


def _normalization(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any) -> Row:
    return Row(
        node, kernel, ("data_source",), state=_OF_ONE,
        gradient=GradientRow(gradient, gradient_kernel, copies=("training_style",)), training=STATES_OF_IMAGES,
    )  # fmt: skip


NODES: tuple[Row, ...] = (
    _convolution(
        convolution.MPSCNNConvolutionNode, convolution_kernels.MPSCNNConvolution,
        convolution.MPSCNNConvolutionGradientNode, convolution_kernels.MPSCNNConvolutionGradient,
    ),
    _convolution(
        convolution.MPSCNNFullyConnectedNode, convolution_kernels.MPSCNNFullyConnected,
        convolution.MPSCNNFullyConnectedGradientNode, convolution_kernels.MPSCNNFullyConnectedGradient,
        padding=_VALID,
    ),
    _convolution(
        convolution.MPSCNNConvolutionTransposeNode, convolution_kernels.MPSCNNConvolutionTranspose,
        convolution.MPSCNNConvolutionTransposeGradientNode, convolution_kernels.MPSCNNConvolutionTransposeGradient,
        state=nodes.MPSCNNConvolutionTransposeGradientStateNode,
    ),
    Row(convolution.MPSCNNBinaryConvolutionNode, _binary(binary_kernels.MPSCNNBinaryConvolution), _BINARY),
    Row(
        convolution.MPSCNNBinaryFullyConnectedNode, _binary(binary_kernels.MPSCNNBinaryFullyConnected), _BINARY,
        padding=_VALID,
    ),
    Row(
        neuron.MPSCNNNeuronNode, neuron_kernels.MPSCNNNeuron, ("descriptor",), state=_OF_ONE,
        gradient=GradientRow(
            neuron.MPSCNNNeuronGradientNode, neuron_kernels.MPSCNNNeuronGradient, ("descriptor",), takes=("descriptor",)
        ),
    ),
    _pooling(
        pooling.MPSCNNPoolingMaxNode, pooling_kernels.MPSCNNPoolingMax,
        pooling.MPSCNNPoolingMaxGradientNode, pooling_kernels.MPSCNNPoolingMaxGradient,
    ),
    _pooling(
        pooling.MPSCNNPoolingAverageNode, pooling_kernels.MPSCNNPoolingAverage,
        pooling.MPSCNNPoolingAverageGradientNode, pooling_kernels.MPSCNNPoolingAverageGradient,
    ),
    _pooling(
        pooling.MPSCNNPoolingL2NormNode, pooling_kernels.MPSCNNPoolingL2Norm,
        pooling.MPSCNNPoolingL2NormGradientNode, pooling_kernels.MPSCNNPoolingL2NormGradient,
    ),
    Row(
        pooling.MPSCNNDilatedPoolingMaxNode, pooling_kernels.MPSCNNDilatedPoolingMax, _DILATED,
        constants=_CLAMP, state=_OF_ONE,
        gradient=GradientRow(
            pooling.MPSCNNDilatedPoolingMaxGradientNode, pooling_kernels.MPSCNNDilatedPoolingMaxGradient, _DILATED,
            takes=(*_WINDOW, *_DILATION), copies=("padding_policy",),
        ),
    ),
    Row(
        normalization.MPSCNNBatchNormalizationNode, _batch_normalization, ("data_source", "flags"), settle=_statistics,
        state=_OF_ONE,
        gradient=GradientRow(
            normalization.MPSCNNBatchNormalizationGradientNode,
            batch_normalization_kernels.WholeBatchNormalizationGradient, copies=("training_style",),
        ),
        training=BATCH_STATISTICS,
    ),
    _normalization(
        normalization.MPSCNNInstanceNormalizationNode, group_normalization_kernels.MPSCNNInstanceNormalization,
        normalization.MPSCNNInstanceNormalizationGradientNode,
        group_normalization_kernels.MPSCNNInstanceNormalizationGradient,
    ),
    _normalization(
        normalization.MPSCNNGroupNormalizationNode, group_normalization_kernels.MPSCNNGroupNormalization,
        normalization.MPSCNNGroupNormalizationGradientNode,
        group_normalization_kernels.MPSCNNGroupNormalizationGradient,
    ),
    _plain(
        softmax.MPSCNNSoftMaxNode, softmax_kernels.MPSCNNSoftMax,
        softmax.MPSCNNSoftMaxGradientNode, softmax_kernels.MPSCNNSoftMaxGradient, reads=Reads.RESULT,
    ),
    _plain(
        softmax.MPSCNNLogSoftMaxNode, softmax_kernels.MPSCNNLogSoftMax,
        softmax.MPSCNNLogSoftMaxGradientNode, softmax_kernels.MPSCNNLogSoftMaxGradient, reads=Reads.RESULT,
    ),
    Row(
        dropout.MPSCNNDropoutNode, dropout_kernels.MPSCNNDropout, _DROPOUT, state=_OF_ONE,
        gradient=GradientRow(
            dropout.MPSCNNDropoutGradientNode, dropout_kernels.MPSCNNDropoutGradient, _DROPOUT, takes=_DROPOUT
        ),
    ),
    Row(loss.MPSCNNLossNode, loss_kernels.MPSCNNLoss, ("loss_descriptor",), is_gradient=True),
    _arithmetic(
        arithmetic.MPSNNAdditionNode, arithmetic_kernels.MPSCNNAdd,
        _arithmetic_gradient(arithmetic.MPSNNAdditionGradientNode, arithmetic_kernels.MPSCNNAddGradient),
    ),
    _arithmetic(
        arithmetic.MPSNNSubtractionNode, arithmetic_kernels.MPSCNNSubtract,
        _arithmetic_gradient(arithmetic.MPSNNSubtractionGradientNode, arithmetic_kernels.MPSCNNSubtractGradient),
    ),
    _arithmetic(
        arithmetic.MPSNNMultiplicationNode, arithmetic_kernels.MPSCNNMultiply,
        _arithmetic_gradient(
            arithmetic.MPSNNMultiplicationGradientNode, arithmetic_kernels.MPSCNNMultiplyGradient, Reads.OTHER
        ),
    ),
    _arithmetic(arithmetic.MPSNNDivisionNode, arithmetic_kernels.MPSCNNDivide),
    _arithmetic(arithmetic.MPSNNComparisonNode, arithmetic_kernels.MPSNNCompare, more=("comparison_type",)),
    Row(
        concatenation.MPSNNConcatenationNode, _concatenation, ("sources",),
        state=nodes.MPSNNMultiaryGradientStateNode,
        gradient=GradientRow(
            concatenation.MPSNNConcatenationGradientNode, concatenation_kernels.ConcatenationGradient, ("index",)
        ),
    ),
)  # fmt: skip
"""One row a forward node class, with its gradient node's."""

describe(NODES)


def rows() -> Iterator[KernelRow]:
    """The rows of all node classes, gradient nodes among them."""
    for row in NODES:
        yield row
        if row.gradient is not None:
            yield row.gradient


def make_kernel(node: MPSNNFilterNode, device: MTLDevice) -> ImageKernel:
    """The kernel of a node on a device, with the node's padding policy, allocator and label."""
    row = row_of(node)
    if row is None:
        remedy = "Use a subclass of it, MPSCNNPoolingMaxNode instead of MPSCNNPoolingNode for example"
        raise MPSTypeError("MPSNNGraph", "node", "must be of a class that has a kernel", repr(node), remedy)
    kernel = row.make(node, device)
    kernel.padding = node.padding_policy
    kernel.destination_image_allocator = node.result_image.image_allocator
    kernel.label = node.label or kernel.label
    return kernel
