"""Histograms of pictures ``[N, C, H, W]``, and tables made of them (MPSImageHistogram.h, macOS 10.13).

A number v of a channel whose n bins span ``low`` … ``high`` is in bin::

    b(v) = min(floor((clip(v, low, high) - low) / (high - low) * n), n - 1)

Where an operation rounds, as a convention says, in bin ``round((clip(v, low, high) - low) / (high - low) * (n - 1))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.ops import numba
from openmps.ops.elements import decode, encode
from openmps.ops.image.statistics import BYTES, byte_counts, min_and_max
from openmps.ops.op import Kind, Op
from openmps.types import MPSImageFeatureChannelFormat as Format

Numbers = tuple[float, ...]
"""One for each channel."""


def bins(x: Tensor, low: Tensor, high: Tensor, entries: int, rounds: bool = False) -> Tensor:
    """The bin of each number, int64; bounds are float64 ``[C, 1, 1]``. Where they are equal all is in the first bin."""
    share = x.to(torch.float64).clamp(low, high).sub_(low).div_((high - low).clamp_min_(5e-324))
    scaled = share.mul_(entries - 1).add_(0.5) if rounds else share.mul_(entries)
    return scaled.floor_().nan_to_num_(nan=0.0).clamp_(0, entries - 1).to(torch.int64)


def counts(x: Tensor, low: Tensor, high: Tensor, least: Tensor, entries: int, rounds: bool = False) -> Tensor:
    """How many numbers of each channel are in each bin, int64 ``[C, entries]``; those below ``least`` are not counted.

    NaN is below everything. Channels without bounds are left out.
    """
    channels = len(low)
    if numba.takes(x):
        from openmps.ops.numba.bins import counts as counted

        lows, highs, leasts = (each.flatten().tolist() for each in (low, high, least))
        return counted(x, lows, highs, leasts, entries, rounds=rounds)
    x = x[:, :channels]
    first = torch.arange(channels, device=x.device)[:, None, None] * entries
    index = (bins(x, low, high, entries, rounds) + first).masked_fill_(~(x >= least), channels * entries).flatten()
    if x.device.type == "cpu":
        found = torch.bincount(index, minlength=channels * entries + 1)
    else:  # which would ask the device for the largest index
        found = index.new_zeros(channels * entries + 1).scatter_add_(0, index, torch.ones_like(index))
    return found[:-1].view(channels, entries)


def counts_of_bytes(
    x: Tensor, entries: int, low: Numbers, high: Numbers, least: Numbers, rounds: bool = False
) -> Tensor:
    """As `counts`, of the first channels of bytes, as many as have bounds: each of the 256 numbers has its bin."""
    taken = byte_counts(x, len(low))
    if not all(each <= 0.0 for each in least):
        taken = taken * (every_byte(x.device) >= bounds(least, x))[:, 0]
    return _in_bins(taken, bins_of_bytes(x.device, entries, low, high, rounds), entries)


def _in_bins(taken: Tensor, index: Tensor, entries: int) -> Tensor:
    """Counts of bytes ``[C, 256]`` as counts of the bins that these are in, ``[C, entries]``."""
    return taken.new_zeros(len(taken), entries).scatter_add_(1, index, taken)


def every_byte(device: torch.device) -> Tensor:
    """The numbers that bytes stand for, ``[1, 1, 256]``."""
    return decode(torch.arange(BYTES, dtype=torch.uint8, device=device), Format.UNORM8).view(1, 1, BYTES)


def bins_of_bytes(device: torch.device, entries: int, low: Numbers, high: Numbers, rounds: bool = False) -> Tensor:
    """The bins of the 256 bytes of each channel that has bounds, int64 ``[C, 256]``."""
    return (_kept_bins if device.type == "cpu" else _bins_of_bytes)(device, entries, low, high, rounds)


def _bins_of_bytes(device: torch.device, entries: int, low: Numbers, high: Numbers, rounds: bool) -> Tensor:
    numbers = every_byte(device)
    return bins(numbers, bounds(low, numbers), bounds(high, numbers), entries, rounds)[:, 0]


_kept_bins = lru_cache(maxsize=32)(_bins_of_bytes)


def bounds(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers for each channel, float64 ``[C, 1, 1]``."""
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None, None]


def histogram(
    x: Tensor, before: Tensor | None, entries: int, low: Numbers, high: Numbers, least: Numbers, rounds: bool = False
) -> Tensor:
    """Bins of all channels that have bounds, one channel behind the other, uint32 ``[1, C entries]``.

    Of numbers, or of bytes as they are stored. ``before`` is added, if it is given.
    """
    if x.dtype == torch.uint8:
        found = counts_of_bytes(x, entries, low, high, least, rounds).view(1, -1)
    else:
        spans = bounds(low, x), bounds(high, x), bounds(least, x)
        found = counts(x, *spans, entries, rounds).view(1, -1)
    return (found if before is None else found + before.to(torch.int64)).to(torch.uint32)


def normalized_histogram(
    x: Tensor, before: Tensor | None, entries: int, low: Numbers, high: Numbers, rounds: bool = False
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number of each channel, ``[1, C, 1, 2]``, and bins that span what is there.

    They begin at ``low`` and end at ``high`` at the widest. Of numbers, or of bytes as they are stored.
    """
    of_bytes = byte_counts(x, x.shape[1]) if x.dtype == torch.uint8 else None
    if of_bytes is not None:
        extremes = _extremes_of_bytes(of_bytes)
    else:
        extremes = min_and_max(x) if len(x) == 1 else min_and_max(_joined(x))
    first = torch.maximum(extremes[0, : len(low), 0, 0].double(), bounds(low, x)[:, 0, 0])[:, None, None]
    last = torch.minimum(extremes[0, : len(low), 0, 1].double(), bounds(high, x)[:, 0, 0])[:, None, None]
    spans = first, torch.maximum(first, last)
    if of_bytes is not None:
        index = bins(every_byte(x.device).expand(len(low), 1, BYTES), *spans, entries, rounds)[:, 0]
        found = _in_bins(of_bytes[: len(low)], index, entries)
    else:
        found = counts(x, *spans, torch.full_like(first, -torch.inf), entries, rounds)
    found = found.view(1, -1)
    return extremes, (found if before is None else found + before.to(torch.int64)).to(torch.uint32)


def _extremes_of_bytes(counted: Tensor) -> Tensor:
    """The numbers of the first and the last byte of each channel that are there, ``[1, C, 1, 2]``."""
    is_there, numbers = counted > 0, every_byte(counted.device)[0, 0]
    least = torch.where(is_there, numbers, torch.inf).amin(1)
    return torch.stack([least, torch.where(is_there, numbers, -torch.inf).amax(1)], 1)[None, :, None]


def _joined(x: Tensor) -> Tensor:
    """Several images below one another, as one."""
    images, channels, height, width = x.shape
    return x.permute(1, 0, 2, 3).reshape(1, channels, images * height, width)


def equalizing_table(
    histogram: Tensor, entries: int, low: Numbers, high: Numbers, is_exclusive: bool = False
) -> Tensor:
    """``T[b] = low + (high - low) cdf[b] / cdf[n - 1]`` for each channel, float32 ``[1, C n]``.

    cdf includes bin b, or is that of the bins before it.
    """
    if histogram.device.type == "cpu":
        return torch.from_numpy(_equalizing_numbers(histogram.view(-1, entries).numpy(), low, high, is_exclusive))
    counted = histogram.view(-1, entries)
    share = _shares(counted)
    if is_exclusive:
        own = counted.to(torch.float64)
        share = torch.where(own.sum(1, keepdim=True) == 0, share, share - own / own.sum(1, keepdim=True))
    return _spanned(share, low, high)


def _equalizing_numbers(counted: Any, low: Numbers, high: Numbers, is_exclusive: bool) -> Any:
    """The same by NumPy, which takes a fraction of the time for so few numbers."""
    total = counted.cumsum(1, dtype=np.float64)
    whole = total[:, -1:]
    share = total / np.maximum(whole, 1.0)
    if is_exclusive:
        share -= counted / np.maximum(whole, 1.0)
    for channel in np.flatnonzero(whole[:, 0] == 0.0):  # an empty histogram: every bin stays in its place
        share[channel] = np.arange(counted.shape[1]) / max(1, counted.shape[1] - 1)
    first, last = (np.array(each[: len(share)])[:, None] for each in (low, high))
    return (first + (last - first) * share).astype(np.float32).reshape(1, -1)


def specifying_table(
    histogram: Tensor, desired: Tensor, entries: int, low: Numbers, high: Numbers, is_nearest: bool = False
) -> Tensor:
    """``T[b] = low + (high - low) d / (n - 1)``, float32 ``[1, C n]``.

    d is the first bin up to which the desired histogram has at least the share that the other one has up to bin b, or
    the first of those up to which its share is nearest.
    """
    have, want = (each.view(-1, entries).to(torch.float64).cumsum(1) for each in (histogram, desired))
    # Products, not quotients, are compared: they are exact for pictures of 2^26 pixels.
    if is_nearest:
        apart = ((want * have[:, -1:])[:, None, :] - (have * want[:, -1:])[:, :, None]).abs_()
        place = apart.argmin(2)
    else:
        place = torch.searchsorted(want * have[:, -1:], have * want[:, -1:]).clamp_(max=entries - 1)
    is_empty = (have[:, -1:] == 0) | (want[:, -1:] == 0)
    share = torch.where(is_empty, _identity(have), place / max(1, entries - 1))
    return _spanned(share, low, high)


def _shares(histogram: Tensor) -> Tensor:
    total = histogram.to(torch.float64).cumsum(1)
    return torch.where(total[:, -1:] == 0, _identity(total), total / total[:, -1:])


def _identity(like: Tensor) -> Tensor:
    """What an empty histogram asks for: every bin stays in its place."""
    return torch.arange(like.shape[1], dtype=like.dtype, device=like.device) / max(1, like.shape[1] - 1)


def _spanned(share: Tensor, low: Numbers, high: Numbers) -> Tensor:
    first, last = (bounds(each[: len(share)], share)[:, 0] for each in (low, high))
    return (first + (last - first) * share).to(torch.float32).view(1, -1)


def lookup(x: Tensor, table: Tensor, entries: int, low: Numbers, high: Numbers, rounds: bool = False) -> Tensor:
    """Numbers by their bins, ``table[c n + b(x)]``; channels without bounds stay. Bytes become bytes."""
    channels = len(low)
    if x.dtype == torch.uint8:
        found = _byte_lookup(x[:, :channels], table_of_bytes(table, entries, low, high, rounds))
    else:
        first = torch.arange(channels, device=x.device)[:, None, None] * entries
        index = bins(x[:, :channels], bounds(low, x), bounds(high, x), entries, rounds) + first
        found = table.flatten()[index].to(x.dtype)
    return found if channels == x.shape[1] else torch.cat([found, x[:, channels:]], 1)


def table_of_bytes(table: Tensor, entries: int, low: Numbers, high: Numbers, rounds: bool = False) -> Tensor:
    """The bytes in the place of the 256 bytes of each channel that has bounds, uint8 ``[C, 256]``."""
    index = bins_of_bytes(table.device, entries, low, high, rounds)
    shares = table.view(-1, entries)[: len(low)]
    if table.device.type == "cpu":
        return torch.from_numpy(_as_bytes(np.take_along_axis(shares.numpy(), index.numpy(), 1)))
    return encode(shares.gather(1, index), Format.UNORM8)


def _as_bytes(numbers: Any) -> Any:
    """As `encode`, by NumPy: see `_equalizing_numbers`."""
    return np.rint(np.nan_to_num(numbers.clip(0.0, 1.0), nan=0.0) * np.float32(BYTES - 1)).astype(np.uint8)


def _byte_lookup(x: Tensor, table: Tensor) -> Tensor:
    """Bytes by a table of 256 for each channel."""
    index = x.permute(0, 2, 3, 1).to(torch.int32)  # as pixels lie: to put them into another order would take longer
    if x.shape[1] > 1:
        index += torch.arange(x.shape[1], dtype=torch.int32, device=x.device) * BYTES
    return table.flatten().index_select(0, index.flatten()).view(index.shape).permute(0, 3, 1, 2)


class _Bins(Op, kind=Kind.REDUCTION):
    """The base of operations over bins."""

    entries: int
    low: Numbers
    high: Numbers


class Histogram(_Bins, of=histogram):
    """`histogram` of a picture, and of the counts before or None."""

    least: Numbers
    rounds: bool = False


class NormalizedHistogram(_Bins, of=normalized_histogram, results=2):
    """`normalized_histogram` of a picture, and of the counts before or None."""

    rounds: bool = False


class EqualizingTable(_Bins, of=equalizing_table):
    """`equalizing_table` of a histogram."""

    is_exclusive: bool = False


class SpecifyingTable(_Bins, of=specifying_table):
    """`specifying_table` of a picture's histogram and the desired one."""

    is_nearest: bool = False


class Lookup(_Bins, of=lookup, kind=Kind.POINTWISE):
    """`lookup` of a picture in a table."""

    rounds: bool = False
