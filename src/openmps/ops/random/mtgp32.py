"""MTGP32: the Mersenne Twister for graphic processors, many generators of period 2**11213 - 1 side by side.

(Mutsuo Saito, "A variant of Mersenne Twister suitable for graphic processors", arXiv:1005.4973.) A generator has 351
words. With ``X[n]`` its sequence and the generator's own constants (`mtgp32_parameters`), in 32-bit words::

    x = (X[n] & 0xfff80000) ^ X[n + 1]          x ^= x << shift1
    y = x ^ (X[n + position] >> shift2)         X[n + 351] = y ^ recursion[y & 15]
    t = X[n + position - 1]                     t ^= t >> 16, then t ^= t >> 8
    word n = X[n + 351] ^ tempering[t & 15]

No position is above 94, so that 256 words follow from 351 at once. Words are int64 numbers in [0, 2**32).
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.ops.random.mtgp32_parameters import PARAMETERS
from openmps.ops.random.random import WORD_MASK

GENERATORS = 64
"""Generators with constants of their own."""
STEP_WORDS = 256
"""Words that each generator makes at once."""
STATE_WORDS = 351
"""Words of a generator's state."""

_STATE_MASK = 0xFFF80000
_LAG = 7
_MIDDLE = (STATE_WORDS - _LAG) // 2
_NON_ZERO = 0x4D544750
_KEPT = 64
"""States of keys, of 180 KB each."""


class Constants(NamedTuple):
    """The constants of generators on a device, one row a generator."""

    pick: Tensor  # [G, 257], the state's words from `position - 1` on
    shift1: Tensor  # [G, 1]
    shift2: Tensor  # [G, 1]
    recursion: Tensor  # [G, 16]
    tempering: Tensor  # [G, 16]


@cache
def constants(device: torch.device, generators: int = GENERATORS) -> Constants:
    """The constants on ``device``; beyond 64 generators they begin again."""
    which = np.arange(generators) % GENERATORS
    position, shift1, shift2, recursion, tempering = _table()
    pick = position[:, None] - 1 + np.arange(STEP_WORDS + 1)
    rows = (pick, shift1[:, None], shift2[:, None], recursion, tempering)
    return Constants(*(torch.from_numpy(row[which].astype(np.int64)).to(device) for row in rows))


@lru_cache(_KEPT)
def initial_state(key: tuple[int, ...]) -> Tensor:
    """The states of 64 generators for a key of 32-bit words, the published initialization by an array: [64, 351].

    The generators start apart because each mixes its own constants into the key. Nobody may write into it.
    """
    _, _, _, recursion, _ = _table()
    hidden = recursion[:, 4] ^ (recursion[:, 8] << np.uint32(16))
    octet = hidden + (hidden >> np.uint32(16))
    octet = (octet + (octet >> np.uint32(8))) & np.uint32(0xFF)
    words = np.tile(octet * np.uint32(0x01010101), (STATE_WORDS, 1))  # [351, 64]
    words[0] = hidden
    count = max(STATE_WORDS, len(key) + 1)
    added = [len(key), *key, *[0] * (count - 1 - len(key))]
    for step in range(count):
        at, middle, beyond, before = _places(step)
        mixed = words[at] ^ words[middle] ^ words[before]
        mixed = (mixed ^ (mixed >> np.uint32(27))) * np.uint32(1664525)
        words[middle] += mixed
        mixed = mixed + np.uint32((added[step] + at) & WORD_MASK)
        words[beyond] += mixed
        words[at] = mixed
    for step in range(count, count + STATE_WORDS):
        at, middle, beyond, before = _places(step)
        mixed = words[at] + words[middle] + words[before]
        mixed = (mixed ^ (mixed >> np.uint32(27))) * np.uint32(1566083941)
        words[middle] ^= mixed
        mixed = mixed - np.uint32(at)
        words[beyond] ^= mixed
        words[at] = mixed
    # A state of zeros would stay one.
    words[-1] = np.where(words[-1] == 0, np.uint32(_NON_ZERO), words[-1])
    return torch.from_numpy(np.ascontiguousarray(words.T).astype(np.int64))


def mtgp32(state: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """The next words of all generators and the states that follow.

    Args:
        state: [G, 351], generator ``g`` with the constants of row ``g % 64``.
        rounds: How often every generator makes 256 words.

    Returns:
        Words [rounds, G, 256] and the states [G, 351]; ``state`` is left alone.
    """
    pick, shift1, shift2, recursion, tempering = constants(state.device, len(state))
    words = state.new_empty((rounds, len(state), STEP_WORDS))
    for made in words:
        picked = state.gather(1, pick)
        x = (state[:, :STEP_WORDS] & _STATE_MASK).bitwise_xor_(state[:, 1 : STEP_WORDS + 1])
        x.bitwise_xor_((x << shift1).bitwise_and_(WORD_MASK))
        y = x.bitwise_xor_(picked[:, 1:] >> shift2)
        following = recursion.gather(1, y & 15).bitwise_xor_(y)
        t = picked[:, :-1] >> 16
        t.bitwise_xor_(picked[:, :-1])
        t.bitwise_xor_(t >> 8).bitwise_and_(15)
        torch.bitwise_xor(tempering.gather(1, t), following, out=made)
        state = torch.cat((state[:, STEP_WORDS:], following), 1)
    return words, state


def _places(step: int) -> tuple[int, int, int, int]:
    """The words that a step of the initialization reads and writes."""
    at = step % STATE_WORDS
    return at, (at + _MIDDLE) % STATE_WORDS, (at + _MIDDLE + _LAG) % STATE_WORDS, (at - 1) % STATE_WORDS


@cache
def _table() -> tuple[NDArray[np.uint32], ...]:
    """Positions, both shifts and the two matrices, as tables of the 16 sums of their columns."""
    rows = [line.split() for line in PARAMETERS.split("\n") if line]
    numbers = np.array([[int(number) for number in row[:3]] for row in rows], np.uint32)
    columns = np.array([[int(word, 16) for word in row[3:]] for row in rows], np.uint32)
    return *numbers.T, _sums(columns[:, :4]), _sums(columns[:, 4:])


def _sums(columns: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The sum over GF(2) of the columns that the bits of 0 to 15 select: [64, 4] gives [64, 16]."""
    sums = np.zeros((len(columns), 16), np.uint32)
    for index in range(1, 16):
        highest = index.bit_length() - 1
        sums[:, index] = sums[:, index ^ 1 << highest] ^ columns[:, highest]
    return sums
