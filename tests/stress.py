"""Command buffers of every kind for one queue or two, from two threads, and what must hold of them afterwards.

Each buffer writes its number into a ledger when it runs, so the order of the work is that of the device itself. What it
computes besides depends on its kind alone and is compared, on the CPU to the bit, with what the same kind gave on a
quiet queue.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from encoding import FLOAT32, Bench, keep_results, numbers
from exercises import drawn
from helpers import assert_close
from openmps.core.image.batch_functions import MPSImageBatchIncrementReadCount
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.state.state import MPSState
from openmps.errors import MTLExecutionError
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionDescriptor, MPSCNNConvolutionGradient
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.neuron import MPSCNNNeuronReLU, MPSCNNNeuronTanH
from openmps.kernels.pooling import MPSCNNPoolingMax
from openmps.metal.device import CommandBuffer, MTLCommandBuffer, MTLCommandQueue
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.types import MPSImageEdgeMode, MTLCommandBufferStatus, MTLResourceOptions
from samples.convolution import ArraySource

SHAPE = (3, 4, 8, 8)
PATIENCE = 120.0
TOLERANCE = {"cpu": 0.0, "cuda": 1e-5}
"""A GPU adds the gradients of weights in whatever order it likes."""
Array = np.ndarray
Read = Callable[[], Array]
"""Gives what a buffer computed, once it has completed."""


class Fault(Exception):
    """A work that fails on purpose; says in which buffer."""


class Kit:
    """One thread's kernels, and images that nobody writes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        device = bench.device
        weights = drawn("weights", (4, 3, 3, 4)).astype(np.float32)
        source = ArraySource(MPSCNNConvolutionDescriptor(3, 3, 4, 4), weights, np.ones(4, np.float32))
        self.convolution = MPSCNNConvolution(device, weights=source)
        self.gradient = MPSCNNConvolutionGradient(device, weights=source)
        self.relu, self.tanh = MPSCNNNeuronReLU(device, 0.25), MPSCNNNeuronTanH(device)
        self.pooling = MPSCNNPoolingMax(device, 2, 2)
        self.pooling.edge_mode = MPSImageEdgeMode.CLAMP
        self.dropout = MPSCNNDropout(device, 0.5, seed=7)
        self.images = bench.batch(drawn("images", SHAPE))
        self.flow = bench.batch(drawn("flow", SHAPE))
        self.single = bench.image(drawn("single", (1, *SHAPE[1:])))

    def kept(self, kernel: Any) -> Any:
        """A copy of a kernel whose results can be read."""
        twin = kernel.copy()
        keep_results(twin)
        return twin


@dataclass
class Entry:
    """One buffer: its kind, what it computed, and what happened to it."""

    number: int
    kind: str
    scheduled: int = 0
    completed: int = 0
    read: Read | None = None
    temporaries: list[Any] = field(default_factory=list)
    permanent: list[Any] = field(default_factory=list)
    buffer: CommandBuffer | None = None


def _temporaries(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """Three temporary batches, one of them read twice, into a batch that is kept."""
    first = kit.relu.encode_batch(command_buffer, kit.images)
    MPSImageBatchIncrementReadCount(first, 1)
    second = kit.convolution.encode_batch(command_buffer, first)
    third = kit.tanh.encode_batch(command_buffer, second)
    result = kit.kept(kit.pooling).encode_batch(command_buffer, third)
    again = kit.kept(kit.tanh).encode_batch(command_buffer, first)
    entry.temporaries += [*first, *second, *third]
    return lambda: np.concatenate([numbers(result).ravel(), numbers(again).ravel()])


def _training(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """A convolution and its gradient with a temporary state, whose sums are copied out before they go."""
    result, states = kit.convolution.encode_batch(command_buffer, kit.images, destination_state_is_temporary=True)
    sums = states[0].gradient_for_weights
    flow = kit.kept(kit.gradient).encode_batch(command_buffer, kit.flow, kit.images, states)
    kept = kit.bench.device.new_buffer(length=sums.length)
    with command_buffer.blit_command_encoder() as blit:
        blit.copy_from_buffer(sums, 0, kept, 0, sums.length)
    for image in result:
        image.read_count = 0
    entry.temporaries += [*result, states[0]]
    return lambda: np.concatenate([numbers(flow).ravel(), kept.contents().view(np.float32)])


def _blits(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """A temporary buffer filled and copied in pieces."""
    device = kit.bench.device
    between = device.new_buffer(length=4096, options=MTLResourceOptions.STORAGE_MODE_PRIVATE)
    kept = device.new_buffer(length=4096)
    with command_buffer.blit_command_encoder() as blit:
        blit.fill_buffer(between, range(4096), 3)
        blit.fill_buffer(between, range(1024, 2048), 200)
        blit.copy_from_buffer(between, 512, kept, 0, 2048)
    entry.permanent.append(MPSState(device, resource=kept))
    return lambda: kept.contents().astype(np.float32)


def _in_parts(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """A temporary image that outlives the commit of its first part; another that nobody reads."""
    temporary = kit.relu.encode(command_buffer, kit.single)
    unread = MPSTemporaryImage(command_buffer, MPSImageDescriptor(FLOAT32, 64, 64, 4))
    assert isinstance(command_buffer, MPSCommandBuffer)
    command_buffer.commit_and_continue()
    result = kit.kept(kit.tanh).encode(command_buffer, temporary)
    assert unread.read_count == 1
    entry.temporaries.append(temporary)
    return lambda: numbers(result).ravel()


def _random(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """A dropout whose mask is that of the first encode of a copy, and a permanent state."""
    result, state = kit.kept(kit.dropout).encode(command_buffer, kit.single, destination_state_is_temporary=False)
    assert state is not None
    entry.permanent.append(state)
    return lambda: numbers(result).ravel()


def _failing(kit: Kit, command_buffer: CommandBuffer, entry: Entry) -> Read:
    """A temporary is made and read, then a work fails, and the rest is skipped."""
    temporary = kit.relu.encode_batch(command_buffer, kit.images)

    def fail() -> None:
        raise Fault(entry.number)

    command_buffer.record("fault", fail)
    skipped = kit.bench.image(np.full((1, 4, 8, 8), -5.0))
    kit.tanh.encode(command_buffer, kit.single, skipped)
    kit.tanh.encode_batch(command_buffer, temporary)
    entry.temporaries += [*temporary]
    return lambda: numbers(skipped).ravel()


KINDS: dict[str, Callable[[Kit, CommandBuffer, Entry], Read]] = {
    "temporaries": _temporaries,
    "training": _training,
    "blits": _blits,
    "in parts": _in_parts,
    "random": _random,
    "failing": _failing,
}


class Ledger:
    """What the buffers of one queue did, in the order in which the device did it."""

    def __init__(self, queue: MTLCommandQueue, size: int) -> None:
        self.queue = queue
        self.device = queue.device.torch_device
        self.rows = torch.full((size,), -1, dtype=torch.int64, device=self.device)
        self.next = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.mixed = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.completed: list[int] = []

    def write(self, number: int) -> None:
        """In place; the order shows in ``mixed`` too."""
        self.rows.index_copy_(0, self.next, torch.full((1,), number, dtype=torch.int64, device=self.device))
        self.next.add_(1)
        self.mixed.mul_(31).add_(number)

    def order(self) -> list[int]:
        found = self.rows[: int(self.next.item())].tolist()
        mixed = 0
        for number in found:
            mixed = (mixed * 31 + number + 2**63) % 2**64 - 2**63
        assert mixed == self.mixed.item(), "two works changed the ledger at once"
        return found


class Feed:
    """One thread's buffers for a queue."""

    def __init__(self, ledger: Ledger, kit: Kit, seed: int, sleep: float = 0.0) -> None:
        self.ledger, self.kit, self.sleep = ledger, kit, sleep
        self.random = random.Random(seed)
        self.entries: list[Entry] = []

    def encoded(self, number: int) -> Entry:
        """The next buffer, not committed yet."""
        entry = Entry(number, self.random.choice(list(KINDS)))
        made: Any = self.ledger.queue.command_buffer()
        made.label = str(number)
        buffer: CommandBuffer = MPSCommandBuffer(command_buffer=made) if entry.kind == "in parts" else made
        self._nap(buffer)
        entry.read = KINDS[entry.kind](self.kit, buffer, entry) if entry.kind != "failing" else None
        buffer.record("ledger", lambda: self.ledger.write(number))
        if entry.kind == "failing":
            entry.read = KINDS[entry.kind](self.kit, buffer, entry)
        self._nap(buffer)

        def scheduled(_: MTLCommandBuffer) -> None:
            entry.scheduled += 1

        def completed(done: MTLCommandBuffer) -> None:
            assert done.label == str(number)
            entry.completed += 1
            self.ledger.completed.append(number)

        buffer.add_scheduled_handler(scheduled)
        buffer.add_completed_handler(completed)
        entry.buffer = buffer
        self.entries.append(entry)
        return entry

    def _nap(self, buffer: CommandBuffer) -> None:
        """Work that takes its time, now and then: what is given back too early is taken meanwhile."""
        if self.sleep and self.random.random() < 0.05:
            seconds = self.random.random() * self.sleep
            on_gpu = self.ledger.device.type == "cuda"
            spin = (lambda: torch.cuda._sleep(int(seconds * 1e9))) if on_gpu else (lambda: time.sleep(seconds))
            buffer.record("nap", spin)

    def sometimes_wait(self, entry: Entry) -> None:
        if self.random.random() < 0.02 and entry.buffer is not None:
            outcome(entry)


def outcome(entry: Entry) -> str:
    """Waits for a buffer; the fault that it reports."""
    assert entry.buffer is not None
    try:
        entry.buffer.wait_until_completed()
    except MTLExecutionError as error:
        return f"{error.who}: {error.argument}: {type(error.__cause__).__name__}({error.__cause__})"
    return "done"


def quiet_results(bench: Bench) -> dict[str, Array]:
    """What each kind of buffer gives when nothing else runs."""
    found: dict[str, Array] = {}
    for kind, encode in KINDS.items():
        queue = bench.device.new_command_queue()
        entry = Entry(0, kind)
        entry.buffer = MPSCommandBuffer(queue)
        read = encode(Kit(bench), entry.buffer, entry)
        entry.buffer.commit()
        assert ("Fault" in outcome(entry)) == (kind == "failing")
        found[kind] = read()
    return found


def check(feeds: list[Feed], expected: dict[str, Array]) -> None:
    """Nothing lost, nothing wrong, no read count off, every fault in its own buffer."""
    for entry in itertools.chain.from_iterable(feed.entries for feed in feeds):
        who = f"buffer {entry.number}, {entry.kind}"
        told = outcome(entry)
        fault = f"MTLCommandBuffer '{entry.number}': work 'fault': Fault({entry.number})"
        assert told == (fault if entry.kind == "failing" else "done"), who
        assert (entry.scheduled, entry.completed) == (1, 1), who
        assert entry.buffer is not None
        failed = entry.buffer.status is MTLCommandBufferStatus.ERROR
        assert failed == (entry.kind == "failing"), who
        assert entry.read is not None
        tolerance = TOLERANCE[entry.buffer.device.torch_device.type]
        assert_close(entry.read(), expected[entry.kind], tolerance, who)
        assert {each.read_count for each in entry.temporaries} <= {0}, who
        assert not any(each.storage.block.is_allocated for each in entry.temporaries if isinstance(each, MPSImage)), who
        assert {each.read_count for each in entry.permanent} <= {0}, who


def numbers_of(feed: Feed) -> list[int]:
    return [entry.number for entry in feed.entries]


def run_threads(*targets: Callable[[], None]) -> None:
    """Runs each in a thread of its own; raises the first fault."""
    faults: list[BaseException] = []

    def run(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@contextmanager
def hasty_threads(interval: float = 1e-6) -> Iterator[None]:
    """Python threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def two_queues(bench: Bench, count: int, seed: int = 0, sleep: float = 0.0) -> None:
    """Two threads with a queue each, ``count`` buffers in all."""
    expected, half = quiet_results(bench), count // 2
    ledgers = [Ledger(bench.device.new_command_queue(), half) for _ in range(2)]
    feeds = [Feed(ledger, Kit(bench), 2 * seed + index, sleep) for index, ledger in enumerate(ledgers)]

    def feed_queue(feed: Feed) -> None:
        for number in range(half):
            entry = feed.encoded(number)
            assert entry.buffer is not None
            entry.buffer.commit()
            feed.sometimes_wait(entry)

    run_threads(*(lambda feed=feed: feed_queue(feed) for feed in feeds))
    check(feeds, expected)
    for ledger in ledgers:
        assert ledger.order() == ledger.completed == list(range(half))


def one_queue(bench: Bench, count: int, *, enqueued: bool, seed: int = 0, sleep: float = 0.0) -> None:
    """One queue fed by two threads. ``enqueued`` fixes the order before the buffers are encoded and committed."""
    expected, half = quiet_results(bench), count // 2
    ledger = Ledger(bench.device.new_command_queue(), count)
    feeds = [Feed(ledger, Kit(bench), 2 * seed + index, sleep) for index in range(2)]
    next_number, order, fixed = itertools.count(), threading.Lock(), list[int]()

    def feed_queue(feed: Feed) -> None:
        for _ in range(half):
            entry = feed.encoded(next(next_number))
            assert entry.buffer is not None
            if enqueued:
                with order:
                    fixed.append(entry.number)
                    entry.buffer.enqueue()
            entry.buffer.commit()
            if not enqueued:
                feed.sometimes_wait(entry)

    run_threads(*(lambda feed=feed: feed_queue(feed) for feed in feeds))
    check(feeds, expected)
    done = ledger.order()
    assert done == ledger.completed
    assert sorted(done) == list(range(count))
    if enqueued:
        assert done == fixed
    for feed in feeds:
        mine = set(numbers_of(feed))
        assert [number for number in done if number in mine] == numbers_of(feed)
