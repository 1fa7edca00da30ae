"""The reference: a page for every public class, one for each subject, and one for each package; from the docstrings."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

from site_pages import selector_index
from site_pages.subjects import definition, packages, public_classes, public_functions, subject_of, subjects

_LITERAL = re.compile(r"``([^`]+)``")
_ROLE = re.compile(r":(?:meth|func|class|attr|mod):`~?([^`]+)`")
_SESSION = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)
_SECTIONS = ("Raises:", "Args:", "Returns:")
_HEADER = re.compile(r"\b((?:MPS|MTL|NS)\w+\.h)\b.*?((?:macOS|iOS) [\d.]+)", re.DOTALL)


def pages() -> dict[str, str]:
    """Every page of the reference, by its path in the site."""
    found = {f"reference/{name}.md": of_class(kind) for name, kind in public_classes().items()}
    found |= {f"reference/{slug}.md": _of_subject(slug) for slug in subjects()}
    found |= {f"reference/{name}.md": _of_package(name) for name in packages()}
    found["reference/index.md"] = _index()
    found["reference/functions.md"] = _of_functions()
    return found


def navigation() -> list[dict[str, str]]:
    """What the navigation shows of the reference: all but the pages of classes."""
    listed = [{"Every class": "reference/index.md"}, {"Functions": "reference/functions.md"}]
    listed += [{each.title: f"reference/{slug}.md"} for slug, each in subjects().items()]
    return listed + [{name: f"reference/{name}.md"} for name in packages()]


# --- pages ------------------------------------------------------------------------------------------------------------


def of_class(kind: type) -> str:
    """The page of a class."""
    parts = [f"# {kind.__name__}\n", _facts(kind) + "\n", f"```text\n{kind.__name__}{_signature(kind)}\n```\n"]
    parts.append(markdown(inspect.getdoc(kind) or "") + "\n")
    if issubclass(kind, enum.Enum):
        parts.append(_values(kind))
    parts += [_properties(kind), *_methods(kind, level=3), _inherited(kind)]
    selectors = selector_index.table(kind.__name__)
    if selectors:
        parts.append(f"## In the framework\n\n{selectors}")
    return "\n".join(part for part in parts if part)


def _of_subject(slug: str) -> str:
    subject = subjects()[slug]
    rows = [f"| [{kind.__name__}]({kind.__name__}.md) | {first_line(kind)} |" for kind in subject.classes]
    return "\n".join(
        [f"# {subject.title}\n", markdown(subject.about) + "\n", "| class | |", "| --- | --- |", *rows, ""]
    )


def _of_package(name: str) -> str:
    module, names = packages()[name]
    parts = [f"# {name}\n", markdown(inspect.getdoc(module) or "") + "\n"]
    for each in names:
        value = getattr(module, each)
        if inspect.isclass(value):
            parts += [f"## {each}\n", f"```text\n{each}{_signature(value)}\n```\n"]
            parts += [markdown(inspect.getdoc(value) or "") + "\n", _properties(value), *_methods(value, level=3)]
        elif callable(value):
            parts += _function(each, value, level=2)
    return "\n".join(part for part in parts if part)


def _of_functions() -> str:
    parts = ["# Functions\n"]
    for name, function in public_functions().items():
        parts += _function(name, function, level=2)
    return "\n".join(parts)


def _index() -> str:
    parts = ["# Every class\n", f"{len(public_classes())} classes, by name.\n", "| class | |", "| --- | --- |"]
    parts += [f"| [{name}]({name}.md) | {first_line(kind)} |" for name, kind in public_classes().items()]
    return "\n".join(parts) + "\n"


# --- parts ------------------------------------------------------------------------------------------------------------


def _facts(kind: type) -> str:
    """Where a class belongs, and where it comes from."""
    subject = subjects()[subject_of(kind)]
    facts = [f"[{subject.title}]({subject.slug}.md)"]
    base = next((each for each in kind.__mro__[1:] if each.__name__ in public_classes()), None)
    if base is not None:
        facts.append(f"a kind of [{base.__name__}]({base.__name__}.md)")
    since = _HEADER.search(inspect.getdoc(kind) or "")
    facts.append(f"{since[1]}, {since[2]}" if since else "")
    return " · ".join(fact for fact in facts if fact)


def first_line(kind: type) -> str:
    """The first sentence of a class's description, for a cell of a table."""
    return _cell(re.split(r"(?<=\.)\s", " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()))[0])


def _signature(kind: type) -> str:
    if getattr(kind, "_is_protocol", False) or issubclass(kind, enum.Enum):
        return ""
    try:
        return _plain(inspect.signature(kind))
    except ValueError:
        return ""  # a builtin's, of exceptions


def _plain(signature: inspect.Signature) -> str:
    return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", str(signature)).replace("'", "").removesuffix(" -> None")


def _own(kind: type) -> Iterator[tuple[str, Any]]:
    """The public attributes that a class itself adds; those of bases that are not public are its own."""
    seen = set[str]()
    for each in kind.__mro__:
        if each is not kind and (each.__name__ in public_classes() or not each.__module__.startswith("openmps")):
            continue
        if any(issubclass(base, each) for base in kind.__mro__[1:] if base.__name__ in public_classes()):
            continue
        for name, value in vars(each).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _values(kind: type[enum.Enum]) -> str:
    rows = [f"| `{name}` | {value.value} |" for name, value in kind.__members__.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows, ""])


def _is_property(value: object) -> bool:
    return isinstance(value, property) or hasattr(type(value), "__set__")


def _properties(kind: type) -> str:
    """The table of properties and attributes."""
    if issubclass(kind, enum.Enum):
        return ""
    found = {name: inspect.getdoc(value) or "" for name, value in _own(kind) if _is_property(value)}
    for name, text in _attribute_docs(kind).items():
        found[name] = text or found.get(name, "")
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in found.items()]
    return "\n".join(["| property | |", "| --- | --- |", *rows, ""]) if rows else ""


def _attribute_docs(kind: type) -> dict[str, str]:
    """The annotated attributes of a class, each with the string below it."""
    tree = definition(kind)
    found = {}
    for line, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_"):
            says = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[line.target.id] = inspect.cleandoc(str(below.value.value)) if says else ""  # type: ignore[union-attr]
    return found


def _methods(kind: type, level: int) -> list[str]:
    """A part for each method."""
    parts = []
    for name, value in [] if issubclass(kind, enum.Enum) else _own(kind):
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function):
            parts += _function(name, function, level)
    return parts


def _function(name: str, function: Any, level: int) -> list[str]:
    signature = inspect.signature(function)
    shown = [each for key, each in signature.parameters.items() if key not in ("self", "cls")]
    text = f"{name}{_plain(signature.replace(parameters=shown))}"
    return [f"{'#' * level} {name}\n", f"```text\n{text}\n```\n", markdown(inspect.getdoc(function) or "") + "\n"]


def _inherited(kind: type) -> str:
    """The names that come from public bases, by base."""
    rows = []
    for base in kind.__mro__[1:]:
        if base.__name__ in public_classes():
            names = [f"`{name}`" for name, value in _own(base) if _is_property(value) or callable(value)]
            names += [f"`{name}`" for name in _attribute_docs(base) if f"`{name}`" not in names]
            if names:
                rows.append(f"From [{base.__name__}]({base.__name__}.md): {', '.join(names)}.\n")
    return "## Inherited\n\n" + "\n".join(rows) if rows else ""


# --- docstrings as Markdown -------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    first = re.split(r"\n\s*\n", _ROLE.sub(r"`\1`", _LITERAL.sub(r"`\1`", text)).strip())[0]
    return " ".join(first.split()).replace("|", "\\|").removesuffix("::")


def markdown(text: str) -> str:
    """A docstring as Markdown: literals, literal blocks and the sections of errors."""
    text = _ROLE.sub(r"`\1`", _LITERAL.sub(r"`\1`", text))
    text = _SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    text = re.sub(r"::\n", ":\n", text)
    for section in _SECTIONS:
        text = re.sub(rf"(?:^|\n){section}\n", f"\n**{section}**\n\n", text)
    return re.sub(r"(\*\*\n\n(?:    .*\n?)+)", lambda found: _as_list(found[1]), text)


def _as_list(text: str) -> str:
    head, _, body = text.partition("\n\n")
    items = [re.sub(r"^    (?=\S)", "- ", line) for line in body.splitlines()]
    return head + "\n\n" + "\n".join(items) + "\n"
