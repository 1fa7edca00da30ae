"""Long short-term memory in Triton, of sigmoid gates and hyperbolic tangents: a launch a step (`recurrent_cells`)."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.matrix.step_tiles import COLUMNS, added_product, grid_of, sigmoid, tanh, tiles

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


@Launched
@triton.jit
def _step(
    gates, before, memory, weights, hidden, after, rows, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """h1 and c1 of a step; gates become their results."""
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], gates + row[:, None] * 4 * size + column[None, :]
    i, f = tl.load(mine, is_here, 0.0), tl.load(mine + size, is_here, 0.0)
    c, o = tl.load(mine + 2 * size, is_here, 0.0), tl.load(mine + 3 * size, is_here, 0.0)
    is_row, is_column = (row < rows)[:, None], (column < size)[None, :]
    for first in range(0, size, TERMS):
        term = first + tl.arange(0, TERMS)
        is_weight = (term < size)[:, None] & is_column
        h0 = tl.load(before + row[:, None] * size + term[None, :], is_row & (term < size)[None, :], 0.0)
        weight = weights + term[:, None] + column[None, :] * size
        i = tl.dot(h0, tl.load(weight, is_weight, 0.0), i, input_precision="tf32x3")
        f = tl.dot(h0, tl.load(weight + size * size, is_weight, 0.0), f, input_precision="tf32x3")
        c = tl.dot(h0, tl.load(weight + 2 * size * size, is_weight, 0.0), c, input_precision="tf32x3")
        o = tl.dot(h0, tl.load(weight + 3 * size * size, is_weight, 0.0), o, input_precision="tf32x3")
    i, f, c, o = sigmoid(i), sigmoid(f), tanh(c), sigmoid(o)
    c1 = f * tl.load(memory + place, is_here, 0.0) + i * c
    tl.store(mine, i, is_here)
    tl.store(mine + size, f, is_here)
    tl.store(mine + 2 * size, c, is_here)
    tl.store(mine + 3 * size, o, is_here)
    tl.store(after + place, c1, is_here)
    tl.store(hidden + place, o * tanh(c1), is_here)


def step(gates: Tensor, before: Tensor, memory: Tensor, weights: Tensor, hidden: Tensor, after: Tensor) -> None:
    """Fill h1 and c1 of a step; ``gates``, the rows of the step, become their results."""
    rows, size = before.shape
    _step[grid_of(rows, size)](
        gates, before, memory, weights, hidden, after, rows, size, *_tiles(rows, size), num_warps=4
    )  # fmt: skip


def _tiles(rows: int, size: int) -> tuple[int, int, int]:
    block, terms = tiles(rows, size)
    return block, COLUMNS, terms


@Launched
@triton.jit
def _back(
    gradient, gates, memory, after, of_hidden, of_memory, weights, of_gates, made, left, rows, size,
    HAS_PRODUCT: tl.constexpr, HAS_STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """The gradient with respect to a state: with ``HAS_PRODUCT`` h's is what gates of the step behind it give.

    With ``HAS_STEP`` those with respect to what gates of the step before it are given, too, and to its c0, ``left``.
    """
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], row[:, None] * 4 * size + column[None, :]
    if HAS_PRODUCT:
        none = tl.zeros([ROWS, COLUMNS], tl.float32)
        state = added_product(none, of_gates, 4 * size, weights, size, 1, 4 * size, row, column, rows, size, TERMS)
        tl.store(of_hidden + place, state, is_here)
    else:
        state = tl.load(of_hidden + place, is_here, 0.0)
    if HAS_STEP:
        i, f = tl.load(gates + mine, is_here, 0.0), tl.load(gates + mine + size, is_here, 0.0)
        c, o = tl.load(gates + mine + 2 * size, is_here, 0.0), tl.load(gates + mine + 3 * size, is_here, 0.0)
        own, out = state + tl.load(gradient + place, is_here, 0.0), tanh(tl.load(after + place, is_here, 0.0))
        to_memory = tl.load(of_memory + place, is_here, 0.0) + own * o * (1.0 - out * out)
        c0 = tl.load(memory + place, is_here, 0.0)
        tl.store(made + mine, to_memory * c * i * (1.0 - i), is_here)
        tl.store(made + mine + size, to_memory * c0 * f * (1.0 - f), is_here)
        tl.store(made + mine + 2 * size, to_memory * i * (1.0 - c * c), is_here)
        tl.store(made + mine + 3 * size, own * out * o * (1.0 - o), is_here)
        tl.store(left + place, to_memory * f, is_here)


def back(
    gradient: Tensor,
    gates: Tensor,
    memory: Tensor,
    after: Tensor,
    of_hidden: Tensor,
    of_memory: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """With respect to what gates are given, and to h0 and c0 of each step, the rows of all steps.

    ``of_hidden`` and ``of_memory`` are those of the state behind the last step, which are not written.
    """
    rows, size = of_hidden.shape
    made, left, lost = torch.empty_like(gates), torch.empty_like(memory), torch.empty_like(memory)
    grid, held = grid_of(rows, size), _tiles(rows, size)
    steps = [*zip(*(each.split(rows) for each in (gradient, gates, memory, after, made, left, lost)), strict=True)]
    of_gates = made  # of the step behind; none of the last one
    for index, (own, its_gates, c0, c1, into, to_h0, to_c0) in enumerate(reversed(steps)):
        _back[grid](
            own, its_gates, c0, c1, of_hidden, of_memory, weights, of_gates, into, to_c0, rows, size,
            index > 0, True, *held, num_warps=4,
        )  # fmt: skip
        of_hidden, of_memory, of_gates = to_h0, to_c0, into
    _back[grid](
        gradient, gates, memory, after, of_hidden, of_memory, weights, of_gates, made, lost, rows, size,
        True, False, *held, num_warps=4,
    )  # fmt: skip
    return made, left, lost
