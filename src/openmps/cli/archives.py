"""Archives, which commands take alike: what ``convert`` writes, a graph, or a list that holds one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmps.cli.options import warned_once
from openmps.cli.reading import is_model, is_onnx
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from openmps.formats.archive import Registry
    from openmps.formats.onnx import OnnxModel, OnnxPort
    from openmps.graph.graph import MPSNNGraph
    from openmps.graph.nodes.node import MPSNNImageNode
    from openmps.metal.device import MTLDevice

_WHO = "openmps"
_AXES = ("images", "height", "width", "channels")


def archived(
    path: Path, device: MTLDevice | None = None, *, registry: Registry | None = None
) -> tuple[MPSNNGraph, OnnxModel | None]:
    """The graph in an archive, on the CPU unless a device is given, and the ONNX model that it is of, if it is of one.

    Raises ``MPSFileError`` where the file is none of openmps or does not hold one graph.
    """
    from openmps.formats.archive import MPSKeyedUnarchiver
    from openmps.formats.onnx import OnnxModel
    from openmps.runtime.devices import mtl_device

    if is_model(path):
        kind = "an ONNX model" if is_onnx(path) else "a Core ML model"
        raise MPSFileError(_WHO, str(path), "must be an archive", kind, conversion(path))
    with warned_once():
        place = mtl_device("cpu") if device is None else device
        root = MPSKeyedUnarchiver(path, place, registry=registry).decode_root_object()
    has_ports = isinstance(root, list) and len(root) > 1 and isinstance(root[1], str)
    return _graph(root, path), OnnxModel.restored(root, str(path)) if has_ports else None


def archived_model(path: Path, device: MTLDevice, *, registry: Registry | None = None) -> OnnxModel:
    """The model in an archive, which runs on arrays.

    A graph alone takes and gives arrays ``[images, height, width, channels]`` by the labels of its source images and of
    its results; ``image`` and ``result`` are those without one.
    """
    from openmps.formats.onnx import OnnxModel

    graph, model = archived(path, device, registry=registry)
    if model is not None:
        return model
    interface = graph.interface
    if interface.input_states or not interface.result_is_needed:
        rule, remedy = "must hold a graph that infers", "Archive the one that infers, of the same data sources"
        raise MPSFileError(_WHO, str(path), rule, "one that trains", remedy)
    results = [interface.result, *interface.intermediates]
    return OnnxModel(graph, _ports(labels(graph)), _ports(_labels(results, "result")))


def labels(graph: MPSNNGraph) -> list[str]:
    """The labels of a graph's source images, all different; ``image`` where there is none."""
    return _labels(graph.interface.inputs, "image")


def conversion(path: Path) -> str:
    """What to do with a model that is given in the place of an archive."""
    return f"Convert it first: openmps convert {path} {path.with_suffix('.mps').name}"


def _graph(root: Any, path: Path) -> MPSNNGraph:
    from openmps.graph.graph import MPSNNGraph

    graphs = [each for each in (root if isinstance(root, list) else [root]) if isinstance(each, MPSNNGraph)]
    if len(graphs) != 1:
        remedy = (
            "openmps convert makes such an archive of an ONNX model, MPSKeyedArchiver.archive(graph, path) of a graph"
        )
        raise MPSFileError(_WHO, str(path), "must hold one graph", len(graphs) or "none", remedy)
    return graphs[0]


def _labels(images: Sequence[MPSNNImageNode], default: str) -> list[str]:
    from openmps.graph.nodes.node import handle_label

    found: list[str] = []
    for image in images:
        wanted = handle_label(image.handle) or default
        name, count = wanted, 1
        while name in found:
            name, count = f"{wanted}_{count}", count + 1
        found.append(name)
    return found


def _ports(names: Sequence[str]) -> tuple[OnnxPort, ...]:
    from openmps.formats.onnx import OnnxPort

    return tuple(
        OnnxPort(name, "float32", _AXES, place, (None,) * 4, ((0,), (1,), (2,), (3,)), (3,), (1,), (2,))
        for place, name in enumerate(names)
    )
