"""``openmps export``: a graph as source for an app, as ONNX, as Python for MLX, or for Core ML or Core AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.models import Found, Images, open_graph, open_model, required_images
from openmps.cli.options import Samples, Training, note, require_outside
from openmps.cli.reading import Network, is_model
from openmps.cli.registry import Modules, registry_of
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from openmps.formats.archive import Registry

_WHO = "openmps export"
_TAKERS = {
    "--half": ("--swift", "--coreml"),
    "--training": ("--swift",),
    "--name": ("--swift", "--mlx"),
    "--capture": ("--swift",),
    "--samples": ("--swift",),
    "--batch": ("--coreml", "--coreai"),
}
"""Options, and what they are for."""


Out = Annotated[Path, typer.Argument(help="The folder or package to make, or the file.", show_default=False)]
Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Images of a batch, for --coreml and --coreai.  [default: 1]", show_default=False),
]
Name = Annotated[
    str | None, typer.Option(help="The class in Swift or Python.  [default: OUT's name]", show_default=False)
]
Half = Annotated[bool, typer.Option("--half", help="Weights rounded to float16; of Core ML all that is computed.")]
Capturing = Annotated[
    bool, typer.Option("--capture", help="Swift that dumps every image for openmps compare, and a test.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there, if none of its files is lost.")]


def export(
    graph: Network,
    out: Out,
    swift: Annotated[bool, typer.Option("--swift", help="Swift, with a file of weights for each layer.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="An ONNX file with the shape of every value.")] = False,
    mlx: Annotated[bool, typer.Option("--mlx", help="Python that trains with MLX, and a file of weights.")] = False,
    coreml: Annotated[bool, typer.Option("--coreml", help="A Core ML package, an ML program.")] = False,
    coreai: Annotated[bool, typer.Option("--coreai", help="An asset of Core AI.")] = False,
    batch: Batch = None,
    image: Images = None,
    name: Name = None,
    half: Half = False,
    training: Training = False,
    capture: Capturing = False,
    samples: Samples = None,
    registry: Modules = None,
    force: Force = False,
) -> None:
    """Write a graph as source for an app, as ONNX, for MLX, or for Core ML or Core AI.

    Swift, and the weights that it reads, go into a new folder. OUT/NAME.swift has a class that makes the same
    MPSNNGraph; its head says how to use it. What cannot be said in Swift is listed, and nothing is written.

    With --capture NAMECapture.swift dumps every image of an encode on a device, for openmps compare, and
    NAMETests.swift holds a device's results against those of openmps for the samples, or for noise.

    With --mlx a new folder gets a Python module and weights for MLX; of a run it trains as the run does.
    """
    from openmps.formats.paths import is_there

    target = _target({"--swift": swift, "--onnx": onnx, "--mlx": mlx, "--coreml": coreml, "--coreai": coreai})
    more = {"--half": half, "--training": training, "--name": name is not None, "--capture": capture}
    _check_options(target, {**more, "--samples": samples is not None, "--batch": batch is not None})
    writers = {
        "--swift": partial(
            _export_swift, name=name, half=half, training=training, is_captured=capture, samples=samples, force=force
        ),
        "--onnx": _export_onnx,
        "--mlx": partial(_export_mlx, name=name, force=force),
        "--coreml": partial(_export_coreml, half=half, batch=batch or 1, force=force),
        "--coreai": partial(_export_coreai, batch=batch or 1, force=force),
    }
    require_outside(out, graph, "the network that is exported")
    if is_there(out, _WHO) and not force:
        raise MPSFileError(_WHO, str(out), "must be new", "something there", "--force replaces it.")
    writers[target](graph, out, image or [], registry_of(registry, graph))


def _target(targets: Mapping[str, bool]) -> str:
    """The one option that says what there is to export."""
    chosen = [option for option, is_chosen in targets.items() if is_chosen]
    if len(chosen) != 1:
        rule = "is needed, one of them: what there is to export"
        raise typer.BadParameter(rule, param_hint=_listed([*targets], "or"))
    return chosen[0]


def _check_options(target: str, more: Mapping[str, bool]) -> None:
    """Raise where an option was given that is not for what there is to export."""
    for option, is_given in more.items():
        if is_given and target not in _TAKERS[option]:
            rule = f"is for {_listed(_TAKERS[option], 'and')}: leave it out"
            raise typer.BadParameter(rule, param_hint=option)


def _listed(options: Sequence[str], joined: str) -> str:
    *most, last = options
    return f"{', '.join(most)} {joined} {last}" if most else last


def _export_swift(
    path: Path,
    out: Path,
    sizes: list[str],
    registry: Registry,
    *,
    name: str | None,
    half: bool,
    training: bool,
    is_captured: bool,
    samples: Path | None,
    force: bool,
) -> None:
    from openmps.cli.captures import golden_of
    from openmps.formats import swift as formats
    from openmps.formats.swift.literals import class_name

    if half and training:
        raise typer.BadParameter("cannot be trained: leave one of them out", param_hint="--half and --training")
    if is_captured and training:
        rule = "is for networks that infer: leave one of them out"
        raise typer.BadParameter(rule, param_hint="--capture and --training")
    if not is_captured and (sizes or samples is not None):
        rule = "are for ONNX, MLX, Core ML, Core AI and --capture, which need images: leave them out"
        raise typer.BadParameter(rule, param_hint="--image and --samples")
    found = open_graph(path, training=training, registry=registry)
    chosen = name if name is not None else class_name(out.name)
    golden = golden_of(found, sizes, samples) if is_captured else None
    folder = formats.export(
        found.graph, out, chosen, half=half, notes=found.notes, preprocessing=found.preprocessing, golden=golden,
        replace=force,
    )  # fmt: skip
    count = sum(each.suffix == ".dat" for each in folder.iterdir()) - (golden is not None)
    if name is None and chosen == "Model":
        note(f"the class is called Model, as {out.name!r} is no name for one; --name gives another")
    print(f"{folder / chosen}.swift and {count} file(s) of weights")
    if golden is not None:
        print(f"{chosen}Capture.swift and {chosen}Tests.swift beside it, with {chosen}-golden.dat")


def _export_onnx(path: Path, out: Path, sizes: list[str], registry: Registry) -> None:
    from openmps.formats import onnx

    found = open_graph(path, registry=registry)
    onnx.save(found.graph, out, required_images(found, sizes))
    _note_axes(found)
    print(f"{out}: {len(found.graph.kernels)} kernels, {out.stat().st_size:,} bytes")


def _export_mlx(path: Path, out: Path, sizes: list[str], registry: Registry, *, name: str | None, force: bool) -> None:
    from openmps.formats import mlx
    from openmps.formats.paths import is_file
    from openmps.formats.swift.literals import class_name
    from openmps.runtime.devices import mtl_device

    if is_model(path):
        found = open_model(path, mtl_device("cpu"), None)
    else:
        is_run = not is_file(path, "openmps")
        found = open_graph(path, training=is_run, probabilities=is_run, registry=registry)
    chosen = name if name is not None else class_name(out.name)
    folder = mlx.export(found.graph, out, required_images(found, sizes), chosen, notes=found.notes, replace=force)
    print(f"{folder}: class {chosen} in network.py, and its weights")


def _export_coreml(
    path: Path, out: Path, sizes: list[str], registry: Registry, *, half: bool, batch: int, force: bool
) -> None:
    """Of a run an image classifier, where one image is a batch; of anything else a program over arrays."""
    from openmps.formats import coreml

    found = _found(path, out, ".mlpackage", registry)
    is_image = batch == 1 and found.preprocessing is not None
    if not is_image:
        _note_numbers(found)
    coreml.save(
        found.graph, out, required_images(found, sizes), half=half, batch=batch,
        preprocessing=coreml.CoreMLPreprocessing(*found.preprocessing) if is_image and found.preprocessing else None,
        class_labels=found.classes if is_image else (), metadata={"openmps.source": path.name}, replace=force,
    )  # fmt: skip
    _print_folder(out, found, "float16" if half else "float32")


def _export_coreai(path: Path, out: Path, sizes: list[str], registry: Registry, *, batch: int, force: bool) -> None:
    from openmps.formats import coreai

    found = _found(path, out, ".aimodel", registry)
    _note_numbers(found)
    images = required_images(found, sizes)
    coreai.save(found.graph, out, images, batch=batch, metadata={"openmps.source": path.name}, replace=force)
    _print_folder(out, found, "float32")


def _found(path: Path, out: Path, suffix: str, registry: Registry) -> Found:
    """The graph of a run, an archive or a model, for a folder that ends in ``suffix``."""
    from openmps.runtime.devices import mtl_device

    if out.suffix.lower() != suffix:
        raise MPSFileError(_WHO, str(out), f"must end in {suffix}", out.suffix or "no ending", "Apple's tools want it")
    if is_model(path):
        return open_model(path, mtl_device("cpu"), None, apart=False)
    return open_graph(path, registry=registry)


def _note_axes(found: Found) -> None:
    """Name what an array of the model has in other axes than N, C, H, W, which are those of the graph's images."""
    if found.model is None:
        return
    for what, ports in (("input", found.model.inputs), ("output", found.model.outputs)):
        for port in ports:
            if port.axes != ((0,), port.channels, port.rows, port.columns):
                shape = f"the model's {port.text} is left to whoever reads it"
                note(f"the {what} {port.name!r} is N, C, H, W there, as the graph's image: {shape}")


def _note_numbers(found: Found) -> None:
    """Say what the numbers of an array are, where an app could take it for an image."""
    if found.preprocessing is not None:
        note(f"the input is an array, of the numbers that the network sees. {found.notes[1]}")


def _print_folder(out: Path, found: Found, form: str) -> None:
    _note_axes(found)
    size = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
    print(f"{out}: {len(found.graph.kernels)} kernels, {form}, {size:,} bytes")
