"""``--registry``: modules of the user's own that make again what archives hold of classes that are not openmps'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.reading import RUNS, is_model
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.formats.archive import Registry

_WHO = "openmps"
_OPTION = "--registry"
_DEFAULT = "registry"
_RULE = "must map the names of classes to functions that make their objects"
Modules = Annotated[
    list[str] | None,
    typer.Option(
        _OPTION,
        metavar="MODULE[:NAME]",
        help="A module, such as package.module, whose mapping NAME makes an archive's objects of your own classes; it "
        "is imported. NAME is registry unless said. May be repeated.",
        show_default=False,
    ),
]


def registry_of(given: Sequence[str] | None, *paths: Path | None) -> Registry:
    """What the modules of ``--registry`` map the names of classes to, for the archives among the paths of a command.

    Raises:
        MPSArgumentError: No archive is read, a module is not there or cannot be imported, it has no mapping of that
            name, or two of them make one class.
    """
    if given and all(path is None or _is_no_archive(path) for path in paths):
        raise MPSArgumentError(_WHO, _OPTION, "must be left out: it is for archives, and none is given")
    found, makers = dict[str, Callable[[dict[str, Any]], Any]](), dict[str, str]()
    for text in given or ():
        for name, make in _mapping(text).items():
            if found.setdefault(name, make) is not make:
                rule = f"must make {name!r} once: {makers[name]} and {text} both do"
                raise MPSArgumentError(_WHO, _OPTION, rule, None, "Leave one of them out")
            makers.setdefault(name, text)
    return {name: _called(makers[name], make) for name, make in found.items()}


def _is_no_archive(path: Path) -> bool:
    """Whether a path is surely something else; of one where nothing is, what reads it will say so."""
    from openmps.formats.exchange.raw import RAW_SUFFIXES
    from openmps.formats.exchange.tensors import SUFFIXES
    from openmps.formats.paths import is_folder, is_there

    is_run = is_folder(path, _WHO) or (not is_there(path, _WHO) and is_folder(RUNS / path, _WHO))
    return is_run or is_model(path) or path.suffix.lower() in (*SUFFIXES, *RAW_SUFFIXES)


def _mapping(text: str) -> Registry:
    """The mapping that ``package.module:NAME`` says."""
    from openmps.cli.own_code import imported, member, parted, told

    where, name = parted(_OPTION, text, "must be package.module or package.module:NAME", _DEFAULT)
    module = imported(_OPTION, where, "openmps.formats.archive")
    with told(_OPTION, where, "must have a mapping that can be read"):
        remedy = f"{_RULE.replace('must map', 'Map there')}{_others(where, module)}"
        value = member(module, name, f"{_OPTION} {text}", remedy)
        if not isinstance(value, Mapping):
            raise MPSArgumentError(_WHO, f"{_OPTION} {where}:{name}", _RULE, type(value).__name__)
        found = dict(value)
        for key, make in found.items():
            if not isinstance(key, str) or not callable(make):
                got = f"{key!r}: {type(make).__name__}"
                raise MPSArgumentError(_WHO, f"{_OPTION} {where}:{name}", _RULE, got)
    return found


def _called(text: str, make: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A function of a mapping whose exceptions name the option; those of Python's are the archive's to tell."""
    from openmps.cli.own_code import failed

    def call(values: dict[str, Any]) -> Any:
        try:
            return make(values)
        except (SystemExit, GeneratorExit, OSError) as fault:
            raise failed(_OPTION, text, fault, "must make objects") from fault

    return call


def _others(where: str, module: ModuleType) -> str:
    """The mappings that a module has under other names."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, Mapping) and value and all(map(callable, value.values()))
    ]
    return f", or give {' or '.join(f'{where}:{name}' for name in names[:8])}" if names else ""
