"""Vectors and matrices in buffers, as the optimizers take them (MPSMatrix.h, macOS 10.13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, Labelled, Shown, is_whole, lengths_text, listed, of_kind
from openmps.core.elements import Elements, ElementsShape
from openmps.core.lifetime import (
    TemporaryCounts,
    check_device,
    check_is_device,
    check_is_open,
    check_lifetime,
    check_not_ended,
    check_reads,
    record_synchronize,
)
from openmps.core.operand import Operand
from openmps.core.vector_descriptor import TORCH_TYPES, MPSMatrixDescriptor, MPSVectorDescriptor, bytes_needed
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.metal.array_protocols import Taken, as_array, exported, location, taken_array, taken_tensor
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region, require_written, unwritten, wait_until_written
from openmps.runtime.binding import Numbers
from openmps.selectors import Factory, takes
from openmps.types import MPSDataType, MTLStorageMode


class _Memory:
    """A buffer that a temporary object gives back."""

    def __init__(self, buffer: MTLBuffer) -> None:
        self.buffer: MTLBuffer | None = buffer

    def release(self) -> None:
        """Drop the buffer."""
        self.buffer = None

    def parts(self) -> tuple[object, ...]:
        """Itself."""
        return (self,)


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


class _Elements(KnownAttributes, Labelled, Operand, Generic[Descriptor]):
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
        self._data_type = MPSDataType(descriptor.data_type)
        self._shape = descriptor.shape()
        unit = descriptor.strides()[-1]
        self._elements = ElementsShape(self._shape, self._data_type)
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
        self._memory = _Memory(buffer)
        is_plain = self._data_type is MPSDataType.FLOAT32 and math.prod(self._shape) == self._shape[-1]
        self._numbers = Numbers(buffer, self._offset, self._shape[-1]) if is_plain else None

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

    device = Shown[MTLDevice]("data.device", "The device of the buffer.")

    @property
    def data(self) -> MTLBuffer:
        """The buffer."""
        buffer = self._memory.buffer
        if buffer is None:
            rule = "is gone: the temporary object was read for the last time, or its command buffer is done"
            remedy = "Raise read_count before the encode that reads it last"
            raise MPSLifetimeError(self.name, "data", rule, remedy=remedy)
        return buffer

    offset = Shown[int]("_offset", "Bytes before the first element (macOS 10.15).")
    data_type = Shown[MPSDataType]("_data_type", "Type of an element.")

    def resource_size(self) -> int:
        """Bytes of the buffer."""
        return self.data.length

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Make queued results visible to the CPU once ``command_buffer`` has completed; memory is coherent here.

        The call is checked and keeps its place in the record.
        """
        if unwritten:
            require_written(self.name, "synchronize", self.regions())
        record_synchronize(self.name, command_buffer, self.device)

    def tensor(self) -> torch.Tensor:
        """The elements, sharing the buffer's memory; a single vector or matrix has no leading axis.

        Waits for committed command buffers that write them; in a handler, or in recorded work, they are as they are
        then.

        Raises:
            MTLCommandBufferError: A command buffer that is not committed has yet to write them.
        """
        wait_until_written(self.name, "tensor", self.regions())
        return self.memory()

    def regions(self) -> tuple[Region]:
        """The bytes of the elements and what is between them, as what writes and what reads them is compared by."""
        return self.whole().regions()

    def memory(self) -> torch.Tensor:
        """The same as `tensor`, whatever is still to be written; for work that runs in its queue's order."""
        view = self.whole().value()
        return view[0] if self._shape[0] == 1 else view

    def whole(self) -> Elements:
        """All elements, as an encode sees them; a single vector or matrix has a leading axis, too."""
        return Elements(self.data, self._offset, self._elements, self._strides)

    def numpy(self) -> NDArray[Any]:
        """A copy of the elements; a single vector or matrix has no leading axis. Waits as `tensor` does.

        Raises:
            MPSArgumentError: The buffer's storage mode is PRIVATE.
            MTLCommandBufferError: A command buffer that is not committed has yet to write them.
        """
        self._check_cpu_access("numpy")
        wait_until_written(self.name, "numpy", self.regions())
        return np.array(self.memory().cpu().numpy(), order="C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The elements: the buffer's memory itself on the CPU, a copy of that of a GPU. Waits as `numpy` does."""
        if is_own := self.device.is_cuda:
            held = self.numpy()
        else:
            self._check_cpu_access("numpy")
            wait_until_written(self.name, "numpy", self.regions())
            held = self.memory().numpy()
        remedy = "Use tensor(), which shares the memory"
        return as_array(self.name, held, dtype, copy, is_own=is_own, remedy=remedy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> object:
        """A capsule with the elements, in the buffer's memory; waits and refuses as `numpy` does."""
        self._check_cpu_access("__dlpack__")
        return exported(self.name, self.tensor(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return location(self.device.torch_device)

    def _check_cpu_access(self, method: str) -> None:
        if self.data.storage_mode is MTLStorageMode.PRIVATE:
            rule, remedy = "needs memory that the CPU may touch", "Use a buffer of storage mode SHARED"
            raise MPSArgumentError(self.name, method, rule, "PRIVATE storage", remedy)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use it."""
        check_device(who, argument, self.device, command_buffer.device)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from the read count; ordinary objects have none."""

    def __repr__(self) -> str:
        buffer = self._memory.buffer
        origin = "" if buffer is None or buffer.origin is None else f", {buffer.origin}"
        return f"<{self.name} {lengths_text(self._shape)} {self._data_type.name}{origin}>"


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


class _Temporary(_Elements[Descriptor]):
    """What temporary vectors and matrices have in common: a command buffer, a read count and private memory."""

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

    @property
    def read_count(self) -> int:
        """How many more encodes may read it; starts at 1. Set it before the last read; 0 frees the memory."""
        return self._counts.get(0)

    @read_count.setter
    def read_count(self, value: int) -> None:
        check_not_ended(self.name, "read_count", self._command_buffer)
        self._counts.set(self.name, 0, value)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use it."""
        check_device(who, argument, self._command_buffer.device, command_buffer.device)
        check_lifetime(who, argument, self._command_buffer, command_buffer)
        check_reads(who, argument, self.read_count, self.name)

    def count_read(self, amount: int = 1) -> None:
        """Take reads from the read count."""
        self._counts.take(self.name, amount)

    @classmethod
    def from_numpy(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Not offered: the CPU cannot write temporary memory."""
        raise MPSTypeError(cls.__name__, "from_numpy", "is not offered", None, "Use an ordinary object's")

    @classmethod
    def from_dlpack(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Not offered: temporary objects have memory of their own."""
        raise MPSTypeError(cls.__name__, "from_dlpack", "is not offered", None, "Use an ordinary object's")

    def _check_cpu_access(self, method: str) -> None:
        rule = "is not offered: temporary memory cannot be reached by the CPU"
        raise MPSLifetimeError(self.name, method, rule, remedy="Use an ordinary object")


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


def _check_prefetch(
    who: str, command_buffer: CommandBuffer, argument: str, given: Iterable[Descriptor], wanted: type[Descriptor]
) -> None:
    check_is_open(who, command_buffer)
    for index, descriptor in enumerate(listed(who, argument, given, wanted.__name__)):
        of_kind(who, f"{argument}[{index}]", descriptor, wanted).validate()
