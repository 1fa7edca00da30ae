"""``openmps export``: a graph as the source that makes it in an app, as an ONNX file or as Python for MLX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.models import Images, open_graph, required_images
from openmps.cli.options import note
from openmps.cli.registry import Modules, registry_of
from openmps.cli.subjects import Samples

if TYPE_CHECKING:
    from openmps.formats.archive import Registry


def export(
    graph: Annotated[
        Path, typer.Argument(metavar="RUN|ARCHIVE", help="A run folder, or a graph in an archive.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make, or the ONNX file.", show_default=False)],
    swift: Annotated[bool, typer.Option("--swift", help="Swift, with a file of weights for each layer.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="An ONNX file with the shape of every value.")] = False,
    mlx: Annotated[
        bool, typer.Option("--mlx", help="Python for MLX, which runs and trains, with a file of weights.")
    ] = False,
    image: Images = None,
    name: Annotated[
        str | None, typer.Option(help="The class in Swift or Python.  [default: OUT's name]", show_default=False)
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Weights rounded to float16.")] = False,
    training: Annotated[bool, typer.Option("--training", help="The graph that trains a run's network.")] = False,
    capture: Annotated[
        bool, typer.Option("--capture", help="Swift that dumps every image for openmps compare, and a test.")
    ] = False,
    samples: Samples = None,
    registry: Modules = None,
) -> None:
    """Write a graph as source for an app, as ONNX, or for MLX.

    Swift, and the weights that it reads, go into a new folder. OUT/NAME.swift has a class that makes the same
    MPSNNGraph; its head says how to use it. What cannot be said in Swift is listed, and nothing is written.

    With --capture NAMECapture.swift dumps every image of an encode on a device, for openmps compare, and
    NAMETests.swift holds a device's results against those of openmps for the samples, or for noise.

    With --mlx a new folder gets a Python module and weights for MLX; of a run it trains as the run does.
    """
    from openmps.cli.captures import golden_of
    from openmps.formats import swift as formats
    from openmps.formats.swift.literals import class_name

    if [swift, onnx, mlx].count(True) != 1:
        rule = "is needed, one of them: what there is to export"
        raise typer.BadParameter(rule, param_hint="--swift, --onnx or --mlx")
    if not swift:
        if half or training or (onnx and name is not None):
            raise typer.BadParameter("are for Swift: leave them out", param_hint="--half, --training and --name")
        if capture or samples is not None:
            raise typer.BadParameter("are for Swift: leave them out", param_hint="--capture and --samples")
        if onnx:
            _export_onnx(graph, out, image or [], registry_of(registry, graph))
        else:
            _export_mlx(graph, out, image or [], name, registry_of(registry, graph))
        return
    if half and training:
        raise typer.BadParameter("cannot be trained: leave one of them out", param_hint="--half and --training")
    if capture and training:
        rule = "is for networks that infer: leave one of them out"
        raise typer.BadParameter(rule, param_hint="--capture and --training")
    if not capture and (image or samples is not None):
        rule = "are for ONNX, MLX and --capture, which need images: leave them out"
        raise typer.BadParameter(rule, param_hint="--image and --samples")
    found = open_graph(graph, training=training, registry=registry_of(registry, graph))
    chosen = name if name is not None else class_name(out.name)
    golden = golden_of(found, image or [], samples) if capture else None
    folder = formats.export(
        found.graph, out, chosen, half=half, notes=found.notes, preprocessing=found.preprocessing, golden=golden
    )
    count = sum(path.suffix == ".dat" for path in folder.iterdir()) - (golden is not None)
    if name is None and chosen == "Model":
        note(f"the class is called Model, as {out.name!r} is no name for one; --name gives another")
    print(f"{folder / chosen}.swift and {count} file(s) of weights")
    if golden is not None:
        print(f"{chosen}Capture.swift and {chosen}Tests.swift beside it, with {chosen}-golden.dat")


def _export_onnx(path: Path, out: Path, sizes: list[str], registry: Registry) -> None:
    from openmps.errors import MPSFileError
    from openmps.formats import onnx
    from openmps.formats.paths import is_there

    found = open_graph(path, registry=registry)
    if is_there(out, "openmps export"):
        raise MPSFileError("openmps export", str(out), "must be new", "something there", "Choose another name.")
    onnx.save(found.graph, out, required_images(found, sizes))
    print(f"{out}: {len(found.graph.kernels)} kernels, {out.stat().st_size:,} bytes")


def _export_mlx(path: Path, out: Path, sizes: list[str], name: str | None, registry: Registry) -> None:
    from openmps.formats import mlx
    from openmps.formats.paths import is_file
    from openmps.formats.swift.literals import class_name

    is_run = not is_file(path, "openmps")
    found = open_graph(path, training=is_run, probabilities=is_run, registry=registry)
    chosen = name if name is not None else class_name(out.name)
    folder = mlx.export(found.graph, out, required_images(found, sizes), chosen, notes=found.notes)
    print(f"{folder}: class {chosen} in network.py, and its weights")
