"""What two arrays that differ look like: usual mistakes, tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LEAST = 8
"""Numbers that must agree: of fewer, something always does."""


class Mistake(NamedTuple):
    """A usual mistake: its name, and pairs of arrays that agree if it was made."""

    says: str
    undo: Callable[[Array, Array], Iterator[tuple[Array, Array]]]


def hint(first: Array, second: Array, tolerance: float) -> str:
    """What the first array looks like beside the second; empty where it is none of the usual mistakes."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    if a.ndim != 4 or b.ndim != 4 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return ""
    for mistake in MISTAKES:
        for mine, other in mistake.undo(a, b):
            if mine.shape == other.shape and mine.size >= _LEAST and _agree(mine, other, tolerance):
                return mistake.says
    return ""


def _agree(a: Array, b: Array, tolerance: float) -> bool:
    scale = max(float(np.abs(a).max()), float(np.abs(b).max()))
    # Constant images agree with everything that is moved.
    return float(np.abs(a - b).max()) <= tolerance * scale and float(np.ptp(b)) > tolerance * scale


# --- the mistakes -----------------------------------------------------------------------------------------------------


def _reversed_channels(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if a.shape[3] > 1:
        yield a[..., ::-1], b


def _transposed(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    yield a.transpose(0, 2, 1, 3), b


def _exchanged(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    yield a.transpose(3, 1, 2, 0), b


def _turned(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if max(a.shape[1:3]) > 1:
        yield a[:, ::-1, ::-1], b


def _shifted(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """What both show of a picture that one of them shows a pixel further."""
    if a.shape != b.shape or min(a.shape[1:3]) < 4:
        return
    rows, columns = a.shape[1] - 1, a.shape[2] - 1
    for y, x in ((0, 1), (1, 0), (1, 1), (0, -1), (-1, 0), (-1, -1), (1, -1), (-1, 1)):
        # The outermost pixels read the border, which the shift has changed.
        mine = a[:, 1 + max(y, 0) : rows + min(y, 0), 1 + max(x, 0) : columns + min(x, 0)]
        yield mine, b[:, 1 - min(y, 0) : rows - max(y, 0), 1 - min(x, 0) : columns - max(x, 0)]


def _moved_on(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if a.shape[3] > 2:
        yield np.roll(a, -1, 3), b
        yield np.roll(a, 1, 3), b


def _offset(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if a.shape == b.shape:
        yield a - (a - b).mean((0, 1, 2), keepdims=True), b


def _scaled(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if a.shape == b.shape and float((a * a).sum()) > 0:
        yield a * (float((a * b).sum()) / float((a * a).sum())), b


def _scaled_and_offset(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    if a.shape == b.shape:
        means = [each.mean((0, 1, 2), keepdims=True) for each in (a, b)]
        yield from ((mine + means[1], other + means[1]) for mine, other in _scaled(a - means[0], b - means[1]))


_OWN = "OHWI"
_ORDERS = {"HWIO": "HWIO", "OIHW": "OIHW (an image's NCHW)", "IHWO": "IHWO"}
"""Orders in which others keep the axes of weights, and what they are called; the second is that of images, too."""


def _reordered(order: str, *, is_turned: bool) -> Mistake:
    """Numbers that were written in an order and read in openmps' own."""
    axes = [_OWN.index(letter) for letter in order]
    back, turn = tuple(order.index(letter) for letter in _OWN), (slice(None), *(slice(None, None, -1),) * 2)

    def undo(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
        if a.size == b.size:
            yield a.ravel(), (b[turn] if is_turned else b).transpose(axes).ravel()

    shape = ", ".join(order.lower())
    does = f"numpy.transpose(numbers.reshape({shape}), {back}){'[:, ::-1, ::-1]' * is_turned}"
    turned = ", turned by 180 degrees" if is_turned else ""
    return Mistake(f"its numbers are those of the other one in the order {_ORDERS[order]}{turned}: {does}", undo)


MISTAKES: tuple[Mistake, ...] = (
    Mistake("its channels are those of the other one in reverse order", _reversed_channels),
    Mistake("its rows are the columns of the other one", _transposed),
    Mistake("its inputs are the outputs of the other one", _exchanged),
    Mistake("it is the other one turned by 180 degrees", _turned),
    *(_reordered(order, is_turned=is_turned) for is_turned in (False, True) for order in _ORDERS),
    Mistake("it is the other one moved by a pixel", _shifted),
    Mistake("its channels are those of the other one moved on by one", _moved_on),
    Mistake("it is the other one with a constant added to each channel", _offset),
    Mistake("it is the other one times a constant", _scaled),
    Mistake("it is the other one times a constant, with a constant added to each channel", _scaled_and_offset),
)
"""Each mistake, the ones that leave fewer numbers to choose first."""
