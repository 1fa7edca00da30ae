"""A training that is killed at any moment goes on to the same bytes; the long form is ``tools/kill_training.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kill_training.py"


def test_three_kills():
    pytest.importorskip("sklearn")
    command = [sys.executable, str(TOOL), "--kills", "3", "--seed", "3", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("3 kills, ")
    assert lines[-1].endswith("resumed runs ended with the bytes of the run that was never stopped")
    assert not lines[-1].startswith("0 of")
