"""Reductions of pictures along rows and columns (MPSImageReduce.h, macOS 10.13.4)."""

from __future__ import annotations

from typing import ClassVar

from openmps.core.kernel.lowering_context import LoweringContext
from openmps.kernels.image_filters.measure import MeasuringFilter
from openmps.ops.op import Value
from openmps.ops.reduce.reduce import COLUMNS, ROWS, Reduce, Reduction


class MPSImageReduceUnary(MeasuringFilter):
    """The base of reductions of pictures (MPSImageReduce.h, macOS 10.13.4).

    A result number stands for the numbers of a row, or of a column, of the part of the source that `clip_rect_source`
    selects, channel by channel. Rows become one column, columns one row, written from ``clip_rect.origin`` on. NaN
    gives NaN.

    Raises:
        MPSArgumentError: In an encode, the clip rectangle has not a pixel of the destination for each result.
    """

    _is_abstract = True
    _reduction: ClassVar[Reduction | None] = None
    _axis: ClassVar[int] = COLUMNS

    def __init_subclass__(cls, reduction: Reduction | None = None, axis: int | None = None) -> None:
        super().__init_subclass__()
        cls._reduction, cls._axis = reduction or cls._reduction, axis or cls._axis
        cls._filters_bytes = cls._reduction in (Reduction.MIN, Reduction.MAX)

    def _measured(self, columns: int, rows: int) -> tuple[int, int]:
        return (1, rows) if self._axis == COLUMNS else (columns, 1)

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        if self._reduction is None:
            return super()._lower(at, *images)
        return Reduce(self._reduction, self._axis)(self._pixels(at, images))


class MPSImageReduceRowMin(MPSImageReduceUnary, reduction=Reduction.MIN, axis=COLUMNS):
    """The smallest number of each row and channel: a result of 1 x H (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceRowMax(MPSImageReduceUnary, reduction=Reduction.MAX, axis=COLUMNS):
    """The largest number of each row and channel: a result of 1 x H (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceRowMean(MPSImageReduceUnary, reduction=Reduction.MEAN, axis=COLUMNS):
    """The mean of each row and channel: a result of 1 x H (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceRowSum(MPSImageReduceUnary, reduction=Reduction.SUM, axis=COLUMNS):
    """The sum of each row and channel: a result of 1 x H (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceColumnMin(MPSImageReduceUnary, reduction=Reduction.MIN, axis=ROWS):
    """The smallest number of each column and channel: a result of W x 1 (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceColumnMax(MPSImageReduceUnary, reduction=Reduction.MAX, axis=ROWS):
    """The largest number of each column and channel: a result of W x 1 (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceColumnMean(MPSImageReduceUnary, reduction=Reduction.MEAN, axis=ROWS):
    """The mean of each column and channel: a result of W x 1 (MPSImageReduce.h, macOS 10.13.4)."""


class MPSImageReduceColumnSum(MPSImageReduceUnary, reduction=Reduction.SUM, axis=ROWS):
    """The sum of each column and channel: a result of W x 1 (MPSImageReduce.h, macOS 10.13.4)."""
