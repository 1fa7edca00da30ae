"""``openmps export``: the source that makes a graph in an app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openmps.cli.models import open_graph


def export(
    graph: Annotated[
        Path, typer.Argument(metavar="RUN|ARCHIVE", help="A run folder, or a graph in an archive.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make.", show_default=False)],
    swift: Annotated[bool, typer.Option("--swift", help="Swift, with a file of weights for each layer.")] = False,
    name: Annotated[
        str | None, typer.Option(help="The class in Swift.  [default: OUT's name]", show_default=False)
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Weights of float16.")] = False,
    training: Annotated[bool, typer.Option("--training", help="The graph that trains a run's network.")] = False,
) -> None:
    """Write the source that makes a graph in an app, and the weights that it reads, into a new folder.

    OUT/NAME.swift has a class that makes the same MPSNNGraph; its head says how to use it. What cannot be said in Swift
    is listed, and nothing is written.
    """
    from openmps.formats import swift as formats
    from openmps.formats.swift.literals import class_name

    if not swift:
        raise typer.BadParameter("is needed: Swift is what there is to export", param_hint="--swift")
    if half and training:
        raise typer.BadParameter("cannot be trained: leave one of them out", param_hint="--half and --training")
    found = open_graph(graph, training=training)
    chosen = name if name is not None else class_name(out.name)
    folder = formats.export(found.graph, out, chosen, half=half, notes=found.notes)
    count = sum(path.suffix == ".dat" for path in folder.iterdir())
    print(f"{folder / chosen}.swift and {count} file(s) of weights")
