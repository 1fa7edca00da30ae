"""What recording costs: typical encodes, each timed beside torch.clamp on one element, by turns in one process.

The clamp is the least that a call of the engine costs from Python on this machine; an encode is given as a multiple of
it, so that figures of different machines compare. Nothing runs before the command buffer is committed, and the commit
is not timed. A turn encodes a number of times to one command buffer, and the faster of a clamp before and after counts.
Prints microseconds, the median ratio over the turns with its quartiles, and the ratio aimed at.

Usage: python -m bench.encode_cost [--turns N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import openmps as mps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from typical_encodes import ENCODES, Prepare

CLAMPS, WARM_UP = 200, 3
COSTS = {
    # name: (the aim, how often a turn encodes)
    "ReLU, destination given": (5, 100),
    "ReLU, destination made": (8, 100),
    "convolution with a temporary state": (12, 100),
    "gradient of a convolution": (18, 100),
    "training graph of the sample network with updates": (80, 20),
    "labels of a training step": (40, 20),
}


def clamp() -> float:
    """Seconds of one call."""
    one = torch.zeros(1)
    start = time.perf_counter()
    for _ in range(CLAMPS):
        torch.clamp(one, 0)
    return (time.perf_counter() - start) / CLAMPS


def cost(queue: mps.MTLCommandQueue, prepare: Prepare, times: int) -> float:
    """Seconds of one encode."""
    command_buffer = mps.MPSCommandBuffer(queue)
    encodes: list[Callable[[], object]] = [prepare(command_buffer) for _ in range(times)]
    start = time.perf_counter()
    for encode in encodes:
        encode()
    seconds = (time.perf_counter() - start) / times
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return seconds


def measure(turns: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and ratio of each encode in each turn, without the turns that warm up."""
    device = mps.mtl_device("cpu")
    queue, prepared = device.new_command_queue(), {name: ENCODES[name](device) for name in COSTS}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COSTS}
    for turn in range(turns + WARM_UP):
        for name, (_, times) in COSTS.items():
            before = clamp()
            seconds = cost(queue, prepared[name], times)
            if turn >= WARM_UP:
                found[name].append((seconds, seconds / min(before, clamp())))
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--json", type=Path, help="append the figures to this file of JSON lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(max(2, options.turns))
    print(f"encodes beside torch.clamp, {platform.python_implementation()} {platform.python_version()}, "
          f"torch {torch.__version__}")  # fmt: skip
    print(f"  {'':50} {'µs':>8} {'ratio':>7} {'quartiles':>15} {'aim':>5}")
    row: dict[str, dict[str, float]] = {}
    for name, (aim, _) in COSTS.items():
        least, median, most = statistics.quantiles([ratio for _, ratio in found[name]], n=4)
        microseconds = statistics.median(seconds for seconds, _ in found[name]) * 1e6
        print(f"  {name:50} {microseconds:8.1f} {median:7.1f} {f'{least:.1f} – {most:.1f}':>15} {aim:5}")
        row[name] = {"microseconds": microseconds, "ratio": median, "aim": aim}
    if options.json is not None:
        line = {"bench": "encode_cost", "torch": torch.__version__, "python": platform.python_version(), "encodes": row}
        with options.json.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
