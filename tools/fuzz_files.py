"""Loads mutated archives, weight files and training files, and says what came of each.

usage: fuzz_files.py [--cases 10000] [--seed 0] [--target NAME [--case N]] [--jobs N] [--seconds S] [--table FILE]

Every case takes an honest file, changes it, and loads it in a worker process. It passes if it ends in an error of
openmps, in an object equal to the original, or, where no checksum can show the change, in exactly what the changed file
says. It fails if it raises anything else, ends the process, takes more than ``--seconds`` (5), takes more than twice
the honest file's memory (and 768 KiB of Python's, 24 MiB of the process's), runs or imports code, or opens anything
outside its folder. The table ends with the most memory (Python's own and the whole process's) and the longest time that
one load of the target took. Failures are printed with the command that repeats them; the exit status is 1 if there are
any.

Case N of a target follows from the seed, the target's name and N alone. A new target is a row of fuzzing/targets.py;
``--table`` takes the rows of another file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fuzzing.limits import HANGING, MOST_SECONDS

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).resolve().parent / "fuzzing" / "targets.py"
BLOCK = 50
"""Cases that a worker is given at once."""
START_SECONDS = 120.0
Most = tuple[int, int, float]
"""Bytes of Python's memory, bytes of the whole process, and seconds that one load took."""
NOTHING: Most = (0, 0, 0.0)


# --- the worker's side ------------------------------------------------------------------------------------------------


def rows(table: Path) -> tuple[Any, ...]:
    """The targets of a file."""
    if table == TABLE:
        from fuzzing.targets import TARGETS

        return TARGETS
    spec = importlib.util.spec_from_file_location("table", table)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{table} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["table"] = module
    spec.loader.exec_module(module)
    return module.TARGETS


def work(options: argparse.Namespace) -> None:
    """Run the cases that come in as lines, one block a line, and say what came of each."""
    from fuzzing.guard import Case, Watch

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    warnings.simplefilter("ignore")  # a warning that is shown reads the line that it comes from
    targets = rows(options.table)
    watch, cases = Watch(), {}
    print(json.dumps([target.name for target in targets]), file=answers, flush=True)
    for line in sys.stdin:
        index, first, end = json.loads(line)
        if index not in cases:
            cases[index] = Case(targets[index], options.worker / str(index), watch, options.seed, options.seconds)
        print("true", file=answers, flush=True)
        for number in range(first, end):
            outcome = cases[index].run(number)
            print(json.dumps([number, outcome.kind, outcome.message, astuple(outcome.taken)]), file=answers, flush=True)


# --- the parent's side ------------------------------------------------------------------------------------------------


class SetUpError(Exception):
    """Nothing can be run: a worker does not start, or an honest file cannot be made."""


class Worker:
    """A process that runs cases. It is ended, and its crash noted, if it does not answer in time."""

    def __init__(self, given: argparse.Namespace, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._patience = given.seconds * HANGING
        options = ["--worker", place, "--table", given.table, "--seed", given.seed, "--seconds", given.seconds]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__, *map(str, options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            bufsize=0,  # what is in a buffer cannot be waited for
        )  # fmt: skip
        self._place = place
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        answer = self._answer(START_SECONDS)
        self.names: list[str] = answer if answer is not None else self._fail("did not start")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            is_fatal = bool(self._said) and self._said[0].startswith(b"Fatal Python error")
            if line.startswith(b"Fatal Python error"):
                self._said = [line]
            elif not is_fatal:
                self._said = [*self._said[-20:], line]
            elif len(self._said) < 8:
                self._said.append(line)

    def _fail(self, what: str) -> NoReturn:
        self.end()
        raise SetUpError(f"a worker {what}:\n" + b"".join(self._said).decode(errors="replace"))

    def ask(self, index: int, first: int, end: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([index, first, end]).encode() + b"\n")
        if self._answer(START_SECONDS) is None:
            self._fail(f"could not make the honest files of target {index}")

    def _answer(self, seconds: float) -> Any:
        """The next answer; None if the process has ended or does not answer in time."""
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], seconds)
        line = out.readline() if ready else b""
        return json.loads(line) if line.endswith(b"\n") else None

    def outcome(self) -> tuple[str, str, Most] | None:
        """Kind, message and what it took of the next case; None if the worker is gone, see `obituary`."""
        answer = self._answer(self._patience)
        return None if answer is None else (answer[1], answer[2], tuple(answer[3]))

    def obituary(self) -> str:
        """How the process ended, or that it did not."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.end()
            return "hung"
        self._listener.join(1.0)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"ended the process, {how}: " + b"".join(self._said[-8:]).decode(errors="replace").strip()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)


@dataclass
class Row:
    """What came of a target's cases."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    most: Most = NOTHING

    def add(self, number: int, kind: str, message: str, taken: Most = NOTHING) -> None:
        self.counts[kind] += 1
        self.most = _most(self.most, taken)
        if kind == "failed":
            self.failures.append((number, message))


class Fuzz:
    """All cases, dealt out in blocks to workers."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self._options, self._place = options, place
        self._made = 0
        self._fault: SetUpError | None = None
        self._lock = threading.Lock()
        first = self._worker()
        self.names = first.names
        self._idle: queue.Queue[Worker | None] = queue.Queue()
        self._idle.put(first)
        for _ in range(options.jobs - 1):
            self._idle.put(None)  # started when it is needed
        self.rows = {index: Row() for index in self._chosen()}

    def _worker(self) -> Worker:
        with self._lock:
            self._made += 1
            place = self._place / str(self._made)
        return Worker(self._options, place)

    def _chosen(self) -> list[int]:
        wanted = self._options.target
        if wanted is None:
            return list(range(len(self.names)))
        if wanted not in self.names:
            raise SystemExit(f"no target {wanted!r}; there are: {', '.join(self.names)}")
        return [self.names.index(wanted)]

    def blocks(self) -> list[tuple[int, int, int]]:
        """Targets and ranges of their cases."""
        if self._options.case is not None:
            return [(index, self._options.case, self._options.case + 1) for index in self.rows]
        share, rest = divmod(self._options.cases, len(self.rows))
        shares = {index: share + (place < rest) for place, index in enumerate(self.rows)}
        return [
            (index, first, min(first + BLOCK, count))
            for index, count in shares.items()
            for first in range(0, count, BLOCK)
        ]

    def run(self) -> None:
        waiting: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        for block in self.blocks():
            waiting.put(block)
        threads = [threading.Thread(target=self._drain, args=(waiting,)) for _ in range(self._options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._fault is not None:
            raise self._fault

    def _drain(self, waiting: queue.SimpleQueue[tuple[int, int, int]]) -> None:
        worker = self._idle.get()
        try:
            while self._fault is None:
                index, first, end = waiting.get_nowait()
                while first < end:
                    worker = worker or self._worker()
                    first, is_gone = self._block(worker, index, first, end)
                    if is_gone:
                        worker.end()
                        worker = None
        except queue.Empty:
            pass
        except SetUpError as fault:
            self._fault = fault
        if worker is not None:
            worker.end()

    def _block(self, worker: Worker, index: int, first: int, end: int) -> tuple[int, bool]:
        """Run cases until all are done or one has ended the worker: the next case to run, and whether it has."""
        worker.ask(index, first, end)
        for number in range(first, end):
            outcome = worker.outcome()
            with self._lock:
                self.rows[index].add(number, *(outcome or ("failed", worker.obituary())))
            if outcome is None:
                return number + 1, True
        return end, False

    # --- what is printed ----------------------------------------------------------------------------------------------

    def table(self) -> str:
        kinds = ("equal", "as written", "refused", "failed")
        width = max(len(name) for name in [*self.names, "target"])
        lines = [
            f"{'target':{width}}  {'cases':>7}  {'equal':>7}  {'as written':>10}  {'refused':>7}  {'failures':>8}"
            f"  {'traced':>10}  {'resident':>10}  {'longest':>8}"
        ]
        total = Row()
        for index, row in self.rows.items():
            total.counts += row.counts
            total.most = _most(total.most, row.most)
            lines.append(_line(self.names[index], width, row, kinds))
        return "\n".join([*lines, _line("total", width, total, kinds)])

    def failures(self) -> list[str]:
        table = "" if self._options.table == TABLE else f" --table {self._options.table}"
        return [
            f"{message}\n  python tools/fuzz_files.py --seed {self._options.seed} --target {self.names[index]!r} "
            f"--case {number}{table}"
            for index, row in self.rows.items()
            for number, message in row.failures
        ]


def _most(one: Most, other: Most) -> Most:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _line(name: str, width: int, row: Row, kinds: tuple[str, ...]) -> str:
    equal, written, refused, failed = (row.counts[kind] for kind in kinds)
    total = sum(row.counts.values())
    traced, resident, seconds = row.most
    return (
        f"{name:{width}}  {total:>7}  {equal:>7}  {written:>10}  {refused:>7}  {failed:>8}"
        f"  {traced / 2**20:>6.2f} MiB  {resident / 2**20:>6.2f} MiB  {seconds:>6.2f} s"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(usage=str(__doc__).split("\n\n")[1][7:])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target")
    parser.add_argument("--case", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        work(options)
        return 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            fuzz = Fuzz(options, Path(folder))
            fuzz.run()
        except SetUpError as fault:
            print(fault)
            return 2
    print(fuzz.table())
    failures = fuzz.failures()
    print("\n".join(["", *failures] if failures else []), end="\n" if failures else "")
    print(f"seed {options.seed}, {time.perf_counter() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
