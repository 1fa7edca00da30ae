"""Conventions of graphs: what they take, hand out and compute of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openmps as mps
from convention_cases.case import Absent, Case, Subject, ahead, graph_of, network, row_image
from mac_facts.fact import DEVICE, image
from openmps.convention.table import CONVENTIONS
from oracles import conventions as oracle

Node = mps.MPSNNImageNode
ORDINARY = mps.MPSImage.default_allocator()


def alone(name: str) -> Absent:
    """What concerns graphs and nodes only."""
    concerns = CONVENTIONS[name].concerns
    return Absent(
        "only a graph has it", lambda: all(each == "MPSNNGraph" or each.endswith("Node") for each in concerns)
    )


# --- sources and reads ------------------------------------------------------------------------------------------------


def _ordered() -> Subject:
    """The sources of (c - b) - a are 1, 10 and 100 in the order of the graph's handles."""

    def make() -> Sequence[Any]:
        a, b, c = (Node(mps.Handle(f"source {place}")) for place in range(3))
        first = mps.MPSNNSubtractionNode(ahead(c, 1), b).result_image
        return [graph_of(mps.MPSNNSubtractionNode(first, a))]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        return [graph.encode(command_buffer, [row_image([value]) for value in (1.0, 10.0, 100.0)])]

    return Subject(make, encode, [row_image([0.0])] * 3)


def _read() -> Subject:
    """A temporary image added to itself, and the reads that are left of three."""

    def make() -> Sequence[Any]:
        source = Node(mps.Handle("source 0"))
        return [graph_of(mps.MPSNNAdditionNode(ahead(source, 1), source))]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        source = mps.MPSCNNNeuronReLU(DEVICE, 0.0).encode(command_buffer, row_image([4.0]))
        source.read_count = 3
        made = graph.encode(command_buffer, [source])
        left = source.read_count
        source.read_count = 0
        return [left, made]

    return Subject(make, encode, [row_image([4.0])])


def _intermediates(exported: int) -> Subject:
    """Two further images of a chain of additions of 1: one exported, one a further result."""

    def make() -> Sequence[Any]:
        nodes = [mps.MPSCNNNeuronLinearNode(ahead(Node(mps.Handle("source 0")), 1), 1.0, 1.0)]
        for _ in range(2):
            nodes.append(mps.MPSCNNNeuronLinearNode(nodes[-1].result_image, 1.0, 1.0))
        for node in nodes[:2]:
            node.result_image.image_allocator = ORDINARY
        nodes[exported].result_image.export_from_graph = True
        return [graph_of([nodes[2].result_image, nodes[1 - exported].result_image])]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        made: list[mps.MPSImage] = []
        graph.encode(command_buffer, [row_image([0.0])], None, made)
        return made

    return Subject(make, encode)


def _both_intermediates() -> Subject:
    subjects = [_intermediates(exported) for exported in range(2)]

    def make() -> Sequence[Any]:
        return [graph for each in subjects for graph in each.make()]

    def encode(command_buffer: Any, *graphs: mps.MPSNNGraph) -> Sequence[Any]:
        return [
            made for each, graph in zip(subjects, graphs, strict=True) for made in each.encode(command_buffer, graph)
        ]

    return Subject(make, encode, [row_image([0.0])])


def _handles() -> Subject:
    """How many handles there are of a source with one and a result without."""

    def make() -> Sequence[Any]:
        return [graph_of(mps.MPSCNNNeuronLinearNode(ahead(Node(mps.Handle("source 0")), 1), 3.0))]

    def encode(command_buffer: Any, graph: mps.MPSNNGraph) -> Sequence[Any]:
        handles = [*graph.source_image_handles, graph.result_handle]
        return [sum(each is not None for each in handles), graph.encode(command_buffer, [row_image([2.0])])]

    return Subject(make, encode, [row_image([2.0])])


# --- nodes ------------------------------------------------------------------------------------------------------------


def _scaled(left: Any, right: Any) -> Any:
    node = mps.MPSNNAdditionNode(left, right)
    node.primary_scale = 2.0
    return node


_LARGE = 1e8


def _added(source: Any) -> Any:
    """The gradient of an image with three readers, whose parts lose 1 where it is not added last."""
    parts = [mps.MPSCNNNeuronLinearNode(source, factor).result_image for factor in (_LARGE, -_LARGE, 1.0)]
    total = mps.MPSNNAdditionNode(mps.MPSNNAdditionNode(parts[0], parts[1]).result_image, parts[2])
    gradients = mps.MPSNNInitialGradientNode(total.result_image).training_graph(None)
    assert gradients
    return [gradients[-1].result_image, total.result_image]


_PARTS = [[1.0], [5.0, 6.0]]
CASES: Mapping[str, Case] = {
    "source_order": Case({"depth": [1 - 10 - 100], "breadth": [100 - 10 - 1]}, alone("source_order"), _ordered()),
    "source_reads": Case({"enough": [1, 8], "one": [2, 8]}, alone("source_reads"), _read()),
    "intermediate_order": Case(
        {"exported": [1, 2, 2, 1], "made": [1, 2, 1, 2], "results": [2, 1, 1, 2]},
        alone("intermediate_order"),
        _both_intermediates(),
    ),
    "nil_handles": Case(
        {"own": [2, 6], "none": [1, 6]}, alone("nil_handles"), _handles(), unlinted="handles are no numbers"
    ),
    "concatenation_filler": Case(
        {each: [oracle.joined(_PARTS, each)] for each in ("texture", "zeros")},
        alone("concatenation_filler"),
        network(lambda a, b: mps.MPSNNConcatenationNode([a, b]), *(image([[part]]) for part in _PARTS)),
    ),
    "addition_order": Case(
        {"readers": [1, 1], "reversed": [0, 1]},
        alone("addition_order"),
        network(_added, row_image([1.0]), behind=False),
        unlinted="it is asked where the nodes are derived",
    ),
    "graph_primary_scale": Case(
        {"kept": [[12, 24, 36]], "dropped": [[11, 22, 33]]},
        alone("graph_primary_scale"),
        network(_scaled, row_image([1, 2, 3]), row_image([10, 20, 30])),
    ),
}
