"""MTLCommandQueue: makes command buffers and runs them in order (MTLCommandQueue.h, macOS 10.11)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.command import MTLCommandBuffer
from openmps.metal.host_memory import keep_freed_memory
from openmps.metal.lane import Lane

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MTLCommandQueue:
    """A serial queue of command buffers. Made by `MTLDevice.new_command_queue`.

    Buffers run one after the other in the order in which they were enqueued or, without `enqueue`, committed; Python
    goes on meanwhile. All queues of a CUDA device share the stream that is current where a buffer is committed. Memory
    that is given back is taken again in the order of the stream that it was first taken on: a program that commits
    under several streams keeps its images and buffers until the work that uses them has completed.

    At the end of the process what was committed is finished; handlers can commit no more then. Several threads may feed
    one queue, each with command buffers of its own.

    Args:
        device: The device that runs the work.
        max_command_buffer_count: How many committed buffers may be under way before `command_buffer` blocks, so that a
            loop that encodes faster than the device runs does not pile up memory.
    """

    def __init__(self, device: MTLDevice, max_command_buffer_count: int = 64) -> None:
        self.label: str | None = None
        """A name for errors and debugging."""
        count = max_command_buffer_count
        if not isinstance(getattr(device, "torch_device", None), torch.device):
            raise MPSTypeError("MTLCommandQueue", "device", "must be an MTLDevice", type(device).__name__)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise MPSArgumentError("MTLCommandQueue", "max_command_buffer_count", "must be at least 1", repr(count))
        if device.torch_device.type == "cpu":
            keep_freed_memory()
        self._device = device
        self._lane = Lane(device.torch_device, count)
        # The thread knows the lane only: when the queue goes, so does the thread. At exit the lane drains itself.
        weakref.finalize(self, self._lane.close).atexit = False

    def __repr__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"<{type(self).__name__}{label} on {self._device.name}>"

    @property
    def device(self) -> MTLDevice:
        """The device that runs the work."""
        return self._device

    def command_buffer(self) -> MTLCommandBuffer:
        """A new command buffer. Blocks while as many as the queue holds are under way."""
        self._lane.wait_for_room()
        return MTLCommandBuffer(self, self._lane)

    def command_buffer_with_unretained_references(self) -> MTLCommandBuffer:
        """A new command buffer that is not asked to keep what it uses alive; see `MTLCommandBuffer`."""
        self._lane.wait_for_room()
        return MTLCommandBuffer(self, self._lane, retained_references=False)
