"""The engine's threads fall asleep between loops while other processes want their cores, and stay awake afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from openmps.metal import awake_threads as module
from openmps.metal import patience
from openmps.metal.awake_threads import AwakeThreads
from openmps.runtime.devices import mtl_device


class Machine:
    """A clock, and what is busy beside this process: `others` cores."""

    def __init__(self) -> None:
        self.at = self.taken = self.others = 0.0
        self.looks = 0

    def launch(self, seconds: float = 0.1) -> None:
        self.at += seconds
        self.taken += seconds * self.others

    def now(self) -> module._Moment:
        self.looks += 1
        return module._Moment(self.at, self.taken)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(module, "_now", found.now)
    monkeypatch.setattr(module.time, "monotonic", lambda: found.at)
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setattr(patience, "cores", lambda: 2)
    return found


@pytest.fixture
def threads() -> Iterator[AwakeThreads]:
    found = AwakeThreads()
    yield found
    found.release()


def test_threads_sleep_while_others_are_busy(machine: Machine, threads: AwakeThreads) -> None:
    for others, sleeps in ((0.2, False), (0.5, True), (0.2, True), (0.1, False), (1.0, True)):
        machine.others = others
        for _ in range(3):
            threads.watch(machine.launch, 2)
        assert (threads.holder is not None) is sleeps
    holder = threads.holder
    threads.release()
    assert holder is not None
    assert not holder.is_alive()


def test_nothing_is_seen_where_threads_have_cores_to_spare(machine: Machine, threads: AwakeThreads) -> None:
    machine.others = 2.0
    for _ in range(9):
        threads.watch(machine.launch, 1)
    assert threads.holder is None
    assert machine.at == pytest.approx(0.9)


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_small_launches_are_looked_at_together(
    machine: Machine, threads: AwakeThreads, monkeypatch: pytest.MonkeyPatch, others: float
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 1.0)
    machine.others = others
    for _ in range(6000):
        threads.watch(lambda: machine.launch(4e-5), 2)
    assert machine.looks == 2
    assert (threads.holder is not None) is (others == 1.0)


def test_a_fault_of_a_launch_is_raised(machine: Machine, threads: AwakeThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.watch(lambda: 1 / 0, 2)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not say how busy its cores are")
def test_this_process_is_none_of_the_others() -> None:
    before, value = module._now(), 0
    assert before is not None
    while (after := module._now()) is not None and after.at - before.at < 0.3:
        value += sum(range(1000))
    assert after is not None
    # Ticks of two moments are counted from below; all cores but this one may be busy.
    assert -0.05 <= after.others - before.others <= 0.3 * (patience.cores() - 1) + 0.35


def test_queues_watch_their_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = list[int](), torch.get_num_threads()

    def watch(_: AwakeThreads, launch: Callable[[], object], threads: int) -> None:
        seen.append(threads)
        launch()

    monkeypatch.setattr(AwakeThreads, "watch", watch)
    queue, ran = mtl_device("cpu").new_command_queue(), list[int]()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            buffer = queue.command_buffer()
            buffer.record("work", lambda: ran.append(threading.get_ident()))
            buffer.commit()
            buffer.wait_until_completed()
    finally:
        torch.set_num_threads(before)
    assert (seen, len(ran)) == ([2], 2)
