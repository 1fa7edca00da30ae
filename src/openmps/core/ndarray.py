"""N-dimensional arrays of numbers in buffers, views of them, and temporary ones (MPSNDArray.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol, Self, overload, runtime_checkable

import torch

from openmps.checks import Shown, number, of_kind, one_of_two
from openmps.convention import current
from openmps.core import ndarray_bytes, ndarray_exchange
from openmps.core.elements import Elements, ElementsShape
from openmps.core.image.image import MPSImage
from openmps.core.kernel.ndarray_copies import ArrayCopy, SeenElements
from openmps.core.lifetime import TemporaryCounts, check_device, check_is_device, check_is_open
from openmps.core.ndarray_descriptor import MPSNDArrayDescriptor
from openmps.core.stored_elements import BufferMemory, StoredElements, TemporaryElements
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.array_protocols import Taken, taken_array, taken_tensor
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import mark_written, wait_until_written
from openmps.selectors import Factory, takes
from openmps.types import DATA_TYPE_DTYPES, MPSDataType, MPSImageCoordinate, MPSSizeofMPSDataType
from openmps.types import MPSAliasingStrategy as Aliasing

_ROW_BYTES = 16
"""What rows of dimension 0 are rounded up to."""
_DATA_TYPES = {dtype: kind for kind, dtype in TORCH_TYPES.items() if not kind & MPSDataType.NORMALIZED_BIT}
_START = MPSImageCoordinate(0, 0, 0)


@runtime_checkable
class MPSNDArrayAllocator(Protocol):
    """Makes the arrays that encodes return (MPSNDArray.h, macOS 10.15)."""

    def array(self, command_buffer: CommandBuffer, array_descriptor: MPSNDArrayDescriptor, kernel: Any) -> MPSNDArray:
        """An array that lives at least until the command buffer has completed."""
        ...


class MPSNDArray(StoredElements):
    """An n-dimensional array of numbers in a buffer (MPSNDArray.h, macOS 10.15).

    ``MPSNDArray(device, descriptor)`` makes zeros; ``MPSNDArray(device, scalar=x)`` one number, FLOAT32, of one
    dimension. Dimension 0 is the fastest: element (i0, i1, i2, …) lies ``i0 element_bytes + (i1 + L1 (i2 + …))
    row_bytes`` bytes behind the start, with rows of a multiple of 16 bytes. `numpy` and `tensor` have the slowest
    dimension first, as `shape` has.

    Raises:
        MPSArgumentError: The descriptor has a slice, or the array is larger than the device's memory.
        MPSTypeError: There is no descriptor.

    >>> import numpy as np
    >>> import openmps as mps
    >>> device = mps.mtl_device("cpu")
    >>> array = mps.MPSNDArray.from_numpy(device, np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> turned = array.descriptor()
    >>> turned.transpose_dimension(0, 1)
    >>> view = array.array_view(device.new_command_queue().command_buffer(), turned)
    >>> view.numpy().tolist(), view.parent is array
    ([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], True)
    """

    _parent: MPSNDArray | None = None

    @overload
    def __init__(self, device: MTLDevice, descriptor: MPSNDArrayDescriptor) -> None: ...
    @overload
    def __init__(
        self, device: MTLDevice, descriptor: MPSNDArrayDescriptor | None = None, *, scalar: float | None = None
    ) -> None: ...
    @takes({"device": MTLDevice, "scalar": (int, float)})
    def __init__(
        self, device: MTLDevice, descriptor: MPSNDArrayDescriptor | None = None, *, scalar: float | None = None
    ) -> None:
        who = type(self).__name__
        place = check_is_device(who, "device", device)
        if scalar is not None:
            if descriptor is not None:
                raise MPSTypeError(who, "descriptor", "or scalar must be given, not both", "both")
            scalar = number(who, "scalar", scalar, is_nan_allowed=True)
            descriptor = MPSNDArrayDescriptor(MPSDataType.FLOAT32, [1])
        shape, strides, needed = _layout(who, descriptor)
        buffer = place.new_buffer(length=place.check_length(who, "descriptor", needed))
        self._hold(BufferMemory(buffer), 0, shape, strides)
        if scalar is not None:
            self.memory().fill_(scalar)

    def _hold(self, memory: BufferMemory, offset: int, shape: ElementsShape, strides: tuple[int, ...]) -> None:
        self._memory, self._offset, self._elements, self._strides = memory, offset, shape, strides

    @classmethod
    def from_numpy(cls, device: MTLDevice, array: Any, copy: bool | None = None) -> Self:
        """An array of one of NumPy, in its memory where that can be shared; see `MPSVector.from_numpy`.

        The last axis is dimension 0. Rows lie as they do there, without gaps.
        """
        return cls._of(taken_array, device, array, copy)

    @classmethod
    def from_dlpack(cls, device: MTLDevice, tensor: Any, copy: bool | None = None) -> Self:
        """The same of a tensor of PyTorch or of any library with ``__dlpack__``; see `MPSVector.from_dlpack`."""
        return cls._of(taken_tensor, device, tensor, copy)

    @classmethod
    def _of(cls, take: Callable[..., Taken], device: MTLDevice, given: Any, copy: bool | None) -> Self:
        place = check_is_device(cls.__name__, "device", device)
        taken = take(cls.__name__, place.torch_device, given, copy, None, _DATA_TYPES)
        elements = taken.elements
        descriptor = MPSNDArrayDescriptor(_DATA_TYPES[elements.dtype], [*elements.shape])
        made = cls.__new__(cls)
        shape = ElementsShape(tuple(elements.shape), descriptor.data_type)
        made._hold(BufferMemory(MTLBuffer.holding(place, taken)), 0, shape, elements.stride())
        return made

    @staticmethod
    def default_allocator() -> MPSNDArrayAllocator:
        """The allocator of ordinary arrays."""
        return _ORDINARY

    # --- what it is ---------------------------------------------------------------------------------------------------

    parent = Shown["MPSNDArray | None"]("_parent", "The array that a view shares its memory with; None for others.")
    shape = Shown[tuple[int, ...]]("_elements.sizes", "Lengths of the dimensions, the slowest first. Our addition.")

    @property
    def data_type_size(self) -> int:
        """Bytes of an element."""
        return MPSSizeofMPSDataType(self.data_type)

    @property
    def number_of_dimensions(self) -> int:
        """Dimensions."""
        return len(self.shape)

    def length_of_dimension(self, dimension_index: int) -> int:
        """Elements of a dimension, of views after their slices and transpositions; 1 where there is none.

        Where it is asked under the convention ``array_view_lengths`` "parent", a view says its parent's.
        """
        if self._parent is not None and current()["array_view_lengths"] == "parent":
            return self._parent.length_of_dimension(dimension_index)
        return self.descriptor().length_of_dimension(dimension_index)

    def descriptor(self) -> MPSNDArrayDescriptor:
        """A new descriptor of an array like this one, as it is after slices and transpositions."""
        return MPSNDArrayDescriptor(self.data_type, [*self.shape])

    def __repr__(self) -> str:
        text = super().__repr__().removesuffix(">") if self.shape else f"<{self.name} a number {self.data_type.name}"
        return f"{text}{'' if self._parent is None else ', a view'}>"

    # --- views --------------------------------------------------------------------------------------------------------

    def array_view(
        self, command_buffer: CommandBuffer, descriptor: MPSNDArrayDescriptor, aliasing: Aliasing = Aliasing.DEFAULT
    ) -> MPSNDArray | None:
        """Another array of these elements: a part of them, with dimensions exchanged, other lengths or another type.

        What `descriptor` gives, changed, says which: its slices are taken first. Other lengths of as many elements are
        taken where there are no slices and transpositions. The array shares this one's memory where it can: always but
        for another type, and for lengths that run over gaps. Else it is a copy, recorded on ``command_buffer``;
        SHALL_NOT_ALIAS asks for one, and with SHALL_ALIAS the answer is None then. A copy is an ordinary array, with
        PREFER_TEMPORARY_MEMORY a temporary one, and takes a read of a temporary array; a view shares the read count.

        Raises:
            MPSArgumentError: The lengths do not fit, or a type cannot be converted.
        """
        who = self.name
        check_device(who, "command_buffer", check_is_open(who, command_buffer).device, self.device)
        wanted = of_kind(who, "descriptor", descriptor, MPSNDArrayDescriptor)
        way = member(who, "aliasing", Aliasing, aliasing)
        if way & Aliasing.ALIASING_RESERVED == Aliasing.ALIASING_RESERVED:
            raise MPSArgumentError(who, "aliasing", "must not be SHALL_ALIAS and SHALL_NOT_ALIAS", way)
        self.check_usable(who, "the array", command_buffer)
        view = self._seen_as(wanted)
        if view is not None and wanted.data_type is self.data_type and not way & Aliasing.SHALL_NOT_ALIAS:
            twin = type(self).__new__(type(self))
            vars(twin).update(vars(self) | {"_parent": self, "_label": None, "_name": None})
            twin._hold(self._memory, view.offset, view.shape, view.strides)
            return twin
        if way & Aliasing.SHALL_ALIAS:
            return None
        lengths = wanted.lengths()[::-1] if view is None else view.shape.sizes
        made = MPSNDArrayDescriptor(wanted.data_type, [*lengths])
        is_temporary = way & Aliasing.PREFER_TEMPORARY_MEMORY
        found = MPSTemporaryNDArray(command_buffer, made) if is_temporary else MPSNDArray(self.device, made)
        source = SeenElements(self.whole() if view is None else view, self)
        ArrayCopy(self.device, who).encode(command_buffer, ("the array", source), ("the view", found))
        return found

    def _seen_as(self, descriptor: MPSNDArrayDescriptor) -> Elements | None:
        """Elements as a descriptor says; None where they are no view of the memory."""
        whole, lengths = self.whole(), descriptor.lengths()
        slices, order = descriptor.slices(), descriptor.dimension_order()
        own, strides = whole.shape.sizes[::-1], [*whole.strides[::-1]]
        count = len(lengths)
        shared = min(count, len(own))
        if lengths[:shared] == own[:shared] and {*lengths[shared:], *own[shared:]} <= {1}:
            strides = [*strides[:shared], *[whole.count] * (count - shared)]
        elif prod(lengths) != prod(own):
            rule = f"must have lengths {own}, or as many elements"
            raise MPSArgumentError(self.name, "descriptor", rule, lengths)
        elif descriptor.changes_dimensions():
            rule = f"must have lengths {own} where it slices or transposes"
            raise MPSArgumentError(self.name, "descriptor", rule, lengths, "Make a view of other lengths first")
        else:
            found = _reshaped(whole, lengths[::-1])
            if found is None:
                return None
            strides = [*found[::-1]]
        first = sum(part.start * stride for part, stride in zip(slices, strides, strict=True))
        taken = [(slices[place].length, strides[place]) for place in order[:count]][::-1]
        shape = ElementsShape(tuple([length for length, _ in taken]), self.data_type)
        offset = whole.offset + first * self.data_type_size
        return Elements(whole.buffer, offset, shape, tuple([stride for _, stride in taken]))

    # --- contents -----------------------------------------------------------------------------------------------------

    def read_bytes(self, stride_bytes: Sequence[int] | None = None) -> Any:
        """A copy of the elements, `shape`; with distances in bytes, dimension 0 first, bytes in which they lie so.

        These begin with the lowest element, which is not that of index 0 where a distance is negative; bytes between
        elements are 0, and of elements in one place one stays.
        """
        array = self.numpy()
        return array if stride_bytes is None else ndarray_bytes.to_strided(self.name, array, stride_bytes)

    def write_bytes(self, buffer: Any, stride_bytes: Sequence[int] | None = None) -> None:
        """Store elements: an array of `shape`, or flat, or raw bytes; or bytes as `read_bytes` gives with distances.

        Raises:
            MPSArgumentError: There are more or fewer elements, or too few bytes.
            MPSTypeError: An array or tensor has another element type, as float64 has.
        """
        self._check_cpu_access("write_bytes")
        wait_until_written(self.name, "write_bytes", self.regions())
        dtype = DATA_TYPE_DTYPES[self.data_type]
        if stride_bytes is None:
            array = ndarray_bytes.packed(self.name, buffer, self.shape, dtype)
        else:
            array = ndarray_bytes.from_strided(self.name, buffer, self.shape, dtype, stride_bytes)
        self.memory().copy_(torch.from_numpy(array.copy()))
        mark_written(self.regions())

    def export_data(
        self,
        command_buffer: CommandBuffer,
        to_buffer: MTLBuffer | None = None,
        destination_data_type: MPSDataType | None = None,
        offset: int | MPSImageCoordinate | None = None,
        row_strides: Sequence[int] | None = None,
        *,
        to_images: Sequence[MPSImage] | None = None,
    ) -> None:
        """Record a copy of the elements to a buffer, or to a part of images.

        In a buffer element 0 lies at byte ``offset``, and dimension 0 without gaps; ``row_strides`` are the distances
        in bytes along the others, dimension 1 first. Elements become those of ``destination_data_type``: floats are cut
        to integers, within what these hold. Of images the dimensions are channels, columns, rows and images, from
        ``offset`` on, an `MPSImageCoordinate` whose channel is a multiple of 4.

        Raises:
            MPSArgumentError: Buffer or images are too small, rows overlap, or a type cannot be converted.
        """
        if _is_to_buffer(self.name, "to_buffer", to_buffer, "to_images", to_images):
            given = to_buffer, destination_data_type, 0 if offset is None else offset, row_strides
            ndarray_exchange.export_to_buffer(self, command_buffer, *given)
        else:
            _check_none(self.name, destination_data_type=destination_data_type, row_strides=row_strides)
            at = _START if offset is None else offset
            ndarray_exchange.export_to_images(self, command_buffer, to_images, at)

    def import_data(
        self,
        command_buffer: CommandBuffer,
        from_buffer: MTLBuffer | None = None,
        source_data_type: MPSDataType | None = None,
        offset: int | MPSImageCoordinate | None = None,
        row_strides: Sequence[int] | None = None,
        *,
        from_images: Sequence[MPSImage] | None = None,
    ) -> None:
        """Record a copy of a buffer's elements, or of a part of images, to this array; otherwise as `export_data`."""
        if _is_to_buffer(self.name, "from_buffer", from_buffer, "from_images", from_images):
            given = from_buffer, source_data_type, 0 if offset is None else offset, row_strides
            ndarray_exchange.import_from_buffer(self, command_buffer, *given)
        else:
            _check_none(self.name, source_data_type=source_data_type, row_strides=row_strides)
            at = _START if offset is None else offset
            ndarray_exchange.import_from_images(self, command_buffer, from_images, at)


class MPSTemporaryNDArray(TemporaryElements, MPSNDArray):
    """An array that lives on one command buffer (MPSNDArray.h, macOS 10.15); read counts as for MPSTemporaryImage."""

    temporary_nd_array = Factory("temporaryNDArrayWithCommandBuffer:descriptor:")

    def __init__(self, command_buffer: CommandBuffer, descriptor: MPSNDArrayDescriptor) -> None:
        who = type(self).__name__
        self._command_buffer = check_is_open(who, command_buffer)
        shape, strides, needed = _layout(who, descriptor)
        length = command_buffer.device.check_length(who, "descriptor", needed)
        self._hold(BufferMemory(command_buffer.temporary_buffer(length)), 0, shape, strides)
        self._counts = TemporaryCounts(command_buffer, self._memory, 1)

    @staticmethod
    def default_allocator() -> MPSNDArrayAllocator:
        """The allocator of temporary arrays."""
        return _TEMPORARY


class _OrdinaryArrays:
    def array(self, command_buffer: CommandBuffer, array_descriptor: MPSNDArrayDescriptor, kernel: Any) -> MPSNDArray:
        return MPSNDArray(command_buffer.device, array_descriptor)


class _TemporaryArrays:
    def array(self, command_buffer: CommandBuffer, array_descriptor: MPSNDArrayDescriptor, kernel: Any) -> MPSNDArray:
        return MPSTemporaryNDArray(command_buffer, array_descriptor)


_ORDINARY: MPSNDArrayAllocator = _OrdinaryArrays()
_TEMPORARY: MPSNDArrayAllocator = _TemporaryArrays()


def _layout(who: str, descriptor: Any) -> tuple[ElementsShape, tuple[int, ...], int]:
    """Shape, distances in elements and bytes of a new array, whose rows are of a multiple of 16 bytes."""
    given = of_kind(who, "descriptor", descriptor, MPSNDArrayDescriptor)
    count = given.number_of_dimensions
    if any(given.slice_range(index).length != length for index, length in enumerate(given.lengths())):
        rule, remedy = "must have no slices: a new array has nothing to slice", "Make the array, then a view of it"
        raise MPSArgumentError(who, "descriptor", rule, given, remedy)
    lengths, unit = [given.length_of_dimension(index) for index in range(count)], MPSSizeofMPSDataType(given.data_type)
    strides, distance = list[int](), 1
    for index, length in enumerate(lengths):
        strides.insert(0, distance)
        distance *= length
        if index == 0:
            distance = -(-distance * unit // _ROW_BYTES) * _ROW_BYTES // unit
    return ElementsShape(tuple(lengths[::-1]), given.data_type), tuple(strides), max(distance * unit, _ROW_BYTES)


def _reshaped(view: Elements, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Distances of the same elements with other lengths; None where no distances say it."""
    try:
        return torch.empty_strided(view.shape.sizes, view.strides, device="meta").view(*sizes).stride()
    except RuntimeError:
        return None


def _is_to_buffer(who: str, argument: str, buffer: object, other: str, images: object) -> bool:
    one_of_two(who, argument, buffer, other, images)
    return images is None


def _check_none(who: str, **given: object) -> None:
    for argument, value in given.items():
        if value is not None:
            raise MPSTypeError(who, argument, "belongs to buffers, not to images", type(value).__name__)
