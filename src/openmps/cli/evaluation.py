"""``openmps evaluate``: how good the network of a run is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.options import Device, console, note, percent, sentence
from openmps.cli.reading import Run, open_run, require_data
from openmps.errors import printable

if TYPE_CHECKING:
    from rich.table import Table

    from openmps.training.dataset import Dataset
    from openmps.training.metrics import ConfusionCounts
    from openmps.training.run_folder import RunFolder

_WIDTH = 80
"""Columns of text that the table of classes takes at most."""


def evaluate(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Other data of the same classes.  [default: the run's]",
            show_default=False,
            callback=require_data,
        ),
    ] = None,
    all_images: Annotated[bool, typer.Option("--all", help="All images, not only those held out for testing.")] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the accuracy only.")] = False,
) -> None:
    """Test the network of a run.

    The images are those that were kept for testing.

    Prints how often each class was taken for which, and the accuracy. Images of class folders are resized to the
    network's size.
    """
    from openmps.runtime.devices import mtl_device
    from openmps.training.inference import Classifier

    folder = open_run(run)
    classifier = Classifier.open(folder, mtl_device(device))
    dataset = _test_images(folder, data, all_images=all_images)
    evaluation = classifier.evaluate(dataset)
    if not quiet:
        _print_confusion(evaluation.confusion)
        print(f"{len(dataset):,} images, mean loss {evaluation.loss:.4f}")
    print(f"test accuracy {percent(evaluation.accuracy)}")


def _test_images(folder: RunFolder, data: Path | None, *, all_images: bool) -> Dataset:
    """The images that the run did not learn from: the same hold-out, because the seed is the same."""
    import numpy as np

    from openmps.training.dataset import Dataset
    from openmps.training.run_description import run_data

    split = run_data(folder, data)
    if split.training.skipped:
        note(f"{len(split.training.skipped)} broken images left out, the first: {sentence(split.training.skipped[0])}")
    if not all_images:
        return split.test
    images = np.concatenate((split.training.images, split.test.images))
    labels = np.concatenate((split.training.labels, split.test.labels))
    return Dataset(images, labels, split.test.class_names, split.test.name)


def _print_confusion(confusion: ConfusionCounts) -> None:
    table = _table(confusion)
    if table is not None:
        print("images of each class (row) by the class they were taken for (column)")
        console().print(table, markup=False)
    for true, taken, count in confusion.most_confused(5):
        print(f"{true} taken for {taken}: {count}")


def _table(confusion: ConfusionCounts) -> Table | None:
    """What was taken for what; classes go by numbers where their names are too long, None where those do not fit."""
    names = [printable(name) for name in confusion.class_names]
    numbered = [f"{number}" for number in range(len(names))]
    rows = [f"{name} {number}" for name, number in zip(names, numbered, strict=True)]
    for headings, labels in ((names, names), (numbered, rows)):
        table = _confusion_table(confusion, headings, labels)
        if console().measure(table).maximum <= _WIDTH:
            return table
    return None


def _confusion_table(confusion: ConfusionCounts, headings: Sequence[str], labels: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("class", justify="right")
    for heading in headings:
        table.add_column(Text(heading), justify="right")
    table.add_column("right", justify="right")
    for label, counts, recall in zip(labels, confusion.counts.tolist(), confusion.recall.tolist(), strict=True):
        right = percent(recall) if sum(counts) else "-"
        table.add_row(Text(label), *(str(count) if count else "." for count in counts), right)
    return table
