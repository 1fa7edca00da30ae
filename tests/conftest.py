"""Shared by every test: the devices and reproducible random numbers."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import measured


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-errors", type=Path, help="write the largest errors seen, by kernel, to this JSON file")


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
