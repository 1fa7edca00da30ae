"""Processes that meet as `torchrun` would have them meet, without its own start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[0]


class Ended(NamedTuple):
    """How a process ended."""

    status: int
    out: str
    error: str


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def start(
    count: int,
    command: Sequence[str],
    *,
    ranks: Sequence[int] | None = None,
    each: Mapping[int, Mapping[str, str]] | None = None,
    folder: Path | None = None,
) -> list[subprocess.Popen[str]]:
    """Processes of a group of ``count``, those of ``ranks`` only; ``each`` has variables of one of them."""
    port = str(free_port())
    started: list[subprocess.Popen[str]] = []
    for rank in range(count) if ranks is None else ranks:
        said = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(each or {}).get(rank, {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *command], env=environment(**said), cwd=folder, **pipes))
    return started


def finish(started: Sequence[subprocess.Popen[str]], timeout: float = 90) -> list[Ended]:
    ended: list[Ended] = []
    for process in started:
        try:
            out, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for each in started:
                each.kill()
            out, error = process.communicate()
            error += "\nkilled by the test: it did not end"
        ended.append(Ended(process.returncode, out, error))
    return ended
