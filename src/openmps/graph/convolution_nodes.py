"""Convolution and fully connected nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from typing import ClassVar

from openmps.checks import Shown
from openmps.core.kernel.arguments import member
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError
from openmps.graph.nodes import (
    MPSCNNConvolutionGradientStateNode,
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
)
from openmps.kernels.convolution import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.data_source import check_data_source, describe
from openmps.types import (
    MPSCNNNeuronType,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSNNTrainingStyle,
)

_VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)


class _Weighted(MPSNNFilterNode):
    """A node with a data source whose weights may be updated (MPSNNTrainableNode)."""

    _weights: MPSCNNConvolutionDataSource
    _training_style = MPSNNTrainingStyle.UPDATE_DEVICE_GPU

    def _take_weights(self, weights: MPSCNNConvolutionDataSource) -> None:
        check_data_source(type(self).__name__, weights)
        self._weights = weights
        self.label = weights.label()

    weights = Shown[MPSCNNConvolutionDataSource]("_weights", "The data source.")

    @property
    def training_style(self) -> MPSNNTrainingStyle:
        """Who updates the weights: the device (default), the CPU, or nobody.

        Gradient nodes take over the style of the forward node that they are made from (macOS 10.15).
        """
        return self._training_style

    @training_style.setter
    def training_style(self, value: MPSNNTrainingStyle) -> None:
        rule = f"must be {', '.join(style.name for style in MPSNNTrainingStyle)}"
        self._training_style = member(self.name, "training_style", MPSNNTrainingStyle, value, rule)


class MPSCNNConvolutionNode(_Weighted):
    """A convolution (MPSNNGraphNodes.h, macOS 10.13). ``weights`` is an `MPSCNNConvolutionDataSource`.

    For training its descriptor must hold neither a neuron nor batch normalization: add nodes for them.
    """

    _state_class = MPSCNNConvolutionGradientStateNode

    def __init__(self, source: MPSNNImageNode, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__([source])
        self._take_weights(weights)
        self._accumulator_precision = MPSNNConvolutionAccumulatorPrecisionOption.FLOAT

    @property
    def accumulator_precision(self) -> MPSNNConvolutionAccumulatorPrecisionOption:
        """Precision of sums (macOS 10.14): FLOAT; kernels use single precision whatever is asked for."""
        return self._accumulator_precision

    @accumulator_precision.setter
    def accumulator_precision(self, value: MPSNNConvolutionAccumulatorPrecisionOption) -> None:
        kind = MPSNNConvolutionAccumulatorPrecisionOption
        self._accumulator_precision = member(self.name, "accumulator_precision", kind, value, "must be HALF or FLOAT")

    @property
    def convolution_gradient_state(self) -> MPSCNNConvolutionGradientStateNode:
        """The state for the gradient node; exported from a training graph it holds the gradients of the weights."""
        (state,) = self._result_states
        return state  # pyright: ignore[reportReturnType]

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        make = self._gradient_class()
        node = make(gradient, self.sources[0], self.convolution_gradient_state, self._weights)
        node.training_style = self.training_style
        return [node]

    def _gradient_class(self) -> type[MPSCNNConvolutionGradientNode]:
        return MPSCNNConvolutionGradientNode


class MPSCNNFullyConnectedNode(MPSCNNConvolutionNode):
    """A fully connected layer (MPSNNGraphNodes.h, macOS 10.13); its padding is valid-only, so the result is 1x1."""

    def __init__(self, source: MPSNNImageNode, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(source, weights)
        self.padding_policy = _VALID

    def _gradient_class(self) -> type[MPSCNNConvolutionGradientNode]:
        return MPSCNNFullyConnectedGradientNode


class MPSCNNConvolutionGradientNode(MPSNNGradientFilterNode, _Weighted):
    """The gradient of a convolution (MPSNNGraphNodes.h, macOS 10.13.4).

    ``weights`` None takes the forward node's data source.
    """

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNConvolutionNode

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        convolution_gradient_state: MPSCNNConvolutionGradientStateNode,
        weights: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, convolution_gradient_state)
        forward = self.forward
        assert isinstance(forward, MPSCNNConvolutionNode)
        self._take_weights(forward.weights if weights is None else weights)
        self._check_descriptor()

    def _check_descriptor(self) -> None:
        descriptor = describe(self.name, self._weights)
        fused = descriptor.fused_neuron_descriptor
        if fused is not None and fused.neuron_type is not MPSCNNNeuronType.NONE:
            rule = "must be None in a network that is trained"
            remedy = "Add a neuron node behind the convolution instead"
            raise MPSArgumentError(self.name, "weights.descriptor().fused_neuron_descriptor", rule, repr(fused), remedy)
        if descriptor.batch_normalization is not None:
            rule = "must not fold batch normalization into the weights in a network that is trained"
            got = "batch normalization parameters for inference"
            remedy = "Add a normalization node behind the convolution instead"
            raise MPSArgumentError(self.name, "weights.descriptor()", rule, got, remedy)


class MPSCNNFullyConnectedGradientNode(MPSCNNConvolutionGradientNode):
    """The gradient of a fully connected layer (MPSNNGraphNodes.h, macOS 10.15)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNFullyConnectedNode
