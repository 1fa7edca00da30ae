"""What kernels of recurrent layers in Triton have in common: functions of gates, and what a program takes of a step."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_AT_ONCE = 128
"""Numbers of a state up to which a program holds the weights of states, and runs all steps of a row."""
NUMBERS = 256
"""Of a row of a step, that a program takes."""
_UNITS, _SHARED, _VECTOR = tl.constexpr(16), tl.constexpr(2), tl.constexpr(4)
"""Of a program that runs all steps: results of a warp, threads that share a sum, terms that a thread reads together."""


def held_by(size: int) -> int:
    """How many numbers of a state a program has room for that runs all steps."""
    return max(16, next_power_of_2(size))


def warps_of(size: int) -> int:
    """How many warps such a program has: 8 at most, whose threads have 255 registers each."""
    return held_by(size) // _UNITS.value


def gates_of(weights: Tensor, gates: int) -> Tensor:
    """Weights of states ``[gates, n, n]``, with zeros where a program has room for more numbers."""
    size = weights.shape[1]
    more = held_by(size) - size
    found = weights.view(gates, size, size)
    return torch.nn.functional.pad(found, (0, more, 0, more)) if more else found


def in_turn(gates: Tensor) -> Tensor:
    """Weights of gates whose numbers are terms of the same sums: those of each number behind one another."""
    return gates.transpose(0, 1).flatten(0, 1)


def blocks(terms: Tensor) -> Tensor:
    """Weights ``[..., terms, n]`` as `block` reads them."""
    threads = terms.unflatten(-2, (-1, _SHARED.value, _VECTOR.value)).unflatten(-1, (-1, _UNITS.value))
    *_, rows, shared, vector, warps, units = range(threads.dim())
    return threads.permute(*range(rows), rows, warps, shared, units, vector).contiguous()


def grid_of(rows: int, size: int) -> tuple[int, int]:
    """Programs of a step."""
    return rows, cdiv(size, NUMBERS)


@triton.jit
def units(HELD: tl.constexpr):
    """The numbers of a state, a row for each warp."""
    return tl.arange(0, HELD // _UNITS)[:, None] * _UNITS + tl.arange(0, _UNITS)[None, :]


@triton.jit
def put(place, x, size, HELD: tl.constexpr):
    """Write a state from where it is: the threads that share a sum both have it, and the first writes.

    A plain store of it goes through shared memory, with two barriers.
    """
    thread = tl.arange(0, _SHARED * _UNITS)[None, :]
    at = tl.arange(0, HELD // _UNITS)[:, None] * _UNITS + thread % _UNITS
    copies = tl.broadcast_to(x[:, None, :], [HELD // _UNITS, _SHARED, _UNITS])
    copies = tl.reshape(copies, [HELD // _UNITS, _SHARED * _UNITS])
    tl.store(place + at, copies, (at < size) & (thread < _UNITS))


@triton.jit
def block(weights, TERMS: tl.constexpr, HELD: tl.constexpr):
    """Where weights of a state are: rows go round the warps, and a row is what a warp's threads read together.

    No sum is over threads of two warps then, which wait for one another where they share numbers.
    """
    row, at = tl.arange(0, TERMS * HELD // 128), tl.arange(0, 128)
    return weights + row[:, None] * 128 + at[None, :]


@triton.jit
def terms(x, TERMS: tl.constexpr):
    """Numbers, one to a term, as `parts` takes them."""
    return tl.reshape(x, [TERMS // (_SHARED * _VECTOR), _SHARED, _VECTOR])


@triton.jit
def halves(x, TERMS: tl.constexpr):
    """The same, the first and the second half of them, which are exchanged between threads at once."""
    both = tl.reshape(x, [2, TERMS // (2 * _SHARED * _VECTOR), _SHARED, _VECTOR])
    return tl.split(tl.permute(both, [1, 2, 3, 0]))


@triton.jit
def parts(weights, x, TERMS: tl.constexpr, HELD: tl.constexpr):
    """The products of a `block` with `terms`, the sums of each thread."""
    weights = tl.reshape(weights, [TERMS // (_SHARED * _VECTOR), HELD // _UNITS, _SHARED, _UNITS, _VECTOR])
    return tl.sum(tl.sum(weights * x[:, None, :, None, :], 0), 3)


@triton.jit
def by_block(weights, x, TERMS: tl.constexpr, HELD: tl.constexpr):
    """The products of a `block` with `terms`, a number for each of `units`."""
    return tl.sum(parts(weights, x, TERMS, HELD), 1)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """The hyperbolic tangent, within some 2^-22."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
