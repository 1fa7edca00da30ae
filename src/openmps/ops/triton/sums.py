"""Sums that several programs made a part of each, added in a fixed order: one launch."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_AT_ONCE, _FEW, _MANY = 2048, 16, 256
"""Numbers that a program reads at a time, twice as many of few parts, and of how many parts at most."""


@Overlapping
@triton.jit
def _sum_of_parts(parts, sums, count, numbers, HELD: tl.constexpr, NUMBERS: tl.constexpr, OVERLAPS: tl.constexpr):
    """Some numbers of the sum."""
    in_turn(OVERLAPS)
    at = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    total = tl.zeros([HELD, NUMBERS], tl.float32)
    for first in range(0, count, HELD):
        part = first + tl.arange(0, HELD)
        place = part.to(tl.int64)[:, None] * numbers + at[None, :]
        total += tl.load(parts + place, (part < count)[:, None] & (at < numbers)[None, :], 0.0)
    tl.store(sums + at, tl.sum(total, 0), at < numbers)


def sum_of_parts(parts: Tensor) -> Tensor:
    """The sum of float32 numbers over the first axis, in memory without gaps."""
    count = parts.shape[0]
    if count == 1:
        return parts[0]
    sums = torch.empty(parts.shape[1:], dtype=torch.float32, device=parts.device)
    numbers, held = sums.numel(), min(_MANY, next_power_of_2(count))
    block = max(16, min(_AT_ONCE * (2 if held <= _FEW else 1) // held, next_power_of_2(numbers)))
    _sum_of_parts[(cdiv(numbers, block),)](parts, sums, count, numbers, held, block, num_warps=4)
    return sums
