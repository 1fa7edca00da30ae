"""What several commands have in common: options, and how sizes and results are written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from openmps.training.image_folder import Channels

Run = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: the first GPU where there is one.")]


def parse_size(text: str | None, option: str) -> tuple[int, int] | None:
    """``28x20`` → (28, 20), ``28`` → (28, 28)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) not in (1, 2) or not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is no size; write 28x20 or 28", param_hint=option)
    return int(parts[0]), int(parts[-1])


def channels_of(number: int | None) -> Channels | None:
    """The number of channels of an image that can be read."""
    if number is None or number == 1 or number == 3:
        return number
    raise typer.BadParameter(f"{number} is neither 1 (grey) nor 3 (red green blue)", param_hint="--channels")


def percent(fraction: float) -> str:
    """``0.9861`` → ``98.6 %``."""
    return f"{100 * fraction:.1f} %"


def note(text: str) -> None:
    """A line beside the results."""
    print(f"note: {text}", file=sys.stderr)


def console() -> Console:
    """Standard output: coloured and as wide as it is on a terminal, plain and never cut elsewhere."""
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=10_000)
