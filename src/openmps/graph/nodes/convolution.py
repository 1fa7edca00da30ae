"""Convolution and fully connected nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 to 10.15)."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple, Never, cast

from openmps.checks import Checked, Shown
from openmps.enumerated import member, member_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes.node import (
    MPSCNNConvolutionGradientStateNode,
    MPSCNNConvolutionTransposeGradientStateNode,
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
)
from openmps.graph.nodes.trainable import TrainableNode
from openmps.kernels.convolution import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.data_source import check_data_source, describe
from openmps.types import (
    MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNNeuronType,
    MPSNNConvolutionAccumulatorPrecisionOption,
)


class _Weighted(TrainableNode):
    """A node with weights."""

    _weights: MPSCNNConvolutionDataSource

    def _take_weights(self, weights: MPSCNNConvolutionDataSource) -> None:
        check_data_source(type(self).__name__, weights)
        self._weights = weights
        self.label = weights.label()

    weights = Shown[MPSCNNConvolutionDataSource]("_weights", "The data source.")


class MPSCNNConvolutionNode(_Weighted):
    """A convolution (MPSNNGraphNodes.h, macOS 10.13). ``weights`` is an `MPSCNNConvolutionDataSource`.

    For training its descriptor must hold neither a neuron nor batch normalization: add nodes for them.
    """

    def __init__(self, source: MPSNNImageNode, weights: MPSCNNConvolutionDataSource) -> None:
        self._begin([source], (), weights)

    def _begin(
        self, sources: list[MPSNNImageNode], states: tuple[MPSNNStateNode, ...], weights: MPSCNNConvolutionDataSource
    ) -> None:
        MPSNNFilterNode.__init__(self, sources, states)
        self._take_weights(weights)

    accumulator_precision = Checked[MPSNNConvolutionAccumulatorPrecisionOption](
        MPSNNConvolutionAccumulatorPrecisionOption.FLOAT,
        member_of(MPSNNConvolutionAccumulatorPrecisionOption, "must be HALF or FLOAT"),
        "Precision of sums (macOS 10.14): FLOAT; kernels use single precision whatever is asked for.",
    )

    @property
    def convolution_gradient_state(self) -> MPSCNNConvolutionGradientStateNode | None:
        """The state for the gradient node; exported from a training graph it holds the gradients of the weights."""
        return self.result_state  # pyright: ignore[reportReturnType]


class MPSCNNFullyConnectedNode(MPSCNNConvolutionNode):
    """A fully connected layer (MPSNNGraphNodes.h, macOS 10.13); its padding is valid-only, so the result is 1x1."""


_TERMS = ("output_bias_terms", "output_scale_terms", "input_bias_terms", "input_scale_terms")
_FORMS = (("scale_value", "type", "flags"), (*_TERMS, "type", "flags"))
"""What may follow the source and the weights of a binary convolution."""


class MPSCNNBinaryConvolutionNode(MPSCNNConvolutionNode):
    """A convolution with weights of one bit (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNBinaryConvolution`.

    ``(source, weights, scale_value, type, flags)``, or ``(source, weights, output_bias_terms, output_scale_terms,
    input_bias_terms, input_scale_terms, type, flags)``, where terms may be None. There is no gradient.
    """

    def __init__(
        self,
        source: MPSNNImageNode,
        weights: MPSCNNConvolutionDataSource,
        *arguments: Any,
        output_bias_terms: Any = None,
        output_scale_terms: Any = None,
        input_bias_terms: Any = None,
        input_scale_terms: Any = None,
        type: MPSCNNBinaryConvolutionType | None = None,
        flags: MPSCNNBinaryConvolutionFlags | None = None,
        scale_value: float | None = None,
    ) -> None:
        super().__init__(source, weights)
        terms = (output_bias_terms, output_scale_terms, input_bias_terms, input_scale_terms)
        named = {**dict(zip(_TERMS, terms, strict=True)), "type": type, "flags": flags, "scale_value": scale_value}
        given = self._placed(arguments, named)
        if given["flags"] is None:
            given["flags"] = MPSCNNBinaryConvolutionFlags.NONE
        for name, kind in (("type", MPSCNNBinaryConvolutionType), ("flags", MPSCNNBinaryConvolutionFlags)):
            rule = f"must be one of {', '.join(each.name for each in kind)} of {kind.__name__}"
            given[name] = member(self.name, name, kind, given[name], rule)
        self._binary = _Binary(**given)

    def _placed(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Arguments by their names: a number in the first place is a scale."""
        is_scale = bool(arguments) and isinstance(arguments[0], Real)
        form = _FORMS[0 if is_scale else 1]
        if len(arguments) > len(form):
            rule = f"must be at most {len(form)} behind the weights, {', '.join(form)}"
            raise MPSTypeError(self.name, "arguments", rule, len(arguments))
        given = dict(named)
        for name, value in zip(form, arguments, strict=False):
            if given[name] is not None:
                raise MPSTypeError(self.name, name, "must not be given twice", repr(value))
            given[name] = value
        mixed = [name for name in _TERMS if given[name] is not None]
        if given["scale_value"] is not None and mixed:
            rule, remedy = f"cannot be given together with {', '.join(mixed)}", "Use one form of the constructor"
            raise MPSTypeError(self.name, "scale_value", rule, repr(given["scale_value"]), remedy)
        return given

    output_bias_terms = Shown[Any]("_binary.output_bias_terms", "Biases of the results, or None. Our addition.")
    output_scale_terms = Shown[Any]("_binary.output_scale_terms", "Scales of the results, or None. Our addition.")
    input_bias_terms = Shown[Any]("_binary.input_bias_terms", "Biases of the source, or None. Our addition.")
    input_scale_terms = Shown[Any]("_binary.input_scale_terms", "Scales of the source, or None. Our addition.")
    scale_value = Shown[float | None]("_binary.scale_value", "The one scale of the results, or None. Our addition.")
    type = Shown[MPSCNNBinaryConvolutionType]("_binary.type", "What is multiplied. Our addition.")
    flags = Shown[MPSCNNBinaryConvolutionFlags]("_binary.flags", "Whether beta scales the results. Our addition.")

    @property
    def convolution_gradient_state(self) -> Never:
        """Not offered: there is no gradient."""
        raise MPSTypeError(self.name, "convolution_gradient_state", "is not offered: this filter has no gradient")


class _Binary(NamedTuple):
    """What a binary convolution is told besides its weights."""

    output_bias_terms: Any
    output_scale_terms: Any
    input_bias_terms: Any
    input_scale_terms: Any
    type: MPSCNNBinaryConvolutionType
    flags: MPSCNNBinaryConvolutionFlags
    scale_value: float | None


class MPSCNNBinaryFullyConnectedNode(MPSCNNBinaryConvolutionNode):
    """A fully connected layer with weights of one bit (MPSNNGraphNodes.h, macOS 10.13); its padding is valid-only."""


class MPSCNNConvolutionTransposeNode(MPSCNNConvolutionNode):
    """A transposed convolution (MPSNNGraphNodes.h, macOS 10.13); see `MPSCNNConvolutionTranspose`.

    With the ``convolution_gradient_state`` of a convolution node the result is as large as that one's source.
    """

    def __init__(
        self,
        source: MPSNNImageNode,
        convolution_gradient_state: MPSCNNConvolutionGradientStateNode | None = None,
        weights: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        name, paired = type(self).__name__, convolution_gradient_state
        if paired is not None and not isinstance(paired, MPSCNNConvolutionGradientStateNode):
            rule, remedy = "must be that of a convolution node, or None", "Pass its convolution_gradient_state"
            raise MPSTypeError(name, "convolution_gradient_state", rule, type(paired).__name__, remedy)
        if weights is None:
            raise MPSTypeError(name, "weights", "is needed", None, "Pass an MPSCNNConvolutionDataSource")
        self._begin([source], () if paired is None else (paired,), weights)

    @property
    def convolution_gradient_state(self) -> MPSCNNConvolutionGradientStateNode | None:
        """The state of the convolution that is undone, or None. The framework has no such property here."""
        return self.source_states[0] if self.source_states else None  # pyright: ignore[reportReturnType]


class MPSCNNConvolutionGradientNode(MPSNNGradientFilterNode, _Weighted):
    """The gradient of a convolution (MPSNNGraphNodes.h, macOS 10.13.4).

    ``weights`` None takes the forward node's data source.
    """

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

    @property
    def convolution_gradient_state(self) -> MPSCNNConvolutionGradientStateNode:
        """The forward node's state, which the node was made with. Our addition."""
        return cast("MPSCNNConvolutionGradientStateNode", self.source_states[0])

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


class MPSCNNConvolutionTransposeGradientNode(MPSCNNConvolutionGradientNode):
    """The gradient of a transposed convolution (MPSNNGraphNodes.h, macOS 10.15).

    ``weights`` None takes the forward node's data source. The state may also be given by the name that the inherited
    initializer has for it, ``convolution_gradient_state``.
    """

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        convolution_transpose_gradient_state: MPSCNNConvolutionTransposeGradientStateNode | None = None,
        weights: MPSCNNConvolutionDataSource | None = None,
        *,
        convolution_gradient_state: MPSCNNConvolutionTransposeGradientStateNode | None = None,
    ) -> None:
        given = [convolution_transpose_gradient_state, convolution_gradient_state]
        states = [state for state in given if state is not None]
        if len(states) != 1:
            rule, remedy = "must be given, by one of its two names", "Pass the forward node's result_state"
            name = type(self).__name__
            raise MPSTypeError(name, "convolution_transpose_gradient_state", rule, len(states), remedy)
        super().__init__(source_gradient, source_image, states[0], weights)

    @property
    def convolution_transpose_gradient_state(self) -> MPSCNNConvolutionTransposeGradientStateNode:
        """The forward node's state, which the node was made with. Our addition."""
        return cast("MPSCNNConvolutionTransposeGradientStateNode", self.source_states[0])
