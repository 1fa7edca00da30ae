"""`openmps.ops.normalization.group_normalization` in Triton, of whole images: each pass reads an image once.

Programs sum some pixels of one image; the sums of an image are added in their order. Repeats are equal bit for bit.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv, next_power_of_2

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_NUMBERS, _MOST_CHANNELS = 4096, 64
"""Numbers of a tile, and channels of it at most."""
_LARGEST_GROUP = 4096
"""Channels of a group, at most, that one program adds."""
_PROGRAMS = 1056
"""So many sum, if images are large enough: eight for each multiprocessor."""


@triton.jit
def _place(parts, across, COLUMNS: tl.constexpr):
    """The image, the part of it, and the channels of a program."""
    program = tl.program_id(0)
    at = program % across * COLUMNS + tl.arange(0, COLUMNS)
    return program // across // parts, program // across % parts, at


@triton.jit
def _pivot(x, image, at, is_in, pixels, channels, size):
    """The first pixel of the first channel of each channel's group."""
    return tl.load(x + image.to(tl.int64) * pixels * channels + at // size * size, is_in, 0.0).to(tl.float32)


@triton.jit
def _known(x, statistics, image, at, is_in, pixels, channels, size):
    """Of each channel the pivot, the group's mean less that, and the inverse of its deviation."""
    groups = channels // size
    of = statistics + image * 2 * groups + at // size
    pivot = _pivot(x, image, at, is_in, pixels, channels, size)
    return pivot, tl.load(of, is_in, 0.0), tl.load(of + groups, is_in, 0.0)


@Launched
@triton.jit
def _moments_parts(
    x, found, pixels, channels, size, parts, tiles, across, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of a part's pixels less the pivot: their mean, and their squared differences from it (Welford's scheme)."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, lane = at < channels, tl.arange(0, HELD)
    pivot = _pivot(x, image, at, is_in, pixels, channels, size)[None, :]
    mean = tl.zeros([HELD, COLUMNS], tl.float32)
    squares = tl.zeros([HELD, COLUMNS], tl.float32)
    seen = 0.0
    for tile in range(tiles):
        row = (part * tiles + tile) * HELD + lane
        there = (row < pixels)[:, None] & is_in[None, :]
        place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
        seen += 1.0
        value = tl.load(x + place, there, 0.0).to(tl.float32) - pivot
        step = tl.where(there, value - mean, 0.0)
        mean += step * (1.0 / seen)
        squares += step * (value - mean)
    # Lanes whose pixels are none at the end have seen fewer.
    mine = tl.minimum(tl.maximum((pixels - part * tiles * HELD - lane + HELD - 1) // HELD, 0), tiles).to(tl.float32)
    weight = mine[:, None]
    whole = tl.sum(mean * weight, 0) / tl.sum(mine, 0)
    away = mean - whole[None, :]
    place = found + ((image * parts + part) * 2) * channels + at
    tl.store(place, whole, is_in)
    tl.store(place + channels, tl.sum(squares + weight * away * away, 0), is_in)


@Launched
@triton.jit
def _statistics_end(
    found, statistics, pixels, channels, size, parts, held, epsilon, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation of one group of one image, of the parts of its channels (Chan, Golub and LeVeque)."""
    groups = channels // size
    image, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    lane = tl.arange(0, COLUMNS)
    is_in = lane < size
    place = found + image * parts * 2 * channels + group * size + lane
    total = tl.zeros([COLUMNS], tl.float32)
    for part in range(parts):
        weight = tl.minimum(held, pixels - part * held).to(tl.float32)
        total += tl.load(place + part * 2 * channels, is_in, 0.0) * weight
    numbers = pixels * 1.0 * size
    mean = tl.sum(total, 0) / numbers
    # Once more, of the small differences that are left, and their squares.
    rest = tl.zeros([COLUMNS], tl.float32)
    for part in range(parts):
        weight = tl.minimum(held, pixels - part * held).to(tl.float32)
        rest += tl.where(is_in, tl.load(place + part * 2 * channels, is_in, 0.0) - mean, 0.0) * weight
    mean += tl.sum(rest, 0) / numbers
    squares = tl.zeros([COLUMNS], tl.float32)
    for part in range(parts):
        weight = tl.minimum(held, pixels - part * held).to(tl.float32)
        away = tl.where(is_in, tl.load(place + part * 2 * channels, is_in, 0.0) - mean, 0.0)
        squares += tl.load(place + (part * 2 + 1) * channels, is_in, 0.0) + away * away * weight
    one = statistics + image * 2 * groups + group
    tl.store(one, mean)
    tl.store(one + groups, 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / numbers + epsilon))


@Launched
@triton.jit
def _normalized(
    x, y, statistics, gamma, beta, pixels, channels, size, parts, across, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of a result."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, row = at < channels, part * HELD + tl.arange(0, HELD)
    there = (row < pixels)[:, None] & is_in[None, :]
    place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
    pivot, mean, inverse = _known(x, statistics, image, at, is_in, pixels, channels, size)
    scale, shift = tl.load(gamma + at, is_in, 0.0) * inverse, tl.load(beta + at, is_in, 0.0)
    value = tl.load(x + place, there, 0.0).to(tl.float32) - pivot[None, :] - mean[None, :]
    tl.store(y + place, (value * scale[None, :] + shift[None, :]).to(y.dtype.element_ty), there)


@Launched
@triton.jit
def _gradient_parts(
    gradient, x, statistics, found, pixels, channels, size, parts, tiles, across, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of a part's gradients, and of their products with the source less its mean."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, lane = at < channels, tl.arange(0, HELD)
    pivot, mean, _ = _known(x, statistics, image, at, is_in, pixels, channels, size)
    plain = tl.zeros([HELD, COLUMNS], tl.float32)
    products = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (part * tiles + tile) * HELD + lane
        there = (row < pixels)[:, None] & is_in[None, :]
        place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
        g = tl.load(gradient + place, there, 0.0).to(tl.float32)
        value = tl.load(x + place, there, 0.0).to(tl.float32) - pivot[None, :] - mean[None, :]
        plain += g
        products += tl.where(there, g * value, 0.0)
    place = found + ((image * parts + part) * 2) * channels + at
    tl.store(place, tl.sum(plain, 0), is_in)
    tl.store(place + channels, tl.sum(products, 0), is_in)


@Launched
@triton.jit
def _gradient_end(
    found, statistics, gamma, for_gamma, for_beta, terms, pixels, channels, size, parts, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of one group's gammas and betas of one image, and the group's two terms of the source's."""
    groups = channels // size
    image, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    lane = tl.arange(0, COLUMNS)
    is_in, at = lane < size, group * size + lane
    place = found + image * parts * 2 * channels + at
    plain = tl.zeros([COLUMNS], tl.float32)
    products = tl.zeros([COLUMNS], tl.float32)
    for part in range(parts):
        plain += tl.load(place + part * 2 * channels, is_in, 0.0)
        products += tl.load(place + (part * 2 + 1) * channels, is_in, 0.0)
    inverse = tl.load(statistics + (image * 2 + 1) * groups + group)
    scale, products = tl.load(gamma + at, is_in, 0.0), products * inverse
    tl.store(for_beta + image * channels + at, plain, is_in)
    tl.store(for_gamma + image * channels + at, products, is_in)
    numbers = pixels * 1.0 * size
    tl.store(terms + image * 2 * groups + group, tl.sum(plain * scale, 0) / numbers)
    tl.store(terms + (image * 2 + 1) * groups + group, tl.sum(products * scale, 0) / numbers * inverse)


@Launched
@triton.jit
def _source_gradient(
    gradient, x, made, statistics, terms, gamma, pixels, channels, size, parts, across, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of the source's gradient; it is divided by the deviation last, when terms have cancelled."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, row = at < channels, part * HELD + tl.arange(0, HELD)
    there = (row < pixels)[:, None] & is_in[None, :]
    place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
    pivot, mean, inverse = _known(x, statistics, image, at, is_in, pixels, channels, size)
    of = terms + image * 2 * (channels // size) + at // size
    plain, slope = tl.load(of, is_in, 0.0), tl.load(of + channels // size, is_in, 0.0)
    value = tl.load(x + place, there, 0.0).to(tl.float32) - pivot[None, :] - mean[None, :]
    g = tl.load(gradient + place, there, 0.0).to(tl.float32) * tl.load(gamma + at, is_in, 0.0)[None, :]
    g = (g - plain[None, :] - value * slope[None, :]) * inverse[None, :]
    tl.store(made + place, g.to(made.dtype.element_ty), there)


class _Cut(NamedTuple):
    """How images are cut into tiles."""

    images: int
    pixels: int
    channels: int
    held: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> _Cut:
        images, channels, height, width = x.shape
        columns = min(_MOST_CHANNELS, next_power_of_2(channels))
        return cls(images, height * width, channels, _NUMBERS // columns, columns)

    @property
    def across(self) -> int:
        """Tiles side by side."""
        return cdiv(self.channels, self.columns)

    @property
    def down(self) -> int:
        """Tiles of an image one below the other."""
        return cdiv(self.pixels, self.held)

    @property
    def sums(self) -> tuple[int, int]:
        """Parts of an image, each summed by a program for its channels, and tiles of a part."""
        parts = min(self.down, max(1, _PROGRAMS // (self.images * self.across)))
        tiles = cdiv(self.down, parts)
        return cdiv(self.down, tiles), tiles

    def grid(self, parts: int) -> tuple[int]:
        """All programs."""
        return (self.images * parts * self.across,)


def takes(x: Tensor, *others: Tensor) -> bool:
    """Whether the passes are for these images, and for gradients and rows of numbers beside them."""
    images = [each for each in (x, *others) if each.dim() == x.dim()]
    rows = [each for each in others if each.dim() != x.dim()]
    return (
        x.numel() > 0
        and x.shape[2] * x.shape[3] < 2**30
        and x.shape[1] <= _LARGEST_GROUP
        and all(each.shape == x.shape and each.dtype in (torch.float16, torch.float32) for each in images)
        and all(each.is_contiguous(memory_format=torch.channels_last) for each in images)
        and all(each.dtype == torch.float32 and each.is_contiguous() for each in rows)
    )


def group_statistics(x: Tensor, groups: int, epsilon: float) -> Tensor:
    """See `openmps.ops.normalization.group_normalization.group_statistics`."""
    cut, size = _Cut.of(x), x.shape[1] // groups
    parts, tiles = cut.sums
    found = torch.empty((cut.images, parts, 2, cut.channels), dtype=torch.float32, device=x.device)
    _moments_parts[cut.grid(parts)](
        x, found, cut.pixels, cut.channels, size, parts, tiles, cut.across, cut.held, cut.columns,
    )  # fmt: skip
    statistics = torch.empty((cut.images, 2, groups), dtype=torch.float32, device=x.device)
    _statistics_end[(cut.images * groups,)](
        found, statistics, cut.pixels, cut.channels, size, parts, tiles * cut.held, float(epsilon),
        next_power_of_2(size),
    )  # fmt: skip
    return statistics


def normalized(x: Tensor, statistics: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The result, in the type of ``x``."""
    cut, size, y = _Cut.of(x), x.shape[1] // statistics.shape[2], torch.empty_like(x)
    _normalized[cut.grid(cut.down)](
        x, y, statistics, gamma, beta, cut.pixels, cut.channels, size, cut.down, cut.across, cut.held, cut.columns,
    )  # fmt: skip
    return y


def gradients(gradient: Tensor, x: Tensor, gamma: Tensor, statistics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the source, in the type of ``x``, and of gamma and beta, [N, C]."""
    cut, groups = _Cut.of(x), statistics.shape[2]
    (parts, tiles), size = cut.sums, x.shape[1] // groups
    found = torch.empty((cut.images, parts, 2, cut.channels), dtype=torch.float32, device=x.device)
    _gradient_parts[cut.grid(parts)](
        gradient, x, statistics, found, cut.pixels, cut.channels, size, parts, tiles, cut.across, cut.held,
        cut.columns,
    )  # fmt: skip
    sums, terms = found.new_empty(2, cut.images, cut.channels), torch.empty_like(statistics)
    # Each product is rounded, as the sums that are to cancel with it were.
    _gradient_end[(cut.images * groups,)](
        found, statistics, gamma, sums[0], sums[1], terms, cut.pixels, cut.channels, size, parts,
        next_power_of_2(size), enable_fp_fusion=False,
    )  # fmt: skip
    made = torch.empty_like(x)
    _source_gradient[cut.grid(cut.down)](
        gradient, x, made, statistics, terms, gamma, cut.pixels, cut.channels, size, cut.down, cut.across, cut.held,
        cut.columns, enable_fp_fusion=False,
    )  # fmt: skip
    return made, sums[0], sums[1]
