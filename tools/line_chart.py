"""Curves as SVG, on a white ground: a few kilobytes, the same bytes each time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Points = Sequence[Sequence[float]]
WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 430, 16, 216
"""The sides of what curves are drawn in; their names stand to the right of it."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#444444")
DASHES = ("none", "8 4", "2 3", "10 3 2 3", "5 5", "1 2")
"""Curves are told apart without colours, too, and where they lie on one another."""
_MOST_TICKS = 6


@dataclass(frozen=True)
class Chart:
    """Curves by their names, what the axes are, and points that are marked."""

    x: str
    y: str
    curves: Mapping[str, Points]
    is_logarithmic: bool = False
    marked: Points = ()
    is_scattered: bool = False
    """Whether points are shown, not lines through them."""

    def svg(self, title: str) -> str:
        """The file; ``title`` says what it shows."""
        points = [point for curve in self.curves.values() for point in curve]
        is_counted = all(float(x).is_integer() for x, _ in points)
        across = _Axis(min(x for x, _ in points), max(x for x, _ in points), LEFT, RIGHT)
        columns = [at for at in across.ticks() if float(at).is_integer() or not is_counted]
        down = _Axis(min(y for _, y in points), max(y for _, y in points), BOTTOM, TOP, self.is_logarithmic)
        lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img'"
            " font-family='system-ui, sans-serif' font-size='12' fill='#1f2933'>",
            f"<title>{title}</title>",
            "<rect width='100%' height='100%' fill='#ffffff'/>",
            *(_line(across.place(at), TOP, across.place(at), BOTTOM) for at in columns),
            *(_text(across.place(at), BOTTOM + 16, f"{at:g}", "middle") for at in columns),
            *(_line(LEFT, down.place(at), RIGHT, down.place(at)) for at in down.ticks()),
            *(_text(LEFT - 6, down.place(at) + 4, f"{at:g}", "end") for at in down.ticks()),
            _text((LEFT + RIGHT) / 2, BOTTOM + 36, self.x, "middle"),
            f"<g transform='rotate(-90)'>{_text(-(TOP + BOTTOM) / 2, 14, self.y, 'middle')}</g>",
        ]
        for place, (name, curve) in enumerate(self.curves.items()):
            placed = [(across.place(x), down.place(y)) for x, y in curve]
            lines += [self._drawn(placed, place), *self._key(name, place)]
        lines += [_dot(across.place(x), down.place(y), "#1f2933", 5) for x, y in self.marked]
        return "\n".join([*lines, "</svg>"]) + "\n"

    def _drawn(self, placed: Sequence[tuple[float, float]], place: int) -> str:
        colour = COLOURS[place]
        if self.is_scattered:
            return "\n".join(_dot(x, y, colour, 4) for x, y in placed)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        return f"<polyline points='{path}' {_stroke(place)} fill='none'/>"

    def _key(self, name: str, place: int) -> tuple[str, str]:
        y = TOP + 12 + 20 * place
        line = f"<line x1='{RIGHT + 14}' y1='{y}' x2='{RIGHT + 44}' y2='{y}' {_stroke(place)}/>"
        sign = _dot(RIGHT + 29, y, COLOURS[place], 4) if self.is_scattered else line
        return sign, _text(RIGHT + 50, y + 4, name, "start")


@dataclass(frozen=True)
class _Axis:
    """Numbers from ``least`` to ``most``, drawn from ``first`` to ``last``."""

    least: float
    most: float
    first: float
    last: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a number lies."""
        least, most, at = (math.log10(each) if self.is_logarithmic else each for each in (self.least, self.most, value))
        return self.first + (self.last - self.first) * (at - least) / ((most - least) or 1.0)

    def ticks(self) -> list[float]:
        """Round numbers between the ends."""
        if self.is_logarithmic:
            powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
            found = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
            inside = [each for each in found if self.least <= each <= self.most]
            return inside if len(inside) <= _MOST_TICKS else [each for each in inside if f"{each:e}"[0] == "1"]
        step = 10.0 ** math.floor(math.log10((self.most - self.least) or 1.0))
        step = next(
            each for each in (step / 5, step / 2, step, step * 2) if (self.most - self.least) / each < _MOST_TICKS
        )
        first, last = math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9)
        return [round(at * step, 12) for at in range(first, last + 1)]


def _stroke(place: int) -> str:
    return f"stroke='{COLOURS[place]}' stroke-width='2' stroke-dasharray='{DASHES[place]}'"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='#dfe3e8'/>"


def _dot(x: float, y: float, colour: str, radius: int) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{colour}'/>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{text}</text>"
