"""Writes docs/assets/explain_padding.svg: which source pixels each result pixel reads, of two padding policies.

python tools/padding_picture.py

The numbers are those of `explain_padding`; tests/test_pictures.py holds the file to them.
"""

from __future__ import annotations

from pathlib import Path

from openmps import explain_padding

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "explain_padding.svg"
POLICIES = {"same": "SIZE_SAME, the framework's default", "tensorflow-same": "SAME, as TensorFlow has it"}
SOURCE, KERNEL, STRIDE = 6, 3, 2
CELL, GAP, LEFT, TOP, WIDTH, ROW = 30, 4, 84, 76, 380, 40
FONT = "font-family='system-ui, sans-serif'"
KEY = {"read": "read", "padding": "read, outside the source", "unread": "not read"}
FILLS = {"read": "#3b6ea5", "padding": "#e08e45", "unread": "#dfe3e8"}


def picture() -> str:
    """The file."""
    panels = [_panel(policy, title, place * WIDTH) for place, (policy, title) in enumerate(POLICIES.items())]
    height = TOP + 3 * ROW + 34
    says = f"Source pixels that each result pixel reads: {SOURCE} pixels, a kernel of {KERNEL}, a stride of {STRIDE}"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {len(panels) * WIDTH} {height}' role='img'>"
    back = "<rect width='100%' height='100%' fill='#ffffff'/>"
    lines = [head, f"<title>{says}</title>", back, *panels, _key(height - 12), "</svg>"]
    return "\n".join(lines) + "\n"


def _panel(policy: str, title: str, x: int) -> str:
    explained = explain_padding(SOURCE, kernel=KERNEL, stride=STRIDE, policy=policy).axes[0]
    columns = range(-1, SOURCE + 1)  # one pixel on either side is all that these policies read
    parts = [_text(x + 12, 26, title, size=16, bold=True)]
    parts += [_text(_center(x, column), TOP - 14, str(column), middle=True) for column in range(SOURCE)]
    for row in range(explained.result):
        y = TOP + row * ROW
        parts.append(_text(x + 12, y + 20, f"result {row}"))
        taps = explained.taps(row)
        for column in columns:
            is_inside = 0 <= column < SOURCE
            kind = ("read" if is_inside else "padding") if column in taps else "unread" if is_inside else ""
            if kind:
                parts.append(_cell(_center(x, column) - CELL // 2, y, FILLS[kind]))
    return "\n".join(parts)


def _center(x: int, column: int) -> int:
    return x + LEFT + (column + 1) * (CELL + GAP) + CELL // 2


def _cell(x: int, y: int, fill: str) -> str:
    return f"<rect x='{x}' y='{y}' width='{CELL}' height='{CELL}' rx='4' fill='{fill}'/>"


def _key(y: int) -> str:
    parts: list[str] = []
    for place, (kind, words) in enumerate(KEY.items()):
        x = 12 + place * 190
        parts.append(f"<rect x='{x}' y='{y - 11}' width='14' height='14' rx='3' fill='{FILLS[kind]}'/>")
        parts.append(_text(x + 20, y + 1, words))
    return "\n".join(parts)


def _text(x: int, y: int, text: str, *, size: int = 13, bold: bool = False, middle: bool = False) -> str:
    more = " font-weight='600'" * bold + " text-anchor='middle'" * middle
    return f"<text x='{x}' y='{y}' font-size='{size}' {FONT} fill='#1f2933'{more}>{text}</text>"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
