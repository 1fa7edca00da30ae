"""Training steps of ResNet-50 in several processes, beside PyTorch's DistributedDataParallel, by turns.

usage: torchrun --nproc-per-node N -m bench.distributed_step [--batch B] [--side S] [--turns T] [--steps N] [--sync]
           [--shards] [--optimizer sgd|adam]

Each process has a GPU and B images a step (float16 images; autocast to float16 for PyTorch), and makes turns of four
contenders: ours and PyTorch's alone, without a word to the others, and together. Efficiency is the speed together by
the speed alone, both while all GPUs work. The first process prints the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import openmps as mps
from bench.networks import make_network
from bench.ours import _LOSS_SCALE, _in_flight, _optimizer
from bench.work import Work, data_set
from openmps.distributed import Group
from openmps.training.network import Network, NetworkShape

HALF = mps.MPSImageFeatureChannelFormat.FLOAT16
Run = Callable[[int], None]


def ours(group: Group, work: Work, *, alone: bool, synchronizes: bool = False, shards: bool = False) -> Run:
    """Steps of our graph on images that are on the device."""
    machine, count = group.device, 1 if alone else group.count
    shape = NetworkShape(work.side, work.side, work.channels, work.classes, work.network)
    network = Network.create(shape, seed=1, optimizer=_optimizer(work.optimizer, 1 / _LOSS_SCALE))
    weight = _LOSS_SCALE / (count * work.batch)
    graph = network.training_graph(machine, HALF, loss_weight=weight, dropout_seed=1, gradient_format=HALF)
    graph.stop_on_non_finite = False
    if not alone:
        group.share(graph, synchronizes_statistics=synchronizes, shards_optimizer_state=shards)
    images, classes = data_set(work)
    pixels = (images[: work.batch] / np.float16(255)).astype(np.float16)
    batch = mps.MPSImageBatch.from_numpy(machine, pixels)
    labels = mps.MPSCNNLossLabels.batch(machine, np.eye(work.classes, dtype=np.float32)[classes[: work.batch]])
    return _in_flight(machine, lambda buffer: graph.encode_batch(buffer, [batch], [labels]) and None).run


def peer(group: Group, work: Work, *, alone: bool) -> Run:
    """Eager steps of PyTorch, channels-last, with a fused optimizer."""
    place = group.device.torch_device
    network: nn.Module = make_network(work).to(device=place, memory_format=torch.channels_last)
    if not alone:
        network = DistributedDataParallel(network, device_ids=[place.index], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, fused=True)
    images, classes = data_set(work)
    x = torch.from_numpy(images[: work.batch]).to(place).permute(0, 3, 1, 2).half().div_(255)
    x, y = x.contiguous(memory_format=torch.channels_last), torch.from_numpy(classes[: work.batch]).to(place)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                logits = network(x)
            functional.cross_entropy(logits.float(), y).backward()
            optimizer.step()
        torch.cuda.synchronize()

    return run


def measure(group: Group, contenders: dict[str, Run], work: Work, turns: int, steps: int) -> None:
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, run in contenders.items():
        began = time.perf_counter()
        run(4)
        if group.rank == 0:
            print(f"{name}: first steps in {time.perf_counter() - began:.1f} s", flush=True)
    for _ in range(turns):
        for name, run in contenders.items():
            group.gather(None)
            began = time.perf_counter()
            run(steps)
            speeds[name].append(steps * work.batch / (time.perf_counter() - began))
    slowest = group.gather({name: statistics.median(found) for name, found in speeds.items()})
    if group.rank == 0:
        medians = {name: min(each[name] for each in slowest) for name in contenders}
        for name, speed in medians.items():
            print(f"{name}: {speed:,.0f} images/s a GPU, {group.count * speed:,.0f} in all")
        for who in ("ours", "DDP"):
            print(f"{who}: efficiency {medians[f'{who} together'] / medians[f'{who} alone']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("batch", 256), ("side", 224), ("turns", 3), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sync", action="store_true", help="measure shared statistics of normalizations, too")
    parser.add_argument("--shards", action="store_true", help="measure shares of the optimizer's state, too")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd", help="ours; PyTorch's is SGD")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    group = Group.join("cuda")
    work = Work("resnet50", options.batch, options.side, half=True, optimizer=options.optimizer)
    contenders: dict[str, Any] = {
        "ours alone": ours(group, work, alone=True),
        "ours together": ours(group, work, alone=False),
        "DDP alone": peer(group, work, alone=True),
        "DDP together": peer(group, work, alone=False),
    }
    if options.sync:
        contenders["ours together, shared statistics"] = ours(group, work, alone=False, synchronizes=True)
    if options.shards:
        contenders["ours together, shares of the state"] = ours(group, work, alone=False, shards=True)
    measure(group, contenders, work, options.turns, options.steps)
    if group.rank == 0:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}")
    dist.barrier()
    group.leave()
    os._exit(0)  # captures that hold collectives are not taken apart


if __name__ == "__main__":
    main()
