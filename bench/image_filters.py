"""Filters of pictures by turns with OpenCV, or with PyTorch's operations: of a video, 1080 x 1920, and 12 megapixels.

A turn of ours encodes a filter from one image into another, commits and waits; the call is made as often. Before
anything is timed the two pictures are compared. What peers make has no memory of its own before; ours has. On CUDA the
peer is PyTorch, and five filters in one command buffer are timed beside five copies of the picture, the bytes of which
they read and write at least: each waited for, and with the one before under way meanwhile, as frames of a video are;
encoded for each command buffer, and once, as `ReusableCommands`.

Usage: python -m bench.image_filters [--device cpu|cuda] [--peer opencv|torch] [--only WORD] [--size NAME] [--turns N]
       [--threads N] [--clock wall|cpu] [--no-record]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import openmps as mps
from bench import filter_torch
from bench.filter_cases import CASES, Array, Bytes, Case, Kind, noisy
from bench.harness import COPIES, OURS, add_options, by_turns, compared, record

SIZES = {"video": (1080, 1920), "camera": (3024, 4032)}
"""Rows and columns."""
PEERS = {"opencv": "OpenCV", "torch": "PyTorch"}
CHAIN = "five filters in a command buffer, beside five copies"
FLOW = "the same, two command buffers under way"
ONCE = "the five filters encoded once, beside five copies"
ONCE_FLOW = "encoded once, two command buffers under way"
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
        return self._result.read_bytes(), np.asarray(self.call())

    def check(self) -> None:
        """Raise unless both make one picture."""
        share = far_apart(self._case, *self.results())
        if share > self._case.few:
            raise AssertionError(f"{self._case.name}: a share of {share:.2g} of the pixels differs")


class TorchPair(Pair):
    """The same with PyTorch's operations as the call, on the device of the filter."""

    def __init__(self, case: Case, device: mps.MTLDevice, cv2: Any, height: int, width: int) -> None:
        super().__init__(case, device, cv2, height, width)
        self._stored = self._source.tensor().clone(memory_format=torch.channels_last)

    def call(self) -> Any:
        """What PyTorch makes; waits."""
        made = filter_torch.PEERS[self._case.name](self._stored)
        if made.is_cuda:
            torch.cuda.synchronize()
        return made

    def results(self) -> tuple[Array, Array]:
        """See the base."""
        self.ours()
        return self._result.read_bytes(), self.call().cpu().permute(0, 2, 3, 1)[0].numpy()


class Chain:
    """Filters one behind the other in a command buffer, and as many copies of the picture."""

    def __init__(self, device: mps.MTLDevice, height: int, width: int) -> None:
        cases = [next(case for case in CASES if case.name == name) for name in filter_torch.CHAIN]
        self._queue = device.new_command_queue()
        self._encodes = [case.make(device) for case in cases]
        picture = mps.MPSImage.from_numpy(device, noisy(height, width, cases[0].source))
        self._images = [picture, *(image_of(device, case.result, height, width) for case in cases)]
        self._from = picture.tensor().clone(memory_format=torch.channels_last)
        self._into = torch.empty_like(self._from)
        self._commands = mps.ReusableCommands(self._queue)
        self._encode(self._commands)
        self._before: mps.MTLCommandBuffer | None = None
        self._copied: deque[torch.cuda.Event] = deque([torch.cuda.Event()] if self._into.is_cuda else ())

    def ours(self) -> None:
        """Encode all, and wait."""
        self._committed().wait_until_completed()

    def flow(self) -> None:
        """Encode all, and wait for those before."""
        self._wait_for_the_one_before(self._committed())

    def once(self) -> None:
        """Do what was encoded once, and wait."""
        self._done_again().wait_until_completed()

    def flow_once(self) -> None:
        """The same, waiting for those before."""
        self._wait_for_the_one_before(self._done_again())

    def _encode(self, command_buffer: mps.CommandBuffer) -> None:
        for encode, source, result in zip(self._encodes, self._images, self._images[1:], strict=False):
            encode(command_buffer, source, result)

    def _committed(self) -> mps.MTLCommandBuffer:
        command_buffer = self._queue.command_buffer()
        self._encode(command_buffer)
        command_buffer.commit()
        return command_buffer

    def _done_again(self) -> mps.MTLCommandBuffer:
        command_buffer = self._queue.command_buffer()
        self._commands.encode(command_buffer)
        command_buffer.commit()
        return command_buffer

    def _wait_for_the_one_before(self, command_buffer: mps.MTLCommandBuffer) -> None:
        self._before, before = command_buffer, self._before
        if before is not None:
            before.wait_until_completed()

    def copies(self) -> None:
        """Read and write the picture as often."""
        self._copy()
        if self._into.is_cuda:
            torch.cuda.synchronize()

    def flow_of_copies(self) -> None:
        """The same, waiting for those before."""
        self._copy()
        if self._into.is_cuda:
            self._copied.append(torch.cuda.Event())
            self._copied[-1].record()
            self._copied.popleft().synchronize()

    def _copy(self) -> None:
        for _ in self._encodes:
            self._into.copy_(self._from)


def far_apart(case: Case, found: Array, expected: Array) -> float:
    """The share of numbers that differ by more than a case allows."""
    if case.apart == float("inf"):
        return 0.0
    allowed = case.apart if case.result.format is Bytes else case.apart * float(np.abs(expected).max())
    difference = np.subtract(found, expected.reshape(found.shape), dtype=np.float32)
    return float((np.abs(difference, out=difference) > allowed).mean())


def measure(
    case: Case, device: mps.MTLDevice, cv2: Any, size: tuple[int, int], turns: int, clock: str
) -> dict[str, Any]:
    """One row: the two by turns. Without OpenCV the peer is PyTorch."""
    pair = (TorchPair if cv2 is None else Pair)(case, device, cv2, *size)
    pair.check()
    calls: dict[str, Callable[[], object]] = {OURS: pair.ours, PEERS["torch" if cv2 is None else "opencv"]: pair.call}
    return timed(calls, size, turns, clock)


def timed(calls: dict[str, Callable[[], object]], size: tuple[int, int], turns: int, clock: str) -> dict[str, Any]:
    """The row of calls by turns; the second one says how often a turn makes them."""
    peer = [*calls.values()][1]
    peer()
    start = time.perf_counter()
    peer()
    times = max(1, min(100, round(TURN / (time.perf_counter() - start))))
    return {"size": list(size), **compared(by_turns(calls, turns, times, clock))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names hold it")
    parser.add_argument("--size", default="", choices=sorted(SIZES), help="this size alone")
    parser.add_argument("--peer", choices=sorted(PEERS), help="OpenCV unless the device is CUDA")
    add_options(parser, 9)
    options = parser.parse_args(arguments)
    peer = options.peer or ("opencv" if options.device == "cpu" else "torch")
    cv2 = None
    if peer == "opencv":
        try:
            import cv2  # pyright: ignore[reportMissingImports]
        except ImportError:
            print("OpenCV is not installed: nothing is measured")
            return
    if options.threads:
        torch.set_num_threads(options.threads)
        if cv2 is not None:
            cv2.setNumThreads(options.threads)
    torch.backends.cudnn.allow_tf32 = False  # which PyTorch's convolutions would round numbers to
    device = mps.mtl_device(options.device)
    how = {"threads": torch.get_num_threads(), "clock": options.clock, "peer": peer, **version_of(cv2)}
    ratios: dict[str, list[float]] = {name: [] for name in SIZES if options.size in ("", name)}
    for case in CASES:
        if options.only in case.name and (peer == "opencv" or case.name in filter_torch.PEERS):
            rows = [measure(case, device, cv2, SIZES[name], options.turns, options.clock) for name in ratios]
            for found, row in zip(ratios.values(), rows, strict=True):
                found.append(row["ratio"])
            report(case.name, rows, how, options)
    for name, found in ratios.items():
        if found:
            print(f"{name}: median {statistics.median(found):.2f}, least {min(found):.2f}")
    if peer == "torch" and options.only in CHAIN:
        chains = [(SIZES[name], Chain(device, *SIZES[name])) for name in ratios]
        for name, calls in (
            (CHAIN, [{OURS: each.ours, COPIES: each.copies} for _, each in chains]),
            (FLOW, [{OURS: each.flow, COPIES: each.flow_of_copies} for _, each in chains]),
            (ONCE, [{OURS: each.once, COPIES: each.copies} for _, each in chains]),
            (ONCE_FLOW, [{OURS: each.flow_once, COPIES: each.flow_of_copies} for _, each in chains]),
        ):
            rows = [
                timed(made, size, options.turns, options.clock) for (size, _), made in zip(chains, calls, strict=True)
            ]
            report(name, rows, how, options)


def version_of(cv2: Any) -> dict[str, str]:
    """OpenCV's."""
    return {} if cv2 is None else {"opencv": cv2.__version__}


def report(name: str, rows: list[dict[str, Any]], how: dict[str, Any], options: argparse.Namespace) -> None:
    """Print a case, and record it unless that is not wanted."""
    times = "".join(f"{row['contenders'][OURS]['median_ms']:10.4g} ms {row['ratio']:6.2f}" for row in rows)
    print(f"{name:40}{times}", flush=True)
    if not options.no_record:
        record("image_filters", options.device, {"work": name, **how, "sizes": rows})


if __name__ == "__main__":
    main()
