"""The updates of `openmps.ops.optimizers` in Triton: one pass over memory, all vectors in one launch."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

from openmps.ops.triton.ahead import Launched

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 1024
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@Launched
@triton.jit
def _optimizer_update(
    gradients, values, own, results, sizes, rounded, rates, numbers, limits, scales, FORMULA: tl.constexpr,
    CLIPS: tl.constexpr, REGULARIZATION: tl.constexpr, HOLDS_RATES: tl.constexpr, ROUNDED_OF: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of one of the vectors: the programs of the first come first.

    The vector whose result ``rounded[i]`` takes is digit i of ROUNDED_OF to the base 16.
    """
    block = tl.program_id(0)
    for index in tl.static_range(len(sizes)):
        blocks = tl.cdiv(sizes[index], BLOCK)
        if (block >= 0) & (block < blocks):
            at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            is_in = at < sizes[index]
            rate = rates[index]
            if HOLDS_RATES:
                rate = tl.load(rate).to(tl.float32)
            v = tl.load(values[index] + at, is_in)
            g = tl.load(gradients[index] + at, is_in)
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
                first = numbers[0] * tl.load(own[0][index] + at, is_in)
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
                    second = numbers[2] * tl.load(own[1][index] + at, is_in) + numbers[3] * g * g
                    tl.store(own[1][index] + at, second, is_in)
                    if len(own) == 3:
                        second = tl.maximum(tl.load(own[2][index] + at, is_in), second, _ALL)
                        tl.store(own[2][index] + at, second, is_in)
                    v -= rate * tl.div_rn(first, tl.sqrt_rn(second) + numbers[4])
                tl.store(own[0][index] + at, first, is_in)
            tl.store(results[index] + at, v, is_in)
            for place in tl.static_range(len(rounded)):
                if (ROUNDED_OF >> (4 * place)) % 16 == index:
                    tl.store(rounded[place] + at, v.to(tl.float16), is_in)
        block -= blocks


def update(
    formula: tuple[Any, ...], rates: Sequence[float | Tensor], vectors: Sequence[Sequence[Tensor]],
    rounded: Sequence[tuple[int, Tensor]], clip: tuple[float, float] | None, scales: tuple[float, float],
    regularization: str,
) -> None:  # fmt: skip
    """One step for float32 vectors without gaps, on the current device; see `openmps.ops.optimizers`.

    ``vectors`` are, kind by kind, gradients, values, the optimizer's own and results, ``rates`` one for each, all on
    the device or none; ``rounded``, float16 or float32, take the result of a vector rounded to float16. ``scales`` are
    those of gradient and regularization. ``formula`` holds a name, then for ``momentum`` and ``nesterov`` the share of
    the momentum that is kept; for ``rmsprop`` and ``adam``, of each vector, the share kept and the share of what is
    new, then epsilon.
    """
    gradients, values, *own, results = map(tuple, vectors)
    sizes, (name, *numbers) = tuple(each.numel() for each in gradients), formula
    blocks = sum(triton.cdiv(size, _BLOCK) for size in sizes)
    if not blocks:
        return
    holds_rates = isinstance(rates[0], Tensor)
    steps = tuple(each if isinstance(each, Tensor) else float(each) for each in rates)
    floats = (tuple(map(float, each)) for each in (numbers, clip or (0.0, 0.0), scales))
    _optimizer_update[(blocks,)](
        gradients, values, tuple(own), results, sizes, tuple(each for _, each in rounded), steps, *floats, name,
        clip is not None, regularization, holds_rates, _digits([index for index, _ in rounded]), _BLOCK,
    )  # fmt: skip


def _digits(numbers: Sequence[int]) -> int:
    """Numbers below 16 as one, the first as its last digit."""
    return sum(number << (4 * place) for place, number in enumerate(numbers))
