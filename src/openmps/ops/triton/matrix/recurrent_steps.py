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
_TERMS, _UNITS = tl.constexpr(8), tl.constexpr(16)
"""Terms of sums that threads of a warp share, and results of a warp, of a program that runs all steps."""


def held_by(size: int) -> int:
    """How many numbers of a state a program has room for that runs all steps."""
    return max(16, next_power_of_2(size))


def warps_of(size: int) -> int:
    """How many warps such a program has: 8 at most, whose threads have 255 registers each."""
    return held_by(size) // _UNITS.value


def squares(weights: Tensor, gates: int, *, is_turned: bool = False) -> Tensor:
    """Weights of states as `square` reads them, zeros where a program has room for more numbers.

    Sums are over rows of a gate's weights, or over columns, where they are ``is_turned`` first.
    """
    size, held = weights.shape[1], held_by(weights.shape[1])
    found = weights.view(gates, size, size)
    found = found.mT if is_turned else found
    if held > size:
        found = torch.nn.functional.pad(found, (0, held - size, 0, held - size))
    parts = found.view(gates, -1, _TERMS.value, held // _UNITS.value, _UNITS.value)
    return parts.transpose(2, 3).contiguous()


def grid_of(rows: int, size: int) -> tuple[int, int]:
    """Programs of a step."""
    return rows, cdiv(size, NUMBERS)


@triton.jit
def units(HELD: tl.constexpr):
    """The numbers of a state, a row for each warp."""
    return tl.arange(0, HELD // _UNITS)[:, None] * _UNITS + tl.arange(0, _UNITS)[None, :]


@triton.jit
def square(weights, HELD: tl.constexpr):
    """Where the weights of a gate are: rows go round the warps, and a row is what a warp's threads read together.

    No sum is over threads of two warps then, which wait for one another where they share numbers.
    """
    row, at = tl.arange(0, HELD * HELD // (_TERMS * _UNITS)), tl.arange(0, _TERMS * _UNITS)
    return weights + row[:, None] * (_TERMS * _UNITS) + at[None, :]


@triton.jit
def parts_by_square(weights, x, HELD: tl.constexpr):
    """The product of a state with the weights of a gate, the sums of each thread."""
    parts = tl.reshape(weights, [HELD // _TERMS, HELD // _UNITS, _TERMS, _UNITS])
    return tl.sum(parts * tl.reshape(x, [HELD // _TERMS, _TERMS])[:, None, :, None], 0)


@triton.jit
def by_square(weights, x, HELD: tl.constexpr):
    """The product of a state with the weights of a gate."""
    return tl.sum(parts_by_square(weights, x, HELD), 1)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def tanh(x):
    """The hyperbolic tangent."""
    e = tl.exp(-2.0 * tl.abs(x))
    result = (1.0 - e) / (1.0 + e)
    return tl.where(x >= 0.0, result, -result)
