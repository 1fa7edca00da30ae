"""The graph of a page: a node for each source image and filter, an edge for each image that a filter reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.padding.policy import padding_label
from openmps.debug.labels import step_places
from openmps.debug.page.placement import is_placed, placement, sides
from openmps.graph.compile.program import Program, Stage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNGradientFilterNode, MPSNNImageNode, handle_label, row_of
from openmps.graph.nodes.rows import Row
from openmps.graph.run.trace import gradient_images, layer_names
from openmps.graph.summary import SummaryRow, summary_rows

_FAMILIES = (
    ("FullyConnected", "weights"),
    ("Convolution", "weights"),
    ("Normalization", "normalization"),
    ("Neuron", "neuron"),
    ("SoftMax", "neuron"),
    ("Pooling", "pooling"),
    ("Loss", "loss"),
)
"""What the names of classes have in common that are drawn alike."""
_OTHER, _SOURCE = "other", "source"


class Drawing:
    """Nodes and edges of a program, as a page draws them; sources come first, then the filters in their order."""

    def __init__(self, graph: MPSNNGraph, descriptors: Sequence[MPSImageDescriptor], count: int) -> None:
        self.program: Program = graph.program_for(descriptors, count)
        self.names = layer_names(self.program)
        self._gradients = gradient_images(self.program)
        self._first = len(self.program.inputs)
        self._groups = _groups(self.program)
        rows = summary_rows(self.program)
        self.nodes = [*self._sources(), *map(self._node, self.program.stages, rows, range(len(self.names)))]
        self.edges = list(self._edges())

    def index(self, place: int) -> int:
        """The node of a filter."""
        return self._first + place

    def _sources(self) -> Iterator[dict[str, Any]]:
        for index, node in enumerate(self.program.inputs):
            descriptor = self.program.descriptors[node]
            label = handle_label(node.handle) or f"source {index}"
            lengths = [descriptor.width, descriptor.height, descriptor.feature_channels]
            yield {
                "label": label,
                "class": "MPSImage",
                "family": _SOURCE,
                "result": lengths,
                "format": descriptor.channel_format.name.lower(),
                "sources": [],
                "parameters": 0,
            }

    def _node(self, stage: Stage, row: SummaryRow, place: int) -> dict[str, Any]:
        kind = row.class_name
        found: dict[str, Any] = {
            "label": self.names[place],
            "class": kind,
            "family": next((family for word, family in _FAMILIES if word in kind), _OTHER),
            "gradient": self._is_gradient(stage),
            "fused": row.is_fused,
            "group": None if place not in self._groups else self.index(self._groups[place]),
            "sources": [list(source) for source in row.sources],
            "result": None if row.result is None else list(row.result),
            "format": row.channel_format.name.lower(),
            "parameters": row.parameters,
            "parameter_bytes": row.parameter_bytes,
            "result_bytes": row.result_bytes,
        }
        if is_placed(stage):
            found["policy"] = padding_label(stage.node.padding_policy)
            found["placement"] = placement(stage)
        return found

    def _is_gradient(self, stage: Stage) -> bool:
        """Whether a filter belongs to the way back; a loss ends the way there."""
        row = row_of(stage.node)
        is_loss = isinstance(row, Row) and row.is_gradient
        return not is_loss and (
            isinstance(stage.node, MPSNNGradientFilterNode) or stage.node.result_image in self._gradients
        )

    def _edges(self) -> Iterator[dict[str, Any]]:
        makers: dict[MPSNNImageNode, int] = {image: index for index, image in enumerate(self.program.inputs)}
        makers |= {stage.node.result_image: self.index(place) for place, stage in enumerate(self.program.stages)}
        for place, stage in enumerate(self.program.stages):
            placed = is_placed(stage)
            for slot, image in enumerate((*stage.sources, *stage.operands.values())):
                maker = makers[image]
                found: dict[str, Any] = {"from": maker, "to": self.index(place)}
                if placed and slot < len(stage.plan.sources):
                    found["padding"] = sides(stage, stage.plan.sources[slot])
                yield found


def _groups(program: Program) -> dict[int, int]:
    """Of each filter that is fused, and of each that others are fused into: the last filter of the step they run in."""
    fused = {program.places[node] for node in program.fused}
    last: dict[int, int] = {}
    for places in step_places(program, program.function):
        # What a later step computes again was there in the first one.
        last |= {place: places[-1] for place in places[:-1] if place in fused and place not in last}
    found: dict[int, int] = {}
    for place in last:
        end = place
        while end in last:
            end = last[end]
        found[place] = found[end] = end
    return found
