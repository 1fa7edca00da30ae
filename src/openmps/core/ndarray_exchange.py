"""N-dimensional arrays copied to buffers and images, and from them (MPSNDArray.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.checks import is_whole, of_kind
from openmps.core.elements import Elements, ElementsShape
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.ndarray_copies import TO_ARRAY, TO_PIXELS, ArrayCopy, PartOfImages, SeenElements
from openmps.core.ndarray_bytes import whole_strides
from openmps.core.stored_elements import StoredElements
from openmps.core.vector_descriptor import element_bytes, element_type
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLBuffer
from openmps.types import MPSImageCoordinate

_SLICE = 4
"""Feature channels of a texture slice."""
_PIXEL_AXES = 4


def export_to_buffer(
    array: StoredElements, command_buffer: CommandBuffer, buffer: Any, data_type: Any, offset: Any, row_strides: Any
) -> None:
    """Record the copy of an array to a buffer."""
    names = "to_buffer", "destination_data_type"
    seen = _in_buffer(array, names, buffer, data_type, offset, row_strides)
    _check_apart(array.name, seen)
    ArrayCopy(array.device, array.name).encode(command_buffer, ("the array", array), (names[0], SeenElements(seen)))


def import_from_buffer(
    array: StoredElements, command_buffer: CommandBuffer, buffer: Any, data_type: Any, offset: Any, row_strides: Any
) -> None:
    """Record the copy of a buffer's elements to an array."""
    names = "from_buffer", "source_data_type"
    seen = _in_buffer(array, names, buffer, data_type, offset, row_strides)
    ArrayCopy(array.device, array.name).encode(command_buffer, (names[0], SeenElements(seen)), ("the array", array))


def export_to_images(array: StoredElements, command_buffer: CommandBuffer, images: Any, offset: Any) -> None:
    """Record the copy of an array to a part of images."""
    pixels, part = _of_images(array, "to_images", images, offset)
    copy = ArrayCopy(array.device, array.name)
    copy.encode(command_buffer, ("the array", pixels), ("to_images", part), TO_PIXELS)


def import_from_images(array: StoredElements, command_buffer: CommandBuffer, images: Any, offset: Any) -> None:
    """Record the copy of a part of images to an array."""
    pixels, part = _of_images(array, "from_images", images, offset)
    copy = ArrayCopy(array.device, array.name)
    copy.encode(command_buffer, ("from_images", part), ("the array", pixels), TO_ARRAY)


def _in_buffer(
    array: StoredElements, names: tuple[str, str], buffer: Any, data_type: Any, offset: Any, row_strides: Any
) -> Elements:
    """The elements of a buffer that an array's are copied to or from."""
    who, (argument, type_argument) = array.name, names
    held = of_kind(who, argument, buffer, MTLBuffer)
    kind = array.data_type if data_type is None else element_type(who, type_argument, data_type)
    unit, sizes = element_bytes(who, kind, type_argument), array.whole().shape.sizes
    if not is_whole(offset, 0) or offset % unit:
        rule = f"must be a multiple of {unit}, the bytes of an element, of at least 0"
        raise MPSArgumentError(who, "offset", rule, repr(offset))
    rows = whole_strides(who, "row_strides", row_strides, len(sizes), unit)
    view = Elements(held, offset, ElementsShape(sizes, kind), _strides(sizes, rows))
    needed = offset + view.count * unit
    if needed > held.length:
        raise MPSArgumentError(who, argument, f"must hold {needed} bytes", f"a buffer of {held.length} bytes")
    return view


def _strides(sizes: Sequence[int], rows: Sequence[int] | None) -> tuple[int, ...]:
    """Distances in elements, the slowest dimension first."""
    if rows is not None:
        return (*rows[::-1], 1)[: len(sizes)] if sizes else ()
    strides, distance = list[int](), 1
    for size in reversed(sizes):
        strides.insert(0, distance)
        distance *= size
    return tuple(strides)


def _check_apart(who: str, view: Elements) -> None:
    """Raise where two elements would be written to one place."""
    reach = 0
    for stride, size in sorted(zip(view.strides, view.shape.sizes, strict=True)):
        if size > 1 and stride <= reach:
            rule = "must keep elements apart that are written"
            raise MPSArgumentError(who, "row_strides", rule, f"{stride} elements, behind {reach + 1}")
        reach += (size - 1) * stride


def _of_images(array: StoredElements, argument: str, images: Any, offset: Any) -> tuple[SeenElements, PartOfImages]:
    """An array as pixels ``[N, H, W, C]``, and the part of images that they are."""
    who, view = array.name, array.whole()
    at = of_kind(who, "offset", offset, MPSImageCoordinate)
    if at.channel % _SLICE:
        raise MPSArgumentError(who, "offset.channel", f"must be a multiple of {_SLICE}", at.channel)
    sizes, strides = view.shape.sizes, view.strides
    more = max(0, len(sizes) - _PIXEL_AXES)
    if any(size != 1 for size in sizes[:more]):
        rule = "must have dimensions of channels, width, height and images, and others of length 1"
        raise MPSArgumentError(who, "the array", rule, f"lengths {sizes[::-1]}")
    missing = max(0, _PIXEL_AXES - len(sizes))
    shape = ElementsShape((*[1] * missing, *sizes[more:]), view.shape.stored_as)
    pixels = Elements(view.buffer, view.offset, shape, (*[view.count] * missing, *strides[more:]))
    count, height, width, channels = shape.sizes
    batch: MPSImageBatch = as_batch(who, argument, [images] if isinstance(images, MPSImage) else images)
    extent = batch.whole().extent
    if extent.images != count:
        raise MPSArgumentError(who, argument, f"must hold {count} image(s), dimension 3 of the array", extent.images)
    last = at.x + width, at.y + height, at.channel + channels
    there = extent.width, extent.height, extent.channels
    if any(one > other for one, other in zip(last, there, strict=True)):
        rule = f"must have {last[0]}x{last[1]} pixels of {last[2]} channels: the offset, and the array's lengths"
        raise MPSArgumentError(who, argument, rule, f"{there[0]}x{there[1]} and {there[2]}")
    target = Target(at.x, at.y, width, height, at.channel, channels)
    return SeenElements(pixels, array), PartOfImages(batch, target)
