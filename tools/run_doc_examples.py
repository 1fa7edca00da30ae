"""Runs the Python examples of the documentation.

usage: run_doc_examples.py [FILE.md ...]

Without arguments: README.md and every docs/**/*.md. The ```python blocks of one file run in order and share their
names; each file starts afresh in an empty folder. A block right after the line `<!-- not run -->` is skipped. A failure
is printed as FILE:LINE with its traceback, the rest of that file is left out, and the exit status is 1.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import textwrap
import time
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)")
NOT_RUN = "<!-- not run -->"


@dataclass(frozen=True)
class Example:
    line: int
    code: str
    skipped: bool


def examples_of(text: str) -> list[Example]:
    """The ```python blocks of a Markdown text; `line` is the number of the block's first line of code."""
    found: list[Example] = []
    lines = text.splitlines()
    index, before = 0, ""
    while index < len(lines):
        opening = FENCE.match(lines[index])
        if opening is None:
            before = lines[index].strip() or before
            index += 1
            continue
        start = index + 1
        end = _end_of_block(lines, start, opening["fence"])
        if opening["language"] in ("python", "py"):
            code = textwrap.dedent("\n".join(lines[start:end]))
            found.append(Example(start + 1, code, skipped=before == NOT_RUN))
        index, before = end + 1, ""
    return found


def _end_of_block(lines: list[str], start: int, fence: str) -> int:
    closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
    return next((n for n in range(start, len(lines)) if closing.match(lines[n])), len(lines))


def run_file(path: Path, folder: Path | None = None) -> tuple[int, int, str | None]:
    """How many examples of a file ran and how many were skipped, and the report of the first that failed.

    They run in `folder`, or in an empty one that is removed afterwards.
    """
    name = os.path.relpath(path, ROOT)
    module = types.ModuleType("__main__")
    ran = skipped = 0
    with tempfile.TemporaryDirectory() as own, contextlib.chdir(folder or own), _as_main(module):
        for example in examples_of(path.read_text(encoding="utf-8")):
            if example.skipped:
                skipped += 1
                continue
            failure = _run(example, path, name, module)
            if failure is not None:
                return ran, skipped, failure
            ran += 1
    return ran, skipped, None


def _run(example: Example, path: Path, name: str, module: types.ModuleType) -> str | None:
    output = io.StringIO()
    try:
        # Blank lines in front give every line of the block its number in the Markdown file.
        code = compile("\n" * (example.line - 1) + example.code, str(path), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(output):
            exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        line = _line_of(error, path) or example.line
        return f"{name}:{line}: example failed\n{output.getvalue()}{traceback.format_exc()}"
    return None


def _line_of(error: BaseException, path: Path) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


@contextlib.contextmanager
def _as_main(module: types.ModuleType):
    own = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = own


def main(arguments: list[str]) -> int:
    paths = [Path(a).resolve() for a in arguments] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    total = left_out = failed = 0
    began = time.perf_counter()
    for path in paths:
        if not path.is_file():
            print(f"{os.path.relpath(path, ROOT)}: no such file")
            failed += 1
            continue
        ran, skipped, failure = run_file(path)
        total, left_out = total + ran, left_out + skipped
        if failure is not None:
            failed += 1
            print(failure)
    seconds = time.perf_counter() - began
    print(f"{total} examples of {len(paths)} files ran, {left_out} marked not run, {failed} failed in {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
