"""Captures and replays: what they are told by, what they hand out, what stands in their way, what they hold."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from openmps import cpu
from openmps.metal.queue_executor import forget_captures
from openmps.runtime.replay import replayer
from openmps.runtime.replay.recorder import CudaRecorder
from openmps.runtime.replay.replayer import MIN_STEPS, Replayer
from replay_twin import TwinRecorder, outcomes, replayer_of, replaying_queue

Array = np.ndarray
SHAPE = (1, 2, 4, 3)
CPU = torch.device("cpu")


@pytest.fixture
def bench(device: torch.device) -> Bench:
    made = Bench.on(device)
    made.queue = replaying_queue(device)
    return made


def _values(number: int, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def _linear(bench: Bench, a: float, b: float = 0.0) -> mps.MPSCNNNeuronLinear:
    neuron = mps.MPSCNNNeuronLinear(bench.device, a, b)
    neuron.destination_image_allocator = mps.MPSImage.default_allocator()
    return neuron


def _encoded(bench: Bench, *encodes: Callable[[Any], object]) -> mps.MTLCommandBuffer:
    command_buffer = bench.command_buffer()
    for encode in encodes:
        encode(command_buffer)
    finish(command_buffer)
    return command_buffer


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_the_first_runs_the_second_is_captured_later_ones_are_replayed(bench: Bench) -> None:
    double, found = _linear(bench, 2.0), []
    for number in range(4):
        result: list[Any] = []
        source = bench.image(_values(number))
        command_buffer = _encoded(bench, lambda buffer, x=source, y=result: y.append(double.encode(buffer, x)))
        np.testing.assert_array_equal(numbers(result[0]), 2 * _values(number))
        found += outcomes(command_buffer)
    assert found == ["run", "captured", "replayed", "replayed"]


def test_results_under_way_together_stay_apart(bench: Bench) -> None:
    double, made = _linear(bench, 2.0), []
    for number in range(6):
        command_buffer = bench.command_buffer()
        made.append((double.encode(command_buffer, bench.image(_values(number))), command_buffer))
        command_buffer.commit()
    for number, (result, command_buffer) in enumerate(made):
        command_buffer.wait_until_completed()
        np.testing.assert_array_equal(numbers(result), 2 * _values(number))


def test_a_source_may_be_dropped_and_a_result_not_wanted(bench: Bench) -> None:
    double = _linear(bench, 2.0)
    for number in range(4):
        _encoded(bench, lambda buffer, n=number: double.encode(buffer, bench.image(_values(n))))
    assert replayer_of(bench.queue).captures == 1


def test_an_image_that_several_works_read_is_copied_once(bench: Bench) -> None:
    double, triple, shifted = _linear(bench, 2.0), _linear(bench, 3.0), _linear(bench, 4.0)
    shifted.source_feature_channel_offset, shifted.source_feature_channel_max_count = 4, 4
    for number in range(4):
        values, others = (_values(seed, (1, 8, 4, 3)) for seed in (number, number + 9))
        source, other, command_buffer = bench.image(values), bench.image(others), bench.command_buffer()
        encoded = [(double, source), (triple, source), (double, other), (double, source), (shifted, source)]
        made = [kernel.encode(command_buffer, x) for kernel, x in encoded]
        finish(command_buffer)
        expected = [2 * values, 3 * values, 2 * others, 2 * values, 4 * values[:, 4:]]
        for result, wanted in zip(made, expected, strict=True):
            np.testing.assert_array_equal(numbers(result)[:, : wanted.shape[1]], wanted)
    (entry,) = replayer_of(bench.queue)._entries.values()
    assert len(entry.partition.values) == 2


def test_images_that_take_longer_to_copy_than_to_launch_are_not_replayed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = _linear(bench, 2.0)
    monkeypatch.setattr(replayer, "MOST_COPIED", 4 * 24)

    def outcome(channels: int) -> Any:
        for number in range(3):
            source = bench.image(_values(number, (1, channels, 4, 3)))
            command_buffer = _encoded(bench, lambda buffer, x=source: double.encode(buffer, x))
        return command_buffer.explain().works[0]

    assert outcome(2).outcome.value == "replayed"
    refused = outcome(4)
    assert refused.outcome.value == "run"
    assert "take longer to copy" in refused.reason


@pytest.mark.parametrize("is_seen", [True, False])
def test_filters_that_write_where_results_go_are_replayed_where_few_are_seen(bench: Bench, is_seen: bool) -> None:
    bench.queue, largest = replaying_queue(bench.device, MIN_STEPS), mps.MPSImageAreaMax(bench.device, 3, 3)
    values, steps = np.abs(_values(0)), 5
    images = [bench.image(values), *(bench.filled(SHAPE, 0.0) for _ in range(steps))]
    shape = images[0].stack(0, 1).shape
    function = largest.plan((shape,), shape).function
    function.forms, function.launches = {bench.device.torch_device.type: lambda values, room: None}, 1
    function.placement = lambda values, room: None
    for _ in range(3):
        command_buffer, image = bench.command_buffer(), images[0]
        for number in range(steps):
            is_last = number == steps - 1
            result = images[number + 1]
            if not is_seen and not is_last:
                descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 4, 2)
                result = mps.MPSTemporaryImage(command_buffer, descriptor)
            largest.encode(command_buffer, image, result)
            image = result
        finish(command_buffer)
    (work, *_) = command_buffer.explain().works
    assert work.outcome.value == ("run" if is_seen else "replayed")
    assert "where these go; where its pictures lie it has not run before" in work.reason or not is_seen
    assert len(replayer_of(bench.queue)._entries) == (not is_seen)  # no signature is made to find that out
    expected = values
    for _ in range(steps):
        around = np.pad(expected, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
        expected = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3)).max((4, 5))
    np.testing.assert_array_equal(numbers(images[-1]), expected)


def test_a_changed_property_and_a_changed_shape_count_at_once(bench: Bench) -> None:
    kernel = mps.MPSCNNPoolingMax(bench.device, 2, 2, 1, 1)
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    plain = Bench(bench.device)
    plain.queue.max_capture_count = 0
    random = np.random.default_rng(0)
    for _ in range(40):
        kernel.clip_rect = mps.MTLRegion(
            mps.MTLOrigin(int(random.integers(2)), 0, 0), mps.MTLSize(int(random.integers(1, 4)), 9, 1)
        )
        values = random.normal(size=(1, 2, 5, int(random.integers(4, 6)))).astype(np.float32)
        results = []
        for each in (bench, plain):
            source, destination = each.image(values), each.filled((1, 2, 5, 5), 7.0)
            _encoded(each, lambda buffer, x=source, y=destination: kernel.encode(buffer, x, y))
            results.append(numbers(destination))
        np.testing.assert_array_equal(*results)
    assert replayer_of(bench.queue).captures > 4


def test_a_chain_by_hand_over_temporary_images_and_parts_of_images(bench: Bench) -> None:
    """Between the kernels: a temporary image, one that two kernels write a part of each, one that is read and kept."""
    first, second = _linear(bench, 2.0, 1.0), _linear(bench, -1.0)
    left, right = _linear(bench, 3.0), _linear(bench, 5.0)
    left.destination_feature_channel_offset, right.destination_feature_channel_offset = 0, 4
    first.destination_image_allocator = mps.MPSTemporaryImage.default_allocator()
    half = mps.MPSCNNNeuronLinear(bench.device, 0.5, 0.0)
    half.destination_image_allocator = mps.MPSImage.default_allocator()
    seen = []
    for number in range(5):
        x, y = _values(number, (1, 4, 4, 3)), _values(100 + number, (1, 4, 4, 3))
        command_buffer = bench.command_buffer()
        joined = bench.filled((1, 8, 4, 3), 9.0)
        inner = first.encode(command_buffer, bench.image(x))
        kept = second.encode(command_buffer, inner)
        left.encode(command_buffer, kept, joined)
        right.encode(command_buffer, bench.image(y), joined)
        result = half.encode(command_buffer, joined)
        finish(command_buffer)
        expected = np.concatenate([3 * -(2 * x + 1), 5 * y], 1)
        np.testing.assert_allclose(numbers(kept), -(2 * x + 1), rtol=1e-6)
        np.testing.assert_allclose(numbers(joined), expected, rtol=1e-6)
        np.testing.assert_allclose(numbers(result), expected / 2, rtol=1e-6)
        seen.append(set(outcomes(command_buffer)))
    assert seen == [{"run"}, {"captured"}, {"replayed"}, {"replayed"}, {"replayed"}]


def test_a_part_of_an_image_that_is_not_written_keeps_its_numbers(bench: Bench) -> None:
    """The destination had numbers before, one kernel writes a part of it, the next reads all of it."""
    write, read = _linear(bench, 2.0), _linear(bench, 1.0)
    write.clip_rect = mps.MTLRegion(mps.MTLOrigin(1, 1, 0), mps.MTLSize(2, 2, 1))
    for number in range(5):
        x, before = _values(number), _values(50 + number)
        source, destination, result = bench.image(x), bench.image(before), []
        _encoded(
            bench,
            lambda buffer, x=source, y=destination: write.encode(buffer, x, y),
            lambda buffer, y=destination, z=result: z.append(read.encode(buffer, y)),
        )
        expected = before.copy()
        expected[:, :, 1:3, 1:3] = 2 * x[:, :, :2, :2]
        np.testing.assert_array_equal(numbers(destination), expected)
        np.testing.assert_array_equal(numbers(result[0]), expected)


def test_images_that_share_memory(device: torch.device) -> None:
    """What one image is written, the other one shows: such works are not captured together."""
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    write, read = _linear(bench, 2.0), _linear(bench, 3.0)
    for number in range(4):
        memory = torch.zeros((1, 2, 4, 3), device=device).contiguous(memory_format=torch.channels_last)
        one, other = (mps.MPSImage.from_tensor(bench.device, memory, copy=False) for _ in range(2))
        results: list[Any] = []
        source = bench.image(_values(number))
        _encoded(
            bench,
            lambda buffer, x=source, y=one: write.encode(buffer, x, y),
            lambda buffer, x=other, y=results: y.append(read.encode(buffer, x)),
        )
        np.testing.assert_array_equal(numbers(results[0]), 6 * _values(number))
        np.testing.assert_array_equal(numbers(other), 2 * _values(number))


def test_images_that_share_memory_and_are_both_written(device: torch.device) -> None:
    """Each is read as what was written last, through whichever of them."""
    found: list[np.ndarray] = []
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    for queue in (replaying_queue(device), plain):
        place = queue.device
        double = mps.MPSCNNNeuronLinear(place, a=2.0, b=0.0)
        double.destination_image_allocator = mps.MPSImage.default_allocator()
        for number in range(4):
            mine = mps.MPSImageBatch.from_numpy(place, np.full((1, 2, 2, 1), 1.0 + number, np.float32))
            alias = mps.MPSImageBatch.from_tensor(place, mine.tensor(), copy=False)
            other = mps.MPSImageBatch.from_numpy(place, np.full((1, 2, 2, 1), 10.0, np.float32))
            command_buffer = queue.command_buffer()
            double.encode_batch(command_buffer, alias, destination_images=alias)
            double.encode_batch(command_buffer, other, destination_images=mine)
            read = double.encode_batch(command_buffer, alias)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            assert read.numpy().flatten().tolist() == [40.0] * 4
            found.append(alias.numpy())
    assert all(each.flatten().tolist() == [20.0] * 4 for each in found)


def test_a_state_that_somebody_keeps_is_filled(bench: Bench) -> None:
    """The state of one encode is kept and used in a later command buffer; those between are dropped."""
    dropout = mps.MPSCNNDropout(bench.device, 0.5, 3)
    gradient = mps.MPSCNNDropoutGradient(bench.device, 0.5, 3)
    for kernel in (dropout, gradient):
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    ones, kept = np.ones((1, 4, 8, 8), np.float32), []
    for number in range(6):
        command_buffer = bench.command_buffer()
        made = dropout.encode(command_buffer, bench.image(ones), destination_state_is_temporary=False)
        finish(command_buffer)
        if number % 2:
            kept.append(made)
    masks = [numbers(result) for result, _ in kept]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    for (_, state), mask in zip(kept, masks, strict=True):
        command_buffer = bench.command_buffer()
        flow = gradient.encode(command_buffer, bench.image(ones), bench.image(ones), state)
        finish(command_buffer)
        np.testing.assert_array_equal(numbers(flow), mask)


# --- what stands in the way -------------------------------------------------------------------------------------------


def test_other_work_runs_between_replays(bench: Bench) -> None:
    double, buffer_ = _linear(bench, 2.0), bench.device.new_buffer(length=4)
    for number in range(4):
        order: list[Any] = []
        command_buffer = bench.command_buffer()
        results = [double.encode(command_buffer, bench.image(_values(number)))]
        command_buffer.record("look", lambda x=results[0], y=order: y.append(numbers(x).copy()))
        with command_buffer.blit_command_encoder() as blit:
            blit.fill_buffer(buffer_, range(4), number)
        results.append(double.encode(command_buffer, results[0]))
        finish(command_buffer)
        np.testing.assert_array_equal(order[0], 2 * _values(number))
        np.testing.assert_array_equal(numbers(results[1]), 4 * _values(number))
        assert buffer_.contents().tolist() == [number] * 4
    rows = command_buffer.explain().works
    assert [row.outcome.value for row in rows] == ["replayed", "run", "run", "replayed"]
    assert rows[1].reason == "not replayed: it is no encode of a kernel or graph"
    assert rows[0].reason == ""


def test_a_predicate_is_looked_at_each_time(bench: Bench) -> None:
    double = _linear(bench, 2.0)
    for number in range(6):
        command_buffer = mps.MPSCommandBuffer(bench.queue)
        predicate = mps.MPSPredicate(bench.device.new_buffer(data=np.uint32([number % 2])))
        command_buffer.predicate = predicate
        destination = bench.filled(SHAPE, 9.0)
        double.encode(command_buffer, bench.image(_values(number)), destination)
        finish(command_buffer)
        expected = 2 * _values(number) if number % 2 else np.full(SHAPE, 9.0)
        np.testing.assert_array_equal(numbers(destination), expected)


def test_few_steps_are_not_captured() -> None:
    bench = Bench.on(CPU)
    bench.queue = replaying_queue(CPU, MIN_STEPS)
    double = _linear(bench, 2.0)
    for number in range(3):
        command_buffer = _encoded(bench, lambda buffer, n=number: double.encode(buffer, bench.image(_values(n))))
    (row,) = command_buffer.explain().works
    assert (row.outcome, row.reason) == (
        mps.WorkOutcome.RUN,
        "not replayed: 1 step(s) are too few to gain by it",
    )


def test_works_of_few_steps_together_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at their memory takes longer than to launch them; where other work is among them, it says what that is."""
    bench = Bench.on(CPU)
    bench.queue = replaying_queue(CPU, MIN_STEPS)
    double, looks = _linear(bench, 2.0), list[int]()
    signatures: Any = replayer_of(bench.queue)._signatures
    look = signatures.look
    monkeypatch.setattr(signatures, "look", lambda works: (looks.append(len(works)), look(works))[1])

    def explained(count: int, *, is_mixed: bool) -> list[str]:
        command_buffer = bench.queue.command_buffer()
        for number in range(count):
            double.encode(command_buffer, bench.image(_values(number)), bench.filled(SHAPE, 9.0))
            if is_mixed:
                command_buffer.record("more", lambda: None)
        finish(command_buffer)
        return [work.reason for work in command_buffer.explain().works]

    few = "not replayed: {} step(s) are too few to gain by it"
    assert explained(MIN_STEPS - 1, is_mixed=False) == [few.format(MIN_STEPS - 1)] * (MIN_STEPS - 1)
    assert looks == []
    assert explained(1, is_mixed=True) == [few.format(1), "not replayed: it is no encode of a kernel or graph"]
    assert len(explained(MIN_STEPS, is_mixed=False)) == MIN_STEPS
    assert looks == [2, 1, MIN_STEPS]


def test_what_cannot_be_captured_runs_and_says_why() -> None:
    class Refusing(TwinRecorder):
        def record(self, run: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    bench = Bench.on(CPU)
    bench.queue._executor.player = Replayer(CPU, Refusing(), 0)
    double = _linear(bench, 2.0)
    for number in range(4):
        results: list[Any] = []
        command_buffer = _encoded(
            bench, lambda buffer, n=number, y=results: y.append(double.encode(buffer, bench.image(_values(n))))
        )
        np.testing.assert_array_equal(numbers(results[0]), 2 * _values(number))
    (row,) = command_buffer.explain().works
    assert row.outcome is mps.WorkOutcome.RUN
    assert row.reason == (
        "not replayed: it cannot be captured, RuntimeError: operation not permitted when stream is capturing"
    )


def test_captures_can_be_turned_off(bench: Bench) -> None:
    double = _linear(bench, 2.0)

    def once() -> mps.MTLCommandBuffer:
        return _encoded(bench, lambda buffer: double.encode(buffer, bench.image(_values(0))))

    for _ in range(3):
        once()
    bench.queue.max_capture_count = 0
    (row,) = once().explain().works
    assert row.reason == "not replayed: max_capture_count of the queue is 0"
    assert replayer_of(bench.queue).captures == 0
    for value in (-1, 1.5, True, None):
        with pytest.raises(mps.MPSArgumentError, match="max_capture_count"):
            bench.queue.max_capture_count = value  # type: ignore[assignment]


def test_as_many_captures_as_are_allowed_are_held(bench: Bench) -> None:
    bench.queue.max_capture_count = 4
    for count in range(1, 6):
        double = _linear(bench, float(count))
        for _ in range(3):
            _encoded(bench, lambda buffer, kernel=double: kernel.encode(buffer, bench.image(_values(0))))
        assert replayer_of(bench.queue).captures == min(count, 4)


# --- faults -----------------------------------------------------------------------------------------------------------


def test_faults_and_handlers_are_those_of_what_runs(bench: Bench) -> None:
    double, heard = _linear(bench, 2.0), []

    def failing() -> None:
        raise ValueError("mine")

    for number in range(5):
        command_buffer = bench.command_buffer()
        result = double.encode(command_buffer, bench.image(_values(number)))
        command_buffer.record("fails", failing)
        double.encode(command_buffer, result)
        command_buffer.add_scheduled_handler(lambda _, n=number: heard.append(("scheduled", n)))
        command_buffer.add_completed_handler(lambda buffer, n=number: heard.append((buffer.status.name, n)))
        command_buffer.commit()
        with pytest.raises(mps.MTLExecutionError, match="work 'fails'"):
            command_buffer.wait_until_completed()
        np.testing.assert_array_equal(numbers(result), 2 * _values(number))
    assert sorted(heard) == sorted((what, n) for n in range(5) for what in ("scheduled", "ERROR"))
    assert outcomes(command_buffer) == ["replayed", "run", "skipped"]


def test_a_fault_of_a_replay_is_that_of_the_command_buffer() -> None:
    class Failing(TwinRecorder):
        def record(self, run: Any) -> Any:
            recording = super().record(run)

            def replay() -> None:
                raise torch.OutOfMemoryError("no memory")

            recording.replay = replay
            return recording

    bench = Bench.on(CPU)
    bench.queue._executor.player = Replayer(CPU, Failing(), 0)
    double = _linear(bench, 2.0)
    _encoded(bench, lambda buffer: double.encode(buffer, bench.image(_values(0))))
    command_buffer = bench.command_buffer()
    double.encode(command_buffer, bench.image(_values(0)))
    command_buffer.commit()
    with pytest.raises(mps.MTLExecutionError, match="no memory"):
        command_buffer.wait_until_completed()
    assert command_buffer.error_code is mps.MTLCommandBufferErrorCode.OUT_OF_MEMORY
    bench.queue.max_capture_count = 0
    _encoded(bench, lambda buffer: double.encode(buffer, bench.image(_values(0))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_capture_that_cuda_refuses_leaves_the_device_as_it_was() -> None:
    """Work that waits for the device cannot be captured; memory goes on being taken and given back."""
    device = torch.device("cuda", torch.cuda.current_device())
    x, recorder = torch.ones(1024, device=device), CudaRecorder(device)
    assert float((x @ x.view(-1, 1)).sum()) == 1024.0  # a library that begins while it is captured refuses
    for _ in range(3):
        with pytest.raises(RuntimeError):
            recorder.record(lambda: [x * float((x + 1).sum())])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert float((x + torch.ones(1 << 20, device=device)[:1024]).sum()) == 2048.0
    for factor in (3, 5):  # the second one when the first is gone
        recording = recorder.record(lambda factor=factor: [(x * factor) @ x.view(-1, 1)])
        recording.replay()
        (made,) = recording.values
        assert made is not None
        assert float(made.sum()) == factor * 1024.0
        recorder.retire()
        del recording, made


def test_a_program_that_captures_by_itself_is_left_alone() -> None:
    class Taken(TwinRecorder):
        def is_taken(self) -> bool:
            return True

    bench = Bench.on(CPU)
    bench.queue._executor.player = Replayer(CPU, Taken(), 0)
    double = _linear(bench, 2.0)
    for _ in range(3):
        command_buffer = _encoded(bench, lambda buffer: double.encode(buffer, bench.image(_values(0))))
    (row,) = command_buffer.explain().works
    assert row.reason == "not replayed: the program itself captures what is launched"


# --- what is held -----------------------------------------------------------------------------------------------------


def _of_width(bench: Bench, kernel: Any, width: int) -> str:
    command_buffer = _encoded(
        bench, lambda buffer: kernel.encode(buffer, bench.image(_values(0, (1, 2, 4, width))))
    )  # fmt: skip
    return outcomes(command_buffer)[0]


def test_the_last_used_captures_are_kept(bench: Bench) -> None:
    bench.queue.max_capture_count = 2
    double = _linear(bench, 2.0)
    for width in (3, 4):
        assert [_of_width(bench, double, width) for _ in range(3)] == ["run", "captured", "replayed"]
    assert _of_width(bench, double, 3) == "replayed"
    assert [_of_width(bench, double, 5) for _ in range(2)] == ["run", "captured"]
    assert replayer_of(bench.queue).captures == 2
    assert [_of_width(bench, double, width) for width in (3, 5)] == ["replayed", "replayed"]
    # That of width 4 had to go: it comes again after twice as many equal encodes, so that turns do not thrash.
    assert [_of_width(bench, double, 4) for _ in range(5)] == ["run", "run", "run", "captured", "replayed"]


class _Forgetful(TwinRecorder):
    """A recorder that holds nothing of the static function, as one of CUDA graphs does."""

    def record(self, run: Any) -> Any:
        self.recorded += 1
        values = [None if value is None else torch.zeros_like(value) for value in run()]

        class Recording:
            def __init__(self) -> None:
                self.values = values

            def replay(self) -> None:
                pass

        return Recording()


def test_a_capture_holds_neither_weights_nor_images_and_goes_with_the_weights() -> None:
    bench = Bench.on(CPU)
    recorder = _Forgetful()
    bench.queue._executor.player = Replayer(CPU, recorder, 0)
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 2, 2)
    source = mps.ArrayConvolutionDataSource(descriptor, np.ones((2, 1, 1, 2), np.float32), np.ones(2, np.float32))
    kernel = mps.MPSCNNConvolution(bench.device, weights=source)
    kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    held: list[Any] = []
    for number in range(3):
        image = bench.image(_values(number))
        command_buffer = bench.command_buffer()
        result = kernel.encode(command_buffer, image)
        held += [weakref.ref(image.storage.block), weakref.ref(result.storage.block)]
        del image, result
        finish(command_buffer)
        del command_buffer
    weights = weakref.ref(kernel.parameters)
    assert replayer_of(bench.queue).captures == 1
    gc.collect()
    assert [each() for each in held] == [None] * 6
    del kernel
    gc.collect()
    assert weights() is None
    assert replayer_of(bench.queue).captures == 0
    assert recorder.retired == 1


def test_a_capture_goes_with_the_data_set_that_it_reads() -> None:
    bench, selection = Bench.on(CPU), mps.training.ImageSelection(mps.mtl_device("cpu"))
    bench.queue._executor.player = Replayer(CPU, _Forgetful(), 0)
    data, order = (
        [bench.image(_values(1, (3, 2, 4, 3)))],
        mps.MPSVector.from_numpy(bench.device, np.zeros(1, np.uint32)),
    )
    for _ in range(3):
        _encoded(bench, lambda buffer: selection.encode_batch(buffer, data[0], order, bench.batch(_values(2))))
    assert replayer_of(bench.queue).captures == 1
    held = weakref.ref(data.pop().storage.block)
    gc.collect()
    assert (held(), replayer_of(bench.queue).captures) == (None, 0)


def test_captures_go_with_their_queue() -> None:
    bench = Bench.on(CPU)
    bench.queue = replaying_queue(CPU)
    double = _linear(bench, 2.0)
    for number in range(3):
        source = bench.image(_values(number))
        _encoded(bench, lambda buffer, x=source: double.encode(buffer, x))
    held, worker = weakref.ref(replayer_of(bench.queue)), bench.queue._executor.worker
    del bench
    gc.collect()
    assert worker is not None
    worker.join(60)
    assert held() is None


def test_captures_that_are_let_go_of_come_again() -> None:
    bench = Bench.on(CPU)
    bench.queue = replaying_queue(CPU)
    double, counts = _linear(bench, 2.0), list[int]()
    for number in range(8):
        if number == 4:
            forget_captures(bench.queue._executor.device)
            counts.append(replayer_of(bench.queue).captures)
        source = bench.image(_values(number))
        result: list[Any] = []
        _encoded(bench, lambda buffer, x=source, y=result: y.append(double.encode(buffer, x)))
        np.testing.assert_array_equal(numbers(result[0]), 2 * _values(number))
        counts.append(replayer_of(bench.queue).captures)
    assert counts == [0, 1, 1, 1, 0, 0, 1, 1, 1]


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_on_the_cpu() -> None:
    bench = Bench.on(CPU)
    double = _linear(bench, 2.0)
    command_buffer = bench.command_buffer()
    double.encode(command_buffer, bench.image(_values(0)))
    command_buffer.record("mine", lambda: None)
    before = command_buffer.explain()
    assert [row.outcome for row in before.works] == [mps.WorkOutcome.PENDING] * 2
    finish(command_buffer)
    found = command_buffer.explain()
    assert isinstance(found, mps.CommandBufferExplanation)
    assert (found.device, found.steps, found.count(mps.WorkOutcome.RUN)) == ("cpu", 1, 2)
    assert found.processor == str(cpu.cpu_features())
    assert len(found.choices) == len(cpu.CpuChoice)
    why = "not replayed: the device is a CPU"
    assert found.works == (
        mps.ExplainedWork("MPSCNNNeuronLinear", ("Neuron",), (), mps.WorkOutcome.RUN, why),
        mps.ExplainedWork("mine", (), (), mps.WorkOutcome.RUN, why),
    )
    assert str(found) == (
        f"cpu ({found.processor}): 2 work(s), 1 step(s), 2 run\n"
        f"  run         1 step(s)  MPSCNNNeuronLinear; {why}\n"
        f"  run         0 step(s)  mine; {why}"
    )


def test_explain_after_a_fault() -> None:
    bench = Bench.on(CPU)
    command_buffer = bench.command_buffer()
    command_buffer.record("fine", lambda: None)
    command_buffer.record("fails", lambda: [][0])
    command_buffer.record("never", lambda: None)
    command_buffer.commit()
    with pytest.raises(mps.MTLExecutionError):
        command_buffer.wait_until_completed()
    assert outcomes(command_buffer) == ["run", "run", "skipped"]
