"""Run the tests as on other processors: what libraries and our own choices would do there, with one and all threads.

    python tools/processors.py                    the whole suite under every setting, and a table
    python tools/processors.py --part             a small part of it under two settings: what `make test` does
    python tools/processors.py --only SSE41       settings whose name has this word; --threads 1, all or a number
    python tools/processors.py --write FILE       adds a line of JSON for each setting that ran

A setting is what `ONEDNN_MAX_CPU_ISA` and `ATEN_CPU_CAPABILITY` name for oneDNN and PyTorch's own kernels, the maker
by which we choose forms, and a number of threads. MKL asks the processor itself, and cannot be told otherwise on all.
`--rounding` rounds as no processor at hand does; see tests/rounding.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from openmps.cpu import cpu_features

ROOT = Path(__file__).parents[1]
PART = [
    "tests/graph/test_numbers.py",
    "tests/graph/test_random_graphs.py",
    "tests/graph/test_other_nodes.py",
    "tests/graph/test_pooled_normalization_fusion.py",
    "tests/ops/test_products.py",
    "tests/ops/test_pixel_products.py",
    "tests/sweeps/test_batch.py::test_batch_equals_singles",
    "tests/training/test_architectures.py",
]
"""Of the tests those that compare two forms of a computation most closely."""
LARGEST = "tests/training/test_architectures.py::test_gradients_and_running_statistics_are_those_of_pytorch[resnet50"
"""Left out of the part: a third of its time, for layers that smaller networks have, too."""


@dataclass(frozen=True)
class Setting:
    """One way to run the tests."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    threads: str = "1"
    """Of each process: 1, another number, or `all` for one process with a thread for each core."""

    def spread(self, workers: str) -> list[str]:
        """How the tests are given to processes, which share the cores."""
        if self.threads == "all":
            return ["-n", "0"]
        if self.threads == "1":
            return ["-n", workers] if workers != "1" else ["-n", "0"]
        if workers == "auto":
            workers = str(max(1, len(os.sched_getaffinity(0)) // int(self.threads)))
        return ["-n", workers, "--threads", self.threads]

    def _threads(self) -> dict[str, str]:
        return {} if self.threads == "all" else {"OMP_NUM_THREADS": self.threads}

    def run(self, tests: list[str], workers: str) -> dict[str, object]:
        """Run them, and return the row of the table."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
        began = time.monotonic()
        ended = subprocess.run(
            [*command, *self.spread(workers), *self.options, *tests], cwd=ROOT,
            env={**os.environ, **self._threads(), **self.environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        summary = ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ended.stderr[-200:]
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)}
        if ended.returncode:
            print(ended.stdout[-6000:], ended.stderr[-2000:])
        return {
            "setting": self.name,
            "threads": self.threads,
            **{word: counts.get(word, 0) for word in ("passed", "failed", "skipped")},
            "seconds": round(time.monotonic() - began),
            "status": ended.returncode,
        }


def _settings(threads: list[str]) -> list[Setting]:
    """The four sets of instructions, each with these numbers of threads, and both makers."""
    found = []
    sets = [("SSE41", "default", "intel"), ("AVX2", "avx2", "amd"), ("AVX512_CORE", "avx512", "intel"), ("", "", "amd")]
    for number in threads:
        for onednn, torch, maker in sets:
            limits = {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": torch} if onednn else {}
            name = f"oneDNN {onednn or 'as it is'}, PyTorch {torch or 'as it is'}, forms of {maker}"
            found.append(Setting(name, limits, ("--maker", maker), number))
    return found


def _settings_of_part() -> list[Setting]:
    other = "amd" if cpu_features().maker == "GenuineIntel" else "intel"
    limits, fewer = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default"}, {"OPENMPS_GRAPHS": "60"}
    name, part = f"oneDNN AVX2, PyTorch default, forms of {other}", ("--deselect", LARGEST)
    return [
        Setting(name, limits | fewer, ("--maker", other, *part)),
        Setting("sums rounded by layout, seed 1", fewer, ("--rounding", "1", *part)),
    ]


def _rows(settings: list[Setting], tests: list[str], workers: str, *, at_once: bool) -> Iterator[dict[str, object]]:
    """The rows of the table, each as soon as it is there; all settings at once share the cores."""
    together = len(settings) if at_once else 1
    if at_once and workers == "auto":
        workers = str(max(1, len(os.sched_getaffinity(0)) // together))
    with ThreadPoolExecutor(together) as pool:
        yield from pool.map(lambda setting: setting.run(tests, workers), settings)


def _threads(text: str) -> str:
    if text != "all" and not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be all or a number of at least 1, got {text!r}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--threads", action="append", type=_threads, help="of each process: 1, a number or all; else 1 and all"
    )
    parser.add_argument("--write", type=Path)
    parser.add_argument("--workers", default="auto")
    asked = parser.parse_args()
    settings = _settings_of_part() if asked.part else _settings(asked.threads or ["1", "all"])
    settings = [each for each in settings if asked.only in each.name]
    if not settings:
        parser.error(f"--only: no setting's name has {asked.only!r}")
    features, tests = cpu_features(), PART if asked.part else ["tests"]
    print(f"{features.name} ({features}): {' '.join(tests)}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    failed = 0
    for row in _rows(settings, tests, asked.workers, at_once=asked.part):
        failed += row["status"] != 0
        print(
            f"{row['setting']:55} {row['threads']:>3} thread(s)  {row['passed']:6} passed {row['failed']:4} failed "
            f"{row['skipped']:4} skipped {row['seconds']:5} s", flush=True,
        )  # fmt: skip
        if asked.write:
            about = {"processor": features.name, "features": str(features), "commit": commit.strip()}
            with asked.write.open("a") as file:
                file.write(json.dumps({**row, **about}) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
