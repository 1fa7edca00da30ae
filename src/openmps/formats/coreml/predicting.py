"""Core ML itself, which there is on Macs: a package's results for some images, through coremltools."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSFileError
from openmps.formats.coreml.features import Features, Image, features_of
from openmps.formats.coreml.network import read
from openmps.formats.coreml.packages import READER, SUFFIXES, read_package
from openmps.formats.coreml.protos import require_protos
from openmps.formats.extras import missing_package

Array = NDArray[Any]
_WHO = f"{READER}.predict"


def is_predicted(path: Path) -> bool:
    """Whether a path is called as Core ML's packages and files are, and Core ML is there."""
    return sys.platform == "darwin" and path.suffix.lower() in SUFFIXES


def source_labels(path: Path) -> list[str]:
    """The names of a model's inputs."""
    features = _features(path)
    return [*features.images, *features.arrays]


def pixel_order(path: Path) -> str:
    """The order of the channels, where the one input is an image; else empty."""
    features = _features(path)
    orders = [each.order for each in features.images.values()]
    return orders[0] if len(orders) == 1 and not features.arrays else ""


def predict(path: Path, sources: Sequence[Array]) -> dict[str, Array]:
    """What Core ML gives for images ``[images, height, width, channels]``: each output as such images, by its name.

    Inputs that are images take pixels from 0 to 255. Of a classifier the probabilities are in the order of its labels.

    Raises:
        MPSFileError: The model cannot be run.
        MPSError: coremltools is not installed.
    """
    try:
        models: Any = import_module("coremltools").models
    except ImportError as error:
        raise missing_package(_WHO, "coremltools", "Core ML", "coreml") from error
    features, labels = _features(path), read(path, os.fspath(path))[1]["class_labels"]
    found: dict[str, list[Array]] = {}
    try:
        model = models.MLModel(os.fspath(path))
        for feeds in _batches(features, sources):
            for name, value in model.predict(feeds).items():
                if name != features.predicted:
                    found.setdefault(str(name), []).append(_pixels(value, labels))
    except Exception as error:  # whatever Core ML raises
        rule = "must be a model that Core ML runs for these images"
        raise MPSFileError(_WHO, os.fspath(path), rule, f"{type(error).__name__}: {str(error)[:300]}") from error
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _features(path: Path) -> Features:
    protos = require_protos(READER)
    return features_of(protos, read_package(path, protos).message, os.fspath(path))


def _batches(features: Features, sources: Sequence[Array]) -> Sequence[Mapping[str, Any]]:
    """What each prediction is given: as many images as arrays are for, one where they are C, H, W or images."""
    lengths = [shape[0] for shape in features.arrays.values() if len(shape) == 4]
    size, count = max([1, *lengths]) if not features.images else 1, len(sources[0])
    names = [*features.images, *features.arrays]
    return [
        {name: _given(features, name, array[start : start + size]) for name, array in zip(names, sources, strict=True)}
        for start in range(0, count, size)
    ]


def _given(features: Features, name: str, pixels: Array) -> Any:
    """One input: an image of bytes, or an array of the rank that the model says."""
    if name in features.images:
        return _picture(features.images[name], pixels[0])
    planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32)
    return planes[0] if len(features.arrays[name]) == 3 else planes


def _picture(image: Image, pixels: Array) -> Any:
    """Pixels as Pillow has them, which is grey or RGB whatever the order of the model's channels is."""
    pillow: Any = import_module("PIL.Image")
    found = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    if image.channels == 1:
        return pillow.fromarray(found[..., 0])
    return pillow.fromarray(found[..., ::-1] if image.order == "BGR" else found)


def _pixels(value: Any, labels: Sequence[str]) -> Array:
    """An output as images."""
    if isinstance(value, Mapping):
        numbers: Mapping[Any, float] = value
        row = [numbers[label] if label in numbers else numbers[int(label)] for label in labels]
        return np.array(row, np.float32).reshape(1, 1, 1, -1)
    found = np.asarray(value, np.float32)
    planes = found.reshape(*[1] * (4 - found.ndim), *found.shape) if found.ndim != 2 else found[..., None, None]
    return planes.transpose(0, 2, 3, 1)
