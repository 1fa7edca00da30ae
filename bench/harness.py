"""What every benchmark shares: contenders by turns, medians with their spread, ratios, and results as JSON lines.

A contender is a function that makes a `Turn`. `by_processes` gives each a process of its own, so that thread pools and
memory do not mix, and lets one process at a time do a turn; `by_turns` lets functions take turns in one process. What
cannot run here is skipped, and the result says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
OURS = "openmps"
COPIES = "copies"
"""A peer that moves the bytes alone: what work would take that is nothing but memory."""
WARM_TURNS = 2
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""How turns are timed: by the time that passes, or by that which the process's threads spend computing. The latter is
what can be compared on a machine that others use too; what runs beside something else is not seen in it."""
_REST = 0.1
"""Seconds between turns: threads without work stay awake for some milliseconds, on cores that the next one wants."""
_PACKAGES = ("torch", "numpy", "jax", "onnxruntime", "openvino", "MNN", "ncnn", "triton")
_MARK = "bench>"


class Turn(NamedTuple):
    """A contender made ready."""

    run: Callable[[int], object]
    """Does so many steps and returns when the device is done."""
    encode: Callable[[Any], object] | None = None
    """Records one step on a command buffer; ours alone can say it."""


class SkippedError(Exception):
    """Why a contender does not run here."""


@dataclass(frozen=True)
class Contender:
    """Something that is measured: ``function`` of ``module``, called with ``arguments``, makes its `Turn`."""

    name: str
    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(milliseconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and least of the turns, in milliseconds a step."""
    low, middle, high = statistics.quantiles(milliseconds, n=4) if len(milliseconds) > 1 else [milliseconds[0]] * 3
    named = {"median_ms": middle, "low_ms": low, "high_ms": high, "least_ms": min(milliseconds)}
    return {name: _digits(value) for name, value in named.items()}


def compared(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The best peer, and the time of each over ours: the median over turns of the ratio of the two times of a turn."""
    peers = {name: row["median_ms"] for name, row in found.items() if name != OURS and "median_ms" in row}
    rows: dict[str, Any] = {"contenders": found}
    if peers and "median_ms" in found.get(OURS, {}):
        best = min(peers, key=lambda name: peers[name])
        for name in peers:
            ratios = [peer / ours for peer, ours in zip(found[name]["turns"], found[OURS]["turns"], strict=True)]
            found[name]["ratio"] = _digits(statistics.median(ratios))
        rows |= {"best_peer": best, "ratio": found[best]["ratio"]}
    for row in found.values():
        row.pop("turns", None)
    return rows


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


# --- in one process ---------------------------------------------------------------------------------------------------


def by_turns(
    turns: Mapping[str, Callable[[], object]],
    rounds: int,
    times: int = 1,
    clock: str = "wall",
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Milliseconds of one call of each function, which takes turns of ``times`` calls with the others.

    What is to be done ``before`` a turn of a function does not count.
    """
    return by_long_turns({name: partial(_repeat, call) for name, call in turns.items()}, rounds, times, clock, before)


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def by_long_turns(
    turns: Mapping[str, Callable[[int], object]],
    rounds: int,
    times: int,
    clock: str = "wall",
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, dict[str, Any]]:
    """`by_turns` of functions that do their work so often by themselves."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    now = CLOCKS[clock]
    for round_ in range(rounds + WARM_TURNS):
        for name, call in turns.items():
            if before is not None and name in before:
                before[name]()
            start = now()
            call(times)
            if round_ >= WARM_TURNS:
                taken[name].append((now() - start) * 1000 / times)
    return {name: {**figures(values), "turns": values} for name, values in taken.items()}


def times_in(seconds: float, call: Callable[[int], object], calls: int = 1) -> int:
    """How often work is to be done for a turn of so many seconds, 1000 times at most; it is done ``calls`` times."""
    start = time.perf_counter()
    call(calls)
    return max(1, min(1000, round(calls * seconds / (time.perf_counter() - start))))


# --- in processes -----------------------------------------------------------------------------------------------------


def by_processes(
    contenders: Sequence[Contender], rounds: int, steps: int, *, threads: int | None = None, clock: str = "wall"
) -> dict[str, dict[str, Any]]:
    """Milliseconds of one step of each contender, seconds to the end of its first step, and its peak memory."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        ready: dict[str, _Process] = {}
        for each in contenders:
            process = stack.enter_context(_process(each, threads, clock))
            row = process.answer()
            if "skipped" in row:
                print(f"  {each.name}: skipped, {row['skipped']}", flush=True)
            else:
                ready[each.name] = process
            found[each.name] = row
        taken: dict[str, list[float]] = {name: [] for name in ready}
        for round_ in range(rounds + WARM_TURNS):
            for name, process in ready.items():
                time.sleep(_REST)
                milliseconds = process.ask(steps)["ms"]
                if round_ >= WARM_TURNS:
                    taken[name].append(milliseconds)
        for name, process in ready.items():
            found[name] |= {**figures(taken[name]), "turns": taken[name], **process.ask(0)}
    return found


class _Process:
    """A contender in a process of its own, which does a turn when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def ask(self, steps: int) -> dict[str, Any]:
        """Have it do so many steps, or for 0 tell its memory and end."""
        print(steps, file=self._to, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What it says next; what it prints otherwise is passed over."""
        for line in self._from:
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK) :])
        return {"skipped": f"ended with status {self._process.wait()}"}


@contextmanager
def _process(contender: Contender, threads: int | None, clock: str) -> Iterator[_Process]:
    said = json.dumps([contender.module, contender.function, dict(contender.arguments), threads, clock])
    path = os.pathsep.join([*map(str, (ROOT, ROOT / "src", ROOT / "tests", ROOT / "examples")), *_paths()])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "bench.harness", said],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        yield _Process(process)
    finally:
        process.kill()
        process.wait()


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _serve(said: str) -> None:
    """In the process of a contender: make it, do its first step, then a turn for each line that comes."""
    import importlib

    module, function, arguments, threads, clock = json.loads(said)
    now = CLOCKS[clock]

    def tell(row: dict[str, Any]) -> None:
        print(f"{_MARK}{json.dumps(row)}", flush=True)

    try:
        import torch

        if threads:
            torch.set_num_threads(threads)
        make = getattr(importlib.import_module(module), function)
        start = time.perf_counter()
        turn: Turn = make(**arguments)
        turn.run(1)
    except (SkippedError, ImportError) as reason:
        tell({"skipped": str(reason)})
        return
    except Exception as fault:
        tell({"skipped": f"{type(fault).__name__}: {str(fault)[:200]}"})
        return
    tell({"first_step_s": _digits(time.perf_counter() - start)})
    for line in sys.stdin:
        steps = int(line)
        if not steps:
            tell({"peak_MiB": round(_peak(arguments.get("device", "cpu")))})
            return
        start = now()
        turn.run(steps)
        tell({"ms": (now() - start) * 1000 / steps})


def _peak(device: str) -> float:
    """Most mebibytes that were in use: of the device, or the whole process on the CPU."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- results ----------------------------------------------------------------------------------------------------------


def machine(device: str) -> str:
    """The name of the device, and how many cores or GPUs there are."""
    if device != "cpu":
        import torch

        return torch.cuda.get_device_name()
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def versions() -> dict[str, str]:
    """Of Python and of the packages that contenders use, those that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the working tree, with a + if something in it has changed since."""
    try:
        run = ["git", "-C", str(ROOT)]
        head = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*run, "status", "--porcelain", "src", "bench"], capture_output=True, text=True, check=True
        )
        lines = [line for line in changed.stdout.splitlines() if "bench/results/" not in line]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if lines else "")


def record(bench: str, device: str, row: Mapping[str, Any], path: Path | None = None) -> None:
    """Append a line to the results of a benchmark."""
    head = {"bench": bench, "device": "cpu" if device == "cpu" else "cuda", "machine": machine(device)}
    line = {**head, "versions": versions(), "commit": commit(), **row}
    with (path or RESULTS / f"{bench}.jsonl").open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def add_options(parser: argparse.ArgumentParser, turns: int) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--threads", type=int, help="threads of each process; as many as there are cores unless said")
    parser.add_argument("--clock", default="wall", choices=sorted(CLOCKS), help="cpu: for a machine that is shared")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")


def show(title: str, row: Mapping[str, Any]) -> None:
    """Print what was measured."""
    print(title, flush=True)
    for name, found in row["contenders"].items():
        if "skipped" in found:
            print(f"  {name:44} skipped: {found['skipped']}")
            continue
        more = "".join(f"  {found[key]:7} {key}" for key in ("first_step_s", "peak_MiB", "ratio") if key in found)
        spread = f"{found['low_ms']:.4g} – {found['high_ms']:.4g}"
        print(f"  {name:44} {found['median_ms']:9.4g} ms  ({spread}){more}")
    if "ratio" in row:
        print(f"  {row['best_peer']} takes {row['ratio']:.2f} times as long as {OURS}", flush=True)


if __name__ == "__main__":
    # The functions that contenders raise `SkippedError` from import this module by its name, not as `__main__`.
    from bench import harness

    harness._serve(sys.argv[1])
