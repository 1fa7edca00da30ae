"""Graphs in archives: the filters that run, in order, and what a graph shares with its user (MPSNNGraph.h).

An entry numbers the images: inputs first, in the order in which an encode takes them, then the result of each filter.
A filter names only images and states before it, so no cycle can be written. Each filter keeps its node's class,
arguments and properties and the properties of its kernel, which is made from the node by the graph's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from openmps.convention import DOCUMENTED, Conventions, conventions
from openmps.core.kernel.base import MPSKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSTypeError
from openmps.formats.archive import forms
from openmps.formats.archive.sources import StandIns
from openmps.graph.compile.interface import Results
from openmps.graph.compile.passes import Network
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.catalog import rows
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode, MPSNNLabelsNode, MPSNNStateNode
from openmps.metal.device import MTLDevice

_NODES: Mapping[str, type[MPSNNFilterNode]] = {row.node.__name__: row.node for row in rows()}

_IMAGES = {"source": 0, "left_source": 0, "right_source": 1, "source_gradient": 0, "source_image": 1}
"""Arguments of nodes that are one of their source images, and which."""
_LISTED = ("source", "source_gradient", "source_image", "labels", "weights")
"""Arguments that are among the sources of a node that takes these as one."""
_STATES = ("gradient_state", "convolution_gradient_state", "convolution_transpose_gradient_state")
"""Arguments of nodes that are their source state."""
_LEFT_OUT = ("filter_size", "stride", "dilation_rate", "gradient_images", "forward_filter")
"""Short forms of arguments that are written out."""


class ValueWriter(Protocol):
    """Writes what a graph holds besides nodes: the archive's writer, of which the graph is a part."""

    stand_ins: StandIns

    def value(self, value: Any) -> Any:
        """One value as JSON."""
        ...

    def properties(self, thing: Any, names: Iterable[str], known: Mapping[str, Any]) -> dict[str, Any]:
        """Properties by name; some of them ``known`` better than by looking at the thing."""
        ...


class ValueReader(Protocol):
    """Reads what `ValueWriter` wrote."""

    def value(self, value: Any) -> Any:
        """One value of the document."""
        ...

    def set_properties(self, thing: Any, given: dict[str, Any]) -> None:
        """Set writable properties of an object to values of the document."""
        ...


def conventions_entry(thing: object) -> dict[str, Any]:
    """What an entry says of the conventions of a kernel, a graph or a policy: nothing of the defaults."""
    chosen = thing.conventions.departures() if isinstance(thing, MPSKernel | MPSNNDefaultPadding) else {}
    return {"conventions": chosen} if chosen else {}


def made_with(entry: Mapping[str, Any]) -> Conventions:
    """The block in which the object of an entry is made: nothing of those around it."""
    return conventions(**{**DOCUMENTED, **entry.get("conventions", {})})


class GraphWriter:
    """Turns one graph into an entry of a document."""

    def __init__(self, graph: MPSNNGraph, writer: ValueWriter) -> None:
        self._graph, self._writer = graph, writer
        self._interface = graph.interface
        filters = list(graph.kernels)
        images = [*self._interface.inputs, *(node.result_image for node in filters)]
        self._images = {image: place for place, image in enumerate(images)}
        self._states = {
            state: [place, index]
            for place, node in enumerate(filters)
            for index, state in enumerate(node.result_states or ())
        }
        self._places = {node: place for place, node in enumerate(filters)}

    def entry(self) -> dict[str, Any]:
        """The graph as a part of the document."""
        interface = self._interface
        others = [image for image in interface.intermediates if image not in interface.exported]
        return {
            "class": MPSNNGraph.__name__,
            **conventions_entry(self._graph),
            "inputs": [self._image(image) for image in interface.inputs],
            "filters": [self._filter(node, kernel) for node, kernel in self._graph.kernels.items()],
            "input_states": [self._input_state(state) for state in interface.input_states],
            "results": [self._result(image) for image in (interface.result, *others)],
            "result_image_is_needed": interface.result_is_needed,
            "properties": self._properties(self._graph, MPSNNGraph),
        }

    def _filter(self, node: MPSNNFilterNode, kernel: Any) -> dict[str, Any]:
        # Subclasses differ in their constructors only, or are a user's; the kernel is that of the row either way.
        kind = next(base for base in type(node).__mro__ if _NODES.get(base.__name__) is base)
        style = self._interface.styles.get(node)
        return {
            "class": kind.__name__,
            "arguments": self._arguments(node, kind, kernel),
            "properties": self._properties(node, kind, **({} if style is None else {"training_style": style})),
            "result": self._image(node.result_image),
            "states": [self._state(state) for state in node.result_states or ()],
            "kernel": self._properties(kernel, type(kernel)),
        }

    def _arguments(self, node: MPSNNFilterNode, kind: type, kernel: Any) -> dict[str, Any]:
        names = [name for name in forms.signature(kind).parameters if name not in _LEFT_OUT]
        if "left_source" in names:
            names.remove("sources")
        elif "sources" in names:
            names = [name for name in names if name not in _LISTED]
        for name in [name for name in names if name in _STATES][1:]:  # the same state by another name
            names.remove(name)
        return {name: self._argument(node, name, kernel) for name in names}

    def _argument(self, node: MPSNNFilterNode, name: str, kernel: Any) -> Any:
        if name in _IMAGES:
            return {"image": self._images[node.sources[_IMAGES[name]]]}
        if name in _STATES:
            return {"state": self._states[node.source_states[0]]} if node.source_states else None
        if name == "sources":
            return {"images": [self._images[source] for source in node.sources]}
        if name == "weights":
            return self._writer.value(self._writer.stand_ins.weights(kernel))
        if name == "data_source":
            return self._writer.value(self._writer.stand_ins.normalization(kernel))
        if not hasattr(node, name):
            rule = f"cannot be archived in a graph: its {name} cannot be read"
            raise MPSTypeError("MPSKeyedArchiver", node.name, rule, None)
        return self._writer.value(getattr(node, name))

    def _image(self, image: MPSNNImageNode) -> dict[str, Any]:
        """What the graph has read of an image node, which may have been changed since."""
        interface = self._interface
        return self._properties(
            image,
            MPSNNImageNode,
            export_from_graph=image in interface.exported,
            format=interface.formats.get(image, image.format),
            image_allocator=interface.allocators.get(image, image.image_allocator),
        )

    def _state(self, state: MPSNNStateNode) -> dict[str, Any]:
        return self._properties(state, MPSNNStateNode, export_from_graph=state in self._interface.result_states)

    def _input_state(self, state: MPSNNStateNode) -> dict[str, Any]:
        node = next((node for node in self._places if state in node.source_states), None)
        # A graph with nothing to do takes states that no filter of its own reads.
        place = None if node is None else [self._places[node], node.source_states.index(state)]
        return {"source_state": place, "properties": self._state(state)}

    def _result(self, image: MPSNNImageNode) -> dict[str, Any]:
        """A result; one that nobody needs may have no filter that makes it."""
        return {"image": self._images[image]} if image in self._images else {"unmade": self._image(image)}

    def _properties(self, thing: Any, kind: type, **known: Any) -> dict[str, Any]:
        return self._writer.properties(thing, forms.properties(kind), known)


class GraphReader:
    """Makes one graph again; whatever an entry says that no graph says raises an ordinary exception."""

    def __init__(self, reader: ValueReader, device: MTLDevice) -> None:
        self._reader, self._device = reader, device
        self._images: list[MPSNNImageNode] = []
        self._filters: list[MPSNNFilterNode] = []

    def graph(self, entry: dict[str, Any]) -> MPSNNGraph:
        """The graph of an entry, with the conventions that it was made with."""
        with made_with(entry):
            return self._made(entry)

    def _made(self, entry: dict[str, Any]) -> MPSNNGraph:
        for given in entry["inputs"]:
            self._images.append(self._image(given))
        inputs = list(self._images)
        for given in entry["filters"]:
            self._filter(given)
        states = [self._input_state(given) for given in entry["input_states"]]
        read = {state for node in self._filters for state in node.source_states if state.producer is None}
        if self._filters and (read != set(states) or len(read) != len(states)):
            raise ValueError("a graph lists each of its input states once")
        results = self._results(entry)
        graph = MPSNNGraph.assembled(self._device, Network(self._filters, inputs, states), results)
        for kernel, given in zip(graph.kernels.values(), entry["filters"], strict=True):
            self._reader.set_properties(kernel, given["kernel"])
        self._reader.set_properties(graph, entry["properties"])
        return graph

    def _image(self, given: Any) -> MPSNNImageNode:
        image = MPSNNImageNode()
        self._reader.set_properties(image, given)
        return image

    def _filter(self, given: dict[str, Any]) -> None:
        arguments = {name: self._argument(value) for name, value in given["arguments"].items()}
        node = _NODES[given["class"]](**arguments)
        self._reader.set_properties(node, given["properties"])
        self._reader.set_properties(node.result_image, given["result"])
        for state, properties in zip(node.result_states or (), given["states"], strict=True):
            self._reader.set_properties(state, properties)
        self._filters.append(node)
        self._images.append(node.result_image)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"image"}:
                return _at(self._images, value["image"])
            if value.keys() == {"images"}:
                return [_at(self._images, place) for place in value["images"]]
            if value.keys() == {"state"}:
                place, index = value["state"]
                return _at(_at(self._filters, place).result_states or (), index)
        return self._reader.value(value)

    def _input_state(self, given: dict[str, Any]) -> MPSNNStateNode:
        if self._filters:
            place, index = given["source_state"]
            state = _at(_at(self._filters, place).source_states, index)
        else:
            state = MPSNNLabelsNode()
        self._reader.set_properties(state, given["properties"])
        return state

    def _results(self, entry: dict[str, Any]) -> Results:
        nodes = [self._result(given) for given in entry["results"]]
        is_needed = entry["result_image_is_needed"]
        if not isinstance(is_needed, bool) or not nodes:
            raise TypeError("a graph says of its first result whether it is needed")
        needed = [is_needed, *[True] * (len(nodes) - 1)]
        if any(flag and node.producer is None for node, flag in zip(nodes, needed, strict=True)):
            raise ValueError("a result that is needed is made by a filter")
        return Results(MPSNNGraph.__name__, None, True, nodes, needed)

    def _result(self, given: dict[str, Any]) -> MPSNNImageNode:
        return self._image(given["unmade"]) if given.keys() == {"unmade"} else _at(self._images, given["image"])


def _at(things: Sequence[Any], place: Any) -> Any:
    """An entry by its place, which comes out of a file."""
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(things):
        raise IndexError(f"there is no entry {str(place)[:40]} of {len(things)}")
    return things[place]
