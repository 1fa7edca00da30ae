"""Graphs as assets of Core AI, through ONNX's operators and coreai-onnx, which the extra ``coreai`` installs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.kinds import mapped
from openmps.core.numbers import integer
from openmps.errors import MPSError, MPSFileError, MPSOperatorError
from openmps.formats.extras import missing_package
from openmps.formats.folders import require_new_folder, whole_folder
from openmps.formats.onnx.reading import require_onnx
from openmps.formats.onnx.saving import operators
from openmps.formats.onnx.writing import Writer
from openmps.graph.graph import MPSNNGraph

__all__ = ["save"]

_WHO = "openmps.formats.coreai.save"
_SUFFIX = ".aimodel"
_MOST_IMAGES = 1 << 16


def save(
    graph: MPSNNGraph,
    path: str | os.PathLike[str],
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor],
    *,
    batch: int = 1,
    metadata: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Write a graph for inference as an asset of Core AI (macOS 27, iOS 27), whole or not at all.

    Inputs and outputs are float32 arrays N, C, H, W with ``batch`` images of the size of ``image_descriptors``, under
    the labels of their handles. ``metadata`` is what the asset says of itself besides the hash of its weights
    (``openmps.weights.sha256``: their names and float32 numbers, one after another). With ``replace`` it takes the
    place of an asset that has no other files.

    Raises:
        MPSArgumentError: The graph follows another convention than the default where there are no operators for it.
        MPSOperatorError: Nodes that ONNX or Core AI has no operations for: all of them. Nothing is written.
        MPSFileError: The path does not end in ``.aimodel``, the asset is there, or it cannot be written.
        MPSError: coreai-onnx or the onnx package is not installed.
    """
    onnx, converter, authoring = require_onnx(_WHO), *_require_coreai()
    target = require_new_folder(path, _WHO, replace=replace)
    if target.suffix != _SUFFIX:
        raise MPSFileError(_WHO, str(path), f"must end in {_SUFFIX}, as Core AI wants", target.suffix or "no ending")
    integer(_WHO, "batch", batch, 1, _MOST_IMAGES, rule=f"must be an integer of 1 to {_MOST_IMAGES}")
    more = {} if metadata is None else dict(mapped(_WHO, "metadata", metadata, str, "text"))
    written, problems = operators(graph, image_descriptors, _WHO)
    model = written.model(onnx, batch)
    problems += _unsupported(converter, model)
    if problems:
        raise MPSOperatorError(_WHO, "graph", problems)
    program = _converted(converter, model)
    said = authoring.AIModelAssetMetadata()
    for key, value in {**more, "openmps.weights.sha256": _digest(written)}.items():
        said.set_custom(key, value)
    with whole_folder(path, _WHO, replace=replace) as folder:
        inner = folder / f"asset{_SUFFIX}"
        program.save_asset(inner, said)
        _unwrapped(inner)


def _require_coreai() -> tuple[Any, Any]:
    """coreai-onnx, and what writes assets."""
    try:
        return import_module("coreai_onnx"), import_module("coreai.authoring.asset")
    except ImportError as error:
        raise missing_package(_WHO, "coreai-onnx", "Core AI", "coreai") from error


def _unsupported(converter: Any, model: Any) -> list[dict[str, str]]:
    """The operators that Core AI has no operations for."""
    why = "Core AI has no operation for it"
    missing: Mapping[str, Sequence[str]] = converter.analyze(model).unsupported
    return [
        {"node": str(node), "operator": str(operator), "why": why, "remedy": "Save a graph without it"}
        for operator, nodes in missing.items()
        for node in nodes
    ]


def _converted(converter: Any, model: Any) -> Any:
    """The program of a model."""
    try:
        return converter.convert(model)
    except converter.ConversionError as error:
        problem = {"node": error.node_name, "operator": error.op_key, "why": str(error)[:400], "remedy": ""}
        raise MPSOperatorError(_WHO, "graph", [problem]) from error
    except converter.CoreaiOnnxError as error:
        raise MPSError(_WHO, "graph", "cannot be made a program of Core AI", str(error)[:400]) from error


def _digest(written: Writer) -> str:
    """The hash of all constants of real numbers."""
    digest = hashlib.sha256()
    for name, array in written.constants.items():
        if array.dtype.kind == "f":
            digest.update(f"{name}\0{array.shape}\0".encode() + array.tobytes())
    return digest.hexdigest()


def _unwrapped(folder: Path) -> None:
    """Move what a folder holds into the one that it is in."""
    for entry in [*folder.iterdir()]:
        entry.rename(folder.parent / entry.name)
    folder.rmdir()
