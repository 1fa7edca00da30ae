"""``openmps summary``: the layers of a network, of a run, an archive or an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.models import Images, chosen_images, open_graph
from openmps.cli.options import console, note
from openmps.cli.reading import is_coreml, is_onnx, open_run, require_network
from openmps.cli.registry import Modules, registry_of
from openmps.errors import counted, printable

if TYPE_CHECKING:
    from rich.table import Table

    from openmps.graph.summary import GraphSummary


def summary(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|ARCHIVE|MODEL.onnx",
            help="A run folder or its name in runs, an archive, or an ONNX model.",
            show_default=False,
            callback=require_network,
        ),
    ],
    image: Images = None,
    registry: Modules = None,
) -> None:
    """Print the layers of a network.

    Each with its class, the shapes of its source and result (width x height x feature channels), padding and offset,
    parameters and bytes. Shapes of an archive need the size of its images, where it does not say that itself. Of an
    ONNX model it prints the operators, with the names of the values that they make.
    """
    from openmps.formats.paths import is_file
    from openmps.graph.summary import graph_summary
    from openmps.runtime.devices import mtl_device
    from openmps.training.inference import Classifier

    makers = registry_of(registry, run)
    if is_onnx(run):
        if image:
            raise typer.BadParameter("is for archives: of a model the operators are printed", param_hint="--image")
        _print_operators(run)
        return
    if is_file(run, "openmps") or is_coreml(run):
        known = open_graph(run, registry=makers)
        images = chosen_images(known, image)
        if images is None:
            print(repr(known.graph) if not known.graph.kernels else known.graph.debug_description)
            note("--image WIDTHxHEIGHTxCHANNELS gives shapes: the archive leaves the size of its images open")
            return
        found = graph_summary(known.graph, images)
    else:
        if image:
            raise typer.BadParameter("is for archives: a run knows its size", param_hint="--image")
        found = Classifier.open(open_run(run), mtl_device("cpu")).summary()
    screen = console()
    if screen.is_terminal:
        screen.print(_table(found))
    else:
        print(found)


def _print_operators(path: Path) -> None:
    """The operators of an ONNX model, whether they can be converted or not."""
    from openmps.formats.onnx.ports import shape_text
    from openmps.formats.onnx.reading import read_model

    model = read_model(path)
    for word, tensors in (("input", model.inputs), ("output", model.outputs)):
        for tensor in tensors:
            shape = "of any shape" if tensor.lengths is None else shape_text(tensor.lengths)
            print(f"{word:6} {printable(tensor.name)}: {shape}")
    shown = [node for node in model.nodes if node.operator != "Constant"]
    for node in shown:
        values = ", ".join(name for name in node.outputs if name)
        print(printable(f"{node.operator:20} {values}" + (f"  ({node.name})" if node.name else "")))
    constants = len(model.nodes) - len(shown)
    if constants:
        note(f"{counted(constants, 'constant')} left out")


def _table(summary: GraphSummary) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    from openmps.graph.summary import COLUMNS

    table = Table(box=SIMPLE, show_footer=True)
    for column, total in zip(COLUMNS, summary.totals(), strict=True):
        justify = "right" if column.is_number else "left"
        table.add_column(column.heading, footer=Text(total), justify=justify, overflow="fold")
    for row in summary.rows:
        table.add_row(*(Text(printable(cell)) for cell in row.cells()))
    return table
