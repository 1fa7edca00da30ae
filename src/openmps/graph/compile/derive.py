"""The training graph: one reverse walk over the nodes, with sums where a result fans out.

(MPSNNGraphNodes.h, ``trainingGraphWithSourceGradient:nodeHandler:``, macOS 10.14.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.checks import MaybeNone
from openmps.convention import current
from openmps.errors import MPSTypeError
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode, NodeHandler, row_of
from openmps.graph.nodes.rows import Row
from openmps.selectors import accepts

_Place = tuple[int, int]
"""A consumer of an image: its place among the forward nodes, producers first, and which of its sources the image is."""


def ancestors(last: MPSNNFilterNode) -> list[MPSNNFilterNode]:
    """``last`` and every filter before it, each behind all filters that it reads from."""
    ordered: list[MPSNNFilterNode] = []
    seen: set[MPSNNFilterNode] = set()
    stack: list[tuple[MPSNNFilterNode, bool]] = [(last, False)]
    while stack:
        node, finished = stack.pop()
        if finished:
            ordered.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        producers = [image.producer for image in node.sources if image.producer is not None]
        stack.extend((producer, False) for producer in reversed(producers) if producer not in seen)
    return ordered


class _Derivation:
    """Gradients that wait for their image's producer, and the nodes made so far."""

    def __init__(self, handler: NodeHandler | None) -> None:
        self._handler = handler
        self._waiting: dict[MPSNNImageNode, list[tuple[_Place, MPSNNImageNode]]] = {}
        self._made: list[MPSNNFilterNode] = []
        self._read: set[MPSNNImageNode] = set()

    def add(self, image: MPSNNImageNode, gradient: MPSNNImageNode, place: _Place) -> None:
        """``gradient`` is the part of the gradient of ``image`` that comes from the consumer at ``place``."""
        self._waiting.setdefault(image, []).append((place, gradient))

    def take(self, image: MPSNNImageNode) -> MPSNNImageNode | None:
        """The gradient of ``image``, a sum over its consumers in forward order; None if there is none or it stops.

        By the convention ``addition_order`` of the block that derives, it begins with the last consumer.
        """
        is_reversed = current()["addition_order"] == "reversed"
        waiting = sorted(self._waiting.pop(image, []), key=lambda entry: entry[0], reverse=is_reversed)
        parts = [part for _, part in waiting]
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            addition = MPSNNAdditionNode(total, part)
            self._announce(addition, None, image, part)
            total = addition.result_image
        return None if total.stop_gradient else total

    def differentiate(self, node: MPSNNFilterNode, gradient: MPSNNImageNode, place: int) -> None:
        """Make the gradient nodes of ``node`` and pass their results on."""
        made = _gradient_filters(node, gradient)
        for index, (gradient_node, source) in enumerate(zip(made, node.sources, strict=False)):
            if len(made) > 1 and source.stop_gradient:
                continue  # Nothing is trained by it; a node with one source may be trained itself.
            self._announce(gradient_node, node, source, gradient)
            if not gradient_node.result_image.stop_gradient:
                self.add(source, gradient_node.result_image, (place, index))

    def finish(self) -> list[MPSNNFilterNode] | MaybeNone:
        """Add up the gradients of inputs; the new nodes whose results no other new node reads."""
        for image in list(self._waiting):
            self.take(image)
        return [node for node in self._made if node.result_image not in self._read] or None

    def _announce(
        self,
        gradient_node: MPSNNFilterNode,
        node: MPSNNFilterNode | None,
        source: MPSNNImageNode,
        gradient: MPSNNImageNode,
    ) -> None:
        self._made.append(gradient_node)
        self._read.update(gradient_node.sources)
        if self._handler is None:
            gradient_node.result_image.handle = source.handle
        else:
            self._handler(gradient_node, node, source, gradient)


_WAYS = ("gradient_filters", "_gradient_nodes", "gradient_filter")
"""What a class may override to say what its gradient nodes are; the first that it does is asked."""


def _gradient_filters(node: MPSNNFilterNode, gradient: MPSNNImageNode) -> list[MPSNNFilterNode]:
    """The gradient nodes of a node, one a source, by the method that it or the nearest of its bases overrides."""
    way = next(name for base in type(node).__mro__ for name in _WAYS if name in vars(base))
    if way == "gradient_filter":
        made: object = [node.gradient_filter(gradient)]
    else:
        way, made = "gradient_filters", node.gradient_filters(gradient)
    listed: list[Any] = [*made] if isinstance(made, Sequence) else [made]
    most = len(node.sources)
    if not 1 <= len(listed) <= most or not all(isinstance(each, MPSNNFilterNode) for each in listed):
        rule = f"must return the gradient nodes of the sources, in their order, {most} at most"
        raise MPSTypeError(node.name, f"{way}()", rule, [type(each).__name__ for each in listed])
    return listed


def training_graph(
    last: MPSNNFilterNode, source_gradient: MPSNNImageNode | None, handler: NodeHandler | None
) -> list[MPSNNFilterNode] | MaybeNone:
    """Gradient nodes for ``last`` and its ancestors; see `MPSNNFilterNode.training_graph`."""
    if source_gradient is not None and not isinstance(source_gradient, MPSNNImageNode):
        rule = "must be an MPSNNImageNode or None"
        raise MPSTypeError(last.name, "source_gradient", rule, type(source_gradient).__name__)
    if handler is not None and not callable(handler):
        raise MPSTypeError(last.name, "node_handler", "must be callable or None", type(handler).__name__)
    if handler is not None:
        accepts(last.name, "node_handler", handler, "gradient_node forward_node source_image source_gradient")
    start = last.result_image if source_gradient is None else source_gradient
    derivation = _Derivation(handler)
    forward = ancestors(last)
    row = row_of(last)
    is_loss = isinstance(row, Row) and row.is_gradient  # whose result is the gradient of its source
    derivation.add(last.sources[0] if is_loss else last.result_image, start, (len(forward), 0))
    if is_loss:
        forward = forward[:-1]
    for place in reversed(range(len(forward))):
        node = forward[place]
        # Whoever reads a stopped image still gets its gradient nodes, and their sum is made; its producer gets none.
        gradient = derivation.take(node.result_image)
        if gradient is not None and not node.result_image.stop_gradient:
            derivation.differentiate(node, gradient, place)
    return derivation.finish()
