"""A short form of tools/fuzz_files.py, and that it would notice if something were wrong."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz_files.py"
PLANTED = Path(__file__).resolve().parent / "planted_targets.py"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes, signals and links of Unix")


def fuzz(*options: object) -> subprocess.CompletedProcess[str]:
    return forked.run(TOOL, *options, timeout=240)


def test_mutated_files_are_refused_or_loaded_as_they_are() -> None:
    done = fuzz("--cases", 320, "--seed", 20, "--jobs", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, total, _ = done.stdout.splitlines()
    cases, equal, as_written, refused, failed = map(int, total.split()[1:6])
    assert (cases, failed) == (320, 0)
    assert equal > 0 and as_written > 0 and refused > 160


def test_what_is_wrong_is_noticed() -> None:
    done = fuzz("--cases", 14, "--seconds", 1, "--jobs", 1, "--table", PLANTED)
    assert done.returncode == 1, done.stdout + done.stderr
    table, failures = done.stdout.split("\n\n", 1)
    counts = {line[:32].strip(): [int(each) for each in line[32:].split()[:5]] for line in table.splitlines()[1:-1]}
    assert counts.pop("refuses") == [1, 0, 0, 1, 0]
    assert counts.pop("loads the original") == [1, 1, 0, 0, 0]
    assert set(map(tuple, counts.values())) == {(1, 0, 0, 0, 1)}
    for message in (
        "inserted: loaded as something else, although there is a checksum",
        "inserted: raised KeyError: 'not one of ours'",
        r"inserted: did open '.*/case/\.\./escaped'",
        "inserted: did open '/etc/passwd'",
        r"inserted: did os\.system",
        r"inserted: did import \('colorsys'",
        "inserted: did (compile|exec)",
        r"inserted: took 8,3\d\d,\d{3} bytes of traced memory, more than 7",
        r"inserted: took 2\d\d,\d{3},\d{3} bytes of resident memory",
        r"inserted: took 1\.\d s",
        "hung",
        "ended the process, signal SIGSEGV: Fatal Python error: Segmentation fault",
    ):
        assert re.search(f"^{message}", failures, re.MULTILINE), message
    assert (
        len(re.findall(r"^  python tools/fuzz_files\.py --seed 0 --target '.*' --case 0 --table ", failures, re.M))
        == 12
    )


def test_a_case_is_repeated_by_its_number() -> None:
    one = fuzz("--target", "imports", "--case", 3, "--table", PLANTED, "--seed", 5)
    assert one.returncode == 1
    assert "--seed 5 --target 'imports' --case 3" in one.stdout
    assert re.search(r"^imports +1 +0 +0 +0 +1 ", one.stdout, re.MULTILINE)


def test_no_case_changes_what_later_ones_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    mutations = importlib.import_module("fuzzing.mutations")
    before, random = repr(mutations.OTHERS), np.random.default_rng(0)
    for _ in range(2000):
        mutations.changed_tree([{"a": 1, "list": [1, 2, {"object": 0}]}], random)
    assert repr(mutations.OTHERS) == before
