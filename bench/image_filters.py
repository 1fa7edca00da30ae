"""Filters of pictures beside OpenCV, by turns: pictures of a video, 1080 x 1920, and of a camera, 12 megapixels.

A turn of ours encodes a filter from one image into another, commits and waits; the call is made as often. Before
anything is timed the two pictures are compared. What OpenCV makes has no memory of its own before; ours has.

Usage: python -m bench.image_filters [--device cpu|cuda] [--only WORD] [--size NAME] [--turns N] [--threads N]
       [--clock wall|cpu] [--no-record]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import openmps as mps
from bench.filter_cases import CASES, Array, Bytes, Case, Kind, noisy
from bench.harness import OURS, add_options, by_turns, compared, record

SIZES = {"video": (1080, 1920), "camera": (3024, 4032)}
"""Rows and columns."""
PEER = "OpenCV"
TURN = 4e-2
"""Seconds that a turn takes at least: as many encodes as need that long."""


def image_of(device: mps.MTLDevice, kind: Kind, height: int, width: int) -> mps.MPSImage:
    """An image without contents."""
    return mps.MPSImage(device, mps.MPSImageDescriptor(kind.format, width, height, kind.channels))


class Pair:
    """One case at one size: the filter and the call, on the same picture."""

    def __init__(self, case: Case, device: mps.MTLDevice, cv2: Any, height: int, width: int) -> None:
        self._case, self._cv2 = case, cv2
        self._queue = device.new_command_queue()
        self._picture = (case.picture or noisy)(height, width, case.source)
        self._source = mps.MPSImage.from_numpy(device, self._picture)
        self._result = image_of(device, case.result, *case.size(height, width))
        self._encode = case.make(device)
        if case.source.channels == 1:
            self._picture = np.ascontiguousarray(self._picture[..., 0])

    def ours(self) -> None:
        """Encode, and wait."""
        command_buffer = self._queue.command_buffer()
        self._encode(command_buffer, self._source, self._result)
        command_buffer.commit()
        command_buffer.wait_until_completed()

    def call(self) -> Array:
        """What OpenCV makes."""
        return self._case.call(self._cv2, self._picture)

    def results(self) -> tuple[Array, Array]:
        """What both make: elements as they are stored."""
        self.ours()
        found, expected = self._result.numpy(), np.asarray(self.call(), np.float64)
        return found * 255.0 if self._case.result.format is Bytes else found, expected

    def check(self) -> None:
        """Raise unless both make one picture."""
        share = far_apart(self._case, *self.results())
        if share > self._case.few:
            raise AssertionError(f"{self._case.name}: a share of {share:.2g} of the pixels differs")


def far_apart(case: Case, found: Array, expected: Array) -> float:
    """The share of numbers that differ by more than a case allows."""
    if case.apart == float("inf"):
        return 0.0
    allowed = case.apart if case.result.format is Bytes else case.apart * float(np.abs(expected).max())
    difference = np.abs(found.astype(np.float64) - expected.reshape(found.shape))
    return float((difference > allowed + 1e-3 * (case.result.format is Bytes)).mean())


def measure(
    case: Case, device: mps.MTLDevice, cv2: Any, size: tuple[int, int], turns: int, clock: str
) -> dict[str, Any]:
    """One row: the two by turns."""
    pair = Pair(case, device, cv2, *size)
    pair.check()
    start = time.perf_counter()
    pair.call()
    times = max(1, min(100, round(TURN / (time.perf_counter() - start))))
    calls: dict[str, Callable[[], object]] = {OURS: pair.ours, PEER: pair.call}
    return {"size": list(size), **compared(by_turns(calls, turns, times, clock))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names hold it")
    parser.add_argument("--size", default="", choices=sorted(SIZES), help="this size alone")
    add_options(parser, 9)
    options = parser.parse_args(arguments)
    try:
        import cv2  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("OpenCV is not installed: nothing is measured")
        return
    if options.threads:
        torch.set_num_threads(options.threads)
        cv2.setNumThreads(options.threads)
    device = mps.mtl_device(options.device)
    how = {"threads": torch.get_num_threads(), "clock": options.clock, "opencv": cv2.__version__}
    ratios: dict[str, list[float]] = {name: [] for name in SIZES if options.size in ("", name)}
    for case in CASES:
        if options.only not in case.name:
            continue
        rows = [measure(case, device, cv2, SIZES[name], options.turns, options.clock) for name in ratios]
        for found, row in zip(ratios.values(), rows, strict=True):
            found.append(row["ratio"])
        times = "".join(f"{row['contenders'][OURS]['median_ms']:10.4g} ms {row['ratio']:6.2f}" for row in rows)
        print(f"{case.name:40}{times}", flush=True)
        if not options.no_record:
            record("image_filters", options.device, {"work": case.name, **how, "sizes": rows})
    for name, found in ratios.items():
        if found:
            print(f"{name}: median {statistics.median(found):.2f}, least {min(found):.2f}")


if __name__ == "__main__":
    main()
