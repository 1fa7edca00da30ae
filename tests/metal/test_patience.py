"""Which thread launches on the CPU: the one that waits, where the engine's threads of two would not find cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from openmps.metal import patience, worker_team
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue
from openmps.metal.worker_team import give_team_back
from openmps.runtime.devices import mtl_device

HERE = threading.get_ident
LONG = 60.0


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def queue() -> MTLCommandQueue:
    return mtl_device("cpu").new_command_queue(2)


def committed(queue: MTLCommandQueue, ran: list[int], called: list[int] | None = None) -> MTLCommandBuffer:
    """A buffer whose work notes its thread, and so does its handler, if there is to be one."""
    buffer = queue.command_buffer()
    buffer.record("work", lambda: ran.append(HERE()))
    if called is not None:
        buffer.add_completed_handler(lambda _: called.append(HERE()))
    buffer.commit()
    return buffer


def test_the_waiting_thread_launches_everything(queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the queue's room is waited for, and what stands before."""
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    ran = list[int]()
    for _ in range(30):
        buffer = committed(queue, ran)
    buffer.wait_until_completed()
    assert ran == [HERE()] * 30


def test_handlers_stay_the_worker_s(queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it calls one it launches, too, what is waited for then."""
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    ran, called = list[int](), list[int]()
    for _ in range(30):
        buffer = committed(queue, ran, called)
    buffer.wait_until_completed()
    assert ran[0] == HERE()
    assert (len(ran), len(called)) == (30, 30)
    assert HERE() not in called


def test_the_worker_launches_what_nobody_waits_for(queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time at once, until a thread waits again soon after a commit."""
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", 0.5)
    ran, start = list[int](), time.monotonic()
    assert committed(queue, ran).recording.execution.finished.wait(LONG)
    assert time.monotonic() - start >= 0.5
    monkeypatch.setattr(patience, "_PATIENCE", 2 * LONG)
    assert committed(queue, ran).recording.execution.finished.wait(LONG)
    assert HERE() not in ran


def test_the_worker_launches_at_once_where_two_teams_fit(
    queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "cores", lambda: 3)
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    ran = list[int]()
    assert committed(queue, ran).recording.execution.finished.wait(LONG / 2)
    assert HERE() not in ran


def test_a_thread_that_cannot_launch_calls_the_worker(queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    ran = list[int]()
    buffer = committed(queue, ran)
    with torch.device("meta"):
        start = time.monotonic()
        buffer.wait_until_completed()
    assert time.monotonic() - start < LONG / 2
    assert HERE() not in ran


# --- records that the worker is not told of ---------------------------------------------------------------------------


@pytest.fixture
def left(queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> MTLCommandQueue:
    """A queue of one thread that has waited at once, and whose worker looks for what it was not told of."""
    torch.set_num_threads(1)
    for name, seconds in (("_PATIENCE", LONG), ("_AT_ONCE", LONG), ("_LIVELY", 2 * LONG)):
        monkeypatch.setattr(patience, name, seconds)
    kept = queue._executor._patience
    assert committed(queue, []).recording.execution.finished.wait(LONG)
    until = time.monotonic() + LONG
    while not kept.looks and time.monotonic() < until:
        time.sleep(1e-3)
    kept._waits_at_once = True
    return queue


def test_a_thread_that_waits_at_once_is_left_all_records(left: MTLCommandQueue) -> None:
    """Also those before the one that is waited for."""
    ran = list[int]()
    for _ in range(10):
        before, buffer = committed(left, ran), committed(left, ran)
        assert before.recording.execution.is_left
        buffer.wait_until_completed()
    assert ran == [HERE()] * 20


def test_the_worker_launches_what_was_left_in_vain(left: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told of the next one, as nobody came."""
    monkeypatch.setattr(patience, "_PATIENCE", 0.1)
    with torch.device("meta"):  # this thread cannot launch, so that the worker looks with the new patience from here on
        committed(left, []).wait_until_completed()
    ran, start = list[int](), time.monotonic()
    assert committed(left, ran).recording.execution.finished.wait(LONG)
    assert time.monotonic() - start >= 0.1
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    buffer = committed(left, ran)
    assert not buffer.recording.execution.is_left
    assert buffer.recording.execution.finished.wait(LONG / 2)
    assert HERE() not in ran


def left_while_it_leaves(queue: MTLCommandQueue, ran: list[int]) -> tuple[MTLCommandBuffer, MTLCommandBuffer]:
    """A record that the worker was told of and leaves, and one that is committed meanwhile."""
    kept, before = queue._executor._patience, committed(queue, ran)
    until = time.monotonic() + LONG
    while not kept.is_leaving and time.monotonic() < until:
        time.sleep(1e-3)
    kept._waits_at_once = True
    return before, committed(queue, ran)


def test_a_worker_that_leaves_a_record_is_not_told_of_the_next(
    queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be woken for each: by the time that it is back to look, the next is committed."""
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", LONG)
    monkeypatch.setattr(patience, "_LIVELY", 2 * LONG)
    ran = list[int]()
    _, buffer = left_while_it_leaves(queue, ran)
    assert queue._executor._inbox.empty()
    buffer.wait_until_completed()
    assert ran == [HERE()] * 2


def test_a_worker_looks_for_what_was_committed_while_it_left_a_record(
    queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "cores", lambda: 2)
    monkeypatch.setattr(patience, "_PATIENCE", 0.5)
    ran = list[int]()
    for buffer in left_while_it_leaves(queue, ran):
        assert buffer.recording.execution.finished.wait(LONG)
    assert HERE() not in ran


@pytest.mark.parametrize("how", ["scheduled", "handler", "end"])
def test_a_worker_is_told_where_no_thread_can_launch(how: str, left: MTLCommandQueue) -> None:
    """It sees to what was left before, too."""
    ran, start = list[int](), time.monotonic()
    buffer = committed(left, ran)
    if how == "scheduled":
        buffer.wait_until_scheduled()
    elif how == "handler":
        called = list[int]()
        committed(left, ran, called).recording.execution.finished.wait(LONG / 2)
        assert called
    else:
        left._executor.drain()
    assert buffer.recording.execution.finished.wait(LONG / 2)
    assert time.monotonic() - start < LONG / 2
    assert HERE() not in ran


@pytest.mark.parametrize(("cores", "is_given_back"), [(2, True), (3, False)])
def test_a_worker_that_rests_has_no_team_without_cores(
    queue: MTLCommandQueue, monkeypatch: pytest.MonkeyPatch, cores: int, is_given_back: bool
) -> None:
    """It gives back the one that it got by launching, from its own thread."""
    ran, gave, was_given = list[int](), list[int](), threading.Event()

    def pause(kind: int) -> int:
        gave.append(HERE())
        was_given.set()
        return kind

    monkeypatch.setattr(patience, "cores", lambda: cores)
    monkeypatch.setattr(worker_team, "_pause", lambda: pause)
    assert committed(queue, ran).recording.execution.finished.wait(LONG)
    assert was_given.wait(LONG if is_given_back else 0.1) is is_given_back
    committed(queue, ran).wait_until_completed()
    assert HERE() not in ran[:1]
    assert gave[:1] == (ran[:1] if is_given_back else [])


@pytest.mark.skipif(worker_team._pause() is None, reason="an OpenMP that gives no team back")
def test_a_team_that_was_given_back_is_made_again() -> None:
    found = list[float]()

    def work() -> None:
        for _ in range(2):
            found.append(float(torch.ones(1 << 20).add_(1).sum()))
            give_team_back()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [2.0**21] * 2


@pytest.mark.parametrize(("threads", "cores", "fits"), [(1, 1, True), (2, 2, False), (2, 3, True), (8, 14, False)])
def test_two_teams_share_the_first_thread_of_the_process(
    threads: int, cores: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "cores", lambda: cores)
    assert patience.two_teams_fit(threads) is fits
