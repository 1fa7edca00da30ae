"""`openmps.ops.random.random.philox` in Triton: all rounds in one pass over the counters."""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 256


@triton.jit
def _word(word, row, column, down, across, is_in, IS_HELD: tl.constexpr):
    """A word of each counter: a number, or elements at the places of rows and columns."""
    if IS_HELD:
        found = tl.load(word + row * down + column * across, is_in, 0)
    else:
        found = (row * 0).to(tl.int64) + word
    return found.to(tl.uint32)


@Launched
@triton.jit(do_not_specialize=["c0", "c1", "c2", "c3", "k0", "k1"])
def _words(
    words, c0, c1, c2, c3, k0, k1, count, columns, down0, across0, down1, across1, down2, across2, down3, across3,
    HELD0: tl.constexpr, HELD1: tl.constexpr, HELD2: tl.constexpr, HELD3: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Four words for each of a block of counters, each kind of word behind the other."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_in, row, column = at < count, at // columns, at % columns
    zero = (at * 0).to(tl.int64)
    w0, w1, w2, w3 = tl.philox_impl(
        _word(c0, row, column, down0, across0, is_in, HELD0), _word(c1, row, column, down1, across1, is_in, HELD1),
        _word(c2, row, column, down2, across2, is_in, HELD2), _word(c3, row, column, down3, across3, is_in, HELD3),
        (zero + k0).to(tl.uint32), (zero + k1).to(tl.uint32), 10,
    )  # fmt: skip
    tl.store(words + at, w0.to(tl.int64), is_in)
    tl.store(words + count + at, w1.to(tl.int64), is_in)
    tl.store(words + 2 * count + at, w2.to(tl.int64), is_in)
    tl.store(words + 3 * count + at, w3.to(tl.int64), is_in)


def philox(counter: Sequence[int | Tensor], key: tuple[int, int]) -> Tensor | None:
    """Random words int64 ``[4, *common shape]``; None of counters that have more than two axes."""
    held = [each for each in counter if isinstance(each, Tensor)]
    shape = np.broadcast_shapes(*(each.shape for each in held))
    if len(shape) > 2:
        return None
    words = torch.empty((4, *shape), dtype=torch.int64, device=held[0].device)
    rows, columns = (1, 1, *shape)[-2:]
    count = rows * columns
    if not count:
        return words
    strides = [each.expand(rows, columns).stride() if isinstance(each, Tensor) else (0, 0) for each in counter]
    _words[(cdiv(count, _BLOCK),)](
        words, *counter, *key, count, columns, *(step for pair in strides for step in pair),
        *(isinstance(each, Tensor) for each in counter), _BLOCK,
    )  # fmt: skip
    return words
