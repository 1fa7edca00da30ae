"""What the page on continuous integration shows: tests that hold its graph and notice another, and a workflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project as the page has it."""
    app, tests = blocks("python")
    generator = np.random.default_rng(0)
    for name in ("tests", "Weights"):
        (tmp_path / name).mkdir()
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "tests" / "test_graph.py").write_text(tests)
    for name, shape in (("weights", (8, 3, 3, 4)), ("biases", (8,))):
        generator.normal(size=shape).astype(np.float32).tofile(tmp_path / f"Weights/conv1_{name}.dat")
    np.save(tmp_path / "pixels.npy", generator.integers(0, 256, (32, 32, 4), np.uint8))
    keep = """
import numpy as np
import openmps as mps
from app import app_graph
from test_graph import run
device, pixels = mps.mtl_device("cpu"), np.load("pixels.npy")
np.savez("tests/reference.npz", pixels=pixels, result=run(device, app_graph(device), pixels))
"""
    done = command(tmp_path, "-c", keep)
    assert done.returncode == 0, done.stderr
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder."""
    paths = os.pathsep.join(map(str, (ROOT / "src", folder, folder / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    call = [sys.executable, *arguments]
    return subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_its_tests_hold_its_graph_and_notice_another(project: Path) -> None:
    pytest_call = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    done = command(project, *pytest_call)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
    app = (project / "app.py").read_text()
    for before, after, failing in (
        ("SIZE_SAME", "SIZE_VALID_ONLY", "2 failed"),
        ('np.fromfile(WEIGHTS / "conv1_weights.dat", np.float32)', "np.ones(288, np.float32)", "1 failed"),
    ):
        assert before in app
        (project / "app.py").write_text(app.replace(before, after))
        done = command(project, *pytest_call)
        assert failing in done.stdout, f"{after}: {done.stdout}"


def test_its_workflow() -> None:
    workflow, steps = blocks("yaml")
    job = yaml.safe_load(workflow)["jobs"]["graph"]
    more = yaml.safe_load(steps)
    assert [set(step) & {"uses", "run"} for step in (*job["steps"], *more)] == [{"uses"}] * 2 + [{"run"}] * 5
    commands = [step["run"].split() for step in more]
    assert [words[0] for words in commands] == ["openmps"] * 2
