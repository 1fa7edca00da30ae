"""``openmps summary``: the layers of a run's network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from openmps.cli.options import Run, console, open_run

if TYPE_CHECKING:
    from openmps.graph.summary import GraphSummary


def summary(run: Run) -> None:
    """Print the layers of a run's network.

    Each with its class, the shapes of its source and result (width x height x feature channels), padding and offset,
    parameters and bytes.
    """
    from openmps.metal.device import mtl_device
    from openmps.training.inference import Classifier

    found = Classifier.open(open_run(run), mtl_device("cpu")).summary()
    screen = console()
    if screen.is_terminal:
        screen.print(_table(found))
    else:
        print(found)


def _table(summary: GraphSummary) -> Table:
    from openmps.graph.summary import COLUMNS

    table = Table(box=SIMPLE, show_footer=True)
    for column, total in zip(COLUMNS, summary.totals(), strict=True):
        justify = "right" if column.is_number else "left"
        table.add_column(column.heading, footer=Text(total), justify=justify, overflow="fold")
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in row.cells()))
    return table
