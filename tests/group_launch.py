"""Processes that meet as `torchrun` would have them meet: forks of one that has imported openmps, for speed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import forked
import torch.distributed as dist


class Ended(NamedTuple):
    """How a process ended."""

    status: int | None
    out: str
    error: str


class Started(NamedTuple):
    """A process that runs, and the files that it writes to."""

    process: forked.Process
    out: Path
    error: Path


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kept_store() -> dist.TCPStore:
    """A store that outlives the processes, as a launcher may keep it when it starts them anew."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def start(
    count: int, command: Sequence[str], *, store: dist.TCPStore | None = None, restarts: int = 0
) -> list[Started]:
    """The processes of a group; those of one start after another may meet at one ``store``."""
    port, folder = str(free_port() if store is None else store.port), Path(tempfile.mkdtemp())
    started: list[Started] = []
    for rank in range(count):
        said = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        said |= {} if store is None else {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        files = folder / f"{rank}.out", folder / f"{rank}.err"
        with files[0].open("w") as out, files[1].open("w") as error:
            process = forked.Process(*command, env=os.environ | said, stdout=out, stderr=error, has_openmps=True)
        started.append(Started(process, *files))
    return started


def finish(started: Sequence[Started], timeout: float = 200) -> list[Ended]:
    """How all have ended; those that hang, also for a machine that is busy, ``timeout`` seconds, are killed."""
    end, late = time.monotonic() + timeout, list[Started]()
    for each in started:
        try:
            each.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.wait()
            late.append(each)
    found = [(each.out.read_text(), each.error.read_text()) for each in started]
    shutil.rmtree(started[0].out.parent)
    words = ["\nkilled by the test: it did not end" if each in late else "" for each in started]
    return [
        Ended(each.process.status, out, error + word)
        for each, (out, error), word in zip(started, found, words, strict=True)
    ]
