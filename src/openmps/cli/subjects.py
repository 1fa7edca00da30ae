"""What the commands that look inside work on: a graph by path, and the images that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from openmps.cli.lint import arrays_in
from openmps.cli.models import Found, as_taken, open_graph, open_model
from openmps.cli.options import format_of, image_of_size, refuse_given
from openmps.cli.reading import is_model, open_run, require_files
from openmps.errors import MPSArgumentError, MPSFileError, size_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.formats.archive import Registry
    from openmps.graph.run.trace import Trace
    from openmps.metal.device import MTLDevice
    from openmps.training.dataset import Dataset
    from openmps.training.network import NetworkShape
    from openmps.training.run_folder import RunFolder
    from openmps.training.scaling import ScalingName
    from openmps.types import MPSImageFeatureChannelFormat

ImageFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[IMAGE...]", help="Image files.", show_default=False, callback=require_files),
]
Count = Annotated[int, typer.Option(min=1, help="How many of a run's test images, where no images are given.")]
Labels = Annotated[
    str | None,
    typer.Option(metavar="CLASS,…", help="The class of each image by its name, for --training.", show_default=False),
]
IMAGES = (".png", ".jpg", ".jpeg", ".bmp")
"""What files of images end in."""


class Given(NamedTuple):
    """What a graph is given."""

    sources: dict[str, NDArray[Any]]
    """Arrays [images, height, width, channels] by the labels of source images; the one array of a graph with one."""
    one_hot: NDArray[Any] | None
    """A row an image, for graphs that train."""
    pixels: NDArray[Any] | None = None
    """Those of a run's images as they are in their files, from 0 to 255, grey or RGB."""


def found_at(
    path: Path,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat | None,
    *,
    training: bool,
    registry: Registry | None = None,
) -> Found:
    """The graph of a run, of an archive, or of an ONNX or Core ML model, whose layers have nodes of their own."""
    if not is_model(path):
        return open_graph(path, training=training, device=device, channel_format=channel_format, registry=registry)
    if training:
        raise typer.BadParameter("is for run folders: a model has no loss", param_hint="--training")
    return open_model(path, device, channel_format)


def chosen_format(text: str | None) -> MPSImageFeatureChannelFormat | None:
    """The format of ``--format``; None for the run's own."""
    return None if text is None else format_of(text)


def check_used(context: typer.Context, images: Sequence[Path], samples: Path | None, *, training: bool) -> None:
    """Refuse options on images that nothing would be done with."""
    if images or samples is not None:
        refuse_given(context, "count", "it is for a run's own images, and others are given")
    if not training or samples is not None:
        refuse_given(context, "labels", "it is for --training on images, not samples")


def run_among(networks: Sequence[Path]) -> Path:
    """The network that says what images are given: a run, which prepares them, if there is one."""
    from openmps.formats.paths import is_file

    return next((path for path in networks if not is_model(path) and not is_file(path, "openmps")), networks[0])


def given_to(
    path: Path, images: Sequence[Path], samples: Path | None, count: int, labels: str | None, *, training: bool
) -> Given:
    """Images of files or samples, or of the test images of the run at ``path``."""
    from openmps.formats.paths import is_file

    if samples is not None:
        if images:
            raise typer.BadParameter("give images, or samples", param_hint="--samples")
        return Given(arrays_in(samples), None)
    if is_file(path, "openmps") or is_model(path):
        if not images:
            remedy = "Give images, or --samples FILE.npz"
            raise MPSFileError("openmps", str(path), "has no images of its own", None, remedy)
        pixels = loaded_images(images)
        return Given({"": pixels}, None, pixels)
    return _of_run(path, images, count, labels, training=training)


def _of_run(path: Path, images: Sequence[Path], count: int, labels: str | None, *, training: bool) -> Given:
    from openmps.training.inference import described_network
    from openmps.training.scaling import described_scaling

    folder = open_run(path)
    shape, names = described_network(folder)
    classes: list[int] | None = None if labels is None else [_class(each, names) for each in labels.split(",")]
    if images:
        pixels = loaded_images(images, shape, described_scaling(folder.config, str(folder.path / "run.json")))
    else:
        test = images_of(folder, names)
        if test is None:
            rule = "must say which images it was trained with: those it names have other classes"
            raise MPSFileError("openmps", str(path), rule, None, "Give images")
        pixels, classes = test.images[:count], classes or [int(each) for each in test.labels[:count]]
    seen = seen_by(folder, pixels)
    return Given({"": seen}, _one_hot(classes, len(pixels), len(names)) if training else None, pixels)


def seen_by(run: RunFolder, pixels: NDArray[Any]) -> NDArray[Any]:
    """Pixels from 0 to 255 as the network of a run sees them; bytes stand for 0 to 1."""
    from openmps.training.inference import described_preprocessing

    preprocessing = described_preprocessing(run)
    return pixels if preprocessing is None or preprocessing.is_plain else preprocessing.applied(pixels)


def images_of(folder: RunFolder, classes: Sequence[str]) -> Dataset | None:
    """The test images that the description of a run names; None where they are not of the network's classes."""
    from openmps.training.run_description import run_data

    test = run_data(folder).test
    return test if tuple(test.class_names) == tuple(classes) else None


def _one_hot(classes: Sequence[int] | None, images: int, count: int) -> NDArray[Any]:
    import numpy as np

    if classes is None or len(classes) != images:
        got = "none" if classes is None else f"{len(classes)}"
        raise typer.BadParameter(f"needs the class of each of {images} images, got {got}", param_hint="--labels")
    return np.eye(count, dtype=np.float32)[list(classes)]


def _class(text: str, names: Sequence[str]) -> int:
    name = text.strip()
    if name not in names:
        shown = ", ".join(names[:10])
        raise typer.BadParameter(f"{name!r} is no class; there are {shown}", param_hint="--labels")
    return list(names).index(name)


def loaded_images(
    images: Sequence[Path], shape: NetworkShape | None = None, scaling: ScalingName | None = None
) -> NDArray[Any]:
    """Files as one array, of a run's size if there is one."""
    import numpy as np

    from openmps.training.image_folder import load_image

    found = [load_image(path) if shape is None else image_of_size(path, shape, scaling) for path in images]
    sizes = {each.shape for each in found}
    if len(sizes) > 1:
        raise MPSArgumentError("openmps", "images", "must be of one size", ", ".join(map(size_text, sorted(sizes))))
    return np.stack(found)


def traced(found: Found, given: Given, *, fused: bool) -> Trace:
    """The trace of a graph over what it is given; its notes say what numbers stand for."""
    from openmps.graph.run.trace import Trace, TracedKind
    from openmps.kernels.loss.labels import MPSCNNLossLabels

    graph, (sources, notes) = found.graph, sources_of(found, given)
    states = [] if given.one_hot is None else [MPSCNNLossLabels.batch(graph.device, given.one_hot)]
    trace = graph.trace(sources, states, fused=fused)
    entries, own = trace.entries, list(trace.notes)
    if is_given_pixels(found, given):  # its source is none of a network that is given prepared ones
        entries = tuple(each for each in entries if each.kind is not TracedKind.SOURCE)
        own.append("the pixels of an image, 0 to 255, are prepared by the model itself")
    return Trace(entries, (*notes, *own))


def is_given_pixels(found: Found, given: Given) -> bool:
    """Whether a graph is given pixels as they are in their files, which it prepares by itself."""
    return bool(found.pixel_order) and given.pixels is not None


def in_order(given: Given, order: str) -> NDArray[Any]:
    """Pixels from 0 to 255 with their channels in an order."""
    import numpy as np

    assert given.pixels is not None
    return np.asarray(given.pixels[..., ::-1] if order == "BGR" else given.pixels, np.float32)


def sources_of(found: Found, given: Given) -> tuple[list[NDArray[Any]], list[str]]:
    """The arrays in the order of the graph's sources, as it takes them, and what is to be said of them."""
    if is_given_pixels(found, given):
        return [in_order(given, found.pixel_order)], []
    arrays, notes = as_taken(found, given.sources)
    names = [source.label for source in found.sources]
    if len(names) == 1 and len(arrays) == 1:
        return list(arrays.values()), notes
    if sorted(names) != sorted(given.sources):
        rule = f"must have one array for each source image: {', '.join(map(repr, names))}"
        raise MPSArgumentError("openmps", "samples", rule, f"{', '.join(map(repr, given.sources))}")
    return [arrays[name] for name in names], notes
