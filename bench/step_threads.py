"""What more threads bring each operation of a step on the CPU, by the clock.

For each kind of operation: its milliseconds in a step with one thread and with several, and the first over the second,
which is how many cores it is worth. Processor time cannot tell that: the engine's threads wait for one another awake.
"outside" is what is left of a step: encode, bindings, Python between operations.

Usage: python -m bench.step_threads [--work NAME ...] [--threads N] [--repeats N]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

import torch

import bench.ours
import openmps as mps
from bench.training import TASKS, Task
from openmps.tables import table

_HEADINGS = "operation", "times", "ms, one thread", "ms", "cores"
_OUTSIDE = "outside"


def measured(task: Task, threads: int, repeats: int) -> dict[str, tuple[int, float]]:
    """How often each operation runs in a step, and milliseconds of all of them."""
    torch.set_num_threads(threads)
    turn = getattr(bench.ours, task.does)(device="cpu", **asdict(task.work))
    found = mps.debug.profile(mps.mtl_device("cpu"), turn.encode, repeats=repeats)
    kinds: dict[str, tuple[int, float]] = {}
    for step in found.steps:
        times, milliseconds = kinds.get(step.operation, (0, 0.0))
        kinds[step.operation] = times + 1, milliseconds + 1e3 * step.seconds
    return {**kinds, _OUTSIDE: (1, 1e3 * max(0.0, found.seconds - found.step_seconds))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name, task in TASKS.items() if "cpu" in task.devices]
    parser.add_argument("--work", nargs="+", choices=sorted(names), default=["digits"], metavar="NAME")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    for name in options.work:
        several, one = (measured(TASKS[name], threads, options.repeats) for threads in (options.threads, 1))
        rows = [
            (kind, f"{times}", f"{one[kind][1]:.2f}", f"{ms:.2f}", f"{one[kind][1] / ms:.2f}" if ms else "-")
            for kind, (times, ms) in sorted(several.items(), key=lambda item: -item[1][1])
        ]
        sums = [sum(ms for _, ms in found.values()) for found in (one, several)]
        rows.append(("all", "", f"{sums[0]:.2f}", f"{sums[1]:.2f}", f"{sums[0] / sums[1]:.2f}"))
        print(f"{TASKS[name].title}, {options.threads} threads")
        print(table(_HEADINGS, rows, (False, True, True, True, True)), flush=True)


if __name__ == "__main__":
    main()
