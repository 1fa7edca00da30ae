"""What every node has: images, states and filters that describe a network (MPSNNGraphNodes.h, macOS 10.13).

Nodes are light and hold no device; memory and kernels come with `MPSNNGraph`, which reads them when it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from openmps.checks import (
    Checked,
    KnownAttributes,
    Labelled,
    MaybeNone,
    NamedAttributes,
    Shown,
    described,
    having,
    listed,
    of_kind,
    or_none,
)
from openmps.core.image.image import MPSImage, MPSImageAllocator
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.padding.policy import MPSNNDefaultPadding, MPSNNPadding
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.graph.nodes.rows import GradientRow, KernelRow, Row
from openmps.selectors import Factory, name_arguments
from openmps.types import NUMPY_DTYPES, MPSImageFeatureChannelFormat, MPSNNPaddingMethod


@runtime_checkable
class MPSHandle(Protocol):
    """Names an image or a state of a graph for its user (MPSNNGraphNodes.h, macOS 10.13)."""

    def label(self) -> str | None:
        """A readable name."""
        ...


@name_arguments
class Handle(KnownAttributes):
    """A handle with a label: ``MPSNNImageNode(Handle("input"))``."""

    def __init__(self, label: str | None = None) -> None:
        self._label = label

    def label(self) -> str | None:
        """A readable name."""
        return self._label

    def __repr__(self) -> str:
        return f"Handle({self._label!r})"


def handle_label(handle: MPSHandle | MPSImage | None) -> str | None:
    """The readable name of a handle, if it has one. An image, which may be a handle, is called by its own label."""
    if handle is None or isinstance(handle, MPSImage):
        return None if handle is None else handle.label
    return handle.label()


_labelled = having("label", "must have a label(), or be an MPSImage", 'Pass Handle("a name")')


def _checked_handle(who: str, argument: str, value: object) -> MPSHandle | MPSImage:
    """An image, or what has a ``label()``."""
    return value if isinstance(value, MPSImage) else _labelled(who, argument, value)


class _Exportable(NamedAttributes):
    """What image and state nodes share: a handle, a producer, and whether an encode hands them out."""

    export_from_graph: bool = False
    """Whether encodes hand it out, in ``intermediate_images`` or ``destination_states``. Default False."""
    synchronize_resource: bool = False
    """Whether the CPU will look at it (macOS 10.13.4): memory is coherent, so it changes nothing. Default False."""

    def __init__(self, handle: MPSHandle | MPSImage | None, producer: MPSNNFilterNode | None) -> None:
        self.handle = handle
        self._producer = producer

    handle = Checked["MPSHandle | MPSImage | None"](
        None,
        or_none(_checked_handle),
        "Any object with a ``label()``, or an image, by which the user knows it; None by default.",
    )
    producer = Shown["MPSNNFilterNode | None"](
        "_producer", "The filter node that makes it; None for an input of the graph."
    )

    def __repr__(self) -> str:
        made = f" of {self._producer!r}" if self._producer is not None else " (input)"
        text = handle_label(self.handle)
        label = "" if text is None else f" {text!r}"
        return f"<{type(self).__name__}{label}{made}>"


def checked_format(who: str, argument: str, value: object, *, or_none: bool = False) -> MPSImageFeatureChannelFormat:
    """A format that images can be stored in, or NONE where that is allowed."""
    allowed = [MPSImageFeatureChannelFormat.NONE] * or_none + list(NUMPY_DTYPES)
    rule = f"must be {', '.join(each.name for each in allowed)}"
    found = member(who, argument, MPSImageFeatureChannelFormat, value, rule)
    if found not in allowed:
        raise MPSArgumentError(who, argument, rule, shown(value))
    return found


checked_allocator = having(
    "image", "must have a method image(command_buffer, image_descriptor, kernel)", "Use MPSImage.default_allocator()"
)
"""The check of an object that makes images."""


@name_arguments
class MPSNNImageNode(_Exportable):
    """An image of the graph: an input, or a filter's result (MPSNNGraphNodes.h, macOS 10.13)."""

    stop_gradient: bool = False
    """Whether `MPSNNFilterNode.training_graph` ends here: what made the image gets no gradient nodes, what reads it
    does (macOS 10.14). Default False."""

    node = Factory("nodeWithHandle:")
    _elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("training_graph", "trainingGraph"),
        "Filter nodes have it: call training_graph() of the loss node, which goes back from there",
    )

    def __init__(self, handle: MPSHandle | MPSImage | None = None, *, producer: MPSNNFilterNode | None = None) -> None:
        super().__init__(handle, producer)

    @classmethod
    def exported_node(cls, handle: MPSHandle | MPSImage | None = None) -> MPSNNImageNode:
        """A node whose image is exported; the image is still a temporary one."""
        node = cls(handle)
        node.export_from_graph = True
        return node

    format = Checked[MPSImageFeatureChannelFormat](
        MPSImageFeatureChannelFormat.NONE,
        partial(checked_format, or_none=True),
        "How the image is stored; NONE, the default, leaves it to `MPSNNGraph.format`.",
    )
    image_allocator = Checked[MPSImageAllocator](
        MPSTemporaryImage.default_allocator(),
        checked_allocator,
        "Makes the image if it is exported. Default: temporary images; the CPU can read those of `MPSImage`.",
    )


@name_arguments
class MPSNNStateNode(_Exportable):
    """The base of state nodes (MPSNNGraphNodes.h, macOS 10.13), which filter nodes make: their `result_state`."""

    def __init__(self, producer: MPSNNFilterNode | None = None) -> None:
        if type(self) is MPSNNStateNode:
            raise MPSTypeError("MPSNNStateNode", "MPSNNStateNode()", "is a base class", None, "Use a result_state")
        super().__init__(None, producer)


class MPSNNGradientStateNode(MPSNNStateNode):
    """The gradient state of a filter with one source (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSNNBinaryGradientStateNode(MPSNNStateNode):
    """The gradient state of a filter with two sources (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSNNArithmeticGradientStateNode(MPSNNBinaryGradientStateNode):
    """The gradient state of an arithmetic filter (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNConvolutionGradientStateNode(MPSNNGradientStateNode):
    """The gradient state of a convolution (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNConvolutionTransposeGradientStateNode(MPSCNNConvolutionGradientStateNode):
    """The gradient state of a transposed convolution (MPSNNGraphNodes.h, macOS 10.15)."""


class MPSNNMultiaryGradientStateNode(MPSNNStateNode):
    """The gradient state of a filter with many sources (MPSNNGraphNodes.h, macOS 10.15)."""


class MPSNNLabelsNode(MPSNNStateNode):
    """The labels that a loss node takes: one `MPSCNNLossLabels` an image (MPSNNGraphNodes.h, macOS 10.13.4)."""


NodeHandler = Callable[["MPSNNFilterNode", "MPSNNFilterNode | None", MPSNNImageNode, MPSNNImageNode], object]
"""Called for each node of a training graph: gradient node, forward node or None, forward source, gradient source."""

Derivation = Callable[["MPSNNFilterNode", MPSNNImageNode | None, NodeHandler | None], "list[MPSNNFilterNode] | None"]
"""Makes the gradient nodes of a filter and of everything before it: see `MPSNNFilterNode.training_graph`."""

_derivation: Derivation


def derive_by(derivation: Derivation) -> None:
    """Set what `MPSNNFilterNode.training_graph` calls: it is written in terms of nodes, which cannot import it."""
    global _derivation
    _derivation = derivation


@name_arguments
class MPSNNFilterNode(NamedAttributes, Labelled):
    """The base of filter nodes (MPSNNGraphNodes.h, macOS 10.13).

    Its `result_image` takes the format of its first source image; `padding_policy` places and sizes the result.
    ``label`` is taken over by the kernel; it begins as the data source's, or None.
    """

    _row: ClassVar[KernelRow | None] = None

    node = Factory("nodeWithSource:…")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name_arguments(cls)

    def __init__(self, sources: Sequence[MPSNNImageNode], states: Sequence[MPSNNStateNode] = ()) -> None:
        sources = listed(type(self).__name__, "sources", sources, "MPSNNImageNode")
        states = listed(type(self).__name__, "states", states, "MPSNNStateNode")
        for index, source in enumerate(sources):
            remedy = "Pass the result_image of the filter before"
            of_kind(type(self).__name__, f"source {index}", source, MPSNNImageNode, remedy)
        if not sources:
            raise MPSArgumentError(type(self).__name__, "sources", "must be at least one image node", 0)
        self._sources = tuple(sources)
        self._source_states = tuple(states)
        self._result_image = MPSNNImageNode(producer=self)
        self._result_image.format = sources[0].format
        row = self._row if isinstance(self._row, Row) else None
        self._result_states: list[MPSNNStateNode] = [] if row is None or row.state is None else [row.state(self)]
        if row is not None and row.padding is not None:
            self._padding_policy = row.padding

    sources = Shown[tuple[MPSNNImageNode, ...]]("_sources", "The image nodes that the filter reads.")
    source_states = Shown[tuple[MPSNNStateNode, ...]]("_source_states", "The state nodes that the filter reads.")
    result_image = Shown[MPSNNImageNode]("_result_image", "The image that the filter makes.")

    @property
    def result_states(self) -> list[MPSNNStateNode] | MaybeNone:
        """The states that the filter leaves; None if there are none."""
        return list(self._result_states) or None

    @property
    def result_state(self) -> MPSNNStateNode | MaybeNone:
        """The first of the result states."""
        return self._result_states[0] if self._result_states else None

    padding_policy = Checked[MPSNNPadding](
        MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME),
        having("padding_method", "must have a padding_method()", "Use MPSNNDefaultPadding"),
        "Places and sizes the result. Default: same size, centred, the remainder top left.",
    )

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        """New gradient nodes for a gradient of the result, one for each source that has one."""
        row = self._gradient_row()
        arguments = [getattr(self, name) for name in row.takes]
        return [self._like_this(row.node(gradient, self.sources[0], self._result_states[0], *arguments), row)]

    def _gradient_row(self) -> GradientRow:
        """What the table says of the gradient nodes; raises if there are none."""
        row = self._row if isinstance(self._row, Row) else None
        if row is not None and row.is_gradient:
            rule = "is not offered: the result image of a loss is its gradient"
            remedy = "Call training_graph on the loss, or gradient_filters on the node before it"
            raise MPSTypeError(self.name, "gradient_filters", rule, remedy=remedy)
        if row is None or row.gradient is None:
            rule = "is not offered: this filter has no gradient"
            remedy = "Set stop_gradient on its result image to end the training graph behind it"
            raise MPSTypeError(self.name, "gradient_filter", rule, remedy=remedy)
        return row.gradient

    def _like_this(self, made: MPSNNGradientFilterNode, row: GradientRow) -> MPSNNGradientFilterNode:
        """A new gradient node, with what it takes over."""
        for name in row.copies:
            setattr(made, name, getattr(self, name))
        return made

    def gradient_filters(
        self, source: MPSNNImageNode | None = None, sources: Sequence[MPSNNImageNode] | None = None
    ) -> list[MPSNNGradientFilterNode]:
        """New gradient nodes, one for each source image (MPSNNGraphNodes.h, macOS 10.13.4).

        ``source``, or the only member of ``sources``, is the gradient of the result image.
        """
        return self._gradient_nodes(self._one_gradient(source, sources))

    def gradient_filter(
        self, source: MPSNNImageNode | None = None, sources: Sequence[MPSNNImageNode] | None = None
    ) -> MPSNNGradientFilterNode:
        """A new gradient node; filters with several sources need `gradient_filters` (macOS 10.13.4)."""
        nodes = self.gradient_filters(source, sources)
        if len(nodes) != 1:
            rule = f"would make {len(nodes)} nodes"
            raise MPSTypeError(self.name, "gradient_filter", rule, remedy="Call gradient_filters")
        return nodes[0]

    def _one_gradient(self, source: MPSNNImageNode | None, sources: Sequence[MPSNNImageNode] | None) -> MPSNNImageNode:
        given = ([] if source is None else [source]) + listed(self.name, "sources", sources, "MPSNNImageNode")
        if len(given) != 1 or not isinstance(given[0], MPSNNImageNode):
            rule = "must be one MPSNNImageNode, the gradient of the result"
            raise MPSTypeError(self.name, "source", rule, f"{[type(each).__name__ for each in given]}")
        return given[0]

    def training_graph(
        self, source_gradient: MPSNNImageNode | None = None, node_handler: NodeHandler | None = None
    ) -> list[MPSNNFilterNode] | MaybeNone:
        """Gradient nodes for this node and everything before it, newest first (MPSNNGraphNodes.h, macOS 10.14).

        ``source_gradient`` None starts from this node's own result, which is right for a loss node. ``node_handler`` is
        called for each new node with (gradient node, forward node, forward source image, gradient source image); the
        forward node is None for additions, which are inserted where several filters read one image. A handler may
        change the new node, and sets ``stop_gradient`` on its result image to go no further there. Without a handler
        each gradient image takes the handle of its forward source image. Returns the new nodes whose results no other
        new node reads: give all of them to the graph. None if no node was made.
        """
        return _derivation(self, source_gradient, node_handler)

    def __repr__(self) -> str:
        arguments = {name: getattr(self, name, None) for name in _arguments(type(self))}
        return described(self, **{name: value for name, value in arguments.items() if _is_shown(value)})


@lru_cache(256)
def _arguments(kind: type[MPSNNFilterNode]) -> tuple[str, ...]:
    """The names of a constructor's arguments."""
    return tuple(inspect.signature(kind).parameters)


def _is_shown(value: object) -> bool:
    """Whether a constructor's argument says what a filter does, not what it reads."""
    return not isinstance(value, MPSNNImageNode | MPSNNStateNode | MPSNNFilterNode | Sequence | None) and not callable(
        value
    )


def describe(rows: Iterable[Row]) -> None:
    """Tell node classes what the table says of them: it names the classes, which cannot import it."""
    for row in rows:
        setattr(row.node, _ROW, row)
        if row.gradient is not None:
            setattr(row.gradient.node, _ROW, row.gradient)
            setattr(row.gradient.node, _FORWARD, row.node)


def row_of(node: MPSNNFilterNode) -> KernelRow | None:
    """What the table says of a node's class, or of the nearest class that it inherits from."""
    return getattr(node, _ROW)


_ROW, _FORWARD = "_row", "_forward_class"


class MPSNNGradientFilterNode(MPSNNFilterNode):
    """The base of gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4).

    Sources: the gradient of the forward result, the forward source image; the state is the forward node's.
    """

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSNNFilterNode

    def __init__(
        self, source_gradient: MPSNNImageNode, source_image: MPSNNImageNode, gradient_state: MPSNNStateNode
    ) -> None:
        super().__init__([source_gradient, source_image], [gradient_state])
        forward = gradient_state.producer if isinstance(gradient_state, MPSNNStateNode) else None
        if not isinstance(forward, self._forward_class):
            rule = f"must be the result_state of an {self._forward_class.__name__}"
            raise MPSTypeError(type(self).__name__, "gradient_state", rule, repr(gradient_state))
        self._forward = forward

    forward = Shown[MPSNNFilterNode]("_forward", "The forward node that this node differentiates.")

    def gradient_filters(
        self, source: MPSNNImageNode | None = None, sources: Sequence[MPSNNImageNode] | None = None
    ) -> list[MPSNNGradientFilterNode]:
        """Not offered: there are no second derivatives."""
        raise MPSTypeError(self.name, "gradient_filters", "is not offered: there are no second derivatives")
