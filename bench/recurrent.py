"""LSTM and GRU over sequences, inference and training, beside `torch.nn.LSTM` and `torch.nn.GRU`, by turns.

Training is a forward encode with training states and the gradient with respect to sources and weights; PyTorch's is a
call and ``backward``. Both read and write a sequence in one piece of memory: ours is a `MatrixSequence`, a matrix a
step; ``--listed`` passes lists of matrices of one buffer, ``--apart`` gives each matrix memory of its own; ``--once``
encodes each once, to `ReusableCommands`. The GRU of PyTorch applies its reset gate behind a product, ours before it, in
one product more, so numbers are compared for the LSTM alone.

Usage: python -m bench.recurrent [--device cpu|cuda] [--only WORD] [--listed] [--apart] [--once] [--turns N]
       [--threads N] [--clock wall|cpu] [--no-record]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import torch

import openmps as mps
from bench.harness import OURS, add_options, by_turns, compared, record
from bench.torch_peers import exactly
from recurrent_layers import gru, lstm

GATES = {
    "LSTM": {"input": 0, "forget": 1, "cell": 2, "output": 3},
    "GRU": {"input": 1, "recurrent": 0, "output": 2},
}
"""By the framework's names, and which part of PyTorch's weights each is."""
TURN = 0.1
"""Seconds that a turn takes at least."""


class Size(NamedTuple):
    """What is measured: as many inputs as outputs."""

    hidden: int
    steps: int
    batch: int


SIZES = tuple(Size(*each) for each in product((128, 1024), (32, 200), (1, 32)))


class Pair:
    """A layer of one size, ours and PyTorch's, with the same weights."""

    def __init__(
        self, kind: str, size: Size, device: mps.MTLDevice, *, apart: bool, listed: bool = False, once: bool = False
    ) -> None:
        self.kind, self.size, self.device, self.apart, self.listed = kind, size, device, apart, listed
        self.encoded: dict[str, mps.ReusableCommands] | None = {} if once else None
        self.place = device.torch_device
        hidden, steps, batch = size
        torch.manual_seed(0)
        self.peer = getattr(torch.nn, kind)(hidden, hidden)
        with torch.no_grad():
            self.peer.bias_hh_l0.zero_()
        parts = [each.detach().numpy() for each in self.peer.parameters()]
        blocks = [np.split(each, len(GATES[kind])) for each in parts[:3]]
        weights = {gate: tuple([block[at] for block in blocks]) for gate, at in GATES[kind].items()}
        self.descriptor = (lstm if kind == "LSTM" else gru)(weights)
        self.peer.to(self.place)
        shape = steps, batch, hidden
        generator = torch.Generator().manual_seed(1)
        self.x, self.slopes = (torch.randn(shape, generator=generator).to(self.place) for _ in range(2))
        self.leaf = self.x.clone().requires_grad_()
        self.queue = device.new_command_queue()
        self.sources, self.of_results = self._matrices(self.x), self._matrices(self.slopes)
        self.results, self.of_sources = (self._matrices(torch.zeros_like(self.x)) for _ in range(2))
        self.layer = mps.MPSRNNMatrixInferenceLayer(device, self.descriptor)
        self.weights, self.gradients = list[Any](), list[Any]()
        self.trained = mps.MPSRNNMatrixTrainingLayer(device, self.descriptor, self.weights)
        self.trained.create_weight_gradient_matrices(self.gradients)

    def _matrices(self, numbers: torch.Tensor) -> Sequence[Any]:
        steps, batch, hidden = numbers.shape
        if not (self.apart or self.listed):
            return mps.MatrixSequence(mps.MPSMatrix.from_dlpack(self.device, numbers, copy=True))
        if self.apart:
            return [mps.MPSMatrix.from_dlpack(self.device, each, copy=True) for each in numbers]
        buffer = mps.MTLBuffer.from_dlpack(self.device, numbers, copy=True)
        descriptor = mps.MPSMatrixDescriptor(batch, hidden)
        return [mps.MPSMatrix(buffer, descriptor, 4 * step * batch * hidden) for step in range(steps)]

    def infer(self) -> None:
        """A sequence."""
        self._do("inference", self._encode_inference)

    def _encode_inference(self, command_buffer: mps.CommandBuffer) -> None:
        self.layer.encode_sequence(command_buffer, self.sources, self.results)

    def _do(self, name: str, encode: Callable[[mps.CommandBuffer], None]) -> None:
        command_buffer = self.queue.command_buffer()
        if self.encoded is None:
            encode(command_buffer)
        else:
            if name not in self.encoded:
                self.encoded[name] = mps.ReusableCommands(self.queue)
                encode(self.encoded[name])
            self.encoded[name].encode(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()

    def infer_bare(self) -> Any:
        """The same of PyTorch."""
        with torch.no_grad():
            found = self.peer(self.x)[0]
        self._wait()
        return found

    def train(self) -> None:
        """A sequence and its gradients."""
        self._do("training", self._encode_training)

    def _encode_training(self, command_buffer: mps.CommandBuffer) -> None:
        states = list[Any]() if self.apart or self.listed else mps.MatrixTrainingStates()
        self.trained.encode_forward_sequence(command_buffer, self.sources, self.results, states, self.weights)
        self.trained.encode_gradient_sequence(
            command_buffer, self.sources, self.of_results, self.of_sources, self.gradients, states, self.weights
        )

    def train_bare(self) -> None:
        """The same of PyTorch."""
        self.leaf.grad = None
        self.peer.zero_grad(set_to_none=True)
        self.peer(self.leaf)[0].backward(self.slopes)
        self._wait()

    def _wait(self) -> None:
        if self.device.is_cuda:
            torch.cuda.synchronize()

    def check(self) -> None:
        """Raise unless results and gradients are PyTorch's; of LSTM, see the module."""
        self.train()
        self.train_bare()
        if self.kind == "GRU":
            return
        for name, ours, theirs in (
            ("results", self.results, self.infer_bare()), ("gradients", self.of_sources, self.leaf.grad)
        ):  # fmt: skip
            apart = float((torch.stack([each.tensor() for each in ours]) - theirs).abs().max())
            if apart > 1e-4 * max(1.0, float(theirs.abs().max())):
                raise AssertionError(f"{name} of {self.kind} at {self.size} differ by {apart:.1e}")


def measure(pair: Pair, turns: int, clock: str, *, trains: bool) -> dict[str, Any]:
    """Milliseconds of a sequence of both, and their ratio."""
    calls: dict[str, Callable[[], Any]] = {OURS: pair.infer, "PyTorch": pair.infer_bare}
    if trains:
        calls = {OURS: pair.train, "PyTorch": pair.train_bare}
    start = time.perf_counter()
    for call in calls.values():
        call()
    times = max(1, round(2 * TURN / (time.perf_counter() - start)))
    return compared(by_turns(calls, turns, times, clock))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="work whose name holds it")
    parser.add_argument("--apart", action="store_true", help="memory of its own for each step's matrix")
    parser.add_argument("--listed", action="store_true", help="lists of matrices of one buffer")
    parser.add_argument("--once", action="store_true", help="encode each once")
    add_options(parser, 9)
    options = parser.parse_args(arguments)
    exactly(options.threads)
    device = mps.mtl_device(options.device)
    how = {"threads": torch.get_num_threads(), "clock": options.clock, "apart": options.apart, "listed": options.listed}
    end = ", encoded once" if options.once else ""
    for kind, size in product(GATES, SIZES):
        start = f"{kind} {size.hidden}, {size.steps} steps of {size.batch}"
        names = [f"{start}, {each}{end}" for each in ("inference", "training")]
        if not any(options.only in name for name in names):
            continue
        pair = Pair(kind, size, device, apart=options.apart, listed=options.listed, once=options.once)
        pair.check()
        for name in names:
            if options.only not in name:
                continue
            row = measure(pair, options.turns, options.clock, trains="training" in name)
            ours, theirs = (row["contenders"][each]["median_ms"] for each in (OURS, "PyTorch"))
            print(f"{name:40} {ours:9.4g} ms {theirs:9.4g} ms {row['ratio']:6.2f}", flush=True)
            if not options.no_record:
                record("recurrent", options.device, {"work": name, **how, **row})


if __name__ == "__main__":
    main()
