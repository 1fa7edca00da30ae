"""Checks the types of the documentation's Python examples as an editor does: basedpyright at its basic level.

usage: check_doc_types.py [FILE.md ...]

Without arguments: README.md and every docs/**/*.md. The blocks of one file are checked as one module, as they are run
(tools/run_doc_examples.py); blocks that are not run are left out. An error is printed as FILE:LINE of the Markdown, and
the exit status is 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from run_doc_examples import ROOT, examples_of


def module_of(text: str) -> str:
    """The examples of a Markdown text, each on the lines that it has there."""
    lines: list[str] = []
    for example in examples_of(text):
        if not example.skipped:
            lines += [""] * (example.line - 1 - len(lines)) + example.code.splitlines()
    return "\n".join(lines) + "\n"


def errors_of(paths: list[Path]) -> list[str]:
    """What the type checker says of the examples of some files."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "typeCheckingMode": "basic",
            "pythonVersion": "3.11",
            "extraPaths": [str(ROOT / "src")],
            "venvPath": str(ROOT),
            "venv": ".venv",
        }
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        origins = {f"page{number}.py": path for number, path in enumerate(paths)}
        for name, path in origins.items():
            (Path(folder) / name).write_text(module_of(path.read_text(encoding="utf-8")), encoding="utf-8")
        checker = Path(sys.executable).with_name("basedpyright")
        command = [checker, "--project", folder, "--level", "error", "--outputjson"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(found.stdout)
    except ValueError:
        raise SystemExit(f"basedpyright failed:\n{found.stdout}{found.stderr}") from None
    if report["summary"]["filesAnalyzed"] != len(paths):
        raise SystemExit(f"basedpyright looked at {report['summary']['filesAnalyzed']} of {len(paths)} files")
    return [
        f"{os.path.relpath(origins[Path(each['file']).name], ROOT)}:{each['range']['start']['line'] + 1}: "
        f"{each['message']} ({each.get('rule', 'syntax')})"
        for each in report["generalDiagnostics"]
    ]


def main(arguments: list[str]) -> int:
    paths = [Path(a).resolve() for a in arguments] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    errors = errors_of(paths)
    print("\n".join([*errors, f"the examples of {len(paths)} files have {len(errors)} errors of types"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
