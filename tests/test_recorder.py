"""recorder/record.swift: over stubs that ask openmps, it records what openmps records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import openmps as mps
from openmps.conformance.answers import answer_of
from openmps.conformance.cases import CASES_FILE, cases
from openmps.conformance.goldens import Verdict, load_recording, verdict
from recorder_compiler import RECORDER, built, recorded
from swift_compiler import require_compiler

LIST = cases()
EVERY = 6
"""Which cases are recorded here; all of them take minutes."""
KNOWN = {"kernel", "graph", "object", "random", "spacing"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the recorder has written."""
    require_compiler()
    folder = tmp_path_factory.mktemp("recorder")
    document = json.loads(CASES_FILE.read_text())
    wanted = {control["case"] for control in document["controls"]}
    document["cases"] = [
        each for place, each in enumerate(document["cases"]) if place % EVERY == 0 or each["name"] in wanted
    ]
    (folder / "cases.json").write_text(json.dumps(document))
    done = recorded(built(folder), folder / "cases.json", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (folder / "goldens").glob("*/recording.json")
    return found


def test_its_answers_are_those_of_openmps(recording: Path) -> None:
    """Case by case, bit by bit, or it says which word it does not know."""
    golden = load_recording(recording)
    device = mps.mtl_device("cpu")
    found = Counter[str]()
    for name, theirs in golden.answers.items():
        ours = answer_of(LIST.cases[name], device)
        if "unsupported" in theirs:
            found["unsupported"] += 1
            continue
        assert _plain(theirs) == _plain(ours), name
        assert verdict(LIST, name, ours, theirs) is Verdict.AGREES, name
        found["equal"] += 1
    assert found["equal"] > 2 * found["unsupported"] and golden.machine["unsupported"] == found["unsupported"]


def _plain(given: Any) -> Any:
    """Numbers as float64: the one writes 1, the other 1.0."""
    if isinstance(given, dict):
        return {name: _plain(each) for name, each in given.items()}
    if isinstance(given, list):
        return [_plain(each) for each in given]
    return float(given) if isinstance(given, int | float) else given


def test_planted_faults_are_seen(recording: Path) -> None:
    planted = json.loads(recording.read_text())["planted"]
    assert {*planted} == {"abort", "hang", "silence", *(f"another number: {name}" for name in LIST.controls)}
    assert {*planted.values()} == {"seen"}


def test_it_needs_no_packages() -> None:
    imports = [line.split()[1] for line in RECORDER.read_text().splitlines() if line.startswith("import ")]
    assert imports == ["Foundation", "Metal", "MetalPerformanceShaders"]
