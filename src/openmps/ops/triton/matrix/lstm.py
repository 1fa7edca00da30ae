"""Long short-term memory in Triton, of sigmoid gates and hyperbolic tangents; see `recurrent_cells`.

Small layers run a whole sequence in one launch, a program a row: it holds the weights of states that its registers have
room for, and reads the others again at each step, from the first cache. Of larger ones each step is a product of the
library's and a launch.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from openmps.ops.matrix.products import add_product, put_product
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.matrix.recurrent_steps import (
    MOST_AT_ONCE,
    NUMBERS,
    block,
    blocks,
    by_block,
    gates_of,
    grid_of,
    halves,
    held_by,
    in_turn,
    parts,
    put,
    sigmoid,
    tanh,
    terms,
    units,
    warps_of,
)

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


@triton.jit
def _loaded(gates, size, is_here):
    """i, f, c and o."""
    i, f = tl.load(gates, is_here, 0.0), tl.load(gates + size, is_here, 0.0)
    return i, f, tl.load(gates + 2 * size, is_here, 0.0), tl.load(gates + 3 * size, is_here, 0.0)


@triton.jit
def _store(gates, size, is_here, i, f, c, o):
    tl.store(gates, i, is_here)
    tl.store(gates + size, f, is_here)
    tl.store(gates + 2 * size, c, is_here)
    tl.store(gates + 3 * size, o, is_here)


@triton.jit
def _put(gates, size, i, f, c, o, HELD: tl.constexpr):
    put(gates, i, size, HELD)
    put(gates + size, f, size, HELD)
    put(gates + 2 * size, c, size, HELD)
    put(gates + 3 * size, o, size, HELD)


@triton.jit
def _slopes(own, to_memory, i, f, c, o, c0, c1):
    """The gradients with respect to what gates are given, and to c0, by those with respect to h1 and c1."""
    out = tanh(c1)
    to_memory += own * o * (1.0 - out * out)
    ai, af, ac = to_memory * c * i * (1.0 - i), to_memory * c0 * f * (1.0 - f), to_memory * i * (1.0 - c * c)
    return ai, af, ac, own * out * o * (1.0 - o), to_memory * f


@Launched
@triton.jit
def _run(
    gates, first, memory, weights, hidden, after, steps, rows, size,
    IS_BACKWARD: tl.constexpr, KEEPS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row. Where it ``KEEPS``, gates become their results, and c1 of all steps is written."""
    row, at, gate = tl.program_id(0), units(HELD), block(weights, HELD, HELD)
    is_at = at < size
    to_i, to_f = tl.load(gate), tl.load(gate + HELD * HELD)
    state, c1 = tl.load(first + row * size + at, is_at, 0.0), tl.load(memory + row * size + at, is_at, 0.0)
    # What a step reads is asked for a step ahead.
    place = ((steps - 1 if IS_BACKWARD else 0) * rows + row).to(tl.int64)
    next_i, next_f, next_c, next_o = _loaded(gates + place * 4 * size + at, size, is_at)
    for index in range(steps):
        place = ((steps - 1 - index if IS_BACKWARD else index) * rows + row).to(tl.int64)
        mine = gates + place * 4 * size
        i, f, c, o = next_i, next_f, next_c, next_o
        ahead = mine + (-4 if IS_BACKWARD else 4) * rows * size + at
        next_i, next_f, next_c, next_o = _loaded(ahead, size, is_at & (index + 1 < steps))
        h0 = terms(state, HELD)
        i, f = sigmoid(i + by_block(to_i, h0, HELD, HELD)), sigmoid(f + by_block(to_f, h0, HELD, HELD))
        c = tanh(c + by_block(tl.load(gate + 2 * HELD * HELD), h0, HELD, HELD))
        o = sigmoid(o + by_block(tl.load(gate + 3 * HELD * HELD), h0, HELD, HELD))
        c1 = f * c1 + i * c
        state = o * tanh(c1)
        put(hidden + place * size, state, size, HELD)
        if KEEPS:
            _put(mine, size, i, f, c, o, HELD)
            put(after + place * size, c1, size, HELD)
    if not KEEPS:
        place = ((0 if IS_BACKWARD else steps - 1) * rows + row).to(tl.int64)
        tl.store(after + place * size + at, c1, is_at)


@Launched
@triton.jit
def _back(
    gradient, gates, memory, after, of_hidden, of_memory, weights, made, left, lost, steps, rows, size,
    HELD: tl.constexpr,
):  # fmt: skip
    """All steps of a row, the last one first, by weights `in_turn`."""
    row, at, half = tl.program_id(0), units(HELD), block(weights, 2 * HELD, HELD)
    is_at, of_first = at < size, tl.load(half)
    state, to_c0 = tl.load(of_hidden + row * size + at, is_at, 0.0), tl.load(of_memory + row * size + at, is_at, 0.0)
    # What a step reads is asked for a step ahead; its c0 is c1 of the step before.
    place = ((steps - 1) * rows + row).to(tl.int64)
    next_i, next_f, next_c, next_o = _loaded(gates + place * 4 * size + at, size, is_at)
    next_c0, next_c1 = tl.load(memory + place * size + at, is_at, 0.0), tl.load(after + place * size + at, is_at, 0.0)
    next_own = tl.load(gradient + place * size + at, is_at, 0.0)
    for index in range(steps):
        place = ((steps - 1 - index) * rows + row).to(tl.int64)
        i, f, c, o, c0, c1, own = next_i, next_f, next_c, next_o, next_c0, next_c1, next_own + state
        is_next, ahead = is_at & (index + 1 < steps), place - rows
        next_i, next_f, next_c, next_o = _loaded(gates + ahead * 4 * size + at, size, is_next)
        next_c0, next_c1 = tl.load(memory + ahead * size + at, is_next, 0.0), c0
        next_own = tl.load(gradient + ahead * size + at, is_next, 0.0)
        ai, af, ac, ao, to_c0 = _slopes(own, to_c0, i, f, c, o, c0, c1)
        # All four in one exchange; the halves are those of the numbers of a state.
        first, second = halves(tl.join(tl.join(ai, ac), tl.join(af, ao)), 4 * HELD)
        sums = parts(of_first, first, 2 * HELD, HELD)
        state = tl.sum(sums + parts(tl.load(half + 2 * HELD * HELD), second, 2 * HELD, HELD), 1)
        _put(made + place * 4 * size, size, ai, af, ac, ao, HELD)
        put(left + place * size, state, size, HELD)
        put(lost + place * size, to_c0, size, HELD)


@Launched
@triton.jit
def _mix(gates, memory, hidden, after, size, NUMBERS: tl.constexpr):
    """h1 and c1 of a step; gates become their results."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, place, mine = at < size, row * size + at, gates + row * 4 * size + at
    i, f, c, o = _loaded(mine, size, is_at)
    i, f, c, o = sigmoid(i), sigmoid(f), tanh(c), sigmoid(o)
    c1 = f * tl.load(memory + place, is_at, 0.0) + i * c
    _store(mine, size, is_at, i, f, c, o)
    tl.store(after + place, c1, is_at)
    tl.store(hidden + place, o * tanh(c1), is_at)


def run(
    gates: Tensor, first: Tensor, memory: Tensor, weights: Tensor, *, is_backward: bool, keeps: bool
) -> tuple[Tensor, Tensor]:
    """h1 and c1 of all rows, and ``gates`` become their results; unless it ``keeps`` all, c1 of the last step."""
    rows, size = first.shape
    hidden, after = (gates.new_empty(len(gates), size) for _ in range(2))
    if size <= MOST_AT_ONCE:
        _run[(rows,)](
            gates, first, memory, blocks(gates_of(weights, 4).mT), hidden, after, len(gates) // rows, rows, size,
            is_backward, keeps, held_by(size), num_warps=warps_of(size),
        )  # fmt: skip
        return hidden, after
    steps = [*zip(*(each.split(rows) for each in (gates, hidden, after)), strict=True)]
    for mine, h1, c1 in steps[:: -1 if is_backward else 1]:
        add_product(mine, first, weights.t())
        _mix[grid_of(rows, size)](mine, memory, h1, c1, size, NUMBERS, num_warps=4)
        first, memory = h1, c1
    return hidden, after


@Launched
@triton.jit
def _back_of_mix(
    gradient, gates, memory, after, of_hidden, of_memory, made, lost, size, NUMBERS: tl.constexpr
):  # fmt: skip
    """With respect to what gates of a step are given, and to its c0."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    is_at, place = at < size, row * size + at
    i, f, c, o = _loaded(gates + row * 4 * size + at, size, is_at)
    c0, c1 = tl.load(memory + place, is_at, 0.0), tl.load(after + place, is_at, 0.0)
    own = tl.load(of_hidden + place, is_at, 0.0) + tl.load(gradient + place, is_at, 0.0)
    to_memory = tl.load(of_memory + place, is_at, 0.0)
    ai, af, ac, ao, to_memory = _slopes(own, to_memory, i, f, c, o, c0, c1)
    _store(made + row * 4 * size + at, size, is_at, ai, af, ac, ao)
    tl.store(lost + place, to_memory, is_at)


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

    ``of_hidden`` and ``of_memory`` are those of the state behind the last step.
    """
    rows, size = of_hidden.shape
    made, left, lost = torch.empty_like(gates), torch.empty_like(memory), torch.empty_like(memory)
    if size <= MOST_AT_ONCE:
        _back[(rows,)](
            gradient, gates, memory, after, of_hidden, of_memory, blocks(in_turn(gates_of(weights, 4))), made,
            left, lost, len(gates) // rows, rows, size, held_by(size), num_warps=warps_of(size),
        )  # fmt: skip
        return made, left, lost
    grid = grid_of(rows, size)
    steps = [*zip(*(each.split(rows) for each in (gradient, gates, memory, after, made, left, lost)), strict=True)]
    for own, its_gates, c0, c1, into, to_h0, to_c0 in reversed(steps):
        _back_of_mix[grid](own, its_gates, c0, c1, of_hidden, of_memory, into, to_c0, size, NUMBERS, num_warps=4)
        of_hidden, of_memory = put_product(to_h0, into, weights), to_c0
    return made, left, lost
