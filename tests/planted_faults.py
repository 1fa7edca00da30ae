"""Jobs that do what tools/inject_faults.py must notice."""

from __future__ import annotations

import os
from pathlib import Path

from faults.job import Job
from faults.strike import reach


def _file(folder: Path) -> Path:
    path = folder / "file"
    path.write_bytes(b"old")
    return path


def _overwritten(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"new and longer")


def _left(path: Path) -> None:
    temporary = path.parent / ".openmps-0.tmp"
    temporary.write_bytes(b"new")
    os.replace(temporary, path)


def _kept_silent(path: Path) -> None:
    try:
        reach("callback")
    except Exception:
        return


def _broken(path: Path) -> str:
    if (path.parent / "begun").exists():
        return "something else"
    (path.parent / "begun").touch()
    reach("callback")
    return "made"


def _content(path: Path) -> bytes:
    return path.read_bytes()


JOBS = (
    Job("raises as it is", _file, lambda path: os.listdir(path.parent) and None, _content),
    Job("overwrites", _file, _overwritten, lambda path: None, _content),
    Job("leaves a file", _file, _left, lambda path: None, _content),
    Job("says nothing", _file, _kept_silent, _content),
    Job("does not go on", _file, _broken, _content),
)
