"""The table of nodes: for each class its kernel, state and gradient, who updates its parameters, since when it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from openmps.convention import current
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent
from openmps.core.kernel.encode import ImageKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes import (
    arithmetic,
    concatenation,
    convolution,
    dropout,
    gram_matrix,
    local_normalization,
    loss,
    neuron,
    normalization,
    pooling,
    reduction,
    shape,
    softmax,
)
from openmps.graph.nodes import node as nodes
from openmps.graph.nodes.callbacks import ALPHA, SCALAR_WEIGHT, TRANSFORM, Question
from openmps.graph.nodes.node import MPSNNFilterNode, describe, row_of
from openmps.graph.nodes.releases import FIRST, FIRST_GRADIENTS
from openmps.graph.nodes.rows import Asked, Form, GradientRow, KernelRow, Reads, Row, Use
from openmps.graph.nodes.training import BATCH_STATISTICS, STATES_OF_IMAGES, WEIGHTS
from openmps.kernels import arithmetic as arithmetic_kernels
from openmps.kernels import concatenation as concatenation_kernels
from openmps.kernels import convolution as convolution_kernels
from openmps.kernels import dropout as dropout_kernels
from openmps.kernels import gram_matrix as gram_matrix_kernels
from openmps.kernels import group_normalization as group_normalization_kernels
from openmps.kernels import image_scale as image_scale_kernels
from openmps.kernels import loss as loss_kernels
from openmps.kernels import neuron as neuron_kernels
from openmps.kernels import normalization as normalization_kernels
from openmps.kernels import pad as pad_kernels
from openmps.kernels import pooling as pooling_kernels
from openmps.kernels import reduce as reduce_kernels
from openmps.kernels import reshape as reshape_kernels
from openmps.kernels import softmax as softmax_kernels
from openmps.kernels import upsampling as upsampling_kernels
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
    kernel._sums_biases = use.exports_gradients or kernel.parameters.has_biases


def _batch_normalization(device: MTLDevice, data_source: Any, flags: MPSCNNBatchNormalizationFlags) -> Any:
    made = batch_normalization_kernels.WholeBatchNormalization(device, data_source)
    if flags is not MPSCNNBatchNormalizationFlags.DEFAULT:
        made.uses_batch = flags is MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS
    return made


def _statistics(kernel: batch_normalization_kernels.WholeBatchNormalization, use: Use) -> None:
    """In training, where a gradient node takes the state, the statistics are the batch's unless flags say otherwise."""
    if kernel.uses_batch is None:
        kernel.uses_batch = use.is_consumed


def _loss_gradient(device: MTLDevice, loss_descriptor: Any, is_labels: bool) -> Any:
    made = loss_kernels.MPSNNLossGradient(device, loss_descriptor)
    made.compute_label_gradients = is_labels
    return made


# --- sizes of results, and what callbacks are asked -------------------------------------------------------------------


def _reshaped(node: shape.MPSNNReshapeNode, source: Extent) -> Extent:
    found = Extent(node.result_width, node.result_height, node.result_feature_channels, source.images)
    count = source.width * source.height * source.channels
    if found.width * found.height * found.channels != count:
        rule = f"must multiply to {count}, the numbers of a source image"
        got = f"{found.width}, {found.height}, {found.channels}"
        raise MPSArgumentError(node.name, "result_width, result_height, result_feature_channels", rule, got)
    return found


def _scaled(node: shape.MPSNNScaleNode, source: Extent) -> Extent:
    size = node.output_size
    if size.depth not in (0, 1, source.channels):
        rule = f"must be the source's feature channels, {source.channels}, or 0 or 1, which say nothing"
        raise MPSArgumentError(node.name, "output_size.depth", rule, size.depth)
    return Extent(size.width, size.height, source.channels, source.images)


def _transform(provider: Any, node: shape.MPSNNScaleNode, source: MPSImage, result: MPSImage) -> Any:
    return TRANSFORM.ask(provider, source, node.sources[0].handle)


def _by_images(kernel_property: str, question: Question) -> Asked:
    def ask(callback: Any, node: Any, source: MPSImage, result: MPSImage) -> Any:
        return question.ask(callback, source, result)

    return Asked("property_call_back", kernel_property, ask)


# --- what many rows say -----------------------------------------------------------------------------------------------

_VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
_WINDOW = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
_DILATION = ("dilation_rate_x", "dilation_rate_y")
_DILATED = (*_WINDOW[:2], *_DILATION, *_WINDOW[2:])
_FACTORS = ("integer_scale_factor_x", "integer_scale_factor_y")
_SQUARE = ("kernel_width", "kernel_height")
_ENERGY = ("alpha", "beta", "delta")
_CONTRAST = (*_ENERGY, "p0", "pm", "ps")
_DROPOUT = ("keep_probability", "seed", "mask_stride_in_pixels")
_TERMS = ("output_bias_terms", "output_scale_terms", "input_bias_terms", "input_scale_terms")
_BINARY = ("weights", "type", "flags", "scale_value", *_TERMS)
_AXES = ("pixels_x", "pixels_y", "feature_channels")
_ARITHMETIC = (
    *("primary_scale", "secondary_scale", "bias"),
    *(f"{source}_stride_in_{axis}" for source in ("primary", "secondary") for axis in _AXES),
    *("minimum_value", "maximum_value"),
)
_PAIR = ("left_source", "right_source")
_STYLED = Form(changes=("training_style",))
_WEIGHTED = Form(changes=("accumulator_precision", "training_style"), has_window=True)
_BINARY_FORM = Form(("source", "weights", "binary_terms", "type", "flags"), has_window=True)
_CLAMP = {"edge_mode": MPSImageEdgeMode.CLAMP}
"""Pooling nodes clamp where kernels default to zeros (MPSNNGraphNodes.h)."""
_OF_ONE = nodes.MPSNNGradientStateNode
_OF_TWO = nodes.MPSNNArithmeticGradientStateNode
_OF_WEIGHTS = nodes.MPSCNNConvolutionGradientStateNode

# --- the table --------------------------------------------------------------------------------------------------------


def _convolution(
    node: Any,
    kernel: Any,
    gradient: Any,
    gradient_kernel: Any,
    since: str = FIRST_GRADIENTS,
    state: Any = _OF_WEIGHTS,
    swift: Form = _WEIGHTED,
    gradient_swift: Form = _STYLED,
    **more: Any,
) -> Row:
    return Row(
        node, _weighted(kernel), ("weights", "accumulator_precision"), state=state, training=WEIGHTS, swift=swift,
        gradient=GradientRow(
            gradient, gradient_kernel, ("weights",), takes=("weights",), copies=("training_style",),
            adapt=_parameter_gradients, since=since, swift=gradient_swift,
        ),
        **more,
    )  # fmt: skip


def _loss(node: Any, kernel: Any, since: str, *arguments: str) -> Row:
    return Row(node, kernel, arguments, is_gradient=True, since=since)


def _softmax(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any) -> Row:
    return Row(node, kernel, state=_OF_ONE, gradient=GradientRow(gradient, gradient_kernel, reads=Reads.RESULT))


def _pooling(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any) -> Row:
    return Row(
        node, kernel, _WINDOW, constants=_CLAMP, state=_OF_ONE, swift=Form(("source", *_WINDOW), has_window=True),
        gradient=GradientRow(gradient, gradient_kernel, _WINDOW, takes=(*_WINDOW, "padding_policy")),
    )  # fmt: skip


def _arithmetic(
    node: Any, kernel: Any, gradient: GradientRow | None = None, more: tuple[str, ...] = (), since: str = FIRST
) -> Row:
    return Row(
        node, kernel, (), (*_ARITHMETIC, *more), state=None if gradient is None else _OF_TWO, gradient=gradient,
        since=since, swift=Form(_PAIR, more, _ARITHMETIC),
    )  # fmt: skip


def _arithmetic_gradient(node: Any, kernel: Any, reads: Reads = Reads.SOURCE) -> GradientRow:
    form = Form(("gradient_images", "forward_filter", "is_secondary_source_filter"))
    return GradientRow(node, kernel, ("is_secondary_source_filter",), reads=reads, swift=form)


def _local(
    node: Any, kernel: Any, gradient: GradientRow, arguments: tuple[str, ...], more: tuple[str, ...] = _ENERGY
) -> Row:
    return Row(node, kernel, arguments, more, state=_OF_ONE, gradient=gradient, swift=Form(settings=more))


def _reduction(node: Any, kernel: Any, *more: str, gradient: GradientRow | None = None) -> Row:
    state = None if gradient is None else _OF_ONE
    return Row(
        node, kernel, (), ("clip_rect_source", *more), state=state, gradient=gradient, since="10.14.1",
        swift=Form(settings=more, changes=("clip_rect_source",)),
    )  # fmt: skip


def _upsampling(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any, *more: str) -> Row:
    return Row(
        node, kernel, (*_FACTORS, *more), state=_OF_ONE,
        gradient=GradientRow(gradient, gradient_kernel, _FACTORS, takes=("scale_factor_x", "scale_factor_y")),
    )  # fmt: skip


def _scale(node: Any, kernel: Any) -> Row:
    asked = Asked("transform_provider", "scale_transform", _transform)
    return Row(node, kernel, size=_scaled, asked=asked, swift=Form(("source", "output_size")))


def _normalization(node: Any, kernel: Any, gradient: Any, gradient_kernel: Any, since: str) -> Row:
    return Row(
        node, kernel, ("data_source",), state=_OF_ONE, training=STATES_OF_IMAGES, since=since, swift=_STYLED,
        gradient=GradientRow(gradient, gradient_kernel, copies=("training_style",), since=since, swift=_STYLED),
    )  # fmt: skip


NODES: tuple[Row, ...] = (
    _convolution(
        convolution.MPSCNNConvolutionNode, convolution_kernels.MPSCNNConvolution,
        convolution.MPSCNNConvolutionGradientNode, convolution_kernels.MPSCNNConvolutionGradient,
    ),
    _convolution(
        convolution.MPSCNNFullyConnectedNode, convolution_kernels.MPSCNNFullyConnected,
        convolution.MPSCNNFullyConnectedGradientNode, convolution_kernels.MPSCNNFullyConnectedGradient, "10.15",
        padding=_VALID,
    ),
    _convolution(
        convolution.MPSCNNConvolutionTransposeNode, convolution_kernels.MPSCNNConvolutionTranspose,
        convolution.MPSCNNConvolutionTransposeGradientNode, convolution_kernels.MPSCNNConvolutionTransposeGradient,
        "10.15", state=nodes.MPSCNNConvolutionTransposeGradientStateNode,
        swift=replace(_WEIGHTED, arguments=("source", "paired_state", "weights")),
        gradient_swift=replace(
            _STYLED,
            arguments=("source_gradient", "source_image", "convolution_transpose_gradient_state", "weights"),
        ),
    ),
    Row(
        convolution.MPSCNNBinaryConvolutionNode, _binary(binary_kernels.MPSCNNBinaryConvolution), _BINARY,
        swift=_BINARY_FORM,
    ),
    Row(
        convolution.MPSCNNBinaryFullyConnectedNode, _binary(binary_kernels.MPSCNNBinaryFullyConnected), _BINARY,
        padding=_VALID, swift=_BINARY_FORM,
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
        constants=_CLAMP, state=_OF_ONE, swift=Form(("source", *_WINDOW, *_DILATION), has_window=True),
        gradient=GradientRow(
            pooling.MPSCNNDilatedPoolingMaxGradientNode, pooling_kernels.MPSCNNDilatedPoolingMaxGradient, _DILATED,
            takes=(*_WINDOW, *_DILATION), copies=("padding_policy",), swift=Form(has_window=True),
        ),
    ),
    Row(
        normalization.MPSCNNBatchNormalizationNode, _batch_normalization, ("data_source", "flags"), adapt=_statistics,
        state=_OF_ONE, training=BATCH_STATISTICS, since=FIRST_GRADIENTS,
        swift=Form(changes=("flags", "training_style")),
        gradient=GradientRow(
            normalization.MPSCNNBatchNormalizationGradientNode,
            batch_normalization_kernels.WholeBatchNormalizationGradient, copies=("training_style",), swift=_STYLED,
        ),
    ),
    _normalization(
        normalization.MPSCNNInstanceNormalizationNode, group_normalization_kernels.MPSCNNInstanceNormalization,
        normalization.MPSCNNInstanceNormalizationGradientNode,
        group_normalization_kernels.MPSCNNInstanceNormalizationGradient, FIRST_GRADIENTS,
    ),
    _normalization(
        normalization.MPSCNNGroupNormalizationNode, group_normalization_kernels.MPSCNNGroupNormalization,
        normalization.MPSCNNGroupNormalizationGradientNode,
        group_normalization_kernels.MPSCNNGroupNormalizationGradient, "10.15",
    ),
    _local(
        local_normalization.MPSCNNSpatialNormalizationNode, normalization_kernels.MPSCNNSpatialNormalization,
        GradientRow(
            local_normalization.MPSCNNSpatialNormalizationGradientNode,
            normalization_kernels.MPSCNNSpatialNormalizationGradient, _SQUARE, _ENERGY,
            takes=("kernel_size",), copies=(*_SQUARE, *_ENERGY), swift=Form(settings=_ENERGY),
        ),
        _SQUARE,
    ),
    _local(
        local_normalization.MPSCNNLocalContrastNormalizationNode,
        normalization_kernels.MPSCNNLocalContrastNormalization,
        GradientRow(
            local_normalization.MPSCNNLocalContrastNormalizationGradientNode,
            normalization_kernels.MPSCNNLocalContrastNormalizationGradient, _SQUARE, _CONTRAST,
            takes=_SQUARE, copies=_CONTRAST, swift=Form(settings=_CONTRAST),
        ),
        _SQUARE, _CONTRAST,
    ),
    _local(
        local_normalization.MPSCNNCrossChannelNormalizationNode,
        normalization_kernels.MPSCNNCrossChannelNormalization,
        GradientRow(
            local_normalization.MPSCNNCrossChannelNormalizationGradientNode,
            normalization_kernels.MPSCNNCrossChannelNormalizationGradient, ("kernel_size",), takes=("kernel_size",),
        ),
        ("kernel_size",),
    ),
    _softmax(
        softmax.MPSCNNSoftMaxNode, softmax_kernels.MPSCNNSoftMax,
        softmax.MPSCNNSoftMaxGradientNode, softmax_kernels.MPSCNNSoftMaxGradient,
    ),
    _softmax(
        softmax.MPSCNNLogSoftMaxNode, softmax_kernels.MPSCNNLogSoftMax,
        softmax.MPSCNNLogSoftMaxGradientNode, softmax_kernels.MPSCNNLogSoftMaxGradient,
    ),
    Row(
        dropout.MPSCNNDropoutNode, dropout_kernels.MPSCNNDropout, _DROPOUT, state=_OF_ONE, since=FIRST_GRADIENTS,
        gradient=GradientRow(
            dropout.MPSCNNDropoutGradientNode, dropout_kernels.MPSCNNDropoutGradient, _DROPOUT, takes=_DROPOUT
        ),
    ),
    _loss(loss.MPSCNNLossNode, loss_kernels.MPSCNNLoss, FIRST_GRADIENTS, "loss_descriptor"),
    _loss(loss.MPSCNNYOLOLossNode, loss_kernels.MPSCNNYOLOLoss, FIRST_GRADIENTS, "loss_descriptor"),
    _loss(loss.MPSNNInitialGradientNode, loss_kernels.MPSNNInitialGradient, "10.15"),
    Row(
        loss.MPSNNForwardLossNode, loss_kernels.MPSNNForwardLoss, ("loss_descriptor",), images=1,
        asked=_by_images("weight", SCALAR_WEIGHT), state=_OF_ONE, since="10.15",
        swift=Form(("sources", "loss_descriptor")),
        gradient=GradientRow(
            loss.MPSNNLossGradientNode, _loss_gradient, ("loss_descriptor", "is_labels_gradient_filter"), images=2,
            copies=("property_call_back",), since="10.15",
            swift=Form(("sources", "gradient_state", "loss_descriptor", "is_labels_gradient_filter")),
        ),
    ),
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
    _arithmetic(
        arithmetic.MPSNNComparisonNode, arithmetic_kernels.MPSNNCompare, more=("comparison_type",), since="10.14.1"
    ),
    _reduction(reduction.MPSNNReductionRowMinNode, reduce_kernels.MPSNNReduceRowMin),
    _reduction(reduction.MPSNNReductionRowMaxNode, reduce_kernels.MPSNNReduceRowMax),
    _reduction(reduction.MPSNNReductionRowMeanNode, reduce_kernels.MPSNNReduceRowMean),
    _reduction(reduction.MPSNNReductionRowSumNode, reduce_kernels.MPSNNReduceRowSum),
    _reduction(reduction.MPSNNReductionColumnMinNode, reduce_kernels.MPSNNReduceColumnMin),
    _reduction(reduction.MPSNNReductionColumnMaxNode, reduce_kernels.MPSNNReduceColumnMax),
    _reduction(reduction.MPSNNReductionColumnMeanNode, reduce_kernels.MPSNNReduceColumnMean),
    _reduction(reduction.MPSNNReductionColumnSumNode, reduce_kernels.MPSNNReduceColumnSum),
    _reduction(reduction.MPSNNReductionFeatureChannelsMinNode, reduce_kernels.MPSNNReduceFeatureChannelsMin),
    _reduction(reduction.MPSNNReductionFeatureChannelsMaxNode, reduce_kernels.MPSNNReduceFeatureChannelsMax),
    _reduction(reduction.MPSNNReductionFeatureChannelsMeanNode, reduce_kernels.MPSNNReduceFeatureChannelsMean),
    _reduction(reduction.MPSNNReductionFeatureChannelsSumNode, reduce_kernels.MPSNNReduceFeatureChannelsSum, "weight"),
    _reduction(
        reduction.MPSNNReductionFeatureChannelsArgumentMinNode, reduce_kernels.MPSNNReduceFeatureChannelsArgumentMin
    ),
    _reduction(
        reduction.MPSNNReductionFeatureChannelsArgumentMaxNode, reduce_kernels.MPSNNReduceFeatureChannelsArgumentMax
    ),
    _reduction(
        reduction.MPSNNReductionSpatialMeanNode, reduce_kernels.SpatialMean,
        gradient=GradientRow(
            reduction.MPSNNReductionSpatialMeanGradientNode, reduce_kernels.SpatialMeanGradient, since="10.14.1"
        ),
    ),
    Row(
        shape.MPSNNReshapeNode, reshape_kernels.MPSNNReshape, size=_reshaped, state=_OF_ONE, since="10.14.1",
        gradient=GradientRow(shape.MPSNNReshapeGradientNode, reshape_kernels.MPSNNReshapeGradient, since="10.14.1"),
    ),
    Row(
        shape.MPSNNPadNode, pad_kernels.MPSNNPad, ("padding_size_before", "padding_size_after"),
        ("edge_mode", "fill_value"), state=_OF_ONE, since="10.14.1", swift=Form(changes=("fill_value",)),
        gradient=GradientRow(shape.MPSNNPadGradientNode, pad_kernels.MPSNNPadGradient, since="10.14.1"),
    ),
    _scale(shape.MPSNNBilinearScaleNode, image_scale_kernels.MPSImageBilinearScale),
    _scale(shape.MPSNNLanczosScaleNode, image_scale_kernels.MPSImageLanczosScale),
    _upsampling(
        shape.MPSCNNUpsamplingNearestNode, upsampling_kernels.MPSCNNUpsamplingNearest,
        shape.MPSCNNUpsamplingNearestGradientNode, upsampling_kernels.MPSCNNUpsamplingNearestGradient,
    ),
    _upsampling(
        shape.MPSCNNUpsamplingBilinearNode, upsampling_kernels.MPSCNNUpsamplingBilinear,
        shape.MPSCNNUpsamplingBilinearGradientNode, upsampling_kernels.MPSCNNUpsamplingBilinearGradient,
        "align_corners",
    ),
    Row(
        gram_matrix.MPSNNGramMatrixCalculationNode, gram_matrix_kernels.MPSNNGramMatrixCalculation, ("alpha",),
        state=_OF_ONE, asked=_by_images("alpha", ALPHA), since="10.15",
        gradient=GradientRow(
            gram_matrix.MPSNNGramMatrixCalculationGradientNode,
            gram_matrix_kernels.MPSNNGramMatrixCalculationGradient, ("alpha",), takes=("alpha",), since="10.15",
        ),
    ),
    Row(
        concatenation.MPSNNConcatenationNode, _concatenation, ("sources",), check=concatenation.check_sizes,
        state=nodes.MPSNNMultiaryGradientStateNode,
        gradient=GradientRow(
            concatenation.MPSNNConcatenationGradientNode, concatenation_kernels.ConcatenationGradient, ("index",),
            swift=Form(("gradient_filters", "index")),
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


SINCE: Mapping[str, str] = {
    **{row.node.__name__: row.since for row in rows()},
    **{neuron.CLASSES[kind].__name__: macos for kind, macos in neuron.SINCE.items()},
}
"""The first macOS of each node class."""


def make_kernel(node: MPSNNFilterNode, device: MTLDevice) -> ImageKernel:
    """The kernel of a node on a device, with the node's padding policy, allocator and label."""
    row = row_of(node)
    if row is None:
        remedy = "Use a subclass of it, MPSCNNPoolingMaxNode instead of MPSCNNPoolingNode for example"
        raise MPSTypeError("MPSNNGraph", "node", "must be of a class that has a kernel", repr(node), remedy)
    kernel = row.make(node, device)
    is_scaled = isinstance(node, arithmetic.MPSNNAdditionNode) and node.primary_scale != 1.0
    if is_scaled and current()["graph_primary_scale"] == "dropped":
        kernel.primary_scale = 1.0
    kernel.padding = node.padding_policy
    kernel.destination_image_allocator = node.result_image.image_allocator
    kernel.label = node.label or kernel.label
    return kernel
