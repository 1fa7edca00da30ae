"""What goes into a graph and what comes out of it, in the order in which users name it by handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from openmps.checks import MaybeNone, flag, of_kind
from openmps.convention import current
from openmps.core.image.allocator import ORDINARY, TEMPORARY
from openmps.core.image.image import MPSImageAllocator
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.compile.passes import Network
from openmps.graph.nodes.node import (
    Handle,
    MPSHandle,
    MPSNNFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
    handle_label,
)
from openmps.types import MPSImageFeatureChannelFormat, MPSNNTrainingStyle


class Results:
    """The result image nodes of a graph, and which of them its encodes must compute."""

    def __init__(
        self,
        who: str,
        result_image: MPSNNImageNode | None,
        result_image_is_needed: bool,
        result_images: Sequence[MPSNNImageNode] | None,
        results_are_needed: Sequence[bool] | None,
    ) -> None:
        if (result_image is None) == (result_images is None):
            raise MPSTypeError(who, "result_image", "or result_images is needed, one of them")
        if result_images is not None and not isinstance(result_images, Sequence):
            rule, remedy = "must be a sequence of MPSNNImageNode", "Pass [node]"
            raise MPSTypeError(who, "result_images", rule, type(result_images).__name__, remedy)
        given: Sequence[object] = [result_image] if result_images is None else list(result_images)
        flags = [result_image_is_needed] if result_images is None else results_are_needed
        remedy = "Pass the result_image of a filter node"
        self.nodes = [of_kind(who, f"result {at}", each, MPSNNImageNode, remedy) for at, each in enumerate(given)]
        if flags is not None and (isinstance(flags, str) or not isinstance(flags, Sequence)):
            raise MPSTypeError(who, "results_are_needed", "must be a sequence of flags", repr(flags), "Pass [flag]")
        named = "result_image_is_needed" if result_images is None else "results_are_needed"
        self.needed = [True] * len(self.nodes) if flags is None else [flag(who, named, each) for each in flags]
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise MPSArgumentError(who, "result_images", "must be at least one, all different", len(self.nodes))
        if len(self.needed) != len(self.nodes):
            rule = f"must say it of each of {len(self.nodes)} results"
            raise MPSArgumentError(who, "results_are_needed", rule, f"{len(self.needed)} flags")

    def wanted(self) -> list[MPSNNImageNode]:
        """The needed ones."""
        return [node for node, needed in zip(self.nodes, self.needed, strict=True) if needed]


def source_label(place: int) -> str:
    """What a source image is called whose node has no handle, or one without a label."""
    return f"source {place}"


def _in_order(
    exported: list[MPSNNImageNode], others: list[MPSNNImageNode], filters: Sequence[MPSNNFilterNode]
) -> list[MPSNNImageNode]:
    """Exported images and further results as encodes append them."""
    order = current()["intermediate_order"] if exported and others else "exported"
    if order == "made":
        images = {*exported, *others}
        return [node.result_image for node in filters if node.result_image in images]
    return others + exported if order == "results" else exported + others


class Interface:
    """The image and state nodes that a graph shares with its user. Read from the nodes once, when the graph is made.

    A graph without filters has nothing to do: it takes what it would take if its results were needed, and one read.
    """

    def __init__(self, network: Network, filters: Sequence[MPSNNFilterNode], results: Results) -> None:
        read = {image for node in filters for image in node.sources}
        read_states = {state for node in filters for state in node.source_states}
        idle = not filters
        self.inputs = [image for image in network.images if idle or image in read]
        self.input_states = [state for state in network.states if idle or state in read_states]
        self.image_arguments = [f"source_images[{index}]" for index in range(len(self.inputs))]
        """What errors of an encode call the source images."""
        self.state_arguments = [f"source_states[{index}]" for index in range(len(self.input_states))]
        self.result = results.nodes[0]
        self.result_is_needed = results.needed[0]
        self.exported = [node.result_image for node in filters if node.result_image.export_from_graph]
        """Exported images as they are made."""
        others = [image for image in results.wanted() if image is not self.result and image not in self.exported]
        self.intermediates = _in_order(self.exported, others, filters)
        """Exported images as they are made, then the other results, by the convention ``intermediate_order``."""
        states = [state for node in filters for state in node.result_states or ()]
        self.result_states = [state for state in states if state.export_from_graph]
        """Exported states as they are made."""
        self.formats: dict[MPSNNImageNode, MPSImageFeatureChannelFormat] = {
            node.result_image: node.result_image.format for node in filters
        }
        """What the nodes say on how their images are stored."""
        self.styles: dict[MPSNNFilterNode, MPSNNTrainingStyle] = {
            node: style for node in filters if (style := getattr(node, "training_style", None)) is not None
        }
        """What the nodes say on who updates their parameters."""
        self.allocators: dict[MPSNNImageNode, MPSImageAllocator] = {
            image: image.image_allocator for image in self.intermediates
        }
        self.observed = {
            image: allocator
            for image, allocator in self.allocators.items()
            if allocator is not ORDINARY and allocator is not TEMPORARY
        }
        """Those of them that a user's own allocator makes, whether or not anybody takes them."""
        self._reads = {
            source: sum([*node.sources, *node.source_states].count(source) for node in filters) or 1
            for source in (*self.inputs, *self.input_states)
        }
        self._takes_all_reads = not any(reads > 1 for reads in self._reads.values()) or (
            current()["source_reads"] == "enough"
        )
        self._conventions = current()
        self._handles: dict[MPSNNImageNode | MPSNNStateNode, MPSHandle] = {}

    def outputs(self) -> list[MPSNNImageNode]:
        """Every image that leaves the graph."""
        return [self.result, *self.intermediates] if self.result_is_needed else self.intermediates

    def taken(self, node: MPSNNImageNode | MPSNNStateNode) -> int:
        """How many reads an encode takes of a temporary input that has so many."""
        reads = self._reads[node]
        return reads if reads == 1 or self._takes_all_reads else 1

    def reads(self, node: MPSNNImageNode | MPSNNStateNode) -> int:
        """How often the filters read an input."""
        return self._reads[node]

    def handle(self, node: MPSNNImageNode | MPSNNStateNode) -> MPSHandle | MaybeNone:
        """The node's handle, an image where that is the user's, or one of the graph's own for a node without.

        By the convention ``nil_handles`` that may be None.
        """
        if node.handle is not None:
            return cast(MPSHandle, node.handle)
        if self._conventions["nil_handles"] == "none":
            return None
        return self._handles.setdefault(node, Handle())

    def handles(self, nodes: Sequence[MPSNNImageNode | MPSNNStateNode]) -> list[MPSHandle | MaybeNone]:
        """A handle for each node."""
        return [self.handle(node) for node in nodes]

    def count_rule(self, nodes: Sequence[MPSNNImageNode | MPSNNStateNode]) -> str:
        """What errors say that a list of what belongs to some inputs must be."""
        if not nodes:
            return "must be empty"
        labels = [handle_label(handle) for handle in self.handles(nodes)]
        named = ", ".join("one without a label" if label is None else repr(label) for label in labels)
        count = f"must have {len(nodes)} entr{'y' if len(nodes) == 1 else 'ies'}, one for each input"
        return count if not any(labels) else f"{count}: {named}"
