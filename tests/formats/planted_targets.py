"""Loaders that misbehave when their file was changed, to see that tools/fuzz_files.py notices."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fuzzing.mutations import inserted
from fuzzing.target import Target

from openmps.errors import MPSFileError

HONEST = b"honest " * 40


def _refuse(folder: Path) -> None:
    raise MPSFileError("load", str(folder), "must be honest")


def _raise(folder: Path) -> None:
    raise KeyError("not one of ours")


def _write(folder: Path) -> None:
    (folder / ".." / "escaped").write_bytes(b"x")


def _run(folder: Path) -> None:
    os.system("true")


def _import(folder: Path) -> None:
    sys.modules.pop("colorsys", None)
    __import__("colorsys")


def _evaluate(folder: Path) -> None:
    eval("1 + 1")


def _hold(folder: Path) -> None:
    bytearray(8 << 20)


def _hold_tensor(folder: Path) -> None:
    torch.ones(256 << 18)


PLANTED: dict[str, Any] = {
    "refuses": _refuse,
    "loads the original": lambda folder: HONEST,
    "loads something else": lambda folder: b"else",
    "raises an error of another kind": _raise,
    "writes outside": _write,
    "reads outside": lambda folder: Path("/etc/passwd").read_bytes(),
    "runs a program": _run,
    "imports": _import,
    "evaluates": _evaluate,
    "holds memory": _hold,
    "holds a tensor": _hold_tensor,
    "is slow": lambda folder: time.sleep(1.5),
    "hangs": lambda folder: time.sleep(600),
    "crashes": lambda folder: os.kill(os.getpid(), signal.SIGSEGV),
}


def _planted(name: str, misbehave: Any) -> Target:
    def load(folder: Path) -> Any:
        data = (folder / "file").read_bytes()
        return data if data == HONEST else misbehave(folder)

    return Target(
        name=name,
        write=lambda folder: (folder / "file").write_bytes(HONEST),
        load=load,
        says=lambda loaded: loaded or b"",
        is_as_written=lambda folder, loaded: loaded is not None,
        knowing=(),
        blind=(inserted,),
    )


TARGETS = tuple(_planted(name, misbehave) for name, misbehave in PLANTED.items())
