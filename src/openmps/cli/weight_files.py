"""What a path of ``openmps weights`` names: a run, an archive, a folder of raw files, or a file of named arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmps.cli.archives import conversion
from openmps.cli.options import warned_once
from openmps.cli.reading import RUNS, is_onnx
from openmps.errors import MPSArgumentError, MPSFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.formats.archive import Registry
    from openmps.formats.exchange.layers import WeightLayer
    from openmps.training.run_folder import RunFolder

WHO = "openmps weights"
_RAW = (".dat", ".bin")


@dataclass(frozen=True)
class KnownNetwork:
    """The layers of a run or an archive, and its own numbers: none of a run that has not saved any."""

    layers: Mapping[str, WeightLayer]
    arrays: Mapping[str, NDArray[Any]] | None
    run: RunFolder | None = None
    archive: Path | None = None


def found(path: Path) -> Path:
    """A path that is there, or that of a run by its name in ``runs``."""
    place = _place(path)
    if place is None:
        raise MPSFileError(WHO, str(path), "must be a file or folder of weights", "nothing there")
    return place


def _place(path: Path) -> Path | None:
    from openmps.formats.paths import is_there

    named = RUNS / path
    if not os.path.lexists(path) and len(path.parts) == 1 and is_there(named, WHO):
        return named
    return path if os.path.lexists(path) else None


def run_or_archive(path: Path, registry: Registry | None = None) -> KnownNetwork | None:
    """The network that a path names; None where it is neither a run folder nor an archive."""
    from openmps.formats.paths import is_file

    if is_file(path / "run.json", WHO):
        return _of_run(path)
    is_archive = is_file(path, WHO) and not is_tensors(path) and not is_raw(path)
    return _of_archive(path, registry) if is_archive else None


def named_network(path: Path, registry: Registry | None = None) -> KnownNetwork:
    """The network of ``--network``."""
    from openmps.formats.archive import REGISTRY

    rule = "must be a run folder, or an archive of a graph"
    if is_onnx(path):
        raise MPSArgumentError(WHO, "--network", rule, f"the ONNX model {path}", conversion(path))
    place = _place(path)
    if place is None:
        raise MPSArgumentError(WHO, "--network", rule, f"{path}, where there is nothing")
    try:
        network = run_or_archive(place, registry)
    except MPSFileError as error:
        if error.argument == REGISTRY:
            raise
        cause = error.__cause__ if isinstance(error.__cause__, MPSFileError) else error
        raise MPSArgumentError(WHO, "--network", rule, str(cause).removeprefix(f"{cause.who}: ")) from error
    if network is None:
        raise MPSArgumentError(WHO, "--network", rule, path)
    return network


def is_tensors(path: Path) -> bool:
    """Whether a path has the suffix of a file of named arrays."""
    from openmps.formats.exchange.tensors import SUFFIXES

    return path.suffix.lower() in SUFFIXES


def is_written(path: Path) -> bool:
    """Whether a path has the suffix of a file of named arrays that is written."""
    from openmps.formats.exchange.tensors import WRITTEN_SUFFIXES

    return path.suffix.lower() in WRITTEN_SUFFIXES


def is_raw(path: Path) -> bool:
    """Whether a path has the suffix of a raw file."""
    return path.suffix.lower() in _RAW


def _of_run(path: Path) -> KnownNetwork:
    import numpy as np

    from openmps.formats.exchange.layers import network_layers
    from openmps.formats.paths import is_file
    from openmps.runtime.devices import mtl_device
    from openmps.training.inference import described_network
    from openmps.training.network import Network
    from openmps.training.run_folder import RunFolder
    from openmps.types import MPSImageFeatureChannelFormat

    run = RunFolder.open(path)
    shape, _ = described_network(run)
    shapes = shape.arrays()
    arrays = run.load_weights(shapes) if is_file(run.weights_path, WHO) else None
    ones = {name: np.ones(lengths, np.float32) for name, lengths in shapes.items()}
    # What the layers are, whatever the numbers are.
    graph = Network.from_arrays(shape, ones).inference_graph(mtl_device("cpu"), MPSImageFeatureChannelFormat.FLOAT32)
    return KnownNetwork(network_layers(graph), arrays, run)


def _of_archive(path: Path, registry: Registry | None) -> KnownNetwork:
    from openmps.formats.archive import REGISTRY
    from openmps.formats.exchange.archives import archived_graph
    from openmps.formats.exchange.layers import network_arrays, network_layers

    if is_onnx(path):
        raise MPSFileError(WHO, str(path), "must be weights, or an archive", "an ONNX model", conversion(path))
    try:
        with warned_once():
            _, graph = archived_graph(path, WHO, registry=registry)
    except MPSFileError as error:
        if error.who == WHO or error.argument == REGISTRY:
            raise
        rule = (
            "must be a run folder, a folder of raw files, an archive, or end in .npz, .safetensors, .pt, .pth, .h5 "
            "or .keras"
        )
        raise MPSFileError(WHO, str(path), rule, str(error).removeprefix(f"{error.who}: ")) from error
    return KnownNetwork(network_layers(graph), network_arrays(graph), archive=path)


class RawFormat(StrEnum):
    """The numbers of raw files."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


def shown_arrays(
    path: Path, network: Path | None, raw: RawFormat | None, registry: Registry | None = None
) -> dict[str, NDArray[Any]]:
    """All arrays that a path has, for ``show``."""
    from openmps.formats.paths import is_file

    path = found(path)
    known = run_or_archive(path, registry)
    is_named = is_file(path, WHO) and is_tensors(path) and not (path.suffix.lower() == ".bin" and not _is_zip(path))
    option = "--network" if network is not None else "--as"
    if (known is not None or is_named) and (network is not None or raw is not None):
        rule = f"must be raw files where {option} is given"
        raise MPSFileError(WHO, str(path), rule, "what says itself what it holds", f"Leave {option} out")
    if network is not None and raw is not None:
        raise MPSArgumentError(WHO, "--as", "must be left out: --network says what raw files hold", raw.value)
    if known is not None:
        if known.arrays is None:
            raise MPSFileError(WHO, str(path), "must hold weights", "a run that has saved none", "Train it again.")
        return dict(known.arrays)
    if is_named:
        from openmps.formats.exchange.tensors import load_tensors

        return load_tensors(path)
    if network is not None:
        from openmps.formats.exchange.raw import load_raw

        return dict(load_raw(path, named_network(network, registry).layers).arrays)
    files = [path] if is_raw(path) and is_file(path, WHO) else _raw_files(path)
    if raw is None:
        rule = "must be given, or --as: raw files do not say what they hold"
        raise MPSArgumentError(WHO, "--network", rule, None, "Give a run or an archive, or --as float32")
    return {file.name: _raw(file, raw) for file in files}


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


def _raw_files(path: Path) -> list[Path]:
    from openmps.formats.paths import is_file, visible_entries

    files = [file for file in visible_entries(path, WHO) if file.suffix.lower() in _RAW and is_file(file, WHO)]
    if not files:
        rule = "must be a run folder, or hold raw files, .dat or .bin"
        raise MPSFileError(WHO, str(path), rule, "a folder without them")
    return files


def _raw(path: Path, raw: RawFormat) -> NDArray[Any]:
    """The numbers of a raw file."""
    import numpy as np

    from openmps.formats.paths import read_file

    data = read_file(path, WHO)
    kind = np.dtype(raw.value).newbyteorder("<")
    if not data or len(data) % kind.itemsize:
        raise MPSFileError(WHO, str(path), f"must hold numbers of {raw.value}", f"{len(data)} bytes")
    return np.frombuffer(data, kind)
