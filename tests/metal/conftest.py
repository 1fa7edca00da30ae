"""The device, a queue of it, and scripts in a process of their own, for every test of the machine."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
import torch

import openmps
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.metal.pending import is_in_queue
from openmps.runtime.devices import mtl_device

PATIENCE = 60.0
"""Seconds after which a wait of a test counts as a deadlock."""


@pytest.fixture
def mtl(device: torch.device) -> MTLDevice:
    return mtl_device(device)


@pytest.fixture
def queue(mtl: MTLDevice) -> MTLCommandQueue:
    return mtl.new_command_queue()


@pytest.fixture
def run_script() -> Callable[..., str]:
    """Runs a script in a process of its own and returns what it printed; it must exit with 0.

    With ``has_openmps=False`` the script imports openmps itself, and ends as any process does.
    """

    def run(script: str, *, has_openmps: bool = True) -> str:
        environment = {**os.environ, "PYTHONPATH": str(Path(openmps.__file__).parents[1])}
        done = forked.run("-c", textwrap.dedent(script), env=environment, timeout=PATIENCE, has_openmps=has_openmps)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def _modes_are_given_back() -> Iterator[None]:
    """What struck a launch in this thread leaves the thread as it was."""
    yield
    assert (torch.is_grad_enabled(), is_in_queue()) == (True, False)
