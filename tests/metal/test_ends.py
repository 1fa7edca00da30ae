"""The end of a process, and forks: what was committed is finished, nothing hangs, and nothing is lost silently."""

from __future__ import annotations

import os
from collections.abc import Callable

import forked
import pytest
import torch

ENDS = """
import logging, sys, time
from openmps.runtime.devices import mtl_device

device = mtl_device("cpu")
logging.basicConfig(stream=sys.stdout, format="%(message)s")

def two_queues():
    return device.new_command_queue(), device.new_command_queue()

def slow(queue, seconds):
    buffer = queue.command_buffer()
    buffer.record("sleep", lambda: time.sleep(seconds))
    return buffer

def committed(buffer, handler):
    buffer.add_completed_handler(handler)
    buffer.commit()
    return buffer

def tell(name):
    return lambda buffer: print(name, buffer.status.name, flush=True)

# Handlers that wait for a buffer of another queue, both ways round: neither queue may end before the other.
a, b = two_queues()
for one, other in ((a, b), (b, a)):
    late = committed(slow(other, 0.2), tell("waited for"))
    committed(slow(one, 0.1), lambda _, late=late: late.wait_until_completed())

# A handler that commits to another queue, and would wait for it.
c, d = two_queues()

def go_on(_):
    buffer = d.command_buffer()
    try:
        buffer.commit()
    finally:
        print("refused", buffer.status.name, flush=True)
    buffer.wait_until_completed()

committed(slow(d, 0.8), tell("first"))
committed(slow(c, 0.5), go_on)

# Handlers that commit for ever.
e, f = two_queues()

def for_ever(_=None):
    committed(slow(e, 0.01), for_ever)

for_ever()

# Buffers that are never committed, one of them with a place in the order; a handler waits for what stands behind it.
held, other = f.command_buffer(), f.command_buffer()
held.enqueue()
other.record("never", lambda: print("never"))
behind = committed(slow(f, 0.0), tell("behind"))
committed(slow(c, 0.1), lambda _: behind.wait_until_completed())
"""
TOO_LATE = "MTLCommandBuffer: commit came too late: the process is ending. Wait for the last buffer before that"


def test_a_process_ends(run_script: Callable[..., str]) -> None:
    """What was committed runs; what is committed meanwhile is refused and logged; what can never run is an error."""
    assert sorted(run_script(ENDS, has_openmps=False).splitlines()) == [
        TOO_LATE,
        TOO_LATE,
        "behind ERROR",
        "first COMPLETED",
        "refused NOT_ENQUEUED",
        "waited for COMPLETED",
        "waited for COMPLETED",
    ]


FORK = """
import os, threading
import torch
from openmps.core.image.image import MPSImage
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageFeatureChannelFormat

device = mtl_device("cpu")
descriptor = MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 2, 2, 4)
inside, gate = threading.Barrier(3), threading.Event()

def held_up(make):
    def made(*arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            inside.wait(60)
            gate.wait(60)
        return make(*arguments, **options)
    return made

uses = [
    lambda: device.new_buffer(length=64).tensor(torch.uint8),
    lambda: MPSImage(device, descriptor).storage.tensor(),
]
torch.zeros, torch.empty = held_up(torch.zeros), held_up(torch.empty)
others = [threading.Thread(target=use) for use in uses]
for other in others:
    other.start()
inside.wait(60)
child = os.fork()
for use in uses:
    use()
if child == 0:
    print("allocated", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
for other in others:
    other.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_beside_threads_that_allocate(run_script: Callable[[str], str]) -> None:
    """Memory is taken without a lock: the child could never have it back, and other queues would wait for it."""
    assert run_script(FORK).splitlines() == ["allocated"]


THREADS = """
import atexit, os, sys

@atexit.register
def tell():  # called last of all, since it was registered first
    from openmps.metal.process_end import ended_threads
    left = [thread for thread in ended_threads if os.path.exists(f"/proc/self/task/{thread}")]
    print(f"{len(ended_threads)} workers ended, {len(left)} threads left")

from openmps.core.image.image import MPSImage
from openmps.kernels.neuron import MPSCNNNeuronReLU
from openmps.runtime.devices import mtl_device
import numpy as np

device = mtl_device(sys.argv[1])
kept = []
for index in range(8):
    queue = device.new_command_queue()
    buffer = queue.command_buffer()
    image = MPSImage.from_numpy(device, np.ones((4, 4, 1), np.float32))
    MPSCNNNeuronReLU(device).encode(buffer, image)
    buffer.add_completed_handler(lambda _, image=image: image.numpy())
    buffer.commit()
    if index % 2:
        kept.append(queue)  # the others are collected, and end their workers
del queue, buffer
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are listed in /proc on Linux alone")
def test_the_threads_of_workers_are_gone_when_the_process_ends(device: torch.device) -> None:
    """A thread in which the engine still cleans up when the interpreter is gone aborts the process."""
    done = forked.run("-c", THREADS, device)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8 workers ended, 0 threads left\n", "")
