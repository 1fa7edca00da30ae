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


CHANGES = {
    "as it is": (None, "", "3 passed"),
    "other padding": ("SIZE_SAME", "SIZE_VALID_ONLY", "2 failed"),
    "other weights": ('np.fromfile(WEIGHTS / "conv1_weights.dat", np.float32)', "np.ones(288, np.float32)", "1 failed"),
}
"""What is changed in the page's application, and what its tests then say."""
KEEP = """
import numpy as np
import openmps as mps
from test_graph import run
device, pixels = mps.mtl_device("cpu"), np.load("pixels.npy")
np.savez("tests/reference.npz", pixels=pixels, result=run(device, pixels).numpy())
"""
FORKS = """
import os, sys
import numpy, openmps, openmps.debug, pytest
openmps.MPSNNGraph  # with all that it needs
keep, first, *others = sys.argv[1:]

def forked(folder, call):
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.chdir(folder)
        sys.path[:0] = [folder, os.path.join(folder, "tests")]
        sys.exit(call())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for folder in (first, *others):
    if folder == first and forked(first, lambda: exec(keep, {})):
        sys.exit("nothing was kept")
    if folder != first:
        os.link(os.path.join(first, "tests/reference.npz"), os.path.join(folder, "tests/reference.npz"))
    print("##", folder)
    forked(folder, lambda: pytest.main(["-q", "-p", "no:cacheprovider", "-p", "openmps.pytest_plugin", "tests"]))
"""
"""Python in each folder, of which one process has imported what all need."""


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_its_tests_hold_its_graph_and_notice_another(tmp_path: Path) -> None:
    folders = [str(project(tmp_path / name, *change[:2])) for name, change in CHANGES.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whether this openmps is installed or another one
    command = [sys.executable, "-c", FORKS, KEEP, *folders]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = dict(part.split("\n", 1) for part in done.stdout.split("## ")[1:])
    for folder, (_, _, outcome) in zip(folders, CHANGES.values(), strict=True):
        assert outcome in told[folder], f"{folder}: {told[folder]}"


def test_its_workflow() -> None:
    workflow, steps = blocks("yaml")
    job = yaml.safe_load(workflow)["jobs"]["graph"]
    more = yaml.safe_load(steps)
    assert [set(step) & {"uses", "run"} for step in (*job["steps"], *more)] == [{"uses"}] * 2 + [{"run"}] * 5
    commands = [step["run"].split() for step in more]
    assert [words[0] for words in commands] == ["openmps"] * 2
