"""``openmps compare`` by what rounding explains: a network's layers run from the images that another one has made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from openmps.cli.lint import arrays_in
from openmps.cli.models import Found
from openmps.cli.options import note, refuse_given
from openmps.cli.registry import registry_of
from openmps.cli.subjects import Given, chosen_format, found_at, given_to, loaded_images, sources_of, traced
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.debug import Capture, CaptureVerdict, Comparison, Trace
    from openmps.formats.archive import Registry

_REFUSED = "training labels fusion tolerance"
_WHY = "layers are judged by what rounding explains"


class Runtime(NamedTuple):
    """What runs networks of a kind that openmps does not run itself."""

    name: str
    is_it: Callable[[Path], bool]
    labels: Callable[[Path], list[str]]
    """Of a network's source images."""
    layers: Callable[[Path, Sequence[NDArray[Any]]], dict[str, NDArray[Any]]]
    """The results of layers by label, for images [images, height, width, channels] of float32."""


def _runtimes() -> tuple[Runtime, ...]:
    from openmps.formats.mlx import folder as mlx

    return (Runtime("MLX", mlx.is_mlx, mlx.source_labels, mlx.run_layers),)


def runtime_of(path: Path) -> Runtime | None:
    """What runs the network at a path, where openmps does not."""
    return next((each for each in _runtimes() if each.is_it(path)), None)


@dataclass(frozen=True)
class Sides:
    """What is compared, and how."""

    paths: tuple[Path, Path]
    images: Sequence[Path]
    samples: Path | None
    count: int
    formats: tuple[str | None, str | None]
    devices: tuple[str | None, str | None]
    modules: Sequence[str] | None
    """Those of ``--registry``."""
    run_python: bool


def judge(context: typer.Context, sides: Sides) -> CaptureVerdict | Comparison:
    """Hold the images of one network against the layers of the other; two that run elsewhere image by image."""
    from openmps.debug import compare, compare_capture
    from openmps.runtime.devices import mtl_device
    from openmps.types import MPSImageFeatureChannelFormat

    refuse_given(context, _REFUSED, _WHY)
    runtimes = [runtime_of(path) for path in sides.paths]
    if all(runtimes):
        return compare(*(_trace_elsewhere(path, sides) for path in sides.paths))
    at, other = (1, 0) if runtimes[0] else (0, 1)
    network = sides.paths[at]
    place, full = mtl_device(sides.devices[at] or "auto"), MPSImageFeatureChannelFormat.FLOAT32
    found = found_at(network, place, full, training=False, registry=_registry(sides))
    given = given_to(network, sides.images, sides.samples, sides.count, None, training=False)
    sources, notes = sources_of(found, given)
    for text in notes:
        note(text)
    return compare_capture(found.graph, _capture(sides, other, found, given, sources), sources)


def _registry(sides: Sides) -> Registry:
    from openmps.debug.files import is_trace

    return registry_of(sides.modules, *(path for path in sides.paths if not is_trace(path) and not runtime_of(path)))


def _capture(sides: Sides, at: int, found: Found, given: Given, sources: Sequence[NDArray[Any]]) -> Capture:
    """The images of the network that is judged, as if a device had shown them."""
    from openmps.debug import Capture, CapturedImage, TracedKind, load_trace
    from openmps.debug.files import is_trace
    from openmps.runtime.devices import mtl_device
    from openmps.types import MPSImageFeatureChannelFormat

    path, runtime = sides.paths[at], runtime_of(sides.paths[at])
    if runtime is not None:
        labels, full = [each.label for each in found.sources], MPSImageFeatureChannelFormat.FLOAT32
        arrays = dict(zip(labels, map(_numbers, sources), strict=True))
        results = _run(runtime, path, arrays, run_python=sides.run_python)
        images = [CapturedImage(label, full, array) for label, array in {**arrays, **results}.items()]
        return Capture(tuple(images), runtime.name, precise_weights=True)
    if is_trace(path):
        trace = load_trace(path)
    else:
        form, place = chosen_format(sides.formats[at]), mtl_device(sides.devices[at] or "auto")
        subject = found_at(path, place, form, training=False, registry=_registry(sides))
        trace = traced(subject, given, fused=False)
    kinds = (TracedKind.SOURCE, TracedKind.IMAGE)
    stored = [each for each in trace.entries if each.kind in kinds and each.channel_format is not None]
    return Capture(tuple(map(_image, stored)), str(path), precise_weights=True)


def _image(entry: Any) -> Any:
    """An image of a trace, which gives those of unorm as numbers."""
    from openmps.debug import CapturedImage
    from openmps.types import NUMPY_DTYPES, MPSImageFeatureChannelFormat

    is_stored = NUMPY_DTYPES[entry.channel_format] == entry.array.dtype
    form = entry.channel_format if is_stored else MPSImageFeatureChannelFormat.FLOAT32
    return CapturedImage(entry.label, form, entry.array)


def _trace_elsewhere(path: Path, sides: Sides) -> Trace:
    """The results of a network that openmps does not run, for images that are given."""
    from openmps.debug import Trace, TracedKind, TracedValue
    from openmps.types import MPSImageFeatureChannelFormat

    runtime, full = runtime_of(path), MPSImageFeatureChannelFormat.FLOAT32
    assert runtime is not None
    if sides.samples is None and not sides.images:
        raise MPSFileError("openmps", str(path), "has no images of its own", None, "Give images, or --samples FILE.npz")
    given = {"": loaded_images(sides.images)} if sides.samples is None else arrays_in(sides.samples)
    labels = runtime.labels(path)
    arrays = dict(zip(labels, map(_numbers, given.values()), strict=False)) if len(labels) == 1 else given
    results = _run(runtime, path, arrays, run_python=sides.run_python)
    rows = [
        *(TracedValue(label, label, TracedKind.SOURCE, "image", full, each) for label, each in arrays.items()),
        *(TracedValue(label, label, TracedKind.IMAGE, runtime.name, full, each) for label, each in results.items()),
    ]
    return Trace(rows)


def _run(runtime: Runtime, path: Path, arrays: dict[str, NDArray[Any]], *, run_python: bool) -> dict[str, Any]:
    """The results of the layers of a network for images by label, by place where the labels are others."""
    if not run_python:
        rule, remedy = (
            f"is Python for {runtime.name}, which runs when it is asked for alone",
            "If you trust it, add --run-python",
        )
        raise MPSFileError("openmps compare", str(path), rule, None, remedy)
    labels = runtime.labels(path)
    ordered = [arrays[label] for label in labels] if set(labels) == set(arrays) else list(arrays.values())
    return runtime.layers(path, ordered)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Bytes stand for 0 to 1."""
    import numpy as np

    return array.astype(np.float32) / np.float32({"uint8": 255, "uint16": 65_535}.get(array.dtype.name, 1))
