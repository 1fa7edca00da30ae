"""Copies of n-dimensional arrays, with conversions, to and from buffers and images (MPSNDArray.h, macOS 10.15)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.checks import store
from openmps.core.elements import Elements
from openmps.core.image.pixels import Pixels
from openmps.core.image.storage import Block, Extent, Shape, Stack, Target
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel
from openmps.core.lifetime import check_device
from openmps.core.operand import Operand, View
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import Region
from openmps.ops.elements import DTYPES, Load, Store
from openmps.ops.layout.casts import Cast, Permuted, Reshaped
from openmps.types import MPSDataType
from openmps.types import MPSImageFeatureChannelFormat as Format

_SHARES = {MPSDataType.UNORM8: Format.UNORM8, Format.UNORM8: Format.UNORM8, Format.UNORM16: Format.UNORM16}
"""Types whose elements are shares of the largest one."""
_NO_NUMBERS = (MPSDataType.COMPLEX_FLOAT32, MPSDataType.BOOL)
TO_PIXELS, TO_ARRAY = (0, 3, 1, 2), (0, 2, 3, 1)
"""Orders of the axes, from ``[N, H, W, C]`` to that of images and back."""


class SeenElements(Operand):
    """Elements in a buffer, of ``owner`` if there is one, whose life and reads are the operand's."""

    __slots__ = ("_owner", "_view")

    def __init__(self, view: Elements, owner: Operand | None = None) -> None:
        self._view, self._owner = view, owner

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless buffer and owner may be used."""
        check_device(who, argument, self._view.buffer.device, command_buffer.device)
        if self._owner is not None:
            self._owner.check_usable(who, argument, command_buffer)

    def whole(self) -> Elements:
        """The elements."""
        return self._view

    def count_read(self, amount: int = 1) -> None:
        """A read of the owner."""
        if self._owner is not None:
            self._owner.count_read(amount)


class _Rectangle(View[Shape]):
    """A rectangle and a run of channels of images."""

    __slots__ = ("_pixels", "shape")

    def __init__(self, pixels: Pixels) -> None:
        target, whole = pixels.target, pixels.stack.extent
        self._pixels = pixels
        self.shape = Shape(
            Extent(target.width, target.height, target.channels, whole.images), pixels.stack.channel_format
        )

    def memories(self) -> tuple[Block, ...]:
        return self._pixels.memories()

    def view_key(self) -> Hashable:
        return self._pixels.view_key()

    @property
    def is_whole(self) -> bool:
        return self._pixels.is_whole

    def rebind(self, memories: Sequence[Block]) -> _Rectangle:
        return _Rectangle(self._pixels.rebind(memories))

    def value(self) -> Tensor:
        target = self._pixels.target
        rows, columns = slice(target.y, target.y + target.height), slice(target.x, target.x + target.width)
        channels = slice(target.channel, target.channel + target.channels)
        return self._pixels.stack.value()[:, channels, rows, columns]

    def take(self, value: Tensor | None, *, is_shared: bool) -> None:
        self._pixels.take(value, is_shared=is_shared)

    def regions(self) -> list[Region]:
        return self._pixels.regions()


class PartOfImages(Operand):
    """A rectangle and a run of channels of an image, or of a batch of them."""

    __slots__ = ("_images", "_target")

    def __init__(self, images: Any, target: Target) -> None:
        self._images, self._target = images, target

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """That of the images."""
        self._images.check_usable(who, argument, command_buffer)

    def whole(self) -> _Rectangle:
        """The part."""
        stack: Stack = self._images.whole()
        return _Rectangle(Pixels(stack, self._target))

    def count_read(self, amount: int = 1) -> None:
        """A read of the images."""
        self._images.count_read(amount)


class ArrayCopy(OperandKernel):
    """A copy of all of one operand to another one of as many elements, which stand for the same numbers."""

    def __init__(self, device: MTLDevice, who: str) -> None:
        super().__init__(device)
        store(self, "_name", who)

    def encode(
        self,
        command_buffer: CommandBuffer,
        source: tuple[str, Operand],
        result: tuple[str, Operand],
        order: tuple[int, ...] | None = None,
    ) -> None:
        """Record the copy of a source to a result, each with its argument's name.

        ``order`` is that of the source's axes in the result, the same unless said; an array's elements may have other
        lengths there.
        """
        kinds = [each.whole().shape.stored_as for _, each in (source, result)]
        for kind in _NO_NUMBERS:
            if kind in kinds and kinds[0] != kinds[1]:
                rule = f"must hold numbers, as {kind.name} elements are none, or {kind.name} both"
                raise MPSArgumentError(self.name, result[0], rule, f"{kinds[0].name} and {kinds[1].name}")
        arguments = Argument(source[0], Operand), Argument(result[0], Operand, is_result=True)
        self._encode(command_buffer, source[1], result[1], arguments=arguments, asked=(source[0], result[0], order))

    def _lower(self, at: OperandContext) -> None:
        source, result, order = at.asked
        kinds = at.shape(source).stored_as, at.shape(result).stored_as
        value, (mine, other) = at.elements(source), (_how(each) for each in kinds)
        if order is not None:
            value = Permuted(order)(value)
        elif at.shape(source).sizes != at.shape(result).sizes:
            value = Reshaped(at.shape(result).sizes)(value)
        if mine != other:
            if mine[1] is not None:
                value = Load(mine[1])(value)
            if other[1] is not None:
                value = Store(other[1])(Cast(torch.float32)(value))
            else:
                value = Cast(other[0])(value)
        at.store_elements(result, value)


def _how(stored_as: MPSDataType | Format) -> tuple[torch.dtype, Format | None]:
    """How elements are stored: their type in a tensor, and what shares they are."""
    dtype = DTYPES[stored_as] if isinstance(stored_as, Format) else TORCH_TYPES[stored_as]
    return dtype, _SHARES.get(stored_as)
