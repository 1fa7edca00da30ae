"""A short form of tools/inject_faults.py, and that it would notice if something were wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

TESTS = Path(__file__).resolve().parent
TOOL = TESTS.parent / "tools" / "inject_faults.py"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


def inject(*options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return forked.run(TOOL, *options, env=environment, has_openmps=True)


def test_a_hundred_faults() -> None:
    done = inject("--faults", 100, "--seed", 0)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"^100 of [0-9,]+ faults in 33 jobs: (.*)$", done.stdout, re.MULTILINE)
    assert told is not None, done.stdout
    counts = {name: int(count) for count, name in (each.split(" ", 1) for each in told[1].split(", "))}
    assert counts["own error"] > 30 and counts["as raised"] > 10
    assert counts.get("not reached", 0) < 5


def test_what_is_wrong_is_noticed() -> None:
    done = inject("--faults", 0, "--table", TESTS / "planted_faults.py")
    assert done.returncode == 1, done.stdout + done.stderr
    for message in (
        r"raises as it is: listdir, call 1: EIO: raw error: raised OSError: ",
        r"overwrites: write, call 1: ENOSPC: raw error: raised OSError",
        r"says nothing: callback, call 1: OfUserError: swallowed: ",
        r"does not go on: callback, call 1: OfUserError: as raised: done again it gave something else",
        r"overwrites: write, call 1: KeyboardInterrupt: as raised: what was to be replaced is neither",
        r"leaves a file: replace, call 1: KeyboardInterrupt: as raised: left \.openmps-0\.tmp",
    ):
        assert re.search(f"^{message}", done.stdout, re.MULTILINE), f"{message}\n{done.stdout}"
