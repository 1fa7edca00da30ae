"""What goes wrong in one of two processes, and what both say of it, a line each: ``{what}|{class}|{sentence}``.

usage: group_faults.py FOLDER STORY (the launcher's variables in the environment say with whom)
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import openmps as mps
from openmps.distributed import Group
from openmps.distributed import group as group_module
from openmps.errors import MPSError
from openmps.training import (
    Checkpoint,
    Dataset,
    DataSplit,
    Network,
    NetworkShape,
    RunFolder,
    TrainingCallback,
    TrainingOptions,
    describe_run,
    optimizer_factory,
    session,
    train,
)
from openmps.training.processes import FollowedRun

CPU = mps.mtl_device("cpu")
OPTIONS = TrainingOptions(epochs=4, batch_size=8, network="tiny", optimizer="sgd", checkpoint_every=1)


def data(seed: int = 0) -> DataSplit:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (40, 8, 8, 1), np.uint8)
    whole = Dataset(images, np.arange(40) % 2, ("a", "b"), "noise")
    return whole.split()


def graph(seed: int) -> mps.MPSNNGraph:
    network = Network.create(NetworkShape(8, 8, 1, 2, "tiny"), seed=seed, optimizer=optimizer_factory("sgd", 0.1))
    return network.training_graph(CPU, mps.MPSImageFeatureChannelFormat.FLOAT32, loss_weight=1 / 8, dropout_seed=0)


def tell(what: str, work: Callable[[], Any]) -> None:
    began = time.monotonic()
    try:
        work()
        print(f"{what}|nothing|", flush=True)
    except MPSError as error:
        print(f"{what}|{type(error).__name__}|{error}|{time.monotonic() - began:.1f}", flush=True)


def run_of(group: Group, folder: Path, split: DataSplit, options: TrainingOptions = OPTIONS) -> RunFolder:
    description = describe_run(split, options)
    if group.rank:
        return FollowedRun(folder / "run", description)
    return RunFolder.create(folder, description, name="run")


def differences(folder: Path) -> None:
    """Everything that differs between two processes; rank 0 ends on a full disk."""
    group = Group.join("cpu")
    rank = group.rank
    group_module._VERSION = f"0.{rank}"
    tell("versions", group._check_versions)
    tell("weights", lambda: group.share(graph(rank)))
    tell("options", lambda: group.share(graph(0), shards_optimizer_state=bool(rank)))
    split = data()
    run = run_of(group, folder, split)
    tell("data", lambda: train(data(rank), run, OPTIONS, CPU, processes=group))
    odd = TrainingOptions(epochs=4, batch_size=9, network="tiny")
    tell("batch", lambda: train(split, run_of(group, folder / "odd", split, odd), odd, CPU, processes=group))

    def load() -> None:
        if rank:
            raise mps.MPSFileError("load_dataset", "/data", "must be a folder", "nothing there")

    tell("no data", lambda: group.together(load))
    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    tell("full disk", lambda: train(split, run, OPTIONS, CPU, processes=group))
    group.leave()
    os._exit(0)


class At:
    """An observer that sends process 1 a signal behind its fifth step."""

    def __init__(self, group: Group, number: int) -> None:
        self._group, self._number = group, number

    def update(self, status: Any) -> None:
        if status.iteration == 5 and self._group.rank:
            os.kill(os.getpid(), self._number)

    def finish_epoch(self, status: Any) -> None: ...


class Raises(TrainingCallback):
    """Raises in process 1 behind its fifth step."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def finish_step(self, status: Any) -> None:
        if status.iteration == 5 and self._group.rank:
            raise ValueError("of its own")


def train_with_a_callback(group: Group, folder: Path, split: DataSplit) -> None:
    """Process 1 alone has a callback that raises."""
    run = run_of(group, folder / "called", split)
    try:
        result = train(split, run, OPTIONS, CPU, processes=group, callbacks=[Raises(group)])
        print(f"called|{result.interrupted}|{result.iterations}", flush=True)
    except ValueError as error:
        print(f"called|{error}|{error.__notes__[0]}", flush=True)


def train_with_shares(group: Group, folder: Path, split: DataSplit) -> None:
    """Train with shares of the optimizer's state and without; tells whether files are equal, and when some were kept.

    The first process asks for a checkpoint all the time, and gets one whenever all are there.
    """
    options = replace(OPTIONS, optimizer="adam", epochs=2, checkpoint_every=None, checkpoints_kept=100)
    session._CHECKPOINT_SECONDS, session._CHECKPOINT_SHARE = 0, 1e9
    found: list[dict[int, bytes]] = []
    for shares in (True, False):
        run = run_of(group, folder / f"shares {shares}", split, options)
        train(split, run, options, CPU, processes=group, shards_optimizer_state=shares)
        checkpoints = {step: run.checkpoints.load(step) for step in run.checkpoints.steps()}
        found.append({step: without_clock(each).to_bytes() for step, each in checkpoints.items()})
    mine, whole = found
    same = all(mine[step] == whole[step] for step in mine)
    print(f"shares|{same}|{' '.join(map(str, mine))}", flush=True)


def without_clock(checkpoint: Checkpoint) -> Checkpoint:
    place = {**checkpoint.parts["training loop"], "seconds": 0.0, "metrics_bytes": 0}
    return Checkpoint(checkpoint.step, {**checkpoint.parts, "training loop": place}, checkpoint.about)


def ends(folder: Path) -> None:
    """Process 1 alone is interrupted in one training, fails by a callback in one, and is killed in another."""
    group = Group.join("cpu")
    split = data()
    train_with_shares(group, folder, split)
    run = run_of(group, folder, split)
    result = train(split, run, OPTIONS, CPU, At(group, signal.SIGINT), processes=group)
    print(f"interrupted|{result.interrupted}|{result.iterations}", flush=True)
    train_with_a_callback(group, folder, split)
    run = run_of(group, folder / "killed", split)
    shares = {"processes": group, "shards_optimizer_state": True}
    tell("killed", lambda: train(split, run, OPTIONS, CPU, At(group, signal.SIGKILL), **shares))
    os._exit(0)


def again(folder: Path) -> None:
    """Processes that were started anew meet, whatever those before them have left."""
    del folder
    group = Group.join("cpu")
    print(f"again|{group.restarts}|{group.gather(group.rank)}", flush=True)
    group.leave()


if __name__ == "__main__":
    # Nothing here is about power cuts or pictures, which would take most of the time.
    os.fsync = lambda file: None
    session.draw_curve = session.draw_misclassified = lambda *arguments, **named: None
    {"differences": differences, "ends": ends, "again": again}[sys.argv[2]](Path(sys.argv[1]))
