"""Writes docs/conventions.md: the table of conventions, as a page.

python tools/conventions_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from openmps.convention.filters import FILTERS
from openmps.convention.row import Convention
from openmps.convention.table import CONVENTIONS, MACHINES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "conventions.md"
_HEAD = """# Conventions

The framework's headers leave questions open, and openmps has no Mac to ask. Each question is a row of one table, with
what openmps does, what else the header could mean, and what is known. `openmps.conventions` chooses, for what is made
in a block:

```python
import openmps as mps

device = mps.MTLCreateSystemDefaultDevice()
with mps.conventions("macOS 27, M4"):  # all that is known of a machine
    a, b = mps.MPSNNImageNode(mps.Handle("a")), mps.MPSNNImageNode(mps.Handle("b"))
    node = mps.MPSNNAdditionNode(a, b)
    node.primary_scale = 2.0
    graph = mps.MPSNNGraph(device, node.result_image)
print(graph.conventions.departures())  # {'graph_primary_scale': 'dropped'}

with mps.conventions(reshape_order="planes"):  # a single one; K7="planes" is the same
    kernel = mps.MPSNNReshape(device)
print(kernel.conventions["reshape_order"])  # planes

sizes = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 2, 2, 1)
for reading in mps.lint(graph, [sizes, sizes]).conventions:
    print(reading.name, reading.choice, *reading.proven)  # source_order depth; graph_primary_scale dropped macOS 27, M4
```

Kernels, graphs and presets of padding policies keep the conventions of the block that they were made in, wherever they
are encoded: they are part of what is planned, and copies and archives keep them. Nodes keep none; they are read when
their graph is made. What is made outside of all blocks has the defaults. [Lint](lint.md) names those on which the
numbers of a network depend.

Blocks may stand in one another: the inner one decides on what it names, the outer one on the rest. A block holds in
its own thread, or asyncio's task and those that it starts; other threads have the defaults:

```python
with mps.conventions("macOS 27, M4"), mps.conventions(graph_primary_scale="kept") as both:
    print(both["graph_primary_scale"], both["concatenation_filler"])  # kept texture
```

ONNX models are read into nodes of the default readings: where they would mean something else, reading raises. A file
that `openmps.formats.onnx.save` writes has the readings of its graph, or there is none.

Questions K, R and P are numbered as in a list that only a Mac can answer; F are questions that measured facts have
brought, I those on [image filters](image_filters.md). Facts stand with their sources in `tests/mac_facts`, and each is
a test. Where there is no other choice, a column says why; to ask for one raises.
"""


def page() -> str:
    """The page's text."""
    rows = [row for row in CONVENTIONS.values() if row not in FILTERS]
    parts = [_HEAD, *_machines()]
    for title, group in (("Open questions", rows), ("Image filters", [*FILTERS])):
        parts += [*_with_choices(title, [row for row in group if row.alternatives])]
        parts += [*_fixed(title, [row for row in group if not row.alternatives])]
    return "\n".join(parts).rstrip() + "\n"


def _machines() -> Iterator[str]:
    yield "## Machines\n\n| machine | what it was seen to do |\n| --- | --- |"
    for machine, choices in MACHINES.items():
        yield f"| {machine} | {', '.join(f'`{name}` {choice}' for name, choice in choices.items())} |"
    yield ""


def _with_choices(title: str, rows: list[Convention]) -> Iterator[str]:
    yield f"## {title} with a choice: {len(rows)}\n"
    yield from _heads("question | name | choices, the default first | concerns | known", rows)
    for row in rows:
        choices = "<br>".join(f"`{name}`: {says}" for name, says in row.choices.items())
        yield f"| {_asked(row)} | `{row.name}` | {choices} | {_classes(row)} | {_known(row)} |{_asked_of_macs(row)}"
    yield ""


def _fixed(title: str, rows: list[Convention]) -> Iterator[str]:
    yield f"## {title} without one: {len(rows)}\n"
    yield from _heads("question | name | openmps | concerns | known | why there is no choice", rows)
    for row in rows:
        says = row.choices[row.default]
        cells = [_asked(row), f"`{row.name}`", says, _classes(row), _known(row), row.why_not]
        yield f"| {' | '.join(cells)} |{_asked_of_macs(row)}"
    yield ""


def _heads(names: str, rows: list[Convention]) -> Iterator[str]:
    """The head of a table, with what to ask a Mac where rows say it."""
    every = names.split(" | ") + ["what to ask a Mac"] * any(row.to_ask for row in rows)
    yield f"| {' | '.join(every)} |"
    yield f"| {' | '.join(['---'] * len(every))} |"


def _asked_of_macs(row: Convention) -> str:
    return f" {row.to_ask} |" if row.to_ask else ""


def _asked(row: Convention) -> str:
    return f"{', '.join(row.questions)}: {row.asks}"


def _classes(row: Convention) -> str:
    return ", ".join(f"`{name}`" for name in row.concerns)


def _known(row: Convention) -> str:
    proven = [f"proven by {machine}" for machine in row.proven]
    return "; ".join([*proven, *row.evidence]) or "nothing"


if __name__ == "__main__":
    PAGE.write_text(page())
