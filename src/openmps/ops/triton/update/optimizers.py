"""The updates of `openmps.ops.update.optimizers` in Triton: one pass over memory, all vectors in one launch.

Addresses of a few vectors are the launch's arguments; those of many, of a whole network's, lie in a table.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torch import Tensor, float16

from openmps.ops.triton.addresses import table
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.overlap import Overlapping, in_turn

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_MANY_BLOCK, _MANY_WARPS = 4096, 8
"""Numbers of a program, and its warps, where there are many vectors."""
COLUMNS = 13
"""Of the table of vectors: gradient, value, three own ones, result, what takes it rounded, as float16 and as float32,
rate, size, the first of its programs, decay, and factor of the gradient."""
_COLUMNS = tl.constexpr(COLUMNS)
_ALIGNMENT = 16
_SAME_BITS: dict[str, Any] = {"enable_fp_fusion": False}
"""Each product is rounded: which of two the compiler would add to unrounded differs from kernel to kernel, and updates
of shards and of whole vectors, one by one and joined, give the same bits."""
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def _advanced(
    gradient, value, one, two, three, result, at, is_in, rate, decay, gain, numbers, limits, scales,
    FORMULA: tl.constexpr, CLIPS: tl.constexpr, REGULARIZATION: tl.constexpr, HAS_MAXIMA: tl.constexpr,
    DECAYS: tl.constexpr, GAINS: tl.constexpr,
):  # fmt: skip
    """Update some numbers of a vector, and the optimizer's own, of which there are up to three kinds; the new ones."""
    v = tl.load(value + at, is_in)
    if DECAYS:
        v -= decay * v
    g = tl.load(gradient + at, is_in)
    if GAINS:
        g *= tl.load(gain)
    if CLIPS:
        g = tl.minimum(tl.maximum(g, limits[1], _ALL), limits[0], _ALL)
    g *= scales[0]
    if REGULARIZATION == "L1":
        g += scales[1] * (tl.where(v > 0, 1.0, 0.0) - tl.where(v < 0, 1.0, 0.0))
    if REGULARIZATION == "L2":
        g += scales[1] * v
    if FORMULA == "descent":
        v -= rate * g
    else:
        first = numbers[0] * tl.load(one + at, is_in)
        if FORMULA == "momentum":
            first += rate * g
            v -= first
        if FORMULA == "nesterov":
            first += g
            v -= rate * (g + numbers[0] * first)
        if FORMULA == "rmsprop":
            first += numbers[1] * g * g
            v -= tl.div_rn(rate * g, tl.sqrt_rn(first) + numbers[2])
        if FORMULA == "adam":
            first += numbers[1] * g
            second = numbers[2] * tl.load(two + at, is_in) + numbers[3] * g * g
            tl.store(two + at, second, is_in)
            if HAS_MAXIMA:
                second = tl.maximum(tl.load(three + at, is_in), second, _ALL)
                tl.store(three + at, second, is_in)
            v -= rate * tl.div_rn(first, tl.sqrt_rn(second) + numbers[4])
        tl.store(one + at, first, is_in)
    tl.store(result + at, v, is_in)
    return v


@Overlapping
@triton.jit
def _optimizer_update(
    gradients, values, own, results, sizes, rounded, rates, decays, gains, numbers, limits, scales,
    FORMULA: tl.constexpr, CLIPS: tl.constexpr, REGULARIZATION: tl.constexpr, HOLDS_RATES: tl.constexpr,
    ROUNDED_OF: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Update a block of one of the vectors: the programs of the first come first.

    The vector whose result ``rounded[i]`` takes is digit i of ROUNDED_OF to the base 16.
    """
    in_turn(OVERLAPS)
    block = tl.program_id(0)
    for index in tl.static_range(len(sizes)):
        blocks = tl.cdiv(sizes[index], BLOCK)
        if (block >= 0) & (block < blocks):
            at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            is_in = at < sizes[index]
            rate, decay = rates[index], rates[index]
            if len(decays) > 0:
                decay = decays[index]
            if HOLDS_RATES:
                rate, decay = tl.load(rate).to(tl.float32), tl.load(decay).to(tl.float32)
            one, two, three, gain = values[index], values[index], values[index], values[index]
            if len(gains) > 0:
                gain = gains[index]
            if len(own) > 0:
                one = own[0][index]
            if len(own) > 1:
                two = own[1][index]
            if len(own) > 2:
                three = own[2][index]
            v = _advanced(
                gradients[index], values[index], one, two, three, results[index], at, is_in, rate, decay, gain,
                numbers, limits, scales, FORMULA, CLIPS, REGULARIZATION, len(own) == 3, len(decays) > 0, len(gains) > 0,
            )  # fmt: skip
            for place in tl.static_range(len(rounded)):
                if (ROUNDED_OF >> (4 * place)) % 16 == index:
                    tl.store(rounded[place] + at, v.to(tl.float16), is_in)
        block -= blocks


def update(
    formula: tuple[Any, ...], rates: Sequence[float | Tensor], vectors: Sequence[Sequence[Tensor]],
    rounded: Sequence[tuple[int, Tensor]], clip: tuple[float, float] | None, scales: tuple[float, float],
    regularization: str, decays: Sequence[float | Tensor] = (), gains: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """One step for float32 vectors without gaps, on the current device; see `openmps.ops.update.optimizers`.

    ``vectors`` are, kind by kind, gradients, values, the optimizer's own and results, ``rates`` one for each, all on
    the device or none, and so ``decays``, if there are any; ``gains``, if there are any, are float32 numbers on the
    device; ``rounded``, float16 or float32, take the result of a vector rounded to float16. ``scales`` are those of
    gradient and regularization. ``formula`` holds a name, then for ``momentum`` and ``nesterov`` the share of the
    momentum that is kept; for ``rmsprop`` and ``adam``, of each vector, the share kept and the share of what is new,
    then epsilon.
    """
    gradients, values, *own, results = map(tuple, vectors)
    sizes, (name, *numbers) = tuple(each.numel() for each in gradients), formula
    blocks = sum(cdiv(size, _BLOCK) for size in sizes)
    if not blocks:
        return
    holds_rates = isinstance(rates[0], Tensor)
    steps, shares = (
        tuple(each if isinstance(each, Tensor) else float(each) for each in given) for given in (rates, decays)
    )
    floats = (tuple(map(float, each)) for each in (numbers, clip or (0.0, 0.0), scales))
    _optimizer_update[(blocks,)](
        gradients, values, tuple(own), results, sizes, tuple(each for _, each in rounded), steps, shares, tuple(gains),
        *floats, name, clip is not None, regularization, holds_rates, _digits([index for index, _ in rounded]), _BLOCK,
        **_SAME_BITS,
    )  # fmt: skip


@triton.jit
def _place(row, column: tl.constexpr, dtype: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """An address of the table."""
    place = tl.load(row + column).to(tl.pointer_type(dtype))
    if IS_ALIGNED:
        place = tl.multiple_of(place, 16)
    return place


@triton.jit
def _advance_one(
    row, at, is_in, numbers, limits, scales, FORMULA: tl.constexpr, CLIPS: tl.constexpr, REGULARIZATION: tl.constexpr,
    HAS_MAXIMA: tl.constexpr, DECAYS: tl.constexpr, GAINS: tl.constexpr, IS_ALIGNED: tl.constexpr,
):  # fmt: skip
    """Update some numbers of a vector of the table."""
    rate = tl.load(_place(row, 8, tl.float64, False)).to(tl.float32)
    decay = rate
    if DECAYS:
        decay = tl.load(_place(row, 11, tl.float64, False)).to(tl.float32)
    v = _advanced(
        _place(row, 0, tl.float32, IS_ALIGNED), _place(row, 1, tl.float32, IS_ALIGNED),
        _place(row, 2, tl.float32, IS_ALIGNED), _place(row, 3, tl.float32, IS_ALIGNED),
        _place(row, 4, tl.float32, IS_ALIGNED), _place(row, 5, tl.float32, IS_ALIGNED), at, is_in, rate, decay,
        _place(row, 12, tl.float32, False), numbers, limits, scales, FORMULA, CLIPS, REGULARIZATION, HAS_MAXIMA, DECAYS,
        GAINS,
    )  # fmt: skip
    rounded = v.to(tl.float16)
    if tl.load(row + 6) != 0:
        tl.store(_place(row, 6, tl.float16, IS_ALIGNED) + at, rounded, is_in)
    if tl.load(row + 7) != 0:
        tl.store(_place(row, 7, tl.float32, IS_ALIGNED) + at, rounded.to(tl.float32), is_in)


@Overlapping
@triton.jit
def _optimizer_updates(
    vectors, count, numbers, limits, scales, FORMULA: tl.constexpr, CLIPS: tl.constexpr,
    REGULARIZATION: tl.constexpr, HAS_MAXIMA: tl.constexpr, DECAYS: tl.constexpr, GAINS: tl.constexpr,
    IS_ALIGNED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Update a block of one of so many vectors: the last whose first program does not come after this one."""
    in_turn(OVERLAPS)
    block, rows = tl.program_id(0), tl.arange(0, ROWS)
    firsts = tl.load(vectors + rows * _COLUMNS + 10, rows < count, 1 << 40)
    row = vectors + (tl.sum((firsts <= block).to(tl.int32), 0) - 1) * _COLUMNS
    size, begin = tl.load(row + 9), (block - tl.load(row + 10)) * BLOCK
    at = begin + tl.arange(0, BLOCK)
    if begin + BLOCK <= size:
        _advance_one(
            row, at, None, numbers, limits, scales, FORMULA, CLIPS, REGULARIZATION, HAS_MAXIMA, DECAYS, GAINS,
            IS_ALIGNED,
        )  # fmt: skip
    else:
        is_in = at < size
        _advance_one(
            row, at, is_in, numbers, limits, scales, FORMULA, CLIPS, REGULARIZATION, HAS_MAXIMA, DECAYS, GAINS,
            IS_ALIGNED,
        )  # fmt: skip


def update_many(
    formula: tuple[Any, ...], rates: Sequence[Tensor], vectors: Sequence[Sequence[Tensor]],
    rounded: Sequence[tuple[int, Tensor]], clip: tuple[float, float] | None, scales: tuple[float, float],
    regularization: str, decays: Sequence[Tensor] = (), gains: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """As `update`, for any number of vectors; each rate and decay is a float64 number on the device.

    Of a vector's result one tensor of each type at most takes the rounded numbers. There must be room for a table of
    ``COLUMNS`` numbers a vector.
    """
    gradients, values, *own, results = vectors
    name, *numbers = formula
    rows, programs = list[list[int]](), 0
    for index, value in enumerate(values):
        mine = [kind[index] for kind in own]
        each = [gradients[index], value, *mine, *[value] * (3 - len(mine)), results[index]]
        told = [each[index].data_ptr() if each else 0 for each in (decays, gains)]
        addresses = [*(vector.data_ptr() for vector in each), 0, 0, rates[index].data_ptr()]
        rows.append([*addresses, value.numel(), programs, *told])
        programs += cdiv(value.numel(), _MANY_BLOCK)
    for index, each in rounded:
        rows[index][6 if each.dtype == float16 else 7] = each.data_ptr()
    if not programs:
        return
    is_aligned = all(address % _ALIGNMENT == 0 for row in rows for address in row[:8])
    floats = (tuple(map(float, each)) for each in (numbers, clip or (0.0, 0.0), scales))
    _optimizer_updates[(programs,)](
        table([number for row in rows for number in row], values[0].device), len(rows), *floats, name,
        clip is not None, regularization, len(own) == 3, len(decays) > 0, len(gains) > 0, is_aligned,
        next_power_of_2(len(rows)), _MANY_BLOCK, num_warps=_MANY_WARPS, **_SAME_BITS,
    )  # fmt: skip


def _digits(numbers: Sequence[int]) -> int:
    """Numbers below 16 as one, the first as its last digit."""
    return sum(number << (4 * place) for place, number in enumerate(numbers))
