"""Every kernel of the catalogue on the CPU and on CUDA: the largest difference, kernel by kernel.

Each sample of tests/catalogue.py runs forward and through its gradient kernels on both devices, float32. A difference
is relative to the largest number of the CPU's result. Needs a CUDA device; prints a table, and appends it to a file of
JSON lines with the machine's name.

Usage: python bench/catalogue_twins.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from catalogue import SAMPLES, Sample
from encoding import Bench, train

IMAGES = 3
LIMIT = 2e-5
"""A larger difference makes the run fail: float32 sums in another order, and library functions, stay below."""


def difference(found: Any, expected: Any) -> float:
    """The largest difference relative to the largest expected number; infinite where NaN or infinities differ."""
    if expected is None:
        return 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(found)):
        return float("inf")
    scale = max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
    return float(np.abs(found[finite] - expected[finite]).max(initial=0.0)) / scale


def compare(sample: Sample, benches: list[Bench]) -> tuple[float, float]:
    """Largest difference of the results, and of all gradients."""
    sources = sample.sources(IMAGES)
    cpu, cuda = (train(bench, sample, sources, bench.batch) for bench in benches)
    gradients = [difference(b, a) for a, b in zip(cpu.gradients, cuda.gradients, strict=True)]
    parts = [difference(getattr(cuda, name), getattr(cpu, name)) for name in ("weights", "biases", "losses")]
    return difference(cuda.result, cpu.result), max([*gradients, *parts])


def main() -> int:
    """Run and print; 1 if a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the figures to this file of JSON lines")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("catalogue twins: skipped, no CUDA device here")
        return 0
    benches = [Bench.on(torch.device("cpu")), Bench.on(torch.device("cuda"))]
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, samples in SAMPLES.items():
        for sample in samples:
            rows[kind.__name__].append(compare(sample, benches))
    table = {
        name: {"samples": len(found), "forward": max(f for f, _ in found), "gradient": max(g for _, g in found)}
        for name, found in rows.items()
    }
    print(f"catalogue on {torch.cuda.get_device_name()} beside the CPU, torch {torch.__version__}")
    for name, row in table.items():
        print(f"  {name:32} {row['samples']:3} samples  forward {row['forward']:.1e}  gradients {row['gradient']:.1e}")
    if options.json is not None:
        line = {"bench": "catalogue_twins", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "limit": LIMIT, "kernels": table}  # fmt: skip
        with options.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return int(any(max(row["forward"], row["gradient"]) > LIMIT for row in table.values()))


if __name__ == "__main__":
    raise SystemExit(main())
