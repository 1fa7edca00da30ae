"""A thousand command buffers of every kind, from two threads: nothing lost, out of order, or counted wrong."""

from __future__ import annotations

import pytest
import torch

from encoding import Bench
from stress import hasty_threads, one_queue, two_queues

BUFFERS = 1000


@pytest.mark.parametrize("sleep", [0.0, 1e-3])
def test_two_threads_with_a_queue_each(device: torch.device, sleep: float) -> None:
    with hasty_threads():
        two_queues(Bench.on(device), BUFFERS, sleep=sleep)


@pytest.mark.parametrize("enqueued", [False, True])
def test_one_queue_fed_by_two_threads(device: torch.device, enqueued: bool) -> None:
    with hasty_threads():
        one_queue(Bench.on(device), BUFFERS, enqueued=enqueued, sleep=1e-3)
