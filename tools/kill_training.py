"""Kills training runs with SIGKILL at random moments, resumes them, and compares with a run that was never stopped.

usage: kill_training.py [--kills N] [--seed N] [--every STEPS] [--epochs N] [--network NAME]
           [--processes N [--shard-optimizer]] [--json FILE]

A slice of scikit-learn's digits is trained by `openmps train` on the CPU, in forks of a process that has imported it,
with a checkpoint every STEPS steps (default 1, so that writing is going on all the while). Half of the kills hit a run
of their own once, the other half hit runs again and again until they end, some before they train again. Every third one
waits, behind its random moment, for the next write and falls into that. After every kill the run folder is opened and
the newest checkpoint must be whole; then `--resume` goes on. At the end weights, raw files, metrics (but for what the
clock says) and the last checkpoint must have the bytes of the run that was never stopped. Exit status 1 if anything
differs.

With --processes each run is one of so many processes that share every batch; one of them, any, is killed. The others
must end by themselves within a minute, each with one line that says why. With --shard-optimizer each of them keeps its
share of the optimizer's state, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openmps.cli import main as openmps
from openmps.formats import atomic
from openmps.training import Checkpoint, RunFolder, load_digits_dataset, session

TRAINING, TEST, BATCH = 240, 60, 20
CLOCK = ("seconds", "images_per_second")
TEMPORARY = ".openmps-*.tmp"
COMMAND = [sys.executable, "-m", "openmps", "train", "--quiet"]
PROCESSES = multiprocessing.get_context("forkserver")
Training = multiprocessing.process.BaseProcess


def train(*arguments: str) -> None:
    """The command, in a process of its own.

    A kill leaves what is written whether it has reached the disk or not, so nobody waits for the disk, but for a
    moment, which a kill may hit. Pictures are written and not drawn, which takes longer than training here.
    """
    atomic._sync = lambda path, flags: time.sleep(0.002)
    for name in ("draw_curve", "draw_misclassified"):
        setattr(session, name, lambda path, *_, **__: atomic.write_atomic(path, b"picture"))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    sys.exit(openmps(["train", "--quiet", *arguments]))


class Together:
    """Processes that train together, in the place of one."""

    PATIENCE = 60.0
    """Seconds in which the others must end behind a kill."""

    def __init__(self, count: int, command: list[str], choose: random.Random) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.killed: int | None = None
        self.others = 0.0
        """Seconds that the others took to end."""
        self.faults: list[str] = []
        self._choose = choose
        self._all: list[subprocess.Popen[str]] = []
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            env = {**os.environ, **place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            self._all.append(subprocess.Popen(command, env=env, **pipes))

    @property
    def exitcode(self) -> int | None:
        """How they ended: as the one that was killed, else 0 if all did so; None as long as all run."""
        if self.killed is not None:
            return self._all[self.killed].poll()
        ended = [status for status in (each.poll() for each in self._all) if status is not None]
        return max(ended, default=None)

    def is_alive(self) -> bool:
        """Whether all run."""
        return self.exitcode is None

    def kill(self) -> None:
        """Kill one of them."""
        self.killed = self._choose.randrange(len(self._all))
        self._all[self.killed].kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait until all have ended; behind a kill until the others have, by themselves."""
        began = time.monotonic()
        if self.killed is None:
            for each in self._all:
                with suppress(subprocess.TimeoutExpired):
                    each.wait(None if timeout is None else max(0.001, began + timeout - time.monotonic()))
            return
        self._all[self.killed].wait()
        for rank, each in enumerate(self._all):
            if rank != self.killed:
                self._end(rank, each, began)
        self.others = time.monotonic() - began

    def _end(self, rank: int, process: subprocess.Popen[str], began: float) -> None:
        try:
            _, said = process.communicate(timeout=max(1.0, began + self.PATIENCE - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            self.faults.append(f"process {rank} did not end within {self.PATIENCE:g} s behind the kill of another")
            return
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        if process.returncode == 0 and not errors:
            return  # its work was done
        if process.returncode != 2 or len(errors) != 1:
            tail = said.splitlines()[-1:]
            self.faults.append(f"process {rank} ended with {process.returncode} and {len(errors)} errors: {tail}")


@dataclass
class Kill:
    """One kill and what the run folder looked like then."""

    pattern: str
    seconds: float
    step: int | None
    """Of the newest whole checkpoint; None if there was none yet."""
    torn: int
    """Temporary files that were not there before: whether the kill fell into a write."""


@dataclass
class Report:
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    compared: int = 0


def write_data(folder: Path) -> None:
    """The slice as MNIST-style files."""
    digits = load_digits_dataset()
    for name, part in (("train", slice(TRAINING)), ("t10k", slice(TRAINING, TRAINING + TEST))):
        images, labels = digits.images[part, :, :, 0], digits.labels[part].astype(np.uint8)
        lengths = b"".join(n.to_bytes(4, "big") for n in images.shape)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + lengths + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + lengths[:4] + labels.tobytes())


class Trials:
    """Runs on one slice of data, compared with one that was never stopped."""

    def __init__(
        self, folder: Path, how: Sequence[object], *, seed: int, epochs: int, processes: int = 1, shards: bool = False
    ) -> None:
        """``how`` are further options of the command."""
        self.processes = processes
        self.command = [*COMMAND, *(["--shard-optimizer"] if shards else [])]
        self.longest = 0.0
        self.folder = folder
        self.random = random.Random(seed)
        (folder / "data").mkdir()
        write_data(folder / "data")
        self.arguments = ["--data", str(folder / "data"), "--device", "cpu", "--batch-size", str(BATCH)]
        self.arguments += ["--epochs", str(epochs), *map(str, how)]
        self.steps = epochs * (TRAINING // BATCH)
        self.report = Report()
        self.runs = 0
        self.seen: set[Path] = set()
        self._train_without_a_stop()

    def _train_without_a_stop(self) -> None:
        began = time.perf_counter()
        path = self._new_run()
        child = self._start(path)
        self._wait_for(path / "run.json", child)
        self.startup = time.perf_counter() - began
        child.join()
        if child.exitcode != 0:
            raise SystemExit(f"the run that was never stopped ended with {child.exitcode}")
        self.training = time.perf_counter() - began - self.startup
        self.whole = outcome(RunFolder.open(path))
        print(f"never stopped: {self.startup:.1f} s to start, {self.training:.1f} s in training", flush=True)

    # --- patterns ---------------------------------------------------------------------------------------------------

    def kill_once(self) -> None:
        """Kill a run of its own at a moment between the making of its folder and its end, and resume it."""
        while True:
            path = self._new_run()
            child = self._start(path)
            self._wait_for(path / "run.json", child)
            moment = self.random.uniform(0, self.training)
            if self._kill_after(path, child, moment):
                break
        self._look(path, "once", moment)
        self._resume_to_the_end(path)

    def kill_again_and_again(self, most: int) -> None:
        """Kill a run, resume it, kill it again, and so on until its last step is done, or for ``most`` times."""
        path = self._new_run()
        child = self._start(path)
        self._wait_for(path / "run.json", child)
        moment = self.random.uniform(0, self.training / 5)
        for _ in range(most):
            if not self._kill_after(path, child, moment):
                break
            done = self._look(path, "again", moment)
            child = self._resume(path)
            if done == self.steps:
                break
            if self.random.random() < 0.2:  # before it trains again
                moment = self.random.uniform(0.5, 1) * self.startup
            else:
                self._wait_for_progress(path, done, child)
                moment = self.random.uniform(0, self.training / 5)
        self._compare(path, child)

    # --- one run ----------------------------------------------------------------------------------------------------

    def _new_run(self) -> Path:
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    def _start(self, path: Path) -> Training | Together:
        return self._begun(*self.arguments, "--run", str(path))

    def _resume(self, path: Path) -> Training | Together:
        return self._begun("--resume", str(path))

    def _begun(self, *arguments: str) -> Training | Together:
        if self.processes > 1:
            return Together(self.processes, [*self.command, *arguments], self.random)
        child = PROCESSES.Process(target=train, args=arguments)
        child.start()
        return child

    def _resume_to_the_end(self, path: Path) -> None:
        self._compare(path, self._resume(path))

    @staticmethod
    def _wait_for(file: Path, child: Training | Together) -> None:
        while not file.exists():
            if not child.is_alive():
                raise SystemExit(f"training ended with {child.exitcode} before it began")
            time.sleep(0.001)

    @staticmethod
    def _wait_for_progress(path: Path, done: int | None, child: Training | Together) -> None:
        checkpoints = RunFolder.open(path).checkpoints
        while child.is_alive() and checkpoints.steps()[-1:] == ([] if done is None else [done]):
            time.sleep(0.002)

    def _kill_after(self, path: Path, child: Training | Together, seconds: float) -> bool:
        """Whether the child was still alive to be killed."""
        child.join(seconds)
        if not child.is_alive():
            return False
        if len(self.report.kills) % 3 == 2:
            self._wait_for_a_write(path, child)
        child.kill()
        child.join()
        if isinstance(child, Together):
            self.longest = max(self.longest, child.others)
            self.report.faults += [f"{path.name}, killed: {fault}" for fault in child.faults]
        return child.exitcode == -signal.SIGKILL

    def _wait_for_a_write(self, path: Path, child: Training | Together) -> None:
        """Until a temporary file appears, or the child ends."""
        while child.is_alive() and not set(path.rglob(TEMPORARY)) - self.seen:
            pass

    def _look(self, path: Path, pattern: str, moment: float) -> int | None:
        """Open the folder that a kill left, and return the newest step; what is wrong with it becomes a fault."""
        leftovers = set(path.rglob(TEMPORARY)) - self.seen
        self.seen |= leftovers
        step = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a newest checkpoint that is not whole is a warning
                run = RunFolder.open(path)
                found = run.checkpoints.newest()
                run.read_metrics()
                if run.weights_path.exists():
                    run.load_weights()
            step = None if found is None else found.step
        except Exception as error:
            self.report.faults.append(f"{path.name}, killed after {moment:.3f} s: {error}")
        kill = Kill(pattern, round(moment, 3), step, len(leftovers))
        self.report.kills.append(kill)
        number = len(self.report.kills)
        print(f"{number:4}  {path.name}  {pattern:5}  {moment:6.3f} s  step {step}  {kill.torn} torn", flush=True)
        return step

    def _compare(self, path: Path, child: Training | Together) -> None:
        self.report.compared += 1
        child.join()
        if child.exitcode != 0:
            self.report.faults.append(f"{path.name}: ended with {child.exitcode}")
            return
        found = outcome(RunFolder.open(path))
        differing = [name for name in sorted({*found, *self.whole}) if found.get(name) != self.whole.get(name)]
        if differing:
            self.report.faults.append(f"{path.name}: {', '.join(differing)} differ")


def outcome(run: RunFolder) -> dict[str, Any]:
    """All that must be the same, by name."""
    files = [path for path in run.path.iterdir() if path.suffix in (".safetensors", ".dat")]
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
    last = run.checkpoints.newest()
    if last is None:
        raise SystemExit(f"{run.path} has ended without a checkpoint")
    loop = {**last.parts["training loop"], "seconds": 0.0, "metrics_bytes": 0}
    checkpoint = Checkpoint(last.step, {**last.parts, "training loop": loop}, last.about).to_bytes()
    return {**{path.name: path.read_bytes() for path in files}, "metrics": metrics, "last checkpoint": checkpoint}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--network", default="sample")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shard-optimizer", action="store_true", help="of several processes: share its state")
    parser.add_argument("--json", type=Path, help="write all kills and faults to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one number for all, whatever else the machine does
    PROCESSES.set_forkserver_preload(["openmps.cli.training", "openmps.training.loop"])
    with tempfile.TemporaryDirectory() as folder:
        counts = {"seed": options.seed, "epochs": options.epochs, "processes": options.processes}
        how = ["--checkpoint-every", options.every, "--network", options.network]
        trials = Trials(Path(folder), how, shards=options.shard_optimizer, **counts)
        report = trials.report
        while len(report.kills) < options.kills:
            if sum(kill.pattern == "once" for kill in report.kills) <= len(report.kills) / 2:
                trials.kill_once()
            else:
                trials.kill_again_and_again(options.kills - len(report.kills))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    torn = sum(kill.torn > 0 for kill in report.kills)
    early = sum(kill.step is None for kill in report.kills)
    print(f"{len(report.kills)} kills, {torn} of them inside a write, {early} before the first checkpoint")
    if options.processes > 1:
        print(f"the others of {options.processes} processes ended within {trials.longest:.1f} s")
    for fault in report.faults:
        print(f"fault: {fault}")
    same = report.compared - len([fault for fault in report.faults if "killed" not in fault])
    print(f"{same} of {report.compared} resumed runs ended with the bytes of the run that was never stopped")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
