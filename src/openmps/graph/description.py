"""A graph in words: every node with its images, their formats, and its padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmps.core.padding.policy import padding_label
from openmps.graph.compile.interface import Interface, source_label
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
    handle_label,
)
from openmps.tables import html_table
from openmps.types import MPSImageFeatureChannelFormat

_Node = MPSNNImageNode | MPSNNStateNode
_UNMADE = "an image that no filter makes"


def description(
    name: str, interface: Interface, kernels: Mapping[MPSNNFilterNode, Any], default: MPSImageFeatureChannelFormat
) -> str:
    """The text: a line for the graph, for each input, for each filter in order, and for the results."""
    names = _names(interface, list(kernels))
    images, states = ([names[node] for node in nodes] for nodes in (interface.inputs, interface.input_states))
    lines = [f"{name}: {len(kernels)} filter(s), images are {default.name.lower()} unless their node says otherwise"]
    lines += [f"source image {place}: {image}" for place, image in enumerate(images)]
    lines += [f"source state {place}: {state}" for place, state in enumerate(states)]
    for place, node in enumerate(kernels):
        chosen = interface.formats[node.result_image]
        form = default if chosen is MPSImageFeatureChannelFormat.NONE else chosen
        lines.append(
            f"{place}: {_filter(node, kernels[node], names)}, {form.name.lower()}{_placing(node, kernels[node])}"
        )
    needed = "" if interface.result_is_needed else ", which is not needed"
    lines.append(f"result: {names.get(interface.result, _UNMADE)}{needed}")
    made = [names.get(image, _UNMADE) for image in interface.intermediates]
    lines += [f"intermediate image {place}: {image}" for place, image in enumerate(made)]
    lines += [f"result state {place}: {names[state]}" for place, state in enumerate(interface.result_states)]
    return "\n".join(lines)


def table(kernels: Mapping[MPSNNFilterNode, Any], interface: Interface) -> str:
    """The same as HTML, for notebooks: a row for each filter."""
    names = _names(interface, list(kernels))
    rows = [("", "filter", "kernel", "reads", "makes", "padding")]
    for place, (node, kernel) in enumerate(kernels.items()):
        read, made = _read(node, names), _made(node, names)
        placing = "" if isinstance(node, MPSNNGradientFilterNode) else padding_label(kernel.padding)
        rows.append((str(place), node.name, repr(kernel), ", ".join(read), ", ".join(made), placing))
    return html_table(rows)


def _filter(node: MPSNNFilterNode, kernel: Any, names: Mapping[_Node, str]) -> str:
    return f"{node.name} by {type(kernel).__name__}: {', '.join(_read(node, names))} -> {', '.join(_made(node, names))}"


def _read(node: MPSNNFilterNode, names: Mapping[_Node, str]) -> list[str]:
    return [names[each] for each in (*node.sources, *node.source_states) if each in names]


def _made(node: MPSNNFilterNode, names: Mapping[_Node, str]) -> list[str]:
    return [names[each] for each in (node.result_image, *(node.result_states or ())) if each in names]


def _placing(node: MPSNNFilterNode, kernel: Any) -> str:
    """The padding; gradients follow their forward filter."""
    return "" if isinstance(node, MPSNNGradientFilterNode) else f", padding {padding_label(kernel.padding)}"


def _names(interface: Interface, filters: Sequence[MPSNNFilterNode]) -> dict[_Node, str]:
    """Images and states by number, inputs first, with the labels of their handles."""
    images = [*interface.inputs, *(node.result_image for node in filters)]
    read = {state for node in filters for state in node.source_states} | set(interface.result_states)
    made = [state for node in filters for state in node.result_states or () if state in read]
    states = [*interface.input_states, *made]
    found: dict[_Node, str] = {}
    for kind, nodes in (("image", images), ("state", states)):
        for place, node in enumerate(nodes):
            label = handle_label(node.handle)
            is_nameless = label is None and node in interface.inputs
            found[node] = source_label(place) if is_nameless else f"{kind} {place}" + (f" {label!r}" if label else "")
    return found
