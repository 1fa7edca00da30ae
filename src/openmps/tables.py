"""Text of columns that stand below one another, for what the package prints."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_GAP = "  "
_LONGEST_NOTE = 200


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    """Lines of cells below their headings; ``numbers`` says which columns stand at the right."""
    cells = [headings, *rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(headings))]
    lines = [_GAP.join(map(_placed, row, widths, numbers)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def printed_html(self: object) -> str:
    """What a notebook shows of something that prints as lines: what it prints."""
    return f"<pre>{escape(str(self))}</pre>"


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table of a notebook, the first of them its head."""
    lines = [_cells(row, "td" if place else "th") for place, row in enumerate(rows)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cells(row: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _placed(cell: str, width: int, is_number: bool) -> str:
    return cell.rjust(width) if is_number else cell.ljust(width)


def note_text(note: str) -> str:
    """A note as a line; of one with a long list the beginning."""
    beginning = note[:_LONGEST_NOTE].rpartition(", ")[0]
    is_whole = len(note) <= _LONGEST_NOTE or not beginning
    return f"note: {note}" if is_whole else f"note: {beginning}, … (the trace's notes have all)"


def short(number: float) -> str:
    """A number in four digits, ``0.01234``, ``1.234e+06``, ``inf``."""
    return f"{number:.4g}"
