"""The navigation of the site, and the pages that lie outside docs/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from site_pages import reference, selector_index

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BESIDE = {f"{name.upper()}.md": f"{name}.md" for name in ("readme", "changelog", "contributing", "security")}
"""Files of the project's root that are pages, and their places in the site."""

_RANKS = {"reference/": 0.5, **dict.fromkeys(("examples/", "selectors.md", "changelog.md", "onnx_node_cases.md"), 0.1)}
"""Factors of hits in a search, by the place of the page: a guide explains a word, a program only uses it."""

_BEFORE: list[dict[str, Any]] = [
    {"openmps": "index.md"},
    {"At a glance": "readme.md"},
    {
        "Learning": [
            {"The first hour": "first_hour.md"},
            {"From Swift and Objective-C": "porting.md"},
            {"Recipes": "recipes.md"},
        ]
    },
    {
        "Guides": [
            {"Training": "training.md"},
            {"Augmentation": "augmentation.md"},
            {"Several GPUs and machines": "distributed.md"},
            {"Weight updates": "weight_updates.md"},
            {"Padding": "padding.md"},
            {"Image filters": "image_filters.md"},
            {"Textures": "textures.md"},
            {"Matrices": "matrices.md"},
            {"N-dimensional arrays": "arrays.md"},
            {"Recurrent layers": "recurrent.md"},
            {"View": "view.md"},
            {"Debugging": "debugging.md"},
            {"Weights in and out": "weights.md"},
            {"ONNX": "onnx.md"},
            {"Core ML": "coreml.md"},
            {"Moving to Core ML and MLX": "moving.md"},
            {"Forty networks, moved": "moved_networks.md"},
            {"Swift": "swift.md"},
            {"PyObjC": "pyobjc.md"},
            {"The loop with a device": "device_loop.md"},
            {"In continuous integration": "ci.md"},
            {"Lint": "lint.md"},
            {"Conventions": "conventions.md"},
            {"Ten minutes of your Mac": "mac_owners.md"},
            {"Archives": "archives.md"},
            {"Processors": "processors.md"},
            {"Replays": "replays.md"},
        ]
    },
    {"Names": [{"The rule": "naming.md"}, {"Every selector": "selectors.md"}]},
]
_BEHIND: list[dict[str, Any]] = [
    {
        "Measured": [
            {"Conformance": "conformance.md"},
            {"Kernels": "kernels.md"},
            {"Performance": "performance.md"},
            {"ONNX's node cases": "onnx_node_cases.md"},
        ]
    },
    {
        "Project": [
            {"Contributing": "contributing.md"},
            {"How a step runs": "how_a_step_runs.md"},
            {"Versions": "versions.md"},
            {"Changes": "changelog.md"},
            {"Security": "security.md"},
        ]
    },
]


def navigation() -> list[dict[str, Any]]:
    """All of it."""
    programs = [{path.stem: page} for path, page in examples().items()]
    return [
        *_BEFORE,
        {"Examples": [{"All of them": "examples.md"}, *programs]},
        {"Reference": reference.navigation()},
        *_BEHIND,
    ]


def rank(place: str) -> float:
    """The factor of a page's hits in a search."""
    return next((factor for start, factor in _RANKS.items() if place.startswith(start)), 1.0)


def listed(part: Any = None) -> list[str]:
    """The pages that the navigation names, in order."""
    part = navigation() if part is None else part
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [page for each in parts for page in listed(each)]


def examples() -> dict[Path, str]:
    """The programs in examples/, each with the place of its page."""
    return {path: f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))}


def generated() -> dict[str, str]:
    """Every page that is not a file of docs/, by its place in the site."""
    found = {place: (ROOT / name).read_text(encoding="utf-8") for name, place in BESIDE.items()}
    found |= {page: _of_example(path) for path, page in examples().items()}
    found["selectors.md"] = selector_index.page()
    return found | reference.pages()


def _of_example(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    about, _, code = source.removeprefix('"""').partition('"""\n')
    title, _, about = reference.markdown(about).partition("\n")
    return f'# {title.rstrip(".")}\n\n{about.strip()}\n\n```python title="examples/{path.name}"\n{code.strip()}\n```\n'


def written() -> dict[str, str]:
    """Every page that is a file of docs/, by its place in the site."""
    return {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
