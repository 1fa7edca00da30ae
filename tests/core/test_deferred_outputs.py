"""Results that are lent: copied when they are first asked for, or before a replay writes their memory, and once."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import openmps as mps
from openmps.core.image.storage import Block, Extent
from openmps.runtime.replay.deferred_outputs import DeferredOutputs
from openmps.types import MPSImageFeatureChannelFormat as Format
from striking import interrupted

EXTENT = Extent(1, 1, 1, 4)


@pytest.fixture
def place(device: torch.device) -> torch.device:
    """The device as blocks and lanes know it: with its index."""
    return mps.mtl_device(device).torch_device


def _block(device: torch.device) -> Block:
    return Block(device, Format.FLOAT32, EXTENT)


def _value(device: torch.device, number: float) -> Tensor:
    return torch.full(EXTENT.shape, number, device=device)


def test_what_is_lent_is_copied_when_it_is_asked_for(place: torch.device) -> None:
    deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
    deferred.add(block, value)
    assert block.is_allocated
    mine = block.tensor()
    value.fill_(2.0)
    assert mine.tolist() == block.tensor().tolist() == _value(place, 1.0).tolist()
    assert mine.data_ptr() != value.data_ptr()
    assert block.tensor() is mine


@pytest.mark.parametrize(
    "ask",
    [lambda block: block.present, lambda block: block.outline() or block.present, lambda block: block.to_copy()],
)
def test_every_way_to_ask_gives_a_copy(ask: object, place: torch.device) -> None:
    deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
    deferred.add(block, value)
    assert callable(ask)
    found = ask(block)
    value.fill_(2.0)
    assert found.flatten().tolist() == [1.0] * 4


def test_what_is_held_is_copied_before_the_memory_is_written_again(place: torch.device) -> None:
    deferred, value, kept = DeferredOutputs(place), _value(place, 0.0), list[Block]()
    for number in range(3):
        deferred.resolve()
        value.fill_(float(number))
        kept.append(_block(place))
        deferred.add(kept[-1], value)
    assert [block.tensor().flatten().tolist() for block in kept] == [[0.0] * 4, [1.0] * 4, [2.0] * 4]


def test_what_nobody_holds_is_not_copied(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    deferred, block, copies = DeferredOutputs(place), _block(place), list[Block]()
    monkeypatch.setattr(Block, "adopt", lambda block, stored: copies.append(block))
    deferred.add(block, _value(place, 1.0))
    del block
    gc.collect()
    deferred.resolve()
    assert not copies
    assert not deferred.pending


def test_memory_that_was_given_back_is_not_copied_into(place: torch.device) -> None:
    deferred, block = DeferredOutputs(place), _block(place)
    deferred.add(block, _value(place, 1.0))
    block.discard()
    deferred.resolve()
    assert block.tensor().flatten().tolist() == [0.0] * 4


def test_what_others_write_goes_into_the_copy(place: torch.device) -> None:
    deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
    deferred.add(block, value)
    block.tensor().add_(1.0)
    assert value.flatten().tolist() == [1.0] * 4
    assert block.tensor().flatten().tolist() == [2.0] * 4


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))])
def test_copies_have_elements_of_their_own(way: Callable[[Block], Block], place: torch.device) -> None:
    deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
    deferred.add(block, value)
    twin = way(block)
    deferred.resolve()
    value.fill_(2.0)
    assert twin.tensor().flatten().tolist() == block.tensor().flatten().tolist() == [1.0] * 4


def test_threads_that_ask_while_it_is_called_in(place: torch.device) -> None:
    for _ in range(50):
        deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
        deferred.add(block, value)
        start, found = threading.Barrier(3), list[Tensor]()

        def ask(block: Block = block, start: threading.Barrier = start, found: list[Tensor] = found) -> None:
            start.wait()
            found.append(block.tensor())

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        start.wait()
        deferred.resolve()
        value.fill_(2.0)
        for thread in threads:
            thread.join()
        assert [each.flatten().tolist() for each in found] == [[1.0] * 4] * 2
        assert found[0] is found[1]


@pytest.mark.parametrize("ask", [lambda deferred, block: block.tensor(), lambda deferred, block: deferred.resolve()])
def test_interrupts_of_copies(ask: Callable[[DeferredOutputs, Block], object], place: torch.device) -> None:
    """What was interrupted is done again by the next one who asks, or was done."""
    at, struck = 1, True
    while struck:
        deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
        deferred.add(block, value)
        struck = interrupted(lambda deferred=deferred, block=block: ask(deferred, block), at)
        deferred.resolve()
        value.fill_(2.0)
        assert block.tensor().flatten().tolist() == [1.0] * 4
        at += 1
    assert at > 3


def test_interrupts_of_deferred_outputs(place: torch.device) -> None:
    """A block with deferred elements is known to be one, wherever an interrupt comes; others have no memory."""
    at, struck = 1, True
    while struck:
        deferred, block, value = DeferredOutputs(place), _block(place), _value(place, 1.0)
        struck = interrupted(lambda deferred=deferred, block=block, value=value: deferred.add(block, value), at)
        deferred.resolve()
        value.fill_(2.0)
        assert not block.is_allocated or block.tensor().flatten().tolist() == [1.0] * 4
        at += 1
    assert at > 2
