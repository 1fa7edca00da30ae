"""Public members that no test runs: methods and properties of every public class, by line coverage.

    coverage run -m pytest -q tests && python tools/uncalled_members.py

A member counts as run when a line of its body was. Plain attributes have no body: they count as used when a test names
them. Prints what is left, one member a line; exits with 1 if there is any.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import coverage

import openmps
from openmps.checks import is_writable

ROOT = Path(__file__).resolve().parent.parent
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


def functions(member: Any) -> list[Any]:
    """The Python functions behind a member of a class: one, or the getter and setter of a property."""
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset if is_writable(member) else None) if each is not None]
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return [member] if inspect.isfunction(member) else []


def body(function: Any) -> set[int]:
    """The lines of a function's body."""
    code = inspect.unwrap(function).__code__
    return {line for _, line in dis.findlinestarts(code) if line is not None and line > code.co_firstlineno}


def uncalled(data: coverage.CoverageData) -> list[str]:
    """Members without a line that ran, and attributes that no test names."""
    found = []
    for name in sorted(openmps.__all__):
        kind = getattr(openmps, name)
        if not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
            continue
        for key, member in vars(kind).items():
            if key.startswith("_") and key != "__init__":
                continue
            parts = functions(member)
            for part in parts:
                code = inspect.unwrap(part).__code__
                lines = body(part)
                ran = set(data.lines(code.co_filename) or ())
                if lines and not lines & ran and str(ROOT / "src") in code.co_filename:
                    setter = " (setter)" if isinstance(member, property) and part is member.fset else ""
                    found.append(f"{name}.{key}{setter}")
        for key in vars(kind).get("__annotations__", {}):
            if not key.startswith("_") and key not in vars(kind) and key not in TESTS:
                found.append(f"{name}.{key} (attribute)")
    return found


def main() -> int:
    """Print the members; 1 if there are any."""
    data = coverage.CoverageData(os.environ.get("COVERAGE_FILE"))
    data.read()
    if not data.measured_files():
        print(f"{data.data_filename()} holds no measurements: run the suite under coverage first")
        return 2
    left = uncalled(data)
    print("\n".join(left))
    print(f"{len(left)} public member(s) that no test runs")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
