"""Tests spread over forks of the process that has collected them: ``pytest --processes auto``.

Processes of pytest-xdist each import and collect everything, and tell of each test by several messages. Forks have it
all, share its memory, and tell of many tests at once: there can be one more than there are cores, as some tests wait.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import forked
import pytest
from _pytest.runner import runtestprotocol

import measured

Span = tuple[int, int]
"""Of the tests, by their places in the order of collection: the first, and the one behind the last."""
MOST = 200
"""Tests that are handed out at once; towards the end they are fewer."""
NONE = bytes([255] * 8)
"""In the place of a test's number."""
PATIENCE = 0.5
"""Seconds for which a fork keeps to itself what has passed."""


def count_of(text: str) -> int:
    """Processes that the option asks for: ``auto``, or a number."""
    return min(8, len(os.sched_getaffinity(0)) + 1) if text == "auto" else int(text)


class Worker:
    """A fork, as the process that has forked sees it."""

    def __init__(self, pid: int, connection: Connection, running: mmap.mmap) -> None:
        self.pid, self.connection, self._running = pid, connection, running
        self.left = dict[int, None]()
        """The tests that it has been given and not told of."""

    @property
    def current(self) -> int | None:
        """The test that it runs, or ran last."""
        return None if self._running[:8] == NONE else int.from_bytes(self._running[:8])


class Processes:
    """The plugin that runs the tests of a session in forks of this process.

    ``serves`` says whether tests start processes by `forked`, which then import once for all forks.
    """

    def __init__(self, config: pytest.Config, count: int, *, serves: bool = True) -> None:
        self._config, self._count, self._started = config, count, 0
        self._workers: dict[Connection, Worker] = {}
        self._serves = serves
        if serves:
            forked.Handed.begin()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Instead of pytest's own, which runs them here."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        assert threading.active_count() == 1, f"a fork has one thread, and here are {threading.enumerate()}"
        self._session, self._spans = session, [(0, len(session.items))]
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # in which each has a folder
        try:
            for _ in range(min(self._count, len(session.items))):
                self._start()
            while self._workers and not self._is_to_end():
                for connection in wait([*self._workers]):
                    assert isinstance(connection, Connection)
                    self._hear(self._workers[connection])
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self) -> None:
        mine, theirs = Pipe()
        running, name = mmap.mmap(-1, 8), f"process-{self._started}"
        running[:8] = NONE
        self._started += 1
        self._config.get_terminal_writer().flush()
        servers = forked.Handed() if self._serves else None
        pid = os.fork()
        if not pid:
            for connection in (mine, *self._workers):
                connection.close()
            if servers:
                servers.take()
            Fork(self._session, theirs, running).run(name)
        theirs.close()
        if servers:
            servers.close()
        self._workers[mine] = Worker(pid, mine, running)

    def _hear(self, worker: Worker) -> None:
        try:
            kind, told = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if kind == "more":
            span = self._take()
            if span:
                worker.left.update(dict.fromkeys(range(*span)))
            with suppress(OSError):  # it has ended, which is heard next
                worker.connection.send(span)
        elif kind == "reports":
            for place, reports in told:
                worker.left.pop(place, None)
                self._tell(place, reports)
        elif kind == "warning":
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif kind == "end":
            measured.join(told)
            del self._workers[worker.connection]
            os.waitpid(worker.pid, 0)
        else:
            raise RuntimeError(told)

    def _is_to_end(self) -> bool:
        """Whether enough has failed."""
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _take(self) -> Span | None:
        """The next tests to hand out."""
        if not self._spans or self._is_to_end():
            return None
        begin, end = self._spans.pop(0)
        left = sum(stop - start for start, stop in self._spans) + end - begin
        middle = min(end, begin + max(1, min(MOST, left // (6 * self._count))))
        if middle < end:
            self._spans.insert(0, (middle, end))
        return begin, middle

    def _tell(self, place: int, reports: list[Any]) -> None:
        item, hook = self._session.items[place], self._config.hook
        for each in reports:
            report = hook.pytest_report_from_serializable(config=self._config, data=each)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _bury(self, worker: Worker) -> None:
        """The test that a process ends in has failed; another process takes what was left to it."""
        del self._workers[worker.connection]
        _, status = os.waitpid(worker.pid, 0)
        says = f"its process ended, with status {os.waitstatus_to_exitcode(status)}"
        if worker.current is None:
            raise RuntimeError(f"before a first test {says}")
        item = self._session.items[worker.current]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", says, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        worker.left.pop(worker.current, None)
        self._spans[:0] = [(place, place + 1) for place in worker.left]
        if self._spans and not self._is_to_end():
            self._start()


class Fork:
    """The plugin of a fork, which runs what it is given."""

    def __init__(self, session: pytest.Session, connection: Connection, running: mmap.mmap) -> None:
        self._session, self._connection, self._running = session, connection, running
        self._reports: list[tuple[int, list[Any]]] = []
        self._listens, self._told = False, time.monotonic()

    def run(self, name: str) -> NoReturn:
        """Run tests until there are no more, and end this process."""
        status = 1
        try:
            self._prepare(name)
            self._run_all()
            self._connection.send(("end", measured.seen()))
            status = 0
        except (KeyboardInterrupt, BrokenPipeError, EOFError):  # the other process ends, too
            pass
        except BaseException:
            with suppress(OSError):
                self._connection.send(("fault", traceback.format_exc()))
        finally:
            # Exit functions that are there are those of the process that has forked.
            os._exit(status)

    def _prepare(self, name: str) -> None:
        """Have files of its own: for what tests print, and the folder of theirs."""
        config = self._session.config
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / name
        factory._basetemp.mkdir(0o700)
        config.pluginmanager.register(self)  # which is told of warnings that were before
        self._listens = True

    def _run_all(self) -> None:
        parent, items = os.getppid(), self._session.items
        span = self._ask()
        while span:
            begin, end = span
            for place in range(begin, end):
                if os.getppid() != parent:
                    raise EOFError
                # What both need is kept, so the next one must be known.
                if place == end - 1:
                    span = self._ask()
                after = place + 1 if place < end - 1 else span[0] if span else None
                self._running[:8] = place.to_bytes(8)
                items[place].config.hook.pytest_runtest_protocol(
                    item=items[place], nextitem=None if after is None else items[after]
                )
        self._tell()

    def _ask(self) -> Span | None:
        self._tell()
        self._connection.send(("more", None))
        return self._connection.recv()

    def _tell(self) -> None:
        if self._reports:
            self._connection.send(("reports", self._reports))
        self._reports, self._told = [], time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Of a test that has passed, its call is told."""
        told, config = list[Any](), item.config
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                data = config.hook.pytest_report_to_serializable(config=config, report=report)
                if report.passed:
                    data["keywords"] = {}  # those of joined cases are many
                told.append(data)
        self._reports.append((int.from_bytes(self._running[:8]), told))
        if time.monotonic() > self._told + PATIENCE or any(each["outcome"] == "failed" for each in told):
            self._tell()
        return True

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Have the summary name it."""
        if not self._listens:
            return
        try:
            pickle.dumps(warning_message.message)
            message: Any = warning_message.message
        except Exception:
            message = UserWarning(str(warning_message.message))
        same = warnings.WarningMessage(message, type(message), warning_message.filename, warning_message.lineno)
        told = {"warning_message": same, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", told))
