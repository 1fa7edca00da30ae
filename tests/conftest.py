"""Shared by every test: the devices and reproducible random numbers."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import typer.main
from _pytest.runner import runtestprotocol

import interpreter  # noqa: F401  # says how Triton is to run, before any test imports it
import measured
import processes
import rounding
from helpers import on_a_cpu_of
from openmps.debug.limits import MachineLimits
from openmps.formats.atomic import write_atomic

# A timing never is a test: other work on the machine would decide it.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
"""What the tests that take a device run on. A test that could only be skipped is not collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-errors", type=Path, help="write the largest errors seen, by kernel, to this JSON file")
    parser.addoption("--rounding", type=int, help="round as another processor might: a seed (tests/rounding.py)")
    parser.addoption("--maker", choices=["intel", "amd"], help="choose forms as on a processor of this maker")
    parser.addoption("--threads", type=int, default=1, help="of each of several processes (-n), which share the cores")
    parser.addoption("--processes", default="0", help="forks to run the tests in, once they are collected, or `auto`")
    parser.addoption("--lower-budgets", action="store_true", help="write the calls of encodes that are below budget")


def pytest_configure(config: pytest.Config) -> None:
    stack = ExitStack()
    config.add_cleanup(stack.close)
    if (seed := config.getoption("--rounding")) is not None:
        stack.enter_context(rounding.rounded_by_layout(seed))
    if (maker := config.getoption("--maker")) is not None:
        on_a_cpu_of(stack.enter_context(pytest.MonkeyPatch.context()), is_intel=maker == "intel")
    # Typer makes all commands anew for each call of `openmps.cli.main`, of which a user's process has one.
    typer.main.get_command = functools.cache(typer.main.get_command)
    # A shell ignores interrupts for what it runs in the background, and so would the processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    count = processes.count_of(config.getoption("--processes"))
    if not config.getoption("numprocesses", None) and not _is_worker(config) and not count:
        return
    if config.getoption("--lower-budgets"):
        raise pytest.UsageError("--lower-budgets writes a file after each test: run it in one process, without -n")
    if count:
        if "OMP_NUM_THREADS" not in os.environ:
            raise pytest.UsageError("--processes: libraries have begun threads; set OMP_NUM_THREADS=1 before")
        config.pluginmanager.register(processes.Processes(config, count))
    # The processes share the cores, and so do the processes that tests start.
    threads = config.getoption("--threads")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--rounding") is not None:
        for item in items:
            if item.get_closest_marker("other_processes"):
                item.add_marker(pytest.mark.skip(reason="the processes that it starts round as this machine does"))


def pytest_collection_finish() -> None:
    """Leave the tests themselves, and what they import, out of every later collection of garbage: it is most of it."""
    gc.collect()
    gc.freeze()
    gc.collect()  # counts what is left: full collections come when a quarter of it is new
    gc.set_threshold(10_000)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--record-errors")
    if _is_worker(session.config):
        session.config.workeroutput["measured"] = measured.seen()  # type: ignore[attr-defined]
    elif path is not None and exitstatus == 0:
        measured.write(path, is_part=bool(session.config.getoption("-k")))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tell another process of a test's call, and of what has not passed: each message takes both of them some time."""
    if not _is_worker(item.config):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process that ran a part of the tests has seen."""
    measured.join(getattr(node, "workeroutput", {}).get("measured"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if DEVICES == ["cpu"]:
        terminalreporter.write_line("No CUDA device on this machine: every test of a device ran on the CPU alone.")


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process runs the part of the tests that another one gives it."""
    return hasattr(config, "workerinput")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    # torch.manual_seed, before CUDA runs, keeps a call with all lines of its stack for the time when it does.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class Logged(logging.Handler):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(map(self.format, self.records))


@pytest.fixture
def logged() -> Iterator[Logged]:
    """What is logged during a test. pytest's own plugin goes through all loggers, of which there are 180, for each."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def in_any_order() -> Iterator[None]:
    """Equal bits of forms that sum in other orders: a processor's own sums would differ in the last digits."""
    with rounding.rounded_once():
        yield


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether files reach the disk is tested with `write_atomic`; waiting for it takes most of the time elsewhere."""
    monkeypatch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)


@pytest.fixture(scope="module")
def only_new_garbage() -> None:
    """For tests that collect garbage again and again: of what they make themselves, not of all that lives before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``once(function, *arguments)``: what a function of a folder and arguments gives, called once for all tests."""

    @functools.cache
    def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(tmp_path_factory.mktemp("once"), *arguments)

    return call


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a run are tested where they are drawn, and take longer than training elsewhere."""
    for name in ("draw_curve", "draw_misclassified"):
        monkeypatch.setattr(f"openmps.training.session.{name}", lambda path, *_, **__: write_atomic(path, b"picture"))


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def on_a_known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring what a machine can do takes seconds."""
    limits = MachineLimits("a machine", {"float32": 1e9}, 1e9)
    monkeypatch.setattr("openmps.debug.profiling.machine_limits", lambda device: limits)
