"""Kernels of the catalogue at three sizes, forward and gradient, beside the bare PyTorch call, by turns.

A turn of ours encodes as often as takes some milliseconds, to command buffers of ten encodes, as a network encodes its
layers; it commits each and waits for the last. The call is made as often. What a gradient kernel reads of the forward
pass is there before the turn, as what autograd keeps is. Before anything is timed, the numbers are compared.

Usage: python -m bench.kernels [--device cpu|cuda] [--only WORD] [--last N] [--turns N] [--threads N]
       [--clock wall|cpu]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from torch import Tensor

import openmps as mps
from bench.harness import OURS, add_options, by_long_turns, compared, record, times_in
from bench.kernel_cases import CASES, SIZES, Case, Size, tolerance
from bench.torch_peers import exactly
from encoding import data_alone, encode, keep_results

LAST = torch.channels_last
BARE = "PyTorch"
TURN = 5e-2
"""Seconds that a turn takes at least: as many encodes as need that long."""
TOGETHER = 10
"""Encodes to a command buffer."""


class Pair:
    """One case at one size: ours and the call, forward and gradient, on the same numbers."""

    def __init__(self, case: Case, size: Size, device: mps.MTLDevice) -> None:
        self.case, self.device = case, device
        self.queue = device.new_command_queue()
        place = device.torch_device
        generator = torch.Generator().manual_seed(1)
        shapes = [size.shape] * case.sources
        if case.second is not None:
            shapes[1] = case.second(size)
        tensors = [torch.rand(shape, generator=generator) - (0.0 if case.is_positive else 0.5) for shape in shapes]
        tensors = [tensor + 0.1 if case.is_positive else tensor for tensor in tensors]
        self.tensors = [tensor.to(place).contiguous(memory_format=LAST) for tensor in tensors]
        self.images = [mps.MPSImageBatch.from_tensor(device, tensor, copy=True) for tensor in self.tensors]
        self.parameters = [each.to(place) for each in case.parameters(size)]
        self.kernel = case.make(device, size)
        keep_results(self.kernel)

    def encoded(self, times: int, encode: Callable[[Any], Any]) -> Any:
        """Encode so often, and wait; the last result."""
        result = command_buffer = None
        for first in range(0, times, TOGETHER):
            command_buffer = mps.MPSCommandBuffer(self.queue)
            for _ in range(min(TOGETHER, times - first)):
                result = encode(command_buffer)
            command_buffer.commit()
        if command_buffer is not None:
            command_buffer.wait_until_completed()
        return result

    # --- forward ------------------------------------------------------------------------------------------------------

    def ours(self, times: int) -> Any:
        """Encode so many times; the last result."""
        return self.encoded(times, lambda command_buffer: encode(self.kernel, command_buffer, self.images))

    def bare(self, times: int) -> Any:
        """The call, as often."""
        result = None
        with torch.no_grad():
            for _ in range(times):
                result = self.case.call(*self.tensors, *self.parameters)
        self._wait()
        return result

    def _wait(self) -> None:
        if self.device.is_cuda:
            torch.cuda.synchronize()

    # --- gradient -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The forward passes that the gradients belong to."""
        assert self.case.gradient is not None
        result, states = self.encoded(1, self._with_states)
        self.gradient = self.case.gradient(self.device, self.kernel)
        keep_results(self.gradient)
        if not self.case.trains:
            data_alone(self.gradient)
        self.second = result if self.case.reads_result else self.images[-1]
        self.states, self.incoming = states, result
        self.leaves = [each.clone().requires_grad_() for each in self.tensors[:1]]
        trained = [each.clone().requires_grad_() for each in self.parameters] if self.case.trains else self.parameters
        self.made = self.case.call(*self.leaves, *self.tensors[1:], *trained)
        self.leaves += trained if self.case.trains else []
        self.slopes = self.made.detach().clone(memory_format=LAST)

    def make_states(self, times: int) -> None:
        """Forward passes for gradients of parameters: a state takes those of one batch."""
        self.given = [self.states] * times
        if self.case.trains:
            self.given = list[Any]()
            self.encoded(times, lambda command_buffer: self.given.append(self._with_states(command_buffer)[1]))

    def _with_states(self, command_buffer: Any) -> Any:
        return encode(self.kernel, command_buffer, self.images, destination_state_is_temporary=False)

    def our_gradient(self, times: int) -> Any:
        """Encode the gradient kernel so many times; the last result."""
        given = [self.incoming, self.second]
        return self.encoded(times, lambda buffer: encode(self.gradient, buffer, given, self.given.pop()))

    def bare_gradient(self, times: int) -> Any:
        """Torch's gradient of the call, as often."""
        found: tuple[Tensor, ...] = ()
        for _ in range(times):
            found = torch.autograd.grad(self.made, self.leaves, self.slopes, retain_graph=True)
            if found[0].data_ptr() == self.slopes.data_ptr():
                # The gradient of a sum is the incoming one; ours is an image of its own.
                found = (found[0].clone(),)
        self._wait()
        return found[0]


def measure(
    case: Case, size: Size, device: mps.MTLDevice, turns: int, *, gradient: bool, clock: str = "wall"
) -> dict[str, Any]:
    """One row: the two by turns, and how far their numbers lie apart."""
    pair = Pair(case, size, device)
    calls: tuple[Callable[[int], Any], Callable[[int], Any]] = pair.ours, pair.bare
    if gradient:
        pair.prepare()
        calls = pair.our_gradient, pair.bare_gradient
    before = {OURS: lambda: pair.make_states(times)} if gradient else {}
    times = 1
    for prepare in before.values():
        prepare()
    difference = apart(calls[0](1), calls[1](1))
    if difference > tolerance(case):
        raise AssertionError(f"{case.kernel} at {size}: numbers differ by {difference:.1e} of the largest")
    calls[1](1)
    times = times_in(TURN, calls[1])
    found = by_long_turns({OURS: calls[0], BARE: calls[1]}, turns, times, clock, before)
    return {"size": list(size.shape), **compared(found)}


def apart(images: Any, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number, at least 1."""
    found, wanted = images.tensor(), expected.detach()
    if found.shape != wanted.shape:
        raise AssertionError(f"shapes {tuple(found.shape)} and {tuple(wanted.shape)} differ")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1.0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose names hold it")
    parser.add_argument("--last", type=int, choices=(1, 2, 3), default=3, help="so many of the sizes, the largest ones")
    add_options(parser, 15)
    options = parser.parse_args(arguments)
    exactly(options.threads)
    device = mps.mtl_device(options.device)
    how = {"threads": torch.get_num_threads(), "clock": options.clock}
    for case in CASES:
        for gradient in (False, True) if case.gradient is not None else (False,):
            name = case.kernel + (", gradient" if gradient else "")
            if options.only not in name:
                continue
            sizes = [
                measure(case, size, device, options.turns, gradient=gradient, clock=options.clock)
                for size in SIZES[options.device][-options.last :]
            ]
            print(f"{name:52}" + "".join(f"{each['ratio']:8.2f}" for each in sizes), flush=True)
            if not options.no_record:
                record("kernels", options.device, {"work": name, **how, "sizes": sizes})


if __name__ == "__main__":
    main()
