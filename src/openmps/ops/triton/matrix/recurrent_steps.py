"""What kernels of recurrent layers in Triton have in common: functions of gates, and what a program takes of a step."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_AT_ONCE = 128
"""Numbers of a state up to which a program holds the weights of states, and runs all steps of a row."""
NUMBERS = 256
"""Of a row of a step, that a program takes."""
WARPS = 8
"""Of a program that runs all steps: the most threads that have 255 registers each."""


def held_by(size: int) -> int:
    """How many numbers of a state a program has room for that runs all steps."""
    return max(16, triton.next_power_of_2(size))


def squares(weights: Tensor, gates: int, *, is_turned: bool = False) -> Tensor:
    """Weights of states, a square a gate, zeros where a program has room for more; turned if sums are over columns.

    Numbers of a sum then lie a row apart: each thread adds its own, and shares few of them with others.
    """
    size = weights.shape[1]
    found, more = weights.view(gates, size, size), held_by(size) - size
    found = found.mT if is_turned else found
    return torch.nn.functional.pad(found, (0, more, 0, more)) if more else found.contiguous()


def grid_of(rows: int, size: int) -> tuple[int, int]:
    """Programs of a step."""
    return rows, triton.cdiv(size, NUMBERS)


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
