"""The sample digit network's training step: openmps beside PyTorch, the same work by turns in one process.

Work: a batch of 40 grey images of 28x28 bytes and their classes, picked from a data set in memory; 5x5x32 and 5x5x64
convolutions with ReLU and 2x2 max pooling, fully connected 1024 with ReLU and dropout 0.5, fully connected 10, softmax
cross-entropy, Adam, float32. A turn is ten steps, from picking the images to the new weights; openmps keeps two command
buffers in flight, as its training loop does. Prints medians over the turns, and each peer's time over openmps's.

Usage: python bench/training_step.py [--device cpu|cuda] [--turns N] [--compile] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import torch
from torch import nn

import openmps as mps
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory

BATCH, STEPS, IMAGES, CLASSES = 40, 10, 2000, 10
Turn = Callable[[], None]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images and classes; their contents make no difference to the time."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (IMAGES, 28, 28, 1), np.uint8), generator.integers(0, CLASSES, IMAGES)


def openmps_turn(device: mps.MTLDevice) -> Turn:
    """Ten steps through MPSNNGraph, two command buffers in flight."""
    images, classes = data()
    network = SampleNetwork.create(NetworkShape(28, 28, 1, CLASSES), seed=1, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.training_graph(
        device, mps.MPSImageFeatureChannelFormat.FLOAT32, loss_weight=1 / BATCH, dropout_seed=1
    )
    graph.stop_on_non_finite = False
    queue, generator = device.new_command_queue(), np.random.default_rng(1)
    in_flight, one_hot = Semaphore(2), np.eye(CLASSES, dtype=np.float32)

    def turn() -> None:
        command_buffer = None
        for _ in range(STEPS):
            in_flight.acquire()
            picked = generator.integers(0, IMAGES, BATCH)
            batch = mps.MPSImageBatch.from_numpy(device, images[picked], mps.MPSImageFeatureChannelFormat.UNORM8)
            labels = mps.MPSCNNLossLabels.batch(device, one_hot[classes[picked]])
            command_buffer = mps.MPSCommandBuffer(command_queue=queue)
            graph.encode_batch(command_buffer, [batch], [labels])
            command_buffer.add_completed_handler(lambda _: in_flight.release())
            command_buffer.commit()
        assert command_buffer is not None
        command_buffer.wait_until_completed()

    return turn


class TorchNetwork(nn.Module):
    """The same network in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2, self.dropout = nn.Linear(7 * 7 * 64, 1024), nn.Linear(1024, CLASSES), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(self.dropout(torch.relu(self.fc1(x.flatten(1)))))


def torch_turn(device: str, memory_format: torch.memory_format, compiled: bool = False, **adam: Any) -> Turn:
    """Ten steps of eager (or compiled) PyTorch."""
    images, classes = data()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)
    targets = torch.from_numpy(classes).to(device)
    network = TorchNetwork().to(device=device, memory_format=memory_format)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, **adam)
    forward, generator = (torch.compile(network) if compiled else network), np.random.default_rng(1)

    def turn() -> None:
        for _ in range(STEPS):
            picked = torch.from_numpy(generator.integers(0, IMAGES, BATCH)).to(device)
            x = pixels[picked].to(torch.float32).div_(255).contiguous(memory_format=memory_format)
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(x), targets[picked]).backward()
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    return turn


def measure(turns: dict[str, Turn], rounds: int) -> dict[str, list[float]]:
    """Milliseconds a step of each turn, by turns."""
    for turn in turns.values():
        turn()
        turn()
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            times[name].append((time.perf_counter() - start) * 1000 / STEPS)
    return times


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="also torch.compile (takes a while to start)")
    parser.add_argument("--json", type=Path, help="append the figures to this file of JSON lines")
    options = parser.parse_args()
    device = mps.mtl_device(options.device)
    kind = "cuda" if device.is_cuda else "cpu"
    turns = {
        "openmps": openmps_turn(device),
        "torch eager, channels last": torch_turn(kind, torch.channels_last),
        "torch eager, channels last, fused Adam": torch_turn(kind, torch.channels_last, fused=True),
        "torch eager, contiguous": torch_turn(kind, torch.contiguous_format),
    }
    if options.compile:
        turns["torch.compile, fused Adam"] = torch_turn(kind, torch.channels_last, compiled=True, fused=True)
    times = measure(turns, options.turns)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"training step, batch {BATCH}, {device.name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, median in medians.items():
        least, ratio = min(times[name]), median / medians["openmps"]
        print(f"  {name:42} median {median:7.2f} ms  least {least:7.2f} ms  {ratio:5.2f}x openmps")
    if options.json is not None:
        row = {"bench": "training_step", "device": device.name, "torch": torch.__version__,
               "python": platform.python_version(), "batch": BATCH, "median_ms": medians}  # fmt: skip
        with options.json.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
