"""What follows from memory that stays: made when it is first read, and again when that memory has changed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import openmps as mps
from openmps.core.kernel.encoding import Held
from openmps.core.kernel.preparation import Followers, Preparation
from openmps.metal.resource import epoch
from openmps.ops.op import Op


class Doubled(Op):
    """Twice a row, and nothing."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        CALLS.append(1)
        return 2 * operands[0], None


CALLS: list[int] = []


def _made(row: Tensor) -> tuple[Followers, Preparation]:
    CALLS.clear()
    followers, preparation = Followers(), Preparation(Doubled(), [Held(row)])
    followers.add(preparation)
    return followers, preparation


def test_it_is_made_once_and_in_the_same_memory_again() -> None:
    row = torch.ones(3)
    followers, preparation = _made(row)
    assert not CALLS
    first = preparation.value()
    assert torch.equal(first[0], torch.full((3,), 2.0))
    assert first[1] is None
    row.mul_(5)
    assert preparation.value() is first
    assert len(CALLS) == 1
    before = epoch.number
    followers.expire()
    assert epoch.number > before
    again = preparation.value()
    assert again[0].data_ptr() == first[0].data_ptr()
    assert torch.equal(again[0], torch.full((3,), 10.0))
    assert len(CALLS) == 2


def test_what_captured_work_reads_is_up_to_date() -> None:
    followers, preparation = _made(torch.ones(3))
    kept = preparation.kept()
    assert len(CALLS) == 1
    followers.expire()
    assert preparation.kept() == kept
    assert len(CALLS) == 2


def test_a_recorded_step_makes_it_again_in_its_turn() -> None:
    device = mps.mtl_device("cpu")
    row = torch.ones(3)
    followers, preparation = _made(row)
    preparation.value()
    command_buffer = device.new_command_queue().command_buffer()
    followers.record(command_buffer, "preparation")
    row.mul_(5)
    assert preparation.value()[0][0] == 2.0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert preparation.value()[0][0] == 10.0
    (work,) = command_buffer.explain().works
    assert (work.label, work.operations) == ("preparation", ("Refresh",))


def test_nothing_is_recorded_where_nothing_follows_and_followers_hold_nothing() -> None:
    device = mps.mtl_device("cpu")
    followers, preparation = _made(torch.ones(3))
    gone = weakref.ref(preparation)
    del preparation
    gc.collect()
    assert gone() is None
    command_buffer = device.new_command_queue().command_buffer()
    followers.record(command_buffer, "preparation")
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert command_buffer.explain().works == ()


def test_a_new_follower_and_replaced_memory_end_the_epoch() -> None:
    followers = Followers()
    before = epoch.number
    assert followers.replaced() is not followers
    assert epoch.number == before
    preparation = Preparation(Doubled(), [Held(torch.ones(3))])
    followers.add(preparation)
    assert epoch.number == before + 1
    followers.replaced()
    assert epoch.number == before + 2


ONCE: list[Any] = []


class Interrupted(Doubled):
    """Something of `ONCE` happens after the row was read."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        found = super().run(wanted, *operands)
        if ONCE:
            ONCE.pop()()
        return found


def _interrupted(what: Any, row: Tensor) -> Preparation:
    ONCE[:] = [what]
    return Preparation(Interrupted(), [Held(row)])


def test_a_signal_handler_may_make_it_while_it_is_made() -> None:
    row = torch.ones(3)

    def handler() -> None:
        row.fill_(5.0)
        found.append(preparation.value()[0].clone())

    found: list[Tensor] = []
    preparation = _interrupted(handler, row)
    thread = threading.Thread(target=lambda: found.append(preparation.value()[0]), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    assert [each.tolist() for each in found] == [[10.0] * 3] * 2


def test_it_is_made_again_where_that_failed() -> None:
    def fails() -> None:
        raise MemoryError

    preparation = _interrupted(fails, torch.ones(3))
    with pytest.raises(MemoryError):
        preparation.value()
    assert preparation.value()[0].tolist() == [2.0] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this system")
def test_a_forked_process_makes_what_another_thread_was_making() -> None:
    """Also anything else: that thread has no part in the child."""
    begun, goes_on = threading.Event(), threading.Event()
    first = _interrupted(lambda: (begun.set(), goes_on.wait(60)), torch.ones(3))
    thread = threading.Thread(target=first.value)
    thread.start()
    assert begun.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(20)
        second = Preparation(Doubled(), [Held(torch.ones(3))])
        right = second.value()[0].tolist() == first.value()[0].tolist() == [2.0] * 3
        os._exit(0 if right else 1)
    goes_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
