"""Numbers by their bins, by compiled loops; see `openmps.ops.image.histogram`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from openmps.ops.image.library_form import Array, packed_pictures
from openmps.ops.numba.loop import lines, loop
from openmps.ops.numba.primitives import add, claim, finish, number, wait

_WIDTH = 240
"""Numbers that are looked at together, about as many: of whole pixels."""
_COPIES = 4
"""Counters of a bin that pixels take by turns, where there are few bins: a counter waits for the one before."""
_FEW = 1 << 12


class Spans(NamedTuple):
    """The bins of as many numbers side by side."""

    low: Array
    high: Array
    length: Array
    first: Array
    """The first bin of the channel; -1 of those that have none."""
    factor: float
    bias: float
    last: float
    """The last bin, counted from the first."""


def spans_of(channels: int, low: Sequence[float], high: Sequence[float], entries: int, *, rounds: bool) -> Spans:
    """By channel; of those behind the bounds nothing is asked."""
    missing = channels - len(low)
    ends = np.array([[*low, *[0.0] * missing], [*high, *[0.0] * missing]])
    length = np.maximum(ends[1] - ends[0], 5e-324)
    first = np.array([*range(0, len(low) * entries, entries), *[-1] * missing], np.int32)
    lows, highs, lengths, firsts = (_side_by_side(each) for each in (*ends, length, first))
    factor, bias = (entries - 1.0, 0.5) if rounds else (float(entries), 0.0)
    return Spans(lows, highs, lengths, firsts, factor, bias, entries - 1)


def _side_by_side(each: Array) -> Array:
    """Numbers of channels for as many pixels as are looked at together."""
    return np.tile(each, max(1, _WIDTH // len(each)))


def find_bins(x: Any, low: Any, high: Any, length: Any, factor: Any, bias: Any, last: Any, bins: Any) -> None:
    """The bins of numbers side by side: NaN is in the first."""
    for place in range(len(x)):
        value = np.float64(number(x[place]))
        value = low[place] if value < low[place] else value
        value = high[place] if value > high[place] else value
        share = (value - low[place]) / length[place] * factor + bias
        share = share if share > 0.0 else 0.0
        bins[place] = np.int32(share if share < last else last)


@loop(
    *("float32[::1]", "int64", "int64", "float64[::1]", "float64[::1]", "float64[::1]", "int32[::1]", "float64"),
    *("float64", "float64", "float64[::1]", "int64", "int64[::1]"),
    uses=(find_bins,),
)
def _count(
    claims: Any, x: Any, step: int, columns: int, low: Any, high: Any, length: Any, first: Any, factor: Any,
    bias: Any, last: Any, least: Any, copies: int, counts: Any,
) -> None:  # fmt: skip
    """How many numbers are in each bin, of those that are large enough; counters are added up at the end."""
    own, bins = np.zeros(copies * len(counts) + 1, np.int64), np.empty(len(low), np.int32)
    nowhere, taken = np.int32(copies * len(counts)), 0
    begin, end = claim(claims)
    while begin < end:
        for row in range(begin, end):
            for left in range(0, columns, len(low)):
                some = x[row * step + left :][: min(len(low), columns - left)]
                find_bins(some, low, high, length, factor, bias, last, bins)
                for place in range(len(some)):
                    is_counted = np.float64(number(some[place])) >= least[place]
                    bins[place] = bins[place] + first[place] if is_counted else nowhere
                for place in range(len(some)):
                    own[bins[place]] += 1
        taken += end - begin
        begin, end = claim(claims)
    if taken > 0:
        for place in range(copies * len(counts)):
            add(counts, place % len(counts), own[place])
        finish(claims, taken)
    wait(claims)


def counts(
    x: Tensor, low: Sequence[float], high: Sequence[float], least: Sequence[float], entries: int, *, rounds: bool
) -> Tensor:
    """`openmps.ops.image.histogram.counts` of the first channels of float32 numbers, as many as have bounds."""
    channels, bins = x.shape[1], len(low) * entries
    spans = spans_of(channels, low, high, entries, rounds=rounds)
    copies = _COPIES if bins <= _FEW else 1
    # Numbers of pixels that follow one another have counters of their own.
    copy = np.arange(len(spans.first)) // channels % copies
    first = (spans.first + bins * copy).astype(np.int32)
    smallest = _side_by_side(np.array([*least, *[math.nan] * (channels - len(low))]))
    found = np.zeros(bins, np.int64)
    for image in packed_pictures(x):
        _count.run(
            *(len(image), image.size, *lines(image), image[0].size),
            *(*spans._replace(first=first), smallest, copies, found),
        )
    return torch.from_numpy(found).view(len(low), entries)
