"""What two processes do with the files of a run comes out the same in every order of their steps."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from file_orders import Turns, every_order, save_idx, together
from onnx_models import conv, model, node, numbers, saved
from openmps.cli import main
from openmps.training import Dataset, DataSplit, RunFolder

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4"),
    pytest.mark.usefixtures("unflushed", "undrawn"),
]
SIDE = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images of two classes."""
    generator = np.random.default_rng(0)

    def part(count: int) -> Dataset:
        images = generator.integers(0, 256, (count, SIDE, SIDE, 1), np.uint8)
        return Dataset(images, np.arange(count) % 2, ("0", "1"), "noise")

    save_idx(tmp_path / "data", DataSplit(part(16), part(8)))
    return tmp_path / "data"


def classifier(folder: Path) -> Path:
    """An ONNX file of two classes."""
    pytest.importorskip("onnx")
    nodes = [conv("x", "c"), node("GlobalAveragePool", "c", "q"), node("Flatten", "q", "f"), node("MatMul", "f k", "y")]
    return saved(model(nodes, {"x": ["n", 1, SIDE, SIDE]}, w=numbers(4, 1, 3, 3), k=numbers(4, 2)), folder)


class Story(list[object]):
    """Arguments of `openmps train`, and the run that is there before."""

    def __init__(self, *arguments: object, before: Callable[[Path], object] | None = None, restarts: int = 0) -> None:
        super().__init__(arguments)
        self.before, self.restarts = before, restarts


def _without_checkpoints(path: Path) -> None:
    """What is left of a run that was killed when it had begun."""
    for name in os.listdir(path):
        if name not in ("run.json", "network.onnx"):
            shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()


STORIES = {
    "begun": lambda path: Story("--run", path),
    "resumed": lambda path: Story("--resume", path, "--epochs", 3, before=lambda path: None),
    "resumed from nothing": lambda path: Story("--resume", path, before=_without_checkpoints),
    "restarted": lambda path: Story("--run", path, before=lambda path: None, restarts=1),
    "restarted from nothing": lambda path: Story("--run", path, before=_without_checkpoints, restarts=1),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("network", ["tiny", "an ONNX file"])
def test_every_order_of_two_processes(
    story: str, network: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "tiny" if network == "tiny" else str(classifier(tmp_path))
    own = ["--data", data, "--epochs", 2, "--batch-size", 8, "--network", source]
    names = (tmp_path / f"run-{count}" for count in itertools.count())
    whole = tmp_path / "whole"
    assert main(["train", "--device", "cpu", *map(str, own), "--run", str(whole)]) == 0

    def folder() -> Path:
        path = next(names)
        if (before := STORIES[story](path).before) is not None:
            shutil.copytree(whole, path)
            before(path)
        return path

    def work(turns: Turns) -> None:
        path = Path(turns.folder)
        wanted = STORIES[story](path)
        arguments = wanted if "--resume" in wanted else [*own, *wanted]
        assert together(turns, monkeypatch, *arguments, restarts=wanted.restarts) == [0, 0], turns.steps
        run = RunFolder.open(path)
        assert run.checkpoints.steps()[-1] == (6 if "--epochs" in wanted else 4)
        assert (path / "network.onnx").exists() == (network != "tiny")
        # The other one may be on another machine.
        assert turns.steps[1] == []

    assert every_order(folder, work) == 1


@pytest.mark.parametrize("network", ["tiny", "an ONNX file"])
def test_a_start_that_is_refused_leaves_its_name_free(
    network: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "tiny" if network == "tiny" else str(classifier(tmp_path))
    names = (tmp_path / f"run-{count}" for count in itertools.count())
    own = ["--data", data, "--epochs", 1, "--network", source]

    def work(turns: Turns) -> None:
        path = Path(turns.folder)
        assert together(turns, monkeypatch, *own, "--run", path, "--batch-size", 7) == [2, 2]
        assert not path.exists()
        assert main(["train", "--device", "cpu", *map(str, own), "--batch-size", "8", "--run", str(path)]) == 0

    every_order(lambda: next(names), work)


@pytest.mark.parametrize("other", [("--learning-rate", "0.5"), ("--epochs", "2"), ("--network", "lenet")])
def test_a_restart_leaves_the_run_of_another_command_line(
    other: tuple[str, str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A launcher starts again what was refused because the folder is taken: it is not gone on with."""
    own = [
        "--data",
        str(data),
        "--epochs",
        "1",
        "--batch-size",
        "8",
        "--network",
        "tiny",
        "--run",
        str(tmp_path / "run"),
    ]
    assert main(["train", "--device", "cpu", *own]) == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert together(Turns(tmp_path / "run"), monkeypatch, *own, *other, restarts=1) == [2, 2]
    name = other[0].removeprefix("--").replace("-", "_")
    rule = f"--run-folder must be new, or hold what this command line has begun, with the {name} {other[1]}, got"
    assert rule in capfd.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("waits", [True, False])
def test_an_order_that_matters_is_found(waits: bool, tmp_path: Path) -> None:
    names = (tmp_path / f"{count}" for count in itertools.count())
    found: list[Any] = []

    def folder() -> Path:
        path = next(names)
        path.mkdir()
        return path

    def work(turns: Turns) -> None:
        def one(rank: int) -> bytes:
            if rank == 0:
                Path(turns.folder, "file").write_bytes(b"whole")
            if waits:
                turns.talk(None)
            return Path(turns.folder, "file").read_bytes()

        found.append(turns.run(one)[1])

    # Process 1 reads before both steps of process 0, between them, or behind both.
    assert every_order(folder, work) == (2 if waits else 3)
    assert any(isinstance(each, FileNotFoundError) for each in found) is not waits
