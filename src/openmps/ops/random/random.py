"""Counter-based random numbers: the same bits on every device, for every split of the work.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns four counter words and two key
words into four random words. It has no state: word ``i`` of a stream is a pure function of its position.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from openmps.ops import triton

WORD_MASK = 0xFFFFFFFF

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)

Word = int | Tensor
"""A 32-bit unsigned word: an ``int``, or an int64 tensor whose elements lie in [0, 2**32)."""

Block = tuple[Word, Word, Word, Word]


def split_words(value: int | Tensor) -> tuple[Word, Word]:
    """The low and the high 32 bits of a 64-bit integer or of an int64 tensor."""
    return value & WORD_MASK, (value >> 32) & WORD_MASK


def philox(counter: Block, key: tuple[Word, Word]) -> Block:
    """Four random words for each counter: Philox4x32-10.

    Words may be integers or int64 tensors; tensors broadcast against each other, and the result has their common
    shape. Words that are still equal along an axis are kept at size 1 there, so the first rounds of a grid of counters
    cost next to nothing.
    """
    at_once = _in_one_pass(counter, key)
    if at_once is not None:
        return at_once
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # 64-bit products in wrapping int64; the shift may smear the sign over the upper half, which the mask removes.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = _mixed(product1 >> 32, c1, k0)
        c2 = _mixed(product0 >> 32, c3, k1)
        # The upper half of a tensor may stay: the next round only exclusive-ors it in and masks then, which saves a
        # pass. An integer grows without end and does not fit int64, so it is masked now.
        c1 = product1 & WORD_MASK if isinstance(product1, int) else product1
        c3 = product0 & WORD_MASK if isinstance(product0, int) else product0
        k0 = (k0 + _KEY_INCREMENTS[0]) & WORD_MASK
        k1 = (k1 + _KEY_INCREMENTS[1]) & WORD_MASK
    return c0, c1 & WORD_MASK, c2, c3 & WORD_MASK


def _in_one_pass(counter: Block, key: tuple[Word, Word]) -> Block | None:
    """The same in Triton, where that runs."""
    k0, k1 = key
    device = next((each.device for each in counter if isinstance(each, Tensor)), None)
    if device is None or isinstance(k0, Tensor) or isinstance(k1, Tensor) or not triton.runs_on(device):
        return None
    from openmps.ops.triton import random as kernels

    words = kernels.philox(counter, (k0, k1))
    return None if words is None else cast(Block, words.unbind())


def _mixed(high: Word, word: Word, key: Word) -> Word:
    """The low 32 bits of ``high ^ word ^ key``, in the memory of ``high`` where that is as large as the result."""
    if isinstance(high, int):
        return (high ^ word ^ key) & WORD_MASK
    for each in (word, key):
        if isinstance(each, Tensor) and each.dim() and each.shape != high.shape:
            return (high ^ word ^ key) & WORD_MASK
    return high.bitwise_xor_(word).bitwise_xor_(key).bitwise_and_(WORD_MASK)


def philox_words(seed: int, first: int, count: int, device: torch.device) -> Tensor:
    """Words ``first`` to ``first + count`` of the sequence that belongs to a seed of 64 bits, int64 ``[count]``.

    Word ``i`` is word ``i % 4`` of Philox4x32-10 with the key ``(seed, seed >> 32)`` and the counter
    ``(0, 0, i // 4 >> 32, i // 4)``, each reduced to 32 bits. So do Macs, as far as they were
    measured: seeds and numbers of blocks below 2**32.
    """
    begin, end = first // 4, -(-(first + count) // 4)
    low, high = split_words(torch.arange(begin, end, device=device))
    if begin >> 32 == (end - 1) >> 32:
        # As an integer it costs nothing in the first rounds.
        high = begin >> 32
    words = philox((0, 0, high, low), split_words(seed))
    return torch.stack(cast(list[Tensor], list(words)), dim=-1).view(-1)[first - 4 * begin :][:count]
