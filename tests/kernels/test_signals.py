"""A signal handler that encodes a kernel whose encode it interrupts: nothing hangs, and both are counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from striking import at_every_place

PATIENCE = 60.0


def dropout(device: mps.MTLDevice) -> tuple[Callable[[Any], object], Callable[[], int]]:
    kernel = mps.MPSCNNDropout(device, 0.5, 1, mps.MTLSize(1, 1, 1))
    x = mps.MPSImage.from_numpy(device, np.ones((2, 2, 1), np.float32))
    return lambda command_buffer: kernel.encode(command_buffer, x), lambda: kernel._step  # pyright: ignore[reportPrivateUsage]


def philox(device: mps.MTLDevice) -> tuple[Callable[[Any], object], Callable[[], int]]:
    kernel = mps.MPSMatrixRandomPhilox(device)
    vector = mps.MPSVector(device=device, descriptor=mps.MPSVectorDescriptor(1, mps.MPSDataType.UINT32))
    return lambda command_buffer: kernel.encode(command_buffer, destination_vector=vector), lambda: kernel._position  # pyright: ignore[reportPrivateUsage]


def adam(device: mps.MTLDevice) -> tuple[Callable[[Any], object], Callable[[], int]]:
    kernel = mps.MPSNNOptimizerAdam(device, 1e-3)
    names = ("input_gradient", "input_values", "input_momentum", "input_velocity", "result_values")
    vectors = {f"{name}_vector": mps.MPSVector(device=device, descriptor=mps.MPSVectorDescriptor(2)) for name in names}
    return lambda command_buffer: kernel.encode(command_buffer, **vectors), lambda: kernel.time_step


@pytest.mark.parametrize("make", [dropout, philox, adam], ids=lambda make: make.__name__)
def test_an_encode_within_an_encode(make: Callable[[Any], Any]) -> None:
    device = mps.mtl_device("cpu")
    queue, places = device.new_command_queue(), 0
    warm, _ = make(device)
    warm(queue.command_buffer())
    for place in at_every_place():
        encode, count = make(device)
        outer, inner = queue.command_buffer(), queue.command_buffer()
        timer = threading.Timer(PATIENCE, os._exit, (1,))
        timer.daemon = True
        timer.start()
        struck = place(
            lambda encode=encode, outer=outer: encode(outer), lambda encode=encode, inner=inner: encode(inner)
        )
        timer.cancel()
        assert count() == 1 + struck
        places += struck
    assert places > 20
