"""`openmps.ops.group_normalization` in Triton, of whole images: each pass reads an image once.

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

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_NUMBERS, _MOST_CHANNELS = 4096, 64
"""Numbers of a tile, and channels of it at most."""
_PROGRAMS = 1056
"""So many sum, if images are large enough: eight for each multiprocessor."""


@triton.jit
def _place(parts, across, COLUMNS: tl.constexpr):
    """The image, the part of it, and the channels of a program."""
    program = tl.program_id(0)
    at = program % across * COLUMNS + tl.arange(0, COLUMNS)
    return program // across // parts, program // across % parts, at


@Launched
@triton.jit
def _moments_parts(
    x, pivots, found, pixels, channels, parts, tiles, across, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of a part's pixels less the pivot: their mean, and their squared differences from it (Welford's scheme)."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, lane = at < channels, tl.arange(0, HELD)
    pivot = tl.load(pivots + image * channels + at, is_in, 0.0)[None, :]
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
def _normalized(
    x, y, pivots, means, scales, beta, pixels, channels, parts, across, HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of a result."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, row, of = at < channels, part * HELD + tl.arange(0, HELD), image * channels + at
    there = (row < pixels)[:, None] & is_in[None, :]
    place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
    value = tl.load(x + place, there, 0.0).to(tl.float32) - tl.load(pivots + of, is_in, 0.0)[None, :]
    value -= tl.load(means + of, is_in, 0.0)[None, :]
    scale, shift = tl.load(scales + of, is_in, 0.0), tl.load(beta + at, is_in, 0.0)
    tl.store(y + place, (value * scale[None, :] + shift[None, :]).to(y.dtype.element_ty), there)


@Launched
@triton.jit
def _gradient_parts(
    gradient, x, pivots, means, found, pixels, channels, parts, tiles, across, HELD: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of a part's gradients, and of their products with the source less its mean."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, of, lane = at < channels, image * channels + at, tl.arange(0, HELD)
    pivot = tl.load(pivots + of, is_in, 0.0)[None, :]
    mean = tl.load(means + of, is_in, 0.0)[None, :]
    plain = tl.zeros([HELD, COLUMNS], tl.float32)
    products = tl.zeros([HELD, COLUMNS], tl.float32)
    for tile in range(tiles):
        row = (part * tiles + tile) * HELD + lane
        there = (row < pixels)[:, None] & is_in[None, :]
        place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
        g = tl.load(gradient + place, there, 0.0).to(tl.float32)
        plain += g
        products += tl.where(there, g * (tl.load(x + place, there, 0.0).to(tl.float32) - pivot - mean), 0.0)
    place = found + ((image * parts + part) * 2) * channels + at
    tl.store(place, tl.sum(plain, 0), is_in)
    tl.store(place + channels, tl.sum(products, 0), is_in)


@Launched
@triton.jit
def _source_gradient(
    gradient, x, made, pivots, means, plains, slopes, deviations, gamma, pixels, channels, parts, across,
    HELD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of the source's gradient; it is divided by the deviation last, when terms have cancelled."""
    image, part, at = _place(parts, across, COLUMNS)
    is_in, row, of = at < channels, part * HELD + tl.arange(0, HELD), image * channels + at
    there = (row < pixels)[:, None] & is_in[None, :]
    place = (image.to(tl.int64) * pixels + row)[:, None] * channels + at[None, :]
    value = tl.load(x + place, there, 0.0).to(tl.float32) - tl.load(pivots + of, is_in, 0.0)[None, :]
    value -= tl.load(means + of, is_in, 0.0)[None, :]
    g = tl.load(gradient + place, there, 0.0).to(tl.float32) * tl.load(gamma + at, is_in, 0.0)[None, :]
    g -= tl.load(plains + of, is_in, 0.0)[None, :] + value * tl.load(slopes + of, is_in, 0.0)[None, :]
    g *= tl.load(deviations + of, is_in, 0.0)[None, :]
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
        columns = min(_MOST_CHANNELS, triton.next_power_of_2(channels))
        return cls(images, height * width, channels, _NUMBERS // columns, columns)

    @property
    def across(self) -> int:
        """Tiles side by side."""
        return triton.cdiv(self.channels, self.columns)

    @property
    def down(self) -> int:
        """Tiles of an image one below the other."""
        return triton.cdiv(self.pixels, self.held)

    @property
    def sums(self) -> tuple[int, int]:
        """Parts of an image, each summed by a program for its channels, and tiles of a part."""
        parts = min(self.down, max(1, _PROGRAMS // (self.images * self.across)))
        tiles = triton.cdiv(self.down, parts)
        return triton.cdiv(self.down, tiles), tiles

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
        and all(each.shape == x.shape and each.dtype in (torch.float16, torch.float32) for each in images)
        and all(each.is_contiguous(memory_format=torch.channels_last) for each in images)
        and all(each.dtype == torch.float32 and each.is_contiguous() for each in rows)
    )


def moments(x: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    """Mean less the pivot, and population variance, of each channel of each image, [N, C] each as ``pivots``."""
    cut = _Cut.of(x)
    parts, tiles = cut.sums
    found = pivots.new_empty(cut.images, parts, 2, cut.channels)
    _moments_parts[cut.grid(parts)](
        x, pivots, found, cut.pixels, cut.channels, parts, tiles, cut.across, cut.held, cut.columns,
    )  # fmt: skip
    means, squares = found.unbind(2)
    if parts == 1:
        return means[:, 0], squares[:, 0] / cut.pixels
    full = tiles * cut.held
    share = torch.full((parts, 1), full / cut.pixels, device=x.device)
    share[-1] = (cut.pixels - full * (parts - 1)) / cut.pixels
    whole = (means * share).sum(1, keepdim=True)
    # Once more, of the small differences that are left.
    whole += ((means - whole) * share).sum(1, keepdim=True)
    away = (means - whole).square_().mul_(share).sum(1)
    return whole[:, 0], away.add_(squares.sum(1), alpha=1 / cut.pixels)


def normalized(x: Tensor, pivots: Tensor, means: Tensor, scales: Tensor, beta: Tensor) -> Tensor:
    """``(x - pivot - mean) * scale + beta`` in the type of ``x``; all but beta are [N, C]."""
    cut, y = _Cut.of(x), torch.empty_like(x)
    _normalized[cut.grid(cut.down)](
        x, y, pivots, means, scales, beta, cut.pixels, cut.channels, cut.down, cut.across, cut.held, cut.columns,
    )  # fmt: skip
    return y


def gradient_sums(gradient: Tensor, x: Tensor, pivots: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel of each image the sum of the gradient, and of its products with ``x - pivot - mean``."""
    cut = _Cut.of(x)
    parts, tiles = cut.sums
    found = pivots.new_empty(cut.images, parts, 2, cut.channels)
    _gradient_parts[cut.grid(parts)](
        gradient, x, pivots, means, found, cut.pixels, cut.channels, parts, tiles, cut.across, cut.held, cut.columns,
    )  # fmt: skip
    plain, products = found.sum(1).unbind(1)
    return plain, products


def source_gradient(
    gradient: Tensor, x: Tensor, pivots: Tensor, means: Tensor, plains: Tensor, slopes: Tensor, deviations: Tensor,
    gamma: Tensor,
) -> Tensor:  # fmt: skip
    """``(gamma G - plain - (x - pivot - mean) slope) * deviation`` in the type of ``x``."""
    cut, made = _Cut.of(x), torch.empty_like(x)
    _source_gradient[cut.grid(cut.down)](
        gradient, x, made, pivots, means, plains, slopes, deviations, gamma, cut.pixels, cut.channels, cut.down,
        cut.across, cut.held, cut.columns,
    )  # fmt: skip
    return made
