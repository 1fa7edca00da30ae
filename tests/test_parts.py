"""Parts of one computation by several threads: each is done once, and nothing goes on behind the call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import openmps
from openmps.cpu import parts
from openmps.cpu.parts import PartThreads, run_parts


class Fault(Exception):
    """What a part raises."""


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[PartThreads]:
    """Threads of the test's own."""
    made = PartThreads()
    monkeypatch.setattr(parts, "part_threads", made)
    yield made
    for _ in made.threads:
        made._inbox.put(None)
    for each in made.threads:
        each.join(5)
        assert not each.is_alive()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("team", [1, 2, 4])
def test_each_is_done_once(count: int, team: int) -> None:
    done: list[int] = []
    run_parts(done.append, range(count), team)
    assert sorted(done) == list(range(count))


def test_so_many_threads_do_parts_at_once(threads: PartThreads) -> None:
    """Three wait for one another."""
    together, seen = threading.Barrier(3, timeout=20), set[int]()

    def do(_: int) -> None:
        together.wait()
        seen.add(threading.get_ident())

    for _ in range(3):
        run_parts(do, range(3), 3)
    assert threading.get_ident() in seen
    assert seen - {threading.get_ident()} <= {each.ident for each in threads.threads}
    assert len(threads.threads) == 2


def test_who_comes_late_and_finds_nothing_is_not_taken_for_who_still_works() -> None:
    done, began, goes_on = list[int](), [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def do(part: int) -> None:
        began[part].set()
        assert goes_on[part].wait(20)
        done.append(part)

    job = parts._Job(do, [0, 1])
    asks, joins = threading.Thread(target=job.run), threading.Thread(target=job.join)
    asks.start()
    assert began[0].wait(20)
    joins.start()
    assert began[1].wait(20)
    late = threading.Thread(target=job.join)
    goes_on[0].set()
    time.sleep(0.05)  # the thread that asked waits for the other one
    late.start()
    late.join(20)
    asks.join(0.2)
    assert asks.is_alive()
    goes_on[1].set()
    asks.join(20)
    assert sorted(done) == [0, 1]


def test_who_comes_late_is_not_waited_for(threads: PartThreads) -> None:
    """The other thread is busy with parts of somebody else."""
    is_busy, is_over = threading.Event(), threading.Event()

    def hold(part: str) -> None:
        if threading.current_thread() in threads.threads:
            is_busy.set()
            is_over.wait(20)
        else:
            is_busy.wait(20)

    other = threading.Thread(target=run_parts, args=(hold, ["a", "b"], 2))
    other.start()
    is_busy.wait(20)
    done: list[int] = []
    run_parts(done.append, range(4), 2)
    assert done == list(range(4))
    assert not is_over.is_set()
    is_over.set()
    other.join()


@pytest.mark.parametrize("raises_here", [True, False])
def test_an_error_is_raised_when_the_others_have_ended(raises_here: bool) -> None:
    together, ended = threading.Barrier(2, timeout=20), list[int]()
    caller = threading.get_ident()

    def do(part: int) -> None:
        if part > 1:
            ended.append(part)
            return
        together.wait()
        if (threading.get_ident() == caller) is raises_here:
            raise Fault
        time.sleep(0.05)
        ended.append(part)

    with pytest.raises(Fault):
        run_parts(do, range(10), 2)
    assert len(ended) == 1
    assert ended[0] < 2  # those that had not begun were not done


def test_an_error_leaves_the_threads_at_work() -> None:
    def fail(_: int) -> None:
        raise Fault

    for _ in range(5):
        with pytest.raises(Fault):
            run_parts(fail, range(4), 3)
    test_each_is_done_once(7, 3)


def test_the_caller_does_all_where_the_system_gives_no_thread(
    threads: PartThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    test_each_is_done_once(5, 4)
    assert not threads.threads


def test_nothing_of_it_is_kept() -> None:
    """What parts are made of may be large pictures."""

    class Picture:
        def make(self, _: int) -> None:
            time.sleep(0.001)

    picture = Picture()
    gone = weakref.ref(picture)
    run_parts(picture.make, range(4), 4)
    del picture
    until = time.monotonic() + 20
    while gone() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert gone() is None


def test_many_callers_at_once() -> None:
    done: list[tuple[int, int]] = []

    def call(caller: int) -> None:
        for turn in range(50):
            run_parts(lambda part: done.append((caller, part)), range(turn, turn + 3), 3)

    callers = [threading.Thread(target=call, args=(each,)) for each in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert sorted(done) == sorted((each, turn + part) for each in range(4) for turn in range(50) for part in range(3))


FORK = """
import os, signal, threading
from openmps.cpu.parts import part_threads, run_parts
signal.alarm(50)
def together(count):
    wait = threading.Barrier(count, timeout=20)
    run_parts(lambda part: wait.wait(), range(count), count)
together(3)
child = os.fork()
together(3)
if child == 0:
    print("done", len(part_threads.threads), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
END = """
import atexit, signal, threading, time
from openmps.cpu.parts import run_parts
signal.alarm(50)
def last():
    done = []
    run_parts(done.append, range(5), 3)
    print(sorted(done), flush=True)
atexit.register(last)
class Late:
    def __del__(self):
        last()
late = Late()
late.itself = late
run_parts(time.sleep, [0.01] * 4, 3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_has_threads_of_its_own() -> None:
    assert _printed(FORK) == ["done 2"]


def test_the_end_of_the_interpreter() -> None:
    """In functions at exit, and in finalizers behind them."""
    assert _printed(END) == ["[0, 1, 2, 3, 4]"] * 2


def _printed(script: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(openmps.__file__).parents[1])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_threads_are_not_waited_for_where_nobody_works_any_more(threads: PartThreads) -> None:
    """One is held up on its way out; where work is left, it is waited for."""
    for is_over in (True, False):
        come, go = threading.Event(), threading.Event()

        def do(part: int, come: threading.Event = come, go: threading.Event = go) -> None:
            if threading.current_thread() in threads.threads:
                come.set()
                assert go.wait(20)
            else:
                assert come.wait(20)

        if is_over:
            run_parts(do, range(2), 2, lambda: True)
            go.set()
        else:
            threading.Timer(0.2, go.set).start()
            run_parts(do, range(2), 2, lambda: False)
            assert go.is_set()
