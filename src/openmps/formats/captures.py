"""Captures: the images of one encode in a folder, as a device writes them; ``capture.json`` says what they are."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import of_kind
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, MPSFileError, lengths_text, shown
from openmps.formats.atomic import write_atomic
from openmps.formats.folders import whole_folder
from openmps.formats.json_text import read_json
from openmps.formats.paths import is_file, is_folder, path_of, read_file, require_folder
from openmps.selectors import name_arguments
from openmps.types import NUMPY_DTYPES, MPSImageFeatureChannelFormat

FORMAT = "openmps.capture"
INDEX, NUMBERS = "capture.json", "images.dat"
_VERSION = 1
_LONGEST_INDEX = 16 << 20
_MOST_IMAGES = 1 << 16
_LENGTHS = ("count", "height", "width", "channels")
_NAMES = {form.name.lower(): form for form in NUMPY_DTYPES}
_UNORM = {MPSImageFeatureChannelFormat.UNORM8: 255.0, MPSImageFeatureChannelFormat.UNORM16: 65_535.0}
_OF_TYPE = {NUMPY_DTYPES[form]: largest for form, largest in _UNORM.items()}
_WHO = "openmps.debug.load_capture"


def numbers_of(array: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers of an image that is made of an array; those of uint8 and uint16 stand for 0 to 1."""
    return array.astype(np.float32) / np.float32(_OF_TYPE.get(array.dtype, 1.0))


@name_arguments
@dataclass(frozen=True, eq=False)
class CapturedImage:
    """Images of one label, ``[images, height, width, channels]``, as they are stored. Our addition."""

    label: str
    channel_format: MPSImageFeatureChannelFormat
    array: NDArray[Any]

    @property
    def numbers(self) -> NDArray[np.float32]:
        """What is stored as numbers; of unorm 0 to 1."""
        largest = _UNORM.get(self.channel_format)
        found = self.array.astype(np.float32)
        return found if largest is None else found / np.float32(largest)


@name_arguments
@dataclass(frozen=True)
class Capture:
    """The images of one encode on a device: what it was given, and what its filters made. Our addition.

    ``about`` is what the folder says of the device; ``precise_weights`` whether convolutions multiplied with float32
    weights, where the framework rounds them to float16 unless it is asked not to.
    """

    images: tuple[CapturedImage, ...]
    about: str = ""
    precise_weights: bool = False

    def image(self, label: str) -> CapturedImage | None:
        """The images of a label, if there are some."""
        return next((each for each in self.images if each.label == label), None)


def is_capture(path: Path) -> bool:
    """Whether there is a folder with the index of a capture."""
    return is_folder(path, _WHO) and is_file(path / INDEX, _WHO)


def save_capture(capture: Capture, folder: str | os.PathLike[str]) -> Path:
    """Write a capture into a new folder, whole or not at all, and return the folder. Our addition.

    Folders above it that are missing are made. `load_capture` reads it.

    Raises:
        MPSFileError: The folder is there, or cannot be written.
    """
    who = "openmps.debug.save_capture"
    of_kind(who, "capture", capture, Capture)
    rows = [row_of(who, each) for each in listed(who, "capture.images", capture.images, CapturedImage, "images")]
    head = {"about": capture.about} if capture.about else {}
    weights = {"weights": "float32"} if capture.precise_weights else {}
    index = {"format": FORMAT, "version": _VERSION, **head, **weights, "images": rows}
    with whole_folder(folder, who) as made:
        write_atomic(made / NUMBERS, b"".join(stored_bytes(each) for each in capture.images))
        write_atomic(made / INDEX, json.dumps(index, indent=2).encode() + b"\n")
    return path_of(folder, who, "folder")


def load_capture(folder: str | os.PathLike[str]) -> Capture:
    """The capture in a folder, written by an app or by `save_capture`; the page on the device loop has the format.

    Our addition.

    Raises:
        MPSFileError: There is none, or its files do not say the same.
    """
    where = path_of(folder, _WHO, "folder")
    index = load_index(where / INDEX, FORMAT, _WHO)
    about, weights = index.get("about", ""), index.get("weights", "float16")
    if not isinstance(about, str) or weights not in ("float16", "float32"):
        rule = 'must have text as "about", and float16 or float32 as "weights"'
        raise MPSFileError(_WHO, str(where / INDEX), rule, repr((about, weights))[:200])
    return Capture(tuple(load_images(where, INDEX, index, _WHO)), about, weights == "float32")


# --- what every folder of images has ----------------------------------------------------------------------------------


def row_of(who: str, image: CapturedImage) -> dict[str, Any]:
    """What an index says of images, which are checked."""
    dtype = NUMPY_DTYPES.get(image.channel_format)
    if image.array.ndim != 4 or not image.array.size or image.array.dtype != dtype:
        rule = f"must be [images, height, width, channels], {dtype or 'of a format that stores numbers'}"
        got = f"{image.array.dtype} {lengths_text(image.array.shape)}"
        raise MPSArgumentError(who, f"image {image.label!r}", rule, got)
    lengths = dict(zip(_LENGTHS, map(int, image.array.shape), strict=True))
    return {"label": image.label, **lengths, "format": image.channel_format.name.lower()}


def stored_bytes(image: CapturedImage) -> bytes:
    """The numbers of images one behind another, little-endian."""
    array = image.array
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def load_index(
    file: Path, form: str, who: str, version: int = _VERSION, longest: int = _LONGEST_INDEX
) -> Mapping[str, Any]:
    """The JSON object of an index of so many bytes at most, of the format and version that it must say."""
    require_folder(file.parent, who)
    found = read_json(file, who, longest)
    index = cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
    if index.get("format") != form or index.get("version") != version:
        got = repr((index.get("format"), index.get("version")))[:60]
        raise MPSFileError(who, str(file), f"must have the format {form!r} and version {version}", got)
    return index


def load_images(folder: Path, name: str, index: Mapping[str, Any], who: str) -> list[CapturedImage]:
    """The images that an index lists, whose file must be as long as it says."""
    rows, file = index.get("images"), folder / name
    if not isinstance(rows, list) or not 0 < len(cast("list[object]", rows)) <= _MOST_IMAGES:
        raise MPSFileError(who, str(file), f'must have a list as "images", of 1 to {_MOST_IMAGES:,}', shown(rows)[:200])
    said = [_row(each, place, who, file) for place, each in enumerate(cast("list[object]", rows))]
    twice = _first_twice([label for label, _, _ in said])
    if twice is not None:
        raise MPSFileError(who, str(file), "must have each label once", repr(twice)[:200])
    lengths = [math.prod(shape) * NUMPY_DTYPES[form].itemsize for _, form, shape in said]
    data = read_file(folder / NUMBERS, who, sum(lengths))
    if len(data) != sum(lengths):
        rule = f"must hold {sum(lengths):,} bytes, as {name} says"
        raise MPSFileError(who, str(folder / NUMBERS), rule, f"{len(data):,}")
    found, begin = list[CapturedImage](), 0
    for (label, form, shape), length in zip(said, lengths, strict=True):
        kind = NUMPY_DTYPES[form].newbyteorder("<")
        array = np.frombuffer(data, kind, math.prod(shape), begin).reshape(shape)
        found.append(CapturedImage(label, form, array.astype(NUMPY_DTYPES[form], copy=False)))
        begin += length
    return found


def _row(row: object, place: int, who: str, file: Path) -> tuple[str, MPSImageFeatureChannelFormat, tuple[int, ...]]:
    """Label, format and shape of a row."""
    said = cast("Mapping[str, Any]", row) if isinstance(row, dict) else {}
    label, form = said.get("label"), said.get("format")
    shape = tuple(said.get(name, 1 if name == "count" else None) for name in _LENGTHS)
    is_whole = all(type(each) is int and 0 < each < 1 << 31 for each in shape)
    if not isinstance(label, str) or not label or not isinstance(form, str) or form not in _NAMES or not is_whole:
        rule = f'image {place} must have "label", "height", "width", "channels" and "format" ({", ".join(_NAMES)})'
        raise MPSFileError(who, str(file), rule, shown(row)[:200])
    return label, _NAMES[form], shape


def _first_twice(labels: Sequence[str]) -> str | None:
    seen = set[str]()
    for label in labels:
        if label in seen:
            return label
        seen.add(label)
    return None
