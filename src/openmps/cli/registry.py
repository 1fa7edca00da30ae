"""``--registry``: modules of the user's own that make again what archives hold of classes that are not openmps'."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.archives import is_onnx
from openmps.cli.options import RUNS
from openmps.errors import MPSArgumentError, MPSError

if TYPE_CHECKING:
    from openmps.formats.archive import Registry

_WHO = "openmps"
_OPTION = "--registry"
_DEFAULT = "registry"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
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
    return is_run or is_onnx(path) or path.suffix.lower() in (*SUFFIXES, *RAW_SUFFIXES)


def _mapping(text: str) -> Registry:
    """The mapping that ``package.module:NAME`` says."""
    where, sign, name = text.partition(":")
    if not _MODULE.fullmatch(where) or (sign and not _MODULE.fullmatch(name)):
        is_path = where.endswith(".py") or os.sep in where
        remedy = "Give the module's name as import has it, not the path of its file" if is_path else ""
        raise MPSArgumentError(_WHO, _OPTION, "must be package.module or package.module:NAME", repr(text), remedy)
    module, name = _imported(where), name or _DEFAULT
    with _told(where, "must have a mapping that can be read"):
        value: Any = module
        for part in name.split("."):
            if not hasattr(value, part):
                rule = f"must have {name!r} in {_file(module)}"
                remedy = f"{_RULE.replace('must map', 'Map there')}{_others(where, module)}"
                raise MPSArgumentError(_WHO, f"{_OPTION} {text}", rule, "none", remedy)
            value = getattr(value, part)
        if not isinstance(value, Mapping):
            raise MPSArgumentError(_WHO, f"{_OPTION} {where}:{name}", _RULE, type(value).__name__)
        found = dict(value)
        for key, make in found.items():
            if not isinstance(key, str) or not callable(make):
                got = f"{key!r}: {type(make).__name__}"
                raise MPSArgumentError(_WHO, f"{_OPTION} {where}:{name}", _RULE, got)
    return found


@contextmanager
def _told(where: str, rule: str) -> Generator[None]:
    """Put into a sentence whatever a user's own code raises within, the end of the process with it."""
    try:
        yield
    except (KeyboardInterrupt, MPSError):
        raise
    except BaseException as fault:
        raise _failed(where, fault, rule) from fault


def _called(text: str, make: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A function of a mapping whose exceptions name the option; those of Python's are the archive's to tell."""

    def call(values: dict[str, Any]) -> Any:
        try:
            return make(values)
        except (SystemExit, GeneratorExit, OSError) as fault:
            raise _failed(text, fault, "must make objects") from fault

    return call


def _others(where: str, module: ModuleType) -> str:
    """The mappings that a module has under other names."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, Mapping) and value and all(map(callable, value.values()))
    ]
    return f", or give {' or '.join(f'{where}:{name}' for name in names[:8])}" if names else ""


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__


def _imported(name: str) -> ModuleType:
    """A module, which is searched for in the current folder first."""
    importlib.import_module("openmps.formats.archive")  # what that imports must not come from the current folder
    with _current_folder_first():
        try:
            return importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # whatever a module raises
            if isinstance(fault, ModuleNotFoundError) and fault.name and f"{name}.".startswith(f"{fault.name}."):
                raise _not_found(name, fault) from fault
            raise _failed(name, fault) from fault


@contextmanager
def _current_folder_first() -> Generator[None]:
    """While a module of the user's is imported, and not while openmps imports what it needs itself."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:  # a module may change the path
            sys.path.remove(here)


def _not_found(name: str, fault: ModuleNotFoundError) -> MPSArgumentError:
    rule = f"must be a module that can be imported: there is no {fault.name!r}"
    package, _, _ = str(fault.name).rpartition(".")
    parent = getattr(sys.modules.get(package), "__file__", None) if package else None
    if parent is not None:
        return MPSArgumentError(_WHO, f"{_OPTION} {name}", rule, None, f"Searched was the package of {parent}")
    remedy = f"Searched were the current folder, {os.getcwd()}, then PYTHONPATH and the installed packages"
    return MPSArgumentError(_WHO, f"{_OPTION} {name}", rule, None, remedy)


def _failed(name: str, fault: BaseException, rule: str = "must be a module that can be imported") -> MPSArgumentError:
    """The error of a module that raises, while it is imported unless said, with the last line of it that ran."""
    if isinstance(fault, SyntaxError):
        where = f"{fault.filename}, line {fault.lineno}"
    else:
        frames = [each for each in traceback.extract_tb(fault.__traceback__) if not _is_import(each.filename)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    got = f"{type(fault).__name__}: {fault}" + (f" ({where})" if where else "")
    return MPSArgumentError(_WHO, f"{_OPTION} {name}", rule, got)


def _is_import(file: str) -> bool:
    """Whether a line is of Python's import or of this module."""
    return file.startswith("<frozen ") or file == __file__ or Path(file) == Path(importlib.__file__)
