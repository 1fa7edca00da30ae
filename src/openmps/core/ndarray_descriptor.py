"""Lengths, type, slices and order of the dimensions of n-dimensional arrays (MPSNDArray.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self, overload

from openmps.checks import Checked, NamedAttributes, is_whole, listed, of_kind, one_of_two
from openmps.core.numbers import integer
from openmps.core.vector_descriptor import element_type
from openmps.errors import MPSArgumentError, lengths_text
from openmps.selectors import Factory, takes
from openmps.types import MPSDataType, MPSDimensionSlice

MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 2**31 - 1
_IN_ORDER = tuple(range(MOST_DIMENSIONS))
_NAME = "MPSNDArrayDescriptor"


class MPSNDArrayDescriptor(NamedAttributes):
    """Lengths and type of an n-dimensional array, and what a view shows of one (MPSNDArray.h, macOS 10.15).

    ``MPSNDArrayDescriptor(data_type, shape)`` has the slowest dimension first, as NumPy has; ``MPSNDArrayDescriptor(
    data_type, dimension_count, dimension_sizes)``, and ``dimension_sizes=…`` alone, the fastest. Everywhere else
    dimension 0 is the fastest. Without dimensions it describes a single number.

    Slices and transpositions are for views (`MPSNDArray.array_view`): slices are taken first, whatever was called
    first, so they name dimensions before the transpositions.

    Raises:
        MPSArgumentError: There are more than 16 dimensions or 2^31 - 1 elements, a length is below 1, or the type
            cannot be stored.

    >>> import openmps as mps
    >>> described = mps.MPSNDArrayDescriptor(mps.MPSDataType.FLOAT32, [2, 3])
    >>> described.transpose_dimension(0, 1)
    >>> [described.length_of_dimension(index) for index in range(3)]
    [2, 3, 1]
    """

    descriptor = Factory(
        "descriptorWithDataType:dimensionCount:dimensionSizes:",
        "descriptorWithDataType:shape:",
        "descriptorWithDataType:dimensionSizes:",
    )
    data_type = Checked[MPSDataType](MPSDataType.FLOAT32, element_type, "Type of an element.")
    _lengths: tuple[int, ...]
    """Before transpositions, dimension 0 first."""
    _slices: dict[int, MPSDimensionSlice]
    _order: tuple[int, ...]

    @overload
    def __init__(self, data_type: MPSDataType, shape: int, dimension_sizes: Sequence[int]) -> None: ...
    @overload
    def __init__(
        self,
        data_type: MPSDataType,
        shape: Sequence[int] | None = None,
        dimension_sizes: Sequence[int] | None = None,
        *,
        dimension_count: int | None = None,
    ) -> None: ...
    @takes({"data_type": object, "dimension_count": is_whole, "dimension_sizes": object})
    def __init__(
        self,
        data_type: MPSDataType,
        shape: Any = None,
        dimension_sizes: Sequence[int] | None = None,
        *,
        dimension_count: int | None = None,
    ) -> None:
        self.data_type = data_type
        self._set(shape, dimension_sizes, dimension_count)

    def _set(self, shape: Any, sizes: Any, count: Any) -> None:
        one_of_two(_NAME, "shape", shape, "dimension_sizes", sizes)
        if sizes is None:
            lengths = _checked_lengths("shape", listed(_NAME, "shape", shape, "int"))[::-1]
        else:
            lengths = _checked_lengths("dimension_sizes", listed(_NAME, "dimension_sizes", sizes, "int"))
        if count is not None and integer(_NAME, "dimension_count", count, 0) != len(lengths):
            raise MPSArgumentError(_NAME, "dimension_sizes", f"must hold {count} lengths", len(lengths))
        self._lengths, self._slices, self._order = lengths, {}, _IN_ORDER

    # --- dimensions ---------------------------------------------------------------------------------------------------

    @property
    def number_of_dimensions(self) -> int:
        """Dimensions, at most 16; more of them have length 1, and those of another length cannot be cut off."""
        return len(self._lengths)

    @number_of_dimensions.setter
    def number_of_dimensions(self, value: int) -> None:
        count = integer(_NAME, "number_of_dimensions", value, 0, MOST_DIMENSIONS)
        cut = range(count, len(self._lengths))
        for index in cut:
            if self._lengths[index] != 1 or self._order[index] != index:
                rule = f"must be at least {index + 1}: dimension {index} has length {self._lengths[index]}"
                rule += "" if self._order[index] == index else " and is transposed"
                raise MPSArgumentError(_NAME, "number_of_dimensions", rule, count, "Use reshape")
        self._slices = {index: part for index, part in self._slices.items() if index < count}
        self._lengths = (*self._lengths[:count], *[1] * (count - len(self._lengths)))

    def length_of_dimension(self, dimension_index: int) -> int:
        """Elements of a dimension as it is after the transpositions; 1 where there is none. Slices do not count."""
        index = integer(_NAME, "dimension_index", dimension_index, 0)
        return self._lengths[self._order[index]] if index < len(self._lengths) else 1

    def dimension_order(self) -> tuple[int, ...]:
        """Which dimension each of 16 is after the transpositions."""
        return self._order

    def transpose_dimension(self, dimension_index: int, with_dimension: int) -> None:
        """Exchange two dimensions."""
        one = self._dimension("dimension_index", dimension_index)
        other = self._dimension("with_dimension", with_dimension)
        order = [*self._order]
        order[one], order[other] = order[other], order[one]
        self._order = tuple(order)

    def slice_range(self, dimension: int) -> MPSDimensionSlice:
        """What is taken of a dimension as it is before transpositions; all of it by default, (0, 1) of none."""
        index = integer(_NAME, "dimension", dimension, 0)
        if index >= len(self._lengths):
            return MPSDimensionSlice(0, 1)
        return self._slices.get(index, MPSDimensionSlice(0, self._lengths[index]))

    def slice_dimension(self, dimension_index: int, with_subrange: MPSDimensionSlice) -> None:
        """Take some elements of a dimension as it is before transpositions."""
        index = self._dimension("dimension_index", dimension_index)
        part = of_kind(_NAME, "with_subrange", with_subrange, MPSDimensionSlice)
        length = self._lengths[index]
        if part.length < 1 or part.start + part.length > length:
            rule = f"must hold at least one of the {length} elements of dimension {index}, and no others"
            raise MPSArgumentError(_NAME, "with_subrange", rule, f"{part.length} from {part.start} on")
        self._slices = {**self._slices, index: part}

    def reshape(
        self,
        shape: Sequence[int] | None = None,
        dimension_sizes: Sequence[int] | None = None,
        *,
        dimension_count: int | None = None,
    ) -> None:
        """Take other lengths, the slowest first in ``shape``, the fastest first in ``dimension_sizes``.

        Without slices and transpositions, which named other dimensions.
        """
        self._set(shape, dimension_sizes, dimension_count)

    def _dimension(self, argument: str, value: int) -> int:
        count = len(self._lengths)
        rule = f"must be an integer below number_of_dimensions, {count}"
        return integer(_NAME, argument, value, 0, count - 1, rule=rule)

    def copy(self) -> Self:
        """A descriptor of its own with the same values."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    __copy__ = copy

    # --- for arrays ---------------------------------------------------------------------------------------------------

    def lengths(self) -> tuple[int, ...]:
        """Before slices and transpositions, dimension 0 first; for arrays."""
        return self._lengths

    def slices(self) -> tuple[MPSDimensionSlice, ...]:
        """What is taken of each dimension; for arrays."""
        return tuple([self.slice_range(index) for index in range(len(self._lengths))])

    def changes_dimensions(self) -> bool:
        """Whether there are slices or transpositions; for arrays."""
        return self._order != _IN_ORDER or any(
            part.length != length for part, length in zip(self.slices(), self._lengths, strict=True)
        )

    def __repr__(self) -> str:
        lengths = [self.length_of_dimension(index) for index in range(len(self._lengths))]
        taken = "".join(
            f", {part.length} of dimension {index} from {part.start} on" for index, part in self._slices.items()
        )
        order = "" if self._order == _IN_ORDER else f", order {self._order[: len(lengths)]}"
        shape = lengths_text(lengths[::-1]) if lengths else "a number"
        return f"{_NAME}({shape}, {self.data_type.name}{taken}{order})"


def _checked_lengths(argument: str, given: Sequence[Any]) -> tuple[int, ...]:
    if len(given) > MOST_DIMENSIONS:
        raise MPSArgumentError(_NAME, argument, f"must hold at most {MOST_DIMENSIONS} lengths", len(given))
    lengths = tuple([integer(_NAME, f"{argument}[{index}]", each, 1) for index, each in enumerate(given)])
    if prod(lengths) > _MOST_ELEMENTS:
        raise MPSArgumentError(_NAME, argument, "must say less than 2^31 elements", prod(lengths))
    return lengths
