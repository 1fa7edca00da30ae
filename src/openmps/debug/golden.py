"""Goldens: what a network gives for some images, and by how much others may differ: percentiles, not one tolerance."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import of_kind
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.debug.captured.layers import Layers, arrays_for, check_infers
from openmps.debug.captured.rounding import Precision, expected, operand_format
from openmps.debug.comparing import error_percentiles
from openmps.errors import MPSArgumentError, MPSFileError, counted, lengths_text, shown
from openmps.formats.atomic import write_atomic
from openmps.formats.captures import (
    NUMBERS,
    Capture,
    CapturedImage,
    load_images,
    load_index,
    row_of,
    stored_bytes,
)
from openmps.formats.folders import whole_folder
from openmps.formats.paths import path_of
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import checked_format
from openmps.graph.run.trace import filter_names, source_names
from openmps.selectors import name_arguments
from openmps.tables import printed_html, table
from openmps.types import MPSImageFeatureChannelFormat

FORMAT = "openmps.golden"
INDEX = "golden.json"
PERCENTILES = ("50 %", "90 %", "99 %", "largest")
"""Of the numbers of an image: what their errors stay below."""
_VERSION = 1
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_LIMITS = "limits"
_WHO = "openmps.debug.load_golden"
Limits = tuple[float, float, float, float]


@name_arguments
@dataclass(frozen=True)
class GoldenResult:
    """A result as it is in float32, and the percentiles of errors that rounding explains, of its largest magnitude.

    Our addition.
    """

    image: CapturedImage
    limits: Limits


@name_arguments
@dataclass(frozen=True)
class Golden:
    """Source images of a network, and its results: those of the graph, and exported images. Our addition."""

    sources: tuple[CapturedImage, ...]
    results: tuple[GoldenResult, ...]


@name_arguments
@dataclass(frozen=True)
class GoldenCheck:
    """The percentiles of errors of one result, and their limits. Our addition."""

    label: str
    shape: tuple[int, ...]
    errors: Limits
    limits: Limits

    @property
    def ok(self) -> bool:
        """Whether every percentile is within its limit."""
        return all(error <= limit for error, limit in zip(self.errors, self.limits, strict=True))


@name_arguments
@dataclass(frozen=True)
class GoldenReport:
    """Each result of a golden beside another network's or a device's; printable as a table. Our addition."""

    checks: tuple[GoldenCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether all are within their limits."""
        return all(each.ok for each in self.checks)

    def __str__(self) -> str:
        headings = ("result", "shape", *PERCENTILES, "")
        rows = [_cells(each) for each in self.checks]
        beyond = [each.label for each in self.checks if not each.ok]
        last = f"{counted(len(rows), 'result')} within the limits"
        return "\n".join(
            [
                table(headings, rows, (False, False, True, True, True, True, False)),
                f"beyond the limits: {', '.join(beyond)}" if beyond else last,
            ]
        )

    _repr_html_ = printed_html


def _cells(check: GoldenCheck) -> tuple[str, ...]:
    pairs = zip(check.errors, check.limits, strict=True)
    errors = (f"{error:.1e} of {limit:.1e}" for error, limit in pairs)
    return (check.label, lengths_text(check.shape), *errors, "" if check.ok else "beyond")


def make_golden(
    graph: MPSNNGraph,
    source_images: Sequence[NDArray[Any]],
    channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT16,
) -> Golden:
    """The golden of a graph that infers, computed in float32. Our addition.

    ``source_images`` are arrays ``[images, height, width, channels]`` as `MPSNNGraph.trace` takes them. The limits are
    those of a device that stores images as ``channel_format`` and rounds weights to float16: the percentiles of what
    rounding explains of each number, as `compare_capture` bounds it, over the largest magnitude.

    Raises:
        MPSArgumentError: The graph trains, or would refuse the images.
    """
    who = "openmps.debug.make_golden"
    check_infers(who, graph)
    form = checked_format(who, "channel_format", channel_format)
    names = source_names(graph.interface.inputs)
    batches = [MPSImageBatch.from_numpy(graph.device, array) for array in arrays_for(who, graph, source_images)]
    sources = tuple(
        CapturedImage(name, _FLOAT32, np.stack([image.numpy() for image in batch]))
        for name, batch in zip(names, batches, strict=True)
    )
    if len({len(each.array) for each in sources}) > 1:
        raise MPSArgumentError(who, "source_images", "must be as many of each source", len(sources[0].array))
    sizes = [MPSImageDescriptor(_FLOAT32, *(each.array.shape[axis] for axis in (2, 1, 3))) for each in sources]
    layers = Layers(graph, sizes, len(sources[0].array))
    given = {
        each.label: torch.from_numpy(each.numbers).permute(0, 3, 1, 2).to(graph.device.torch_device) for each in sources
    }
    precision = Precision(form, operand_format([form]), MPSImageFeatureChannelFormat.FLOAT16)
    results = [_result(layers, label, given, precision) for label in result_labels(graph)]
    return Golden(sources, tuple(results))


def result_labels(graph: MPSNNGraph) -> list[str]:
    """What the filters are called in a trace whose results leave a graph."""
    filters = list(graph.kernels)
    names = dict(zip(filters, filter_names(filters, source_names(graph.interface.inputs)), strict=True))
    return [names[image.producer] for image in graph.interface.outputs() if image.producer is not None]


def _result(layers: Layers, label: str, given: dict[str, torch.Tensor], precision: Precision) -> GoldenResult:
    wanted = expected(layers.layer(label, given), precision)
    numbers = wanted.numbers.permute(0, 2, 3, 1).cpu().numpy().astype(np.float32)
    scale = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)) or 1.0
    bounds = wanted.bound.cpu().numpy() / scale
    percentiles = [float(each) for each in np.percentile(bounds, (50, 90, 99, 100), method="higher")]
    return GoldenResult(
        CapturedImage(label, _FLOAT32, np.ascontiguousarray(numbers)), cast("Limits", tuple(percentiles))
    )


def check_golden(golden: Golden, found: MPSNNGraph | Capture) -> GoldenReport:
    """Hold a graph's results, in its own format, or those of a device's capture against a golden. Our addition.

    Raises:
        MPSArgumentError: The capture is one of other source images, or a result is missing.
    """
    who = "openmps.debug.check_golden"
    of_kind(who, "golden", golden, Golden)
    arrays = _captured(who, golden, found) if isinstance(found, Capture) else _run(who, golden, found)
    checks: list[GoldenCheck] = []
    for result in golden.results:
        array = arrays.get(result.image.label)
        if array is None:
            rule = f"must have the result {result.image.label!r}"
            raise MPSArgumentError(who, "found", rule, ", ".join(map(repr, list(arrays)[:8])) or "none")
        percentiles, largest = error_percentiles(array, result.image.array)
        checks.append(GoldenCheck(result.image.label, array.shape, (*percentiles, largest), result.limits))
    return GoldenReport(tuple(checks))


def _captured(who: str, golden: Golden, capture: Capture) -> dict[str, NDArray[Any]]:
    for source in golden.sources:
        image = capture.image(source.label)
        if image is None or error_percentiles(image.numbers, source.array)[1] > 2.0**-8:
            rule = f"must be of the golden's source image {source.label!r}"
            raise MPSArgumentError(who, "found", rule, "none of that name" if image is None else "other numbers")
    return {each.label: each.numbers for each in capture.images}


def _run(who: str, golden: Golden, graph: object) -> dict[str, NDArray[Any]]:
    checked = of_kind(who, "found", graph, MPSNNGraph)
    by_label = {each.label: each.array for each in golden.sources}
    names = source_names(checked.interface.inputs)
    if sorted(names) != sorted(by_label):
        rule = f"must have the golden's source images: {', '.join(map(repr, by_label))}"
        raise MPSArgumentError(who, "found", rule, ", ".join(map(repr, names)))
    trace = checked.trace([by_label[name] for name in names])
    return {label: trace[label] for label in result_labels(checked)}


# --- folders ----------------------------------------------------------------------------------------------------------


def save_golden(golden: Golden, folder: str | os.PathLike[str]) -> Path:
    """Write a golden into a new folder, whole or not at all, and return the folder. Our addition.

    ``golden.json`` has a row for each image as a capture's index has; those of results have ``limits``, too.
    ``images.dat`` has their numbers, float32.

    Raises:
        MPSFileError: The folder is there, or cannot be written.
    """
    who = "openmps.debug.save_golden"
    of_kind(who, "golden", golden, Golden)
    rows = [row_of(who, each) for each in golden.sources]
    rows += [{**row_of(who, each.image), _LIMITS: list(each.limits)} for each in golden.results]
    index = {"format": FORMAT, "version": _VERSION, "images": rows}
    images = [*golden.sources, *(each.image for each in golden.results)]
    with whole_folder(folder, who) as made:
        write_atomic(made / NUMBERS, b"".join(map(stored_bytes, images)))
        write_atomic(made / INDEX, json.dumps(index, indent=2, allow_nan=False).encode() + b"\n")
    return path_of(folder, who, "folder")


def load_golden(folder: str | os.PathLike[str]) -> Golden:
    """The golden in a folder that `save_golden` wrote. Our addition.

    Raises:
        MPSFileError: There is none, or it is damaged.
    """
    where = path_of(folder, _WHO, "folder")
    index = load_index(where / INDEX, FORMAT, _WHO)
    images = load_images(where, INDEX, index, _WHO)
    sources, results = list[CapturedImage](), list[GoldenResult]()
    for image, row in zip(images, index["images"], strict=True):
        if image.channel_format is not _FLOAT32:
            raise MPSFileError(
                _WHO, str(where / INDEX), "must have images of float32", image.channel_format.name.lower()
            )
        if _LIMITS in row:
            results.append(GoldenResult(image, _limits(row[_LIMITS], where / INDEX)))
        else:
            sources.append(image)
    if not sources or not results:
        raise MPSFileError(_WHO, str(where / INDEX), "must have source images, and results with limits", len(images))
    return Golden(tuple(sources), tuple(results))


def _limits(given: object, file: Path) -> Limits:
    """Four numbers, none less than the one before."""
    found = cast("list[Any]", given) if isinstance(given, list) else []
    numbers = [float(each) for each in found if type(each) in (int, float) and 0 <= each < math.inf]
    if len(found) != len(PERCENTILES) or len(numbers) != len(found) or numbers != sorted(numbers):
        rule = f"must have limits of {', '.join(PERCENTILES)}, none less than the one before"
        raise MPSFileError(_WHO, str(file), rule, shown(given)[:200])
    return cast("Limits", tuple(numbers))
