"""A device, another one, a queue, and encodes that only count, for the tests of what kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device


@pytest.fixture
def mtl(device: torch.device) -> MTLDevice:
    return mtl_device(device)


@pytest.fixture
def queue(mtl: MTLDevice) -> MTLCommandQueue:
    return mtl.new_command_queue()


@pytest.fixture
def stranger() -> MTLDevice:
    """A device that no other object of a test belongs to."""
    return MTLDevice(torch.device("cpu"))


@pytest.fixture
def encode() -> Callable[..., None]:
    """Records work that reads some operands once, as the encode of a kernel does."""

    def encode(command_buffer: CommandBuffer, *operands: Any, work: Callable[[], None] = lambda: None) -> None:
        for operand in operands:
            operand.check_usable("Kernel", "source", command_buffer)
        command_buffer.record("Kernel", work)
        for operand in operands:
            operand.count_read()

    return encode
