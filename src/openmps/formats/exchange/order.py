"""Orders of axes as text, ``O H W I`` against ``O (C H W)``, and arrays rearranged from one to another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_AXIS = re.compile(r"\(([^)]*)\)|(\S+)")
_TURNED = "~"


@dataclass(frozen=True)
class Order:
    """An order of axes: letters in the order in which they are stored, the last one fastest.

    ``(C H W)`` is one axis that runs through C, H and W, W fastest. ``~H`` is an axis stored backwards. ``sizes`` has
    the length of each letter.
    """

    text: str
    sizes: Mapping[str, int]

    @cached_property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """The letters of each axis."""
        return tuple(tuple((many or one).split()) for many, one in _AXIS.findall(self.text))

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(math.prod(self.sizes[_bare(letter)] for letter in axis) for axis in self.axes)

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters, from the slowest to the fastest."""
        return tuple(_bare(letter) for axis in self.axes for letter in axis)

    @property
    def turned(self) -> frozenset[str]:
        """The letters that are stored backwards."""
        return frozenset(_bare(letter) for axis in self.axes for letter in axis if letter.startswith(_TURNED))

    def __str__(self) -> str:
        """The order in few characters, ``O(CHW)``."""
        axes = ("".join(map(_bare, axis)) for axis in self.axes)
        short = "".join(f"({axis})" if len(axis) > 1 else axis for axis in axes)
        return f"{short}, turned" if self.turned else short


def _bare(letter: str) -> str:
    return letter.removeprefix(_TURNED)


def rearranged(array: NDArray[Any], now: Order, wanted: Order) -> NDArray[Any]:
    """The same numbers in another order, in C order; what has them in that order already is not copied."""
    both = [letter for letter in now.letters if letter in wanted.letters]  # the others have the length 1
    places = [letter for letter in wanted.letters if letter in both]
    split = array.reshape([now.sizes[letter] for letter in both])
    moved = split.transpose([both.index(letter) for letter in places])
    backwards = now.turned ^ wanted.turned
    if backwards:
        moved = np.flip(moved, tuple(place for place, letter in enumerate(places) if letter in backwards))
    return np.ascontiguousarray(moved).reshape(wanted.shape)


def fitting(shape: tuple[int, ...], orders: Mapping[str, tuple[Order, ...]]) -> Iterator[str]:
    """The names of the tables in which some order has this shape."""
    for name, found in orders.items():
        if any(order.shape == shape for order in found):
            yield name
