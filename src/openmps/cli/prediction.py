"""``openmps predict``: what the network of a run takes images for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from openmps.checks import size_text
from openmps.cli.options import Device, Run, note, open_run, percent, sentence
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.training.image_folder import Channels
    from openmps.training.inference import Classifier

_FAILED = 2


def predict(
    run: Run,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="PNG, JPEG or BMP files.", show_default=False)
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print of each image, likeliest first.")] = 3,
    device: Device = "auto",
) -> None:
    """Classify images with the network of a run.

    A line for each, with the likeliest classes and their probabilities.

    Images of another size than the network's are resized to it, and turned grey or into red green blue as it needs;
    a note says so, and another one what is done to their pixels, as the run's description says. The digits and MNIST
    are light on dark.
    """
    import numpy as np

    from openmps.runtime.devices import mtl_device
    from openmps.training.inference import Classifier

    classifier = Classifier.open(open_run(run), mtl_device(device))
    if classifier.preprocessing is not None:
        note(f"the network sees {classifier.preprocessing}")
    failed = False
    for path in images:
        try:
            pixels = _load(path, classifier)
        except MPSFileError as error:
            print(f"error: {sentence(error)}", file=sys.stderr)
            failed = True
            continue
        (probabilities,) = classifier.probabilities(pixels[np.newaxis])
        best = np.argsort(-probabilities, kind="stable")[:top].tolist()
        found = ", ".join(f"{classifier.class_names[index]} {percent(float(probabilities[index]))}" for index in best)
        print(f"{path}: {found}", flush=True)
    if failed:
        raise typer.Exit(_FAILED)


def _load(path: Path, classifier: Classifier) -> NDArray[Any]:
    from openmps.training.image_folder import load_image

    shape = classifier.shape
    own = load_image(path)
    wanted = (shape.height, shape.width, shape.channels)
    if own.shape == wanted:
        return own
    note(f"{path} is {size_text(own.shape)}, converted to the network's {size_text(wanted)}")
    return load_image(path, size=wanted[:2], channels=cast("Channels", shape.channels))
