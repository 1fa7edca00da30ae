"""What kernels of recurrent layers in Triton have in common: functions of gates, and what a program takes of a step."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_AT_ONCE = 128
"""Numbers of a state up to which a program holds the weights of states, and runs all steps of a row."""
NUMBERS = 256
"""Of a row of a step, that a program takes."""


def held_by(size: int) -> int:
    """How many numbers of a state a program has room for that runs all steps."""
    return max(16, next_power_of_2(size))


def grid_of(rows: int, size: int) -> tuple[int, int]:
    """Programs of a step."""
    return rows, cdiv(size, NUMBERS)


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
