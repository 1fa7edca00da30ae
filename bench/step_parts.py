"""Where the host's time of a replayed training step goes: the digit network's, part by part, on a GPU.

Each part is what a program calls: picking images, the batch, the labels, the command buffer, the encode, the commit.
Prints medians and the least tenth in microseconds, once with the device idle before each step, so that nothing waits
for it, and once as fast as it goes; then the calls of Python that take longest.

Usage: python -m bench.step_parts [--steps N] [--float32]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import defaultdict

import torch

import openmps as mps
from bench.replayed_step import Format, Ours, host_alone, replay_alone

WARM_UP, IN_FLIGHT = 60, 64


class Parts(Ours):
    """Steps that note how long each of their parts takes."""

    waits = False
    """Whether each step begins with the device idle."""

    def __init__(self, device: mps.MTLDevice, channel_format: Format) -> None:
        super().__init__(device, channel_format, 16, IN_FLIGHT)
        self.times: dict[str, list[int]] = defaultdict(list)

    def step(self) -> None:
        if self.waits:
            torch.cuda.synchronize()
        self._began = time.perf_counter_ns()
        picked = next(self.picks)
        images, targets = self.images.take(picked, axis=0), self.one_hot.take(self.classes.take(picked), axis=0)
        self._note("pick")
        batch = mps.MPSImageBatch.from_numpy(self.device, images, Format.UNORM8)
        self._note("batch")
        self.labels = mps.MPSCNNLossLabels.batch(self.device, targets)
        self._note("labels")
        self.last = mps.MPSCommandBuffer(command_queue=self.queue)
        self._note("command buffer")
        self.graph.encode_batch(self.last, [batch], [self.labels])
        self._note("encode")
        self.last.commit()
        self._note("commit")

    def _note(self, part: str) -> None:
        now = time.perf_counter_ns()
        self.times[part].append(now - self._began)
        self._began = now


def report(title: str, times: dict[str, list[int]]) -> None:
    """Print the parts of some steps."""
    sums = [0.0, 0.0]
    print(title)
    for part, each in times.items():
        found = sorted(each)[len(each) // 2] / 1000, sorted(each)[len(each) // 10] / 1000
        sums = [whole + one for whole, one in zip(sums, found, strict=True)]
        print(f"  {part:16} {found[0]:8.1f} {found[1]:8.1f}")
    print(f"  {'all':16} {sums[0]:8.1f} {sums[1]:8.1f}", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--float32", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing to show")
        return
    device, channel_format = mps.mtl_device("cuda"), Format.FLOAT32 if options.float32 else Format.FLOAT16
    steps = Parts(device, channel_format)
    for title, waits in (("the device idle before each step", True), ("as fast as it goes", False)):
        for _ in range(WARM_UP):
            steps.step()
        steps.times.clear()
        steps.waits = waits
        for _ in range(options.steps):
            steps.step()
        steps.last.wait_until_completed()
        report(f"{title}; microseconds, median and least tenth:", steps.times)
    print(f"a replay alone {replay_alone(steps):.1f} us, the host alone {host_alone(device, channel_format):.1f} us")
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(options.steps):
        steps.step()
    profile.disable()
    steps.last.wait_until_completed()
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
