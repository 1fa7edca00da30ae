"""Weights in Keras' own files: .h5, .weights.h5 and .keras. Keras is not needed, and nothing in a file is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.exchange.hdf5 import Hdf5
from openmps.formats.exchange.zips import Zip
from openmps.formats.paths import read_file

_WEIGHTS = "model.weights.h5"
SUFFIXES = (".h5", ".hdf5", ".keras")


def load_keras(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a file that Keras saved, by the names of the file: weights, and an optimizer's numbers.

    =====================================  =======================================================================
    file                                   names
    =====================================  =======================================================================
    ``save_weights`` of Keras 2, .h5       ``conv1/conv1/kernel:0``: the layer, and the weight's own name
    ``save`` of Keras 2, .h5               the same behind ``model_weights/``
    ``save`` and ``save_weights`` of       ``layers/conv2d/vars/0``: numbered in the order in which the layer made
    Keras 3, .keras and .weights.h5        them
    =====================================  =======================================================================

    A .keras file is a ZIP archive; what else it holds, the configuration among it, is not read. Raises ``MPSFileError``
    naming the file and the data set at fault.
    """
    who, name = "load_keras", os.fspath(path)
    data = read_file(path, who)
    if Path(path).suffix.lower() == ".keras":
        archive = Zip(data, who, name)
        if _WEIGHTS not in archive.names:
            raise MPSFileError(who, name, f"must hold {_WEIGHTS}", ", ".join(archive.names)[:200] or "nothing")
        data = bytes(archive.read(_WEIGHTS))
    found = Hdf5(data, who, name).arrays()
    if not found:
        raise MPSFileError(who, name, "must hold weights", "none")
    return found
