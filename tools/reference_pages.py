"""Writes docs/reference: a page for every file of kernels and of nodes, made of the docstrings of its public classes.

python tools/reference_pages.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from typing import Any

import openmps
import openmps.graph
import openmps.kernels

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
_LITERAL = re.compile(r"``([^`]+)``")
_SECTIONS = ("Raises:", "Args:", "Returns:")


def stems() -> dict[str, Any]:
    """The files and packages of kernels, and the files of the graph, by name."""
    found: dict[str, Any] = {}
    for package in (openmps.kernels, openmps.graph):
        names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        found |= {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return found


def classes(module: Any) -> list[type]:
    """The public classes of a file or package, in the order of the source."""
    found = [
        value
        for name in openmps.__all__
        if inspect.isclass(value := getattr(openmps, name)) and _belongs(value, module.__name__)
    ]
    return sorted(found, key=lambda kind: (kind.__module__, inspect.getsourcelines(kind)[1]))


def _belongs(kind: type, module: str) -> bool:
    return kind.__module__ == module or kind.__module__.startswith(module + ".")


def page(module: Any) -> str:
    """The page of one file."""
    stem = module.__name__.rpartition(".")[2]
    title = stem.replace("_", " ").capitalize()
    parts = [f"# {title}\n", _markdown(inspect.getdoc(module) or "")]
    parts += [_of_class(kind) for kind in classes(module)]
    parts.append("[Every kernel](../kernels.md)")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _of_class(kind: type) -> str:
    lines = [f"## {kind.__name__}\n", "```text", f"{kind.__name__}{_signature(kind)}", "```\n"]
    lines.append(_markdown(inspect.getdoc(kind) or ""))
    properties = _properties(kind)
    if properties:
        lines += ["", "| property | |", "| --- | --- |"]
        lines += [f"| `{name}` | {_markdown(doc, is_cell=True)} |" for name, doc in properties]
    methods = _methods(kind)
    if methods:
        lines += ["", "| method | |", "| --- | --- |"]
        lines += [f"| `{name}` | {_markdown(doc, is_cell=True)} |" for name, doc in methods]
    return "\n".join(lines) + "\n"


def _signature(kind: type) -> str:
    if getattr(kind, "_is_protocol", False):
        return ""
    return str(inspect.signature(kind)).replace("'", "").removesuffix(" -> None")


def _properties(kind: type) -> list[tuple[str, str]]:
    """The public properties and attributes that the class itself adds."""
    found = []
    attributes = _attribute_docs(kind)
    for name, value in vars(kind).items():
        if not name.startswith("_") and (isinstance(value, property) or hasattr(type(value), "__set__")):
            found.append((name, inspect.getdoc(value) or ""))
    found += [(name, doc) for name, doc in attributes.items() if name not in dict(found)]
    return found


def _attribute_docs(kind: type) -> dict[str, str]:
    """The annotated attributes of a class, each with the string below it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_"):
            says = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[line.target.id] = inspect.cleandoc(str(below.value.value)) if says else ""  # type: ignore[union-attr]
    return found


def _methods(kind: type) -> list[tuple[str, str]]:
    """The public methods that the class itself adds."""
    found = []
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and inspect.isfunction(function):
            names = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
            found.append((f"{name}({', '.join(names)})", inspect.getdoc(function) or ""))
    return found


def _markdown(text: str, *, is_cell: bool = False) -> str:
    """A docstring as Markdown: literals, literal blocks and the sections of errors."""
    text = _LITERAL.sub(r"`\1`", text)
    if is_cell:
        first = re.split(r"\n\s*\n", text.strip())[0]
        return " ".join(first.split()).replace("|", "\\|").removesuffix("::")
    text = re.sub(r"::\n", ":\n", text)
    for section in _SECTIONS:
        text = text.replace(f"\n{section}\n", f"\n**{section}**\n\n")
    return re.sub(r"(\*\*\n\n(?:    .*\n?)+)", lambda found: _as_list(found[1]), text)


def _as_list(text: str) -> str:
    head, _, body = text.partition("\n\n")
    items = [re.sub(r"^    (?=\S)", "- ", line) for line in body.splitlines()]
    return head + "\n\n" + "\n".join(items) + "\n"


def pages() -> dict[Path, str]:
    """Every page, by its path."""
    return {FOLDER / f"{stem}.md": page(module) for stem, module in stems().items() if classes(module)}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
