"""Residual networks trained with their block ends by second moments and without, from several seeds.

What is compared are losses, accuracies, and how far the gradients of a batch are from those of PyTorch in float64, at
the first weights and at the last. Both ways see the same weights at first, and the same batches. On the CPU a graph has
no block ends by second moments: there the rules of a GPU are asked for, and the operations run in their slow forms. On
a GPU the kernels run. Either way ends of few pixels are among them, which a graph leaves as they are. How many ends
there are is counted: none in ResNet-18, whose blocks end with convolutions of 3x3 pixels.

Usage: python -m bench.second_moments [--network resnet18|resnet50 ...] [--data digits|shapes|images ...]
       [--format float32|float16 ...] [--steps N] [--seeds N] [--width N] [--batch N] [--pixels N] [--device cpu|cuda]
       [--threads N] [--processes N] [--no-record]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch

import openmps as mps
from bench.harness import ROOT, record
from openmps.graph.compile import compiler
from openmps.ops.normalization.second_moments import MomentsEnd
from openmps.ops.rewrite.rule import Place
from openmps.training import architectures, load_dataset
from openmps.training import network as networks
from openmps.training.architectures import NetworkRow
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.network import Network, NetworkShape, optimizer_factory
from openmps.training.topology import Value

sys.path.append(str(ROOT / "tests"))  # where the network is in PyTorch

Array = np.ndarray
SIDE = 64
BUILT: dict[str, tuple[str, Callable[..., Value], int]] = {
    "resnet18": ("ResNet-18", architectures.resnet18, 8),
    "resnet50": ("ResNet-50", architectures.resnet50, 16),
}
"""What networks are called, what describes them, and how many blocks they have."""
RATE = 0.002
"""Adam's at first; it falls to 0 in a line."""
LAST = 20
"""Steps whose mean loss counts."""
_BATCHES = 3
"""Whose gradients are looked at."""
_STEEP = 2.0**20
"""A learning rate by which the weights that gradient descent leaves are the gradients, but for float32's last bits."""
WAYS = {"one by one": False, "by moments": True}
Format = mps.MPSImageFeatureChannelFormat
FORMATS = {"float32": Format.FLOAT32, "float16": Format.FLOAT16}


# --- data -------------------------------------------------------------------------------------------------------------


def digits() -> DataSplit:
    """Scikit-learn's digits, eight times as large."""
    found = load_dataset()
    return DataSplit(*(_enlarged(each) for each in (found.training, found.test)))


def _enlarged(data: Dataset) -> Dataset:
    factor = SIDE // data.images.shape[1]
    return Dataset(data.images.repeat(factor, 1).repeat(factor, 2), data.labels, data.class_names, data.name)


def shapes(count: int = 2000) -> DataSplit:
    """Discs, squares, rings and crosses of any size and place, with noise."""
    generator = np.random.default_rng(5)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    labels = np.arange(count) % len(_SHAPES)
    images = generator.integers(0, 100, (count, SIDE, SIDE, 1), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        radius = generator.uniform(8, 20)
        y, x = generator.uniform(radius, SIDE - radius, 2)
        image[_SHAPES[label](rows - y, columns - x, radius)] += np.uint8(generator.integers(60, 150))
    return Dataset(images, labels, tuple("disc square ring cross".split()), "shapes").split(seed=0)


_SHAPES: tuple[Callable[[Array, Array, float], Array], ...] = (
    lambda y, x, radius: np.hypot(y, x) < radius,
    lambda y, x, radius: np.maximum(abs(y), abs(x)) < radius * 0.9,
    lambda y, x, radius: abs(np.hypot(y, x) - 0.8 * radius) < radius / 4,
    lambda y, x, radius: (np.minimum(abs(y), abs(x)) < radius / 4) & (np.maximum(abs(y), abs(x)) < radius),
)


def images(count: int = 2000, classes: int = 10, waves: int = 4) -> DataSplit:
    """Images in colour: a pattern of its class, a sum of a few waves, moved by any distance, in noise."""
    generator = np.random.default_rng(6)
    rows, columns = np.mgrid[:SIDE, :SIDE, :1][:2] * (2 * np.pi / SIDE)
    patterns = np.zeros((classes, SIDE, SIDE, 3))
    for pattern in patterns:
        for _ in range(waves):
            y, x = generator.integers(-4, 5, 2)
            pattern += generator.normal(0, 1, 3) * np.cos(y * rows + x * columns + generator.uniform(0, 2 * np.pi, 3))
    labels = np.arange(count) % classes
    moved = [np.roll(patterns[label], generator.integers(0, SIDE, 2), (0, 1)) for label in labels]
    pixels = 128 + 20 * (np.stack(moved) + generator.normal(0, _NOISE, (count, SIDE, SIDE, 3)))
    names = tuple(map(str, range(classes)))
    return Dataset(pixels.clip(0, 255).astype(np.uint8), labels, names, "images").split(seed=0)


_NOISE = 2.0
"""Deviation; a pattern of four waves has 1.4."""
DATA: dict[str, Callable[[], DataSplit]] = {"digits": digits, "shapes": shapes, "images": images}


# --- training ---------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What both ways have in common."""

    network: str
    device: mps.MTLDevice
    data: DataSplit
    channel_format: Format
    batch: int
    steps: int
    seed: int
    where: str
    """The device's name in PyTorch."""
    queue: mps.MTLCommandQueue

    @property
    def shape(self) -> NetworkShape:
        """Of the network."""
        return NetworkShape.of(self.data.training.images, len(self.data.training.class_names), self.network)

    def graph(self, network: Network, *, by_moments: bool) -> mps.MPSNNGraph:
        """A training graph."""
        graph = network.training_graph(self.device, self.channel_format, loss_weight=1 / self.batch, dropout_seed=0)
        graph.allow_second_moments = by_moments
        return graph

    def ends(self, graph: mps.MPSNNGraph) -> int:
        """How many of a graph's block ends are by second moments."""
        program = graph.program_for([self.shape.image_descriptor()], self.batch)
        return sum(isinstance(each.op, MomentsEnd) for each in program.function.equations)

    def step(self, graph: mps.MPSNNGraph, chosen: Array) -> float:
        """One step with some of the training images; its mean loss."""
        data, classes = self.data.training, len(self.data.training.class_names)
        command_buffer = self.queue.command_buffer()
        images = mps.MPSImageBatch.from_numpy(self.device, data.images[chosen], Format.UNORM8)
        labels = mps.MPSCNNLossLabels.batch(self.device, np.eye(classes, dtype=np.float32)[data.labels[chosen]])
        graph.encode_batch(command_buffer, [images], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return sum(float(each.loss_image().numpy().sum()) for each in labels)


def trained(work: Work, *, by_moments: bool) -> dict[str, Any]:
    """What a training of so many steps ends with."""
    network = Network.create(work.shape, seed=work.seed, optimizer=optimizer_factory("adam", RATE))
    errors = [gradient_error(work, network.arrays(), by_moments=by_moments)]
    graph, losses = work.graph(network, by_moments=by_moments), list[float]()
    generator = np.random.default_rng(work.seed)
    for step in range(work.steps):
        network.set_learning_rate(RATE * (1 - step / work.steps))
        losses.append(work.step(graph, generator.choice(len(work.data.training), work.batch, replace=False)))
    errors.append(gradient_error(work, network.arrays(), by_moments=by_moments))
    return {
        "ends": work.ends(graph),
        "loss": _digits(statistics.mean(losses[-LAST:])),
        "accuracy": _digits(_accuracy(work, network)),
        "first_error": _digits(errors[0]),
        "last_error": _digits(errors[1]),
    }


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _accuracy(work: Work, network: Network) -> float:
    tested = Network.from_arrays(work.shape, network.arrays()).inference_graph(work.device, work.channel_format)
    images, labels = work.data.test.images, work.data.test.labels
    found = np.concatenate([_classes(work, tested, images[at : at + 100]) for at in range(0, len(images), 100)])
    return float((found == labels).mean())


def _classes(work: Work, graph: mps.MPSNNGraph, images: Array) -> Array:
    command_buffer = work.queue.command_buffer()
    batch = mps.MPSImageBatch.from_numpy(work.device, images, Format.UNORM8)
    result: Any = graph.encode_batch(command_buffer, [batch])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result.numpy().reshape(len(images), -1).argmax(1)


# --- gradients --------------------------------------------------------------------------------------------------------


def gradient_error(work: Work, arrays: dict[str, Array], *, by_moments: bool) -> float:
    """How far the gradients of a batch are from those in float64: the norm of all differences, as a share.

    The mean of a few batches: a sum near 0 before a rectifier, which rounding lets pass or not, is a matter of luck.
    """
    batches = np.arange(_BATCHES * work.batch).reshape(_BATCHES, -1)
    return statistics.mean(_error(work, arrays, chosen, by_moments=by_moments) for chosen in batches)


def _error(work: Work, arrays: dict[str, Array], chosen: Array, *, by_moments: bool) -> float:
    network = Network.from_arrays(work.shape, arrays, optimizer=optimizer_factory("sgd", _STEEP))
    work.step(work.graph(network, by_moments=by_moments), chosen)
    after, exact = network.arrays(), _exact(work, arrays, chosen)
    found = {name: (np.float64(arrays[name]) - after[name]) / _STEEP for name in exact}
    apart = sum(float(np.square(found[name] - exact[name]).sum()) for name in exact)
    return (apart / sum(float(np.square(each).sum()) for each in exact.values())) ** 0.5


def _exact(work: Work, arrays: dict[str, Array], chosen: Array) -> dict[str, Array]:
    """The gradients by PyTorch, in float64, on the device that is looked at."""
    import deep_networks

    data, classes = work.data.training, len(work.data.training.class_names)
    with torch.device(work.where):
        parameters = deep_networks.Parameters(arrays, torch.float64, training=True)
        logits = deep_networks.NETWORKS[work.network](
            parameters, torch.tensor(data.images[chosen] / 255).permute(0, 3, 1, 2)
        )
        targets = torch.tensor(np.eye(classes)[data.labels[chosen]])
    parameters.losses(logits, targets).mean().backward()
    return parameters.gradients()


# --- rows -------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> None:
    """Have networks in this width, ends of so few pixels, and on the CPU the rules of a GPU."""
    torch.set_num_threads(options.threads)
    rows = {name: NetworkRow(partial(describe, width=options.width), 8) for name, (_, describe, _) in BUILT.items()}
    networks.NETWORKS = {**architectures.NETWORKS, **rows}
    compiler._PIXELS = options.pixels
    if options.device == "cpu":
        compiler.place_of = lambda device: Place.TRITON


def _ended(options: argparse.Namespace, row: Sequence[str], seed: int, way: str) -> dict[str, Any]:
    """Of one seed and way, in a process of its own."""
    (network, data, channel_format), device = row, mps.mtl_device(options.device)
    said = _split(data), FORMATS[channel_format], options.batch, options.steps, seed, options.device
    found = trained(Work(network, device, *said, device.new_command_queue()), by_moments=WAYS[way])
    print(f"{', '.join(row)}, seed {seed}, {way} {found}", flush=True)
    return found


_split = cache(lambda data: DATA[data]())


def _record(options: argparse.Namespace, row: Sequence[str], ways: dict[str, list[dict[str, Any]]]) -> None:
    (network, data, channel_format), (title, _, blocks) = row, BUILT[row[0]]
    about = {"work": " ".join(row), "title": f"{title}, {data}, {channel_format} images"}
    about |= {"network": network, "data": data, "format": channel_format, "side": SIDE, "blocks": blocks}
    about |= {name: getattr(options, name) for name in ("steps", "width", "batch", "pixels", "threads")}
    if not options.no_record:
        record("second_moments", options.device, about | {"ways": ways})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=BUILT, default=list(BUILT))
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage; the papers' have 64")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=1, help="least of an end for a channel read; a graph's is 128")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="trainings at a time")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args(arguments)
    rows = list(product(options.network, options.data, options.format))
    with ProcessPoolExecutor(options.processes, get_context("spawn"), _prepare, (options,)) as pool:
        trainings = {
            row: {way: [pool.submit(_ended, options, row, seed, way) for seed in range(options.seeds)] for way in WAYS}
            for row in rows
        }
        for row, ways in trainings.items():
            _record(options, row, {way: [each.result() for each in found] for way, found in ways.items()})


if __name__ == "__main__":
    main()
