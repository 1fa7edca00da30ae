"""What a launcher of processes says in the environment, and how the processes meet."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from openmps.errors import MPSProcessError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIX = "openmps"
_LEAST_PATIENCE = 20.0
"""Seconds for which a process waits for the others that was long in starting itself."""


class Place(NamedTuple):
    """Where this process is among those that were launched together."""

    rank: int
    size: int
    """How many there are."""
    local_rank: int
    restarts: int
    """How many times the launcher has started all processes anew."""
    most_restarts: int


def is_launched() -> bool:
    """Whether a launcher such as ``torchrun`` has started this process, with others or alone.

    A ``WORLD_SIZE`` of several says so, too: what is missing besides is told by `place_from_environment`.
    """
    is_whole = all(name in os.environ for name in _NEEDED)
    return is_whole or os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")


def place_from_environment() -> Place:
    """What the launcher says; `MPSProcessError` where it says something else than numbers, or nothing."""
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        remedy = "Start with torchrun --nproc-per-node N, or call init_process_group of torch.distributed first"
        raise MPSProcessError("Group.join", "environment", "must have RANK, WORLD_SIZE and the master", missing, remedy)
    rank, count = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < count:
        raise MPSProcessError("Group.join", "RANK", f"must be 0 to {count - 1}, below WORLD_SIZE", rank)
    restarts, most = _number("TORCHELASTIC_RESTART_COUNT", 0), _number("TORCHELASTIC_MAX_RESTARTS", 0)
    return Place(rank, count, _number("LOCAL_RANK", rank), restarts, most)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isascii() or not text.isdigit():
        raise MPSProcessError("Group.join", name, "must be a whole number from 0 on", repr(text))
    return int(text)


def meet(place: Place, backend: str, timeout: timedelta, device: Any, since: float) -> Any:
    """Wait for all processes and make them the engine's default group; the store that they share.

    The wait for them counts from ``since``: others that were started then have had that time, too.
    """
    try:
        now = time.monotonic()
        end = max(since + timeout.total_seconds(), now + min(timeout.total_seconds(), _LEAST_PATIENCE))
        if place.rank:
            _reach_first(end)
        left = timedelta(seconds=max(end - time.monotonic(), 1.0))
        store = next(rendezvous("env://", place.rank, place.size, timeout=left))[0]
        store.set_timeout(timeout)
        # torchrun may keep its store when it starts all anew: what an earlier attempt said there is not ours.
        shared = PrefixStore(f"{_PREFIX}/{place.restarts}", store)
        dist.init_process_group(
            backend, store=shared, rank=place.rank, world_size=place.size, timeout=timeout, device_id=device
        )
        # Shows who is missing: the call above does not wait for all on every backend.
        _arrive(shared, place)
    except (RuntimeError, ValueError, OSError) as error:
        rule = f"must all come within {timeout.total_seconds():g} s"
        remedy = "Start as many as WORLD_SIZE says, all with the same MASTER_ADDR and MASTER_PORT"
        got = str(error).partition("\n")[0]
        who = f"process {place.rank} of {place.size}"
        raise MPSProcessError(who, f"the {place.size} processes", rule, got, remedy) from error
    return shared


def _reach_first(end: float) -> None:
    """Wait until the first process can be reached: the engine would wait for it twice as long as it is told to."""
    place = os.environ["MASTER_ADDR"], _number("MASTER_PORT", 0)
    while True:
        try:
            socket.create_connection(place, timeout=max(end - time.monotonic(), 0.1)).close()
        except OSError as error:
            if time.monotonic() >= end:
                raise RuntimeError(f"no answer at {place[0]}:{place[1]}: {error.strerror or error}") from error
            time.sleep(0.1)
        else:
            return


def _arrive(store: Any, place: Place) -> None:
    store.set(f"here/{place.rank}", "")
    missing: list[int] = []
    for rank in range(place.size):
        try:
            store.wait([f"here/{rank}"])
        except RuntimeError:
            missing.append(rank)
            store.set_timeout(timedelta(milliseconds=10))
    if missing:
        raise RuntimeError(f"no process {', '.join(map(str, missing))}")
