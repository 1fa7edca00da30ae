"""A training that is killed at any moment goes on to the same bytes; the long form is ``tools/kill_training.py``."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kill_training.py"


def test_three_kills():
    pytest.importorskip("sklearn")
    done = forked.run(TOOL, "--kills", 3, "--seed", 3, "--epochs", 2, "--network", "lenet", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("3 kills, ")
    assert lines[-1].endswith("resumed runs ended with the bytes of the run that was never stopped")
    assert not lines[-1].startswith("0 of")
