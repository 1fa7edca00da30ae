"""Cases of graphs of inference: filter nodes in order, each over sources and results of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import openmps.names as names
from openmps.conformance.arrays import written
from openmps.conformance.kernels import image, pixels
from openmps.conformance.objects import Maker

Given = Mapping[str, Any]


class NodeMaker(Maker):
    """Besides numbers and objects it knows the images of one graph: ``source`` by number, ``node`` by its place."""

    def __init__(self, device: names.MTLDevice, sources: int) -> None:
        super().__init__(device)
        self.sources = [names.MPSNNImageNode(names.Handle(f"source {place}")) for place in range(sources)]
        self.nodes: list[Any] = []

    def value(self, given: Any) -> Any:
        """An image of the graph, or what else stands in a case."""
        if isinstance(given, Mapping) and "source" in given:
            return self.sources[given["source"]]
        if isinstance(given, Mapping) and "node" in given:
            return self.nodes[given["node"]].result_image
        return super().value(given)


def graph_answer(maker: Maker, entry: Given) -> tuple[dict[str, Any], list[Any]]:
    """What a graph's case reads, and the nodes that answered."""
    nodes = NodeMaker(maker.device, len(entry["sources"]))
    for given in entry["nodes"]:
        nodes.nodes.append(nodes.object(given))
    graph = names.MPSNNGraph(maker.device, nodes.nodes[-1].result_image)
    if "format" in entry:
        graph.format = names.MPSImageFeatureChannelFormat(entry["format"])
    graph.destination_image_allocator = names.MPSImage.default_allocator()
    command_buffer = maker.device.new_command_queue().command_buffer()
    order = [int((handle.label() or "").rpartition(" ")[2]) for handle in graph.source_image_handles]
    given = [image(maker.device, entry["sources"][place]) for place in order]
    if maker.noted is not None:
        maker.noted.asked |= graph.conventions_asked([each.descriptor() for each in given]).keys()
    result = graph.encode(command_buffer, given)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return dict(_read(entry, graph, order, result)), nodes.nodes


def _read(entry: Given, graph: names.MPSNNGraph, order: list[int], result: Any) -> Iterator[tuple[str, Any]]:
    for name in entry["read"]:
        if name == "result":
            yield name, written(pixels(result))
        elif name == "sourceOrder":
            yield name, order
        elif name == "size":
            yield name, [result.width, result.height, result.feature_channels]
        elif name == "pixelFormat":
            yield name, int(result.pixel_format)
        elif name == "intermediateCount":
            yield name, len(graph.intermediate_image_handles)
        else:
            yield name, len(graph.source_state_handles)
