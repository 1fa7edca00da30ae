"""Forty networks out to ONNX, Core ML, Core AI and MLX, and read back; writes docs/moved_networks.md.

Usage: python -m bench.forty_networks [NAME ...] [--way WAY] [--no-record]

Each is written in every format, its weights are held by their bits as that format's own loader gives them, and it is
run: by ONNX Runtime, Core AI's runtime and MLX; Core ML packages by openmps, which converts them in again. With --way
one way is measured anew, and the others are as they were. The networks are those of tests/moved_networks.py, the
formats those of tests/ways_out.py. The exit status is 1 if anything departs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, ROOT, record

sys.path.append(str(ROOT / "tests"))  # where the networks are
PAGE, FILE = ROOT / "docs" / "moved_networks.md", RESULTS / "forty_networks.jsonl"
_RUNTIMES = ("coremltools", "coreai-core", "coreai-onnx", "mlx", "onnx", "onnxruntime")
Row = dict[str, Any]

HEAD = """# Forty networks, moved

Written by `python -m bench.forty_networks` from `bench/results/forty_networks.jsonl`. The networks of
`openmps train --network`, those of `bench.trained`, those of the examples, and U-Nets, residual, grouped, depthwise,
transposed and dilated ones, each written for Core ML in float32 and in float16, for Core AI, for MLX and as ONNX, and
read back by that format's own loader: coremltools, Core AI's runtime, MLX, onnx's checker and ONNX Runtime.

**Weights.** All arrays of weights and biases that the kernels compute with have the same bits there, in float16 those
of the rounded numbers. Core AI's loader shows no large array: its file is searched for them.

**Results.** The figures are the largest error beside the graph, over the largest magnitude of the result, for images of
noise from -1 to 1. MLX, Core AI and ONNX run by their runtimes; of Core ML, which runs on a Mac alone, the package is
converted in again and run by openmps. Where networks end in a softmax, the results before it count, too.

In float16 the error is that of rounding numbers, and of nothing else: *rounding* is what ONNX Runtime gives beside the
graph, in float32, with all weights and numbers of operations rounded to float16; *beside rounded* is the package beside
that.
"""


def measure(name: str, chosen: str | None = None) -> Row:
    """What becomes of a network in each format, or in one."""
    from moved_networks import NETWORKS
    from openmps.errors import MPSError
    from ways_out import WAYS, Case

    case = Case(NETWORKS[name]())
    ways = {} if chosen is None else next(row["ways"] for row in rows() if row["work"] == name)
    for way, take in WAYS.items():
        if chosen not in (None, way):
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = take(case, Path(folder))
            except MPSError as error:
                ways[way] = {"refused": str(error), "left": [each.name for each in Path(folder).iterdir()]}
                continue
        seconds = round(time.perf_counter() - began, 1)
        ways[way] = {**outcome._asdict(), "is_good": outcome.is_good(way), "seconds": seconds}
    numbers = sum(each.size for each in case.weights())
    runtimes = {each: metadata.version(each) for each in _RUNTIMES}
    return {"work": name, "numbers": numbers, "runtimes": runtimes, "ways": ways}


def rows() -> list[Row]:
    """The latest line of each network."""
    found: dict[str, Row] = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else []:
        row = json.loads(line)
        found[row["work"]] = row
    return list(found.values())


def page(found: Sequence[Row]) -> str:
    """The page."""
    ways = [*found[0]["ways"]] if found else []
    headings = ["network", "weights", "arrays", *ways]
    place = headings.index("Core ML, float16") + 1
    headings[place:place] = ["rounding", "beside rounded"]
    lines = [HEAD, f"| {' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    for row in found:
        arrays = max(each.get("arrays", 0) for each in row["ways"].values())
        cells = [row["work"], f"{row['numbers']:,}", f"{arrays}"]
        for way in ways:
            outcome = row["ways"][way]
            cells.append(_cell(outcome))
            if way == "Core ML, float16":
                cells += [f"{outcome[key]:.1e}" if key in outcome else "-" for key in ("rounding", "rounded")]
        lines.append(f"| {' | '.join(cells)} |")
    beyond = [
        f"{row['work']} ({way})" for row in found for way, each in row["ways"].items() if not each.get("is_good", False)
    ]
    lines.append(
        "\nBeyond 1e-4, and in float16 beyond both 1e-2 of the graph and 1e-4 of rounded numbers: "
        f"{', '.join(beyond) or 'none'}."
    )
    versions = found[-1]["runtimes"] if found else {}
    lines.append(f"\n{', '.join(f'{name} {version}' for name, version in versions.items())}, {len(found)} networks.\n")
    return "\n".join(lines)


def _cell(outcome: Row) -> str:
    if "refused" in outcome:
        return "refused"
    missing = outcome["arrays"] - outcome["exact"]
    return f"{outcome['error']:.1e}" + (f", {missing} arrays differ" if missing else "")


def is_good(row: Row) -> bool:
    """Whether a network is the same in every format."""
    return all(each.get("is_good", False) for each in row["ways"].values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--way", help="measure this one alone")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results and the page as they are")
    options = parser.parse_args(arguments)
    from moved_networks import NETWORKS

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    found: list[Row] = []
    for name in options.names or NETWORKS:
        found.append(measure(name, options.way))
        cells = (f"{way} {_cell(outcome)}" for way, outcome in found[-1]["ways"].items())
        print(f"{name}: {'; '.join(cells)}{'' if is_good(found[-1]) else '  DEPARTS'}", flush=True)
        if not options.no_record:
            record("forty_networks", "cpu", found[-1])
            PAGE.write_text(page(rows()))
    return 0 if all(map(is_good, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
