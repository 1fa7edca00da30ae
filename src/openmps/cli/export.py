"""``openmps export``: a graph as the source that makes it in an app, or as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.models import Images, open_graph, required_images
from openmps.cli.options import note
from openmps.cli.registry import Modules, registry_of

if TYPE_CHECKING:
    from openmps.formats.archive import Registry


def export(
    graph: Annotated[
        Path, typer.Argument(metavar="RUN|ARCHIVE", help="A run folder, or a graph in an archive.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make, or the ONNX file.", show_default=False)],
    swift: Annotated[bool, typer.Option("--swift", help="Swift, with a file of weights for each layer.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="An ONNX file with the shape of every value.")] = False,
    image: Images = None,
    name: Annotated[
        str | None, typer.Option(help="The class in Swift.  [default: OUT's name]", show_default=False)
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Weights rounded to float16.")] = False,
    training: Annotated[bool, typer.Option("--training", help="The graph that trains a run's network.")] = False,
    registry: Modules = None,
) -> None:
    """Write a graph as source for an app, or as ONNX.

    Swift, and the weights that it reads, go into a new folder. OUT/NAME.swift has a class that makes the same
    MPSNNGraph; its head says how to use it. What cannot be said in Swift is listed, and nothing is written.
    """
    from openmps.formats import swift as formats
    from openmps.formats.swift.literals import class_name

    if swift == onnx:
        raise typer.BadParameter("is needed, one of them: what there is to export", param_hint="--swift or --onnx")
    if onnx:
        if half or training or name is not None:
            raise typer.BadParameter("are for Swift: leave them out", param_hint="--half, --training and --name")
        _export_onnx(graph, out, image or [], registry_of(registry, graph))
        return
    if image:
        raise typer.BadParameter("is for ONNX, whose values have sizes", param_hint="--image")
    if half and training:
        raise typer.BadParameter("cannot be trained: leave one of them out", param_hint="--half and --training")
    found = open_graph(graph, training=training, registry=registry_of(registry, graph))
    chosen = name if name is not None else class_name(out.name)
    folder = formats.export(found.graph, out, chosen, half=half, notes=found.notes, preprocessing=found.preprocessing)
    count = sum(path.suffix == ".dat" for path in folder.iterdir())
    if name is None and chosen == "Model":
        note(f"the class is called Model, as {out.name!r} is no name for one; --name gives another")
    print(f"{folder / chosen}.swift and {count} file(s) of weights")


def _export_onnx(path: Path, out: Path, sizes: list[str], registry: Registry) -> None:
    from openmps.errors import MPSFileError
    from openmps.formats import onnx
    from openmps.formats.paths import is_there

    found = open_graph(path, registry=registry)
    if is_there(out, "openmps export"):
        raise MPSFileError("openmps export", str(out), "must be new", "something there", "Choose another name.")
    onnx.save(found.graph, out, required_images(found, sizes))
    print(f"{out}: {len(found.graph.kernels)} kernels, {out.stat().st_size:,} bytes")
