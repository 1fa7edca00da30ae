"""Products, largest numbers, factorizations and solutions of matrices beside the bare PyTorch call, by turns.

A turn of ours encodes as often as takes some milliseconds, ten encodes to a command buffer, and waits for the last; the
call is made as often. Before anything is timed, the numbers are compared.

Usage: python -m bench.matrices [--device cpu|cuda] [--only WORD] [--turns N] [--threads N] [--clock wall|cpu]
       [--no-record]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import openmps as mps
from bench.harness import OURS, add_options, by_long_turns, compared, record, times_in
from bench.torch_peers import exactly

BARE = "PyTorch"
TURN = 5e-2
"""Seconds that a turn takes at least."""
TOGETHER = 10
"""Encodes to a command buffer."""
SIDES = (64, 256, 1024)


class Work(NamedTuple):
    """A kernel, its sources and results, and the call that gives the last result."""

    kernel: Any
    sources: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    """Zeros of the results' shapes and types."""
    call: Callable[..., Any]


def _system(device: mps.MTLDevice, side: int) -> tuple[Tensor, Tensor]:
    """A positive definite matrix, and right-hand sides."""
    generator = torch.Generator().manual_seed(side)
    drawn, sides = torch.randn(side, side, generator=generator), torch.randn(side, 16, generator=generator)
    matrix = drawn @ drawn.T / side + torch.eye(side)
    return matrix.to(device.torch_device), sides.to(device.torch_device)


def product(device: mps.MTLDevice, side: int) -> Work:
    """A product of square matrices."""
    left, right = (each.contiguous() for each in (_system(device, side)[0], _system(device, side)[0].T))
    kernel = mps.MPSMatrixMultiplication(device, side, side, side)
    return Work(kernel, (left, right), (torch.zeros_like(left),), torch.matmul)


def batched_product(device: mps.MTLDevice, side: int) -> Work:
    """A product of 16 pairs of matrices."""
    left = torch.stack([_system(device, side)[0]] * 16)
    kernel = mps.MPSMatrixMultiplication(device, side, side, side)
    return Work(kernel, (left, left.mT.contiguous()), (torch.zeros_like(left),), torch.matmul)


def top_k(device: mps.MTLDevice, side: int) -> Work:
    """The four largest numbers of each row."""
    x = _system(device, side)[0]
    places, values = (torch.zeros(side, 4, dtype=kind, device=x.device) for kind in (torch.uint32, x.dtype))
    return Work(mps.MPSMatrixFindTopK(device, 4), (x,), (places, values), lambda x: torch.topk(x, 4)[0])


def lu(device: mps.MTLDevice, side: int) -> Work:
    """A factorization with pivots; compared is what is solved by it, for which see `lu_solution`."""
    x = _system(device, side)[0]
    pivots = torch.zeros(1, side, dtype=torch.uint32, device=x.device)
    kernel = mps.MPSMatrixDecompositionLU(device, side, side)
    return Work(kernel, (x,), (torch.zeros_like(x), pivots), lambda x: torch.linalg.lu_factor(x)[1] - 1)


def cholesky(device: mps.MTLDevice, side: int) -> Work:
    """A factorization of a positive definite matrix."""
    x = _system(device, side)[0]
    kernel = mps.MPSMatrixDecompositionCholesky(device, True, side)
    return Work(kernel, (x,), (torch.zeros_like(x),), torch.linalg.cholesky)


def lu_solution(device: mps.MTLDevice, side: int) -> Work:
    """16 right-hand sides, by factors and pivots."""
    x, sides = _system(device, side)
    factors, pivots = torch.linalg.lu_factor(x)
    given = (pivots - 1).to(torch.uint32).unsqueeze(0)
    kernel = mps.MPSMatrixSolveLU(device, False, side, 16)
    call = lambda factors, sides, _: torch.linalg.lu_solve(factors, pivots, sides)  # noqa: E731
    return Work(kernel, (factors, sides, given), (torch.zeros_like(sides),), call)


def cholesky_solution(device: mps.MTLDevice, side: int) -> Work:
    """The same by the factor of `cholesky`."""
    x, sides = _system(device, side)
    kernel = mps.MPSMatrixSolveCholesky(device, False, side, 16)
    call = lambda factor, sides: torch.cholesky_solve(sides, factor)  # noqa: E731
    return Work(kernel, (torch.linalg.cholesky(x), sides), (torch.zeros_like(sides),), call)


def triangular_solution(device: mps.MTLDevice, side: int) -> Work:
    """The same of a lower triangle."""
    x, sides = _system(device, side)
    kernel = mps.MPSMatrixSolveTriangular(device, False, False, False, False, side, 16, 1.0)
    call = lambda factor, sides: torch.linalg.solve_triangular(factor, sides, upper=False)  # noqa: E731
    return Work(kernel, (torch.linalg.cholesky(x), sides), (torch.zeros_like(sides),), call)


WORKS: tuple[Callable[[mps.MTLDevice, int], Work], ...] = (
    product, batched_product, top_k, lu, cholesky, lu_solution, cholesky_solution, triangular_solution,
)  # fmt: skip


def measure(work: Work, device: mps.MTLDevice, turns: int, clock: str) -> dict[str, Any]:
    """Both by turns, milliseconds a call."""
    queue = device.new_command_queue()
    operands = [mps.MPSMatrix.from_dlpack(device, each, copy=True) for each in (*work.sources, *work.results)]

    def ours(times: int) -> None:
        command_buffer = None
        for first in range(0, times, TOGETHER):
            command_buffer = queue.command_buffer()
            for _ in range(min(TOGETHER, times - first)):
                work.kernel.encode(command_buffer, *operands)
            command_buffer.commit()
        if command_buffer is not None:
            command_buffer.wait_until_completed()

    def bare(times: int) -> Any:
        found = None
        for _ in range(times):
            found = work.call(*work.sources)
        if device.is_cuda:
            torch.cuda.synchronize()
        return found

    ours(1)
    wanted, found = bare(1).float(), operands[-1].tensor().float()
    found = found.tril() if isinstance(work.kernel, mps.MPSMatrixDecompositionCholesky) else found
    apart = float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1.0))
    if not apart < 1e-4:
        raise AssertionError(f"numbers of {work.kernel} differ by {apart:.1e}")
    return compared(by_long_turns({OURS: ours, BARE: bare}, turns, times_in(TURN, bare, 3), clock))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="work whose name holds it")
    add_options(parser, 9)
    options = parser.parse_args(arguments)
    exactly(options.threads)
    device = mps.mtl_device(options.device)
    how = {"threads": torch.get_num_threads(), "clock": options.clock}
    for make in WORKS:
        name = make.__name__.replace("_", " ")
        if options.only not in name:
            continue
        for side in SIDES[: 2 if make is batched_product else 3]:
            row = measure(make(device, side), device, options.turns, options.clock)
            ours, theirs = (row["contenders"][each]["median_ms"] for each in (OURS, BARE))
            print(f"{name:22} {side:5} {ours:9.4g} ms {theirs:9.4g} ms {row['ratio']:6.2f}", flush=True)
            if not options.no_record:
                record("matrices", options.device, {"work": f"{name} {side}", **how, **row})


if __name__ == "__main__":
    main()
