"""Loss nodes, and nodes that gradients start from (MPSNNGraphNodes.h, macOS 10.13.4 to 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from openmps.checks import Shown, of_kind
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes.callbacks import SCALAR_WEIGHT, MPSNNLossCallback
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNLabelsNode,
    MPSNNStateNode,
)
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNYOLOLossDescriptor
from openmps.types import MPSCNNLossType, MPSCNNReductionType


def _checked(who: str, descriptor: Any, kind: type[Any]) -> Any:
    """A copy of a descriptor."""
    return of_kind(who, "loss_descriptor", descriptor, kind).copy()


# --- losses whose result is the gradient ------------------------------------------------------------------------------


class _LabelledLoss(MPSNNFilterNode):
    """A loss that takes its labels as states."""

    def __init__(self, source: MPSNNImageNode) -> None:
        self._labels = MPSNNLabelsNode()
        super().__init__([source], [self._labels])

    input_labels = Shown[MPSNNLabelsNode](
        "_labels", "The labels, an input of the graph; set its handle to find it in `MPSNNGraph.source_state_handles`."
    )


class MPSCNNLossNode(_LabelledLoss):
    """A loss (MPSNNGraphNodes.h, macOS 10.13.4); its result image is the gradient of its source.

    `input_labels` is a state input of the graph: one `MPSCNNLossLabels` an image.
    """

    def __init__(self, source: MPSNNImageNode, loss_descriptor: MPSCNNLossDescriptor) -> None:
        self._descriptor = _checked(type(self).__name__, loss_descriptor, MPSCNNLossDescriptor)
        super().__init__(source)

    loss_descriptor = Shown[MPSCNNLossDescriptor]("_descriptor", "Which loss: a copy of the descriptor that was given.")


class MPSCNNYOLOLossNode(_LabelledLoss):
    """The loss of an object detector (MPSNNGraphNodes.h, macOS 10.13.4); its result is the gradient of its source.

    `input_labels` is a state input of the graph: one `MPSCNNLossLabels` an image.
    """

    def __init__(self, source: MPSNNImageNode, loss_descriptor: MPSCNNYOLOLossDescriptor) -> None:
        self._descriptor = _checked(type(self).__name__, loss_descriptor, MPSCNNYOLOLossDescriptor)
        super().__init__(source)

    loss_descriptor = Shown[MPSCNNYOLOLossDescriptor](
        "_descriptor", "Which losses: a copy of the descriptor that was given."
    )


class MPSNNInitialGradientNode(MPSNNFilterNode):
    """1 everywhere, in an image like the source: where gradients start (MPSNNGraphNodes.h, macOS 10.15).

    A `training_graph` of it goes back from its source, which may be any image.
    """

    def __init__(self, source: MPSNNImageNode) -> None:
        super().__init__([source])


# --- losses that are filters, with gradients of their own -------------------------------------------------------------


class _ImageLoss(MPSNNFilterNode):
    """What a loss and its gradient node tell of their descriptor."""

    _descriptor: MPSCNNLossDescriptor
    _callback: MPSNNLossCallback | None = None

    loss_descriptor = Shown[MPSCNNLossDescriptor](
        "_descriptor", "A copy of the descriptor that was given. Our addition."
    )
    loss_type = Shown[MPSCNNLossType]("_descriptor.loss_type", "Which loss.")
    reduction_type = Shown[MPSCNNReductionType](
        "_descriptor.reduction_type", "How the losses of an image become its loss."
    )
    number_of_classes = Shown[int]("_descriptor.number_of_classes", "Classes that smoothing spreads over.")
    reduce_across_batch = Shown[bool](
        "_descriptor.reduce_across_batch", "Whether the first loss image takes the total of the batch (macOS 11)."
    )
    weight = Shown[float]("_descriptor.weight", "Factor of the loss.")
    label_smoothing = Shown[float]("_descriptor.label_smoothing", "How far labels are softened.")
    epsilon = Shown[float]("_descriptor.epsilon", "Guard of LOG's logarithms.")
    delta = Shown[float]("_descriptor.delta", "Where HUBER turns linear.")

    @property
    def property_call_back(self) -> MPSNNLossCallback | None:
        """Asked for `weight` at each encode, if there is one. Default None."""
        return self._callback

    @property_call_back.setter
    def property_call_back(self, value: MPSNNLossCallback | None) -> None:
        self._callback = SCALAR_WEIGHT.check(self.name, "property_call_back", value)


def _listed(who: str, what: str, images: object, counts: tuple[int, int]) -> list[MPSNNImageNode]:
    """``sources`` of the right number; the nodes themselves are checked by the base."""
    if not isinstance(images, Sequence):
        raise MPSTypeError(who, "sources", f"must be a sequence of image nodes: {what}", type(images).__name__)
    listed = cast("list[MPSNNImageNode]", list(images))
    if len(listed) not in counts:
        raise MPSArgumentError(who, "sources", f"must be {counts[0]} or {counts[1]} image nodes: {what}", len(listed))
    return listed


class MPSNNForwardLossNode(_ImageLoss):
    """The value of a loss, as an image (MPSNNGraphNodes.h, macOS 10.15); see `MPSNNForwardLoss`.

    ``(source, labels, loss_descriptor)``, ``(source, labels, weights, loss_descriptor)`` with weights of the labels, or
    ``(sources, loss_descriptor)`` with the images in this order. All are image nodes. `gradient_filter` makes the
    gradient of the source, `gradient_filters` also that of the labels.
    """

    def __init__(
        self,
        source: MPSNNImageNode | Sequence[MPSNNImageNode] | None = None,
        labels: MPSNNImageNode | MPSCNNLossDescriptor | None = None,
        weights: MPSNNImageNode | MPSCNNLossDescriptor | None = None,
        loss_descriptor: MPSCNNLossDescriptor | None = None,
        *,
        sources: Sequence[MPSNNImageNode] | None = None,
    ) -> None:
        name = type(self).__name__
        given = [each for each in (source, labels, weights, loss_descriptor) if each is not None]
        descriptor = given.pop() if given and isinstance(given[-1], MPSCNNLossDescriptor) else None
        if sources is None and len(given) == 1 and isinstance(given[0], Sequence):
            sources = cast("Sequence[MPSNNImageNode]", given.pop())
        self._descriptor = _checked(name, descriptor, MPSCNNLossDescriptor)
        if sources is not None and given:
            raise MPSTypeError(name, "sources", "must not be given beside source, labels and weights", len(given))
        what = "predictions, labels, and weights if there are any"
        super().__init__(_listed(name, what, given if sources is None else sources, (2, 3)))

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        row = self._gradient_row()
        arguments = ([gradient, *self.sources], self._result_states[0], self._descriptor)
        return [self._like_this(row.node(*arguments, is_labels), row) for is_labels in (False, True)]

    def gradient_filter(
        self, source: MPSNNImageNode | None = None, sources: Sequence[MPSNNImageNode] | None = None
    ) -> MPSNNGradientFilterNode:
        """A new gradient node: that of the predictions; `gradient_filters` makes that of the labels too."""
        return self.gradient_filters(source, sources)[0]


class MPSNNLossGradientNode(_ImageLoss, MPSNNGradientFilterNode):
    """The gradient of a loss (MPSNNGraphNodes.h, macOS 10.15); see `MPSNNLossGradient`.

    ``(source_gradient, source_image, labels, gradient_state, loss_descriptor, is_labels_gradient_filter)``, with
    ``weights`` behind the labels if there are any, or ``(sources, gradient_state, loss_descriptor,
    is_labels_gradient_filter)`` with the images in this order. The kernel takes `weight`, `label_smoothing`, `epsilon`
    and `delta` of the forward encode; where ``gradient_state`` is None, of the descriptor and `property_call_back`.
    """

    def __init__(
        self,
        source_gradient: MPSNNImageNode | Sequence[MPSNNImageNode] | None = None,
        source_image: MPSNNImageNode | MPSNNStateNode | None = None,
        labels: MPSNNImageNode | MPSCNNLossDescriptor | None = None,
        weights: Any = None,
        gradient_state: Any = None,
        loss_descriptor: Any = None,
        is_labels_gradient_filter: bool | None = None,
        *,
        sources: Sequence[MPSNNImageNode] | None = None,
    ) -> None:
        name = type(self).__name__
        given = (source_gradient, source_image, labels, weights, gradient_state, loss_descriptor)
        images = [each for each in given if isinstance(each, MPSNNImageNode)]
        lists = [each for each in given if isinstance(each, Sequence)]
        states = [each for each in given if isinstance(each, MPSNNStateNode)]
        descriptors = [each for each in given if isinstance(each, MPSCNNLossDescriptor)]
        flags = [each for each in (*given, is_labels_gradient_filter) if isinstance(each, bool)]
        known = len(images) + len(lists) + len(states) + len(descriptors) + len(flags)
        if known != sum(each is not None for each in (*given, is_labels_gradient_filter)) or len(states) > 1:
            rule = "must be image nodes, one gradient state node or None, a loss descriptor and a flag"
            raise MPSTypeError(name, "arguments", rule, [type(each).__name__ for each in given if each is not None])
        if len(lists) + (sources is not None) + bool(images) != 1 or len(flags) > 1 or len(descriptors) > 1:
            raise MPSTypeError(name, "arguments", "must be given once each: images, or one sequence of sources")
        self._descriptor = _checked(name, descriptors[0] if descriptors else None, MPSCNNLossDescriptor)
        what = "gradient, predictions, labels, and weights if there are any"
        listed = _listed(name, what, sources if sources is not None else lists[0] if lists else images, (3, 4))
        self._own_forward = None if states else MPSNNForwardLossNode(listed[1:], self._descriptor)
        state = states[0] if self._own_forward is None else self._own_forward._result_states[0]
        MPSNNGradientFilterNode.__init__(self, listed[0], listed[1], state)
        MPSNNFilterNode.__init__(self, listed, [state])
        self._is_labels = bool(flags and flags[0])

    @_ImageLoss.property_call_back.setter
    def property_call_back(self, value: MPSNNLossCallback | None) -> None:
        """See `MPSNNForwardLossNode`."""
        _ImageLoss.property_call_back.__set__(self, value)
        if self._own_forward is not None:
            self._own_forward.property_call_back = value

    is_labels_gradient_filter = Shown[bool](
        "_is_labels", "Whether this is the gradient of the labels instead of the predictions'."
    )
