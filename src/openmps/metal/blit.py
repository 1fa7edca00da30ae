"""Copies of bytes between buffers (MTLBlitCommandEncoder.h, macOS 10.11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from openmps.checks import Labelled, NamedAttributes, Single, described, is_whole
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError, MTLCommandBufferError, counted
from openmps.metal.execution import Work
from openmps.metal.pending import Region, Writer, require_written, unwritten
from openmps.metal.processor import Processor
from openmps.metal.resource import Bytes, Resource, byte_range
from openmps.types import MTLStorageMode, NSRange


@dataclass(frozen=True, slots=True, eq=False)
class CopyBytes(Writer):
    """The work of copying bytes from one buffer to another."""

    source: Bytes
    source_offset: int
    destination: Bytes
    destination_offset: int
    size: int

    @property
    def single_use(self) -> str:
        """See `Writer`."""
        return ""

    def __call__(self) -> None:
        """Copy."""
        source = self.source.memory(torch.uint8, self.source_offset, self.size)
        self.destination.memory(torch.uint8, self.destination_offset, self.size).copy_(source)

    def reads(self) -> tuple[Region]:
        """The bytes that are copied."""
        return (self.source.region(self.source_offset, self.size),)

    def writes(self) -> tuple[Region]:
        """The bytes that are replaced."""
        return (self.destination.region(self.destination_offset, self.size),)


@dataclass(frozen=True, slots=True, eq=False)
class FillBytes(Writer):
    """The work of setting bytes of a buffer to one value."""

    buffer: Bytes
    offset: int
    size: int
    value: int

    @property
    def single_use(self) -> str:
        """See `Writer`."""
        return ""

    def __call__(self) -> None:
        """Fill."""
        self.buffer.memory(torch.uint8, self.offset, self.size).fill_(self.value)

    def writes(self) -> tuple[Region]:
        """The bytes that are set."""
        return (self.buffer.region(self.offset, self.size),)


class BlitEncoder(NamedAttributes, Labelled, Single):
    """What an `MTLBlitCommandEncoder` checks and records."""

    _instead = "Make another with blit_command_encoder() of a command buffer"

    def __init__(self, device: Processor, close: Callable[[list[tuple[str, Work]]], None]) -> None:
        self._device = device
        self._close: Callable[[list[tuple[str, Work]]], None] | None = close
        self._works: list[tuple[str, Work]] = []

    def __repr__(self) -> str:
        return described(self, "ended" if self._close is None else f"{counted(len(self._works), 'command')}")

    @property
    def works(self) -> tuple[tuple[str, Work], ...]:
        """What it has recorded so far and not handed over."""
        return tuple(self._works)

    def end_encoding(self) -> None:
        """End the encoder: what it recorded is part of the command buffer, and other encodes may follow."""
        close = self._check_open("end_encoding")
        # An encoder that has ended does not keep its command buffer.
        self._close = None
        works, self._works = self._works, []
        close(works)

    def __exit__(self, *_: object) -> None:
        if self._close is not None:
            self.end_encoding()

    def _check_open(self, method: str) -> Callable[[list[tuple[str, Work]]], None]:
        if self._close is None:
            remedy = "Ask the command buffer for another encoder"
            raise MTLCommandBufferError(self.name, method, "needs an encoder that is not ended", None, remedy)
        return self._close

    def _check_device(self, argument: str, resource: Resource) -> None:
        if resource.device is not self._device:
            remedy = "Make buffers and command queue from one device"
            rule = f"must belong to the device {self._device}"
            raise MPSDeviceError(self.name, argument, rule, resource.device, remedy)

    def _bounds(self, argument: str, buffer: Bytes, span: NSRange | range) -> tuple[int, int]:
        if not isinstance(buffer, Bytes):
            raise MPSTypeError(self.name, argument, "must be an MTLBuffer", type(buffer).__name__)
        self._check_device(argument, buffer)
        return byte_range(self.name, f"range of {argument}", span, buffer.length)

    def _check_readable(self, resource: Resource) -> None:
        if not isinstance(resource, Resource):
            raise MPSTypeError(self.name, "resource", "must be an MTLResource", type(resource).__name__)
        self._check_device("resource", resource)
        if resource.storage_mode is MTLStorageMode.PRIVATE:
            remedy = "Copy it to a shared buffer with copy_from_buffer"
            raise MPSArgumentError(self.name, "resource", "must be readable by the CPU", "PRIVATE storage", remedy)

    def _copy(self, source: Bytes, source_offset: int, destination: Bytes, destination_offset: int, size: int) -> None:
        start, stop = self._bounds("source", source, NSRange(source_offset, size))
        to_start, to_stop = self._bounds("destination", destination, NSRange(destination_offset, size))
        if source is destination and start < to_stop and to_start < stop:
            got = f"{start}..{stop} and {to_start}..{to_stop}"
            remedy = "Copy by way of a third buffer"
            raise MPSArgumentError(self.name, "source and destination", "must not overlap in one buffer", got, remedy)
        if unwritten:
            require_written(self.name, "copy_from_buffer", (source.region(start, size),))
        self._works.append(("copy_from_buffer", CopyBytes(source, start, destination, to_start, size)))

    def _fill(self, buffer: Bytes, span: NSRange | range, value: int) -> None:
        start, stop = self._bounds("buffer", buffer, span)
        if not is_whole(value, 0) or value > 255:
            raise MPSArgumentError(self.name, "value", "must be a byte, 0 to 255", repr(value))
        self._works.append(("fill_buffer", FillBytes(buffer, start, stop - start, value)))
