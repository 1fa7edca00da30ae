"""A page of one graph, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from openmps.checks import of_kind
from openmps.core.image.descriptor import MPSImageDescriptor, descriptors_of
from openmps.core.kinds import listed, text
from openmps.debug.page.document import save_document
from openmps.debug.page.view import graph_view
from openmps.errors import MPSArgumentError
from openmps.graph.graph import MPSNNGraph

_WHO = "openmps.debug.save_page"
_MISSING = "Values, pictures and times need images: pass them to save_page."


def save_page(
    path: str | os.PathLike[str],
    graph: MPSNNGraph,
    source_images: Sequence[Any] | None = None,
    source_states: Sequence[Any] | None = None,
    *,
    image_descriptors: Sequence[MPSImageDescriptor] | None = None,
    title: str | None = None,
    class_names: Sequence[str] = (),
    repeats: int = 0,
) -> int:
    """Write one HTML file that shows a graph, whole or not at all, and return its size in bytes. Our addition.

    It has the graph with shapes, padding and what is fused, and of ``source_images`` and ``source_states``, as
    `MPSNNGraph.trace` takes them, histograms and pictures of what each layer makes. ``image_descriptors``, one a
    source, stand in for images where only the shapes are to be seen. ``repeats`` runs are timed, 0 for none; those of a
    graph that trains do train. A file that is there is replaced. ``openmps view`` makes pages of runs, archives and
    ONNX models.

    Raises:
        MPSArgumentError: Neither images nor descriptors are given, or they are none that the graph takes.
        MPSFileError: The file cannot be written.
    """
    of_kind(_WHO, "graph", graph, MPSNNGraph)
    name = (None if title is None else text(_WHO, "title", title)) or graph.label or "Network"
    if image_descriptors is not None:
        image_descriptors = descriptors_of(_WHO, image_descriptors)
    if source_images is not None:
        source_images = listed(_WHO, "source_images", source_images, object, "images")
        if not source_images:
            raise MPSArgumentError(_WHO, "source_images", "must be one or more", "none", "Leave them out for no values")
    seen = graph_view(
        graph, "Graph", source_images, source_states, descriptors=image_descriptors, repeats=repeats,
        classes=class_names, missing="" if source_images is not None else _MISSING,
    )  # fmt: skip
    return save_document(path, name, [seen])
