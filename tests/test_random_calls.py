"""A short form of tools/random_calls.py: whatever is called, the outcome is a value or an error of openmps's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import forked

TOOL = Path(__file__).resolve().parents[1] / "tools" / "random_calls.py"


def calls(*options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return forked.run(TOOL, *options, env=environment, has_openmps=True)


def test_two_thousand_calls() -> None:
    done = calls("--calls", 2000, "--seed", 0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2,000 calls in ") and "; 0 kinds of failure" in done.stdout
    made = {what: int(count.replace(",", "")) for count, what in _counts(done.stdout)}
    assert made["value"] > 1000 and made["own error"] > 200, "it calls too little, or nothing that is refused"


def test_calls_of_matrices_and_recurrent_layers() -> None:
    """Most of the calls are encodes, of operands that fit and of others."""
    done = calls("--calls", 600, "--only", "Matri|RNN|LSTM|GRU")
    assert done.returncode == 0, done.stdout + done.stderr
    made = {what: int(count.replace(",", "")) for count, what in _counts(done.stdout)}
    assert made["value"] > 300 and made["own error"] > 150, "it calls too little, or nothing that is refused"


def _counts(line: str) -> list[tuple[str, str]]:
    parts = line.partition(": ")[2].partition(";")[0].split(", ")
    return [(count, what) for count, _, what in (part.partition(" ") for part in parts)]
