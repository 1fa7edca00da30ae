"""What goes wrong in one of two processes ends both, with one sentence each."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import group_faults
from group_launch import finish, free_port, kept_store, start
from openmps.cli import main
from openmps.distributed import Group, launch
from openmps.errors import MPSProcessError
from openmps.training import Network, NetworkShape, RunFolder, optimizer_factory

PROGRAM = str(Path(group_faults.__file__))


def _told(ended):
    lines = [line.split("|") for line in ended.out.splitlines() if "|" in line]
    return {what: rest for what, *rest in lines}


DIFFERENCES = [
    ("versions", "MPSProcessError: process 0, which has openmps 0.0, not 0.1", "others in process 1"),
    ("weights", "MPSProcessError: process 0, which has 0 MPSCNNConvolution", "others in process 1"),
    ("options", "MPSProcessError: which has shards_optimizer_state False, not True", "others in process 1"),
    ("data", "MPSProcessError: process 0, which has data.training.sha256", "others in process 1"),
    ("batch", "MPSArgumentError: a multiple of 2, the number of processes", "a multiple of 2"),
    ("no data", "MPSProcessError: process 1 has failed: load_dataset: /data", "load_dataset: /data must be a folder"),
    ("full disk", "MPSFileError: File too large", "process 0 has failed: "),
]


def test_stories(tmp_path):
    """One test, so that the processes are started once, whichever of pytest's processes runs it."""
    folders = {story: tmp_path / story for story in ("differences", "ends")}
    for folder in folders.values():
        folder.mkdir()
    stores = {"ends": (store := kept_store())}
    started = {
        story: start(2, [PROGRAM, str(folder), story], store=stores.get(story)) for story, folder in folders.items()
    }
    told = {story: [*map(_told, finish(processes))] for story, processes in started.items()}
    for each in finish(start(2, [PROGRAM, str(tmp_path), "again"], store=store, restarts=1)):
        assert _told(each) == {"again": ["1", "[0, 1]"]}, each.error
    _what_differs_is_said_by_both(told["differences"])
    _shares_of_the_state_change_no_file(told["ends"])
    _an_interrupt_of_one_stops_all_at_one_step(told["ends"], folders["ends"])
    _a_callback_of_one_stops_all_at_one_step(told["ends"], folders["ends"])
    _a_process_that_is_killed(told["ends"], folders["ends"])


def _what_differs_is_said_by_both(told):
    for what, first, second in DIFFERENCES:
        kind, _, words = first.partition(": ")
        assert told[0][what][0] == kind
        assert words in told[0][what][1]
        assert second in told[1][what][1]


def _shares_of_the_state_change_no_file(told):
    same, steps = told[0]["shares"]
    assert same == "True"
    assert steps == "0 3 6 8"  # as soon as all have seen that one wants it


def _a_process_that_is_killed(told, folder):
    kind, sentence, seconds = told[0]["killed"]
    assert kind == "MPSProcessError"
    assert "must answer: one of them was killed" in sentence
    assert float(seconds) < 60
    assert "killed" not in told[1]
    newest = RunFolder.open(folder / "killed" / "run").checkpoints.newest()
    assert newest is not None
    assert newest.step >= 3


def _an_interrupt_of_one_stops_all_at_one_step(told, folder):
    assert told[0]["interrupted"] == told[1]["interrupted"]
    stopped, step = told[0]["interrupted"]
    newest = RunFolder.open(folder / "run").checkpoints.newest()
    assert newest is not None
    assert (stopped, newest.step) == ("True", int(step))


def _a_callback_of_one_stops_all_at_one_step(told, folder):
    stopped, step = told[0]["called"]
    words, note = told[1]["called"]
    assert (stopped, words) == ("True", "of its own")
    assert f"ended the training after {step} iterations" in note
    newest = RunFolder.open(folder / "called" / "run").checkpoints.newest()
    assert newest is not None
    assert 5 <= newest.step == int(step) < 16


def test_a_process_that_does_not_come(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MPSProcessError, match=r"must all come within 1 s, got .*1/2 clients joined"):
        Group.join("cpu", timeout=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(launch, "_LEAST_PATIENCE", 0.2)
    began = time.monotonic()
    with pytest.raises(MPSProcessError, match=r"must all come within 30 s, got no answer at 127.0.0.1:"):
        Group.join("cpu", timeout=30, since=began - 100)  # who was long in starting has waited already
    assert time.monotonic() - began < 10


def test_a_number_of_processes_without_the_rest_does_not_train_alone(monkeypatch, tmp_path, capsys):
    _write_noise(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "--data", str(tmp_path), "--epochs", "1", "--run-folder", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "must have RANK, WORLD_SIZE and the master" in said
    assert "['RANK', 'MASTER_ADDR', 'MASTER_PORT']" in said
    assert not (tmp_path / "run").exists()
    for alone in ("1", ""):
        monkeypatch.setenv("WORLD_SIZE", alone)
        assert not launch.is_launched()


def test_the_command_line(tmp_path, capsys):
    """Two processes train as one does; one process goes on with what they began."""
    _write_noise(tmp_path)
    arguments = ["train", "--data", str(tmp_path), "--epochs", "1", "--device", "cpu"]
    arguments += ["--optimizer", "sgd", "--batch-size", "16"]
    together = [*arguments, "--shard-optimizer", "--run-folder", str(tmp_path / "two")]
    ended = finish(start(2, ["-m", "openmps", *together]))
    assert [each.status for each in ended] == [0, 0], ended
    assert [each.error for each in ended] == ["", ""]
    assert "images 1 to 8 of each 16, writes the run" in ended[0].out
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


def _write_noise(folder):
    """Images of ten classes as MNIST-style files."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 96), ("t10k", 24)):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 8, 8))
        pixels = generator.integers(0, 256, (count, 8, 8), np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + (np.arange(count) % 10).astype(np.uint8).tobytes())
