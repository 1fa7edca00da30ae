"""``openmps convert`` and ``openmps run``: ONNX models as archives, and archives on arrays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.options import Device
from openmps.errors import MPSArgumentError, MPSFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.formats.onnx import OnnxModel, OnnxPort
    from openmps.types import MPSImageFeatureChannelFormat

_MEBIBYTE = 1 << 20
_WIDTH = 80


def convert(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file.", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The archive to write.", show_default=False)],
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N,C,H,W", help="Lengths that the model leaves open.", show_default=False),
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="End the network at this value instead.", show_default=False),
    ] = None,
    channel_format: Annotated[
        str, typer.Option("--format", help="How images are stored: float32 or float16.")
    ] = "float32",
    fill_limit: Annotated[int, typer.Option(metavar="MIB", min=0, help="What repeated numbers may take.")] = 16,
) -> None:
    """Turn an ONNX model into an archive that ``openmps run`` runs.

    Every operator that the framework cannot express is listed before anything is built or written. --shape and
    --result may be given several times.
    """
    from openmps.formats.onnx import network
    from openmps.metal.device import mtl_device

    shapes = dict(_shape(text) for text in shape or ())
    found = network(model, shapes=shapes, outputs=result or None, fill_limit=fill_limit * _MEBIBYTE)
    made = found.model(mtl_device("cpu"), _format(channel_format))
    made.save(out)
    print(f"{out}: {len(made.graph.kernels)} kernels, {channel_format}, {out.stat().st_size:,} bytes")
    _print_ports(made)


def run(
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="What convert wrote.", show_default=False)],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=x.npy", help="An input: an array with ONNX's axes.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the results.")] = Path("."),
    device: Device = "auto",
) -> None:
    """Run a converted model on arrays, and write each result as NAME.npy in a folder, with ONNX's axes.

    --input may be given several times. In names of files, characters that do not belong there become underscores.
    """
    import numpy as np

    from openmps.formats.atomic import make_folder, write_atomic
    from openmps.formats.onnx import OnnxModel
    from openmps.metal.device import mtl_device

    model = OnnxModel.open(archive, mtl_device(device))
    arrays = {name: _array(path, name) for name, path in map(_input, given or ())}
    model.check(arrays, "openmps run", "--input ")
    paths = _paths(output, [port.name for port in model.outputs])
    make_folder(output)
    for name, array in model.run(arrays).items():
        write_atomic(paths[name], lambda file, array=array: np.save(file, array, allow_pickle=False))
        print(f"{paths[name]}: {array.dtype} {'x'.join(map(str, array.shape))}")


# --- options ----------------------------------------------------------------------------------------------------------


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``x=1,3,224,224`` → ("x", (1, 3, 224, 224)); names may hold anything but the last ``=``."""
    name, _, lengths = text.rpartition("=")
    if not name or re.fullmatch("[0-9]{1,8}(,[0-9]{1,8})*", lengths) is None:
        raise typer.BadParameter(f"{text!r} is no shape; write NAME=1,3,224,224", param_hint="--shape")
    return name, tuple(int(length) for length in lengths.split(","))


def _input(text: str) -> tuple[str, Path]:
    """``x=x.npy`` → ("x", Path("x.npy")); the name ends at the first ``=``."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise typer.BadParameter(f"{text!r} is no input; write NAME=x.npy", param_hint="--input")
    return name, Path(path)


def _format(text: str) -> MPSImageFeatureChannelFormat:
    from openmps.types import MPSImageFeatureChannelFormat

    formats = {"float32": MPSImageFeatureChannelFormat.FLOAT32, "float16": MPSImageFeatureChannelFormat.FLOAT16}
    if text not in formats:
        raise typer.BadParameter(f"{text!r} is neither float32 nor float16", param_hint="--format")
    return formats[text]


# --- files ------------------------------------------------------------------------------------------------------------


def _array(path: Path, name: str) -> NDArray[Any]:
    """The array in a ``.npy`` file, which is read where it is needed."""
    import numpy as np

    from openmps.formats.paths import reading, require_file

    who = f"--input {name}"
    require_file(path, who)
    try:
        with reading(path, who):
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, TypeError) as error:
        remedy = "Write it with numpy.save(path, array)"
        raise MPSFileError(who, str(path), "must be an array in a .npy file", "something else", remedy) from error


def _paths(folder: Path, names: list[str]) -> dict[str, Path]:
    """A file for each result, within the folder."""
    found: dict[str, Path] = {}
    for name in names:
        plain = re.sub(r"[^\w.:+ -]", "_", name)
        plain = f"_{plain[1:]}" if plain.startswith(".") else plain or "_"
        path = folder / f"{plain[:200]}.npy"
        if path in found.values():
            raise MPSArgumentError("openmps run", "results", "must have names of different files", f"{path} twice")
        found[name] = path
    return found


def _print_ports(model: OnnxModel) -> None:
    for word, ports in (("input", model.inputs), ("output", model.outputs)):
        for port in ports:
            print(_line(word, port))


def _line(word: str, port: OnnxPort) -> str:
    text = f"{word:6} {port.dtype} {port.text} "
    return f"{text}{port.name}" if len(text) + len(port.name) <= _WIDTH else f"{text}\n       {port.name}"
