"""Concatenation nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.image.storage import Extent
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
)


class MPSNNConcatenationNode(MPSNNFilterNode):
    """Concatenation of feature channels (MPSNNGraphNodes.h, macOS 10.13).

    Each source is filled up to a multiple of 4 channels, the last one too: 7 and 11 channels give 20, the second source
    starts at channel 8. Fillers are 0, but for the fourth channel of a source of one or two channels, which is 1: what
    a Mac reads of such a texture.
    """

    def __init__(self, sources: Sequence[MPSNNImageNode]) -> None:
        if not isinstance(sources, Sequence):
            rule = "must be a sequence of MPSNNImageNode"
            raise MPSTypeError(type(self).__name__, "sources", rule, type(sources).__name__)
        super().__init__(sources)

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        state = self._result_states[0]
        make: type[MPSNNConcatenationGradientNode] = self._gradient_row().node
        nodes = [make(gradient, source, state) for source in self.sources]
        for index, node in enumerate(nodes):
            node.index = index
        return list(nodes)


class MPSNNConcatenationGradientNode(MPSNNGradientFilterNode):
    """The gradient of concatenation for one source: a slice (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self, source_gradient: MPSNNImageNode, source_image: MPSNNImageNode, gradient_state: MPSNNStateNode
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        if source_image not in self.forward.sources:
            raise MPSTypeError(
                self.name, "source_image", "must be a source of the forward node", repr(source_image),
                "Pass one of the images that the concatenation reads",
            )  # fmt: skip
        self._index = self.forward.sources.index(source_image)

    @property
    def index(self) -> int:
        """Which source of the forward node this is the gradient of; the first, if one image is read twice."""
        return self._index

    @index.setter
    def index(self, value: int) -> None:
        places = [place for place, source in enumerate(self.forward.sources) if source is self.sources[1]]
        if isinstance(value, bool) or value not in places:
            rule = f"must be a place of source_image among the sources of the forward node, of {places}"
            raise MPSArgumentError(self.name, "index", rule, repr(value))
        self._index = value


def check_sizes(node: MPSNNConcatenationNode, sources: Sequence[Extent]) -> None:
    """Raise unless the sources of a concatenation are of one size; the layers that made them have the paddings."""
    if len({(source.width, source.height) for source in sources}) > 1:
        parts = zip(node.sources, sources, strict=True)
        got = ", ".join(f"{source.width}x{source.height} of {_made_by(image)}" for image, source in parts)
        remedy = "Give the layers paddings that make the same size"
        raise MPSArgumentError(node.name, "sources", "must have the same width and height", got, remedy)


def _made_by(image: MPSNNImageNode) -> str:
    layer = image.producer
    if layer is None:
        return "an input"
    policy = layer.padding_policy
    padding = policy.label() if isinstance(policy, MPSNNDefaultPadding) else type(policy).__name__
    return f"{layer.name.replace('Node', '', 1)} (padding: {padding})"
