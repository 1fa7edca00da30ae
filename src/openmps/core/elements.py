"""Elements of vectors and matrices in a buffer, with gaps between them, as encodes see them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from openmps.core.operand import View
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.metal.device import MTLBuffer
from openmps.metal.pending import Region
from openmps.ops.geometry import meet
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat

_NUMBER_FORMATS = {
    MPSDataType.FLOAT16: MPSImageFeatureChannelFormat.FLOAT16,
    MPSDataType.FLOAT32: MPSImageFeatureChannelFormat.FLOAT32,
}
Part = tuple[int | slice, ...]
"""Along each of the first axes an index, which leaves the axis out, or a range."""


class ElementsShape(NamedTuple):
    """Lengths of the axes, the number of vectors or matrices first, and the type of an element."""

    sizes: tuple[int, ...]
    stored_as: MPSDataType

    @property
    def number_format(self) -> MPSImageFeatureChannelFormat | None:
        """That of FLOAT16 and FLOAT32; integers are what they are."""
        return _NUMBER_FORMATS.get(self.stored_as)


class Elements(View[ElementsShape]):
    """Elements of one type in a buffer, from a byte on, at fixed distances along each axis."""

    __slots__ = ("buffer", "offset", "shape", "strides")

    def __init__(self, buffer: MTLBuffer, offset: int, shape: ElementsShape, strides: tuple[int, ...]) -> None:
        self.buffer = buffer
        self.offset = offset
        """Bytes."""
        self.shape = shape
        self.strides = strides
        """In elements."""

    @property
    def count(self) -> int:
        """Elements from the first to the last, with those in the gaps."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape.sizes, self.strides, strict=True))

    def part(self, *part: int | slice) -> Elements:
        """Some of the elements; the axes that are not named are whole. Indices and ranges lie within the axes."""
        if not any(part):  # the first ones, which most kernels ask for
            shape = ElementsShape(self.shape.sizes[len(part) :], self.shape.stored_as)
            return Elements(self.buffer, self.offset, shape, self.strides[len(part) :])
        first, sizes, strides = 0, list[int](), list[int]()
        named = [*part, *([slice(None)] * (len(self.strides) - len(part)))]
        for each, size, stride in zip(named, self.shape.sizes, self.strides, strict=True):
            taken = range(size)[each]
            if isinstance(taken, int):
                first += taken * stride
            else:
                first += taken.start * stride
                sizes.append(len(taken))
                strides.append(stride)
        offset = self.offset + first * TORCH_TYPES[self.shape.stored_as].itemsize
        return Elements(self.buffer, offset, ElementsShape(tuple(sizes), self.shape.stored_as), tuple(strides))

    def memories(self) -> tuple[MTLBuffer]:
        """The buffer."""
        return (self.buffer,)

    def view_key(self) -> Hashable:
        """Which part of it."""
        return self.offset, self.shape, self.strides

    def rebind(self, memories: Sequence[MTLBuffer]) -> Elements:
        """The same of another buffer."""
        return Elements(memories[0], self.offset, self.shape, self.strides)

    def value(self) -> Tensor:
        """The elements, sharing the buffer's memory."""
        buffer, dtype = self.buffer, TORCH_TYPES[self.shape.stored_as]
        if buffer.length % dtype.itemsize:  # it cannot be seen as a whole
            return buffer.memory(dtype, self.offset, self.count).as_strided(self.shape.sizes, self.strides)
        flat = buffer.memory(dtype)
        first = flat.storage_offset() + self.offset // dtype.itemsize
        return flat.as_strided(self.shape.sizes, self.strides, first)

    def room(self) -> Tensor | None:
        """See `Binding`."""
        return self.value() if self.buffer.is_allocated else None

    def regions(self) -> tuple[Region]:
        """The bytes of the elements and of the gaps between them."""
        return (self.buffer.region(self.offset, self.count * TORCH_TYPES[self.shape.stored_as].itemsize),)

    def take(self, value: Tensor | None, *, is_shared: bool) -> None:
        """Store elements in their place; where that is a whole buffer without memory yet, they become its memory.

        They may be a view of the same memory. None are those that the function has put there.
        """
        if value is None:
            return
        if self._is_new_and_all_of(value) and self.buffer.bind_unless_allocated(value.clone() if is_shared else value):
            return
        place = self.value()
        place.copy_(value.clone() if is_shared and meet(value, place) else value)

    def _is_new_and_all_of(self, value: Tensor) -> bool:
        """Whether elements can be the memory of the buffer, which has none."""
        buffer = self.buffer
        return (
            not buffer.is_allocated
            and value.nbytes == buffer.length
            and value.dtype == TORCH_TYPES[self.shape.stored_as]
            and buffer.heap is None
            and value.is_contiguous()
            and value.stride() == self.strides
            and value.device == buffer.device.torch_device
        )
