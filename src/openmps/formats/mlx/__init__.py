"""Graphs as Python for MLX: a module that runs and trains the same network, and a file of its weights beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openmps.checks import of_kind
from openmps.core.image.descriptor import MPSImageDescriptor, descriptors_of
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, shown
from openmps.formats.atomic import write_atomic
from openmps.formats.folders import require_new_folder, whole_folder
from openmps.formats.mlx.network import WHO, network_files
from openmps.formats.safetensors_parts import SafetensorsParts
from openmps.formats.swift.literals import is_class_name
from openmps.graph.graph import MPSNNGraph

__all__ = ["export", "source"]


def source(
    graph: MPSNNGraph,
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor],
    name: str = "Network",
    *,
    notes: Sequence[str] = (),
) -> dict[str, bytes]:
    """The files that `export` writes, by their names."""
    files = _files(graph, image_descriptors, name, notes)
    return {file: content if isinstance(content, bytes) else b"".join(content) for file, content in files.items()}


def _files(graph: object, image_descriptors: Any, name: object, notes: object) -> dict[str, bytes | SafetensorsParts]:
    """The same, the weights in parts."""
    made = of_kind(WHO, "graph", graph, MPSNNGraph)
    if not isinstance(name, str) or not is_class_name(name):
        rule, remedy = "must be a name for a class: a capital, then letters and digits", "For example Digits"
        raise MPSArgumentError(WHO, "name", rule, shown(name), remedy)
    given = descriptors_of(WHO, image_descriptors)
    return network_files(made, given, name, listed(WHO, "notes", notes, str, "text"))


def export(
    graph: MPSNNGraph,
    folder: str | os.PathLike[str],
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor],
    name: str = "Network",
    *,
    notes: Sequence[str] = (),
    replace: bool = False,
) -> Path:
    """Write a graph as Python for MLX into a new folder, and return the folder.

    ``folder/network.py`` has a class ``NAME``, an ``mlx.nn.Module`` over images N, H, W, C of the sizes of
    ``image_descriptors``: calling it gives the graph's results, ``layers`` the result of every filter by its label,
    ``NAME.load()`` the network with the numbers of ``weights.safetensors`` (weights O, H, W, I, those of transposed
    convolutions turned, as MLX's own layers have them). Of a graph that trains, with an `MPSCNNLossNode`, the class has
    the forward part, ``loss(images, labels)``, the sum that the graph's gradients are of, and ``optimizer()`` where the
    data sources say theirs; parts that nothing trains are frozen. ``index.json`` says what the folder is. ``notes``
    are lines of the module's head.

    The folder is there whole or not at all; with ``replace`` it takes the place of one that has no files but those that
    are written anew. The same graph gives the same bytes.

    Raises:
        MPSArgumentError: The name is none of a class, or the graph follows a convention that MLX has nothing for.
        MPSExportError: Something of the graph has no counterpart; the error lists all of it.
        MPSFileError: The folder is there, or cannot be written.
    """
    target = require_new_folder(folder, WHO, replace=replace)
    files = _files(graph, image_descriptors, name, notes)
    with whole_folder(folder, WHO, replace=replace) as made:
        for file, content in files.items():
            write_atomic(made / file, content)
    return target
