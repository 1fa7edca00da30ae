"""What several commands have in common: options, runs by name, and how sizes, errors and results are written."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from openmps.errors import MPSError, MPSFileError, counted, size_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from openmps.training.image_folder import Channels
    from openmps.training.network import NetworkShape
    from openmps.training.scaling import ScalingName
    from openmps.types import MPSImageFeatureChannelFormat

Samples = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Images [images, height, width, channels], by the labels of the source images.",
        show_default=False,
    ),
]
Training = Annotated[bool, typer.Option("--training", help="The graph that trains a run's network.")]
Format = Annotated[
    str | None, typer.Option("--format", help="float32 or float16.  [default: the run's]", show_default=False)
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: the first GPU where there is one.")]


class ScalingFilter(StrEnum):
    """The filters of the framework that resize images."""

    BILINEAR = "bilinear"
    LANCZOS = "lanczos"


Scaling = Annotated[
    ScalingFilter | None,
    typer.Option(
        help="Resize by MPSImageBilinearScale or MPSImageLanczosScale.  [default: as the run was, else as Pillow does]",
        show_default=False,
    ),
]
_WHO = "openmps"
_MOST_DIGITS = 15
_API = (
    *("load_dataset", "load_image_folder", "TrainingOptions", "resume", "mtl_device", "optimizer_factory"),
    *("import_weights", "export_weights", "load_raw"),
)
_OPTIONS = {
    "which": "--device",
    "size": "--image-size",
    "checkpoints_kept": "--keep-checkpoints",
    "channel_format": "--format",
    "names": "--map",
}
"""Arguments of theirs that are options of another name."""
_MODELS = ("openmps.formats.onnx", "openmps.formats.coreml")
_MODEL_OPTIONS = {"shapes": "--shape", "outputs": "--result"}
_IN_PYTHON = re.compile(r"outputs=\[[^\]]*\] or |shapes=\{name: shape\} or |, fill_limit=\d+ << 20 in Python")
"""What a remedy says before the option that does the same."""
_REGISTRY = re.compile(r"Pass registry=\{('.*'): a function from the dictionary of archived\(\)\}")
_REMEDIES = {
    "size=(height, width)": "--image-size WIDTHxHEIGHT",
    "or take it away.": "take it away, or give --skip-broken.",
    "must be given with fold:": "must be given with --fold:",
}


def image_of_size(path: Path, shape: NetworkShape, scaling: ScalingName | None) -> NDArray[Any]:
    """A picture as a run's network takes it, scaled as those that it was trained with; a note says what was done."""
    from openmps.training.image_folder import load_image

    own, wanted = load_image(path), (shape.height, shape.width, shape.channels)
    if own.shape == wanted:
        return own
    by = "" if scaling is None or own.shape[:2] == wanted[:2] else f" by {scaling}"
    note(f"{path} is {size_text(own.shape)}, converted to the network's {size_text(wanted)}{by}")
    return load_image(path, size=wanted[:2], channels=cast("Channels", shape.channels), scaling=scaling)


def sentence(error: MPSError) -> str:
    """An error in the words of the command line: files and options, no functions and their arguments."""
    text = str(error)
    if error.who in _MODELS:
        shape = re.fullmatch(r"shapes\['(.*)'\]", error.argument)
        option = f"--shape {shape[1]}" if shape else _MODEL_OPTIONS.get(error.argument, error.argument)
        text = text.removeprefix(f"{error.who}: ").replace(error.argument, option, 1)
        text = _IN_PYTHON.sub("", text)
    elif isinstance(error, MPSFileError):
        text = text.removeprefix(f"{error.who}: ")
    elif error.who in _API and error.argument.isidentifier():
        option = _OPTIONS.get(error.argument, f"--{error.argument.replace('_', '-')}")
        text = text.removeprefix(f"{error.who}: ").replace(error.argument, option, 1)
    text = _REGISTRY.sub(r"Give --registry MODULE[:NAME], whose mapping has a function for \1", text)
    for words, ours in _REMEDIES.items():
        text = text.replace(words, ours)
    return text


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_given(context: typer.Context, names: str, why: str) -> None:
    """Refuse each of some options that stands on the command line, where nothing would be done with it."""
    for parameter in context.command.params:
        if parameter.name in names.split() and is_given(context, parameter.name):
            raise typer.BadParameter(f"must be left out: {why}", param_hint=parameter.opts[0])


def parse_size(text: str | None, option: str, most: float = math.inf) -> tuple[int, int] | None:
    """``28x20`` → (28, 20), ``28`` → (28, 28); lengths of 1 to ``most`` where that is said."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) not in (1, 2) or not all(map(_is_length, parts)):
        raise typer.BadParameter(f"{text[:80]!r} is no size; write 28x20 or 28", param_hint=option)
    width, height = int(parts[0]), int(parts[-1])
    if math.isfinite(most) and not all(1 <= length <= most for length in (width, height)):
        raise typer.BadParameter(f"{text[:80]!r} must have lengths of 1 to {most}", param_hint=option)
    return width, height


def _is_length(text: str) -> bool:
    """Whether it is a whole number, of no more digits than a length has."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def parse_image_size(text: str) -> tuple[int, int, int]:
    """``224x224x3`` of ``--image`` as width, height and channels."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(map(_is_length, parts)):
        raise typer.BadParameter(f"{text[:80]!r} is no size; write 224x224x3", param_hint="--image")
    width, height, channels = (int(part) for part in parts)
    return width, height, channels


def channels_of(number: int | None) -> Channels | None:
    """The number of channels of an image that can be read."""
    if number is None or number == 1 or number == 3:
        return number
    raise typer.BadParameter(f"{number} is neither 1 (grey) nor 3 (red green blue)", param_hint="--channels")


def require_another(out: Path, source: Path, word: str) -> None:
    """Raise ``MPSFileError`` where what would be written is what is read."""
    from openmps.formats.paths import is_same

    if is_same(out, source):
        raise MPSFileError(_WHO, str(out), f"must be another file than {word}", "the same one", "Choose another name.")


def require_outside(out: Path, source: Path, word: str) -> None:
    """Raise ``MPSFileError`` where what would be written is what is read, or lies in the folder that is read."""
    from openmps.formats.paths import is_folder, is_within

    require_another(out, source, word)
    if is_folder(source, _WHO) and is_within(out, source):
        raise MPSFileError(_WHO, str(out), f"must lie outside of {word}", f"a place in {source}", "Choose another one.")


def require_new(out: Path, *, force: bool, is_made: bool = False) -> None:
    """Raise ``MPSFileError`` where a file cannot be written, or is there and no ``force`` is given.

    ``is_made`` says that its folder will be made.
    """
    from openmps.formats.atomic import require_writable

    if os.path.lexists(out) and not force:
        raise MPSFileError(_WHO, str(out), "must be new", "one that is there", "--force replaces it.")
    if not is_made:
        require_writable(out)


def format_of(text: str) -> MPSImageFeatureChannelFormat:
    """The channel format of a name."""
    from openmps.types import MPSImageFeatureChannelFormat

    formats = {"float32": MPSImageFeatureChannelFormat.FLOAT32, "float16": MPSImageFeatureChannelFormat.FLOAT16}
    if text not in formats:
        raise typer.BadParameter(f"{text!r} is neither float32 nor float16", param_hint="--format")
    return formats[text]


def percent(fraction: float) -> str:
    """``0.9861`` → ``98.6 %``."""
    return f"{100 * fraction:.1f} %"


def note(*texts: str) -> None:
    """A line beside the results for each text."""
    for text in texts:
        print(f"note: {text}", file=sys.stderr)


def unorm_notes(name: str, dtype: np.dtype[Any]) -> list[str]:
    """What is to be said of images of whole numbers; nothing of others."""
    largest = {"uint8": 255, "uint16": 65_535}.get(dtype.name)
    if largest is None:
        return []
    return [f"{name}: 0 to {largest:,} stand for 0 to 1, as in an image of unorm{8 * dtype.itemsize}"]


@contextmanager
def warned_once() -> Generator[None]:
    """Say what is warned of within in one line: the first of it, and how many more layers it is said of."""
    with warnings.catch_warnings(record=True) as told:
        try:
            yield
        finally:  # what goes wrong within may be what was warned of
            _tell(list(dict.fromkeys(str(each.message) for each in told)))


def _tell(texts: list[str]) -> None:
    if texts:
        more = f". So it is with {counted(len(texts) - 1, 'more layer')}" if len(texts) > 1 else ""
        note(f"{texts[0]}{more}: openmps lint lists what an Apple GPU would refuse.")


def console() -> Console:
    """Standard output: coloured and as wide as it is on a terminal, plain and never cut elsewhere.

    What it moves the cursor with passes; text from files has to be made `printable` before.
    """
    from rich.console import Console

    file = getattr(sys.stdout, "unfiltered", sys.stdout)
    screen = Console(highlight=False, file=file)
    return screen if screen.is_terminal else Console(highlight=False, file=file, width=10_000)
