"""Shared by every test: the devices and reproducible random numbers."""

from __future__ import annotations

import signal
import zlib
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

import measured

# A timing never is a test: other work on the machine would decide it.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


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


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
