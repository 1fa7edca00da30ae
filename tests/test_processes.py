"""Forks that run tests: every test runs once, and is told as pytest would tell it, also where its process ends."""

from __future__ import annotations

import os
import re
from pathlib import Path

import forked

CONFTEST = """
import os
import pytest
import processes

def pytest_addoption(parser):
    parser.addoption("--processes", default="0")

def pytest_configure(config):
    config.pluginmanager.register(processes.Processes(config, int(config.getoption("--processes")), serves=False))

@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    yield folder
    (folder / "ended").touch()

@pytest.fixture(autouse=True)
def noted(request, made):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{request.node.name} {os.getpid()} {made}\\n")
"""
TESTS = """
import os
import time
import warnings
import pytest

@pytest.mark.parametrize("number", range(60))
def test_number(number):
    time.sleep(0.005)

def test_fails():
    print("what it prints")
    assert 1 == 2, "for this reason"

def test_ends_its_process():
    os._exit(7)

def test_is_killed():
    os.kill(os.getpid(), 9)

def test_skips():
    pytest.skip("for that reason")

def test_warns():
    warnings.warn("look here", UserWarning, stacklevel=1)

def test_folder(tmp_path):
    assert tmp_path.parent.name.startswith("process-")

@pytest.mark.parametrize("number", range(60))
def test_more(number):
    time.sleep(0.005)
"""


def _run(folder: Path, *options: str) -> tuple[str, int, list[list[str]]]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_things.py").write_text(TESTS)
    paths = f"{Path(__file__).parent} {Path(forked.__file__).parent}"
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {paths}\n")
    said = {**os.environ, "NOTES": str(folder / "notes"), "PYTEST_ADDOPTS": ""}
    taken = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-ra", "--basetemp", str(folder / "base"))
    ended = forked.run("-m", "pytest", *taken, *options, cwd=folder, env=said)
    notes = folder / "notes"
    return ended.stdout + ended.stderr, ended.returncode, [line.split() for line in notes.read_text().splitlines()]


def test_what_fails_ends_skips_and_warns(tmp_path: Path) -> None:
    said, status, notes = _run(tmp_path, "--processes", "3")
    assert status == 1, said
    assert "3 failed, 122 passed, 1 skipped, 1 warning" in said
    for name in ("fails - AssertionError: for this reason", "ends_its_process - ", "is_killed - "):
        assert re.search(rf"^FAILED test_things.py::test_{name}", said, re.M), said
    assert "its process ended, with status 7" in said and "its process ended, with status -9" in said
    assert "what it prints" in said and "for that reason" in said and "UserWarning: look here" in said
    # Of tests that a process had run and not yet told of when it ended, another may run some again.
    names = [name for name, *_ in notes]
    assert {*names} == {f"test_{kind}[{number}]" for kind in ("number", "more") for number in range(60)} | {
        *("test_fails", "test_ends_its_process", "test_is_killed", "test_skips", "test_warns", "test_folder"),
    }
    assert all(names.count(each) == 1 for each in ("test_fails", "test_ends_its_process", "test_is_killed"))
    processes = {process for _, process, _ in notes}
    assert len(processes) == 5
    lost = {process for name, process, _ in notes if name in ("test_ends_its_process", "test_is_killed")}
    folders = {process: Path(folder) for _, process, folder in notes}
    assert len({*folders.values()}) == 5 == len({(process, folder) for _, process, folder in notes})
    assert all((folders[each] / "ended").exists() for each in processes - lost)


def test_the_first_failure_ends_the_run(tmp_path: Path) -> None:
    said, status, notes = _run(tmp_path, "--processes", "1", "-x")
    assert status == 1 and "stopping after 1 failures" in said and "1 failed, 60 passed" in said, said
    assert [name for name, *_ in notes][:61] == [*(f"test_number[{number}]" for number in range(60)), "test_fails"]
    assert len(notes) < 65  # it is told while the next ones run
