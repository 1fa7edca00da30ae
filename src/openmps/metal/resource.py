"""Memory of a device: bytes, seen as typed tensors by kernels and as a NumPy array by the CPU."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, Labelled, Shown, memory_for, of_kind, store
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.array_protocols import Taken, as_array, exported, location, taken_array, taken_tensor
from openmps.metal.host_copy import HostCopy
from openmps.metal.memory import Memory
from openmps.metal.pending import Region, mark_written, wait_until_written
from openmps.metal.processor import Processor
from openmps.metal.version import Version
from openmps.types import MPSPurgeableState, MTLCPUCacheMode, MTLResourceOptions, MTLStorageMode, NSRange


class Resource(KnownAttributes, Labelled):
    """What an `MTLResource` says of its memory."""

    _length: int
    _storage_mode: MTLStorageMode
    _cpu_cache_mode: MTLCPUCacheMode
    _purgeable: MPSPurgeableState
    _memory_version: Version
    """Another one where other memory has taken the place of what was there."""
    _storage: torch.Tensor | None = None
    _host: HostCopy | None = None
    _origin: str | None = None
    """Of memory that came from an array or a tensor: whether it is shared, in words."""

    def __init__(self, storage_mode: MTLStorageMode, cpu_cache_mode: MTLCPUCacheMode) -> None:
        store(self, "_storage_mode", storage_mode)
        store(self, "_cpu_cache_mode", cpu_cache_mode)
        store(self, "_purgeable", MPSPurgeableState.NON_VOLATILE)
        store(self, "_memory_version", Version())

    @property
    @abstractmethod
    def device(self) -> Processor:
        """The device whose memory holds the resource."""

    @property
    @abstractmethod
    def heap(self) -> object | None:
        """The heap that the memory is part of; None for a resource made by the device (macOS 10.13)."""

    storage_mode = Shown[MTLStorageMode](
        "_storage_mode", "Who may touch the memory: PRIVATE memory is the device's alone."
    )
    cpu_cache_mode = Shown[MTLCPUCacheMode]("_cpu_cache_mode", "The cache mode that was asked for.")

    @property
    def is_allocated(self) -> bool:
        """Whether there is memory yet; it is allocated on first use."""
        return self._storage is not None

    @property
    def allocated_size(self) -> int:
        """Bytes of memory held now (macOS 10.13): 0 before the first use."""
        return 0 if self._storage is None else self._length

    def set_purgeable_state(self, state: MPSPurgeableState) -> MPSPurgeableState:
        """Say whether the memory may be given back, and return what held before.

        EMPTY gives the memory back at once; the next use finds zeros. VOLATILE memory is kept here. Without memory the
        result is ALLOCATION_DEFERRED and the request is ignored, as for images (MPSImage.h).

        Raises:
            MPSArgumentError: The state cannot be asked for, or the memory is part of a heap.
        """
        check_purgeable(self.name, state)
        if self.heap is not None:
            remedy = "Drop the resource to give its memory back to the heap"
            raise MPSArgumentError(self.name, "state", "cannot be set on a resource of a heap", state.name, remedy)
        if not self.is_allocated and self._purgeable is not MPSPurgeableState.EMPTY:
            return MPSPurgeableState.ALLOCATION_DEFERRED
        before = self._purgeable
        if state is not MPSPurgeableState.KEEP_CURRENT:
            self._purgeable = state
        if state is MPSPurgeableState.EMPTY:
            self._discard()
        return before

    def _discard(self) -> None:
        """Have the next use find zeros."""
        self._storage = self._host = self._origin = None
        self._memory_version.advance()

    def _check_cpu_access(self, method: str) -> None:
        if self._storage_mode is MTLStorageMode.PRIVATE:
            remedy = "Copy it to a shared buffer with a blit encoder's copy_from_buffer"
            raise MPSArgumentError(self.name, method, "needs memory that the CPU may touch", "PRIVATE storage", remedy)


class Bytes(Resource, Memory):
    """The memory of an `MTLBuffer`: allocated, and zero, on first use."""

    _made_by: ClassVar[Mapping[str, str]] = {
        "length": "new_buffer(length=…) of the device",
        "storage_mode": "new_buffer(…, options=…) of the device",
        "cpu_cache_mode": "new_buffer(…, options=…) of the device",
        "device": "new_buffer(…) of the other device",
        "heap": "new_buffer(…) of the heap",
    }

    def __repr__(self) -> str:
        state = f", {self._origin}" if self._origin else "" if self.is_allocated else ", not allocated yet"
        return f"<{self.name}, {self._length} bytes, {self._storage_mode.name}{state}, on {self.device.name}>"

    length = Shown[int]("_length", "Size in bytes.")
    origin = Shown["str | None"](
        "_origin", "``shares the memory of an array``, ``a copy of a tensor`` and the like; None for other memory."
    )

    is_persistent = True

    def versions(self) -> tuple[Version]:
        """See `Memory`."""
        return (self._memory_version,)

    @property
    def present(self) -> torch.Tensor | None:
        """The memory, if there is any."""
        return self._storage

    # --- other libraries ---------------------------------------------------------------------------------------------

    @classmethod
    def from_numpy(cls, device: Processor, array: Any, copy: bool | None = None) -> Self:
        """A buffer with the bytes of an array of numbers, in its memory where that can be shared.

        Memory of the CPU is shared with a buffer of the CPU if the array is writable, without gaps and begins at a
        multiple of 16 bytes: then what is written to either shows in both, and encodes read what is there when they
        run. Else, and with ``copy=True``, it is copied; ``copy=False`` raises rather than copy. `origin` and the
        buffer's text say which it was. The array is not to be written while committed work reads or writes it.

        Raises:
            MPSArgumentError: The array has no axis or one of size 0; or it cannot be shared and ``copy`` is False.
            MPSTypeError: It is no array of integers or floating point numbers in this machine's byte order.
        """
        cls._check_is_device(device)
        return cls.holding(device, taken_array(cls.__name__, device.torch_device, array, copy))

    @classmethod
    def from_dlpack(cls, device: Processor, tensor: Any, copy: bool | None = None) -> Self:
        """The same of a tensor of PyTorch or of any library with ``__dlpack__``, in the memory of the CPU or of a GPU.

        Memory of the buffer's own device is shared; that which its library calls read-only is copied.
        """
        cls._check_is_device(device)
        return cls.holding(device, taken_tensor(cls.__name__, device.torch_device, tensor, copy))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The bytes, uint8: the buffer's memory itself on the CPU, a copy of that of a GPU; read as by `contents`."""
        is_own, found = self.device.is_cuda, self.contents()
        held = found.copy() if is_own else found
        return as_array(self.name, held, dtype, copy, is_own=is_own, remedy="Use contents(), which is uint8")

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> object:
        """A capsule with the bytes, uint8, in the buffer's memory; waits and refuses as `contents` does."""
        self._check_cpu_access("__dlpack__")
        return exported(self.name, self.tensor(torch.uint8), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return location(self.device.torch_device)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: they may have memory of their own."""
        return {**vars(self), "_origin": None}

    @classmethod
    @abstractmethod
    def _check_is_device(cls, device: object) -> None:
        """Raise unless buffers can be made on ``device``."""

    @classmethod
    @abstractmethod
    def holding(cls, device: Any, taken: Taken) -> Self:
        """A buffer in the memory of elements that were taken."""

    # --- the device's side -------------------------------------------------------------------------------------------

    def tensor(self, dtype: torch.dtype, offset: int = 0, count: int | None = None) -> torch.Tensor:
        """The bytes from ``offset`` on as a 1-D tensor of ``count`` elements that shares the buffer's memory.

        Without ``count`` it goes to the end of the buffer, which must be a whole number of elements away. Waits for
        committed command buffers that write them; in a handler, or in recorded work, they are as they are then.

        Raises:
            MPSArgumentError: The range leaves the buffer or is not aligned to the element.
            MTLCommandBufferError: A command buffer that is not committed has yet to write them.
        """
        found = self.memory(dtype, offset, count)
        wait_until_written(self.name, "tensor", (self.region(offset, found.numel() * dtype.itemsize),))
        return found

    def memory(self, dtype: torch.dtype, offset: int = 0, count: int | None = None) -> torch.Tensor:
        """The same as `tensor`, whatever is still to be written; for work that runs in its queue's order."""
        if not isinstance(dtype, torch.dtype):
            raise MPSTypeError(self.name, "dtype", "must be a torch.dtype", repr(dtype))
        storage = self._bytes()
        if self._host is not None:
            self.flush()
        if offset == 0 and count is None and self._length % dtype.itemsize == 0:
            return self._view(storage, dtype)
        start, stop = self._element_range(dtype, offset, count)
        return self._view(storage[start:stop], dtype)

    def bind(self, tensor: torch.Tensor) -> None:
        """Take ``tensor`` as the buffer's memory without a copy: a contiguous tensor of exactly `length` bytes.

        Tensors and arrays that were taken from the buffer before keep the old memory.

        Raises:
            MPSArgumentError: The tensor has another size, or gaps, or the buffer is part of a heap.
            MPSDeviceError: The tensor lies on another device.
        """
        storage = self._bindable(tensor)
        if self._storage is not None:
            self._memory_version.advance()
        self._storage = storage
        self._origin = "shares the memory of a tensor"
        self._host = None
        self._purgeable = MPSPurgeableState.NON_VOLATILE
        mark_written((Region(self),))

    def bind_unless_allocated(self, tensor: torch.Tensor) -> bool:
        """`bind` if there is no memory yet, so that arrays taken before stay good; whether it was bound."""
        if self._storage is not None:
            return False
        storage = self._bindable(tensor)
        return self._keep_storage(storage) is storage

    def _bindable(self, tensor: torch.Tensor) -> torch.Tensor:
        """The bytes of a tensor that can be the buffer's memory."""
        if not isinstance(tensor, torch.Tensor):
            raise MPSTypeError(self.name, "tensor", "must be a torch.Tensor", type(tensor).__name__)
        if self.heap is not None:
            raise MPSArgumentError(self.name, "tensor", "cannot replace memory that is part of a heap")
        self.device.check_tensor(self.name, "tensor", tensor)
        if tensor.nbytes != self._length:
            raise MPSArgumentError(self.name, "tensor", f"must have {self._length} bytes", tensor.nbytes)
        if not tensor.is_contiguous():
            got = f"shape {tuple(tensor.shape)} with strides {tensor.stride()}"
            raise MPSArgumentError(self.name, "tensor", "must be contiguous", got, "Bind tensor.contiguous()")
        return self._view(tensor.detach().reshape(-1), torch.uint8)

    # --- the CPU's side ----------------------------------------------------------------------------------------------

    def contents(self) -> NDArray[np.uint8]:
        """The bytes as a writable array of uint8; ``.view(np.float32)`` and the like give it another type.

        On the CPU the array is the buffer's memory itself. On CUDA it is the buffer's one copy on the host: each call
        waits for the device and brings the copy up to date, and what you write to it reaches the device at the next
        commit to a queue of the device, at the next `tensor`, or at once by `did_modify_range`. Results of work that
        ran since need another call. On both it waits for committed command buffers that write the buffer; in a handler,
        or in recorded work, the bytes are as they are then.

        Raises:
            MPSArgumentError: The storage mode is PRIVATE.
            MTLCommandBufferError: A command buffer that is not committed has yet to write the buffer.
        """
        self._check_cpu_access("contents")
        wait_until_written(self.name, "contents", (self.region(0, self._length),))
        storage = self._bytes()
        if not self.device.is_cuda:
            return storage.numpy()
        torch.cuda.synchronize(self.device.torch_device)
        if self._host is None:
            self._host = HostCopy()
            self._watch_host_copy()
        return self._host.read(storage)

    def did_modify_range(self, range: NSRange | range) -> None:
        """Say that the CPU wrote the bytes of ``range`` by way of `contents`, so that the device sees them.

        Raises:
            MPSArgumentError: The range leaves the buffer, or the storage mode is PRIVATE.
        """
        self._check_cpu_access("did_modify_range")
        start, stop = byte_range(self.name, "range", range, self._length)
        if self._host is not None and self._storage is not None:
            self._host.write(self._storage, start, stop)

    def flush(self) -> bool:
        """Bring what the CPU wrote to a host copy to the device; whether there is a copy that may be written to again.

        Called when a command buffer is committed.
        """
        if self._host is not None and self._storage is not None and not self._host.flush(self._storage):
            self._host = None
        return self._host is not None

    def region(self, offset: int, size: int) -> Region:
        """Some of the bytes, as what writes and what reads them is compared by."""
        return Region(self, (range(offset, offset + size),), self._storage)

    # --- inside ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _watch_host_copy(self) -> None:
        """Have `flush` called at every commit."""

    def _bytes(self) -> torch.Tensor:
        if self._storage is not None:
            return self._storage
        return self._keep_storage(self._allocate())

    def _keep_storage(self, storage: torch.Tensor) -> torch.Tensor:
        """The memory: ``storage``, unless there is some by now."""
        # The encoding thread, the queue's thread and signal handlers may all be the first. None of them comes between
        # the look and the call that stores: a lock would have a forked process wait for a thread that stayed behind.
        if self._storage is None:
            store(self, "_storage", storage)
            store(self, "_purgeable", MPSPurgeableState.NON_VOLATILE)
        return storage if self._storage is None else self._storage

    def _allocate(self) -> torch.Tensor:
        try:
            return torch.zeros(self._length, dtype=torch.uint8, device=self.device.torch_device)
        except RuntimeError as fault:
            rule, remedy = "must fit the free memory of the device", "Free memory, or make smaller buffers"
            raise MPSArgumentError(self.name, "length", rule, self._length, remedy) from fault

    def _element_range(self, dtype: torch.dtype, offset: int, count: int | None) -> tuple[int, int]:
        size = dtype.itemsize
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0 or offset % size:
            rule = f"must be a multiple of {size}, the bytes of {dtype}"
            raise MPSArgumentError(self.name, "offset", rule, repr(offset))
        if count is None and (self._length - offset) % size == 0:
            count = max(0, (self._length - offset) // size)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            got = f"{count!r} and {self._length - offset} bytes from the offset to the end"
            raise MPSArgumentError(self.name, "count", f"must say how many elements of {size} bytes to view", got)
        stop = offset + count * size
        if stop > self._length:
            got = f"{count} elements of {dtype} from byte {offset}"
            raise MPSArgumentError(self.name, "offset and count", f"must stay within {self._length} bytes", got)
        return offset, stop

    def _view(self, storage: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        try:
            return storage.view(dtype)
        except (RuntimeError, TypeError) as fault:
            rule = "must be a type that these bytes can be viewed as"
            remedy = "Use a plain number type, and memory aligned to it"
            raise MPSArgumentError(self.name, "dtype", rule, dtype, remedy) from fault


def check_purgeable(who: str, state: MPSPurgeableState) -> None:
    """Raise unless memory can be asked to be in this state."""
    of_kind(who, "state", state, MPSPurgeableState)
    if state is MPSPurgeableState.ALLOCATION_DEFERRED:
        raise MPSArgumentError(who, "state", "must be one that can be asked for", state.name, "Use KEEP_CURRENT")


def modes_of(who: str, options: MTLResourceOptions) -> tuple[MTLStorageMode, MTLCPUCacheMode]:
    """The storage mode and cache mode that ``options`` ask for."""
    if isinstance(options, bool) or not isinstance(options, int):
        raise MPSTypeError(who, "options", "must be MTLResourceOptions", type(options).__name__)
    return _modes(who, int(options))


@lru_cache(maxsize=256)
def _modes(who: str, value: int) -> tuple[MTLStorageMode, MTLCPUCacheMode]:
    try:
        storage, cache = MTLStorageMode(value >> 4 & 0xF), MTLCPUCacheMode(value & 0xF)
    except ValueError as fault:
        raise MPSArgumentError(who, "options", "must combine MTLResourceOptions", hex(value)) from fault
    if storage is MTLStorageMode.MEMORYLESS:
        raise MPSArgumentError(who, "options", "must not be memoryless: that is for textures of render passes")
    return storage, cache


def byte_range(who: str, argument: str, span: NSRange | range, length: int) -> tuple[int, int]:
    """First byte and end of ``span``, which must lie within ``length`` bytes."""
    if isinstance(span, NSRange):
        start, stop = span.location, span.location + span.length
    elif isinstance(span, range) and span.step == 1:
        start, stop = span.start, max(span.start, span.stop)
    else:
        raise MPSTypeError(who, argument, "must be an NSRange or a range of step 1", repr(span))
    if start < 0 or stop > length:
        raise MPSArgumentError(who, argument, f"must stay within {length} bytes", f"{start}..{stop}")
    return start, stop


def bytes_of(who: str, data: Any, length: int | None) -> torch.Tensor:
    """A new 1-D uint8 tensor with the first ``length`` bytes of ``data`` (all of them for None)."""
    with memory_for(who, "data"):
        if isinstance(data, torch.Tensor):
            copy = _tensor_bytes(who, data)[:length].clone()
        else:
            copy = torch.from_numpy(_host_bytes(who, data)[:length].copy())
    if copy.numel() == 0 or (length is not None and copy.numel() != length):
        got = f"{copy.numel()} bytes"
        raise MPSArgumentError(who, "data", "must hold at least one byte and at least length bytes", got)
    return copy


def _tensor_bytes(who: str, data: torch.Tensor) -> torch.Tensor:
    try:
        return data.detach().contiguous().reshape(-1).view(torch.uint8)
    except RuntimeError as fault:
        rule = "must be a dense tensor of plain numbers"
        raise MPSTypeError(who, "data", rule, f"{data.layout} {data.dtype}") from fault


def _host_bytes(who: str, data: Any) -> NDArray[np.uint8]:
    if isinstance(data, np.ma.MaskedArray):
        raise MPSTypeError(who, "data", "must have no mask", "a masked array", "Fill it first: array.filled(0)")
    try:
        array = np.asarray(data if isinstance(data, (np.ndarray, np.generic)) else memoryview(data))
    except (TypeError, ValueError, BufferError) as fault:
        rule = "must be bytes, a NumPy array, a tensor or another object with the buffer protocol"
        raise MPSTypeError(who, "data", rule, type(data).__name__, "Convert it with numpy.asarray") from fault
    if array.dtype.hasobject:
        raise MPSTypeError(who, "data", "must hold numbers, not objects", array.dtype)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
