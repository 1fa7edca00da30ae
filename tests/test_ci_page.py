"""What the page on continuous integration shows: tests that hold its graph and notice another, and a workflow."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from openmps.runtime.devices import mtl_device

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


CHANGES = {
    "as it is": (None, "", "3 passed"),
    "other padding": ("SIZE_SAME", "SIZE_VALID_ONLY", "2 failed"),
    "other weights": ('np.fromfile(WEIGHTS / "conv1_weights.dat", np.float32)', "np.ones(288, np.float32)", "1 failed"),
}
"""What is changed in the page's application, and what its tests then say."""


def project(folder: Path, before: str | None, after: str) -> Path:
    """A project as the page has it, with a change."""
    app, *tests = blocks("python")
    generator = np.random.default_rng(0)
    for name in ("tests", "Weights"):
        (folder / name).mkdir(parents=True)
    assert before is None or before in app
    (folder / "app.py").write_text(app if before is None else app.replace(before, after))
    (folder / "tests" / "test_graph.py").write_text("\n".join(tests))
    for name, shape in (("weights", (8, 3, 3, 4)), ("biases", (8,))):
        generator.normal(size=shape).astype(np.float32).tofile(folder / f"Weights/conv1_{name}.dat")
    np.save(folder / "pixels.npy", generator.integers(0, 256, (32, 32, 4), np.uint8))
    return folder


@pytest.fixture
def in_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Makes this process one that was started in a folder as ``python -m pytest tests`` is."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whether this openmps is installed or another one
    path = [*sys.path]

    def leave() -> None:
        for name in ("app", "test_graph"):
            sys.modules.pop(name, None)

    def enter(folder: Path) -> None:
        leave()
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [str(folder), *path])

    yield enter
    leave()


def test_its_tests_hold_its_graph_and_notice_another(
    tmp_path: Path, in_folder: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    for name, (before, after, outcome) in CHANGES.items():
        folder = project(tmp_path / name, before, after)
        in_folder(folder)
        if before is None:
            run, device, pixels = runpy.run_path("tests/test_graph.py")["run"], mtl_device("cpu"), np.load("pixels.npy")
            kept = run(device, pixels).numpy()
        np.savez("tests/reference.npz", pixels=pixels, result=kept)
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "openmps.pytest_plugin", "tests"])
        told = capfd.readouterr().out
        assert outcome in told, f"{folder}: {told}"


def test_its_workflow() -> None:
    workflow, steps = blocks("yaml")
    job = yaml.safe_load(workflow)["jobs"]["graph"]
    more = yaml.safe_load(steps)
    assert [set(step) & {"uses", "run"} for step in (*job["steps"], *more)] == [{"uses"}] * 2 + [{"run"}] * 5
    commands = [step["run"].split() for step in more]
    assert [words[0] for words in commands] == ["openmps"] * 2
