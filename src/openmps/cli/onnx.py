"""``openmps convert`` and ``openmps run``: ONNX and Core ML models as archives, and archives on arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from openmps.cli.archives import archived_model
from openmps.cli.options import (
    Device,
    format_of,
    note,
    require_another,
    require_new,
    require_outside,
    unorm_notes,
    warned_once,
)
from openmps.cli.reading import is_coreml, is_model, require_model, require_unread
from openmps.cli.registry import Modules, registry_of
from openmps.errors import MPSError, MPSFileError, counted, lengths_text, printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.formats.onnx import OnnxModel, OnnxPort

_Value = TypeVar("_Value")
_WHO = "openmps run"
_LONGEST_NAME = 200
"""Bytes of the name of a result's file; systems take 255 with what is added."""
_MEBIBYTE = 1 << 20


def convert(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, a .mlpackage or a .mlmodel.",
            show_default=False,
            callback=require_model,
        ),
    ],
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
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Turn an ONNX or a Core ML model into an archive.

    openmps run, summary, lint, export and weights take it. Every operator that the framework cannot express is listed
    before anything is built or written. --shape and --result may be given several times.
    """
    shapes = _named("--shape", map(_shape, shape or ()))
    from openmps.formats import coreml, onnx
    from openmps.runtime.devices import mtl_device

    chosen = format_of(channel_format)
    require_outside(out, model, "MODEL")
    if is_model(out):
        rule = f"must not end in {out.suffix}: what is written is an archive"
        raise MPSFileError("openmps convert", str(out), rule)
    require_unread(out, model)
    require_new(out, force=force)
    with warned_once():
        read = coreml.network if is_coreml(model) else onnx.network
        found = read(model, shapes=shapes, outputs=result or None, fill_limit=fill_limit * _MEBIBYTE)
        made = found.model(mtl_device("cpu"), chosen)
    made.save(out)
    _note_weights(made)
    print(f"{out}: {counted(len(made.graph.kernels), 'kernel')}, {channel_format}, {out.stat().st_size:,} bytes")
    _print_ports(made)


def run(
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="ARCHIVE", help="What convert wrote, or a graph.", show_default=False, callback=require_model
        ),
    ],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=x.npy", help="An input: an array with ONNX's axes.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the results.")] = Path("."),
    output: Annotated[Path | None, typer.Option("--output", hidden=True)] = None,
    device: Device = "auto",
    registry: Modules = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Run an archive on arrays.

    Each result is written as NAME.npy in a folder, with ONNX's axes: either all results are written or none. The
    archive of a graph takes and gives arrays [images, height, width, channels] by the labels of its images. Numbers of
    uint8 and uint16 stand for 0 to 1, but for inputs of whole numbers. --input may be given several times. In names of
    files, characters that do not belong there become underscores, and -2, -3 and so on follow those that are alike
    then.
    """
    folder = _results_folder(out, output)
    for text in given or ():
        _check_input(text)
    from openmps.formats.atomic import make_folder, write_all_atomic
    from openmps.formats.exchange.npz import npy_bytes
    from openmps.formats.paths import is_there
    from openmps.runtime.devices import mtl_device

    model = archived_model(archive, mtl_device(device), registry=registry_of(registry, archive))
    names = [port.name for port in model.inputs]
    files = _named("--input", (_input(text, names) for text in given or ()))
    arrays = {name: _array(path, name) for name, path in files.items()}
    model.check(arrays, _WHO, "--input ")
    types = {port.name: port for port in model.inputs}
    for name, array in arrays.items():
        _note_not_finite(f"--input {name}", array)
        if types[name].is_unorm(array.dtype):
            note(*unorm_notes(f"--input {name}", array.dtype))
    paths = _paths(folder, [port.name for port in model.outputs])
    for path in paths.values():
        for source, word in ((archive, "ARCHIVE"), *((file, "an input") for file in files.values())):
            require_another(path, source, word)
        require_new(path, force=force, is_made=not is_there(folder, _WHO))
    make_folder(folder, parents=True)
    results = model.run(arrays)
    write_all_atomic({paths[name]: npy_bytes(array) for name, array in results.items()})
    for name, array in results.items():
        print(f"{paths[name]}: {array.dtype} {lengths_text(array.shape) or 'one number'}")


def _results_folder(out: Path, retired: Path | None) -> Path:
    if retired is None:
        return out
    if out != Path("."):
        raise typer.BadParameter("must be left out: --out says the same", param_hint="--output")
    note("--output is called --out, and goes with openmps 0.4")
    return retired


# --- options ----------------------------------------------------------------------------------------------------------


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``x=1,3,224,224`` → ("x", (1, 3, 224, 224)); names may hold anything but the last ``=``."""
    name, _, lengths = text.rpartition("=")
    if not name or re.fullmatch("[0-9]{1,8}(,[0-9]{1,8})*", lengths) is None:
        raise typer.BadParameter(f"{text!r} is no shape; write NAME=1,3,224,224", param_hint="--shape")
    return name, tuple(int(length) for length in lengths.split(","))


def _check_input(text: str) -> None:
    name, _, path = text.partition("=")
    if not name or not path:
        raise typer.BadParameter(f"{text!r} is no input; write NAME=x.npy", param_hint="--input")


def _input(text: str, names: Sequence[str]) -> tuple[str, Path]:
    """``x=x.npy`` → ("x", Path("x.npy")); names may hold ``=``: it is a name of the model, and a file that is there."""
    known = [name for name in names if text.startswith(f"{name}=")] or [text.partition("=")[0]]
    readings = [(name, Path(text[len(name) + 1 :])) for name in known]
    there = [(name, path) for name, path in readings if os.path.lexists(path)]
    if len(readings) > 1 and len(there) != 1:
        shown = " or ".join(f"{name!r} from {str(path)!r}" for name, path in readings[:8])
        rule = f"{text!r} can be read in more than one way: {shown}. Give the file another name"
        raise typer.BadParameter(rule, param_hint="--input")
    return (there or readings)[0]


def _named(option: str, pairs: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Each name once."""
    found: dict[str, _Value] = {}
    for name, value in pairs:
        if name in found:
            raise typer.BadParameter(f"{name!r} is named twice", param_hint=option)
        found[name] = value
    return found


# --- notes ------------------------------------------------------------------------------------------------------------


def _note_weights(model: OnnxModel) -> None:
    from openmps.kernels.convolution.weighted import WeightedKernel

    for node, kernel in model.graph.kernels.items():
        if isinstance(kernel, WeightedKernel):
            for part in ("weights", "biases"):
                array = getattr(kernel.parameters, part)
                if array is not None:
                    _note_not_finite(f"{node.label or kernel.name}.{part}", array.cpu().numpy())


def _note_not_finite(name: str, array: NDArray[Any]) -> None:
    import numpy as np

    count = array.size - int(np.isfinite(array).sum()) if array.dtype.kind == "f" else 0
    if count:
        note(f"{name}: {count:,} of {array.size:,} numbers are NaN or infinite")


# --- files ------------------------------------------------------------------------------------------------------------


def _array(path: Path, name: str) -> NDArray[Any]:
    """The array in a ``.npy`` file, as it is at this moment: others may write the file anew while it is used."""
    import numpy as np

    from openmps.formats.paths import reading, require_file

    who = f"--input {name}"
    require_file(path, who)
    try:
        with reading(path, who), path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except MPSError:
        raise
    except Exception as error:  # what NumPy raises of headers and sizes that are none
        remedy = "Write it with numpy.save(path, array)"
        raise MPSFileError(who, str(path), "must be an array in a .npy file", "something else", remedy) from error


def _paths(folder: Path, names: list[str]) -> dict[str, Path]:
    """A file for each result, within the folder; ``-2``, ``-3`` and so on follow names that become alike."""
    found: dict[str, Path] = {}
    for name in names:
        plain = re.sub(r"[^\w.:+ -]", "_", name)
        plain = f"_{plain[1:]}" if plain.startswith(".") else plain or "_"
        stem, number = plain.encode()[:_LONGEST_NAME].decode(errors="ignore"), 1
        path = folder / f"{stem}.npy"
        while path in found.values():
            number += 1
            path = folder / f"{stem}-{number}.npy"
        found[name] = path
    return found


def _print_ports(model: OnnxModel) -> None:
    for word, ports in (("input", model.inputs), ("output", model.outputs)):
        for port in ports:
            print(_line(word, port))


def _line(word: str, port: OnnxPort) -> str:
    return printable(f"{word:6} {port.name}: {port.dtype} {port.text}")
