"""What a lint says: findings, and the report that shows them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from openmps.errors import counted
from openmps.selectors import name_arguments
from openmps.tables import printed_html

_WIDTH = 80
"""Columns of text that a report takes at most."""
_INDENT = "  "
_MANY = 3
"""Filters of one class with the same finding that are named together."""


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """A device refuses it, or its numbers are lost."""
    WARNING = "warning"
    """A device gives other numbers, or may."""
    NOTE = "note"
    """Something to know."""


@name_arguments
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a device refuses or does otherwise.

    ``where`` is the label of a node, or its place in the graph; ``class_name`` its class. ``says`` is what must hold,
    ``got`` what was found and ``remedy`` what to do.
    """

    severity: Severity
    rule: str
    where: str
    class_name: str
    says: str
    got: str
    remedy: str

    def __str__(self) -> str:
        """The finding in 80 columns."""
        return "\n".join(_block([self]))


class Magnitude(NamedTuple):
    """The largest magnitude of a filter's result over the samples, in float32."""

    where: str
    class_name: str
    channel_format: str
    """How the graph stores the image."""
    magnitude: float


class OpenReading(NamedTuple):
    """A convention on which the graph depends: the framework's documentation leaves a choice there."""

    name: str
    choice: str
    """What the graph follows."""
    asks: str
    """The question."""
    proven: tuple[str, ...]
    """Machines that were seen to choose so; none where openmps' reading is all that there is."""


@name_arguments
@dataclass(frozen=True, slots=True)
class LintReport:
    """The findings of a graph, errors first, in the order of its filters; printable as a table of 80 columns.

    ``left_out`` are the rules that were not tried, each with what it needs. ``magnitudes`` has a row for each filter
    where samples were run, ``conventions`` one for each open reading that the graph depends on, where shapes are known.
    """

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...] = ()
    magnitudes: tuple[Magnitude, ...] = ()
    conventions: tuple[OpenReading, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.of(Severity.ERROR)

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    def __str__(self) -> str:
        """The table: what is wrong at several filters is said once, above their lines."""
        alike: dict[tuple[object, ...], list[Finding]] = {}
        for each in self.findings:
            alike.setdefault((each.severity, each.rule, each.says, each.remedy), []).append(each)
        lines = [line for group in alike.values() for line in _block(group)]
        if self.magnitudes:
            lines.append("largest magnitudes of results")
            cells = [(*each[:3], f"{each.magnitude:.6g}") for each in self.magnitudes]
            lines += _rows(cells)
        for each in self.conventions:
            seen = f"as {' and '.join(each.proven)} did" if each.proven else "which no Mac has shown"
            lines += _wrapped(f"open: {each.asks} Here: {each.choice}, {seen} ({each.name}).", "")
        lines.append(", ".join(counted(len(self.of(each)), each.value) for each in Severity))
        return "\n".join([*lines, *(part for each in self.left_out for part in _wrapped(f"not tried: {each}", ""))])

    _repr_html_ = printed_html


def _block(alike: Sequence[Finding]) -> list[str]:
    """Findings of one rule: the rule, a line for each filter, or for all with the same fault, and what to do."""
    first = alike[0]
    head = _wrapped(f"{first.severity.value}: {first.rule}: {first.says}", "")
    same: dict[tuple[str, str], list[Finding]] = {}
    for each in alike:
        same.setdefault((each.class_name, each.got), []).append(each)
    single = [each for each in alike if len(same[each.class_name, each.got]) < _MANY]
    rows = _rows([(each.where, each.class_name, each.got) for each in single]) if single else []
    for (name, got), many in same.items():
        if len(many) >= _MANY:
            rows += _wrapped(f"{len(many)} {name}: {', '.join(each.where for each in many)}", _INDENT)
            rows += _wrapped(got, 2 * _INDENT)
    return [*head, *rows, *_wrapped(f"{first.remedy}.", _INDENT)]


def _rows(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells that stand below one another; a line that is too long goes on below, indented."""
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines: list[str] = []
    for row in cells:
        line = _INDENT + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines += [line] if len(line) <= _WIDTH else _wrapped("  ".join(row), _INDENT)
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}{_INDENT}")


def sorted_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors first, then as they were found."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda each: order.index(each.severity)))
