"""What Linux has and other systems do not: a network trains without it. These are not tests on those systems."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import forked
import pytest
import torch

from openmps.metal import processor
from openmps.training.json_lines import JsonLines

ROOT = Path(__file__).resolve().parents[1]
WITHOUT = """
import contextlib, os, signal, sys, sysconfig, zoneinfo
import numpy, torch  # which ask for what their builds have
for name in ("psutil", "numba"):  # likewise, where an extra has brought them
    with contextlib.suppress(ImportError):
        __import__(name)

for name in ("fork", "forkpty", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "getuid", "geteuid"):
    delattr(os, name)
for name in ("HUP", "QUIT", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "CHLD", "KILL"):
    delattr(signal, f"SIG{name}")
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
sysconfig.get_config_vars()  # of the system that it is
sys.platform = "darwin"

def refuse_proc(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(arguments[0])

sys.addaudithook(refuse_proc)
from openmps.cli import main
from openmps.cpu import cpu_features

assert main(["train", "--network", "tiny", "--epochs", "1", "--run", "run", "--quiet"]) == 0
assert main(["summary", "run"]) == main(["evaluate", "run"]) == main(["doctor"]) == 0
assert cpu_features().maker == "" and cpu_features().name
import fcntl
"""


def test_a_network_trains_without_what_only_linux_has(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = forked.run("-c", WITHOUT, cwd=tmp_path, env=environment)
    # The last line shows that what was taken away was away.
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: import of fcntl halted"), done.stderr
    assert "nothing is wrong" in done.stdout and "accuracy" in done.stdout


def test_windows_says_how_much_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        @staticmethod
        def GetPhysicallyInstalledSystemMemory(kilobytes) -> int:
            kilobytes._obj.value = 3 << 20
            return 1

    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"kernel32": Kernel}[name])
    processor._memory_size.cache_clear()
    try:
        assert processor._memory_size(torch.device("cpu")) == 3 << 30
    finally:
        processor._memory_size.cache_clear()


def test_lines_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Windows writes a line feed as two characters unless it is told not to."""
    flags: list[int] = []
    opened = os.open
    monkeypatch.setattr("openmps.training.json_lines._AS_IT_IS", os.O_CLOEXEC)
    monkeypatch.setattr(os, "open", lambda path, flag, *more: flags.append(flag) or opened(path, flag, *more))
    JsonLines(tmp_path / "metrics.jsonl").append({"loss": 1.0})
    assert [flag for flag in flags if flag & os.O_APPEND] == [flag for flag in flags if flag & os.O_CLOEXEC] != []
