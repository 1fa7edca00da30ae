"""Two threads in the place of two processes, in every order that their steps on the files of a folder can have.

Each stops before a step until the other stops, too, waits for what it says, or has ended; then one goes on. What they
have to say to one another goes by `Talking`, a group of openmps without the engine; sums are each one's own.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from torch import Tensor

from openmps.cli import main
from openmps.distributed import Group
from openmps.distributed import launch as launching
from openmps.distributed.launch import Place
from openmps.errors import MPSProcessError
from openmps.ops.update.collectives import Processes, alone
from openmps.runtime.devices import mtl_device
from openmps.training import DataSplit

# Typer sets it and deletes it again around a command line; threads in the place of processes would do so to each other.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

COUNT = 2
STEPS = ("open", "replace", "rename", "mkdir", "rmdir", "unlink", "listdir", "scandir", "stat", "truncate", "access")
"""Calls of the operating system, by their names in `os`."""
PATIENCE = 60
"""Seconds after which an order hangs."""
_RUNNING, _STEP, _TALK, _ENDED = range(4)


class Turns:
    """One order: ``choices`` says which of those that stand before a step goes on, the first one behind its end."""

    def __init__(self, folder: Path, choices: Sequence[int] = ()) -> None:
        self.taken: list[tuple[int, int]] = []
        """What was chosen, and of how many, wherever there was a choice."""
        self.steps: list[list[str]] = [[] for _ in range(COUNT)]
        """The steps of each."""
        self.folder, self._choices = str(folder), list(choices)
        self._change = threading.Condition()
        self._states = [_RUNNING] * COUNT
        self._said: list[Any] = [None] * COUNT
        self._heard: list[Any] = []
        self._ranks: dict[int, int] = {}
        self._stops = [False] * COUNT

    def run(self, work: Callable[[int], Any], *, meets: bool = False) -> list[Any]:
        """What ``work`` gives for each rank, or the error that it raised; with ``meets`` it calls `meet` first."""
        found: list[Any] = [None] * COUNT

        def one(rank: int) -> None:
            self._ranks[threading.get_ident()] = rank
            try:
                if not meets:
                    self.meet()
                found[rank] = work(rank)
            except BaseException as error:
                found[rank] = error
            finally:
                with self._change:
                    self._enter(rank, _ENDED)

        with self._watched():
            threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(COUNT)]
            for each in threads:
                each.start()
            for each in threads:
                each.join(PATIENCE)
        assert self._states == [_ENDED] * COUNT, f"hangs behind {self.steps}"
        return found

    def meet(self) -> int:
        """The rank of the thread that asks; its steps count from here on."""
        rank = self._ranks[threading.get_ident()]
        self._stops[rank] = True
        return rank

    def talk(self, value: Any) -> list[Any]:
        """What each says."""
        rank = self._ranks[threading.get_ident()]
        with self._change:
            self._said[rank] = value
            self._enter(rank, _TALK)
            self._change.wait_for(lambda: self._states[rank] == _RUNNING or _ENDED in self._states, PATIENCE)
            if self._states[rank] != _RUNNING:
                raise MPSProcessError(f"process {rank}", "the other one", "must answer", "an end")
            return list(self._heard)

    def _step(self, name: str, path: Any) -> None:
        rank = self._ranks.get(threading.get_ident())  # None of a thread that computes
        is_counted = rank is not None and self._stops[rank] and not isinstance(path, int)
        if rank is None or not is_counted or not os.path.abspath(os.fsdecode(path)).startswith(self.folder):
            return
        with self._change:
            self.steps[rank].append(f"{name} {os.path.relpath(os.fsdecode(path), self.folder)}")
            self._enter(rank, _STEP)
            self._change.wait_for(lambda: self._states[rank] == _RUNNING, PATIENCE)

    def _enter(self, rank: int, state: int) -> None:
        """Take note of where one stands, and let one go on where all stand."""
        self._states[rank] = state
        waiting = [each for each, found in enumerate(self._states) if found == _STEP]
        if _RUNNING not in self._states and waiting:
            choice = self._choices[len(self.taken)] if len(self.taken) < len(self._choices) else 0
            if len(waiting) > 1:
                self.taken.append((choice, len(waiting)))
            self._states[waiting[choice if len(waiting) > 1 else 0]] = _RUNNING
        elif self._states == [_TALK] * COUNT:
            self._heard, self._states = list(self._said), [_RUNNING] * COUNT
        self._change.notify_all()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        def watched(name: str, original: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if "dir_fd" not in options:
                    self._step(name, arguments[0] if arguments else ".")
                return original(*arguments, **options)

            return call

        with ExitStack() as stack:
            for name in STEPS:
                stack.enter_context(mock.patch.object(os, name, watched(name, getattr(os, name))))
            for module in (io, builtins):
                stack.enter_context(mock.patch.object(module, "open", watched("open", open)))
            yield


def every_order(folder: Callable[[], Path], work: Callable[[Turns], object], most: int = 500) -> int:
    """Do ``work`` in a new folder for each order, and return how many there are; raises with what it asserts."""
    choices: list[int] | None = []
    count = 0
    while choices is not None:
        assert count < most, f"there are more than {most} orders"
        turns = Turns(folder(), choices)
        work(turns)
        count += 1
        choices = _next(turns.taken)
    return count


def _next(taken: Sequence[tuple[int, int]]) -> list[int] | None:
    """The choices of the order behind one; None behind the last."""
    for place in reversed(range(len(taken))):
        choice, count = taken[place]
        if choice + 1 < count:
            return [*(each for each, _ in taken[:place]), choice + 1]
    return None


class _Own(Processes):
    """Sums of one process."""

    def start_sum(self, *arguments: Any) -> Tensor:
        with alone():
            return super().start_sum(*arguments)

    def gathered(self, *arguments: Any) -> Tensor:
        with alone():
            return super().gathered(*arguments)

    def all_agree(self, *arguments: Any) -> Tensor:
        with alone():
            return super().all_agree(*arguments)


class Talking(Group):
    """One of the threads of an order."""

    def __init__(self, turns: Turns, restarts: int = 0) -> None:
        rank = turns.meet()
        self._turns, self._device, self._shards = turns, mtl_device("cpu"), None
        self._place = Place(rank, COUNT, rank, restarts, restarts)
        self._processes = _Own(None, rank, COUNT, in_order=False, explain=lambda error: error)

    def gather(self, value: Any) -> list[Any]:
        return self._turns.talk(value)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return self._turns.talk(value)[source]

    def say_why(self, error: BaseException) -> None: ...

    def leave(self) -> None: ...


def together(turns: Turns, monkeypatch: pytest.MonkeyPatch, *arguments: object, restarts: int = 0) -> list[Any]:
    """How `openmps train` ends in each of two processes."""
    command = ["train", "--device", "cpu", *map(str, arguments)]
    with monkeypatch.context() as patch:
        patch.setattr(launching, "is_launched", lambda: True)
        patch.setattr(Group, "join", lambda *_, **__: Talking(turns, restarts))
        return turns.run(lambda rank: main(command), meets=True)


def save_idx(folder: Path, data: DataSplit) -> None:
    """Grey images as MNIST-style files."""
    folder.mkdir()
    for name, part in (("train", data.training), ("t10k", data.test)):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in part.images.shape[:3])
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + part.images.tobytes())
        header, labels = b"\0\0\x08\x01" + len(part).to_bytes(4, "big"), part.labels.astype(np.uint8)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
