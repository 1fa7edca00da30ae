"""Traces as folders: each value a ``.npy`` file, and ``index.json``, which says what they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openmps.errors import MPSFileError
from openmps.formats.atomic import write_atomic
from openmps.formats.captures import load_index
from openmps.formats.exchange.npz import load_npy, npy_bytes
from openmps.formats.folders import whole_folder
from openmps.formats.paths import (
    is_file,
    is_folder,
    is_there,
    path_of,
    reading,
    require_file,
    require_folder,
)
from openmps.graph.run.trace import Trace, TracedKind, TracedValue, check_trace
from openmps.types import MPSImageFeatureChannelFormat

FORMAT = "openmps.trace"
_VERSION = 1
_INDEX = "index.json"
_LONGEST_INDEX = 64 << 20
_LONGEST_NAME = 120
_WHO = "openmps.debug.load_trace"


def save_trace(trace: Trace, folder: str | os.PathLike[str]) -> Path:
    """Write a trace into a new folder, whole or not at all, and return the folder. Our addition.

    Folders above it that are missing are made.

    Every value is a ``.npy`` file; ``index.json`` has a row for each, in order: label, layer, kind, class, format,
    shape, range and the name of its file. `load_trace` reads the folder.

    Raises:
        MPSFileError: The folder is there, or cannot be written.
    """
    who = "openmps.debug.save_trace"
    check_trace(who, "trace", trace)
    with whole_folder(folder, who) as made:
        rows: list[dict[str, Any]] = []
        for number, entry in enumerate(trace.entries):
            rows.append(_described(entry, number))
            write_atomic(made / rows[-1]["file"], npy_bytes(entry.array))
        index = {"format": FORMAT, "version": _VERSION, "notes": list(trace.notes), "values": rows}
        write_atomic(made / _INDEX, json.dumps(index, indent=2, allow_nan=False).encode() + b"\n")
    return path_of(folder, who, "folder")


def load_trace(folder: str | os.PathLike[str]) -> Trace:
    """The trace in a folder that `save_trace` wrote. Our addition.

    Raises:
        MPSFileError: There is none, or it is damaged.
    """
    where = path_of(folder, _WHO, "folder")
    require_folder(where, _WHO)
    file = where / _INDEX
    if not is_there(file, _WHO):
        rule, remedy = "must be the folder of a trace", "Make one with openmps trace"
        raise MPSFileError(_WHO, str(folder), rule, f"a folder without {_INDEX}", remedy)
    index = load_index(file, FORMAT, _WHO, _VERSION, _LONGEST_INDEX)
    try:
        entries = [_restored(where, row) for row in index["values"]]
        return Trace(entries, tuple(str(note) for note in index["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, MPSFileError):
            raise
        raise MPSFileError(_WHO, str(file), "must list the values of a trace", repr(error)) from error


def is_trace(path: Path) -> bool:
    """Whether there is a folder with the index of a trace."""
    return is_folder(path, _WHO) and is_file(path / _INDEX, _WHO) and not is_there(path / "run.json", _WHO)


def _described(entry: TracedValue, number: int) -> dict[str, Any]:
    plain = re.sub(r"[^\w.+ -]", "_", entry.label)[:_LONGEST_NAME]
    found = entry.statistics
    form = entry.channel_format
    return {
        "label": entry.label,
        "layer": entry.layer,
        "kind": entry.kind.value,
        "class": entry.class_name,
        "format": None if form is None else form.name.lower(),
        "shape": list(entry.array.shape),
        "least": _plain(found.least),
        "largest": _plain(found.largest),
        "mean": _plain(found.mean),
        "zeros": found.zeros,
        "not_finite": found.not_finite,
        "file": f"{number:04d} {plain}.npy",
    }


def _plain(number: float) -> float | None:
    """JSON has no NaN."""
    return number if np.isfinite(number) else None


def _restored(folder: Path, row: Mapping[str, Any]) -> TracedValue:
    path, form = folder / Path(str(row["file"])).name, row["format"]
    require_file(path, _WHO)
    with reading(path, _WHO):
        array = load_npy(path)
    if list(array.shape) != list(row["shape"]):
        raise MPSFileError(_WHO, str(path), f"must be an array of shape {row['shape']}", "something else")
    channel_format = None if form is None else MPSImageFeatureChannelFormat[str(form).upper()]
    texts = (str(row["label"]), str(row["layer"]))
    return TracedValue(*texts, TracedKind(row["kind"]), str(row["class"]), channel_format, array)
