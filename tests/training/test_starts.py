"""Starts that are refused, or that a full disk ends: what they leave, and that the run then comes out the same."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import numpy as np
import pytest
from faults.strike import Strike

from file_orders import Turns, save_idx, together
from openmps.errors import MPSFileError
from openmps.runtime.devices import mtl_device
from openmps.training import architectures
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.loop import TrainingOptions, describe_run, resume, train
from openmps.training.run_folder import RunFolder

CPU = mtl_device("cpu")
CONFIG = {"network": "digits"}
WALL_CLOCK = ("seconds", "images_per_second")
OPTIONS = TrainingOptions(epochs=1, batch_size=8, network="lenet", checkpoint_every=1)
WRITES = ("write", "fsync", "replace", "mkdir")
"""Calls of the system that a full disk refuses."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch, undrawn):
    """Flushing takes longer than training here, and each array is a file, whose writing is cut off at each call."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    rows = {**architectures.NETWORKS, "lenet": architectures.NetworkRow(_two_layers, 1)}
    monkeypatch.setattr("openmps.training.network.NETWORKS", rows)


def _two_layers(net):
    x = net.tanh(net.convolution(net.image, "conv1", 2, 3, limit=0.2, bias=0.0))
    return net.fully_connected(x, "fc1", net.classes, limit=0.2, bias=0.0)


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_description_has_its_other_files(tmp_path, monkeypatch):
    from openmps.training import run_folder

    order = []
    monkeypatch.setattr(run_folder, "write_atomic", lambda path, content: order.append((path.name, bytes(content)[:5])))
    folder = RunFolder.create(tmp_path, CONFIG, name="first", files={"network.onnx": b"model"})
    assert order == [("network.onnx", b"model"), ("run.json", b'{\n  "')]
    assert folder.network_path == tmp_path / "first" / "network.onnx"

    def full(path, content):
        if path.name == "run.json":
            raise MPSFileError("write_atomic", str(path), "could not be written", "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(run_folder, "write_atomic", full)
    with pytest.raises(MPSFileError, match="No space left"):
        RunFolder.create(tmp_path, CONFIG, name="second", files={"network.onnx": b"model"})
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("error", [MPSFileError("a", "b", "must"), KeyboardInterrupt()], ids=["refused", "interrupted"])
def test_a_folder_is_removed_where_nothing_was_written_into_it(tmp_path, error):
    def fail(folder, file=None):
        with suppress(type(error)), folder.removed_unless_begun():
            if file is not None:
                (folder.path / file).write_bytes(b"")
            raise error

    made = [RunFolder.create(tmp_path, CONFIG, files={"network.onnx": b""}) for _ in range(4)]
    fail(made[0])
    fail(made[1], "metrics.jsonl")
    fail(RunFolder.open(made[2].path))  # somebody else's
    with made[3].removed_unless_begun():
        pass
    assert [each.path.exists() for each in made] == [False, True, True, True]


# --- a full disk ------------------------------------------------------------------------------------------------------


def _dataset(count):
    images = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 1), np.uint8)
    return Dataset(images, np.arange(count) % 2, ("a", "b"), "noise")


DATA = DataSplit(_dataset(16), _dataset(8))


def _made(path):
    return RunFolder.create(path.parent, describe_run(DATA, OPTIONS), name=path.name)


def _outcome(path):
    """Everything that must be the same, to the byte."""
    files = {each.name: each.read_bytes() for each in path.iterdir() if each.suffix in (".safetensors", ".dat")}
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return files, [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in lines]


class _FirstCheckpoint(Strike):
    """Counts up to the first checkpoint."""

    def on_until(self, run):
        save = run.checkpoints.save

        def saved(checkpoint, **options):
            try:
                return save(checkpoint, **options)
            finally:
                self.first = self.first or self.counts.copy()

        self.first = None
        run.checkpoints.save = saved
        return self.on(run.path)


@pytest.mark.parametrize("place", WRITES)
def test_a_full_disk_before_the_first_checkpoint_changes_nothing_of_the_run(tmp_path, place):
    whole, strike = _made(tmp_path / "whole"), _FirstCheckpoint()
    with strike.on_until(whole):
        train(DATA, whole, OPTIONS, CPU)
    outcome = _outcome(whole.path)
    assert strike.first[place]
    for call in range(1, strike.first[place] + 1):
        # A file that does not reach the disk is as one that is not written: one of both ways by turns.
        for lasting in (call % 2 == 0,) if place == "fsync" else (False, True):
            run = _made(tmp_path / f"{call}, {lasting}")
            full = Strike(place, call, lambda: OSError(28, "No space left on device"), lasting)
            with full.on(run.path), pytest.raises(MPSFileError, match="No space left"):
                train(DATA, run, OPTIONS, CPU)
            run = RunFolder.open(run.path)
            if lasting or run.checkpoints.steps():
                resume(DATA, run, CPU)
            else:
                train(DATA, run, OPTIONS, CPU)  # as well where there is nothing to go on from
            assert _outcome(run.path) == outcome, (call, lasting)


def test_a_full_disk_before_the_first_checkpoint_of_two_processes(tmp_path, monkeypatch):
    from openmps.formats import atomic

    replace, renames = atomic.Path.replace, []

    def counted(self, target, last=None):
        renames.append(target.name)
        if len(renames) == last:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    def do(*arguments, last=None):
        renames.clear()
        with monkeypatch.context() as patch:
            patch.setattr(atomic.Path, "replace", lambda self, target: counted(self, target, last))
            return together(Turns(path), monkeypatch, *arguments)

    save_idx(tmp_path / "data", DATA)
    begin = ["--data", tmp_path / "data", "--epochs", 1, "--batch-size", 8, "--network", "lenet", "--run"]
    path = tmp_path / "whole"
    assert do(*begin, path) == [0, 0]
    outcome, first = _outcome(path), renames.index("step-00000000.safetensors") + 1
    for last in range(1, first + 1):
        path = tmp_path / f"{last}"
        assert do(*begin, path, last=last) == [2, 2]
        # Where nothing was begun, the same command begins; else the run goes on.
        assert path.exists() is (last > 1)
        assert do(*(["--resume"] if path.exists() else begin), path) == [0, 0]
        assert _outcome(path) == outcome, renames[last - 1]
