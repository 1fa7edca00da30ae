"""The page of faults: each is planted, its commands are run, and their output tells what the page says."""

from __future__ import annotations

import contextlib
import io
import shlex
import warnings
from pathlib import Path

import pytest

import debugging_page as page
import openmps as mps
import planted_networks as planting
from openmps.cli import main

SECTIONS = page.sections()


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmps.formats.atomic._sync", lambda path, flags: None)


def _output(section: page.Section, names: dict[str, object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        for command in section.commands:
            program, *arguments = shlex.split(command)
            assert program == "openmps"
            assert main(arguments) in (0, 1), command
        for statement in section.statements:
            exec(statement, names)
    return text.getvalue()


def test_the_page_has_the_faults_that_are_planted() -> None:
    assert list(SECTIONS) == list(planting.PLANTS)
    assert len(SECTIONS) == 10


@pytest.mark.parametrize("is_wrong", [True, False], ids=["planted", "sound"])
@pytest.mark.parametrize("title", SECTIONS)
def test_a_fault_is_found_by_the_commands_of_the_page(
    title: str, is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page says of their output is there with the fault, line by line, and nothing of it without."""
    monkeypatch.chdir(tmp_path)
    section = SECTIONS[title]
    assert 1 <= section.count <= 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mps.MPSTrainingWarning)
        output = _output(section, planting.PLANTS[title](is_wrong=is_wrong))
    for pieces in section.tells:
        assert page.holds(output, pieces) is is_wrong, f"{'…'.join(pieces)!r} in\n{output}"
