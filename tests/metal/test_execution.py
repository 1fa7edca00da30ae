"""One record: what its works see, and how threads wait for it."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import pytest
import torch

from openmps.metal.device import MTLCommandQueue
from openmps.metal.execution import Execution, HostTimer, Latch


@pytest.mark.parametrize("launch_here", [False, True])
@pytest.mark.parametrize("mode", ["inference", "autocast", "grad", "inference and grad"])
def test_modes_of_the_committing_thread_do_not_reach_the_work(
    queue: MTLCommandQueue, mode: str, launch_here: bool
) -> None:
    seen: list[bool] = []
    kind = queue.device.torch_device.type
    modes: dict[str, list[AbstractContextManager[object]]] = {
        "inference": [torch.inference_mode()],
        "autocast": [torch.autocast(kind, dtype=torch.bfloat16)],
        "grad": [torch.enable_grad()],
        "inference and grad": [torch.inference_mode(), torch.enable_grad()],
    }

    def modes_now() -> list[bool]:
        return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled(kind)]

    def work() -> None:
        seen.extend(modes_now())

    outside = modes_now()
    buffer, execution = queue.command_buffer(), Execution(HostTimer())
    buffer.record("work", work)
    execution.works.append(("work", work))
    for manager in modes[mode]:
        manager.__enter__()
    try:
        inside = modes_now()
        execution.launch() if launch_here else buffer.commit()
        assert modes_now() == inside
    finally:
        for manager in reversed(modes[mode]):
            manager.__exit__(None, None, None)
    assert modes_now() == outside
    if not launch_here:
        buffer.wait_until_completed()
    assert seen == [False, False, False]
    assert any(inside)


def test_many_threads_wait_for_one_latch() -> None:
    latch, passed = Latch(), list[int]()

    def wait(number: int) -> None:
        latch.wait()
        passed.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert not latch.is_set()
    assert passed == []
    latch.set()
    for thread in threads:
        thread.join(60)
    assert sorted(passed) == list(range(8))
    latch.wait()
    assert latch.is_set()
