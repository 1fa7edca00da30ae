"""Replays of filters that write where results go: of the same launches at the same addresses, and of no others."""

from __future__ import annotations

import ctypes
import gc
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import openmps as mps
from encoding import Bench, finish, numbers
from openmps.core.image.batch import MPSImageBatch
from openmps.metal.queue_executor import forget_captures
from openmps.runtime.replay import in_place
from openmps.runtime.replay.replayer import MIN_STEPS
from replay_twin import outcomes, replayer_of, replaying_queue

SHAPE = (1, 3, 5, 6)
STEPS = 5
Array = np.ndarray


class Placed:
    """On the CPU what a launch at addresses that stay is on CUDA: it knows the addresses alone."""

    def __init__(self, room: Tensor, source: Tensor) -> None:
        self._count, self._shape = room.numel(), (room.shape[0], *room.shape[2:], room.shape[1])
        self._places = room.data_ptr(), source.data_ptr()

    def __call__(self) -> None:
        made, source = (self._array(place) for place in self._places)
        around = np.pad(source, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
        made[...] = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (1, 2)).max((4, 5))

    def _array(self, place: int) -> Array:
        return np.ctypeslib.as_array((ctypes.c_float * self._count).from_address(place)).reshape(self._shape)


def _give_forms(function: Any) -> None:
    """Forms of the CPU as those of CUDA are: what ran once at some addresses is known there."""
    kept: dict[tuple[int, int], Placed] = {}

    def run(values: list[Any], room: Tensor | None) -> list[Any] | None:
        if room is None:
            return None
        kept.setdefault((room.data_ptr(), values[0].data_ptr()), Placed(room, values[0]))()
        return [None]

    def placement(values: list[Any], room: Tensor | None) -> Placed | None:
        return None if room is None else kept.get((room.data_ptr(), values[0].data_ptr()))

    function.forms, function.placement, function.launches = {"cpu": run}, placement, 1


class Chain:
    """A filter, so often behind itself, from image to image."""

    def __init__(self, bench: Bench) -> None:
        bench.queue = replaying_queue(bench.device, MIN_STEPS)
        self.bench, self.largest = bench, mps.MPSImageAreaMax(bench.device, 3, 3)
        self.images = self.new_images()
        if not bench.device.is_cuda:
            shape = self.images[0].stack(0, 1).shape
            _give_forms(self.largest.plan((shape,), shape).function)

    def new_images(self) -> list[mps.MPSImage]:
        return [self.bench.filled(SHAPE, 0.0) for _ in range(STEPS + 1)]

    def encode(self, command_buffer: mps.CommandBuffer, images: list[mps.MPSImage]) -> None:
        for source, result in pairwise(images):
            self.largest.encode(command_buffer, source, result)

    def encoded_once(self, images: list[mps.MPSImage]) -> mps.ReusableCommands:
        commands = mps.ReusableCommands(self.bench.queue)
        self.encode(commands, images)
        return commands

    def run(
        self, seed: int, images: list[mps.MPSImage] | None = None, commands: mps.ReusableCommands | None = None
    ) -> list[str]:
        """What became of the works; raises unless their numbers are right."""
        images = self.images if images is None else images
        values = np.abs(np.random.default_rng(seed).normal(size=(1, 5, 6, 3))).astype(np.float32)
        images[0].write_bytes(values[0])
        command_buffer = self.bench.command_buffer()
        if commands is None:
            self.encode(command_buffer, images)
        else:
            commands.encode(command_buffer)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(images[-1]), _expected(values))
        return outcomes(command_buffer)

    def until_captured(self, images: list[mps.MPSImage] | None = None) -> None:
        for seed in range(8):
            if self.run(seed, images) == ["captured"] * STEPS:
                return
        raise AssertionError("nothing was captured")


def _expected(values: Array) -> Array:
    for _ in range(STEPS):
        around = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
        values = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (1, 2)).max((4, 5))
    return np.moveaxis(values, 3, 1)


@pytest.fixture
def chain(device: torch.device) -> Chain:
    return Chain(Bench.on(device))


def test_the_same_launches_are_captured_and_replayed(chain: Chain) -> None:
    chain.until_captured()
    for seed in range(10, 14):
        assert chain.run(seed) == ["replayed"] * STEPS
    assert replayer_of(chain.bench.queue).captures == 1


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows each time that the places of pictures are looked up."""
    looks, real = list[int](), in_place._launches

    def looked(works: Any) -> Any:
        looks.append(len(works))
        return real(works)

    monkeypatch.setattr(in_place, "_launches", looked)
    return looks


def test_work_that_was_encoded_once_is_looked_at_twice(chain: Chain, looks: list[int]) -> None:
    commands = chain.encoded_once(chain.images)
    chain.until_captured()
    for seed in range(10, 12):
        assert chain.run(seed, commands=commands) == ["replayed"] * STEPS
    del looks[:]
    for seed in range(12, 16):
        assert chain.run(seed, commands=commands) == ["replayed"] * STEPS
    assert not looks
    assert chain.run(16) == ["replayed"] * STEPS
    assert len(looks) == 1


def test_work_that_was_encoded_once_sees_memory_that_takes_the_place_of_other(chain: Chain, looks: list[int]) -> None:
    commands = chain.encoded_once(chain.images)
    chain.until_captured()
    for place in range(1, STEPS):
        for seed in range(3):
            chain.run(seed, commands=commands)
        del looks[:]
        block = chain.images[place].whole().parts[0].block
        block._tensor, held = block.tensor().clone(memory_format=torch.channels_last), block._tensor
        assert chain.run(20 + place, commands=commands) == ["run"] * STEPS
        assert looks
        del held


def test_other_work_in_between_is_no_hindrance(chain: Chain) -> None:
    """By turns with the same images in another order, of which each is a graph."""
    images = [*chain.images]
    swapped = [images[0], images[2], images[1], *images[3:]]
    first, second = chain.encoded_once(images), chain.encoded_once(swapped)
    for seed in range(6):
        chain.run(seed, images, first)
        chain.run(seed, swapped, second)
    for seed in range(6, 10):
        assert chain.run(seed, images, first) == ["replayed"] * STEPS
        assert chain.run(seed, swapped, second) == ["replayed"] * STEPS


def test_captures_of_work_that_was_encoded_once_are_forgotten(chain: Chain) -> None:
    commands = chain.encoded_once(chain.images)
    for seed in range(8):
        found = chain.run(seed, commands=commands)
    assert found == ["replayed"] * STEPS
    forget_captures(chain.bench.device.torch_device)
    assert not replayer_of(chain.bench.queue).captures
    assert chain.run(70, commands=commands) == ["run"] * STEPS
    chain.bench.queue.max_capture_count = 0
    assert chain.run(71, commands=commands) == ["run"] * STEPS


def test_other_images_are_other_launches(chain: Chain) -> None:
    others = chain.new_images()
    chain.until_captured()
    assert chain.run(20, others) == ["run"] * STEPS
    chain.until_captured(others)
    for seed in range(30, 34):
        assert chain.run(seed, (chain.images, others)[seed % 2]) == ["replayed"] * STEPS
    mixed = [*chain.images[:3], *others[3:]]
    assert chain.run(40, mixed) == ["run"] * STEPS


def test_images_may_be_used_in_turns_within_a_chain(chain: Chain) -> None:
    first, second = chain.images[:2]
    images = [first, second, first, second, first, second]
    chain.until_captured(images)
    assert chain.run(50, images) == ["replayed"] * STEPS


def test_as_many_graphs_are_kept_as_the_queue_allows(chain: Chain) -> None:
    sets = [chain.new_images() for _ in range(3)]
    chain.bench.queue.max_capture_count = 1
    for round_ in range(12):
        for each in sets:
            chain.run(round_, each)
            assert replayer_of(chain.bench.queue).captures <= 1
    chain.bench.queue.max_capture_count = 0
    assert chain.run(60) == ["run"] * STEPS
    assert not replayer_of(chain.bench.queue).captures


def test_captures_are_forgotten(chain: Chain) -> None:
    chain.until_captured()
    forget_captures(chain.bench.device.torch_device)
    assert not replayer_of(chain.bench.queue).captures
    assert chain.run(70) == ["run"] * STEPS
    chain.until_captured()


def test_graphs_hold_no_images(chain: Chain) -> None:
    chain.until_captured()
    commands = chain.encoded_once(chain.images)
    for seed in range(3):
        assert chain.run(seed, commands=commands) == ["replayed"] * STEPS
    gone = [weakref.ref(each) for each in (*chain.images, *(each.whole().parts[0].block for each in chain.images))]
    del commands
    chain.images.clear()
    gc.collect()
    assert not any(each() for each in gone)


def test_what_cannot_be_captured_runs_by_itself(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    player = replayer_of(chain.bench.queue)

    def refuse(run: object) -> Any:
        raise RuntimeError("not now\nnor ever")

    monkeypatch.setattr(player._recorder, "record", refuse)
    for seed in range(6):
        assert chain.run(seed) == ["run"] * STEPS
    command_buffer = chain.bench.command_buffer()
    for source, result in pairwise(chain.images):
        chain.largest.encode(command_buffer, source, result)
    finish(command_buffer)
    assert command_buffer.explain().works[0].reason.endswith("; it cannot be captured, RuntimeError: not now")
    assert player.refusals == ["it cannot be captured, RuntimeError: not now"]


def test_pictures_of_several_pieces_of_memory_are_not_gathered_ahead_of_what_writes_them(chain: Chain) -> None:
    """A batch of images that were made apart is copied when its values are asked for, which only its own work does."""
    bench, images, asked = chain.bench, chain.images[:-1], list[Any]()
    pair = MPSImageBatch([images[-1], bench.filled(SHAPE, 0.0)])
    made = bench.batch(np.zeros((2, *SHAPE[1:])))
    for seed in range(4):
        values = np.abs(np.random.default_rng(seed).normal(size=(1, 5, 6, 3))).astype(np.float32)
        images[0].write_bytes(values[0])
        command_buffer = bench.command_buffer()
        for source, result in pairwise(images):
            chain.largest.encode(command_buffer, source, result)
        chain.largest.encode_batch(command_buffer, pair, made)
        _, last = command_buffer.recording.execution.works[-1]
        last.function.placement = lambda *given: asked.append(given)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(made)[:1], _expected(values))
    assert not asked
    assert "in several pieces of memory" in str(command_buffer.explain())


def test_memory_that_was_given_back_is_not_written(chain: Chain) -> None:
    """Where there is nothing yet, nothing has taken the place of what is gone; nor is it the same."""
    commands = chain.encoded_once(chain.images)
    for seed in range(8):
        found = chain.run(seed, commands=commands)
    assert found == ["replayed"] * STEPS
    last = chain.images[-1]
    held = last.whole().stored().untyped_storage()  # so that nobody else gets the memory meanwhile
    last.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
    assert chain.run(20, commands=commands) == ["run"] * STEPS
    del held
