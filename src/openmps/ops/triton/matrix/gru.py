"""Gated recurrent units in Triton: sigmoid gates, a candidate by the hyperbolic tangent; see `recurrent_cells`.

Small layers run a whole sequence in one launch, a program a row: no row needs another one's state. Larger ones take two
launches a step, each a product with what follows from its numbers.
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
from openmps.ops.triton.matrix.step_tiles import COLUMNS, added_product, grid_of, sigmoid, tanh, tiles

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

MOST_AT_ONCE = 128
"""Numbers of a state up to which a program holds the weights of states."""


@triton.jit
def _mixed(z, h, h0, IS_FLIPPED: tl.constexpr):
    """h1."""
    return h0 + z * (h - h0) if IS_FLIPPED else h + z * (h0 - h)


@triton.jit
def _slopes(z, h, h0, IS_FLIPPED: tl.constexpr):
    """Of h1 by what z and the candidate are applied to, and by h0 beside gates."""
    difference = h - h0 if IS_FLIPPED else h0 - h
    through = z if IS_FLIPPED else 1.0 - z
    return difference * z * (1.0 - z), through * (1.0 - h * h), 1.0 - through


@Launched
@triton.jit
def _run(
    gates, first, weights, hidden, steps, rows, size,
    IS_FLIPPED: tl.constexpr, IS_BACKWARD: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row: gates become their results."""
    row, at, term = tl.program_id(0), tl.arange(0, HELD), tl.arange(0, HELD)
    is_at = at < size
    block = weights + at[None, :] * size + term[:, None]
    is_block = is_at[None, :] & (term < size)[:, None]
    to_z = tl.load(block, is_block, 0.0)
    to_r = tl.load(block + size * size, is_block, 0.0)
    to_h = tl.load(block + 2 * size * size, is_block, 0.0)
    state = tl.load(first + row * size + at, is_at, 0.0)
    # What a step reads is asked for a step ahead.
    place = ((steps - 1 if IS_BACKWARD else 0) * rows + row).to(tl.int64)
    mine = gates + place * 3 * size + at
    next_z, next_r = tl.load(mine, is_at, 0.0), tl.load(mine + size, is_at, 0.0)
    next_h = tl.load(mine + 2 * size, is_at, 0.0)
    for index in range(steps):
        step = steps - 1 - index if IS_BACKWARD else index
        place = (step * rows + row).to(tl.int64)
        mine = gates + place * 3 * size + at
        z, r, h = next_z, next_r, next_h
        is_next = is_at & (index + 1 < steps)
        ahead = mine + (-3 if IS_BACKWARD else 3) * rows * size
        next_z, next_r = tl.load(ahead, is_next, 0.0), tl.load(ahead + size, is_next, 0.0)
        next_h = tl.load(ahead + 2 * size, is_next, 0.0)
        z = sigmoid(z + tl.sum(to_z * state[:, None], 0))
        r = sigmoid(r + tl.sum(to_r * state[:, None], 0))
        reset = tl.where(is_at, r * state, 0.0)
        h = tanh(h + tl.sum(to_h * reset[:, None], 0))
        state = tl.where(is_at, _mixed(z, h, state, IS_FLIPPED), 0.0)
        tl.store(mine, z, is_at)
        tl.store(mine + size, r, is_at)
        tl.store(mine + 2 * size, h, is_at)
        tl.store(hidden + place * size + at, state, is_at)


def run(gates: Tensor, first: Tensor, weights: Tensor, steps: int, *, is_flipped: bool, is_backward: bool) -> Tensor:
    """h1 of all rows; ``gates`` become their results."""
    rows, size = first.shape
    hidden = torch.empty_like(gates[:, :size], memory_format=torch.contiguous_format)
    held = max(16, triton.next_power_of_2(size))
    _run[(rows,)](
        gates, first, weights, hidden, steps, rows, size, is_flipped, is_backward, held, num_warps=max(4, held // 8)
    )
    return hidden


@Launched
@triton.jit
def _back(
    gradient, gates, before, behind, weights, made, left, steps, rows, size,
    IS_FLIPPED: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row, the last one first."""
    row, at, term = tl.program_id(0), tl.arange(0, HELD), tl.arange(0, HELD)
    is_at = at < size
    block = weights + term[:, None] * size + at[None, :]
    is_block = is_at[None, :] & (term < size)[:, None]
    of_z = tl.load(block, is_block, 0.0)
    of_r = tl.load(block + size * size, is_block, 0.0)
    of_h = tl.load(block + 2 * size * size, is_block, 0.0)
    state = tl.load(behind + row * size + at, is_at, 0.0)
    # What a step reads is asked for a step ahead.
    place = ((steps - 1) * rows + row).to(tl.int64)
    mine = gates + place * 3 * size + at
    next_z, next_r = tl.load(mine, is_at, 0.0), tl.load(mine + size, is_at, 0.0)
    next_h, next_h0 = tl.load(mine + 2 * size, is_at, 0.0), tl.load(before + place * size + at, is_at, 0.0)
    next_own = tl.load(gradient + place * size + at, is_at, 0.0)
    for index in range(steps):
        place = ((steps - 1 - index) * rows + row).to(tl.int64)
        z, r, h, h0, own = next_z, next_r, next_h, next_h0, state + next_own
        is_next, ahead = is_at & (index + 1 < steps), place - rows
        mine = gates + ahead * 3 * size + at
        next_z, next_r = tl.load(mine, is_next, 0.0), tl.load(mine + size, is_next, 0.0)
        next_h, next_h0 = tl.load(mine + 2 * size, is_next, 0.0), tl.load(before + ahead * size + at, is_next, 0.0)
        next_own = tl.load(gradient + ahead * size + at, is_next, 0.0)
        slope_z, slope_h, past = _slopes(z, h, h0, IS_FLIPPED)
        az, ah = own * slope_z, own * slope_h
        reset = tl.sum(of_h * ah[:, None], 0)
        ar = reset * h0 * r * (1.0 - r)
        state = own * past + reset * r + tl.sum(of_z * az[:, None] + of_r * ar[:, None], 0)
        state = tl.where(is_at, state, 0.0)
        into = made + place * 3 * size + at
        tl.store(into, az, is_at)
        tl.store(into + size, ar, is_at)
        tl.store(into + 2 * size, ah, is_at)
        tl.store(left + place * size + at, state, is_at)


def back(
    gradient: Tensor, gates: Tensor, before: Tensor, behind: Tensor, weights: Tensor, *, is_flipped: bool
) -> tuple[Tensor, Tensor]:
    """With respect to what gates are given, and to h0 of each step, the rows of all steps."""
    rows, size = behind.shape
    made, left = torch.empty_like(gates), torch.empty_like(before)
    held = max(16, triton.next_power_of_2(size))
    _back[(rows,)](
        gradient, gates, before, behind, weights, made, left, len(gates) // rows, rows, size, is_flipped, held,
        num_warps=max(4, held // 8),
    )  # fmt: skip
    return made, left


@Launched
@triton.jit
def _reset(
    gates, before, weights, reset, rows, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    """z, r and ``r . h0`` of a step; gates become their results."""
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], gates + row[:, None] * 3 * size + column[None, :]
    z, r = tl.load(mine, is_here, 0.0), tl.load(mine + size, is_here, 0.0)
    z = added_product(z, before, size, weights, 1, size, size, row, column, rows, size, TERMS)
    r = added_product(r, before, size, weights + size * size, 1, size, size, row, column, rows, size, TERMS)
    r = sigmoid(r)
    tl.store(mine, sigmoid(z), is_here)
    tl.store(mine + size, r, is_here)
    tl.store(reset + place, r * tl.load(before + place, is_here, 0.0), is_here)


@Launched
@triton.jit
def _mix(
    gates, before, weights, reset, hidden, rows, size,
    IS_FLIPPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """The candidate and h1 of a step."""
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], gates + row[:, None] * 3 * size + column[None, :]
    h = tl.load(mine + 2 * size, is_here, 0.0)
    of_reset = weights + 2 * size * size
    h = tanh(added_product(h, reset, size, of_reset, 1, size, size, row, column, rows, size, TERMS))
    h1 = _mixed(tl.load(mine, is_here, 0.0), h, tl.load(before + place, is_here, 0.0), IS_FLIPPED)
    tl.store(mine + 2 * size, h, is_here)
    tl.store(hidden + place, h1, is_here)


def step(gates: Tensor, before: Tensor, weights: Tensor, hidden: Tensor, *, is_flipped: bool) -> None:
    """Fill h1 of a step; ``gates``, the rows of the step, become their results."""
    (rows, size), reset = before.shape, torch.empty_like(before)
    block, terms = tiles(rows, size)
    grid = grid_of(rows, size)
    _reset[grid](gates, before, weights, reset, rows, size, block, COLUMNS, terms, num_warps=4)
    _mix[grid](gates, before, weights, reset, hidden, rows, size, is_flipped, block, COLUMNS, terms, num_warps=4)


@Launched
@triton.jit
def _back_of_reset(
    gates, before, weights, made, left, rows, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    """With respect to what r is given; added to ``left`` what goes to h0 by the candidate."""
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], row[:, None] * 3 * size + size + column[None, :]
    none, of_candidate = tl.zeros([ROWS, COLUMNS], tl.float32), made + 2 * size
    of_reset = added_product(
        none, of_candidate, 3 * size, weights + 2 * size * size, size, 1, size, row, column, rows, size, TERMS
    )
    r = tl.load(gates + mine, is_here, 0.0)
    tl.store(made + mine, of_reset * tl.load(before + place, is_here, 0.0) * r * (1.0 - r), is_here)
    tl.store(left + place, tl.load(left + place, is_here, 0.0) + of_reset * r, is_here)


@Launched
@triton.jit
def _back_of_mix(
    gradient, gates, before, behind, weights, of_gates, made, left, rows, size,
    HAS_PRODUCT: tl.constexpr, HAS_STEP: tl.constexpr, IS_FLIPPED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """The gradient with respect to a state: with ``HAS_PRODUCT`` what z and r of the step behind it add to ``behind``.

    With ``HAS_STEP`` those with respect to what z and the candidate of the step before it are given, too; ``left``
    becomes what goes to its h0 beside gates.
    """
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_here = (row < rows)[:, None] & (column < size)[None, :]
    place, mine = row[:, None] * size + column[None, :], row[:, None] * 3 * size + column[None, :]
    state = tl.load(behind + place, is_here, 0.0)
    if HAS_PRODUCT:
        state = added_product(state, of_gates, 3 * size, weights, size, 1, 2 * size, row, column, rows, size, TERMS)
        tl.store(behind + place, state, is_here)
    if HAS_STEP:
        z, h = tl.load(gates + mine, is_here, 0.0), tl.load(gates + mine + 2 * size, is_here, 0.0)
        own = state + tl.load(gradient + place, is_here, 0.0)
        slope_z, slope_h, past = _slopes(z, h, tl.load(before + place, is_here, 0.0), IS_FLIPPED)
        tl.store(made + mine, own * slope_z, is_here)
        tl.store(made + mine + 2 * size, own * slope_h, is_here)
        tl.store(left + place, own * past, is_here)


def back_in_steps(
    gradient: Tensor, gates: Tensor, before: Tensor, behind: Tensor, weights: Tensor, *, is_flipped: bool
) -> tuple[Tensor, Tensor]:
    """The same as `back` in two launches a step; ``behind`` is not written."""
    rows, size = behind.shape
    made, left = torch.empty_like(gates), torch.empty_like(before)
    block, terms = tiles(rows, size)
    grid = grid_of(rows, size)
    steps = [*zip(*(each.split(rows) for each in (gradient, gates, before, made, left)), strict=True)][::-1]
    of_gates = made  # of the step behind; none of the last one
    for index, (own, its_gates, h0, into, to_h0) in enumerate(steps):
        _back_of_mix[grid](
            own, its_gates, h0, behind, weights, of_gates, into, to_h0, rows, size, index > 0, True, is_flipped,
            block, COLUMNS, terms, num_warps=4,
        )  # fmt: skip
        _back_of_reset[grid](
            its_gates, h0, weights, into, to_h0, rows, size, block, COLUMNS, terms, num_warps=4
        )  # fmt: skip
        behind, of_gates = to_h0, into
    _back_of_mix[grid](
        gradient, gates, before, behind, weights, of_gates, made, left, rows, size, True, False, is_flipped,
        block, COLUMNS, terms, num_warps=4,
    )  # fmt: skip
    return made, left
