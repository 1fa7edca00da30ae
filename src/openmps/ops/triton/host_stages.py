"""Bytes that a GPU brings from pinned memory of the host by itself, in Triton: a launch in a capture, not a copy.

A copy in front of a capture costs the host a call, and the device a change between what copies and what computes. The
launch finds its bytes in another stage each time, in turn, so that the host fills one while others are yet to be read.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 128
"""Words of a program: the way to the host takes as long for one as for all, so that many ask at once."""


@Launched
@triton.jit
def _bring_stage(stages, place, turns, words, count, BLOCK: tl.constexpr):
    """A block of the stage whose turn it is. Each program counts by itself."""
    program = tl.program_id(0)
    turn, at = tl.load(turns + program), program * BLOCK + tl.arange(0, BLOCK)
    # Volatile: the host has written there since the launch before.
    tl.store(place + at, tl.load(stages + turn * words + at, at < words, volatile=True), at < words)
    tl.debug_barrier()
    tl.store(turns + program, (turn + 1) % count)


def turns_of(stages: Tensor, device: torch.device) -> Tensor:
    """Memory in which `bring_stage` counts, which begins with the first stage."""
    return torch.zeros(cdiv(stages.shape[1], _BLOCK), dtype=torch.int64, device=device)


def bring_stage(stages: Tensor, place: Tensor, turns: Tensor) -> None:
    """Copy the row of ``stages``, int64, whose turn it is to ``place``, and have the next one's come."""
    count, words = stages.shape
    _bring_stage[(turns.numel(),)](stages, place, turns, words, count, _BLOCK, num_warps=1)
