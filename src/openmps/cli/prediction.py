"""``openmps predict``: what the network of a run takes images for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openmps.cli.options import Device, Scaling, image_of_size, note, percent, sentence
from openmps.cli.reading import Run, open_run
from openmps.errors import MPSFileError

_FAILED = 2


def predict(
    run: Run,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="PNG, JPEG or BMP files.", show_default=False)
    ],
    scaling: Scaling = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print of each image, likeliest first.")] = 3,
    device: Device = "auto",
) -> None:
    """Classify images with the network of a run.

    A line for each, with the likeliest classes and their probabilities.

    Images of another size than the network's are resized to it, and turned grey or into red green blue as it needs;
    a note says so, and another one what is done to their pixels, as the run's description says. They are scaled as
    those that the run was trained with, unless --scaling says otherwise. The digits and MNIST are light on dark.
    """
    import numpy as np

    from openmps.runtime.devices import mtl_device
    from openmps.training.inference import Classifier
    from openmps.training.scaling import described_scaling

    folder = open_run(run)
    classifier = Classifier.open(folder, mtl_device(device))
    chosen = described_scaling(folder.config, str(folder.path / "run.json")) if scaling is None else scaling.value
    if classifier.preprocessing is not None:
        note(f"the network sees {classifier.preprocessing}")
    failed = False
    for path in images:
        try:
            pixels = image_of_size(path, classifier.shape, chosen)
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
