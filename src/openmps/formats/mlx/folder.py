"""The folder of a network for MLX: what says that it is one, and its layers' results for some images."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError, shown
from openmps.formats.captures import load_index
from openmps.formats.extras import missing_package
from openmps.formats.paths import is_file, is_folder

FORMAT = "openmps.mlx"
VERSION = 1
INDEX, MODULE, WEIGHTS = "index.json", "network.py", "weights.safetensors"
_WHO = "openmps.formats.mlx"
EXTRA = "mlx"
_RULE = "must be the folder of a network for MLX, as openmps export --mlx writes it"


def is_mlx(path: Path) -> bool:
    """Whether there is a folder with the index and the module of a network for MLX."""
    return is_folder(path, _WHO) and is_file(path / INDEX, _WHO) and is_file(path / MODULE, _WHO)


def source_labels(folder: Path) -> list[str]:
    """The labels of a network's source images, in order.

    Raises:
        MPSFileError: The index is none.
    """
    sources = load_index(folder / INDEX, FORMAT, _WHO).get("sources")
    rows = cast("list[object]", sources) if isinstance(sources, list) else []
    labels = [cast("Mapping[str, object]", row).get("label") for row in rows if isinstance(row, dict)]
    if not rows or len(labels) != len(rows) or not all(isinstance(each, str) for each in labels):
        raise MPSFileError(_WHO, str(folder / INDEX), 'must have "sources" with labels', shown(sources)[:200])
    return cast("list[str]", labels)


def run_layers(folder: Path, sources: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """What the layers of a network for MLX give for images ``[images, height, width, channels]``, by label.

    This runs the Python in the folder: whoever calls it trusts the folder.

    Raises:
        MPSFileError: The index is none, or the module or its weights cannot be run.
        MPSError: The mlx package is not installed.
    """
    if len(source_labels(folder)) != len(sources):
        rule = f"must be given as many source images as it has, {len(source_labels(folder))}"
        raise MPSFileError(_WHO, str(folder), rule, len(sources))
    name = load_index(folder / INDEX, FORMAT, _WHO).get("class")
    try:
        mx: Any = importlib.import_module("mlx.core")
    except ImportError as error:
        raise missing_package(_WHO, "mlx", "network for MLX", EXTRA) from error
    try:
        network = getattr(_imported(folder / MODULE), str(name)).load()
        found = network.layers(*(mx.array(each) for each in sources))
        return {str(label): np.array(each, np.float32) for label, each in found.items()}
    except (Exception, SystemExit) as error:  # whatever the module raises
        raise MPSFileError(_WHO, str(folder), _RULE, f"{type(error).__name__}: {error}") from error


def _imported(path: Path) -> Any:
    """A module by its file, of which Python keeps nothing."""
    name = f"openmps_exported_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018  of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
