"""The encoder that copies bytes between buffers (MTLBlitCommandEncoder.h, macOS 10.11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError, MTLCommandBufferError
from openmps.metal.execution import Work
from openmps.metal.memory import MTLBuffer, MTLResource, byte_range
from openmps.types import MTLStorageMode, NSRange

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer


class MTLBlitCommandEncoder:
    """Records copies between buffers of one device. Made by `MTLCommandBuffer.blit_command_encoder`.

    While it is open nothing else can be encoded on its command buffer. As a context manager it ends itself::

        with command_buffer.blit_command_encoder() as blit:
            blit.copy_from_buffer(source, 0, destination, 0, source.length)
    """

    def __init__(self, command_buffer: CommandBuffer, close: Callable[[list[tuple[str, Work]]], None]) -> None:
        self.label: str | None = None
        """A name for errors and debugging."""
        self._device = command_buffer.device
        self._close = close
        self._works: list[tuple[str, Work]] = []
        self._ended = False

    @property
    def name(self) -> str:
        """Class and label, as errors call the encoder."""
        return f"{type(self).__name__} {self.label!r}" if self.label else type(self).__name__

    def synchronize_resource(self, resource: MTLResource) -> None:
        """Make what the device wrote to ``resource`` visible to the CPU once the command buffer has completed.

        Memory is coherent at the ends of command buffers here, so this only checks that the CPU may read it at all.
        """
        self._check_open("synchronize_resource")
        if not isinstance(resource, MTLResource):
            raise MPSTypeError(self.name, "resource", "must be an MTLResource", type(resource).__name__)
        self._check_device("resource", resource)
        if resource.storage_mode is MTLStorageMode.PRIVATE:
            remedy = "Copy it to a shared buffer with copy_from_buffer"
            raise MPSArgumentError(self.name, "resource", "must be readable by the CPU", "PRIVATE storage", remedy)

    def copy_from_buffer(
        self, source: MTLBuffer, source_offset: int, destination: MTLBuffer, destination_offset: int, size: int
    ) -> None:
        """Copy ``size`` bytes from ``source_offset`` of ``source`` to ``destination_offset`` of ``destination``.

        Raises:
            MPSArgumentError: A range leaves its buffer, or the ranges overlap within one buffer.
        """
        self._check_open("copy_from_buffer")
        start, stop = self._bounds("source", source, NSRange(source_offset, size))
        to_start, to_stop = self._bounds("destination", destination, NSRange(destination_offset, size))
        if source is destination and start < to_stop and to_start < stop:
            got = f"{start}..{stop} and {to_start}..{to_stop}"
            remedy = "Copy by way of a third buffer"
            raise MPSArgumentError(self.name, "source and destination", "must not overlap in one buffer", got, remedy)

        def copy() -> None:
            destination.tensor(torch.uint8, to_start, size).copy_(source.tensor(torch.uint8, start, size))

        self._works.append(("copy_from_buffer", copy))

    def fill_buffer(self, buffer: MTLBuffer, range: NSRange | range, value: int) -> None:
        """Set every byte of ``range`` to ``value`` (0 to 255)."""
        self._check_open("fill_buffer")
        start, stop = self._bounds("buffer", buffer, range)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
            raise MPSArgumentError(self.name, "value", "must be a byte, 0 to 255", repr(value))

        def fill() -> None:
            buffer.tensor(torch.uint8, start, stop - start).fill_(value)

        self._works.append(("fill_buffer", fill))

    def end_encoding(self) -> None:
        """End the encoder: what it recorded is part of the command buffer, and other encodes may follow."""
        self._check_open("end_encoding")
        self._ended = True
        self._close(self._works)
        self._works = []

    def __enter__(self) -> MTLBlitCommandEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self.end_encoding()

    def _check_open(self, method: str) -> None:
        if self._ended:
            remedy = "Ask the command buffer for another encoder"
            raise MTLCommandBufferError(self.name, method, "needs an encoder that is not ended", None, remedy)

    def _check_device(self, argument: str, resource: MTLResource) -> None:
        if resource.device is not self._device:
            remedy = "Make buffers and command queue from one device"
            rule = f"must belong to the device {self._device}"
            raise MPSDeviceError(self.name, argument, rule, resource.device, remedy)

    def _bounds(self, argument: str, buffer: MTLBuffer, span: NSRange | range) -> tuple[int, int]:
        if not isinstance(buffer, MTLBuffer):
            raise MPSTypeError(self.name, argument, "must be an MTLBuffer", type(buffer).__name__)
        self._check_device(argument, buffer)
        return byte_range(self.name, f"range of {argument}", span, buffer.length)
