"""How each node class is made in Swift: the initializer's arguments, what is set behind it.

Arguments have the names of ours; `literals.camel` makes Swift's labels of them (MPSNNGraphNodes.h, iOS 12 and 16).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from openmps.graph.nodes.releases import SINCE
from openmps.graph.nodes.trainable import TrainableNode


@dataclass(frozen=True)
class Form:
    """How a node of one class is written."""

    arguments: tuple[str, ...] = ()
    """Of the initializer, in its order; none for those of our constructor, which has the same."""
    settings: tuple[str, ...] = ()
    """Properties that are set whatever they are."""
    changes: tuple[str, ...] = ()
    """Properties that are set where they differ from the default of our class, which is the framework's."""
    has_window: bool = False
    """Whether the padding policy is written even where it is the default."""


_WINDOW = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")
_DILATION = ("dilation_rate_x", "dilation_rate_y")
_ENERGY = ("alpha", "beta", "delta")
_CONTRAST = (*_ENERGY, "p0", "pm", "ps")
_PAIR = ("left_source", "right_source")
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

_WEIGHTED = Form(changes=("accumulator_precision", "training_style"), has_window=True)
_BINARY = Form(("source", "weights", "binary_terms", "type", "flags"), has_window=True)

_OTHERWISE: Mapping[type, Form] = {
    TrainableNode: Form(changes=("training_style",)),
    convolution.MPSCNNConvolutionNode: _WEIGHTED,
    convolution.MPSCNNConvolutionTransposeNode: replace(_WEIGHTED, arguments=("source", "paired_state", "weights")),
    convolution.MPSCNNConvolutionTransposeGradientNode: Form(
        ("source_gradient", "source_image", "convolution_transpose_gradient_state", "weights"),
        changes=("training_style",),
    ),
    convolution.MPSCNNBinaryConvolutionNode: _BINARY,
    pooling.MPSCNNPoolingNode: Form(("source", *_WINDOW), has_window=True),
    pooling.MPSCNNDilatedPoolingMaxNode: Form(("source", *_WINDOW, *_DILATION), has_window=True),
    pooling.MPSCNNDilatedPoolingMaxGradientNode: Form(has_window=True),
    normalization.MPSCNNBatchNormalizationNode: Form(changes=("flags", "training_style")),
    local_normalization.MPSCNNNormalizationNode: Form(settings=_ENERGY),
    local_normalization.MPSCNNSpatialNormalizationGradientNode: Form(settings=_ENERGY),
    local_normalization.MPSCNNLocalContrastNormalizationNode: Form(settings=_CONTRAST),
    local_normalization.MPSCNNLocalContrastNormalizationGradientNode: Form(settings=_CONTRAST),
    loss.MPSNNForwardLossNode: Form(("sources", "loss_descriptor")),
    loss.MPSNNLossGradientNode: Form(("sources", "gradient_state", "loss_descriptor", "is_labels_gradient_filter")),
    arithmetic.MPSNNBinaryArithmeticNode: Form(_PAIR, changes=_ARITHMETIC),
    arithmetic.MPSNNComparisonNode: Form(_PAIR, ("comparison_type",), _ARITHMETIC),
    arithmetic.MPSNNArithmeticGradientNode: Form(("gradient_images", "forward_filter", "is_secondary_source_filter")),
    reduction.MPSNNUnaryReductionNode: Form(changes=("clip_rect_source",)),
    reduction.MPSNNReductionFeatureChannelsSumNode: Form(settings=("weight",), changes=("clip_rect_source",)),
    shape.MPSNNPadNode: Form(changes=("fill_value",)),
    shape.MPSNNScaleNode: Form(("source", "output_size")),
    concatenation.MPSNNConcatenationGradientNode: Form(("gradient_filters", "index")),
}
"""What our constructors do not say, of classes and of those derived from them."""


def _form(kind: type[MPSNNFilterNode]) -> Form:
    form = next((_OTHERWISE[base] for base in kind.__mro__ if base in _OTHERWISE), Form())
    if form.arguments:
        return form
    parameters = inspect.signature(kind).parameters.values()
    return replace(form, arguments=tuple(each.name for each in parameters if each.kind is not each.VAR_POSITIONAL))


_MODULES = (
    *(arithmetic, concatenation, convolution, dropout, gram_matrix, local_normalization, loss, neuron, normalization),
    *(pooling, reduction, shape, softmax),
)
FORMS: Mapping[type[MPSNNFilterNode], Form] = {
    kind: _form(kind) for module in _MODULES for kind in vars(module).values() if getattr(kind, "__name__", "") in SINCE
}
"""The form of each class of the framework; of a class that is derived from one that one's holds."""


def form_of(node: MPSNNFilterNode) -> tuple[type[MPSNNFilterNode], Form] | str:
    """The class that Swift makes for a node and how, or why it cannot."""
    for kind in type(node).__mro__:
        if kind in FORMS:
            return kind, FORMS[kind]
    return f"is of class {type(node).__name__}, which is no class of the framework"
