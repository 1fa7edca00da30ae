"""Networks of `openmps train --network` as Python for MLX: written, run, and trained for ten steps beside ours.

Usage: python -m bench.mlx_networks [NAME ...]

Errors are shares of the largest magnitude: of every layer's result for two images, and of all arrays of parameters
after ten steps; given are what half of the arrays stay below, and the largest. Rounding grows in deep networks while
they train: beside them stands what openmps itself gives from weights that are one rounding away. Images are noise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import openmps as mps
from openmps.formats import mlx
from openmps.formats.mlx.folder import run_layers
from openmps.tables import table
from openmps.training.network import Network, NetworkShape, optimizer_factory

SIDES = {"sample": 28, "lenet": 28, "tiny": 32, "mobilenet": 64, "resnet18": 64, "resnet50": 64, "inception": 64}
"""Pixels of the images of each network."""
_BATCH, _STEPS, _CLASSES = 8, 10, 10
_WORDS = {"weights": "weight", "biases": "bias", "gamma": "weight", "beta": "bias", "mean": "running_mean",
          "variance": "running_var"}  # fmt: skip
_OPTIMIZER = optimizer_factory("sgd", 1e-3)
CPU, FLOAT32 = mps.mtl_device("cpu"), mps.MPSImageFeatureChannelFormat.FLOAT32


def row(name: str, side: int) -> tuple[str, ...]:
    """What is measured of one network."""
    shape, rng = NetworkShape(side, side, 3, _CLASSES, name), np.random.default_rng(0)
    network = Network.create(shape, seed=0, optimizer=_OPTIMIZER)
    moved = {key: array * np.float32(1 + 2**-23) for key, array in network.arrays().items()}
    graph, pixels = _training(network), rng.random((2, side, side, 3), np.float32)
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = mlx.export(graph, Path(folder) / "out", shape.image_descriptor())
        seconds = time.perf_counter() - began
        found = run_layers(out, [pixels])
        trace = network.inference_graph(CPU, FLOAT32).trace([pixels])
        errors = [_error(each, trace[label]) for label, each in found.items() if label in trace]
        shown = (name, f"{side}x{side}", f"{seconds:.1f} s", f"{len(errors)}", f"{max(errors):.1e}")
        if "dropout" in found:  # which draws other numbers there
            return (*shown, "-", "-")
        batches = [_batch(rng, side) for _ in range(_STEPS)]
        theirs = _trained_there(out, batches)
    other = Network.from_arrays(shape, moved, optimizer=_OPTIMIZER)
    for each in (graph, _training(other)):
        _trained_here(each, batches)
    own = network.arrays()
    words = {key: f"{key.rpartition('.')[0]}.{_WORDS[key.rpartition('.')[2]]}" for key in own}
    there = [_error(theirs[words[key]].reshape(array.shape), array) for key, array in own.items()]
    here = [_error(other.arrays()[key], array) for key, array in own.items()]
    return (*shown, *(f"{np.median(each):.0e}, {max(each):.0e}" for each in (there, here)))


def _training(network: Network) -> mps.MPSNNGraph:
    return network.training_graph(CPU, FLOAT32, loss_weight=1 / _BATCH, dropout_seed=0, probabilities=True)


def _batch(rng: np.random.Generator, side: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.eye(_CLASSES, dtype=np.float32)[rng.integers(0, _CLASSES, _BATCH)]
    return rng.random((_BATCH, side, side, 3), np.float32), labels


def _trained_here(graph: mps.MPSNNGraph, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    queue = CPU.new_command_queue()
    for pixels, labels in batches:
        command_buffer = queue.command_buffer()
        states = mps.MPSCNNLossLabels.batch(CPU, labels)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, pixels)], [states])
        command_buffer.commit()
        command_buffer.wait_until_completed()


def _trained_there(out: Path, batches: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    names: dict[str, Any] = {"__file__": str(out / "network.py")}
    exec(compile((out / "network.py").read_bytes(), "network.py", "exec"), names)
    module = names["Network"].load().train()
    optimizer, step = module.optimizer(), nn.value_and_grad(module, module.loss)
    for pixels, labels in batches:
        _, gradients = step(mx.array(pixels), mx.array(labels[:, None, None]))
        optimizer.update(module, gradients)
        mx.eval(module.parameters(), optimizer.state)
    return {name: np.array(each) for name, each in tree_flatten(module.parameters())}


def _error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(SIDES), metavar="NAME")
    headings = (
        "network",
        "images",
        "written in",
        "layers",
        "largest error",
        "after ten steps",
        "ours, a rounding away",
    )
    rows = [row(name, SIDES[name]) for name in parser.parse_args().names]
    print(table(headings, rows, (False, *[True] * 6)))


if __name__ == "__main__":
    main()
