"""What a training step of a float16 network launches on a GPU: its kernels, its conversions of formats, its memory.

Work: the sample digit network's training graph over float16 images, batch 40, and a wider network of 3x3 convolutions
over 64x64 pixels, batch 64, whose images are most of the memory. Prints the kernels of one step as a profiler saw them,
each call of the engine that does nothing but convert a format, the time of a step, and the peak of the memory; then how
long Adam takes with the rounding of its weights, in one pass over memory and in several.

Usage: python -m bench.float16_step [--device cuda] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import openmps as mps
from openmps.ops import triton
from openmps.ops.update.optimizers import Adam, GradientRule
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory

FLOAT16 = mps.MPSImageFeatureChannelFormat.FLOAT16
UPDATED = 2**25
Step = Callable[[], None]


class Conversions(TorchDispatchMode):
    """Counts calls that copy floating-point numbers into another floating-point type and do nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            given = args[1] if name == "copy_" else args[0]
            if given.is_floating_point() and made.is_floating_point() and given.dtype != made.dtype:
                self.seen[f"{given.dtype} to {made.dtype}, {tuple(given.shape)}"] += 1
        return made


def digits(device: mps.MTLDevice) -> Step:
    """The sample network."""
    network = SampleNetwork.create(NetworkShape(28, 28, 1, 10), seed=1, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.training_graph(device, FLOAT16, loss_weight=1.0, dropout_seed=1)
    return _step(device, graph, (40, 28, 28, 1), 10)


def wide(device: mps.MTLDevice) -> Step:
    """Six 3x3 convolutions with ReLUs over 64x64 pixels, pooled to one number a class."""
    image = mps.MPSNNImageNode()
    generator = np.random.default_rng(0)
    for index, (inputs, outputs) in enumerate([(4, 64), *[(64, 64)] * 5]):
        descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
        weights = mps.TrainableConvolutionDataSource(
            descriptor, generator.normal(size=(outputs, 3, 3, inputs)) * 0.1, np.zeros(outputs), label=f"conv{index}",
            optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 1e-3),
        )  # fmt: skip
        image = mps.MPSCNNNeuronReLUNode(mps.MPSCNNConvolutionNode(image, weights).result_image).result_image
        image = mps.MPSCNNPoolingMaxNode(image, 2, 2).result_image if index in (1, 3) else image
    last = mps.TrainableConvolutionDataSource(
        mps.MPSCNNConvolutionDescriptor(16, 16, 64, 8), generator.normal(size=(8, 16, 16, 64)) * 0.01, np.zeros(8),
        label="fc", optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 1e-3),
    )  # fmt: skip
    image = mps.MPSCNNFullyConnectedNode(image, last).result_image
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    gradients = mps.MPSCNNLossNode(image, descriptor).training_graph()
    graph = mps.MPSNNGraph(device, gradients[0].result_image, False)
    graph.format = FLOAT16
    return _step(device, graph, (64, 64, 64, 4), 8)


def _step(device: mps.MTLDevice, graph: mps.MPSNNGraph, shape: tuple[int, ...], classes: int) -> Step:
    graph.stop_on_non_finite = False
    queue, generator = device.new_command_queue(), np.random.default_rng(1)
    batch = mps.MPSImageBatch.from_numpy(device, generator.random(shape).astype(np.float16))
    one_hot = np.eye(classes, dtype=np.float32)[generator.integers(0, classes, shape[0])]
    labels = mps.MPSCNNLossLabels.batch(device, one_hot)

    def step() -> None:
        command_buffer = mps.MPSCommandBuffer(command_queue=queue)
        graph.encode_batch(command_buffer, [batch], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()

    return step


def look(name: str, step: Step) -> dict[str, Any]:
    """Profile one step, count its conversions, time it and see how much memory it takes."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        step()
        torch.cuda.synchronize()
    kernels = Counter(event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    with Conversions() as conversions:
        step()
    times: list[float] = []
    for _ in range(50):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    median = statistics.median(times)
    print(f"== {name}: {sum(kernels.values())} kernels, step {median:.3f} ms, least {min(times):.3f}")
    print(f"   memory before {before / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, step {(peak - before) / 2**20:.1f}")
    for kernel, count in kernels.most_common():
        print(f"   {count:4} x {kernel[:150]}")
    print(f"   calls that only convert a format: {sum(conversions.seen.values())}")
    for what, count in conversions.seen.most_common():
        print(f"   {count:4} x {what}")
    return {"kernels": sum(kernels.values()), "step_ms": median, "peak_bytes": peak, "step_bytes": peak - before,
            "conversions": dict(conversions.seen)}  # fmt: skip


def update(passes_once: bool, count: int = UPDATED, runs: int = 100) -> float:
    """Microseconds of an update of weights and biases with rounding; so many weights that launches do not count."""
    sizes, decides = (count, 1024), triton.runs_on
    vectors = [torch.ones(size, device="cuda") for _ in range(4) for size in sizes]
    half, op = torch.zeros(count, dtype=torch.float16, device="cuda"), Adam(2, GradientRule(), 0.9, 0.999, 1e-8)
    triton.runs_on = decides if passes_once else lambda device: False
    try:
        for index in range(runs + 10):
            if index == 10:
                start = torch.cuda.Event(enable_timing=True)
                start.record()
            op.run((), 1e-3, *vectors, *vectors[2:4], (half,))
    finally:
        triton.runs_on = decides
    end = torch.cuda.Event(enable_timing=True)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / runs * 1000


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="append the figures to this file of JSON lines")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing to show")
        return
    device = mps.mtl_device(options.device)
    print(f"{device.name}, torch {torch.__version__}")
    if not triton.runs_on(device.torch_device):
        print("Triton does not run here: updates take several passes")
    rows: dict[str, Any] = {name: look(name, make(device)) for name, make in (("digits", digits), ("wide", wide))}
    rows["update_us"] = {name: update(once) for name, once in (("one pass", True), ("several passes", False))}
    print(f"== Adam and rounding of {UPDATED} weights, µs: {rows['update_us']}")
    if options.json is not None:
        with options.json.open("a") as file:
            file.write(json.dumps({"bench": "float16_step", "device": device.name, "torch": torch.__version__, **rows}))
            file.write("\n")


if __name__ == "__main__":
    main()
