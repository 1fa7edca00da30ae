"""The passes of `ops.normalization.batch_normalization` in Triton: over pixels as rows, each image read once a pass.

Sums over pixels are made in two launches: programs sum pixels a fixed distance apart into rows of their own, and one
program a few channels adds these rows in their order. Repeats are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops.geometry import pitch_of
from openmps.ops.triton.blocks import cdiv, next_power_of_2
from openmps.ops.triton.normalization import batch_normalization_kernels as kernels

triton: Any = import_module("triton")


class _Cut(NamedTuple):
    """How a kernel cuts its images: numbers of each that a program holds at a time, channels of those, programs.

    Of a program so many warps; so many tiles of a sum are under way at once, in so many registers a thread at most.
    """

    numbers: int
    channels: int
    programs: int
    warps: int = 8
    stages: int = 1
    registers: int = 0


_CUTS = {
    "moments": _Cut(8192, 64, 264),
    "normalize": _Cut(8192, 128, 2**30),
    "normalize with masks": _Cut(4096, 128, 2112),
    "parameters": _Cut(4096, 64, 264, stages=3),
    "masked": _Cut(4096, 128, 528),
    "data": _Cut(8192, 128, 528),
    "pooled": _Cut(2048, 64, 528),
    "normalize, GELU": _Cut(2048, 64, 1056, 4, stages=2),
    "parameters, GELU": _Cut(2048, 64, 264, 4, stages=3),
    "data, GELU": _Cut(2048, 64, 528, 4, stages=3),
}
"""What was fastest on an H200, of float16 images; two or four programs of a sum for each multiprocessor."""
_ENDS, _FEW = 8192, 64
"""Numbers that a program which adds the rows of others holds at a time; rows, where there are no more.

Two sizes, not one for each power of two: each is a kernel to compile.
"""


class Rows(NamedTuple):
    """What a normalization knows of each channel, float32; without a correction it is 0."""

    mean: Tensor
    correction: Tensor | None
    variance: Tensor
    gamma: Tensor | None = None
    beta: Tensor | None = None

    def filled(self) -> tuple[Tensor, ...]:
        """All five; what is not there is not read."""
        return tuple([self.mean if row is None else row for row in self])


class Added(NamedTuple):
    """An image that is added to a normalization, and what normalizes it first, if anything does."""

    image: Tensor
    rows: Rows | None = None
    epsilon: float = 0.0
    rounds: bool = False
    """Its normalization, to float16."""


class Activation(NamedTuple):
    """A neuron behind a normalization, and what is rounded to float16 on the way."""

    name: str = "NONE"
    a: float = 0.0
    b: float = 0.0
    rounds: bool = False
    """The normalization's result, before anything is added."""
    rounds_sum: bool = False
    """The sum with another image; of gradients what the neuron let pass."""

    @property
    def cut(self) -> str:
        """What kernels with the neuron are called among the cuts, if its arithmetic holds them up."""
        return ", GELU" if self.name == "GELU" else ""


_PLAIN = Activation()


def takes(images: Sequence[Tensor], rows: Sequence[Tensor | None]) -> bool:
    """Whether the kernels take these images and rows."""
    first = images[0]
    return (
        first.numel() > 0
        and first.shape[0] * first.shape[2] * first.shape[3] < 2**30
        and all(each.dtype in (torch.float16, torch.float32) and pitch_of(each) is not None for each in images)
        and all(each.shape == first.shape and each.device == first.device for each in images)
        and all(
            row is None or (row.dtype == torch.float32 and row.is_contiguous() and row.device == first.device)
            for row in rows
        )
    )


class Grid(NamedTuple):
    """How images are cut into tiles."""

    rows: int
    channels: int
    held: int
    columns: int

    programs: int
    warps: int
    stages: int = 1
    registers: int = 0

    @classmethod
    def of(cls, image: Tensor, kernel: str, least: int = 1) -> Grid:
        """That of a kernel for an image; tiles have so many channels at least."""
        images, channels, height, width = image.shape
        cut = _CUTS[kernel]
        columns = min(cut.channels, max(least, next_power_of_2(channels)))
        return cls(images * height * width, channels, cut.numbers // columns, columns, *cut[2:])

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.warps, **limit}

    @property
    def across(self) -> int:
        """Tiles side by side."""
        return cdiv(self.channels, self.columns)

    @property
    def parts(self) -> int:
        """Programs over the same channels: no more than there are tiles."""
        return min(cdiv(self.rows, self.held), max(1, self.programs // self.across))

    @property
    def all(self) -> tuple[int]:
        """All programs."""
        return (self.parts * self.across,)

    @property
    def ends(self) -> tuple[tuple[int], int, int]:
        """Programs that add the parts of the others, parts that each holds at a time, and channels."""
        columns = min(16, self.columns)
        held = _ENDS // columns if self.parts > _FEW else _FEW
        return (cdiv(self.channels, columns),), held, columns

    def rows_for(self, image: Tensor, count: int) -> Tensor:
        """Memory for so many rows of numbers, float32, one a channel."""
        return torch.empty((count, self.channels), dtype=torch.float32, device=image.device)


def like(image: Tensor, dtype: torch.dtype) -> Tensor:
    """New memory for an image, channels side by side."""
    images, channels, height, width = image.shape
    made = torch.empty((images, height, width, channels), dtype=dtype, device=image.device)
    return made.permute(0, 3, 1, 2)


def _floats(*numbers: float) -> tuple[float, ...]:
    return tuple(map(float, numbers))


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, correction and variance of each channel."""
    grid = Grid.of(x, "moments")
    programs, held, columns = grid.ends
    parts = grid.rows_for(x, 3 * grid.parts)
    found = grid.rows_for(x, 1)[0], grid.rows_for(x, 1)[0], grid.rows_for(x, 1)[0]
    kernels.moments_parts[grid.all](
        x, parts, grid.rows, grid.channels, pitch_of(x), grid.held, grid.columns, grid.stages, **grid.options,
    )  # fmt: skip
    kernels.moments_end[programs](parts, *found, grid.parts, grid.rows, grid.channels, grid.held, held, columns)
    return found


def normalize(
    x: Tensor, rows: Rows, epsilon: float, dtype: torch.dtype, how: Activation = _PLAIN, other: Added | None = None,
    *, with_masks: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The normalization of ``x``, with ``other`` added and a neuron behind, in ``dtype``.

    ``with_masks`` asks for a bit for each number, eight channels a byte: whether the neuron lets its gradient pass.
    """
    kernel, least = ("normalize with masks", 8) if with_masks else ("normalize", 1)
    grid, made = Grid.of(x, kernel + how.cut, least), like(x, dtype)
    added, masks = Added(x) if other is None else other, None
    known = rows if added.rows is None else added.rows
    if with_masks:
        masks = torch.empty((grid.rows, cdiv(grid.channels, 8)), dtype=torch.uint8, device=x.device)
    kernels.normalized[grid.all](
        x, added.image, made, made if masks is None else masks, rows.filled(), known.filled(), grid.rows,
        grid.channels, pitch_of(x), pitch_of(added.image), *_floats(epsilon, added.epsilon, how.a, how.b),
        rows.correction is not None, other is not None, added.rows is not None, known.correction is not None,
        with_masks, how.name, how.a == 0.0, how.rounds, added.rounds, how.rounds_sum, grid.held, grid.columns,
        grid.stages, **grid.options,
    )  # fmt: skip
    return made, masks


def parameter_gradients(
    gradient: Tensor, x: Tensor, rows: Rows, epsilon: float, how: Activation = _PLAIN, before: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """The gradients of gamma and beta, added to those ``before``; ``gradient`` is that of what a neuron gave."""
    grid = Grid.of(x, "parameters" + how.cut)
    parts = grid.rows_for(x, 2 * grid.parts)
    kernels.gradient_parts[grid.all](
        gradient, x, parts, rows.filled(), grid.rows, grid.channels, pitch_of(gradient), pitch_of(x),
        *_floats(epsilon, how.a, how.b), rows.correction is not None, how.name, how.a == 0.0, how.rounds,
        how.rounds_sum, grid.held, grid.columns, grid.stages, **grid.options,
    )  # fmt: skip
    return added_up(grid, parts, rows, epsilon, before)


def masked_gradients(
    gradient: Tensor, second: Tensor | None, masks: Tensor, x: Tensor, rows: Rows, epsilon: float, slope: float,
    dtype: torch.dtype, other: Added | None = None, *, rounds_sum: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What a neuron lets pass of a gradient, to which a second one is added, in ``dtype``; and gamma's and beta's.

    A gradient of one pixel an image is spread over all of them. ``other`` is an image that was normalized and added:
    its gradients of gamma and beta follow.
    """
    grid, made = Grid.of(x, "masked", 8), like(x, dtype)
    count = 2 if other is None else 3
    parts = grid.rows_for(x, count * grid.parts)
    added, image = gradient if second is None else second, x if other is None else other.image
    known = rows if other is None or other.rows is None else other.rows
    kernels.masked_parts[grid.all](
        gradient, added, x, image, masks, made, parts, rows.filled(), known.filled(), grid.rows, grid.channels,
        x.shape[2] * x.shape[3], pitch_of(gradient), pitch_of(added), pitch_of(x), pitch_of(image), float(slope),
        rows.correction is not None, known.correction is not None, second is not None, other is not None,
        gradient.shape != x.shape, slope == 0.0, rounds_sum, grid.held, grid.columns, grid.stages, **grid.options,
    )  # fmt: skip
    found = added_up(grid, parts, rows, epsilon, count=count)
    if other is not None:
        found += added_up(grid, parts, known, other.epsilon, count=count, products=2)
    return made, *found


def added_up(
    grid: Grid, parts: Tensor, rows: Rows, epsilon: float, before: Sequence[Tensor] = (), *, count: int = 2,
    products: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gamma's and beta's gradients from the sums of all programs, added to those ``before``.

    Of the ``count`` rows of each program one, ``products``, is for gamma; the second one is for beta.
    """
    programs, held, columns = grid.ends
    found = grid.rows_for(parts, 1)[0], grid.rows_for(parts, 1)[0]
    kernels.gradient_end[programs](
        parts, rows.variance, tuple(before) or found, *found, grid.parts, grid.channels, float(epsilon), count,
        products, bool(before), held, columns,
    )  # fmt: skip
    return found


def data_gradient(
    gradient: Tensor, x: Tensor, rows: Rows, epsilon: float, sums: Sequence[Tensor], pixels: float,
    dtype: torch.dtype, how: Activation = _PLAIN,
) -> Tensor:  # fmt: skip
    """The gradient of ``x`` in ``dtype``; ``sums`` are none where mean and variance are constants."""
    grid, made = Grid.of(x, "data" + how.cut), like(x, dtype)
    kernels.data_gradient[grid.all](
        gradient, x, made, rows.filled(), tuple(sums) or (x, x), grid.rows, grid.channels, pitch_of(gradient),
        pitch_of(x), *_floats(pixels, epsilon, how.a, how.b), rows.correction is not None, bool(sums), how.name,
        how.a == 0.0, how.rounds, how.rounds_sum, grid.held, grid.columns, grid.stages, **grid.options,
    )  # fmt: skip
    return made


def data_gradients(
    gradient: Tensor, images: tuple[Tensor, Tensor], rows: tuple[Rows, Rows], epsilons: tuple[float, float],
    sums: tuple[Sequence[Tensor], Sequence[Tensor]], pixels: tuple[float, float],
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of two images that were normalized and added, in ``dtypes``."""
    x, other = images
    grid, made, others = Grid.of(x, "data"), like(x, dtypes[0]), like(other, dtypes[1])
    kernels.data_gradients[grid.all](
        gradient, x, other, made, others, rows[0].filled(), rows[1].filled(), tuple(sums[0]), tuple(sums[1]),
        grid.rows, grid.channels, pitch_of(gradient), pitch_of(x), pitch_of(other), *_floats(*pixels, *epsilons),
        rows[0].correction is not None, rows[1].correction is not None, grid.held, grid.columns, num_warps=grid.warps,
    )  # fmt: skip
    return made, others
