"""Trained networks out of ONNX files: openmps beside ONNX Runtime and PyTorch, each in a process of its own, by turns.

Usage: python -m bench.trained [--work NAME ...] [--turns N] [--threads N] [--clock wall|cpu]

Arrays in, arrays out. The networks are those of tests/trained_networks.py; what is not installed is skipped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import OURS, ROOT, Contender, Turn, add_options, by_processes, compared, record, show

sys.path.append(str(ROOT / "tests"))  # where the networks are
STEP_SECONDS = 0.15
"""About how long a turn is."""


def ours(name: str, path: str) -> Turn:
    """`OnnxModel.run`."""
    import openmps as mps
    from openmps.formats import onnx as reader
    from trained_networks import input_shapes, network_outputs

    shapes, outputs = input_shapes(name), network_outputs(name)
    model = reader.network(path, shapes=shapes, outputs=outputs, fill_limit=1 << 30).model(mps.mtl_device("cpu"))
    given = {model.inputs[0].name: _numbers(name)}
    return Turn(lambda steps: [model.run(given) for _ in range(steps)])


def runtime(name: str, path: str) -> Turn:
    """ONNX Runtime."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(_cut(name, path), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: _numbers(name)}
    return Turn(lambda steps: [session.run(None, given) for _ in range(steps)])


def torch_calls(name: str, path: str) -> Turn:
    """PyTorch: the module where there is one, else the model's operators by calls of torch."""
    import onnx
    import torch

    from bench.onnx_torch import TorchModel
    from trained_networks import FACES, faces, network_outputs

    if name in FACES:
        module = faces(name).to(memory_format=torch.channels_last)
        pixels = _numbers(name)

        def step() -> list[np.ndarray]:
            with torch.inference_mode():
                x = torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)
                return [each.contiguous().numpy() for each in module(x)]

        return Turn(lambda steps: [step() for _ in range(steps)])
    model = TorchModel(onnx.load(path), network_outputs(name))
    given = {model.inputs[0]: _numbers(name)}
    return Turn(lambda steps: [model.run(given) for _ in range(steps)])


def _numbers(name: str) -> np.ndarray:
    from trained_networks import SHAPES

    return np.random.default_rng(0).normal(size=SHAPES[name]).astype(np.float32)


def _cut(name: str, path: str) -> Any:
    """The model, ending where it is measured."""
    from onnx_models import _with_outputs
    from trained_networks import network_outputs

    outputs = network_outputs(name)
    return path if outputs is None else _with_outputs(Path(path), outputs)


CONTENDERS = {OURS: "ours", "ONNX Runtime": "runtime", "torch eager": "torch_calls"}


def measure(name: str, turns: int, threads: int | None, clock: str) -> dict[str, Any]:
    """One row: a network."""
    from trained_networks import SHAPES, network_file

    with tempfile.TemporaryDirectory() as folder:
        said = {"name": name, "path": str(network_file(name, Path(folder)))}
        contenders = [Contender(title, "bench.trained", each, said) for title, each in CONTENDERS.items()]
        found = compared(by_processes(contenders, turns, _steps(said, threads), threads=threads, clock=clock))
    title = f"{name}, {'x'.join(map(str, SHAPES[name]))}"
    return {"work": name, "title": title, "threads": threads, "clock": clock, **found}


def _steps(said: dict[str, str], threads: int | None) -> int:
    """Steps of a turn, by how long one of PyTorch's takes."""
    trial = by_processes([Contender("trial", "bench.trained", "torch_calls", said)], 1, 1, threads=threads)
    took = trial["trial"].get("median_ms", 100.0) / 1000
    return max(1, min(50, round(STEP_SECONDS / took)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    from trained_networks import SHAPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=list(SHAPES), metavar="NAME")
    add_options(parser, 9)
    options = parser.parse_args(arguments)
    for name in options.work or SHAPES:
        try:
            row = measure(name, options.turns, options.threads, options.clock)
        except BaseException as reason:
            if type(reason).__name__ != "Skipped":  # what tests raise where a package is missing
                raise
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        show(row["title"], row)
        if not options.no_record:
            record("trained", options.device, row)


if __name__ == "__main__":
    main()
