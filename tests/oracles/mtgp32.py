"""MTGP32, one generator, word by word, from the published description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

WORD = 0xFFFFFFFF
SIZE = 351
LAG = 7
MIDDLE = (SIZE - LAG) // 2


class Generator(NamedTuple):
    """The constants of a generator; matrices by their columns."""

    position: int
    shift1: int
    shift2: int
    recursion: tuple[int, ...]
    tempering: tuple[int, ...]


def parse(line: str) -> Generator:
    row = line.split()
    position, shift1, shift2 = (int(number) for number in row[:3])
    words = tuple(int(word, 16) for word in row[3:])
    return Generator(position, shift1, shift2, words[:4], words[4:])


def product(columns: Sequence[int], bits: int) -> int:
    """A matrix over GF(2) times the low four bits."""
    result = 0
    for bit, column in enumerate(columns):
        if bits >> bit & 1:
            result ^= column
    return result


def initialize(generator: Generator, key: Sequence[int]) -> list[int]:
    """The state by an array of words."""
    hidden = generator.recursion[2] ^ (generator.recursion[3] << 16 & WORD)
    octet = hidden + (hidden >> 16) & WORD
    octet = octet + (octet >> 8) & 0xFF
    state = [octet << 24 | octet << 16 | octet << 8 | octet] * SIZE
    state[0] = hidden
    mixed = _first(state[0] ^ state[MIDDLE] ^ state[SIZE - 1])
    state[MIDDLE] = state[MIDDLE] + mixed & WORD
    mixed = mixed + len(key) & WORD
    state[MIDDLE + LAG] = state[MIDDLE + LAG] + mixed & WORD
    state[0] = mixed
    at = 1
    for step in range(max(SIZE, len(key) + 1) - 1):
        middle, beyond = (at + MIDDLE) % SIZE, (at + MIDDLE + LAG) % SIZE
        mixed = _first(state[at] ^ state[middle] ^ state[at - 1])
        state[middle] = state[middle] + mixed & WORD
        mixed = mixed + (key[step] if step < len(key) else 0) + at & WORD
        state[beyond] = state[beyond] + mixed & WORD
        state[at] = mixed
        at = (at + 1) % SIZE
    for _ in range(SIZE):
        middle, beyond = (at + MIDDLE) % SIZE, (at + MIDDLE + LAG) % SIZE
        mixed = _second(state[at] + state[middle] + state[at - 1] & WORD)
        state[middle] ^= mixed
        mixed = mixed - at & WORD
        state[beyond] ^= mixed
        state[at] = mixed
        at = (at + 1) % SIZE
    if state[-1] == 0:
        state[-1] = 0x4D544750
    return state


def words(generator: Generator, state: Sequence[int]) -> Iterator[int]:
    """The generator's words without end."""
    sequence = list(state)
    while True:
        x = sequence[0] & 0xFFF80000 ^ sequence[1]
        x ^= x << generator.shift1 & WORD
        y = x ^ sequence[generator.position] >> generator.shift2
        made = y ^ product(generator.recursion, y)
        t = sequence[generator.position - 1]
        t ^= t >> 16
        t ^= t >> 8
        yield made ^ product(generator.tempering, t)
        sequence = [*sequence[1:], made]


def _first(word: int) -> int:
    return (word ^ word >> 27) * 1664525 & WORD


def _second(word: int) -> int:
    return (word ^ word >> 27) * 1566083941 & WORD


def minimal_polynomial(bits: Sequence[int]) -> str:
    """Coefficients, highest power first, of the shortest linear recurrence of a sequence (Berlekamp and Massey)."""
    current = previous = 1
    length, since, seen = 0, 1, 0
    for count, bit in enumerate(bits):
        seen = seen << 1 | bit
        if (current & seen).bit_count() % 2 == 0:
            since += 1
            continue
        former = current
        current ^= previous << since
        if 2 * length <= count:
            length, previous, since = count + 1 - length, former, 1
        else:
            since += 1
    return "".join(str(current >> power & 1) for power in range(length, -1, -1))
