"""``openmps view``: a network as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.models import Found, open_graph, open_model, required_images
from openmps.cli.models import Images as Sizes
from openmps.cli.options import (
    Device,
    Format,
    Samples,
    note,
    refuse_given,
    require_new,
    sentence,
)
from openmps.cli.reading import is_model, open_run, require_files, require_network, require_unread
from openmps.cli.registry import Modules, registry_of
from openmps.cli.subjects import Count, chosen_format, given_to, images_of, sources_of
from openmps.errors import MPSError, counted

if TYPE_CHECKING:
    from openmps.cli.subjects import Given
    from openmps.debug.page.augmented import AugmentedImages
    from openmps.debug.page.document import PageExtras
    from openmps.debug.page.mistakes import Mistakes
    from openmps.debug.page.view import GraphView
    from openmps.formats.archive import Registry
    from openmps.metal.device import MTLDevice
    from openmps.training.dataset import Dataset
    from openmps.training.run_folder import RunFolder
    from openmps.types import MPSImageFeatureChannelFormat

_NETWORKS = "RUN|ARCHIVE|MODEL.onnx"
_FORWARD, _TRAINING = "Forward", "Training graph"
_NO_RUN = "This is there for runs: openmps train makes one, and openmps view shows it."
_STEPS = 9
"""Of an augmented training that are shown."""
_HALF = 0.5
"""Of the pictures of a page that has two graphs."""


@dataclass(frozen=True)
class _Asked:
    """What the command line says of how to look."""

    images: Sequence[Path]
    samples: Path | None
    count: int
    labels: str | None
    repeats: int
    mistakes: int
    channel_format: MPSImageFeatureChannelFormat | None
    device: MTLDevice
    registry: Registry

    @property
    def has_images(self) -> bool:
        """Whether there are images to be looked at."""
        return bool(self.images) or self.samples is not None


Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="The page.  [default: NAME.html here]", show_default=False),
]
Labels = Annotated[
    str | None,
    typer.Option(metavar="CLASS,…", help="The class of each image by its name, for gradients.", show_default=False),
]


def view(
    context: typer.Context,
    network: Annotated[
        Path, typer.Argument(metavar=_NETWORKS, help="What to show.", show_default=False, callback=require_network)
    ],
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE", help="Image files, to see values of.", show_default=False, callback=require_files
        ),
    ] = None,
    out: Out = None,
    samples: Samples = None,
    count: Count = 4,
    labels: Labels = None,
    image: Sizes = None,
    repeats: Annotated[int, typer.Option(min=0, help="Runs that are timed, 0 for no times.")] = 3,
    mistakes: Annotated[int, typer.Option(min=0, help="Misclassified test images that are shown at most.")] = 48,
    channel_format: Format = None,
    device: Device = "auto",
    registry: Modules = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a page that shows a network.

    One HTML file that needs nothing else: the graph with shapes and padding, what is in each layer, and of a run the
    curves of its training and the images that it gets wrong.

    Values, pictures and times are those of the images given, or of the first test images of a run.
    """
    from openmps.debug.page.document import save_document
    from openmps.formats.paths import is_file
    from openmps.runtime.devices import mtl_device

    page = out if out is not None else Path(f"{network.stem or 'network'}.html")
    require_unread(page, network, [*(images or ()), samples])
    require_new(page, force=force)
    asked = _Asked(
        images or [], samples, count, labels, repeats, mistakes, chosen_format(channel_format), mtl_device(device),
        registry_of(registry, network),
    )  # fmt: skip
    if asked.has_images:
        refuse_given(context, "count", "it is for a run's own images, and others are given")
        refuse_given(context, "image", "the images that are given have a size")
    if is_model(network) or is_file(network, "openmps"):
        if labels is not None:
            raise typer.BadParameter("is for run folders, which have classes", param_hint="--labels")
        refuse_given(context, "count mistakes", "it is for run folders, which have images of their own")
        if not asked.has_images:
            refuse_given(context, "repeats", "times need images")
        views, extras = _of_file(network, asked, image)
    else:
        if image:
            raise typer.BadParameter("is for archives and models: a run knows its size", param_hint="--image")
        views, extras = _of_run(network, asked)
    size = save_document(page, network.name or str(network), views, extras)
    layers = sum(bool(each["sources"]) for each in views[0].data["nodes"])
    print(f"{page}: {counted(layers, 'layer')}, {size:,} bytes")


# --- archives and models ----------------------------------------------------------------------------------------------


def _of_file(path: Path, asked: _Asked, sizes: list[str] | None) -> tuple[list[GraphView], PageExtras]:
    from openmps.debug.page.document import PageExtras

    if is_model(path):
        found = open_model(path, asked.device, asked.channel_format)
    else:
        form = asked.channel_format
        found = open_graph(path, device=asked.device, channel_format=form, registry=asked.registry)
    extras = PageExtras(facts=found.notes, no_metrics=_NO_RUN, no_mistakes=_NO_RUN)
    return [_viewed_file(path, found, asked, sizes)], extras


def _viewed_file(path: Path, found: Found, asked: _Asked, sizes: list[str] | None) -> GraphView:
    from openmps.debug.page.view import graph_view

    if found.graph.interface.input_states:
        what = "Values need the states that the graph takes, its labels: openmps.debug.save_page takes them in Python."
        return graph_view(found.graph, _FORWARD, descriptors=_sizes(found, sizes), missing=what)
    if not asked.has_images:
        what = f"Values, pictures and times need images: openmps view {path} IMAGE…, or --samples FILE.npz."
        return graph_view(found.graph, _FORWARD, descriptors=_sizes(found, sizes), missing=what)
    given = given_to(path, asked.images, asked.samples, asked.count, None, training=False)
    sources, notes = sources_of(found, given)
    note(*notes)
    return graph_view(found.graph, _FORWARD, sources, repeats=asked.repeats)


def _sizes(found: Found, sizes: list[str] | None) -> Sequence[Any]:
    return required_images(found, sizes, otherwise=", or give image files")


# --- runs -------------------------------------------------------------------------------------------------------------


def _of_run(path: Path, asked: _Asked) -> tuple[list[GraphView], PageExtras]:
    from openmps.debug.page.document import PageExtras
    from openmps.training.inference import described_network

    folder = open_run(path)
    _, classes = described_network(folder)
    is_trained = "options" in folder.config
    if asked.labels is not None and not is_trained:
        raise typer.BadParameter("is for runs that say how they were trained", param_hint="--labels")
    test, unread = _test_images(folder, classes)
    given, what = None, ""
    if asked.has_images or test is not None:
        has_labels = asked.labels is not None or not asked.has_images
        training = is_trained and has_labels
        given = given_to(path, asked.images, asked.samples, asked.count, asked.labels, training=training)
    else:
        what = f"Values, pictures and times need images: openmps view {path} IMAGE…. {unread}"
    found = open_graph(path, device=asked.device, channel_format=asked.channel_format)
    views = [_forward(found, asked, given, classes, what, _HALF if is_trained else 1.0)]
    if is_trained:
        views.append(_trained(path, asked, given, what))
    extras = PageExtras(
        facts=found.notes, metrics=folder.read_metrics() or None, mistakes=_mistakes(folder, test, asked),
        no_metrics="The run has no measurements.", no_mistakes=unread or "--mistakes says how many are shown.",
        augmented=_augmented(folder, asked) if is_trained and test is not None else None,
    )  # fmt: skip
    return views, extras


def _forward(
    found: Found, asked: _Asked, given: Given | None, classes: Sequence[str], what: str, share: float
) -> GraphView:
    """The graph that classifies."""
    from openmps.debug.page.view import graph_view

    sources, notes = (None, []) if given is None else sources_of(found, given)
    note(*notes)
    return graph_view(
        found.graph, _FORWARD, sources, descriptors=found.images, repeats=asked.repeats, classes=classes, missing=what,
        share=share,
    )  # fmt: skip


def _trained(path: Path, asked: _Asked, given: Given | None, what: str) -> GraphView:
    """The graph that trains a run's network; with values where the classes of its images are known."""
    from openmps.debug.page.view import graph_view
    from openmps.kernels.loss.labels import MPSCNNLossLabels

    found = open_graph(path, training=True, device=asked.device, channel_format=asked.channel_format)
    if given is None or given.one_hot is None:
        missing = what or "Gradients need the class of each image: --labels CLASS,…."
        return graph_view(found.graph, _TRAINING, descriptors=found.images, missing=missing)
    states = [MPSCNNLossLabels.batch(asked.device, given.one_hot)]
    sources, _ = sources_of(found, given)
    return graph_view(found.graph, _TRAINING, sources, states, repeats=asked.repeats, share=_HALF)


def _test_images(folder: RunFolder, classes: Sequence[str]) -> tuple[Dataset | None, str]:
    """The test images of a run, or why there are none."""
    unknown = "The run does not say which images it was trained with."
    if "data" not in folder.config:
        return None, unknown
    try:
        test = images_of(folder, classes)
    except MPSError as error:
        note(f"the run's test images cannot be read: {sentence(error)}")
        return None, f"The run's own cannot be read: {sentence(error)}"
    return test, "" if test is not None else unknown


def _augmented(folder: RunFolder, asked: _Asked) -> AugmentedImages | None:
    """The first training images as the steps of the run change them; with the brightness that they would have."""
    from openmps.debug.page.augmented import AugmentedImages
    from openmps.training.augmented_batches import augmented_images
    from openmps.training.run_description import run_data, run_options

    options = run_options(folder)
    if options.augmentation is None:
        return None
    how = replace(options.augments, normalization=None)
    images = run_data(folder).training.images[: 2 * asked.count]
    made = augmented_images(how, images, steps=_STEPS, seed=options.seed, device=asked.device)
    return AugmentedImages(str(options.augmentation), images, made)


def _mistakes(folder: RunFolder, test: Dataset | None, asked: _Asked) -> Mistakes | None:
    """What the network gets wrong of the test images, the most confident ones."""
    import numpy as np

    from openmps.debug.page.mistakes import Mistakes
    from openmps.training.inference import Classifier

    if test is None or not asked.mistakes:
        return None
    classifier = Classifier.open(folder, asked.device, asked.channel_format)
    found = classifier.evaluate(test)
    wrong = np.flatnonzero(found.predictions != test.labels)
    shown = wrong[np.argsort(-found.confidence[wrong], kind="stable")][: asked.mistakes]
    images, labels = test.images[shown], [int(each) for each in test.labels[shown]]
    probabilities = classifier.probabilities(images) if len(shown) else np.zeros((0, len(test.class_names)), np.float32)
    return Mistakes(images, labels, probabilities, test.class_names, len(test), len(wrong))
