"""What a look tells apart: records that are almost those of before, each compared with what runs by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from replay_twin import outcomes, replayer_of, replaying_queue

Array = np.ndarray
SHAPE = (1, 2, 4, 3)
FLOAT32 = mps.MPSDataType.FLOAT32


@pytest.fixture
def bench(device: torch.device) -> Bench:
    made = Bench.on(device)
    made.queue = replaying_queue(device)
    return made


def _values(number: int) -> Array:
    return np.random.default_rng(number).normal(size=SHAPE).astype(np.float32)


def _linear(bench: Bench, a: float) -> mps.MPSCNNNeuronLinear:
    neuron = mps.MPSCNNNeuronLinear(bench.device, a, 0.0)
    neuron.destination_image_allocator = mps.MPSImage.default_allocator()
    return neuron


def _run(bench: Bench, encode: Callable[[mps.MTLCommandBuffer], object]) -> list[str]:
    command_buffer = bench.command_buffer()
    encode(command_buffer)
    finish(command_buffer)
    return outcomes(command_buffer)


def test_images_that_share_memory_only_now_and_then(bench: Bench, device: torch.device) -> None:
    """A part of one image is written, another one is read: the same encodes, whether they share memory or not."""
    write, read = _linear(bench, 2.0), _linear(bench, 3.0)
    random, seen = np.random.default_rng(0), set[tuple[str, ...]]()
    for number in range(30):
        is_shared = number > 3 and bool(random.integers(2))
        memory = [torch.zeros(SHAPE, device=device).contiguous(memory_format=torch.channels_last) for _ in range(2)]
        one = mps.MPSImage.from_tensor(bench.device, memory[0], copy=False)
        other = mps.MPSImage.from_tensor(bench.device, memory[0 if is_shared else 1], copy=False)
        source, results = bench.image(_values(number)), list[Any]()

        def encode(buffer: Any, x: Any = source, y: Any = one, z: Any = other, found: list[Any] = results) -> None:
            write.encode(buffer, x, y)
            found.append(read.encode(buffer, z))

        seen.add((str(is_shared), *_run(bench, encode)))
        expected = 6 * _values(number) if is_shared else np.zeros(SHAPE)
        np.testing.assert_array_equal(numbers(results[0]), expected)
    assert ("False", "replayed", "replayed") in seen
    assert ("True", "replayed", "replayed") in seen


def test_matrices_and_vectors_that_an_optimizer_is_given_by_turns(bench: Bench) -> None:
    """What is updated in place is the operand of this encode, whatever was captured."""
    optimizer = mps.MPSNNOptimizerStochasticGradientDescent(bench.device, 1.0)
    layout = mps.MPSMatrixDescriptor(2, 3, 16, FLOAT32)

    def matrix(value: float) -> mps.MPSMatrix:
        return mps.MPSMatrix(buffer=bench.device.new_buffer(data=np.full((2, 4), value, np.float32)), descriptor=layout)

    def vector(value: float) -> mps.MPSVector:
        descriptor = mps.MPSVectorDescriptor(8, FLOAT32)
        return mps.MPSVector(
            buffer=bench.device.new_buffer(data=np.full(8, value, np.float32)), descriptor=descriptor
        )  # fmt: skip

    kinds: list[tuple[str, Any]] = [("matrix", matrix), ("vector", vector)]
    given = [(suffix, make(0.0), make(10.0**power)) for power in range(3) for suffix, make in kinds]
    counts, found = [0] * len(given), list[str]()
    for turn in np.random.default_rng(1).integers(0, len(given), 60).tolist():
        suffix, values, gradient = given[turn]
        operands = {"input_gradient": gradient, "input_values": values, "result_values": values}
        arguments = {f"{name}_{suffix}": operand for name, operand in operands.items()}
        found += _run(bench, lambda buffer, more=arguments: optimizer.encode(buffer, **more))
        counts[turn] += 1
        for count, (_, held, slope) in zip(counts, given, strict=True):
            step = slope.data.contents().view(np.float32)[0]
            assert held.data.contents().view(np.float32)[0] == -count * step
    assert found.count("replayed") > 40


def test_work_that_only_keeps_its_place_counts_as_work(bench: Bench) -> None:
    """The same encodes, with a different number of synchronizations behind and between them."""
    double = _linear(bench, 2.0)
    for number, waits in enumerate([0, 0, 0, 1, 2, 1, 2, 0, 1, 2]):
        x, results = bench.image(_values(number)), list[Any]()

        def encode(buffer: Any, x: Any = x, waits: int = waits, found: list[Any] = results) -> None:
            found.append(double.encode(buffer, x))
            for _ in range(waits):
                found[0].synchronize(buffer)
            found.append(double.encode(buffer, found[0]))

        found = _run(bench, encode)
        assert len(found) == 2 + waits
        assert len(set(found)) == 1
        np.testing.assert_array_equal(numbers(results[1]), 4 * _values(number))


def test_an_image_that_is_read_before_it_is_written_or_after(bench: Bench) -> None:
    """The same two encodes over the same images in either order, and over one image or two."""
    double, triple = _linear(bench, 2.0), _linear(bench, 3.0)
    for number, order in enumerate(np.random.default_rng(2).integers(0, 3, 40).tolist()):
        x, y = bench.image(_values(number)), bench.image(_values(100 + number))
        to, results = bench.filled(SHAPE, 5.0), list[Any]()

        def encode(
            buffer: Any, x: Any = x, y: Any = y, to: Any = to, order: int = order, found: list[Any] = results
        ) -> None:
            double.encode(buffer, x, to if order < 2 else y)
            found.append(triple.encode(buffer, to if order == 0 else x if order == 1 else to))

        _run(bench, encode)
        source = {0: 2 * _values(number), 1: _values(number), 2: np.full(SHAPE, 5.0, np.float32)}[order]
        np.testing.assert_array_equal(numbers(results[0]), 3 * source)
    assert replayer_of(bench.queue).captures == 3


def test_an_image_without_memory_and_one_with(bench: Bench) -> None:
    """A destination that was never used is replaced whole; one that has numbers keeps those beside the result."""
    kernel = _linear(bench, 2.0)
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(1, 1, 0), mps.MTLSize(2, 2, 1))
    for number, is_new in enumerate([True, False, True, True, False, False, True, False]):
        x = bench.image(_values(number))
        to = mps.MPSImage(bench.device, x.descriptor()) if is_new else bench.filled(SHAPE, 7.0)
        _run(bench, lambda buffer, x=x, to=to: kernel.encode(buffer, x, to))
        expected = np.full(SHAPE, 0.0 if is_new else 7.0, np.float32)
        expected[:, :, 1:3, 1:3] = 2 * _values(number)[:, :, :2, :2]
        np.testing.assert_array_equal(numbers(to), expected)


def test_parts_of_batches_of_other_lengths(bench: Bench) -> None:
    """The first two images of a batch without memory, which gets all of it."""
    double = _linear(bench, 2.0)
    for number, count in enumerate([4, 4, 4, 6, 4, 6, 6, 2, 4]):
        x = bench.batch(np.repeat(_values(number), 2, 0))
        to = mps.MPSImageBatch.allocate(bench.device, x[0].descriptor(), count)
        _run(bench, lambda buffer, x=x, to=to: double.encode_batch(buffer, x, to[:2]))
        found = numbers(to)
        np.testing.assert_array_equal(found[:2], np.repeat(2 * _values(number), 2, 0))
        assert found.shape[0] == count
        assert not found[2:].any()
