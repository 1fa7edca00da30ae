"""Files of named arrays, whoever wrote them: .npz, safetensors, state dicts, Keras' files, by their suffix."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from openmps.checks import memory_for
from openmps.core.kinds import mapped
from openmps.errors import MPSFileError
from openmps.formats.arrays import Array, to_stored
from openmps.formats.atomic import write_for
from openmps.formats.exchange.keras import SUFFIXES as KERAS_SUFFIXES
from openmps.formats.exchange.keras import load_keras
from openmps.formats.exchange.npz import load_npz, npz_bytes
from openmps.formats.exchange.state_dict import load_state_dict, state_dict_bytes
from openmps.formats.paths import path_of, reading, require_file
from openmps.formats.safetensors_parts import SafetensorsParts
from openmps.formats.weights import METADATA_KEY, check_named_once, load_safetensors

Tensors = dict[str, NDArray[Any]]
_KINDS = ("F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")


class _Reader(Protocol):
    def __enter__(self) -> _Reader: ...
    def __exit__(self, *error: object) -> None: ...
    def metadata(self) -> dict[str, str] | None: ...
    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> Any: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


def load_tensors(path: str | os.PathLike[str]) -> Tensors:
    """The arrays of a file by name.

    It is an .npz, a .safetensors, a state dict of PyTorch, .pt, .pth, .ckpt or .bin, or what Keras saved, .h5, .hdf5 or
    .keras. Numbers keep their format, but for bfloat16, which widens to float32. The checksum of a file that
    `save_safetensors` wrote is checked. Nothing that a file names is run or imported, and none takes more memory than
    its length says: compressed files unpack to 16 times that at most.

    Raises:
        MPSFileError: The file is missing, damaged, or of another format.
    """
    who = "load_tensors"
    found = path_of(path, who)
    require_file(found, who)
    suffix = found.suffix.lower()
    if suffix not in _READERS:
        remedy = "Raw .dat files are read with the network's shapes."
        raise MPSFileError(who, str(found), f"must end in one of {', '.join(_READERS)}", repr(suffix), remedy)
    with reading(found, who):
        return _READERS[suffix](found)


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array]) -> None:
    """Write named arrays as .npz, .safetensors or a state dict of PyTorch, by the suffix, atomically.

    What is written is read back and compared before an older file goes. Shapes and formats of numbers stay as they are.

    Raises:
        MPSFileError: The suffix is none of these, or the file could not be written.
        MPSTypeError: An array is none of booleans, integers or floats of up to 64 bits.
    """
    who = "save_tensors"
    write_for(who, path_of(path, who), tensors_bytes(path, tensors))


def tensors_bytes(path: str | os.PathLike[str], tensors: Mapping[str, Array], who: str = "save_tensors") -> bytes:
    """What `save_tensors` writes."""
    mapped(who, "tensors", tensors, object, "arrays")
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise MPSFileError(who, os.fspath(path), f"must end in one of {', '.join(_WRITERS)}", repr(suffix))
    with memory_for(who, "tensors"):
        return _WRITERS[suffix]({str(name): to_stored(array, who, str(name)) for name, array in tensors.items()})


def _load_safetensors(path: Path) -> Tensors:
    who = "load_tensors"
    try:
        with cast("_Reader", safe_open(os.fspath(path), framework="pt")) as reader:
            check_named_once(path)
            if METADATA_KEY in (reader.metadata() or {}):
                return dict(load_safetensors(path))
            found: Tensors = {}
            for name in reader.keys():  # noqa: SIM118  no dictionary
                kind = reader.get_slice(name).get_dtype()
                if kind not in _KINDS:
                    rule = f"tensor {name[:200]!r} must be of one of {', '.join(_KINDS)}"
                    raise MPSFileError(who, str(path), rule, kind)
                tensor = reader.get_tensor(name)
                found[name] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
                if not found[name].size:
                    raise MPSFileError(who, str(path), f"tensor {name[:200]!r} must hold numbers", found[name].shape)
    except (SafetensorError, ValueError, OverflowError, TypeError, RuntimeError) as error:
        if isinstance(error, MPSFileError):
            raise
        raise MPSFileError(who, str(path), "must be a whole safetensors file", error) from error
    return found


def _safetensors_bytes(tensors: Tensors) -> bytes:
    return b"".join(SafetensorsParts(tensors or {"none": np.zeros(1, np.float32)}))


_READERS: Mapping[str, Callable[[Path], Tensors]] = {
    ".npz": load_npz,
    ".safetensors": _load_safetensors,
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), load_state_dict),
    **dict.fromkeys(KERAS_SUFFIXES, load_keras),
}
_WRITERS: Mapping[str, Callable[[Tensors], bytes]] = {
    ".npz": npz_bytes,
    ".safetensors": _safetensors_bytes,
    **dict.fromkeys((".pt", ".pth"), state_dict_bytes),
}
SUFFIXES = tuple(_READERS)
"""Suffixes of files of named arrays."""
WRITTEN_SUFFIXES = tuple(_WRITERS)
"""Those that are written, too."""
