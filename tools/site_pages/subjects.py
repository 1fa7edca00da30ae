"""The subjects of the reference: which public classes belong to which, and the packages that are documented whole."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import openmps
import openmps.graph
import openmps.kernels

_FLOORS = {
    "metal": ("devices", "Devices, queues, command buffers"),
    "core.image": ("images", "Images"),
    "core.state": ("states", "States"),
    "core.vector": ("vectors", "Vectors and matrices"),
    "core.vector_descriptor": ("vectors", "Vectors and matrices"),
    "core.padding": ("padding", "Padding policies"),
    "core.kernel": ("kernel_bases", "What all kernels share"),
    "core.neuron": ("kernel_bases", "What all kernels share"),
    "types": ("types", "Enumerations and structs"),
    "errors": ("errors", "Errors"),
    "formats.archive": ("archives", "Archives"),
    "training": ("data_sources", "Data sources, ready-made"),
}
"""Subjects of modules and packages that are neither kernels nor nodes."""
_PACKAGES = (
    *("training", "distributed", "debug"),
    *("formats", "formats.coreai", "formats.coreml", "formats.onnx", "formats.swift"),
)
"""Packages beside the framework's classes, whose public names are on a page of each."""


@dataclass(frozen=True)
class Subject:
    """A page of the reference that lists classes."""

    slug: str
    title: str
    about: str
    classes: tuple[type, ...]


@cache
def public_classes() -> dict[str, type]:
    """Every public class by its name."""
    found = {name: getattr(openmps, name) for name in openmps.__all__}
    return {name: value for name, value in found.items() if inspect.isclass(value)}


@cache
def public_functions() -> dict[str, Any]:
    """Every public function by its name."""
    found = {name: getattr(openmps, name) for name in openmps.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


@cache
def subjects() -> dict[str, Subject]:
    """Every subject by its slug: the general ones, kernels, nodes and what else graphs have."""
    groups: dict[str, list[type]] = {}
    for kind in public_classes().values():
        groups.setdefault(_place(kind)[0], []).append(kind)
    order = {slug: index for index, slug in enumerate(dict.fromkeys(slug for slug, _ in _FLOORS.values()))}
    found = {}
    for slug in sorted(groups, key=lambda slug: (order.get(slug, len(order)), slug)):
        kinds = sorted(groups[slug], key=lambda kind: (kind.__module__, definition(kind).lineno))
        _, title, module = _place(kinds[0])
        about = inspect.getdoc(importlib.import_module(module)) or "" if slug not in order else ""
        found[slug] = Subject(slug, title, about, tuple(kinds))
    return found


def _place(kind: type) -> tuple[str, str, str]:
    """Slug and title of a class's subject, and the module that describes it."""
    name = kind.__module__.removeprefix("openmps.")
    floor, _, rest = name.partition(".")
    if floor in ("kernels", "graph"):
        stem = rest.partition(".")[0]
        return stem, stem.replace("_", " ").capitalize(), f"openmps.{floor}.{stem}"
    known = [each for each in _FLOORS if name == each or name.startswith(each + ".")]
    slug, title = _FLOORS[known[0]] if known else (floor, floor.capitalize())
    return slug, title, f"openmps.{name}"


def definition(kind: type) -> ast.ClassDef:
    """Where a class is written."""
    return _definitions(kind.__module__)[kind.__name__]


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {each.name: each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}


def subject_of(kind: type) -> str:
    """The slug of a class's subject."""
    return _place(kind)[0]


@cache
def packages() -> dict[str, tuple[ModuleType, tuple[str, ...]]]:
    """The documented packages: module and public names, in order."""
    found = {}
    for name in _PACKAGES:
        module = importlib.import_module(f"openmps.{name}")
        own = [each for each in getattr(module, "__all__", vars(module)) if _is_shown(module, each)]
        found[f"openmps.{name}"] = module, tuple(sorted(own, key=str.lower))
    return found


def _is_shown(package: ModuleType, name: str) -> bool:
    value = getattr(package, name)
    if name.startswith("_") or inspect.ismodule(value) or name in openmps.__all__:
        return False
    return str(getattr(value, "__module__", "")).startswith(package.__name__)
