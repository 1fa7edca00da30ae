"""Shape, type and spacing of vectors and matrices in buffers (MPSMatrix.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch

from openmps.checks import NamedAttributes, Shown, as_index, is_whole, one_of_two, read_only, whole
from openmps.convention import current
from openmps.errors import MPSArgumentError
from openmps.selectors import Factory, takes
from openmps.types import DATA_TYPE_DTYPES, MPSDataType, MPSSizeofMPSDataType

TORCH_TYPES: dict[MPSDataType, torch.dtype] = {
    kind: getattr(torch, dtype.name) for kind, dtype in DATA_TYPE_DTYPES.items()
}
"""The types that an element can have, and what it is in a tensor; bytes of UNORM8 are what is stored."""
_FLOAT_BYTES, _INTEGER_ELEMENTS = 16, 4
"""What rows of floats, and what rows of other elements, are rounded up to."""


class _Spacing:
    """Bytes from one row, or vector, to the next, tight unless given. Of the class: what the framework advises."""

    def __init__(self, field: str, tight: Callable[[Any], int], advise: Callable[..., int], doc: str) -> None:
        self._field = field
        self._tight = tight
        self._advise = advise
        self.__doc__ = doc

    @overload
    def __get__(self, descriptor: None, owner: type) -> Callable[..., int]: ...
    @overload
    def __get__(self, descriptor: object, owner: type) -> int: ...
    def __get__(self, descriptor: object, owner: type) -> int | Callable[..., int]:
        if descriptor is None:
            return self._advise
        given: int | None = getattr(descriptor, self._field)
        return self._tight(descriptor) if given is None else given

    def __set__(self, descriptor: Any, value: int) -> None:
        if self._field == "_vector_bytes":
            raise read_only(descriptor, "vector_bytes")
        setattr(descriptor, self._field, _plain_number(value))
        descriptor.validate()


def _advised_vector_bytes(length: int, data_type: MPSDataType) -> int:
    """The vector's bytes, rounded up as Macs do; see `MPSMatrixDescriptor`."""
    return _rounded("MPSVectorDescriptor", "length", length, data_type)


def _advised_row_bytes(columns: int, data_type: MPSDataType) -> int:
    """The row's bytes, rounded up as Macs do; see `MPSMatrixDescriptor`."""
    return _rounded("MPSMatrixDescriptor", "columns", columns, data_type)


def element_type(who: str, argument: str, value: Any) -> MPSDataType:
    """A type that an element can have."""
    element_bytes(who, value, argument)
    return MPSDataType(value)


def element_bytes(who: str, data_type: MPSDataType, argument: str = "data_type") -> int:
    """Bytes of an element; raises unless it is of a type that can be stored."""
    if not isinstance(data_type, int) or data_type not in TORCH_TYPES:
        rule = f"must be one of {', '.join(kind.name for kind in TORCH_TYPES)}"
        raise MPSArgumentError(who, argument, rule, getattr(data_type, "name", repr(data_type)))
    return MPSSizeofMPSDataType(data_type)


def _is_plain(value: object) -> bool:
    """Whether an argument is a number, and no type of data."""
    return is_whole(value) and not isinstance(value, MPSDataType)


class MPSVectorDescriptor(NamedAttributes):
    """Length, type and spacing of vectors in a buffer (MPSMatrix.h, macOS 10.13).

    ``vectors`` vectors of ``length`` elements, ``vector_bytes`` bytes from one to the next, tight unless given.
    ``MPSVectorDescriptor.vector_bytes(length, data_type)`` is the spacing that the framework advises.

    Raises:
        MPSArgumentError: A number is not positive, the type cannot be stored, or the vectors overlap.
    """

    _attribute_checks = {"data_type": element_type}  # noqa: RUF012
    length: int
    """Elements of a vector."""
    data_type: MPSDataType
    """Type of an element."""
    vector_bytes = _Spacing(
        "_vector_bytes",
        lambda of: of.length * MPSSizeofMPSDataType(of.data_type),
        _advised_vector_bytes,
        "Bytes from one vector to the next.",
    )

    @overload
    def __init__(self, length: int, vectors: int, vector_bytes: int, data_type: MPSDataType, /) -> None: ...
    @overload
    def __init__(
        self,
        length: int,
        data_type: MPSDataType = MPSDataType.FLOAT32,
        vectors: int = 1,
        vector_bytes: int | None = None,
    ) -> None: ...
    @takes({"length": is_whole, "vectors": _is_plain, "vector_bytes": _is_plain, "data_type": MPSDataType})
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        length: int,
        data_type: MPSDataType = MPSDataType.FLOAT32,
        vectors: int = 1,
        vector_bytes: int | None = None,
    ) -> None:
        self.length = _plain_number(length)
        self.data_type = data_type
        self._vectors = _plain_number(vectors)
        self._vector_bytes = _plain_number(vector_bytes)
        self.validate()

    vectors = Shown[int]("_vectors", "Number of vectors.")
    vector_descriptor = Factory(
        "vectorDescriptorWithLength:dataType:", "vectorDescriptorWithLength:vectors:vectorBytes:dataType:"
    )

    def copy(self) -> MPSVectorDescriptor:
        """A descriptor of its own with the same values."""
        made = object.__new__(MPSVectorDescriptor)
        vars(made).update(vars(self))
        made.validate()
        return made

    __copy__ = copy

    def validate(self) -> None:
        """Raise `MPSArgumentError` unless the values, which may have been changed, fit together."""
        name = "MPSVectorDescriptor"
        whole(name, "vectors", self._vectors)
        size = element_bytes(name, self.data_type)
        tight = whole(name, "length", self.length) * size
        _spaced(name, "vector_bytes", self.vector_bytes, tight, size)

    def shape(self) -> tuple[int, int]:
        """``(vectors, length)``."""
        return self._vectors, self.length

    def strides(self) -> tuple[int, int]:
        """Bytes from one vector, and from one element, to the next."""
        return self.vector_bytes, MPSSizeofMPSDataType(self.data_type)

    def __repr__(self) -> str:
        return (
            f"MPSVectorDescriptor(length={self.length}, {self.data_type.name}, vectors={self._vectors}, "
            f"vector_bytes={self.vector_bytes})"
        )


class MPSMatrixDescriptor(NamedAttributes):
    """Shape, type and spacing of matrices in a buffer (MPSMatrix.h, macOS 10.13).

    Element (i, j) of matrix m lies ``m matrix_bytes + i row_bytes + j element_bytes`` bytes behind the start. Both
    spacings are tight unless given; ``dimensions`` is an older name of ``rows``.
    ``MPSMatrixDescriptor.row_bytes(columns, data_type)`` is the spacing that the framework advises: that of floats is
    rounded up to 16 bytes, that of others to 4 elements, that of one column is one element, and that of none 0.
    ``matrix_bytes`` stays what it was when the descriptor was made, whatever is set later.

    Raises:
        MPSArgumentError: A number is not positive, the type cannot be stored, or rows or matrices overlap.
    """

    _attribute_checks = {"data_type": element_type}  # noqa: RUF012
    rows: int
    """Rows of a matrix."""
    columns: int
    """Columns of a matrix."""
    data_type: MPSDataType
    """Type of an element."""
    row_bytes = _Spacing(
        "_row_bytes",
        lambda of: of.columns * MPSSizeofMPSDataType(of.data_type),
        _advised_row_bytes,
        "Bytes from one row to the next; may be set.",
    )

    @overload
    def __init__(
        self, rows: int, columns: int, matrices: int, row_bytes: int, matrix_bytes: int, data_type: MPSDataType, /
    ) -> None: ...
    @overload
    def __init__(
        self,
        rows: int | None = None,
        columns: int = 1,
        row_bytes: int | None = None,
        data_type: MPSDataType = MPSDataType.FLOAT32,
        matrices: int = 1,
        matrix_bytes: int | None = None,
        *,
        dimensions: int | None = None,
    ) -> None: ...
    @takes(
        {
            "rows": is_whole,
            "columns": is_whole,
            "matrices": _is_plain,
            "row_bytes": _is_plain,
            "matrix_bytes": _is_plain,
            "data_type": MPSDataType,
        }
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        rows: int | None = None,
        columns: int = 1,
        row_bytes: int | None = None,
        data_type: MPSDataType = MPSDataType.FLOAT32,
        matrices: int = 1,
        matrix_bytes: int | None = None,
        *,
        dimensions: int | None = None,
    ) -> None:
        one_of_two("MPSMatrixDescriptor", "rows", rows, "dimensions, its older name,", dimensions)
        self.rows = whole("MPSMatrixDescriptor", "rows", dimensions if rows is None else rows)
        self.columns = _plain_number(columns)
        self.data_type = data_type
        self._matrices = _plain_number(matrices)
        self._row_bytes = _plain_number(row_bytes)
        self._matrix_bytes = _plain_number(matrix_bytes)
        self._check_numbers()
        self._check_matrix_bytes()
        self._matrix_bytes = self.matrix_bytes

    matrices = Shown[int]("_matrices", "Number of matrices.")
    matrix_descriptor = Factory(
        "matrixDescriptorWithRows:columns:rowBytes:dataType:",
        "matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:",
    )

    @property
    def matrix_bytes(self) -> int:
        """Bytes from one matrix to the next, as the descriptor was made."""
        return self.rows * self.row_bytes if self._matrix_bytes is None else self._matrix_bytes

    def copy(self) -> MPSMatrixDescriptor:
        """A descriptor of its own with the same values."""
        twin = MPSMatrixDescriptor.__new__(MPSMatrixDescriptor)
        twin.__dict__.update(self.__dict__)
        twin._check_numbers()
        return twin

    __copy__ = copy

    def validate(self) -> None:
        """Raise `MPSArgumentError` unless the values, which may have been changed, fit together."""
        name = "MPSMatrixDescriptor"
        size = element_bytes(name, self.data_type)
        self._check_numbers()
        _spaced(name, "row_bytes", self.row_bytes, self.columns * size, size)
        if self._matrices > 1:  # else nothing lies behind it: rows and row_bytes may have grown since it was made
            self._check_matrix_bytes()

    def _check_numbers(self) -> None:
        """What a descriptor is made of; rows that overlap by the convention ``short_row_bytes`` alone."""
        name = "MPSMatrixDescriptor"
        for argument, value in (("rows", self.rows), ("columns", self.columns), ("matrices", self._matrices)):
            whole(name, argument, value)
        size = element_bytes(name, self.data_type)
        tight = self.columns * size
        if whole(name, "row_bytes", self.row_bytes) < tight and current()["short_row_bytes"] == "taken":
            tight = size
        _spaced(name, "row_bytes", self.row_bytes, tight, size)

    def _check_matrix_bytes(self) -> None:
        least = self.rows * self.row_bytes
        _spaced("MPSMatrixDescriptor", "matrix_bytes", self.matrix_bytes, least, self.row_bytes)

    def shape(self) -> tuple[int, int, int]:
        """``(matrices, rows, columns)``."""
        return self._matrices, self.rows, self.columns

    def strides(self) -> tuple[int, int, int]:
        """Bytes from one matrix, one row and one element to the next."""
        return self.matrix_bytes, self.row_bytes, MPSSizeofMPSDataType(self.data_type)

    def __repr__(self) -> str:
        return (
            f"MPSMatrixDescriptor(rows={self.rows}, columns={self.columns}, row_bytes={self.row_bytes}, "
            f"{self.data_type.name}, matrices={self._matrices}, matrix_bytes={self.matrix_bytes})"
        )


def bytes_needed(descriptor: MPSVectorDescriptor | MPSMatrixDescriptor) -> int:
    """Bytes from the first element to the end of the last one."""
    spans = zip(descriptor.shape(), descriptor.strides(), strict=True)
    return sum((size - 1) * stride for size, stride in spans) + MPSSizeofMPSDataType(descriptor.data_type)


def _plain_number(value: Any) -> Any:
    """One of NumPy's integers as Python's; all else as it is, to be judged by `validate`."""
    found = as_index(value)
    return value if found is None else found


def _spaced(who: str, argument: str, value: object, least: int, unit: int) -> None:
    if not is_whole(value, least) or value % unit:
        raise MPSArgumentError(who, argument, f"must be a multiple of {unit}, at least {least}", repr(value))


def _rounded(who: str, argument: str, elements: int, data_type: MPSDataType) -> int:
    size = element_bytes(who, data_type)
    count = whole(who, argument, elements, 0)
    unit = _FLOAT_BYTES // size if data_type & MPSDataType.FLOAT_BIT else _INTEGER_ELEMENTS
    return size * (count if count <= 1 else -(-count // unit) * unit)
