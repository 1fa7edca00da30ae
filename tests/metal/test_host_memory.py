"""Freed memory of the CPU device is kept from the first queue on, and can be told not to be."""

from __future__ import annotations

import os
import platform

import forked
import pytest

PROGRAM = """
import openmps as mps
from openmps.metal.host_memory import keep_freed_memory

mps.mtl_device("cpu").new_command_queue()
called_before = keep_freed_memory.cache_info().currsize == 1
print(called_before, keep_freed_memory())
"""


def run(keep: str) -> str:
    finished = forked.run("-c", PROGRAM, env={**os.environ, "OPENMPS_KEEP_MEMORY": keep})
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_the_first_queue_of_the_cpu_sets_it() -> None:
    assert run("1") == "True True"


def test_the_environment_can_refuse_it() -> None:
    assert run("0") == "True False"
