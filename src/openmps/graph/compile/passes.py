"""What the compiler does to the nodes, and to the function that they become, each equation a named pass.

====================  ===========================================  ===================================================
pass                  needs                                        ensures
====================  ===========================================  ===================================================
`reachable`           result image nodes                           filters before readers, inputs in reading order
`required`            reachable filters, which results are needed  only filters that make a needed result, export
                                                                   something or update parameters, and what these read
`check_gradients`     filters                                      no gradient filter mixes two layers
`fuse`                a function                                     fewer equations, the same numbers but for rounding
                                                                   (`openmps.ops.rewrite.fuse`)
`verify`              a function                                       each value is filled once, before it is read
====================  ===========================================  ===================================================
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from openmps.convention import current
from openmps.errors import MPSArgumentError
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.nodes.trainable import wants_parameter_gradients


@dataclass(slots=True)
class Network:
    """The filters that results depend on, producers first, and the inputs in the order in which they are reached."""

    filters: list[MPSNNFilterNode] = field(default_factory=list[MPSNNFilterNode])
    images: list[MPSNNImageNode] = field(default_factory=list[MPSNNImageNode])
    states: list[MPSNNStateNode] = field(default_factory=list[MPSNNStateNode])


def producers(node: MPSNNFilterNode) -> list[MPSNNFilterNode]:
    """The filters whose images or states ``node`` reads, in argument order."""
    read: list[MPSNNImageNode | MPSNNStateNode] = [*node.sources, *node.source_states]
    return [source.producer for source in read if source.producer is not None]


def reachable(results: Sequence[MPSNNImageNode]) -> Network:
    """Everything that the results depend on, depth first, sources in argument order."""
    network = Network()
    done: set[object] = set()
    for result in results:
        if result.producer is None:
            rule, got = "must be made by a filter node", "an input image node"
            raise MPSArgumentError("MPSNNGraph", "result_image", rule, got, "Pass the result_image of a filter node")
        _visit(result.producer, network, done)
    if len(network.images) + len(network.states) > 1 and current()["source_order"] == "breadth":
        met = _breadth_first(results)
        network.images.sort(key=met.__getitem__)
        network.states.sort(key=met.__getitem__)
    return network


def _breadth_first(results: Sequence[MPSNNImageNode]) -> dict[MPSNNImageNode | MPSNNStateNode, int]:
    """The place of each image and state among those met by filters, nearest to the results first."""
    met: dict[MPSNNImageNode | MPSNNStateNode, int] = {}
    waiting = deque(result.producer for result in results)
    done: set[MPSNNFilterNode] = set()
    while waiting:
        node = waiting.popleft()
        if node is None or node in done:
            continue
        done.add(node)
        for source in (*node.sources, *node.source_states):
            met.setdefault(source, len(met))
            waiting.append(source.producer)
    return met


def check_listed(network: Network) -> None:
    """Raise unless every filter comes after those whose results it reads, and every input that is read is listed."""
    made: set[MPSNNFilterNode] = set()
    listed = {*network.images, *network.states}
    for node in network.filters:
        for source in (*node.sources, *node.source_states):
            if (source not in listed) if source.producer is None else (source.producer not in made):
                rule = "must list the inputs that its filters read, and filters before those that read their results"
                raise MPSArgumentError("MPSNNGraph", "network", rule, f"{node!r} before {source!r}")
        made.add(node)


def _visit(last: MPSNNFilterNode, network: Network, done: set[object]) -> None:
    stack: list[MPSNNFilterNode] = [last]
    open_nodes: set[MPSNNFilterNode] = {last}
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        waiting = _next_source(node, network, done)
        if waiting is None:
            stack.pop()
            done.add(node)
            network.filters.append(node)
        elif waiting in open_nodes:
            raise MPSArgumentError("MPSNNGraph", "nodes", "must not form a cycle", repr(waiting))
        else:
            open_nodes.add(waiting)
            stack.append(waiting)


def _next_source(node: MPSNNFilterNode, network: Network, done: set[object]) -> MPSNNFilterNode | None:
    """The first producer that is not done yet; inputs met on the way are noted."""
    for source in (*node.sources, *node.source_states):
        if source.producer is not None:
            if source.producer not in done:
                return source.producer
        elif source not in done:
            done.add(source)
            if isinstance(source, MPSNNImageNode):
                network.images.append(source)
            else:
                network.states.append(source)
    return None


def required(
    filters: Sequence[MPSNNFilterNode], needed: Iterable[MPSNNImageNode]
) -> tuple[list[MPSNNFilterNode], set[MPSNNImageNode]]:
    """The filters to run, in order, and the images that somebody reads or asked for."""
    wanted = {image.producer for image in needed}
    images = set(needed)
    for node in filters:
        exported = node.result_image.export_from_graph or any(
            state.export_from_graph for state in node.result_states or ()
        )
        if exported or wants_parameter_gradients(node):
            wanted.add(node)
        if node.result_image.export_from_graph:
            images.add(node.result_image)
    keep: set[MPSNNFilterNode] = set()
    stack = [node for node in wanted if node is not None]
    while stack:
        node = stack.pop()
        if node not in keep:
            keep.add(node)
            images.update(node.sources)
            stack.extend(producers(node))
    return [node for node in filters if node in keep], images


def check_gradients(filters: Iterable[MPSNNFilterNode]) -> None:
    """Raise unless each gradient filter has an image of the filter whose state it reads.

    Another layer's, with equal shapes, would give the gradient of neither. A data source of its own is allowed.
    """
    for node in filters:
        if not isinstance(node, MPSNNGradientFilterNode):
            continue
        forward, source = node.forward, node.sources[1]
        if source not in (*forward.sources, forward.result_image):
            rule = f"must be an image of {forward.name}, whose gradient state it reads"
            raise MPSArgumentError(node.name, "source_image", rule, repr(source), "Call gradient_filter on that node")
