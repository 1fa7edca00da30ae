"""Heaps in signal handlers, finalizers, threads and forked processes: nothing waits, and no two buffers overlap."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from openmps.metal.device import MTLBuffer, MTLHeap
from openmps.metal.heap import ALIGNMENT, MTLHeapDescriptor
from openmps.runtime.devices import mtl_device
from striking import at_every_place

PATIENCE = 60.0


def new_heap(buffers: int) -> MTLHeap:
    return mtl_device("cpu").new_heap(MTLHeapDescriptor(buffers * ALIGNMENT))


def check_apart(heap: MTLHeap, buffers: list[MTLBuffer | None]) -> None:
    """Each of the buffers has bytes of its own, and the heap knows of no others."""
    for value, buffer in enumerate(buffers):
        assert buffer is not None
        buffer.tensor(torch.uint8).fill_(value)
    for value, buffer in enumerate(buffers):
        assert buffer is not None
        assert set(buffer.tensor(torch.uint8).tolist()) == {value}
    assert heap.used_size == len(buffers) * ALIGNMENT


ACTIONS: dict[str, Callable[[MTLHeap, list[MTLBuffer | None]], object]] = {
    "allocation": lambda heap, kept: kept.append(heap.new_buffer(ALIGNMENT)),
    "release": lambda heap, kept: kept.pop(0),
    "sum": lambda heap, kept: heap.used_size,
    "longest": lambda heap, kept: heap.max_available_size(ALIGNMENT),
}


@pytest.mark.parametrize("inner", ACTIONS)
@pytest.mark.parametrize("outer", ACTIONS)
def test_a_signal_handler_at_every_place(outer: str, inner: str) -> None:
    """Whatever it interrupts of what is done with a heap, it does not wait for it, and both are done."""
    places = 0
    for place in at_every_place():
        heap = new_heap(8)
        mine, its = [heap.new_buffer(ALIGNMENT), heap.new_buffer(ALIGNMENT)], [heap.new_buffer(ALIGNMENT)]
        del mine[0]  # a gap
        timer = threading.Timer(PATIENCE, os._exit, (1,))
        timer.daemon = True
        timer.start()
        struck = place(
            lambda heap=heap, mine=mine: ACTIONS[outer](heap, mine),
            lambda heap=heap, its=its: ACTIONS[inner](heap, its),
        )
        timer.cancel()
        check_apart(heap, mine + its)
        places += struck
    assert places > 3 or outer == "release"


def test_an_interrupt_at_every_place_loses_no_bytes() -> None:
    for place in at_every_place():
        heap, kept = new_heap(4), list[MTLBuffer | None]()

        def strike() -> None:
            raise KeyboardInterrupt

        place(lambda heap=heap, kept=kept: kept.append(heap.new_buffer(ALIGNMENT)), strike)
        check_apart(heap, kept)


def test_threads_that_allocate_and_release() -> None:
    heap = new_heap(64)

    def use(_: int) -> None:
        for _ in range(300):
            check = [heap.new_buffer(ALIGNMENT) for _ in range(4)]
            for number, buffer in enumerate(check):
                assert buffer is not None
                bytes_ = buffer.tensor(torch.uint8)
                assert not bytes_.any()
                bytes_.fill_(number + 1)
            for number, buffer in enumerate(check):
                assert buffer is not None
                assert (buffer.tensor(torch.uint8) == number + 1).all()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert heap.used_size == 0
    assert heap.max_available_size(1) == heap.size


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_while_other_threads_allocate(run_script: Callable[[str], str]) -> None:
    script = """
    import os, signal, sys, threading
    from openmps.runtime.devices import mtl_device
    from openmps.metal.heap import MTLHeapDescriptor
    signal.alarm(50)
    heap = mtl_device("cpu").new_heap(MTLHeapDescriptor(1 << 16))
    held, go_on = [heap.new_buffer(256) for _ in range(100)], True
    def use():
        while go_on:
            heap.new_buffer(256)
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    sound = 0
    for _ in range(40):
        if (child := os.fork()) == 0:
            signal.alarm(20)
            os._exit(0 if heap.new_buffer(256) is not None and heap.used_size >= 256 else 1)
        sound += os.waitpid(child, 0)[1] == 0
    go_on = False
    print(sound)
    """
    assert run_script(script) == "40\n"
