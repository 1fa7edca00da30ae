"""Vectors, matrices and sequences of them in buffers, as encodes take them (MPSMatrix.h, macOS 10.13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import torch

from openmps.checks import KnownAttributes, Shown, is_whole, listed, of_kind, store
from openmps.core.elements import ElementsShape
from openmps.core.lifetime import (
    TemporaryCounts,
    check_device,
    check_is_device,
    check_is_open,
)
from openmps.core.numbers import position
from openmps.core.stored_elements import BufferMemory, StoredElements, TemporaryElements
from openmps.core.vector_descriptor import TORCH_TYPES, MPSMatrixDescriptor, MPSVectorDescriptor, bytes_needed
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.array_protocols import Taken, taken_array, taken_tensor
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.runtime.binding import Numbers
from openmps.selectors import Factory, name_arguments, takes
from openmps.types import MPSDataType

_ORDERS: tuple[dict[str, type], ...] = (
    {"device": MTLDevice},
    {"device": MTLDevice, "descriptor": object},
    {"buffer": MTLBuffer, "offset": int, "descriptor": object},
)
"""The framework's orders of a constructor's arguments, besides ``(buffer, descriptor)``."""
_DATA_TYPES = {dtype: kind for kind, dtype in TORCH_TYPES.items() if not kind & MPSDataType.NORMALIZED_BIT}
_Take = Callable[..., Taken]
"""`taken_array` or `taken_tensor`."""
Descriptor = TypeVar("Descriptor", MPSVectorDescriptor, MPSMatrixDescriptor)
T = TypeVar("T")


class _Elements(StoredElements, Generic[Descriptor]):
    """Numbers in a buffer: in one that is given, or in a new one of zeros, allocated on first use."""

    _descriptor_class: type[Descriptor]
    _sizes: tuple[str, ...]
    """What a descriptor calls the lengths of the axes; one vector or matrix has no first axis."""

    @overload
    def __init__(self, buffer: MTLDevice, descriptor: Descriptor) -> None: ...
    @overload
    def __init__(self, buffer: MTLBuffer, descriptor: int, offset: Descriptor) -> None: ...
    @overload
    def __init__(
        self,
        buffer: MTLBuffer | None = None,
        descriptor: Descriptor | None = None,
        offset: int = 0,
        *,
        device: MTLDevice | None = None,
    ) -> None: ...
    @takes(*_ORDERS)
    def __init__(
        self,
        buffer: Any = None,
        descriptor: Any = None,
        offset: Any = 0,
        *,
        device: MTLDevice | None = None,
    ) -> None:
        name = type(self).__name__
        descriptor = self._descriptor = of_kind(name, "descriptor", descriptor, self._descriptor_class).copy()
        shape, unit = descriptor.shape(), descriptor.strides()[-1]
        self._elements = ElementsShape(shape, MPSDataType(descriptor.data_type))
        self._strides = tuple(stride // unit for stride in descriptor.strides())
        needed = bytes_needed(descriptor)
        if buffer is None:
            if device is None:
                raise MPSTypeError(name, "buffer", "or device must be given, with a descriptor", None)
            checked = check_is_device(name, "device", device)
            buffer = checked.new_buffer(length=checked.check_length(name, "descriptor", needed))
        elif not isinstance(buffer, MTLBuffer):
            remedy = "A device is given as device=…"
            raise MPSTypeError(name, "buffer", "must be an MTLBuffer", type(buffer).__name__, remedy)
        elif device is not None:
            check_device(name, "buffer", buffer.device, check_is_device(name, "device", device))
        if not is_whole(offset, 0) or offset % unit:
            rule = f"must be a multiple of {unit}, the bytes of an element"
            raise MPSArgumentError(name, "offset", rule, repr(offset))
        self._offset = offset
        if buffer.length - self._offset < needed:
            got = f"{buffer.length} bytes, offset {self._offset}"
            raise MPSArgumentError(name, "buffer", f"must hold {needed} bytes from the offset on", got)
        self._memory = BufferMemory(buffer)
        is_plain = self.data_type is MPSDataType.FLOAT32 and math.prod(shape) == shape[-1]
        self._numbers = Numbers(buffer, self._offset, shape[-1]) if is_plain else None

    @classmethod
    def _of(cls, take: _Take, device: MTLDevice, given: Any, copy: bool | None) -> Self:
        """Elements where ``take`` finds those of an array or a tensor, or in a copy."""
        place = check_is_device(cls.__name__, "device", device)
        most = len(cls._sizes)
        taken = take(cls.__name__, place.torch_device, given, copy, (most - 1, most), _DATA_TYPES)
        shape = taken.elements.shape
        sizes: dict[str, Any] = dict(zip(cls._sizes[most - len(shape) :], shape, strict=True))
        descriptor = cls._descriptor_class(data_type=_DATA_TYPES[taken.elements.dtype], **sizes)
        return cls(MTLBuffer.holding(place, taken), descriptor)

    def memory(self) -> torch.Tensor:
        """The same as `tensor`, whatever is still to be written; for work that runs in its queue's order."""
        view = self.whole().value()
        return view[0] if self._elements.sizes[0] == 1 else view


class MPSVector(_Elements[MPSVectorDescriptor]):
    """Vectors of numbers in a buffer (MPSMatrix.h, macOS 10.13).

    ``MPSVector(buffer=…, offset=0, descriptor=…)`` views a buffer; ``MPSVector(device=…, descriptor=…)`` makes zeros.
    `tensor` and `numpy` are ``[length]``, or ``[vectors, length]`` if there are several.

    Raises:
        MPSArgumentError: The buffer is too short, or the offset is no multiple of the element.
    """

    _descriptor_class = MPSVectorDescriptor
    _sizes = ("vectors", "length")

    @classmethod
    def from_numpy(cls, device: MTLDevice, array: Any, copy: bool | None = None) -> Self:
        """A vector of an array ``[length]``, or several of ``[vectors, length]``, in its memory where it can be shared.

        The array's type is the vectors' `data_type`. Memory of the CPU is shared with vectors of the CPU if the array
        is writable, without gaps and begins at a multiple of 16 bytes: then what is written to either shows in both,
        and encodes read what is there when they run. Else, and with ``copy=True``, it is copied; ``copy=False`` raises
        rather than copy. The vectors' text and ``data.origin`` say which it was. The array is not to be written while
        committed work reads or writes it.

        Raises:
            MPSArgumentError: The array has another number of axes, or one of size 0; or it cannot be shared and
                ``copy`` is False.
            MPSTypeError: It is no array of a type that an element can have, in this machine's byte order.
        """
        return cls._of(taken_array, device, array, copy)

    @classmethod
    def from_dlpack(cls, device: MTLDevice, tensor: Any, copy: bool | None = None) -> Self:
        """The same of a tensor of PyTorch or of any library with ``__dlpack__``, in the memory of the CPU or of a GPU.

        Memory of the vectors' own device is shared; that which its library calls read-only is copied.
        """
        return cls._of(taken_tensor, device, tensor, copy)

    length = Shown[int]("_descriptor.length", "Elements of a vector.")
    vectors = Shown[int]("_descriptor.vectors", "Number of vectors.")
    vector_bytes = Shown[int]("_descriptor.vector_bytes", "Bytes from one vector to the next.")


def numbers_of(vector: MPSVector) -> Numbers | None:
    """Where the numbers are, if they are one permanent vector of float32."""
    return vector._numbers  # pyright: ignore[reportPrivateUsage]


class MPSMatrix(_Elements[MPSMatrixDescriptor]):
    """Matrices of numbers in a buffer (MPSMatrix.h, macOS 10.13).

    ``MPSMatrix(buffer=…, offset=0, descriptor=…)`` views a buffer; ``MPSMatrix(device=…, descriptor=…)`` makes zeros.
    `tensor` and `numpy` are ``[rows, columns]``, or ``[matrices, rows, columns]`` if there are several.

    Raises:
        MPSArgumentError: The buffer is too short, or the offset is no multiple of the element.
    """

    _descriptor_class = MPSMatrixDescriptor
    _sizes = ("matrices", "rows", "columns")

    @classmethod
    def from_numpy(cls, device: MTLDevice, array: Any, copy: bool | None = None) -> Self:
        """A matrix of an array ``[rows, columns]``, or several of ``[matrices, rows, columns]``.

        As `MPSVector.from_numpy`, in the array's memory where it can be shared.
        """
        return cls._of(taken_array, device, array, copy)

    @classmethod
    def from_dlpack(cls, device: MTLDevice, tensor: Any, copy: bool | None = None) -> Self:
        """The same of a tensor of PyTorch or of any library with ``__dlpack__``; see `MPSVector.from_dlpack`."""
        return cls._of(taken_tensor, device, tensor, copy)

    rows = Shown[int]("_descriptor.rows", "Rows of a matrix.")
    columns = Shown[int]("_descriptor.columns", "Columns of a matrix.")
    matrices = Shown[int]("_descriptor.matrices", "Number of matrices.")
    row_bytes = Shown[int]("_descriptor.row_bytes", "Bytes from one row to the next.")
    matrix_bytes = Shown[int]("_descriptor.matrix_bytes", "Bytes from one matrix to the next.")


class _Temporary(TemporaryElements, _Elements[Descriptor]):
    """How temporary vectors and matrices are made."""

    def _make_on(self, command_buffer: CommandBuffer, descriptor: Descriptor) -> None:
        """The constructor: zeros in private memory of the command buffer."""
        who = type(self).__name__
        self._command_buffer = check_is_open(who, command_buffer)
        buffer = None
        if isinstance(descriptor, MPSVectorDescriptor | MPSMatrixDescriptor):
            descriptor.validate()
            needed = command_buffer.device.check_length(who, "descriptor", bytes_needed(descriptor))
            buffer = command_buffer.temporary_buffer(needed)
        super().__init__(buffer, descriptor)
        self._numbers = None
        self._counts = TemporaryCounts(command_buffer, self._memory, 1)


class MPSTemporaryVector(_Temporary[MPSVectorDescriptor], MPSVector):
    """Vectors that live on one command buffer (MPSMatrix.h, macOS 10.13); read counts as for MPSTemporaryImage."""

    temporary_vector = Factory("temporaryVectorWithCommandBuffer:descriptor:")

    def __init__(self, command_buffer: CommandBuffer, descriptor: MPSVectorDescriptor) -> None:
        self._make_on(command_buffer, descriptor)

    @staticmethod
    def prefetch_storage(command_buffer: CommandBuffer, descriptor_list: Sequence[MPSVectorDescriptor]) -> None:
        """A hint about vectors to come; checks the arguments and has no other effect."""
        who = "MPSTemporaryVector.prefetch_storage"
        _check_prefetch(who, command_buffer, "descriptor_list", descriptor_list, MPSVectorDescriptor)


class MPSTemporaryMatrix(_Temporary[MPSMatrixDescriptor], MPSMatrix):
    """Matrices that live on one command buffer (MPSMatrix.h, macOS 10.13); read counts as for MPSTemporaryImage."""

    temporary_matrix = Factory("temporaryMatrixWithCommandBuffer:matrixDescriptor:")

    def __init__(self, command_buffer: CommandBuffer, matrix_descriptor: MPSMatrixDescriptor) -> None:
        self._make_on(command_buffer, matrix_descriptor)

    @staticmethod
    def prefetch_storage(command_buffer: CommandBuffer, matrix_descriptor_list: Sequence[MPSMatrixDescriptor]) -> None:
        """A hint about matrices to come; checks the arguments and has no other effect."""
        who = "MPSTemporaryMatrix.prefetch_storage"
        _check_prefetch(who, command_buffer, "matrix_descriptor_list", matrix_descriptor_list, MPSMatrixDescriptor)


@name_arguments
class MatrixSequence(KnownAttributes, Sequence[MPSMatrix]):
    """The matrices of an `MPSMatrix` that has several, each as a matrix of its own. Our addition to the framework.

    Encodes of recurrent layers take one where they take a list of matrices, a matrix a step, and need not ask each of
    the matrices, which are made when they are asked for::

        x = mps.MatrixSequence(mps.MPSMatrix.from_numpy(device, array))  # [steps, rows, columns]

    A slice of step 1 is such a sequence, too, of the same memory.

    Raises:
        MPSTypeError: ``matrix`` is no ordinary `MPSMatrix`.
    """

    __slots__ = ("__weakref__", "_made", "_matrix", "_seen")

    _matrix: MPSMatrix
    _made: list[MPSMatrix | None]
    _seen: tuple[int, Any] | None

    def __init__(self, matrix: MPSMatrix) -> None:
        if not isinstance(matrix, MPSMatrix) or isinstance(matrix, MPSTemporaryMatrix):
            rule = "must be an MPSMatrix that is not temporary"
            raise MPSTypeError("MatrixSequence", "matrix", rule, type(matrix).__name__)
        store(self, "_matrix", matrix)
        store(self, "_made", [None] * matrix.matrices)
        store(self, "_seen", None)

    @property
    def matrix(self) -> MPSMatrix:
        """All of them, as it was given."""
        return self._matrix

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> MPSMatrix: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MPSMatrix]: ...
    def __getitem__(self, index: int | slice) -> MPSMatrix | Sequence[MPSMatrix]:
        found = position("MatrixSequence", index, len(self))
        if isinstance(found, int):
            made = self._made[found]
            if made is None:
                made = self._made[found] = self._view(found, 1)
            return made
        if found.step == 1 and len(found):
            return MatrixSequence(self._view(found.start, len(found)))
        return [self[each] for each in found]

    def _view(self, first: int, count: int) -> MPSMatrix:
        whole = self._matrix
        descriptor = MPSMatrixDescriptor(
            whole.rows, whole.columns, row_bytes=whole.row_bytes, data_type=whole.data_type, matrices=count,
            matrix_bytes=whole.matrix_bytes if count > 1 else None,
        )  # fmt: skip
        return MPSMatrix(whole.data, descriptor, whole.offset + first * whole.matrix_bytes)

    def __repr__(self) -> str:
        return f"<MatrixSequence of {self._matrix!r}>"


def seen_of(sequence: MatrixSequence, columns: int, look: Callable[[MPSMatrix, int], T]) -> T:
    """What encodes see of the first columns of a sequence, looked up once."""
    seen = sequence._seen  # pyright: ignore[reportPrivateUsage]
    if seen is None or seen[0] != columns:
        seen = columns, look(sequence.matrix, columns)
        store(sequence, "_seen", seen)
    return seen[1]


def _check_prefetch(
    who: str, command_buffer: CommandBuffer, argument: str, given: Iterable[Descriptor], wanted: type[Descriptor]
) -> None:
    check_is_open(who, command_buffer)
    for index, descriptor in enumerate(listed(who, argument, given, wanted.__name__)):
        of_kind(who, f"{argument}[{index}]", descriptor, wanted).validate()
