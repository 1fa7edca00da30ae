"""How the cost of a training step grows: with the batch, the image's side, the channels, the length of the graph, and
on the CPU with the number of threads.

Work: a chain of 3x3 convolutions with ReLU, the mean of all pixels, a fully connected layer, softmax cross-entropy and
gradient descent with momentum; one of the five is changed, the others stay. By turns in one process beside eager
PyTorch.

Usage: python -m bench.growth [--device cpu|cuda] [--along NAME ...] [--turns N] [--threads N] [--clock wall|cpu]
       [--no-record]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import openmps as mps
from bench.harness import OURS, add_options, by_turns, compared, record
from bench.torch_peers import exactly

CLASSES = 10


@dataclass(frozen=True)
class Chain:
    """One point."""

    batch: int = 8
    side: int = 32
    channels: int = 32
    length: int = 4
    """Convolutions."""


POINTS: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "side": (8, 16, 32, 64, 128),
    "channels": (4, 16, 64, 128),
    "length": (1, 2, 4, 8, 16, 32),
    "threads": (1, 2, 4, 8, 16, 32),
}


def _weights(chain: Chain) -> list[np.ndarray]:
    generator, inputs = np.random.default_rng(0), 3
    found: list[np.ndarray] = []
    for _ in range(chain.length):
        found.append(generator.normal(0, (2 / (9 * inputs)) ** 0.5, (chain.channels, 3, 3, inputs)).astype(np.float32))
        inputs = chain.channels
    return [*found, generator.normal(0, 0.1, (CLASSES, 1, 1, inputs)).astype(np.float32)]


def _data(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    shape = chain.batch, chain.side, chain.side, 3
    return generator.random(shape, np.float32), generator.integers(0, CLASSES, chain.batch)


def ours(chain: Chain, device: mps.MTLDevice) -> Any:
    """A step of openmps."""

    def source(index: int, weights: np.ndarray) -> mps.TrainableConvolutionDataSource:
        outputs, rows, columns, inputs = weights.shape
        descriptor = mps.MPSCNNConvolutionDescriptor(columns, rows, inputs, outputs)
        return mps.TrainableConvolutionDataSource(
            descriptor, weights, np.zeros(outputs, np.float32), f"conv{index}",
            optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.01, momentum_scale=0.9),
        )  # fmt: skip

    sources = [source(index, weights) for index, weights in enumerate(_weights(chain))]
    image = mps.MPSNNImageNode()
    for each in sources[:-1]:
        image = mps.MPSCNNNeuronReLUNode(mps.MPSCNNConvolutionNode(image, each).result_image).result_image
    pooled = mps.MPSCNNPoolingAverageNode(image, chain.side, chain.side)
    pooled.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
    logits = mps.MPSCNNFullyConnectedNode(pooled.result_image, sources[-1]).result_image
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    descriptor.weight = 1 / chain.batch
    gradients = mps.MPSCNNLossNode(logits, descriptor).training_graph()
    graph = mps.MPSNNGraph(device, gradients[0].result_image, False)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    graph.stop_on_non_finite = False
    images, classes = _data(chain)
    queue, batch = device.new_command_queue(), mps.MPSImageBatch.from_numpy(device, images)
    one_hot = np.eye(CLASSES, dtype=np.float32)[classes]

    def step() -> None:
        command_buffer = mps.MPSCommandBuffer(queue)
        graph.encode_batch(command_buffer, [batch], [mps.MPSCNNLossLabels.batch(device, one_hot)])
        command_buffer.commit()
        command_buffer.wait_until_completed()

    return step


def eager(chain: Chain, device: str) -> Any:
    """A step of PyTorch, channels-last, with the fused optimizer."""
    layers: list[nn.Module] = []
    for weights in _weights(chain)[:-1]:
        outputs, _, _, inputs = weights.shape
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(chain.channels, CLASSES))
    network = network.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, fused=True)
    images, classes = _data(chain)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).to(device).contiguous(memory_format=torch.channels_last)
    targets = torch.from_numpy(classes).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(x), targets).backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    return step


def points(along: str, device: str) -> tuple[int, ...]:
    """Values that this machine can measure: threads are those of the CPU, at most one for each of its cores."""
    if along != "threads":
        return POINTS[along]
    return tuple(at for at in POINTS[along] if at <= (os.cpu_count() or 1)) if device == "cpu" else ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, 9)
    parser.add_argument("--along", nargs="+", choices=sorted(POINTS), default=list(POINTS), metavar="NAME")
    options = parser.parse_args(arguments)
    exactly(options.threads)
    device, threads = mps.mtl_device(options.device), torch.get_num_threads()
    for along in options.along:
        for at in points(along, options.device):
            torch.set_num_threads(at if along == "threads" else threads)
            chain = Chain() if along == "threads" else replace(Chain(), **{along: at})
            turns = {OURS: ours(chain, device), "torch eager": eager(chain, options.device)}
            row = compared(by_turns(turns, options.turns, clock=options.clock))
            print(f"{along:10} {at:5}  {row['contenders'][OURS]['median_ms']:9.4g} ms {row['ratio']:6.2f}", flush=True)
            if not options.no_record:
                how = {"threads": torch.get_num_threads(), "clock": options.clock}
                record("growth", options.device, {"work": f"{along} {at}", "along": along, "at": at, **how, **row})


if __name__ == "__main__":
    main()
