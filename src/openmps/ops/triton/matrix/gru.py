"""Gated recurrent units in Triton: sigmoid gates, a candidate by the hyperbolic tangent; see `recurrent_cells`.

Small layers run a whole sequence in one launch, a program a row: no row needs another one's state. Of larger ones
products are the library's, and what is between two of them is a launch, that has its product where there is one row.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.matrix.products import add_product, product
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.matrix.recurrent_steps import (
    MOST_AT_ONCE,
    NUMBERS,
    block,
    blocks,
    by_block,
    gates_of,
    grid_of,
    held_by,
    in_turn,
    put,
    sigmoid,
    tanh,
    terms,
    units,
    warps_of,
)

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_UNITS, _TERMS = 8, 1024
"""Of a step of a single row: results of a program, and the most terms at a time."""


@triton.jit
def _mixed(z, h, h0, IS_FLIPPED: tl.constexpr):
    """h1."""
    return h0 + z * (h - h0) if IS_FLIPPED else h + z * (h0 - h)


@triton.jit
def _back_of_mixed(own, z, h, h0, IS_FLIPPED: tl.constexpr):
    """Of h1: with respect to what z and the candidate are applied to, and to h0 beside gates.

    What was read meets the gradient first: threads would hold products of it alone elsewhere.
    """
    by_z = own * z
    rest, slope = own - by_z, by_z - by_z * z
    if IS_FLIPPED:
        return slope * h - slope * h0, by_z - by_z * h * h, rest
    else:
        return slope * h0 - slope * h, rest - rest * h * h, by_z


@Launched
@triton.jit
def _run(
    gates, first, weights, hidden, steps, rows, size,
    IS_FLIPPED: tl.constexpr, IS_BACKWARD: tl.constexpr, KEEPS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row; gates become their results where it ``KEEPS`` them."""
    row, at, gate = tl.program_id(0), units(HELD), block(weights, HELD, HELD)
    is_at = at < size
    to_z, to_r, to_h = tl.load(gate), tl.load(gate + HELD * HELD), tl.load(gate + 2 * HELD * HELD)
    state = tl.load(first + row * size + at, is_at, 0.0)
    # What a step reads is asked for a step ahead.
    place = ((steps - 1 if IS_BACKWARD else 0) * rows + row).to(tl.int64)
    ahead = gates + place * 3 * size + at
    next_z, next_r = tl.load(ahead, is_at, 0.0), tl.load(ahead + size, is_at, 0.0)
    next_h = tl.load(ahead + 2 * size, is_at, 0.0)
    for index in range(steps):
        place = ((steps - 1 - index if IS_BACKWARD else index) * rows + row).to(tl.int64)
        mine = gates + place * 3 * size
        z, r, h = next_z, next_r, next_h
        is_next = is_at & (index + 1 < steps)
        ahead = mine + (-3 if IS_BACKWARD else 3) * rows * size + at
        next_z, next_r = tl.load(ahead, is_next, 0.0), tl.load(ahead + size, is_next, 0.0)
        next_h = tl.load(ahead + 2 * size, is_next, 0.0)
        h0 = terms(state, HELD)
        z, r = sigmoid(z + by_block(to_z, h0, HELD, HELD)), sigmoid(r + by_block(to_r, h0, HELD, HELD))
        h = tanh(h + by_block(to_h, terms(r * state, HELD), HELD, HELD))
        state = _mixed(z, h, state, IS_FLIPPED)
        put(hidden + place * size, state, size, HELD)
        if KEEPS:
            put(mine, z, size, HELD)
            put(mine + size, r, size, HELD)
            put(mine + 2 * size, h, size, HELD)


@Launched
@triton.jit
def _back(
    gradient, gates, before, behind, candidate, both, made, left, steps, rows, size,
    IS_FLIPPED: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row, the last one first; by weights of the candidate, and of z and r `in_turn`."""
    row, at = tl.program_id(0), units(HELD)
    is_at = at < size
    of_h, of_both = tl.load(block(candidate, HELD, HELD)), tl.load(block(both, 2 * HELD, HELD))
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
        az, ah, past = _back_of_mixed(own, z, h, h0, IS_FLIPPED)
        by_r = r * by_block(of_h, terms(ah, HELD), HELD, HELD)
        ar = (by_r - by_r * r) * h0
        state = past + by_r + by_block(of_both, terms(tl.join(az, ar), 2 * HELD), 2 * HELD, HELD)
        into = made + place * 3 * size
        put(into, az, size, HELD)
        put(into + size, ar, size, HELD)
        put(into + 2 * size, ah, size, HELD)
        put(left + place * size, state, size, HELD)


@Launched
@triton.jit
def _reset(gates, before, reset, size, NUMBERS: tl.constexpr):
    """``r . h0``; z and r become their results."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, mine = at < size, gates + row * 3 * size + at
    r = sigmoid(tl.load(mine + size, is_at, 0.0))
    tl.store(mine, sigmoid(tl.load(mine, is_at, 0.0)), is_at)
    tl.store(mine + size, r, is_at)
    tl.store(reset + row * size + at, r * tl.load(before + row * size + at, is_at, 0.0), is_at)


@Launched
@triton.jit
def _mix(gates, before, hidden, size, IS_FLIPPED: tl.constexpr, NUMBERS: tl.constexpr):
    """h1; the candidate becomes its result."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, mine = at < size, gates + row * 3 * size + at
    h = tanh(tl.load(mine + 2 * size, is_at, 0.0))
    h1 = _mixed(tl.load(mine, is_at, 0.0), h, tl.load(before + row * size + at, is_at, 0.0), IS_FLIPPED)
    tl.store(mine + 2 * size, h, is_at)
    tl.store(hidden + row * size + at, h1, is_at)


@triton.jit
def _by_rows(weights, x, unit, is_unit, size, UNITS: tl.constexpr, TERMS: tl.constexpr):
    """The product of a vector with some rows of weights."""
    total = tl.zeros([UNITS, TERMS], tl.float32)
    for first in range(0, size, TERMS):
        term = first + tl.arange(0, TERMS)
        place = weights + unit.to(tl.int64)[:, None] * size + term[None, :]
        block = tl.load(place, is_unit[:, None] & (term < size)[None, :], 0.0)
        total += block * tl.load(x + term, term < size, 0.0)[None, :]
    return tl.sum(total, 1)


@Launched
@triton.jit
def _reset_of_row(gates, before, weights, reset, size, UNITS: tl.constexpr, TERMS: tl.constexpr):
    """`_reset` of a single row with the product before it, which reads the weights once and does little else."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    is_unit, own = unit < 2 * size, unit - size
    made = _by_rows(weights, before, unit, is_unit, size, UNITS, TERMS) + tl.load(gates + unit, is_unit, 0.0)
    made = sigmoid(made)
    tl.store(gates + unit, made, is_unit)
    is_reset = is_unit & (own >= 0)
    tl.store(reset + own, made * tl.load(before + own, is_reset, 0.0), is_reset)


@Launched
@triton.jit
def _mix_of_row(
    gates, before, weights, reset, hidden, size, IS_FLIPPED: tl.constexpr, UNITS: tl.constexpr, TERMS: tl.constexpr
):  # fmt: skip
    """`_mix` of a single row with the product before it."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    is_unit, own = unit < size, gates + 2 * size + unit
    by_reset = _by_rows(weights + 2 * tl.cast(size, tl.int64) * size, reset, unit, is_unit, size, UNITS, TERMS)
    h = tanh(by_reset + tl.load(own, is_unit, 0.0))
    h0 = tl.load(before + unit, is_unit, 0.0)
    tl.store(own, h, is_unit)
    tl.store(hidden + unit, _mixed(tl.load(gates + unit, is_unit, 0.0), h, h0, IS_FLIPPED), is_unit)


def run(gates: Tensor, first: Tensor, weights: Tensor, *, is_flipped: bool, is_backward: bool, keeps: bool) -> Tensor:
    """h1 of all rows; ``gates`` become their results, in one launch where it ``keeps`` them alone."""
    rows, size = first.shape
    hidden = gates.new_empty(len(gates), size)
    if size <= MOST_AT_ONCE:
        _run[(rows,)](
            gates, first, blocks(gates_of(weights, 3).mT), hidden, len(gates) // rows, rows, size,
            is_flipped, is_backward, keeps, held_by(size), num_warps=warps_of(size),
        )  # fmt: skip
        return hidden
    grid, reset = grid_of(rows, size), torch.empty_like(first)
    if rows == 1:
        grid, how = (cdiv(size, _UNITS),), (_UNITS, min(_TERMS, held_by(size)))
        for mine, h1 in [*zip(gates, hidden, strict=True)][:: -1 if is_backward else 1]:
            _reset_of_row[(cdiv(2 * size, _UNITS),)](mine, first, weights, reset, size, *how, num_warps=4)
            _mix_of_row[grid](mine, first, weights, reset, h1, size, is_flipped, *how, num_warps=4)
            first = h1
        return hidden
    for mine, h1 in [*zip(gates.split(rows), hidden.split(rows), strict=True)][:: -1 if is_backward else 1]:
        add_product(mine[:, : 2 * size], first, weights[: 2 * size].t())
        _reset[grid](mine, first, reset, size, NUMBERS, num_warps=4)
        add_product(mine[:, 2 * size :], reset, weights[2 * size :].t())
        _mix[grid](mine, first, h1, size, is_flipped, NUMBERS, num_warps=4)
        first = h1
    return hidden


@Launched
@triton.jit
def _back_of_mix(
    gradient, gates, before, behind, made, left, size, IS_FLIPPED: tl.constexpr, NUMBERS: tl.constexpr
):  # fmt: skip
    """With respect to what z and the candidate are given; ``left`` becomes what goes to h0 beside gates."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, place, mine = at < size, row * size + at, row * 3 * size + at
    z, h = tl.load(gates + mine, is_at, 0.0), tl.load(gates + mine + 2 * size, is_at, 0.0)
    own = tl.load(gradient + place, is_at, 0.0) + tl.load(behind + place, is_at, 0.0)
    az, ah, past = _back_of_mixed(own, z, h, tl.load(before + place, is_at, 0.0), IS_FLIPPED)
    tl.store(made + mine, az, is_at)
    tl.store(made + mine + 2 * size, ah, is_at)
    tl.store(left + place, past, is_at)


@Launched
@triton.jit
def _back_of_reset(gates, before, reset, made, left, size, NUMBERS: tl.constexpr):
    """With respect to what r is given; added to ``left`` what goes to h0 by the candidate."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, place, mine = at < size, row * size + at, row * 3 * size + size + at
    r, of_reset = tl.load(gates + mine, is_at, 0.0), tl.load(reset + place, is_at, 0.0)
    tl.store(made + mine, of_reset * tl.load(before + place, is_at, 0.0) * r * (1.0 - r), is_at)
    tl.store(left + place, tl.load(left + place, is_at, 0.0) + of_reset * r, is_at)


def back(
    gradient: Tensor, gates: Tensor, before: Tensor, behind: Tensor, weights: Tensor, *, is_flipped: bool
) -> tuple[Tensor, Tensor]:
    """With respect to what gates are given, and to h0 of each step, the rows of all steps."""
    rows, size = behind.shape
    made, left = torch.empty_like(gates), torch.empty_like(before)
    if size <= MOST_AT_ONCE:
        each = gates_of(weights, 3)
        _back[(rows,)](
            gradient, gates, before, behind, blocks(each[2]), blocks(in_turn(each[:2])), made, left,
            len(gates) // rows, rows, size, is_flipped, held_by(size), num_warps=warps_of(size),
        )  # fmt: skip
        return made, left
    grid = grid_of(rows, size)
    steps = [*zip(*(each.split(rows) for each in (gradient, gates, before, made, left)), strict=True)]
    for own, its_gates, h0, into, to_h0 in reversed(steps):
        _back_of_mix[grid](own, its_gates, h0, behind, into, to_h0, size, is_flipped, NUMBERS, num_warps=4)
        reset = product(into[:, 2 * size :], weights[2 * size :])
        _back_of_reset[grid](its_gates, h0, reset, into, to_h0, size, NUMBERS, num_warps=4)
        behind = add_product(to_h0, into[:, : 2 * size], weights[: 2 * size])
    return made, left
