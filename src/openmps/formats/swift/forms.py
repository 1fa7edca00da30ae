"""How each node class is made in Swift: the initializer's arguments, what is set behind it.

Arguments have the names of ours; `literals.camel` makes Swift's labels of them (MPSNNGraphNodes.h, iOS 12 and 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from openmps.graph.nodes.node import MPSNNFilterNode


@dataclass(frozen=True)
class Form:
    """How a node of one class is written."""

    arguments: tuple[str, ...]
    """Of the initializer, in its order."""
    settings: tuple[str, ...] = ()
    """Properties that are set whatever they are."""
    changes: tuple[str, ...] = ()
    """Properties that are set where they differ from the default of our class, which is the framework's."""
    has_window: bool = False
    """Whether the padding policy is written even where it is the default."""


_GRADIENT = ("source_gradient", "source_image", "gradient_state")
_PAIR = ("left_source", "right_source")
_WINDOW = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
_DILATION = ("dilation_rate_x", "dilation_rate_y")
_FACTORS = ("integer_scale_factor_x", "integer_scale_factor_y")
_ENERGY = ("alpha", "beta", "delta")
_CONTRAST = (*_ENERGY, "p0", "pm", "ps")
_DROPOUT = ("keep_probability", "seed", "mask_stride_in_pixels")
_ARITHMETIC = (
    "primary_scale",
    "secondary_scale",
    "bias",
    "primary_stride_in_pixels_x",
    "primary_stride_in_pixels_y",
    "primary_stride_in_feature_channels",
    "secondary_stride_in_pixels_x",
    "secondary_stride_in_pixels_y",
    "secondary_stride_in_feature_channels",
    "minimum_value",
    "maximum_value",
)

_PLAIN = Form(("source",))
_WEIGHTED = Form(("source", "weights"), changes=("accumulator_precision", "training_style"), has_window=True)
_WEIGHTED_GRADIENT = Form(
    ("source_gradient", "source_image", "convolution_gradient_state", "weights"), changes=("training_style",)
)
_BINARY = Form(("source", "weights", "binary_terms", "type", "flags"), has_window=True)
_POOLING = Form(("source", *_WINDOW), has_window=True)
_POOLING_GRADIENT = Form((*_GRADIENT, *_WINDOW, "padding_policy"))
_ONE, _TWO, _THREE = (Form(("source", *names)) for names in (("a",), ("a", "b"), ("a", "b", "c")))
_NORMALIZATION = Form(("source", "data_source"), changes=("training_style",))
_NORMALIZATION_GRADIENT = Form(_GRADIENT, changes=("training_style",))
_PLAIN_GRADIENT = Form(_GRADIENT)
_PAIRED = Form(_PAIR, changes=_ARITHMETIC)
_PAIRED_GRADIENT = Form(("gradient_images", "forward_filter", "is_secondary_source_filter"))
_REDUCTION = Form(("source",), changes=("clip_rect_source",))
_SCALE = Form(("source", "output_size"))
_UPSAMPLING_GRADIENT = Form((*_GRADIENT, "scale_factor_x", "scale_factor_y"))

FORMS: Mapping[type[MPSNNFilterNode], Form] = {
    convolution.MPSCNNConvolutionNode: _WEIGHTED,
    convolution.MPSCNNFullyConnectedNode: _WEIGHTED,
    convolution.MPSCNNConvolutionTransposeNode: Form(
        ("source", "paired_state", "weights"), changes=_WEIGHTED.changes, has_window=True
    ),
    convolution.MPSCNNConvolutionGradientNode: _WEIGHTED_GRADIENT,
    convolution.MPSCNNFullyConnectedGradientNode: _WEIGHTED_GRADIENT,
    convolution.MPSCNNConvolutionTransposeGradientNode: Form(
        ("source_gradient", "source_image", "convolution_transpose_gradient_state", "weights"),
        changes=("training_style",),
    ),
    convolution.MPSCNNBinaryConvolutionNode: _BINARY,
    convolution.MPSCNNBinaryFullyConnectedNode: _BINARY,
    neuron.MPSCNNNeuronNode: Form(("source", "descriptor")),
    neuron.MPSCNNNeuronGradientNode: Form((*_GRADIENT, "descriptor")),
    neuron.MPSCNNNeuronAbsoluteNode: _PLAIN,
    neuron.MPSCNNNeuronSigmoidNode: _PLAIN,
    neuron.MPSCNNNeuronSoftSignNode: _PLAIN,
    neuron.MPSCNNNeuronGeLUNode: _PLAIN,
    neuron.MPSCNNNeuronELUNode: _ONE,
    neuron.MPSCNNNeuronReLUNode: _ONE,
    neuron.MPSCNNNeuronReLUNNode: _TWO,
    neuron.MPSCNNNeuronLinearNode: _TWO,
    neuron.MPSCNNNeuronHardSigmoidNode: _TWO,
    neuron.MPSCNNNeuronSoftPlusNode: _TWO,
    neuron.MPSCNNNeuronTanHNode: _TWO,
    neuron.MPSCNNNeuronPowerNode: _THREE,
    neuron.MPSCNNNeuronExponentialNode: _THREE,
    neuron.MPSCNNNeuronLogarithmNode: _THREE,
    neuron.MPSCNNNeuronPReLUNode: Form(("source", "a_data")),
    pooling.MPSCNNPoolingMaxNode: _POOLING,
    pooling.MPSCNNPoolingAverageNode: _POOLING,
    pooling.MPSCNNPoolingL2NormNode: _POOLING,
    pooling.MPSCNNDilatedPoolingMaxNode: Form(("source", *_WINDOW, *_DILATION), has_window=True),
    pooling.MPSCNNPoolingMaxGradientNode: _POOLING_GRADIENT,
    pooling.MPSCNNPoolingAverageGradientNode: _POOLING_GRADIENT,
    pooling.MPSCNNPoolingL2NormGradientNode: _POOLING_GRADIENT,
    pooling.MPSCNNDilatedPoolingMaxGradientNode: Form((*_GRADIENT, *_WINDOW, *_DILATION), has_window=True),
    normalization.MPSCNNBatchNormalizationNode: Form(("source", "data_source"), changes=("flags", "training_style")),
    normalization.MPSCNNInstanceNormalizationNode: _NORMALIZATION,
    normalization.MPSCNNGroupNormalizationNode: _NORMALIZATION,
    normalization.MPSCNNBatchNormalizationGradientNode: _NORMALIZATION_GRADIENT,
    normalization.MPSCNNInstanceNormalizationGradientNode: _NORMALIZATION_GRADIENT,
    normalization.MPSCNNGroupNormalizationGradientNode: _NORMALIZATION_GRADIENT,
    local_normalization.MPSCNNSpatialNormalizationNode: Form(("source", "kernel_size"), _ENERGY),
    local_normalization.MPSCNNLocalContrastNormalizationNode: Form(("source", "kernel_size"), _CONTRAST),
    local_normalization.MPSCNNCrossChannelNormalizationNode: Form(("source", "kernel_size"), _ENERGY),
    local_normalization.MPSCNNSpatialNormalizationGradientNode: Form((*_GRADIENT, "kernel_size"), _ENERGY),
    local_normalization.MPSCNNLocalContrastNormalizationGradientNode: Form(
        (*_GRADIENT, "kernel_width", "kernel_height"), _CONTRAST
    ),
    local_normalization.MPSCNNCrossChannelNormalizationGradientNode: Form((*_GRADIENT, "kernel_size")),
    softmax.MPSCNNSoftMaxNode: _PLAIN,
    softmax.MPSCNNLogSoftMaxNode: _PLAIN,
    softmax.MPSCNNSoftMaxGradientNode: _PLAIN_GRADIENT,
    softmax.MPSCNNLogSoftMaxGradientNode: _PLAIN_GRADIENT,
    dropout.MPSCNNDropoutNode: Form(("source", *_DROPOUT)),
    dropout.MPSCNNDropoutGradientNode: Form((*_GRADIENT, *_DROPOUT)),
    loss.MPSCNNLossNode: Form(("source", "loss_descriptor")),
    loss.MPSCNNYOLOLossNode: Form(("source", "loss_descriptor")),
    loss.MPSNNInitialGradientNode: _PLAIN,
    loss.MPSNNForwardLossNode: Form(("sources", "loss_descriptor")),
    loss.MPSNNLossGradientNode: Form(("sources", "gradient_state", "loss_descriptor", "is_labels_gradient_filter")),
    arithmetic.MPSNNAdditionNode: _PAIRED,
    arithmetic.MPSNNSubtractionNode: _PAIRED,
    arithmetic.MPSNNMultiplicationNode: _PAIRED,
    arithmetic.MPSNNDivisionNode: _PAIRED,
    arithmetic.MPSNNComparisonNode: Form(_PAIR, ("comparison_type",), _ARITHMETIC),
    arithmetic.MPSNNAdditionGradientNode: _PAIRED_GRADIENT,
    arithmetic.MPSNNSubtractionGradientNode: _PAIRED_GRADIENT,
    arithmetic.MPSNNMultiplicationGradientNode: _PAIRED_GRADIENT,
    reduction.MPSNNReductionRowMinNode: _REDUCTION,
    reduction.MPSNNReductionRowMaxNode: _REDUCTION,
    reduction.MPSNNReductionRowMeanNode: _REDUCTION,
    reduction.MPSNNReductionRowSumNode: _REDUCTION,
    reduction.MPSNNReductionColumnMinNode: _REDUCTION,
    reduction.MPSNNReductionColumnMaxNode: _REDUCTION,
    reduction.MPSNNReductionColumnMeanNode: _REDUCTION,
    reduction.MPSNNReductionColumnSumNode: _REDUCTION,
    reduction.MPSNNReductionFeatureChannelsMinNode: _REDUCTION,
    reduction.MPSNNReductionFeatureChannelsMaxNode: _REDUCTION,
    reduction.MPSNNReductionFeatureChannelsMeanNode: _REDUCTION,
    reduction.MPSNNReductionFeatureChannelsSumNode: Form(("source",), ("weight",), ("clip_rect_source",)),
    reduction.MPSNNReductionFeatureChannelsArgumentMinNode: _REDUCTION,
    reduction.MPSNNReductionFeatureChannelsArgumentMaxNode: _REDUCTION,
    reduction.MPSNNReductionSpatialMeanNode: _REDUCTION,
    reduction.MPSNNReductionSpatialMeanGradientNode: _PLAIN_GRADIENT,
    shape.MPSNNReshapeNode: Form(("source", "result_width", "result_height", "result_feature_channels")),
    shape.MPSNNReshapeGradientNode: _PLAIN_GRADIENT,
    shape.MPSNNPadNode: Form(
        ("source", "padding_size_before", "padding_size_after", "edge_mode"), changes=("fill_value",)
    ),
    shape.MPSNNPadGradientNode: _PLAIN_GRADIENT,
    shape.MPSNNBilinearScaleNode: _SCALE,
    shape.MPSNNLanczosScaleNode: _SCALE,
    shape.MPSCNNUpsamplingNearestNode: Form(("source", *_FACTORS)),
    shape.MPSCNNUpsamplingBilinearNode: Form(("source", *_FACTORS, "align_corners")),
    shape.MPSCNNUpsamplingNearestGradientNode: _UPSAMPLING_GRADIENT,
    shape.MPSCNNUpsamplingBilinearGradientNode: _UPSAMPLING_GRADIENT,
    gram_matrix.MPSNNGramMatrixCalculationNode: Form(("source", "alpha")),
    gram_matrix.MPSNNGramMatrixCalculationGradientNode: Form((*_GRADIENT, "alpha")),
    concatenation.MPSNNConcatenationNode: Form(("sources",)),
    concatenation.MPSNNConcatenationGradientNode: Form(("gradient_filters", "index")),
}
"""The form of each class. Of a class that is missing the nearest base's holds; the suite finds a row of the table of
nodes that is missing here and in `NOT_EXPORTABLE`."""

NOT_EXPORTABLE: Mapping[type[MPSNNFilterNode], str] = {}
"""Node classes that no call of Swift makes, and why: none by now."""


def form_of(node: MPSNNFilterNode) -> tuple[type[MPSNNFilterNode], Form] | str:
    """The class that Swift makes for a node and how, or why it cannot."""
    for kind in type(node).__mro__:
        if kind in NOT_EXPORTABLE:
            return NOT_EXPORTABLE[kind]
        if kind in FORMS:
            return kind, FORMS[kind]
    return f"is of class {type(node).__name__}, which is no class of the framework"
