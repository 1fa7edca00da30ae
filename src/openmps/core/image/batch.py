"""MPSImageBatch: the images that one encode works on together (MPSImage.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import KnownAttributes, members, store, whole
from openmps.core.image import arrays
from openmps.core.image.descriptor import MPSImageDescriptor, check_is_descriptor
from openmps.core.image.image import MPSImage, defined_above, new_storage
from openmps.core.image.members import Members, TemporaryMembers
from openmps.core.image.picture import png_of
from openmps.core.image.storage import Block, Extent, Shape, Stack, Storage
from openmps.core.image.temporary import MPSTemporaryImage, private_copy
from openmps.core.image.views import merge
from openmps.core.lifetime import TemporaryCounts, check_device, check_is_device, check_is_open
from openmps.core.numbers import position
from openmps.core.operand import Operand
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.locks import new_lock
from openmps.metal.array_protocols import exported, location
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import require_written, unwritten, wait_until_written
from openmps.ops.elements import DTYPES
from openmps.runtime.host import layout_of_array
from openmps.types import MPSDataLayout, MPSImageFeatureChannelFormat

MOST_IMAGES = 1 << 20
"""Images of the largest batch: each may become an object of its own."""

_making = new_lock()  # for an assignment only, as those of storage.py
_new_object = object.__new__


class MPSImageBatch(KnownAttributes, Operand, Sequence[MPSImage]):
    """An immutable sequence of images of one shape, format and device (MPSImage.h, macOS 10.13.4).

    A batch that an encode returns, or that `allocate`, `from_numpy` or `from_tensor` makes, is one block
    ``[N, C, H, W]``: its images are views, made when they are asked for, and so are slices of it. A batch put together
    from images that lie apart is gathered into one block whenever an encode reads it; its ``repr`` says so. Images
    taken out of one block and put together again in order are one block.
    """

    __slots__ = ("__weakref__", "_images", "_made", "_span", "_stack")

    is_batch = True
    _images: tuple[MPSImage, ...]
    _made: Members | BatchTemplate | None  # the images of one block, or how they are made when they are asked for
    _span: range
    _stack: Stack | None

    def __init__(self, images: Iterable[MPSImage] = ()) -> None:
        rule = "must be a sequence of MPSImage"
        if isinstance(images, MPSImage):
            raise MPSTypeError("MPSImageBatch", "images", rule, type(images).__name__, "Pass [image]")
        listed = tuple(members("MPSImageBatch", "images", images, rule))
        for index, image in enumerate(listed):
            if not isinstance(image, MPSImage):
                raise MPSTypeError("MPSImageBatch", f"images[{index}]", "must be an MPSImage", type(image).__name__)
        store(self, "_images", listed)
        store(self, "_made", None)
        store(self, "_span", range(len(listed)))
        store(self, "_stack", None)

    @classmethod
    def allocate(cls, device: MTLDevice, image_descriptor: MPSImageDescriptor, count: int) -> MPSImageBatch:
        """``count`` ordinary images of one image each, in one block."""
        device = check_is_device("MPSImageBatch", "device", device)
        descriptor = check_is_descriptor("MPSImageBatch", "image_descriptor", image_descriptor).copy()
        storage = new_storage("MPSImageBatch", device, descriptor, _count(descriptor, count))
        return cls._of(Members(Storage.of(storage.block), descriptor, device))

    @classmethod
    def allocate_temporary(
        cls, command_buffer: CommandBuffer, image_descriptor: MPSImageDescriptor, count: int
    ) -> MPSImageBatch:
        """``count`` temporary images of one image each, in one block; each starts with a read count of 1."""
        command_buffer = check_is_open("MPSImageBatch", command_buffer)
        descriptor = private_copy("MPSImageBatch", image_descriptor)
        storage = new_storage("MPSImageBatch", command_buffer.device, descriptor, _count(descriptor, count))
        return cls._of(TemporaryMembers(storage.block, descriptor, command_buffer))

    @classmethod
    def from_numpy(
        cls, device: MTLDevice, array: Any, channel_format: MPSImageFeatureChannelFormat | None = None
    ) -> MPSImageBatch:
        """Images with a copy of ``array``, ``[images, height, width, channels]``, in one block.

        See `MPSImage.from_numpy`.
        """
        is_known = channel_format is None or type(channel_format) is MPSImageFeatureChannelFormat
        if is_known and type(array) is np.ndarray and isinstance(device, MTLDevice):
            # A training step makes some: what says all of a plain array is looked up at once.
            template = keeping(device, array.shape, array.dtype, channel_format)
            if template is not None:
                return template.holding(array.copy())
        block = arrays.from_numpy("MPSImageBatch", device, array, channel_format, (4,))
        return _like(device, block.channel_format, block.extent).batch_of(block)

    @classmethod
    def from_tensor(
        cls,
        device: MTLDevice,
        tensor: Any,
        channel_format: MPSImageFeatureChannelFormat | None = None,
        copy: bool | None = None,
        data_layout: MPSDataLayout = MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH,
    ) -> MPSImageBatch:
        """Images of a tensor ``[images, channels, height, width]``, in one block, with its memory where possible.

        ``[images, height, width, channels]`` with a ``data_layout`` of HEIGHT_X_WIDTH_X_FEATURE_CHANNELS.
        See `MPSImage.from_tensor`.
        """
        block = arrays.from_tensor("MPSImageBatch", device, tensor, channel_format, copy, (4,), data_layout)
        return _like(device, block.channel_format, block.extent).batch_of(block)

    @classmethod
    def _of(cls, members: Members, span: range | None = None) -> MPSImageBatch:
        batch = cls.__new__(cls)
        store(batch, "_images", ())
        store(batch, "_made", members)
        store(batch, "_span", range(members.storage.count) if span is None else span)
        store(batch, "_stack", None)
        return batch

    @property
    def _members(self) -> Members | None:
        made = self._made
        if not isinstance(made, BatchTemplate):
            return made
        stack = self.whole()
        if stack.members is None:
            mine = Members(stack.parts[0], made.descriptor, made.device)
            with _making:  # two threads that ask at once get the same object
                stack.members = mine if stack.members is None else stack.members
        return stack.members

    # --- a sequence -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._span)

    @overload
    def __getitem__(self, index: int) -> MPSImage: ...
    @overload
    def __getitem__(self, index: slice) -> MPSImageBatch: ...
    def __getitem__(self, index: int | slice) -> MPSImage | MPSImageBatch:
        found = position("MPSImageBatch", index, len(self))
        if isinstance(found, int):
            return self._image(found)
        if self._members is not None and found.step == 1 and len(found):
            return MPSImageBatch._of(self._members, self._span[found.start : found.stop])
        return MPSImageBatch(self._image(each) for each in found)

    def _image(self, index: int) -> MPSImage:
        return self._images[index] if self._members is None else self._members.image(self._span[index])

    def __repr__(self) -> str:
        if not len(self):
            return "<MPSImageBatch of 0 images>"
        if self._members is not None:
            kind = "one block"
        elif len({_shape(image) for image in self._images}) > 1:
            kind = "and images that differ from it"
        elif len(merge([image.storage for image in self._images])) == 1:
            kind = "one block"
        else:
            kind = "unrelated images, gathered at each encode"
        return f"<MPSImageBatch of {len(self)} x {self._image(0)!r}, {kind}>"

    def _repr_png_(self) -> bytes | None:
        return png_of(self.numpy) if len(self) else None

    # --- contents ---------------------------------------------------------------------------------------------------

    def numpy(self) -> NDArray[np.float32]:
        """The numbers of all images, a float32 copy ``[images, height, width, channels]``."""
        return arrays.to_numpy(self._readable("numpy").values())

    def tensor(self) -> torch.Tensor:
        """The stored elements ``[images, channels, height, width]`` as a tensor that shares the images' memory.

        Raises:
            MPSArgumentError: The images lie apart.
        """
        stack = self._readable("tensor")
        if len(stack.parts) != 1:
            remedy = "Use numpy(), or torch.cat the tensors of the images"
            raise MPSArgumentError("MPSImageBatch", "images", "must lie in one block", repr(self), remedy)
        return stack.parts[0].tensor()

    def _readable(self, method: str) -> Stack:
        stack = self.stack()
        for image in self._images or (self._image(0),):
            image.check_cpu_access(method)
        wait_until_written("MPSImageBatch", method, stack.regions())
        return stack

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> object:
        return exported("MPSImageBatch", self.tensor(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return location(self.representative().device.torch_device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return arrays.array_of("MPSImageBatch", self.numpy(), dtype, copy)

    # --- for the encode path ----------------------------------------------------------------------------------------

    def representative(self) -> MPSImage:
        """The image that stands for all of them where sizes are computed."""
        self._check_not_empty()
        return self._image(0)

    def stack(self) -> Stack:
        """All images as an encode sees them. Raises unless they agree in shape, format and device."""
        stack = self._stack
        if stack is None:
            stack = self._make_stack()
            store(self, "_stack", stack)
        return stack

    def whole(self) -> Stack:
        """All images; the same as `stack`."""
        stack = self._stack
        return self.stack() if stack is None else stack

    def _make_stack(self) -> Stack:
        if self._members is not None:
            part = self._members.storage
            if len(self._span) != part.count:
                part = part.narrowed(self._span.start, len(self._span))
            return Stack((part,), Shape(part.extent, part.block.channel_format))
        self._check_not_empty()
        self._check_alike()
        first = self._images[0].storage
        parts: list[Storage] = merge([image.storage for image in self._images])
        whole = first.block.extent
        extent = Extent(whole.width, whole.height, first.channels, len(self._images))
        return Stack(tuple(parts), Shape(extent, first.block.channel_format))

    def _check_not_empty(self) -> None:
        if not len(self):
            raise MPSArgumentError("MPSImageBatch", "images", "must be at least one image", "an empty batch")

    def _check_alike(self) -> None:
        first = self._images[0]
        block, channels = first.storage.block, first.storage.channels
        for index, image in enumerate(self._images):
            part = image.storage
            if part.count != 1:
                rule, remedy = "must hold exactly one image", "Use its batch_representation()"
                raise MPSArgumentError("MPSImageBatch", f"image {index}", rule, f"{part.count} images", remedy)
            if part.block is block and part.channels == channels:
                continue
            if _shape(image) != _shape(first):
                rule = f"must have the size, channels and format of image 0, {first!r}"
                raise MPSArgumentError("MPSImageBatch", f"image {index}", rule, repr(image))
            check_device("MPSImageBatch", f"image {index}", image.device, first.device)

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use every image, and all of them together."""
        made = self._made
        if made is not None:
            if isinstance(made, TemporaryMembers):
                made.check_usable(who, argument, command_buffer, self._span)
            elif made.device is not command_buffer.device:
                check_device(who, argument, made.device, command_buffer.device)
            return
        for index, image in enumerate(self._images):
            image.check_usable(who, f"{argument}[{index}]", command_buffer)
        try:
            self.stack()
        except MPSArgumentError as fault:
            # The batch says what is wrong with it; the caller says which argument it is.
            raise MPSArgumentError(who, f"{argument}: {fault.argument}", fault.rule, fault.got, fault.remedy) from fault

    def count_read(self, amount: int = 1) -> None:
        """Take reads from every different image once."""
        made = self._made
        if made is not None:
            if isinstance(made, TemporaryMembers):
                made.count_read(amount, self._span)
            return
        for image in self.unique():
            image.count_read(amount)

    def add_reads(self, amount: int) -> None:
        """Change the read count of every different temporary image that is not at 0 yet."""
        made = self._made
        if made is not None:
            if isinstance(made, TemporaryMembers):
                made.add_reads(amount, self._span)
            return
        for image in self.unique():
            image.add_reads(amount)

    def fewest_reads(self) -> int | None:
        """The smallest read count among the temporary images; None if there are none."""
        made = self._made
        if made is not None:
            return made.fewest(self._span) if isinstance(made, TemporaryMembers) else None
        return min((image.read_count for image in self._images if isinstance(image, MPSTemporaryImage)), default=None)

    def count_unique(self) -> int:
        """The number of different images."""
        return len(self.unique()) if self._members is None else len(self)

    def unique(self) -> Sequence[MPSImage]:
        """The different images, in order of first appearance; the batch itself where it is one block."""
        if self._members is not None:  # of many images, which are made when they are asked for
            return self
        return list({id(image): image for image in self}.values())

    def synchronize(self, command_buffer: CommandBuffer) -> None:
        """Synchronize every different image once; those of one block together."""
        if unwritten:
            require_written("MPSImageBatch", "synchronize", self.stack().regions())
        for image in self.unique() if self._members is None else (self._image(0),):
            image.synchronize(command_buffer)

    def resource_size(self) -> int:
        """Bytes of memory behind the different images."""
        if self._members is None:
            return sum(image.resource_size() for image in self.unique())
        stack = self.stack()
        return stack.extent.bytes_as(stack.channel_format)


defined_above.batch_of = MPSImageBatch


class BatchTemplate:
    """Makes batches of one shape on one device, which was checked once; see `allocate` and `allocate_temporary`."""

    __slots__ = ("descriptor", "device", "layout", "shape", "span", "torch_device", "view_key", "whole")

    def __init__(self, device: MTLDevice, descriptor: MPSImageDescriptor, count: int) -> None:
        self.device, self.torch_device, self.descriptor = device, device.torch_device, descriptor.copy()
        block = new_storage("MPSImageBatch", device, self.descriptor, _count(self.descriptor, count)).block
        self.shape = Shape(block.extent, block.channel_format)
        self.whole = 0, block.extent.images, 0, block.extent.channels
        self.span = range(count)
        self.view_key = Stack((Storage.of(block),), self.shape).view_key()
        """How all of a block is seen."""
        self.layout = layout_of_array(block.extent.shape, DTYPES[block.channel_format])
        """How elements lie that come as an array."""

    def batch(self) -> MPSImageBatch:
        """A new batch."""
        extent, channel_format = self.shape
        return self._all_of(Storage(Block(self.torch_device, channel_format, extent), *self.whole), self)

    def image(self) -> MPSImage:
        """A new image object that holds all of them."""
        storage = Storage.of(Block(self.torch_device, self.shape.channel_format, self.shape.extent))
        return self._seen(MPSImage.member(self.device, self.descriptor, storage))

    def _seen(self, image: MPSImage) -> MPSImage:
        store(image, "_whole", Stack((image.storage,), self.shape, self.view_key))
        return image

    def holding(self, elements: NDArray[Any]) -> MPSImageBatch:
        """A new batch of elements that are nobody else's, ``[images, height, width, channels]``."""
        extent, channel_format = self.shape
        block = Block(self.torch_device, channel_format, extent, elements, self.layout)
        return self._all_of(Storage(block, *self.whole), self)

    def batch_of(self, block: Block) -> MPSImageBatch:
        """The batch of a block of this shape."""
        return self._all_of(Storage(block, *self.whole), self)

    def _all_of(self, storage: Storage, made: Members | BatchTemplate) -> MPSImageBatch:
        batch = _new_object(MPSImageBatch)
        store(batch, "_images", ())
        store(batch, "_made", made)
        store(batch, "_span", self.span)
        store(batch, "_stack", Stack((storage,), self.shape, self.view_key))
        return batch


class TemporaryTemplate(BatchTemplate):
    """Makes temporary ones."""

    __slots__ = ()

    def __init__(self, device: MTLDevice, descriptor: MPSImageDescriptor, count: int) -> None:
        super().__init__(device, private_copy("MPSImageBatch", descriptor), count)

    def on(self, command_buffer: CommandBuffer) -> MPSImageBatch:
        """A new batch; the command buffer is open and of the device."""
        block = Block(self.torch_device, self.shape.channel_format, self.shape.extent)
        members = TemporaryMembers(block, self.descriptor, command_buffer)
        return self._all_of(members.storage, members)

    def image_on(self, command_buffer: CommandBuffer) -> MPSImage:
        """A new image object that holds all of them; likewise."""
        storage = Storage.of(Block(self.torch_device, self.shape.channel_format, self.shape.extent))
        counts = TemporaryCounts(command_buffer, storage.block, 1)
        return self._seen(MPSTemporaryImage.temporary_member(self.descriptor, storage, command_buffer, counts, 0))


@lru_cache(maxsize=512)
def _like(device: MTLDevice, channel_format: MPSImageFeatureChannelFormat, extent: Extent) -> BatchTemplate:
    """What makes batches of images of this shape."""
    width, height, channels, images = extent
    return BatchTemplate(device, MPSImageDescriptor(channel_format, width, height, channels), images)


@lru_cache(maxsize=512)
def keeping(
    device: MTLDevice, sizes: tuple[int, ...], dtype: np.dtype[Any], channel_format: MPSImageFeatureChannelFormat | None
) -> BatchTemplate | None:
    """What makes batches of arrays whose elements are stored as they are; None where they are not, or refused."""
    shape = arrays.kept_shape("MPSImageBatch", device, sizes, dtype, channel_format)
    return None if shape is None else _like(device, shape.channel_format, shape.extent)


def _shape(image: MPSImage) -> tuple[object, ...]:
    """What the images of a batch have in common."""
    part = image.storage
    return part.block.extent.width, part.block.extent.height, part.channels, part.count, part.block.channel_format


def _count(descriptor: MPSImageDescriptor, count: object) -> int:
    images = count if type(count) is int and count > 0 else whole("MPSImageBatch", "count", count)
    if images > MOST_IMAGES:
        raise MPSArgumentError("MPSImageBatch", "count", f"must be at most {MOST_IMAGES} images", images)
    if descriptor.number_of_images != 1:
        rule = "must be 1 for the images of a batch"
        raise MPSArgumentError("MPSImageBatch", "image_descriptor.number_of_images", rule, descriptor.number_of_images)
    return images


def as_batch(who: str, argument: str, images: object) -> MPSImageBatch:
    """Any sequence of images as a batch."""
    if isinstance(images, MPSImageBatch):
        return images
    if isinstance(images, MPSImage) or not isinstance(images, Sequence):
        raise MPSTypeError(who, argument, "must be a sequence of MPSImage", type(images).__name__)
    for index, image in enumerate(images):
        if not isinstance(image, MPSImage):
            raise MPSTypeError(who, f"{argument}[{index}]", "must be an MPSImage", type(image).__name__)
    return MPSImageBatch(images)
