"""The page itself: one HTML file, with its scripts, style and data inside."""

from __future__ import annotations

import json
import math
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, TypeGuard

from openmps.debug.page.augmented import AugmentedImages
from openmps.debug.page.figures import plain
from openmps.debug.page.mistakes import Mistakes
from openmps.debug.page.view import GraphView
from openmps.formats.atomic import write_for

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    "dagre.min.js",
    "elements.js",
    "figures.js",
    "placement.js",
    "layout.js",
    "graph.js",
    "layer.js",
    "table.js",
    "training.js",
    "page.js",
)
"""In the order in which they run: later ones use earlier ones."""
_LICENCES = {"dagre.min.js": "dagre.LICENSE.txt"}
"""What stands in front of the scripts of others."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_CURVES = (
    ("Loss", (("loss", "training"), ("test_loss", "test"))),
    ("Accuracy", (("accuracy", "training"), ("test_accuracy", "test"))),
)
_POINTS = 400
"""Points of a curve at most: more are not seen."""


@dataclass(frozen=True)
class PageExtras:
    """What a page shows besides graphs. Our addition.

    ``facts`` are lines on what the network is, ``metrics`` the lines of a run's ``metrics.jsonl``. Where there are no
    metrics or mistakes, ``no_metrics`` and ``no_mistakes`` say why, and how they are to be had. ``augmented`` are
    training images as a run's augmentation changes them.
    """

    facts: Sequence[str] = ()
    metrics: Sequence[Mapping[str, object]] | None = None
    mistakes: Mistakes | None = None
    no_metrics: str = ""
    no_mistakes: str = ""
    augmented: AugmentedImages | None = None


def save_document(
    path: str | os.PathLike[str], title: str, views: Sequence[GraphView], extras: PageExtras | None = None
) -> int:
    """Write the page, whole or not at all, and return its size in bytes. Our addition.

    Raises:
        MPSFileError: It cannot be written.
    """
    content = document(title, views, extras or PageExtras())
    write_for("save_document", path, content)
    return len(content)


def document(title: str, views: Sequence[GraphView], extras: PageExtras) -> bytes:
    """The page as a file. Its policy lets no request out, and runs no script but its own."""
    data = {
        "title": title,
        "facts": list(extras.facts),
        "views": [view.data for view in views],
        "curves": None if extras.metrics is None else curves(extras.metrics),
        "mistakes": None if extras.mistakes is None else extras.mistakes.data(),
        "no_metrics": extras.no_metrics,
        "no_mistakes": extras.no_mistakes,
        "augmented": None if extras.augmented is None else extras.augmented.data(),
    }
    script = _script()
    parts = {
        "title": escape(title),
        "style": _asset("page.css"),
        "script": script,
        "hash": b64encode(sha256(script.encode()).digest()).decode(),
        "data": _as_json(data),
    }
    # In one pass: what is put in is not looked at again.
    return _PLACE.sub(lambda found: parts[found[1]], _asset("page.html")).encode(errors="replace")


def curves(metrics: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """The measurements of a training as lines [[x, y], …] by panel: over iterations, or over epochs without those."""
    by = "iteration" if any("iteration" in line for line in metrics) else "epoch"
    panels: list[dict[str, Any]] = []
    for title, pairs in _CURVES:
        lines = [{"name": name, "points": _points(metrics, by, key)} for key, name in pairs]
        panels.append({"title": title, "over": by, "lines": [line for line in lines if line["points"]]})
    return [panel for panel in panels if panel["lines"]]


def _points(metrics: Sequence[Mapping[str, object]], by: str, key: str) -> list[list[float | None]]:
    found = [
        [plain(float(x)), plain(float(y))]
        for line in metrics
        if _is_number(x := line.get(by)) and _is_number(y := line.get(key))
    ]
    step = math.ceil(len(found) / _POINTS) or 1
    kept = found[::step]
    return kept if not found or kept[-1] == found[-1] else [*kept, found[-1]]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _as_json(data: Any) -> str:
    """JSON that ends no script and begins no comment, whatever its texts are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return "\n".join(_licence(name) + _asset(name) for name in _SCRIPTS)


def _licence(name: str) -> str:
    return f"/*!\n{_asset(_LICENCES[name])}*/\n" if name in _LICENCES else ""
