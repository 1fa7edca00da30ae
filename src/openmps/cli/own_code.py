"""Modules of a user's own that options of the command name, and whose code they run: imports, and what they raise."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from openmps.errors import MPSArgumentError, MPSError

_WHO = "openmps"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def parted(option: str, text: str, rule: str, default: str = "") -> tuple[str, str]:
    """Module and name of ``package.module:NAME``; raises where they are none, and without a name and a default."""
    where, sign, name = text.partition(":")
    if not _NAME.fullmatch(where) or ((sign or not default) and not _NAME.fullmatch(name)):
        is_path = where.endswith(".py") or os.sep in where
        remedy = "Give the module's name as import has it, not the path of its file" if is_path else ""
        raise MPSArgumentError(_WHO, option, rule, repr(text), remedy)
    return where, name or default


def has_form(text: str) -> bool:
    """Whether it says ``package.module:name``."""
    where, _, name = text.partition(":")
    return bool(_NAME.fullmatch(where) and _NAME.fullmatch(name))


def member(module: ModuleType, name: str, option: str, remedy: str) -> Any:
    """What a module has under a name, which may have dots."""
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise MPSArgumentError(_WHO, option, f"must have {name!r} in {_file(module)}", "none", remedy)
        value = getattr(value, part)
    return value


@contextmanager
def told(option: str, where: str, rule: str) -> Generator[None]:
    """Put into a sentence whatever a user's own code raises within, the end of the process with it."""
    try:
        yield
    except (KeyboardInterrupt, MPSError):
        raise
    except BaseException as fault:
        raise failed(option, where, fault, rule) from fault


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__


def imported(option: str, name: str, needed: str) -> ModuleType:
    """A module, which is searched for in the current folder first; what ``needed`` imports is never found there."""
    importlib.import_module(needed)
    with _current_folder_first():
        try:
            return importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # whatever a module raises
            if isinstance(fault, ModuleNotFoundError) and fault.name and f"{name}.".startswith(f"{fault.name}."):
                raise _not_found(option, name, fault) from fault
            raise failed(option, name, fault) from fault


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


def _not_found(option: str, name: str, fault: ModuleNotFoundError) -> MPSArgumentError:
    rule = f"must be a module that can be imported: there is no {fault.name!r}"
    package, _, _ = str(fault.name).rpartition(".")
    parent = getattr(sys.modules.get(package), "__file__", None) if package else None
    if parent is not None:
        return MPSArgumentError(_WHO, f"{option} {name}", rule, None, f"Searched was the package of {parent}")
    remedy = f"Searched were the current folder, {os.getcwd()}, then PYTHONPATH and the installed packages"
    return MPSArgumentError(_WHO, f"{option} {name}", rule, None, remedy)


def failed(
    option: str, name: str, fault: BaseException, rule: str = "must be a module that can be imported"
) -> MPSArgumentError:
    """The error of a module that raises, while it is imported unless said, with the last line of it that ran."""
    if isinstance(fault, SyntaxError):
        where = f"{fault.filename}, line {fault.lineno}"
    else:
        frames = [each for each in traceback.extract_tb(fault.__traceback__) if not _is_import(each.filename)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    got = f"{type(fault).__name__}: {fault}" + (f" ({where})" if where else "")
    return MPSArgumentError(_WHO, f"{option} {name}", rule, got)


def _is_import(file: str) -> bool:
    """Whether a line is of Python's import or of the command."""
    own = Path(__file__).parent, Path(importlib.__file__).parent
    return file.startswith("<frozen ") or Path(file).parent in own
