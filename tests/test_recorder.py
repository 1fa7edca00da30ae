"""recorder/record.swift: over stubs that ask openmps, it records what openmps records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import openmps as mps
from openmps.conformance.answers import answer_of
from openmps.conformance.cases import CASES_FILE, cases
from openmps.conformance.goldens import Verdict, load_recording, verdict
from recorder_compiler import RECORDER, built, plain, recorded
from swift_compiler import require_compiler

LIST = cases()
UNKNOWN = [
    {"name": "another class", "kind": "kernel", "kernel": {"class": "MPSCNNNothing", "arguments": {}}, "read": []},
    {"name": "another kind", "kind": "movie"},
]
"""Cases of a list with words that the recorder does not know."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the recorder has written."""
    require_compiler()
    folder = tmp_path_factory.mktemp("recorder")
    document = json.loads(CASES_FILE.read_text())
    document["cases"] += UNKNOWN
    (folder / "cases.json").write_text(json.dumps(document))
    done = recorded(built(folder), folder / "cases.json", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (folder / "goldens").glob("*/recording.json")
    return found


def test_its_answers_are_those_of_openmps(recording: Path) -> None:
    """Case by case, bit by bit."""
    golden, device = load_recording(recording), mps.mtl_device("cpu")
    asked = golden.answers.keys() - {case["name"] for case in UNKNOWN}
    assert asked == LIST.cases.keys()
    for name in asked:
        ours = answer_of(LIST.cases[name], device)
        if "refused" in ours:  # the stubs end the process, as the framework does
            assert golden.answers[name]["aborted"], name
        else:
            assert plain(golden.answers[name]) == plain(ours), name
        assert verdict(LIST, name, ours, golden.answers[name]) is Verdict.AGREES, name


def test_words_that_it_does_not_know_are_counted(recording: Path) -> None:
    golden = load_recording(recording)
    assert golden.answers["another class"] == {"unsupported": "the class MPSCNNNothing"}
    assert golden.answers["another kind"] == {"unsupported": "the kind movie"}
    assert golden.machine["unsupported"] == len(UNKNOWN)


def test_planted_faults_are_seen(recording: Path) -> None:
    planted = json.loads(recording.read_text())["planted"]
    assert {*planted} == {"abort", "hang", "silence", *(f"another number: {name}" for name in LIST.controls)}
    assert {*planted.values()} == {"seen"}


def test_it_needs_no_packages() -> None:
    imports = [line.split()[1] for line in RECORDER.read_text().splitlines() if line.startswith("import ")]
    assert imports == ["Foundation", "Metal", "MetalPerformanceShaders"]
