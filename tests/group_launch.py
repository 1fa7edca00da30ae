"""Processes that meet as `torchrun` would have them meet: forks of one that has imported everything, for speed."""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist

FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["group_worker", "group_faults", "openmps.cli.training", "openmps.training.pictures", "matplotlib.figure"]


class Ended(NamedTuple):
    """How a process ended."""

    status: int | None
    out: str
    error: str


class Started(NamedTuple):
    """A process that runs, and the files that it writes to."""

    process: Any
    out: Path
    error: Path


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(command: Sequence[str], variables: Mapping[str, str], out: str, error: str) -> None:
    """The program, or the module behind ``-m``, in this process, as if it had been started for it alone."""
    for number, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.update(variables)
    torch.set_num_threads(1)
    is_module = command[0] == "-m"
    sys.argv = [*command[is_module:]]
    (runpy.run_module if is_module else runpy.run_path)(sys.argv[0], run_name="__main__")


def kept_store() -> dist.TCPStore:
    """A store that outlives the processes, as a launcher may keep it when it starts them anew."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@functools.cache
def _preload() -> None:
    """Start the process that forks. Before Python 3.13 it has no other path than the environment's."""
    FORKS.set_forkserver_preload(PRELOADED)
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        ensure_running()


def start(
    count: int, command: Sequence[str], *, store: dist.TCPStore | None = None, restarts: int = 0
) -> list[Started]:
    """The processes of a group; those of one start after another may meet at one ``store``."""
    _preload()
    port, folder = str(free_port() if store is None else store.port), Path(tempfile.mkdtemp())
    started: list[Started] = []
    for rank in range(count):
        said = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        said |= {} if store is None else {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        files = folder / f"{rank}.out", folder / f"{rank}.err"
        process = FORKS.Process(target=_run, args=(command, said, *map(str, files)), daemon=True)
        process.start()
        started.append(Started(process, *files))
    return started


def finish(started: Sequence[Started], timeout: float = 200) -> list[Ended]:
    """How all have ended; those that hang, also for a machine that is busy, ``timeout`` seconds, are killed."""
    end = time.monotonic() + timeout
    for each in started:
        each.process.join(max(0.0, end - time.monotonic()))
    late = [each for each in started if each.process.is_alive()]
    for each in late:
        each.process.kill()
        each.process.join()
    found = [(each.out.read_text(), each.error.read_text()) for each in started]
    shutil.rmtree(started[0].out.parent)
    words = ["\nkilled by the test: it did not end" if each in late else "" for each in started]
    return [
        Ended(each.process.exitcode, out, error + word)
        for each, (out, error), word in zip(started, found, words, strict=True)
    ]
