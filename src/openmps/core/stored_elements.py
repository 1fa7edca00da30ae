"""Objects whose elements lie in a buffer: vectors, matrices, n-dimensional arrays, and temporary ones."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, Labelled, Shown
from openmps.core.elements import Elements, ElementsShape
from openmps.core.lifetime import (
    TemporaryCounts,
    check_device,
    check_lifetime,
    check_not_ended,
    check_reads,
    record_synchronize,
)
from openmps.core.operand import Operand
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, lengths_text
from openmps.metal.array_protocols import as_array, exported, location
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region, require_written, unwritten, wait_until_written
from openmps.types import MPSDataType, MTLStorageMode


class BufferMemory:
    """A buffer that a temporary object gives back."""

    def __init__(self, buffer: MTLBuffer) -> None:
        self.buffer: MTLBuffer | None = buffer

    def release(self) -> None:
        """Drop the buffer."""
        self.buffer = None

    def parts(self) -> tuple[object, ...]:
        """Itself."""
        return (self,)


class StoredElements(KnownAttributes, Labelled, Operand):
    """Elements in a buffer, from a byte on, at fixed distances along each axis."""

    _memory: BufferMemory
    _offset: int
    """Bytes."""
    _elements: ElementsShape
    _strides: tuple[int, ...]
    """In elements."""

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
    data_type = Shown[MPSDataType]("_elements.stored_as", "Type of an element.")

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
        return self.whole().value()

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
        return f"<{self.name} {lengths_text(self._elements.sizes)} {self.data_type.name}{origin}>"


class TemporaryElements(StoredElements):
    """What temporary objects have in common: a command buffer, a read count and private memory."""

    _command_buffer: CommandBuffer
    _counts: TemporaryCounts

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
