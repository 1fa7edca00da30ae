"""Checks the types of the documentation's Python examples as an editor does: basedpyright at its basic level.

usage: check_doc_types.py [--sources] [FILE.md ...]

Without a file: README.md and every docs/**/*.md. The blocks of one file are checked as one module, as they are run
(tools/run_doc_examples.py); blocks that are not run are left out. An error is printed as FILE:LINE of the Markdown, and
the exit status is 1. With --sources the same process checks what pyproject.toml includes, at the level that it says:
most of what it learns of torch, NumPy and openmps it learns once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from run_doc_examples import ROOT, examples_of

BASIC = "# pyright: basic"
"""The level of a module, on its first line, where no page has an example."""


def module_of(text: str) -> str:
    """The examples of a Markdown text, each on the lines that it has there."""
    lines = [BASIC]
    for example in examples_of(text):
        if not example.skipped:
            lines += [""] * (example.line - 1 - len(lines)) + example.code.splitlines()
    return "\n".join(lines) + "\n"


def settings(folder: Path, *, sources: bool) -> dict[str, Any]:
    """Of the checker: those of the project, for the modules in a folder, and the project's own where asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["basedpyright"]
    own = [str(ROOT / each) for each in project["include"]] if sources else []
    return project | {"include": [str(folder), *own], "venvPath": str(ROOT), "extraPaths": [str(ROOT / "src")]}


def errors_of(paths: list[Path], *, sources: bool) -> list[str]:
    """What the type checker says of the examples of some files, and of the project's sources where asked for."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        chosen = json.dumps(settings(folder, sources=sources))
        (folder / "pyrightconfig.json").write_text(chosen, encoding="utf-8")
        origins = {str(folder / f"page{number}.py"): path for number, path in enumerate(paths)}
        for name, path in origins.items():
            Path(name).write_text(module_of(path.read_text(encoding="utf-8")), encoding="utf-8")
        checker = Path(sys.executable).with_name("basedpyright")
        command = [checker, "--project", folder, "--level", "error", "--outputjson"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(found.stdout)
    except ValueError:
        raise SystemExit(f"basedpyright failed:\n{found.stdout}{found.stderr}") from None
    count = report["summary"]["filesAnalyzed"]
    if count <= len(paths) if sources else count != len(paths):
        raise SystemExit(f"basedpyright looked at {count} files, {len(paths)} of them examples")
    return [
        f"{os.path.relpath(origins.get(each['file'], each['file']), ROOT)}:{each['range']['start']['line'] + 1}: "
        f"{each['message']} ({each.get('rule', 'syntax')})"
        for each in report["generalDiagnostics"]
    ]


def main(arguments: list[str]) -> int:
    sources = "--sources" in arguments
    named = [Path(each).resolve() for each in arguments if each != "--sources"]
    paths = named or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    errors = errors_of(paths, sources=sources)
    what = f"the {'sources and the ' if sources else ''}examples of {len(paths)} files"
    print("\n".join([*errors, f"{what} have {len(errors)} errors of types"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
