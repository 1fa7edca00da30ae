"""Raw files of numbers alone, as an app's bundle holds them: little-endian float32 or float16, OHWI."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import flag
from openmps.core.kinds import mapped, optional_mapping
from openmps.errors import MPSArgumentError, MPSFileError, MPSWeightsError
from openmps.formats.arrays import Array, to_numpy
from openmps.formats.atomic import write_all_atomic
from openmps.formats.exchange.conventions import WeightLayout, orders
from openmps.formats.exchange.layers import Network, WeightLayer, network_layers
from openmps.formats.exchange.precision import stored
from openmps.formats.exchange.rows import WeightMapping, WeightRow
from openmps.formats.paths import file_stem, is_there, path_of, reading, require_file, require_folder
from openmps.formats.weights import dat_file_name, dat_file_names, split_name

RAW_SUFFIXES = (".dat", ".bin")
_WIDTHS = {4: "<f4", 2: "<f2"}


def load_raw(
    folder: str | os.PathLike[str], network: Network, *, names: Mapping[str, str] | None = None
) -> WeightMapping:
    """The arrays of a network from raw files: ``conv1_weights.dat`` and ``conv1_biases.dat``, or ``conv1.dat`` alone.

    A layer whose label is no name of a file has the one that `save_raw` gives it: ``/0/Conv`` is ``_0_Conv``.

    A file of one layer has its arrays one after another: weights, biases; gamma, beta, mean, variance. The suffix may
    be ``.bin``. Files hold float32 or float16: their length, which has to be that of the network's shapes, says which.
    ``names`` gives files other names, by layer, ``conv1``, or by array, ``conv1.weights``. Other files in the folder
    are not looked at.

    Raises:
        MPSWeightsError: All that does not fit: files that are missing or of another length.
        MPSArgumentError: ``names`` names no layer, or no plain file, or two arrays would share one.
    """
    who = "load_raw"
    root, layers = path_of(folder, who, "folder"), network_layers(network)
    require_folder(root, who)
    called = optional_mapping(who, "names", names)
    _check_names(called, layers)
    stems = file_stems(layer.label for layer in layers.values())
    problems: list[MPSFileError] = []
    rows: list[WeightRow] = []
    arrays: dict[str, NDArray[Any]] = {}
    for layer in layers.values():
        for file, parts in _files(root, layer, stems[layer.label], called):
            try:
                found = (
                    _cut(file, layer, parts) if file is not None else _absent(root, layer, stems[layer.label], parts)
                )
            except MPSFileError as error:
                problems.append(error)
                continue
            rows += [row for row, _ in found]
            arrays |= {row.array: array for row, array in found}
    if problems:
        texts = [str(error).removeprefix(f"{error.who}: ") for error in problems]
        raise MPSWeightsError(who, "folder", "must have the files of the network", texts) from problems[0]
    return WeightMapping(tuple(rows), arrays)


def save_raw(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, Array],
    *,
    half: bool = False,
    allow_rounding: bool = False,
    one_file: bool = False,
) -> list[Path]:
    """Write arrays that are named by layer and part as raw files into a folder, and return their paths.

    ``conv1.weights`` is ``conv1_weights.dat``; with ``one_file`` all arrays of a layer are in ``conv1.dat``, in the
    order in which they are given. Characters of a label that no file's name has become underscores; of several labels
    that this makes alike, those after the first in the alphabet get ``-2``, ``-3``, … Numbers of float16 stay float16.
    All files are written and read back before any older one is replaced.

    Raises:
        MPSWeightsError: With ``half``, numbers that float16 cannot hold.
        MPSArgumentError: Two arrays would share a file.
    """
    who = "save_raw"
    root = path_of(folder, who, "folder")
    half, one_file = flag(who, "half", half), flag(who, "one_file", one_file)
    named = mapped(who, "arrays", arrays, object, "arrays")
    plain = {name: to_numpy(array, who, name) for name, array in named.items()}
    numbers = stored(plain, who, half=half or None, allow_rounding=allow_rounding)
    return write_all_atomic({root / file: data for file, data in raw_files(numbers, one_file=one_file).items()})


def raw_files(numbers: Mapping[str, NDArray[Any]], *, one_file: bool) -> dict[str, bytes]:
    """The names of the raw files and what they hold."""
    files = raw_file_names(numbers, one_file=one_file)
    found: dict[str, bytes] = {}
    layers = {name: name.rpartition(".")[0] for name in numbers}
    # Its length says of which format a file is: of the wider one that a layer has.
    wide = {layers[name] for name, array in numbers.items() if array.dtype.itemsize > 2}
    for name, array in numbers.items():
        numbers_of = array.astype("<f4") if one_file and layers[name] in wide else array
        found[files[name]] = found.get(files[name], b"") + numbers_of.tobytes()
    return found


def raw_file_names(arrays: Iterable[str], *, one_file: bool) -> dict[str, str]:
    """The raw file of each named array."""
    parts = {name: split_name(name, "save_raw") for name in arrays}
    stems = file_stems(label for label, _ in parts.values())
    if one_file:
        return {name: f"{stems[label]}.dat" for name, (label, _) in parts.items()}
    plain = {name: f"{stems[label]}.{part}" for name, (label, part) in parts.items()}
    files = dat_file_names(plain.values())
    return {name: files[each] for name, each in plain.items()}


def file_stems(labels: Iterable[str]) -> dict[str, str]:
    """Names of files for layers, all different, whatever the order of the labels and the case of their letters."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    # A label that is a name of a file keeps it.
    for label in sorted(set(labels), key=lambda each: (file_stem(each) != each, each)):
        stem, count = file_stem(label), 1
        while (name := stem if count == 1 else f"{stem}-{count}").casefold() in taken:
            count += 1
        taken.add(name.casefold())
        found[label] = name
    return found


def _check_names(names: Mapping[str, str], layers: Mapping[str, WeightLayer]) -> None:
    known = {*layers, *(f"{layer.label}.{part}" for layer in layers.values() for part in layer.parts)}
    for name, file in names.items():
        if name not in known:
            raise MPSArgumentError("load_raw", "names", "must name a layer of the network or an array", repr(name))
        if not file or "/" in file or "\\" in file or "\0" in file or file in (".", ".."):
            raise MPSArgumentError("load_raw", "names", "must give names of files in the folder", repr(file))


_Found = list[tuple[WeightRow, NDArray[Any]]]


def _files(
    root: Path, layer: WeightLayer, stem: str, names: Mapping[str, str]
) -> Iterator[tuple[Path | None, tuple[str, ...]]]:
    """The file of each array of a layer, or the one of all of them; None where there is none."""
    whole = _first(root, names.get(layer.label), stem)
    if whole is not None:
        yield root / whole, layer.parts
        return
    for part in layer.parts:
        name = f"{layer.label}.{part}"
        file = _first(root, names.get(name), dat_file_name(f"{stem}.{part}").removesuffix(".dat"))
        yield None if file is None else root / file, (part,)


def _absent(root: Path, layer: WeightLayer, stem: str, parts: tuple[str, ...]) -> _Found:
    """Nothing, where a part may be missing."""
    (part,) = parts
    if part in layer.optional:
        return []
    rule = f"must have {dat_file_name(f'{stem}.{part}')}, or {stem}.dat for the whole layer"
    raise MPSFileError("load_raw", str(root), rule, "neither")


def _first(root: Path, given: str | None, stem: str) -> str | None:
    """The file that is there: of the name given, or of the stem with a suffix."""
    if given is not None:
        return given
    return next((f"{stem}{suffix}" for suffix in RAW_SUFFIXES if is_there(root / f"{stem}{suffix}", "load_raw")), None)


def _cut(path: Path, layer: WeightLayer, parts: tuple[str, ...]) -> _Found:
    """The arrays that a file holds one after another, by its length."""
    wanted = [parts]
    if parts == layer.parts and layer.optional:
        wanted.append(tuple(part for part in parts if part not in layer.optional))
    own = {part: orders(WeightLayout.OPENMPS, layer, part)[0] for part in layer.parts}
    counts = [sum(int(np.prod(own[part].shape)) for part in each) for each in wanted]
    found = require_file(path, "load_raw")
    fits = [
        (each, width) for each, count in zip(wanted, counts, strict=True) for width in _WIDTHS if width * count == found
    ]
    if len(fits) != 1:
        lengths = " or ".join(f"{4 * count:,} bytes (float32) or {2 * count:,} (float16)" for count in counts)
        if fits:
            raise MPSFileError(
                "load_raw", str(path), "must say what it is by its length", f"{found:,} bytes, which two are"
            )
        raise MPSFileError("load_raw", str(path), f"must hold {lengths}", f"{found:,} bytes")
    chosen, width = fits[0]
    with reading(path, "load_raw"):
        numbers = np.fromfile(path, _WIDTHS[width], found // width)
    if numbers.nbytes != found:
        raise MPSFileError("load_raw", str(path), f"must hold {found:,} bytes", f"{numbers.nbytes:,} while reading")
    rows: _Found = []
    place = 0
    for part in chosen:
        order = own[part]
        count = int(np.prod(order.shape))
        array = numbers[place : place + count].reshape(order.shape)
        place += count
        name = f"{layer.label}.{part}"
        rows.append((WeightRow(name, order.shape, str(order), path.name, array.shape, str(order)), array))
    return rows
