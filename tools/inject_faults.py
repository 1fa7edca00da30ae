"""Lets calls of the system, allocations and callbacks fail, one at a time, and says what came of it.

usage: inject_faults.py [--faults 100] [--seed 0] [--only TEXT] [--list] [--table FILE]

Jobs write and read files, and make and encode kernels and graphs. Each is run once whole, which tells every place that
it reaches; a fault is one call of one place that fails, alone or with all calls of that place behind it. ``--faults``
takes so many of them, as many of each job as of any other, drawn by the seed; 0 takes all. For each fault:

- the outcome is the value of the run without it, a warning, or an error of openmps, raised or in
  ``command_buffer.error``. What a callback of the user raised may come back as it is, or, where nobody waits for it, in
  the log; an interrupt may come back as an interrupt;
- what was there before reads as it did, what is replaced reads as before or as after;
- no temporary file is left, unless removing it is what fails;
- the same work, done again, gives what it gives without a fault.

Jobs are rows of faults/file_jobs.py and faults/encode_jobs.py, places and errors rows of faults/strike.py; ``--table``
takes the jobs of another file. Whatever is otherwise is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.job import Job
from faults.strike import Strike, kind_of

from openmps.errors import MPSError, MPSTrainingWarning

PATIENCE = 30
"""Seconds that a fault may take."""
MOST_CALLS = 12
"""Calls of one place that are made to fail in one job: the first ones, and as many of the last."""


class _Told(logging.Handler):
    """The faults that are logged while within."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[BaseException | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.faults.append(record.exc_info[1] if record.exc_info else None)

    def __enter__(self) -> _Told:
        log = logging.getLogger("openmps")
        log.propagate = False
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("openmps").removeHandler(self)


class TooLong(BaseException):
    """A fault hangs."""


@dataclass(frozen=True)
class Fault:
    """One call of one place that fails."""

    job: Job
    place: str
    call: int
    error: int
    lasting: bool

    def __str__(self) -> str:
        name = kind_of(self.place).faults[self.error][0]
        onward = " and those behind it" if self.lasting else ""
        return f"{self.job.name}: {self.place}, call {self.call}{onward}: {name}"

    def strike(self) -> Strike:
        return Strike(self.place, self.call, kind_of(self.place).faults[self.error][1], self.lasting)


@dataclass(frozen=True)
class Whole:
    """A job without a fault: its value, what is replaced before and after, and the places that it reaches."""

    value: object
    older: object
    newer: tuple[object, object]
    counts: Counter[str]


def jobs(table: Path | None) -> tuple[Job, ...]:
    """The jobs of a file, or all."""
    if table is None:
        from faults import encode_jobs, file_jobs

        return (*file_jobs.JOBS, *encode_jobs.JOBS)
    spec = importlib.util.spec_from_file_location("table", table)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{table} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["table"] = module
    spec.loader.exec_module(module)
    return module.JOBS


def run_whole(job: Job) -> Whole:
    """Twice, as the first run imports and caches what later ones only use."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            made = job.prepare(Path(folder))
            older, before, strike = job.older(made), job.newer(made), Strike()
            with strike.on(Path(folder)):
                value = job.act(made)
            if job.older(made) != older:
                raise SystemExit(f"{job.name}: it changes what is there before, even without a fault")
            found = Whole(_plain(value), older, (before, job.newer(made)), strike.counts)
    return found


def faults_of(job: Job, counts: Counter[str]) -> list[Fault]:
    """All faults of a job."""
    return [
        Fault(job, place, call, error, lasting)
        for place, count in sorted(counts.items())
        for call in range(1, count + 1)
        if call <= MOST_CALLS or call > count - MOST_CALLS
        for error in range(len(kind_of(place).faults))
        for lasting in (False, True)
    ]


def drawn(faults: dict[str, list[Fault]], count: int, seed: int) -> list[Fault]:
    """So many faults, taking turns among jobs and, within one, among places."""
    if count == 0:
        return [fault for each in faults.values() for fault in each]
    chance = random.Random(seed)
    turns = {name: _in_turns(each, chance) for name, each in faults.items()}
    found: list[Fault] = []
    while len(found) < count and any(turns.values()):
        found += [each.pop() for each in turns.values() if each]
    return found[:count]


def _in_turns(faults: list[Fault], chance: random.Random) -> list[Fault]:
    places: dict[str, list[Fault]] = {}
    for fault in faults:
        places.setdefault(fault.place, []).append(fault)
    for each in places.values():
        chance.shuffle(each)
    order = list(places.values())
    chance.shuffle(order)
    longest = max(map(len, order), default=0)
    return [each[turn] for turn in range(longest) for each in order if turn < len(each)][::-1]


def _plain(value: object) -> object:
    """A value that can be compared between runs in different folders."""
    return value if isinstance(value, str | bytes | None) else type(value).__name__


def _too_long(*_: object) -> None:
    raise TooLong


def inject(fault: Fault, whole: Whole) -> tuple[str, str]:
    """What came of a fault, and what is wrong with that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = fault.job.prepare(folder)
        strike = fault.strike()
        signal.alarm(PATIENCE)
        try:
            outcome, wrong = _outcome(fault, made, strike, folder, whole)
            return outcome, wrong or _aftermath(fault, made, folder, whole)
        except TooLong:
            return "hung", f"took more than {PATIENCE} s"
        finally:
            signal.alarm(0)


def _outcome(fault: Fault, made: Any, strike: Strike, folder: Path, whole: Whole) -> tuple[str, str]:
    try:
        with warnings.catch_warnings(record=True) as warned, _Told() as told, strike.on(folder):
            warnings.simplefilter("always")
            value = _plain(fault.job.act(made))
    except MPSError as error:
        said = f"{type(error).__name__}: {error}"
        return "own error", "" if _comes_of(error, strike.raised) else f"an error that does not name its cause: {said}"
    except BaseException as error:
        if isinstance(error, TooLong):
            raise
        is_own = any(error is each for each in strike.raised) and (
            kind_of(fault.place).is_of_user or isinstance(error, KeyboardInterrupt)
        )
        return ("as raised", "") if is_own else ("raw error", f"raised {type(error).__name__}: {error}"[:300])
    if not strike.raised:
        return "not reached", ""
    if any(issubclass(each.category, MPSTrainingWarning) for each in warned):
        return "warning", ""
    if any(each in told.faults for each in strike.raised):
        return "logged", ""
    if kind_of(fault.place).is_of_user or isinstance(strike.raised[0], KeyboardInterrupt):
        return "swallowed", f"{strike.raised[0]!r} was swallowed"
    return "value", "" if value == whole.value else "gave another value than without the fault"


def _comes_of(error: BaseException | None, causes: list[BaseException]) -> bool:
    """Whether an error is, or was raised from, or while handling, one of others."""
    while error is not None and not any(error is each for each in causes):
        error = error.__cause__ or error.__context__
    return error is not None


def _aftermath(fault: Fault, made: Any, folder: Path, whole: Whole) -> str:
    """What is wrong with what a fault left behind."""
    left = sorted(path.name for path in folder.rglob(".openmps-*.tmp"))
    if left and not (fault.lasting and fault.place == "unlink"):
        return f"left {', '.join(left)}"
    try:
        if fault.job.older(made) != whole.older:
            return "what was there before has changed"
        if fault.job.newer(made) not in whole.newer:
            return "what was to be replaced is neither as before nor as after"
    except Exception as error:
        return f"what was there before is lost: {type(error).__name__}: {error}"[:300]
    try:
        again = _plain(fault.job.act(made))
    except Exception as error:
        return f"done again it raised {type(error).__name__}: {error}"[:300]
    is_same = again == whole.value and fault.job.newer(made) == whole.newer[1]
    return "" if is_same else "done again it gave something else"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(usage=str(__doc__).split("\n\n")[1][7:])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    began = time.perf_counter()
    wholes = {job.name: run_whole(job) for job in jobs(options.table)}
    all_faults = {job.name: faults_of(job, wholes[job.name].counts) for job in jobs(options.table)}
    chosen = [fault for fault in drawn(all_faults, options.faults, options.seed) if options.only in str(fault)]
    counts, wrong = Counter[str](), 0
    for fault in chosen:
        outcome, what = inject(fault, wholes[fault.job.name])
        counts["wrong" if what else outcome] += 1
        wrong += bool(what)
        if what or options.list:
            print(f"{fault}: {outcome}{': ' if what else ''}{what}", flush=True)
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    possible = sum(map(len, all_faults.values()))
    print(f"{len(chosen)} of {possible:,} faults in {len(wholes)} jobs: {told}")
    print(f"seed {options.seed}, {time.perf_counter() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
