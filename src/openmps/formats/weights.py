"""Weights on disk: raw float32 files as an app's bundle holds them, and one safetensors file of the whole network.

Arrays are named ``{layer label}.{part}``: ``conv1.weights`` (OHWI), ``conv1.biases``, ``norm1.gamma``. The raw file of
``conv1.weights`` is ``conv1_weights.dat``: the numbers alone, little-endian float32, in C order, as a data source's
``weights`` returns them (MPSCNNConvolution.h, macOS 10.13). No loader executes anything that it reads, and none takes
more memory than the file it reads is long, which may be 4 GiB. A changed number is seen in a safetensors file, by its
checksum, and cannot be seen in a raw file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from openmps.checks import as_index, is_whole, memory_for
from openmps.core.kinds import listed, mapped, text
from openmps.errors import MPSArgumentError, MPSError, MPSFileError
from openmps.formats.arrays import Array, to_float32
from openmps.formats.atomic import write_atomic, write_for
from openmps.formats.json_text import parsed
from openmps.formats.paths import path_of, reading, require_file
from openmps.formats.safetensors_parts import SafetensorsParts

VERSION = 1
METADATA_KEY = "openmps.weights"
_LAYOUT = "OHWI"
_FACTS = frozenset({"version", "layout", "layers", "sha256"})
_PART_ORDER = ("weights", "biases")


class _Slice(Protocol):
    def get_dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...


class _Reader(Protocol):
    def __enter__(self) -> _Reader: ...
    def __exit__(self, *error: object) -> None: ...
    def metadata(self) -> dict[str, str] | None: ...
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> NDArray[Any]: ...


def save_dat(path: str | os.PathLike[str], array: Array) -> None:
    """Write the numbers of ``array`` alone: little-endian float32 in C order, atomically."""
    path = path_of(path, "save_dat")
    write_for("save_dat", path, to_float32(array, "save_dat", f"array for {path}").tobytes())


def load_dat(path: str | os.PathLike[str], shape: Sequence[int]) -> NDArray[np.float32]:
    """Read a raw float32 file as an array of ``shape`` (weights: ``[O, H, W, I]``).

    The file says nothing about its shape, so its length must be exactly ``4 * product(shape)`` bytes; it is checked
    before anything is read. Raises ``MPSFileError`` naming the file, the bytes expected and the bytes found.
    """
    who = "load_dat"
    lengths: list[Any] = [*listed(who, "shape", shape, object, "lengths")]
    if not lengths or not all(is_whole(as_index(length), 1) for length in lengths):
        raise MPSArgumentError(who, "shape", "must be one or more positive lengths", tuple(lengths))
    expected = 4 * math.prod(int(length) for length in lengths)
    found = require_file(path, who)
    if found != expected:
        hint = (
            "It may hold float16: convert it to float32." if 2 * found == expected else "Check the shape and the file."
        )
        rule = f"must hold {expected} bytes, float32 of shape {tuple(shape)}"
        raise MPSFileError(who, str(path), rule, f"{found} bytes", hint)
    with reading(path, who):
        values = np.fromfile(path, dtype="<f4", count=expected // 4)
    if values.size * 4 != expected:
        raise MPSFileError(who, str(path), f"must hold {expected} bytes", f"{values.size * 4} bytes while reading")
    return values.astype(np.float32, copy=False).reshape(tuple(lengths))


def dat_file_name(name: str) -> str:
    """The raw file of a named array: ``conv1.weights`` → ``conv1_weights.dat``.

    Raises ``MPSArgumentError`` where the layer's label cannot be part of a file name.
    """
    label, part = split_name(name, "dat_file_name")
    if label.startswith(".") or any(character in '/\\:*?"<>|' or ord(character) < 32 for character in label + part):
        rule = 'must be usable as a file name: no leading dot, no control character, none of / \\ : * ? " < > |'
        raise MPSArgumentError("dat_file_name", f"array name {name!r}", rule, None, "Give the layer a plain label.")
    return f"{label}_{part}.dat"


def dat_file_names(names: Iterable[str]) -> dict[str, str]:
    """The raw file of each named array; ``MPSArgumentError`` where two share one (or but for case, as on macOS)."""
    plain = [*names] if isinstance(names, Mapping) else names
    files = {name: dat_file_name(name) for name in listed("dat_file_names", "names", plain, str, "text")}
    owners: dict[str, str] = {}
    for name, file in files.items():
        other = owners.setdefault(file.casefold(), name)
        if other != name:
            rule = f"must not share the file {file} with array {other!r}"
            raise MPSArgumentError("dat_file_names", f"array name {name!r}", rule, None, "Rename the layer.")
    return files


def save_dat_files(folder: str | os.PathLike[str], arrays: Mapping[str, Array]) -> list[Path]:
    """Write one raw file for each named array into ``folder`` and return their paths, in order.

    Each file is atomic by itself. Names and arrays are checked before anything is written.
    """
    named: dict[str, Any] = {**mapped("save_dat_files", "arrays", arrays, object, "arrays")}
    root, files = path_of(folder, "save_dat_files", "folder"), dat_file_names(named)
    contents = {name: to_float32(array, "save_dat_files", name) for name, array in named.items()}
    for name, values in contents.items():
        write_atomic(root / files[name], values.tobytes())
    return [root / file for file in files.values()]


def load_dat_files(
    folder: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]]
) -> dict[str, NDArray[np.float32]]:
    """Read the raw file of each array named in ``shapes`` from ``folder``; see :func:`load_dat`."""
    who = "load_dat_files"
    root, wanted = path_of(folder, who, "folder"), mapped(who, "shapes", shapes, Iterable, "lengths")
    return {name: load_dat(root / dat_file_name(name), [*shape]) for name, shape in wanted.items()}


def save_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write named arrays as float32 into one safetensors file, atomically.

    The metadata hold the format's version, the layout (OHWI), the order of the layers, which is the order in which
    ``arrays`` first names them, and a SHA-256 checksum. The same arrays give the same bytes.
    """
    who = "save_safetensors"
    with memory_for(who, "arrays"):
        content = _packed(arrays, who)
    write_for(who, path, content)


def _packed(arrays: Mapping[str, Array], who: str) -> SafetensorsParts:
    named = mapped(who, "arrays", arrays, object, "arrays")
    values = {name: to_float32(array, who, name) for name, array in named.items()}
    layers = list(dict.fromkeys(split_name(name, who)[0] for name in values))
    facts = {"version": VERSION, "layout": _LAYOUT, "layers": layers, "sha256": _checksum(layers, values)}
    return SafetensorsParts(values, {METADATA_KEY: json.dumps(facts)})


def load_safetensors(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Read the named arrays of a file written by :func:`save_safetensors`, in the order of its layers.

    Within a layer weights come first, then biases, then what else it has, by name. With ``shapes`` (array name → shape)
    the file must hold exactly these arrays. Names, number formats and shapes are checked before any array is read, and
    the checksum, where the file has one, against all of them. Raises ``MPSFileError`` naming the file and the array at
    fault.
    """
    who = "load_safetensors"
    if shapes is not None:
        shapes = {name: [*shape] for name, shape in mapped(who, "shapes", shapes, Iterable, "lengths").items()}
    require_file(path, who)
    try:
        with reading(path, who), cast("_Reader", safe_open(os.fspath(path), framework="np")) as reader:
            check_named_once(path)
            facts = _read_facts(reader.metadata(), str(path), who)
            names = _ordered_names(reader.keys(), facts["layers"], str(path), who)
            _check_names(names, shapes, str(path), who)
            for name in names:
                _check_array(reader.get_slice(name), name, shapes, str(path), who)
            arrays = {name: np.array(reader.get_tensor(name), dtype=np.float32) for name in names}
    except MPSError:
        raise
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise MPSFileError(who, str(path), "must be a whole safetensors file", error) from error
    with reading(path, who):
        checksum = _checksum(facts["layers"], arrays)
    if facts.get("sha256") not in (None, checksum):
        raise MPSFileError(who, str(path), "must hold what was saved", "another checksum", "Fetch or save it again.")
    return arrays


def check_named_once(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` where the header of a whole safetensors file has a name twice, of which readers see one."""
    with Path(path).open("rb") as file:
        parsed(file.read(int.from_bytes(file.read(8), "little")).decode())


def split_name(name: str, who: str = "split_name") -> tuple[str, str]:
    """``conv1.weights`` → ``("conv1", "weights")``: the part follows the last dot, the label may contain others."""
    label, dot, part = text(who, "array name", name).rpartition(".")
    if not dot or not label or not part:
        raise MPSArgumentError(who, "array name", "must be a layer's label, a dot and a part", repr(name))
    return label, part


def _checksum(layers: Sequence[str], arrays: Mapping[str, NDArray[np.float32]]) -> str:
    """Of the layers' order and of each array's name, shape and numbers."""
    digest = hashlib.sha256(json.dumps(list(layers)).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name], "<f4")
        digest.update(f"\0{json.dumps(name)}\0{values.shape}\0".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _ordered_names(names: list[str], layers: list[str], path: str, who: str) -> list[str]:
    """The array names in the order of the layers that the metadata give, after checking the metadata against them."""
    labels = {_stored_label(name, path, who) for name in names}
    for label in sorted(labels ^ set(layers)):
        got = f"{label!r} without an array" if label in layers else f"arrays of {label!r}, which they do not list"
        raise MPSFileError(who, path, "must hold the layers that its metadata list", got)
    rank = {label: index for index, label in enumerate(layers)}
    parts = {part: index for index, part in enumerate(_PART_ORDER)}

    def position(name: str) -> tuple[int, int, str]:
        label, _, part = name.rpartition(".")
        return rank[label], parts.get(part, len(parts)), part

    return sorted(names, key=position)


def _stored_label(name: str, path: str, who: str) -> str:
    try:
        return split_name(name, who)[0]
    except MPSArgumentError as error:
        raise MPSFileError(who, path, f"array name {error.rule}", error.got) from error


def _read_facts(metadata: dict[str, str] | None, path: str, who: str) -> dict[str, Any]:
    """What the metadata say: ``layers``, and ``sha256`` where there is a checksum."""
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        rule = f"must carry the metadata {METADATA_KEY!r}: without it the order of the weights is not known"
        remedy = "Convert the arrays to OHWI (openmps.formats.layouts) and write them with save_safetensors."
        raise MPSFileError(who, path, rule, f"the keys {sorted(metadata or {})}", remedy)
    try:
        found = parsed(text)
    except (ValueError, RecursionError) as error:
        raise MPSFileError(who, path, f"must have JSON as metadata {METADATA_KEY!r}", error) from error
    facts = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    layers = facts.get("layers")
    if facts.get("version") != VERSION or facts.get("layout") != _LAYOUT:
        got = f"version {facts.get('version')!r}, layout {facts.get('layout')!r}"
        raise MPSFileError(who, path, f"must have version {VERSION} and layout {_LAYOUT}", got)
    if unknown := sorted(set(facts) - _FACTS):  # one bit turns the name of the checksum into another
        raise MPSFileError(who, path, f"must have no metadata but {', '.join(sorted(_FACTS))}", repr(unknown)[:80])
    if not isinstance(layers, list) or not all(isinstance(label, str) for label in cast("list[object]", layers)):
        raise MPSFileError(who, path, "must list the labels of its layers", repr(layers)[:80])
    return facts


def _check_names(names: list[str], shapes: Mapping[str, Sequence[int]] | None, path: str, who: str) -> None:
    if shapes is None:
        return
    for kind, culprits in (("is missing", shapes.keys() - set(names)), ("is not expected", set(names) - shapes.keys())):
        if culprits:
            rule = f"must hold exactly the {len(shapes)} arrays of the network"
            got = ", ".join(f"{name!r}" for name in sorted(culprits)[:4])
            more = f" and {len(culprits) - 4} more" if len(culprits) > 4 else ""
            raise MPSFileError(who, path, rule, f"a file where {got}{more} {kind}", "Use the weights of this network.")


def _check_array(stored: _Slice, name: str, shapes: Mapping[str, Sequence[int]] | None, path: str, who: str) -> None:
    if stored.get_dtype() != "F32":
        raise MPSFileError(who, path, f"array {name!r} must be float32 (F32)", stored.get_dtype())
    if shapes is not None and list(stored.get_shape()) != list(shapes[name]):
        rule = f"array {name!r} must have shape {tuple(shapes[name])}"
        raise MPSFileError(who, path, rule, tuple(stored.get_shape()), "Use the weights of this network.")
