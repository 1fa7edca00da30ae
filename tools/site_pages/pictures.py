"""Pictures that the examples of a page draw: made when the site is built.

A page says ``<!-- picture: name.svg: what it shows -->`` behind the example that writes a file of this name. The
examples run as `tools/run_doc_examples.py` runs them.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from run_doc_examples import run_file

MARK = re.compile(r"^<!-- picture: (?P<name>[\w.]+): (?P<alt>.+?) -->$", re.MULTILINE)


def names(text: str) -> list[str]:
    """The pictures that a page shows."""
    return [found["name"] for found in MARK.finditer(text)]


def place(page: str, name: str) -> str:
    """Where the site has a page's picture."""
    return f"pictures/{page.removesuffix('.md')}/{name}"


def shown(text: str, page: str) -> str:
    """A page with its pictures, for the site."""
    return MARK.sub(lambda found: f"![{found['alt']}]({place(page, found['name'])})", text)


def drawn(path: Path) -> dict[str, bytes]:
    """The pictures of a page, by their names; the same bytes each time."""
    _make_repeatable()
    with tempfile.TemporaryDirectory() as folder:
        _, _, failure = run_file(path, Path(folder))
        if failure is not None:
            raise SystemExit(failure)
        return {name: (Path(folder) / name).read_bytes() for name in names(path.read_text(encoding="utf-8"))}


def _make_repeatable() -> None:
    """No date and no random names in what matplotlib writes."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "openmps", "figure.figsize": (7, 3), "figure.constrained_layout.use": True}
    )
