"""Where training images come from: the bundled digits, MNIST-style files, or a folder of class folders."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import flag, is_whole
from openmps.errors import MPSArgumentError, MPSFileError, shown, size_text
from openmps.formats.extras import missing_package
from openmps.formats.paths import is_folder, path_of, visible_entries
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.idx import has_idx_files, load_idx
from openmps.training.image_folder import Channels, load_image_folder
from openmps.training.scaling import ScalingName

_WHO = "load_dataset"


def load_digits_dataset() -> Dataset:
    """The 1,797 handwritten digits that scikit-learn brings along: 8x8 grey pixels, no download.

    Their values 0 to 16 become 0 to 255, ``round(255 * v / 16)``; the size stays 8x8, which two 2x2 poolings bring to
    2x2. Raises ``MPSError`` naming the extra to install where scikit-learn is missing.
    """
    table = _table_of_digits()
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return Dataset(images, table[:, -1].astype(np.int64), tuple(str(digit) for digit in range(10)), "digits")


def _table_of_digits() -> NDArray[np.float64]:
    """A row a digit: 64 values and the class, as scikit-learn's file has them. Importing its reader takes a second."""
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return np.loadtxt(path, delimiter=",")
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise missing_package("load_digits_dataset", "scikit-learn", "the bundled digits") from error
    return np.column_stack(cast("tuple[NDArray[Any], ...]", datasets.load_digits(return_X_y=True)))


def has_class_folders(path: str | os.PathLike[str] | None) -> bool:
    """Whether `load_dataset` reads a folder as one of class folders."""
    return path is not None and not has_idx_files(path_of(path, "has_class_folders"))


def _as_they_are(
    data: DataSplit, size: tuple[int, int] | None, channels: int | None, scaling: object, *, skip_broken: bool
) -> DataSplit:
    """Images that nothing is done to; raises where something else was asked for."""
    *own, depth = data.training.images.shape[1:]
    remedy = "Leave it out: it is for class folders."
    rule = f"must be that of the images of {data.training.name}, {{}}"
    lengths = tuple(size) if isinstance(size, Sequence) else ()
    if size is not None and lengths != tuple(own):
        got = size_text(lengths) if lengths and all(map(is_whole, lengths)) else shown(size)
        raise MPSArgumentError(_WHO, "size", rule.format(size_text(own)), got, remedy)
    if channels is not None and not (is_whole(channels) and channels == depth):
        raise MPSArgumentError(_WHO, "channels", rule.format(depth), shown(channels), remedy)
    if scaling is not None:
        raise MPSArgumentError(_WHO, "scaling", "must be None where no image is scaled", scaling, remedy)
    if skip_broken:
        raise MPSArgumentError(_WHO, "skip_broken", "must be False where no image has a file of its own", True, remedy)
    return data


def load_dataset(
    path: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    channels: Channels | None = None,
    scaling: ScalingName | None = None,
    skip_broken: bool = False,
) -> DataSplit:
    """Training and test images from the folder ``path``, whichever kind it is; without a path the bundled digits.

    A folder with at least one MNIST-style file is read by :func:`load_idx`, one with sub-folders by
    :func:`load_image_folder` (``size``, ``channels``, ``scaling`` and ``skip_broken`` are for that one). What brings no
    test images of its own is split: a stratified fifth, chosen by ``seed``, is held out. Raises ``MPSFileError`` where
    the folder is neither, saying what it holds, and ``MPSArgumentError`` where the digits or MNIST-style files, which
    are read as they are, have another size or number of channels than asked for, or ``scaling`` or ``skip_broken`` is.
    """
    skip_broken = flag(_WHO, "skip_broken", skip_broken)
    if path is None:
        return _as_they_are(load_digits_dataset().split(seed=seed), size, channels, scaling, skip_broken=skip_broken)
    folder, who = path_of(path, _WHO), _WHO
    entries = visible_entries(folder, who)
    if has_idx_files(folder):
        return _as_they_are(load_idx(folder, seed=seed), size, channels, scaling, skip_broken=skip_broken)
    if any(is_folder(entry, who) for entry in entries):
        found = load_image_folder(folder, size=size, channels=channels, scaling=scaling, skip_broken=skip_broken)
        return found.split(seed=seed)
    names = [entry.name for entry in entries]
    got = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "an empty folder"
    rule = "must hold MNIST-style files (train-images-idx3-ubyte[.gz], …) or one folder of images for each class"
    raise MPSFileError(who, str(folder), rule, got)
