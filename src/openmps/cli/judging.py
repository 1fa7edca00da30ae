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
from openmps.cli.subjects import (
    Given,
    chosen_format,
    found_at,
    given_to,
    in_order,
    is_given_pixels,
    loaded_images,
    run_among,
    sources_of,
    traced,
)
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.debug import Capture, CapturedImage, CaptureVerdict, Comparison, Trace
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
    is_python: bool
    """Whether to run a network is to run what its author has written."""
    pixel_order: Callable[[Path], str]
    """Of the channels, where a network's one source image is of pixels from 0 to 255; else empty."""


def _runtimes() -> tuple[Runtime, ...]:
    from openmps.formats.coreml import predicting as coreml
    from openmps.formats.mlx import folder as mlx

    return (
        Runtime("MLX", mlx.is_mlx, mlx.source_labels, mlx.run_layers, True, _no_pixels),
        Runtime("Core ML", coreml.is_predicted, coreml.source_labels, coreml.predict, False, coreml.pixel_order),
    )


def _no_pixels(path: Path) -> str:
    """Of networks whose sources are what was made of pixels."""
    del path
    return ""


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
    given = given_to(run_among(_networks(sides)), sides.images, sides.samples, sides.count, None, training=False)
    sources, notes = sources_of(found, given)
    note(*notes)
    return compare_capture(found.graph, _capture(sides, other, found, given, sources), sources)


def _networks(sides: Sides) -> list[Path]:
    """Those that openmps runs."""
    from openmps.debug.files import is_trace

    return [path for path in sides.paths if not is_trace(path) and not runtime_of(path)]


def _registry(sides: Sides) -> Registry:
    return registry_of(sides.modules, *_networks(sides))


def _capture(sides: Sides, at: int, found: Found, given: Given, sources: Sequence[NDArray[Any]]) -> Capture:
    """The images of the network that is judged, as if a device had shown them."""
    from openmps.debug import Capture, CapturedImage, load_trace
    from openmps.debug.files import is_trace
    from openmps.formats.captures import numbers_of
    from openmps.runtime.devices import mtl_device
    from openmps.types import MPSImageFeatureChannelFormat

    path, runtime = sides.paths[at], runtime_of(sides.paths[at])
    if runtime is not None:
        labels, full = [each.label for each in found.sources], MPSImageFeatureChannelFormat.FLOAT32
        arrays = dict(zip(labels, map(numbers_of, sources), strict=True))
        results = _run(runtime, path, _taken(runtime, path, arrays, given), run_python=sides.run_python)
        images = [CapturedImage(label, full, array) for label, array in {**arrays, **results}.items()]
        return Capture(tuple(images), runtime.name, precise_weights=not found.has_half_weights)
    if is_trace(path):
        return Capture(tuple(_images(load_trace(path))), str(path), precise_weights=not found.has_half_weights)
    form, place = chosen_format(sides.formats[at]), mtl_device(sides.devices[at] or "auto")
    subject = found_at(path, place, form, training=False, registry=_registry(sides))
    images = _images(traced(subject, given, fused=False))
    if is_given_pixels(subject, given) or is_given_pixels(found, given):  # each is given other sources
        own = zip((each.label for each in found.sources), map(numbers_of, sources), strict=True)
        labels = {each.label for each in subject.sources}
        kept = [each for each in images if each.label not in labels]
        images = [*(CapturedImage(label, MPSImageFeatureChannelFormat.FLOAT32, array) for label, array in own), *kept]
    is_precise = not (found.has_half_weights or subject.has_half_weights)
    return Capture(tuple(images), str(path), precise_weights=is_precise)


def _images(trace: Trace) -> list[CapturedImage]:
    """Sources and results of layers of a trace."""
    from openmps.debug import TracedKind

    kinds = (TracedKind.SOURCE, TracedKind.IMAGE)
    return [_image(each) for each in trace.entries if each.kind in kinds and each.channel_format is not None]


def _image(entry: Any) -> CapturedImage:
    """An image of a trace, which gives those of unorm as numbers."""
    from openmps.debug import CapturedImage
    from openmps.types import NUMPY_DTYPES, MPSImageFeatureChannelFormat

    is_stored = NUMPY_DTYPES[entry.channel_format] == entry.array.dtype
    form = entry.channel_format if is_stored else MPSImageFeatureChannelFormat.FLOAT32
    return CapturedImage(entry.label, form, entry.array)


def _trace_elsewhere(path: Path, sides: Sides) -> Trace:
    """The results of a network that openmps does not run, for images that are given."""
    from openmps.debug import Trace, TracedKind, TracedValue
    from openmps.formats.captures import numbers_of
    from openmps.types import MPSImageFeatureChannelFormat

    runtime, full = runtime_of(path), MPSImageFeatureChannelFormat.FLOAT32
    assert runtime is not None
    if sides.samples is None and not sides.images:
        raise MPSFileError("openmps", str(path), "has no images of its own", None, "Give images, or --samples FILE.npz")
    if sides.samples is None:
        pixels = loaded_images(sides.images)
        given = Given({"": pixels}, None, pixels)
    else:
        given = Given(arrays_in(sides.samples), None)
    labels, arrays = runtime.labels(path), given.sources
    if len(labels) == 1:
        arrays = dict(zip(labels, map(numbers_of, arrays.values()), strict=False))
    results = _run(runtime, path, _taken(runtime, path, arrays, given), run_python=sides.run_python)
    rows = [
        *(TracedValue(label, label, TracedKind.SOURCE, "image", full, each) for label, each in arrays.items()),
        *(TracedValue(label, label, TracedKind.IMAGE, runtime.name, full, each) for label, each in results.items()),
    ]
    return Trace(rows)


def _run(runtime: Runtime, path: Path, arrays: dict[str, NDArray[Any]], *, run_python: bool) -> dict[str, Any]:
    """The results of the layers of a network for images by label, by place where the labels are others."""
    if runtime.is_python and not run_python:
        rule, remedy = (
            f"is Python for {runtime.name}, which runs when it is asked for alone",
            "If you trust it, add --run-python",
        )
        raise MPSFileError("openmps compare", str(path), rule, None, remedy)
    labels = runtime.labels(path)
    ordered = [arrays[label] for label in labels] if set(labels) == set(arrays) else list(arrays.values())
    return runtime.layers(path, ordered)


def _taken(runtime: Runtime, path: Path, arrays: dict[str, NDArray[Any]], given: Given) -> dict[str, NDArray[Any]]:
    """Images as a runtime takes them: pixels as they are in their files, where the network prepares them by itself."""
    order = runtime.pixel_order(path)
    if not order or given.pixels is None:
        return arrays
    return dict.fromkeys(arrays, in_order(given, order))
