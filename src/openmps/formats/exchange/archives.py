"""Numbers put into an archive of a graph, in the place of those that are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openmps.errors import MPSFileError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver, Registry
from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters
from openmps.formats.arrays import Array
from openmps.formats.exchange.layers import WeightLayer, labelled_kernels, network_arrays
from openmps.formats.exchange.mapping import export_weights
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.neuron import MPSCNNNeuronNode
from openmps.runtime.devices import mtl_device

_WHO = "archive_with_arrays"


def archived_graph(path: Path, who: str = _WHO, *, registry: Registry | None = None) -> tuple[Any, MPSNNGraph]:
    """What an archive holds, and the one graph in it.

    Raises:
        MPSFileError: It is damaged, or holds no graph, or several.
    """
    root = MPSKeyedUnarchiver(path, mtl_device("cpu"), registry=registry).decode_root_object()
    graphs = [each for each in (root if isinstance(root, list) else [root]) if isinstance(each, MPSNNGraph)]
    if len(graphs) != 1:
        raise MPSFileError(who, str(path), "must hold one graph", f"{len(graphs)} graphs")
    return root, graphs[0]


def archive_with_arrays(path: Path, arrays: Mapping[str, Array], *, registry: Registry | None = None) -> bytes:
    """The archive at ``path`` with other numbers, by layer and part as in `network_arrays`; nothing is written.

    What was made is read again and compared, bit by bit.

    Raises:
        MPSFileError: The archive is damaged, or holds no graph, or several, or a layer's data source is of a class
            that is not openmps': it has no way to take numbers.
        MPSWeightsError: The arrays are not those of the graph: all that is missing, of no layer, or of another shape.
    """
    root, graph = archived_graph(path, registry=registry)
    checked = export_weights(arrays, graph, "openmps").arrays
    numbers = {name: np.ascontiguousarray(array, np.float32) for name, array in checked.items()}
    for layer, _, node, kernel in labelled_kernels(graph):
        _put(layer, node, kernel, numbers, path)
    graph.reload_from_data_sources()
    data = MPSKeyedArchiver.archived_data(root)
    again = MPSKeyedUnarchiver(data, mtl_device("cpu"), registry=registry).decode_root_object()
    found = network_arrays(next(each for each in _listed(again) if isinstance(each, MPSNNGraph)))
    for name, array in numbers.items():
        if found[name].tobytes() != array.tobytes():
            rule = f"must take {name} bit by bit"
            raise MPSFileError(_WHO, str(path), rule, "other numbers", "This is a defect of openmps.")
    return data


def _listed(root: Any) -> list[Any]:
    return root if isinstance(root, list) else [root]


def _put(layer: WeightLayer, node: Any, kernel: Any, numbers: Mapping[str, Any], path: Path) -> None:
    """The numbers of one layer, into its data source or its node."""
    given = {part: numbers[name] for part in layer.parts if (name := f"{layer.label}.{part}") in numbers}
    source = getattr(kernel, "data_source", None)
    if isinstance(source, ArchivedConvolutionWeights):
        source.weight_array = given["weights"]
        source.bias_array = given.get("biases", source.bias_array)
        neuron = source.convolution_descriptor.fused_neuron_descriptor
        if "slopes" in given and neuron is not None:
            neuron.data = given["slopes"]
    elif isinstance(source, ArchivedNormalizationParameters):
        for part, array in given.items():
            setattr(source, f"{part}_array", array)
    elif isinstance(node, MPSCNNNeuronNode) and "slopes" in given:
        node.descriptor.data = given["slopes"]
    elif given:
        rule = f"must keep {layer.label!r} in numbers of its own"
        remedy = "Give that data source the numbers in Python, and archive the graph again"
        raise MPSFileError(_WHO, str(path), rule, f"a data source of class {type(source).__name__}", remedy)
