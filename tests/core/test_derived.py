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
from openmps.ops.op import Op
from openmps.runtime.binding import HeldTensor
from openmps.runtime.derived import Dependents, Derived


class Doubled(Op):
    """Twice a row, and nothing."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        CALLS.append(1)
        return 2 * operands[0], None


CALLS: list[int] = []


def _made(row: Tensor) -> tuple[Dependents, Derived]:
    CALLS.clear()
    dependents, derived = Dependents(), Derived(Doubled(), [HeldTensor(row)])
    dependents.add(derived)
    return dependents, derived


def test_it_is_made_once_and_in_the_same_memory_again() -> None:
    row = torch.ones(3)
    dependents, derived = _made(row)
    assert not CALLS
    first = derived.value()
    assert torch.equal(first[0], torch.full((3,), 2.0))
    assert first[1] is None
    row.mul_(5)
    assert derived.value() is first
    assert len(CALLS) == 1
    dependents.contents.advance()
    again = derived.value()
    assert again[0].data_ptr() == first[0].data_ptr()
    assert torch.equal(again[0], torch.full((3,), 10.0))
    assert len(CALLS) == 2


def test_to_look_makes_nothing() -> None:
    """Tests of graphs show that it is made before captured work reads it."""
    dependents, derived = _made(torch.ones(3))
    kept = derived.held()
    derived.value()
    dependents.contents.advance()
    assert derived.held() == kept
    assert len(CALLS) == 1


def test_a_recorded_step_makes_it_again_in_its_turn() -> None:
    device = mps.mtl_device("cpu")
    row = torch.ones(3)
    dependents, derived = _made(row)
    derived.value()
    command_buffer = device.new_command_queue().command_buffer()
    dependents.record(command_buffer, "derived")
    row.mul_(5)
    assert derived.value()[0][0] == 2.0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert derived.value()[0][0] == 10.0
    (work,) = command_buffer.explain().works
    assert (work.label, work.operations) == ("derived", ("Refresh",))


def test_nothing_is_recorded_where_nothing_follows_and_followers_hold_nothing() -> None:
    device = mps.mtl_device("cpu")
    dependents, derived = _made(torch.ones(3))
    gone = weakref.ref(derived)
    del derived
    gc.collect()
    assert gone() is None
    command_buffer = device.new_command_queue().command_buffer()
    dependents.record(command_buffer, "derived")
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert command_buffer.explain().works == ()


def test_what_follows_anew_and_replaced_memory_are_other_versions() -> None:
    dependents = Dependents()

    def numbers() -> list[int]:
        return [each.number for each in dependents.versions()]

    before = numbers()
    assert dependents.replaced() is not dependents
    assert numbers() != before
    before = numbers()
    derived = Derived(Doubled(), [HeldTensor(torch.ones(3))])
    dependents.add(derived)
    assert numbers() != before
    before = numbers()
    derived.value()
    dependents.contents.advance()
    derived.value()
    assert numbers() == before, "the tensors lie where they lay"


ONCE: list[Any] = []


class Interrupted(Doubled):
    """Something of `ONCE` happens after the row was read."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        found = super().run(wanted, *operands)
        if ONCE:
            ONCE.pop()()
        return found


def _interrupted(what: Any, row: Tensor) -> Derived:
    ONCE[:] = [what]
    return Derived(Interrupted(), [HeldTensor(row)])


def test_a_signal_handler_may_make_it_while_it_is_made() -> None:
    row = torch.ones(3)

    def handler() -> None:
        row.fill_(5.0)
        found.append(derived.value()[0].clone())

    found: list[Tensor] = []
    derived = _interrupted(handler, row)
    thread = threading.Thread(target=lambda: found.append(derived.value()[0]), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    assert [each.tolist() for each in found] == [[10.0] * 3] * 2


def test_it_is_made_again_where_that_failed() -> None:
    def fails() -> None:
        raise MemoryError

    derived = _interrupted(fails, torch.ones(3))
    with pytest.raises(MemoryError):
        derived.value()
    assert derived.value()[0].tolist() == [2.0] * 3


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
        second = Derived(Doubled(), [HeldTensor(torch.ones(3))])
        right = second.value()[0].tolist() == first.value()[0].tolist() == [2.0] * 3
        os._exit(0 if right else 1)
    goes_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
