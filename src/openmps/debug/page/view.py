"""What a page shows of one graph: its drawing, with values, pictures and times of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openmps.checks import whole
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.debug.labels import joined_label, step_places
from openmps.debug.page.drawing import Drawing
from openmps.debug.page.figures import feature_maps, filters, histogram
from openmps.debug.profiling import Profile, profile
from openmps.errors import MPSArgumentError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.run.trace import Trace, TracedKind, TracedValue

_WHO = "openmps.debug.save_page"
_PIXELS = 2_400_000
"""Of all pictures of a page."""
_MOST_EACH = 48_000
"""Of the pictures of one value."""
_PICTURED = (TracedKind.SOURCE, TracedKind.IMAGE, TracedKind.GRADIENT)
_WEIGHTS = "weights"
_KEPT_STATES = "gradient"
"""What states are called that are gradients of parameters."""


@dataclass(frozen=True)
class GraphView:
    """One graph as a page shows it; made by `graph_view`. Our addition."""

    name: str
    data: dict[str, Any]


def graph_view(
    graph: MPSNNGraph,
    name: str,
    sources: Sequence[Any] | None = None,
    states: Sequence[Any] | None = None,
    *,
    descriptors: Sequence[MPSImageDescriptor] | None = None,
    repeats: int = 0,
    classes: Sequence[str] = (),
    missing: str = "",
    share: float = 1.0,
) -> GraphView:
    """Look into a graph: its layers, and what they make of sources and states, as `MPSNNGraph.trace` takes them.

    Without ``sources`` it is planned for images of ``descriptors``, and ``missing`` says how values are to be had.
    ``repeats`` runs are timed, none for 0; what a training graph updates is updated then. ``classes`` are the names of
    the result's channels, ``share`` is the part of a page's pictures that this graph may have.

    Raises:
        MPSArgumentError: Neither sources nor descriptors are given.
    """
    whole(_WHO, "repeats", repeats, 0)
    if sources is None and descriptors is None:
        rule, remedy = "or image_descriptors must be given", "Pass arrays of images"
        raise MPSArgumentError(_WHO, "source_images", rule, None, remedy)
    batches = None if sources is None else [_batch(graph, each) for each in sources]
    shapes = list(descriptors or ()) if batches is None else [_descriptor(each) for each in batches]
    drawing = Drawing(graph, shapes, 1 if batches is None else len(batches[0]))
    data: dict[str, Any] = {
        "name": name,
        "nodes": drawing.nodes,
        "edges": drawing.edges,
        "images": drawing.program.images,
        "classes": list(classes),
        "missing": missing,
    }
    if batches is not None:
        _keep_values(drawing, graph.trace(batches, states), int(_PIXELS * share))
        if repeats:
            found = profile(graph.device, lambda buffer: graph.encode_batch(buffer, batches, states), repeats=repeats)
            data["time"] = _keep_times(drawing, found)
    return GraphView(name, data)


def _batch(graph: MPSNNGraph, source: Any) -> MPSImageBatch:
    return source if isinstance(source, MPSImageBatch) else MPSImageBatch.from_numpy(graph.device, np.asarray(source))


def _descriptor(batch: MPSImageBatch) -> MPSImageDescriptor:
    shape = batch.whole().shape
    return MPSImageDescriptor(shape.channel_format, shape.extent.width, shape.extent.height, shape.extent.channels)


# --- values -----------------------------------------------------------------------------------------------------------


def _keep_values(drawing: Drawing, trace: Trace, pixels: int) -> None:
    """Put what a trace has into the nodes of its layers."""
    nodes = {node["label"]: node for node in drawing.nodes}
    wanted = [(node, entry) for node, entry in _of_layers(nodes, trace)]
    budget = min(pixels // max(sum(_is_pictured(entry) for _, entry in wanted), 1), _MOST_EACH)
    for node, entry in wanted:
        node.setdefault("values", []).append(_value(entry, budget))


def _of_layers(nodes: dict[str, Any], trace: Trace) -> Iterator[tuple[dict[str, Any], TracedValue]]:
    for entry in trace.entries:
        node = nodes.get(entry.layer)
        is_state = entry.kind is TracedKind.STATE and not entry.label.endswith(_KEPT_STATES)
        if node is not None and not is_state and entry.array.dtype.kind == "f" and entry.array.size:
            yield node, entry


def _is_pictured(entry: TracedValue) -> bool:
    return entry.array.ndim == 4 and (entry.kind in _PICTURED or _is_weights(entry))


def _is_weights(entry: TracedValue) -> bool:
    return entry.label.rpartition("/")[2] == _WEIGHTS


def _value(entry: TracedValue, budget: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": entry.label,
        "kind": entry.kind.value,
        "shape": list(entry.array.shape),
        "format": entry.format_name,
        "histogram": histogram(entry.array),
    }
    if entry.array.ndim == 4 and entry.kind in _PICTURED:
        found["maps"] = feature_maps(entry.array, budget)
    elif _is_weights(entry):
        found["filters"] = filters(entry.array, budget)
    return found


# --- times ------------------------------------------------------------------------------------------------------------


def _keep_times(drawing: Drawing, found: Profile) -> dict[str, Any]:
    """Put the seconds of steps into the nodes whose work they do, and give those of the whole."""
    program, names = drawing.program, drawing.names
    places = {joined_label(names, each): each for each in step_places(program, program.function)}
    for step in found.steps:
        of = places.get(step.label)
        if of:
            last = drawing.nodes[drawing.index(of[-1])]
            node = last if last["group"] is None else drawing.nodes[last["group"]]
            node["seconds"] = node.get("seconds", 0.0) + step.seconds
            node["operations"] = node.get("operations", 0) + step.operations
            node["bytes"] = node.get("bytes", 0) + step.bytes
            node["timed"] = sorted({*node.get("timed", ()), *map(drawing.index, of)})
    limits = found.limits
    return {
        "seconds": found.seconds,
        "steps": found.step_seconds,
        "device": limits.device,
        "operations": max(limits.operations.values()),
        "bandwidth": limits.bandwidth,
    }
