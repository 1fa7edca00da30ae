"""recorder/record.py, a script for PyObjC: here it records what openmps answers, as recorder/record.swift does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest

import openmps as mps
from openmps.conformance.answers import answer_of
from openmps.conformance.cases import CASES_FILE, cases
from recorder_compiler import plain

SCRIPT = Path(__file__).resolve().parents[2] / "recorder" / "record.py"
LIST = cases()


@cache
def _imported() -> Any:
    """The script as a module: PyObjC has one namespace of classes a process."""
    spec = importlib.util.spec_from_file_location("openmps_recorder", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record() -> Any:
    module = _imported()
    module.register()
    return module


@pytest.fixture
def device() -> Any:
    import Metal

    return Metal.MTLCreateSystemDefaultDevice()


def test_its_answers_are_those_of_openmps(record: Any, device: Any) -> None:
    """Case by case, bit by bit, until every word of the list was asked for; three seconds of answers.

    `tests/test_recorder.py` shows the same of the recorder in Swift, by the whole list.
    """
    native, asked = mps.MTLCreateSystemDefaultDevice(), set[Any]()
    for name, case in LIST.cases.items():
        words = {*_words(case.entry, ())}
        if words <= asked:
            continue
        asked |= words
        found = record.answer(case.entry, device)
        assert plain(found) == plain(answer_of(case, native)), name
        json.dumps(found, allow_nan=False)


def _words(given: Any, place: tuple[Any, ...]) -> Iterator[Any]:
    """What a script has to know of a case, each with where it stands: keys, those of an object together, and values.

    Of numbers only whether they are whole: a script hands them on. Titles are none.
    """
    if isinstance(given, dict):
        yield *place, given.get("class"), *sorted(given.get("arguments", given))
        for name, each in given.items():
            if name not in ("name", "family", "questions"):
                yield from _words(each, ((*place[-1:], name)))
    elif isinstance(given, list):
        yield *place, len(given) > 1
        for each in given:
            yield from _words(each, place)
    else:
        yield *place, given if isinstance(given, str | bool) else type(given)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "kernel", "kernel": {"class": "MPSCNNNothing", "arguments": {}}}, "the class MPSCNNNothing"),
        ({"kind": "movie"}, "the kind movie"),
        (
            {"kind": "kernel", "kernel": {"class": "MPSCNNAdd", "arguments": {"colour": 1}}},
            "MPSCNNAdd of device, colour",
        ),
    ],
)
def test_words_that_it_does_not_know(entry: dict[str, Any], said: str, record: Any, device: Any) -> None:
    assert record.answer({"sources": [], "read": [], **entry}, device) == {"unsupported": said}


def test_planted_faults_are_seen(record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers by calls; how processes end by processes: a new one that aborts, and forks."""
    import Metal

    start = subprocess.run

    def run(words: list[str], timeout: float, check: bool) -> subprocess.CompletedProcess[Any]:
        is_new = words[-1] == "abort"
        return (
            start(words, timeout=timeout, check=check)
            if is_new
            else forked.run(*words[1:], timeout=timeout, has_openmps=True)
        )

    monkeypatch.setattr(record, "START", [sys.executable, "-m", "openmps.pyobjc", str(SCRIPT)])
    monkeypatch.setattr(record.subprocess, "run", run)
    real, device = record.ask, Metal.MTLCreateSystemDefaultDevice()
    asked: list[str] = []

    def ask(some: list[Any], folder: Any, index: int, fault: str = "none", limit: float = 60.0) -> list[Any]:
        asked.append(fault)
        if fault in ("none", "another number"):
            return [record.answer(record.changed(each) if fault != "none" else each, device) for each in some]
        return real(some, folder, index, fault, limit if fault == "hang" else 600.0)

    monkeypatch.setattr(record, "ask", ask)
    document = json.loads(CASES_FILE.read_text())
    found = record.planted(document, tmp_path, 0)
    assert {*found} == {"abort", "hang", "silence", *(f"another number: {name}" for name in LIST.controls)}
    assert {*found.values()} == {"seen"}
    document["controls"][0]["values"]["result"]["numbers"][0] += 1
    with pytest.raises(SystemExit, match="has not the answer that is known"):
        record.planted(document, tmp_path, 0)


def test_a_list_goes_on_behind_a_case_that_ends_its_process(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [{"name": name} for name in "abcd"]

    def ask(some: list[Any], folder: Any, index: int) -> list[Any]:
        names = [each["name"] for each in some]
        return (
            [{"aborted": 6} if name == "b" else {"values": name} for name in names[: names.index("b") + 1]]
            if ("b" in names)
            else [{"values": name} for name in names]
        )

    monkeypatch.setattr(record, "ask", ask)
    found = record.recorded({"cases": listed}, tmp_path, 0, 3)
    assert found == {"a": {"values": "a"}, "b": {"aborted": 6}, "c": {"values": "c"}, "d": {"values": "d"}}
