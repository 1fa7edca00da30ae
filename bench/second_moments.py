"""A residual network of bottlenecks trained with its block ends by second moments and without, from several seeds.

What is compared are losses, accuracies, and how far the gradients of a batch are from those of PyTorch in float64, at
the first weights and at the last. Both ways see the same weights at first, and the same batches. On the CPU a graph has
no block ends by second moments: there the rules of a GPU are asked for, and the operations run in their slow forms,
those of every end, of few pixels too. On a GPU the kernels run, where the graph plans them.

Usage: python -m bench.second_moments [--data digits|shapes ...] [--format float32|float16 ...] [--steps N] [--seeds N]
       [--width N] [--batch N] [--device cpu|cuda] [--threads N] [--no-record]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import openmps as mps
from bench.harness import ROOT, record
from openmps.graph.compile import compiler
from openmps.ops.rewrite.rule import Place
from openmps.training import architectures, load_dataset
from openmps.training import network as networks
from openmps.training.architectures import NetworkRow
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.network import Network, NetworkShape, optimizer_factory

sys.path.append(str(ROOT / "tests"))  # where the network is in PyTorch

Array = np.ndarray
SIDE, NAME = 64, "resnet50"
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
DATA: dict[str, Callable[[], DataSplit]] = {"digits": digits, "shapes": shapes}


# --- training ---------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What both ways have in common."""

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
        return NetworkShape.of(self.data.training.images, len(self.data.training.class_names), NAME)

    def graph(self, network: Network, *, by_moments: bool) -> mps.MPSNNGraph:
        """A training graph; raises unless it has block ends as they are asked for."""
        graph = network.training_graph(self.device, self.channel_format, loss_weight=1 / self.batch, dropout_seed=0)
        graph.allow_second_moments = by_moments
        program = graph.program_for([self.shape.image_descriptor()], self.batch)
        if by_moments != ("MomentsEnd" in {type(each.op).__name__ for each in program.function.equations}):
            raise SystemExit("The network has no ends by second moments, or has some that were not asked for")
        return graph

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
        logits = deep_networks.NETWORKS[NAME](parameters, torch.tensor(data.images[chosen] / 255).permute(0, 3, 1, 2))
        targets = torch.tensor(np.eye(classes)[data.labels[chosen]])
    parameters.losses(logits, targets).mean().backward()
    return parameters.gradients()


# --- rows -------------------------------------------------------------------------------------------------------------


def _prepare(width: int, device: str) -> None:
    """Have the network in this width, and on the CPU the rules of a GPU, whatever block ends cost there."""
    row = NetworkRow(partial(architectures.resnet50, width=width), 8)
    networks.NETWORKS = {**architectures.NETWORKS, NAME: row}
    if device == "cpu":
        compiler.place_of = lambda device: Place.TRITON
        compiler._PIXELS = 1


def _row(options: argparse.Namespace, data: str, channel_format: str) -> None:
    """All seeds, both ways."""
    split, device = DATA[data](), mps.mtl_device(options.device)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        said = split, FORMATS[channel_format], options.batch, options.steps, seed, options.device
        work = Work(device, *said, device.new_command_queue())
        for way, by_moments in WAYS.items():
            found[way].append(trained(work, by_moments=by_moments))
            print(f"{data}, {channel_format}, seed {seed}, {way} {found[way][-1]}", flush=True)
    about = {"data": data, "format": channel_format, "side": SIDE}
    about |= {name: getattr(options, name) for name in ("steps", "width", "batch", "threads")}
    title = f"{data}, {channel_format} images"
    if not options.no_record:
        row = {"work": f"{data} {channel_format}", "title": title, **about, "ways": found}
        record("second_moments", options.device, row)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=8, help="channels of the first stage; ResNet-50 has 64")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    _prepare(options.width, options.device)
    for data in options.data:
        for channel_format in options.format:
            _row(options, data, channel_format)


if __name__ == "__main__":
    main()
