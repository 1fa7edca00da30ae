"""ONNX files of graphs: each node of the framework as operators that give the same numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from openmps.checks import of_kind
from openmps.convention.table import CONVENTIONS
from openmps.core.image.descriptor import MPSImageDescriptor, descriptors_of
from openmps.errors import MPSArgumentError, MPSOperatorError
from openmps.formats.atomic import write_for
from openmps.formats.onnx.layers import LAYERS
from openmps.formats.onnx.problems import NO_OPERATOR, NodeError
from openmps.formats.onnx.reading import LARGEST_FILE, require_onnx
from openmps.formats.onnx.writing import ModelParts, Writer, layer_of
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNGradientFilterNode

WRITER = "openmps.formats.onnx.save"
_WRITTEN = frozenset({
    *("alignment", "negative_remainder", "average_preset", "average_valid_preset", "excluded_edges", "l2_clamp"),
    *("reshape_order", "concatenation_filler", "graph_primary_scale", "bilinear_centres"),
    *("source_order", "source_reads", "intermediate_order"),
})  # fmt: skip
"""Conventions whose every choice operators can express."""


def save(
    graph: MPSNNGraph,
    path: str | os.PathLike[str],
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor],
) -> None:
    """Write a graph for inference as an ONNX file, whole or not at all.

    Inputs and outputs are N, C, H, W, under the labels of their handles, with the lengths that images like
    ``image_descriptors`` have, a descriptor a source; the batch varies, and every value has its shape. Weights are
    those that the graph computes with now, in float32.

    Raises:
        MPSArgumentError: The graph follows another convention than the default where ONNX has no operators for it.
        MPSOperatorError: Nodes that ONNX has no operators for, or gradient nodes: all of them.
        MPSFileError: The file cannot be written.
        MPSError: The onnx package is not installed.
    """
    write_for(WRITER, path, _parts(graph, image_descriptors))


def exported(graph: MPSNNGraph, image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor]) -> bytes:
    """The bytes that `save` writes."""
    return b"".join(_parts(graph, image_descriptors))


def _parts(graph: MPSNNGraph, image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor]) -> ModelParts:
    """The file in parts."""
    onnx = require_onnx(WRITER)
    written, problems = operators(graph, image_descriptors, WRITER)
    if problems:
        raise MPSOperatorError(WRITER, "graph", problems)
    parts = written.parts(onnx)
    if parts.size > LARGEST_FILE:
        rule = f"must make a file of no more than {LARGEST_FILE:,} bytes, which is all that one of ONNX can have"
        raise MPSArgumentError(WRITER, "graph", rule, f"{parts.size:,}", "Export it for Core ML or MLX")
    return parts


def operators(
    graph: MPSNNGraph, image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor], who: str
) -> tuple[Writer, list[dict[str, str]]]:
    """A graph for inference as ONNX's operators, and the nodes that there are none for, as `MPSOperatorError` has them.

    Raises:
        MPSArgumentError: The graph follows another convention than the default where ONNX has no operators for it.
    """
    of_kind(who, "graph", graph, MPSNNGraph)
    given = descriptors_of(who, image_descriptors)
    _check_conventions(graph, given, who)
    writer = Writer(graph, graph.program_for(given, allow_fusion=False))
    problems: list[dict[str, str]] = []
    for node, kernel in graph.kernels.items():
        try:
            layer = None if isinstance(node, MPSNNGradientFilterNode) else layer_of(LAYERS, node)
            if layer is None:
                raise NodeError(*NO_OPERATOR)
            layer(writer, node, kernel)
        except NodeError as problem:
            kind = type(node).__name__
            problems.append(
                {"node": str(node.label or kind), "operator": kind, "why": problem.why, "remedy": problem.remedy}
            )
    return writer, problems


def _check_conventions(graph: MPSNNGraph, given: Sequence[MPSImageDescriptor], who: str) -> None:
    """Only readings that operators express: each file gives the graph's numbers, or there is none."""
    for name, choice in graph.conventions_asked(given).items():
        if choice != CONVENTIONS[name].default and name not in _WRITTEN:
            rule = f"follows the convention {name}={choice!r}, for which ONNX has no operators"
            remedy = f"Make it with {name}={CONVENTIONS[name].default!r}"
            raise MPSArgumentError(who, "graph", rule, None, remedy)
