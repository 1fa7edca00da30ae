"""The sample digit network's training step on a GPU, replayed and not, beside PyTorch: by turns, a process each.

Two whole steps of PyTorch, each captured as one CUDA graph, make PyTorch fail in one process.

Work: batch 40, grey images of 28x28 bytes picked from memory of the host and brought to the device each step, Adam;
gradients of parameters and images are float32. A turn is 50 steps, from picking the images to the new weights, with two
command buffers in flight, by the count of the queue, and by completed handlers, which want a thread; PyTorch's peers
bring the same bytes each step. Prints medians over the turns with their spread, what `explain` says of the last step,
the greatest difference of losses between the replayed and the other run, and where the host's time goes.

Usage: python -m bench.replayed_step [--turns N] [--json FILE] [--commit NAME]
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import platform
import pstats
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import torch
from torch import profiler

import openmps as mps
from bench.harness import Contender, Turn, by_processes
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory

BATCH, STEPS, IMAGES, CLASSES = 40, 50, 2000, 10
Format = mps.MPSImageFeatureChannelFormat
SHOWN = ("median_ms", "least_ms", "high_ms")


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images and classes; their contents make no difference to the time."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (IMAGES, 28, 28, 1), np.uint8), generator.integers(0, CLASSES, IMAGES)


def picks(generator: np.random.Generator, count: int) -> Iterator[np.ndarray]:
    """The images of each batch, without end; drawn for many at a time, since a draw costs as much as a launch."""
    while True:
        yield from generator.integers(0, count, (1000, BATCH))


class Ours:
    """Steps through MPSNNGraph, two command buffers in flight."""

    def __init__(
        self, device: mps.MTLDevice, channel_format: Format, captures: int, in_flight: int = 2, *, handled: bool = False
    ) -> None:
        self.images, self.classes = data()
        self.device, self.one_hot = device, np.eye(CLASSES, dtype=np.float32)
        network = SampleNetwork.create(
            NetworkShape(28, 28, 1, CLASSES), seed=1, optimizer=optimizer_factory("adam", 1e-3)
        )
        self.graph = network.training_graph(device, channel_format, loss_weight=1 / BATCH, dropout_seed=1)
        self.graph.stop_on_non_finite = False
        self.queue = device.new_command_queue(64 if handled else in_flight)
        self.picks = picks(np.random.default_rng(1), IMAGES)
        self.queue.max_capture_count = captures
        self.free = Semaphore(in_flight) if handled else None
        self.last: Any = None
        self.labels: Any = None

    def step(self) -> None:
        if self.free is not None:
            self.free.acquire()
        picked = next(self.picks)
        images, classes = self.images.take(picked, axis=0), self.classes.take(picked)
        batch = mps.MPSImageBatch.from_numpy(self.device, images, Format.UNORM8)
        self.labels = mps.MPSCNNLossLabels.batch(self.device, self.one_hot.take(classes, axis=0))
        self.last = mps.MPSCommandBuffer(command_queue=self.queue)
        self.graph.encode_batch(self.last, [batch], [self.labels])
        if self.free is not None:
            self.last.add_completed_handler(lambda _: self.free.release())
        self.last.commit()

    def turn(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.last.wait_until_completed()

    def loss(self) -> float:
        """One step, and its loss."""
        self.step()
        self.last.wait_until_completed()
        return float(sum(label.loss_image().numpy().sum() for label in self.labels))


def replayed(device: str, half: bool, captures: int, handled: bool = False) -> Turn:
    """Our steps, made in a process of their own."""
    ours = Ours(mps.mtl_device(device), Format.FLOAT16 if half else Format.FLOAT32, captures, handled=handled)

    def run(steps: int) -> None:
        for _ in range(steps):
            ours.step()
        ours.last.wait_until_completed()

    return Turn(run)


def contenders(name: str, *, half: bool) -> list[Contender]:
    """Ours, replayed and not, and PyTorch's."""
    work = {"network": "sample", "batch": BATCH, "side": 28, "channels": 1, "classes": CLASSES}
    work |= {"device": "cuda", "optimizer": "adam", "images": IMAGES, "half": half}
    device = {"device": "cuda", "half": half}
    mine = [("ours replayed", 16, False), ("ours replayed, handlers", 16, True), ("ours unreplayed", 0, False)]
    peers = [("torch eager", "eager"), ("torch eager in one CUDA graph", "graph")]
    return [
        Contender(
            f"{title}, {name}", "bench.replayed_step", "replayed", {**device, "captures": count, "handled": handled}
        )
        for title, count, handled in mine
    ] + [Contender(f"{title}, {name}", "bench.torch_peers", "training", {**work, "how": how}) for title, how in peers]


def replay_alone(ours: Ours) -> float:
    """Microseconds of the device for a replay of the captured graph, nothing else."""
    player: Any = ours.queue._executor.player
    captures = [entry.capture for entry in player._entries.values() if entry.capture is not None]
    if not captures:
        return float("nan")
    longest = max(captures, key=lambda capture: len(capture.output_bindings))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(100):
        longest.recording.replay()
    end.record()
    end.synchronize()
    longest.upload.stages.restart()
    return start.elapsed_time(end) * 10


def host_alone(device: mps.MTLDevice, channel_format: Format) -> float:
    """Microseconds of the host for a step that it does not wait for, encode, look and launch."""
    ours = Ours(device, channel_format, 16, 64)
    ours.turn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        ours.step()
    took = (time.perf_counter() - start) * 1e6 / 20
    ours.last.wait_until_completed()
    return took


def kernels(ours: Ours, steps: int = 10) -> str:
    """What a replayed step launches, the longest first."""
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            ours.step()
        ours.last.wait_until_completed()
    times: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = times.setdefault(event.name, [0.0, 0.0])
            entry[0] += event.device_time_total / steps
            entry[1] += 1 / steps
    lines = [f"{sum(n for _, n in times.values()):.0f} launches, busy {sum(t for t, _ in times.values()):.0f} us"]
    longest = sorted(times.items(), key=lambda each: -each[1][0])
    return "\n".join(lines + [f"   {took:7.1f} us {count:5.1f} x {name[:90]}" for name, (took, count) in longest[:24]])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append the figures to this file of JSON lines")
    parser.add_argument("--commit", default="", help="what was measured")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing to show")
        return
    device, times, rows = mps.mtl_device("cuda"), {}, {}
    for name, channel_format in (("float16", Format.FLOAT16), ("float32", Format.FLOAT32)):
        ours = {captures: Ours(device, channel_format, captures) for captures in (16, 0)}
        losses = {captures: [one.loss() for _ in range(20)] for captures, one in ours.items()}
        print(f"{name}: losses {losses[16][:3]} … {losses[16][-1]}, greatest difference from unreplayed",
              max(abs(a - b) for a, b in zip(losses[16], losses[0], strict=True)))  # fmt: skip
        print(ours[16].last.explain())
        ours[16].turn()
        rows[f"replay alone, {name}"] = replay_alone(ours[16])
        rows[f"host alone, {name}"] = host_alone(device, channel_format)
        print(f"{name}:", kernels(ours[16]))
        profile = cProfile.Profile()
        profile.runcall(ours[16].turn)
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(28)
        print(f"host of {STEPS} replayed steps, {name}:", text.getvalue()[:5500])
        del ours
        times |= by_processes(contenders(name, half=channel_format is Format.FLOAT16), options.turns, STEPS)
    print(f"{device.name}, torch {torch.__version__}; microseconds a step")
    for name, each in times.items():
        print(f"  {name:42} " + "  ".join(f"{key[:-3]} {each[key] * 1000:8.1f}" for key in SHOWN if key in each))
    for name, each in rows.items():
        print(f"  {name:42} {each:8.1f}")
    if options.json is not None:
        medians = {name: each["median_ms"] * 1000 for name, each in times.items() if "median_ms" in each} | rows
        row = {"bench": "replayed_step", "device": device.name, "torch": torch.__version__, "commit": options.commit,
               "python": platform.python_version(), "batch": BATCH, "median_us": medians}  # fmt: skip
        with options.json.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
