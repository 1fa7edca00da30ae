"""Shared by every test: the devices and reproducible random numbers."""

from __future__ import annotations

import signal
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import measured

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
"""What the tests that take a device run on. A test that could only be skipped is not collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-errors", type=Path, help="write the largest errors seen, by kernel, to this JSON file")
    parser.addoption("--lower-budgets", action="store_true", help="write the calls of encodes that are below budget")


def pytest_configure() -> None:
    # A shell ignores interrupts for what it runs in the background, and so would the processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--record-errors")
    if path is not None and exitstatus == 0:
        measured.write(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if DEVICES == ["cpu"]:
        terminalreporter.write_line("No CUDA device on this machine: every test of a device ran on the CPU alone.")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
