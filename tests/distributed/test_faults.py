"""What goes wrong in one of two processes ends both, with one sentence each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import group_faults
from group_launch import finish, free_port, start
from openmps.cli import main
from openmps.distributed import Group
from openmps.errors import MPSProcessError
from openmps.training import Network, NetworkShape, RunFolder, optimizer_factory

PROGRAM = str(Path(group_faults.__file__))


def _told(ended):
    lines = [line.split("|") for line in ended.out.splitlines() if "|" in line]
    return {what: rest for what, *rest in lines}


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """What each process tells, by story and rank, and the folder."""
    folders = {story: tmp_path_factory.mktemp(story) for story in ("differences", "ends")}
    started = {story: start(2, [PROGRAM, str(folder), story]) for story, folder in folders.items()}
    return {story: ([*map(_told, finish(started[story]))], folder) for story, folder in folders.items()}


@pytest.mark.parametrize(
    ("what", "first", "second"),
    [
        ("versions", "MPSProcessError: process 0, which has openmps 0.0, not 0.1", "others in process 1"),
        ("weights", "MPSProcessError: process 0, which has 0 MPSCNNConvolution", "others in process 1"),
        ("data", "MPSProcessError: process 0, which has data.training.sha256", "others in process 1"),
        ("batch", "MPSArgumentError: a multiple of 2, the number of processes", "a multiple of 2"),
        (
            "no data",
            "MPSProcessError: process 1 has failed: load_dataset: /data",
            "load_dataset: /data must be a folder",
        ),
        ("full disk", "MPSFileError: File too large", "process 0 has failed: "),
    ],
)
def test_what_differs_is_said_by_both(stories, what, first, second):
    told, _ = stories["differences"]
    kind, _, words = first.partition(": ")
    assert told[0][what][0] == kind
    assert words in told[0][what][1]
    assert second in told[1][what][1]


def test_a_process_that_does_not_come(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MPSProcessError, match=r"must all come within 1.5 s, got .*1/2 clients joined"):
        Group.join("cpu", timeout=1.5)


def test_a_process_that_is_killed(stories):
    told, folder = stories["ends"]
    kind, sentence, seconds = told[0]["killed"]
    assert kind == "MPSProcessError"
    assert "must answer: one of them was killed" in sentence
    assert float(seconds) < 60
    assert "killed" not in told[1]
    newest = RunFolder.open(folder / "killed" / "run").checkpoints.newest()
    assert newest is not None
    assert newest.step >= 3


def test_an_interrupt_of_one_stops_all_at_one_step(stories):
    told, folder = stories["ends"]
    assert told[0]["interrupted"] == told[1]["interrupted"]
    stopped, step = told[0]["interrupted"]
    newest = RunFolder.open(folder / "run").checkpoints.newest()
    assert newest is not None
    assert (stopped, newest.step) == ("True", int(step))


def test_the_command_line(tmp_path, capsys):
    """Two processes train as one does; one process goes on with what they began."""
    pytest.importorskip("sklearn")
    arguments = ["train", "--epochs", "1", "--device", "cpu", "--optimizer", "sgd", "--batch-size", "80"]
    together = [*arguments, "--run-folder", str(tmp_path / "two")]
    ended = finish(start(2, ["-m", "openmps", *together]))
    assert [each.status for each in ended] == [0, 0], ended
    assert [each.error for each in ended] == ["", ""]
    assert "images 1 to 40 of each 80, writes the run" in ended[0].out
    assert "process 1 on " in ended[0].out
    assert ended[1].out == ""
    assert main([*arguments, "--run", str(tmp_path / "one")]) == 0
    one, two = (RunFolder.open(tmp_path / name).load_weights() for name in ("one", "two"))
    first = Network.create(NetworkShape(8, 8, 1, 10), seed=0, optimizer=optimizer_factory("sgd", 1e-3)).arrays()
    for name, array in one.items():
        # Rounding grows over the steps; a wrong share or weight would be of the size of the movement.
        assert np.linalg.norm(two[name] - array) < 0.01 * np.linalg.norm(first[name] - array), name
    assert ended[0].out.splitlines()[-1] == capsys.readouterr().out.splitlines()[-1]
    assert main(["train", "--resume", str(tmp_path / "two"), "--epochs", "2"]) == 0
    assert "processes 2, now None" in capsys.readouterr().err
