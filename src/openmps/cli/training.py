"""``openmps train``: from images to a run folder."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from openmps import __version__
from openmps.cli.options import Device, channels_of, console, note, parse_size, percent
from openmps.metal.device import mtl_device
from openmps.training import loop
from openmps.training.data import load_dataset
from openmps.training.dataset import DataSplit
from openmps.training.loop import TrainingOptions, TrainingResult, describe_run
from openmps.training.progress import TrainingProgress, format_seconds
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat

_ENOUGH_BATCHES = 1000
_FEWEST_EPOCHS = 2
_INTERRUPTED = 130


class Optimizer(StrEnum):
    """The optimizers by name."""

    ADAM = "adam"
    SGD = "sgd"
    RMSPROP = "rmsprop"


class Format(StrEnum):
    """How intermediate images are stored."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A folder of MNIST-style files, plain or gzipped, or of one folder of images for each class. "
        "Without it: the handwritten digits that scikit-learn brings along.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="The run folder to make.  [default: runs/DATE_TIME]", show_default=False),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"Passes over the images.  [default: enough for {_ENOUGH_BATCHES} batches]", show_default=False
    ),
]


def train(
    data: Data = None,
    run: Output = None,
    epochs: Epochs = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of one step.")] = 40,
    learning_rate: Annotated[float, typer.Option(help="Step size of the optimizer.")] = 1e-3,
    decay: Annotated[
        float, typer.Option(min=0, max=1, help="Last part of the training over which the step size falls to 0.")
    ] = 0.3,
    optimizer: Annotated[Optimizer, typer.Option(help="How weights follow from gradients.")] = Optimizer.ADAM,
    format: Annotated[Format, typer.Option(help="How intermediate images are stored.")] = Format.FLOAT32,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, order, dropout and held-out images.")] = 0,
    image_size: Annotated[
        str | None,
        typer.Option(metavar="HEIGHTxWIDTH", help="Resize the images of class folders.", show_default=False),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(help="Make the images of class folders grey (1) or red green blue (3).", show_default=False),
    ] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out broken images.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the test accuracy only.")] = False,
) -> None:
    """Train the sample network on images.

    Makes a run folder with the weights, the metrics, the training curve and the misclassified test images. The last
    line is the accuracy on the test images: those that the data bring along, or a fifth that is held out. Ctrl-C ends
    training early and keeps the weights so far.
    """
    machine = mtl_device(device)
    size = parse_size(image_size, "--image-size")
    split = load_dataset(data, seed=seed, size=size, channels=channels_of(channels), skip_broken=skip_broken)
    chosen = TrainingOptions(
        epochs=epochs or _default_epochs(split, batch_size),
        batch_size=batch_size,
        learning_rate=learning_rate,
        decay=decay,
        optimizer=optimizer.value,
        channel_format=MPSImageFeatureChannelFormat[format.name],
        seed=seed,
    )
    source = {"path": None if data is None else str(data.resolve()), "skip_broken": skip_broken}
    description = describe_run(split, chosen, data=source, device=machine.name, openmps=__version__)
    parent, name = (Path("runs"), None) if run is None else (run.parent, run.name)
    folder = RunFolder.create(parent, description, name=name)
    if split.training.skipped:
        note(f"{len(split.training.skipped)} broken images left out, the first: {split.training.skipped[0]}")
    if not quiet:
        _print_start(split, machine.name, folder)
    progress = None if quiet else TrainingProgress(chosen.epochs, len(split.training) // batch_size, console=console())
    with progress or nullcontext():
        result = loop.train(split, folder, chosen, machine, progress)
    _print_end(result, folder, quiet=quiet)


def _default_epochs(split: DataSplit, batch_size: int) -> int:
    batches = max(len(split.training) // batch_size, 1)
    return max(-(-_ENOUGH_BATCHES // batches), _FEWEST_EPOCHS)


def _print_start(split: DataSplit, device: str, folder: RunFolder) -> None:
    count, height, width, channels = split.training.images.shape
    size, classes = f"{height}x{width}x{channels}", len(split.training.class_names)
    print(f"{count:,} images to train with, {len(split.test):,} to test with: {size}, {classes} classes")
    print(f"on {device}, into {folder.path}", flush=True)


def _print_end(result: TrainingResult, folder: RunFolder, *, quiet: bool) -> None:
    for text in result.notes:
        note(text)
    if result.interrupted:
        note(f"interrupted: {folder.path} holds the weights after {result.iterations} iterations")
        raise typer.Exit(_INTERRUPTED)
    assert result.evaluation is not None
    if not quiet:
        print(f"{result.iterations:,} iterations in {format_seconds(result.seconds)}; see {folder.path}")
    print(f"test accuracy {percent(result.evaluation.accuracy)}")
