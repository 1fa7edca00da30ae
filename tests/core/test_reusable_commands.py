"""ReusableCommands: what may be encoded once, what it does each time, and what raises."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from replay_twin import outcomes, replaying_queue
from samples.batch_normalization import ChannelSource
from samples.group_normalization import GammaAndBetaSource

SHAPE = (1, 3, 5, 6)


@pytest.fixture
def bench(device: torch.device) -> Bench:
    return Bench.on(device)


def do(commands: mps.ReusableCommands, queue: mps.MTLCommandQueue | None = None) -> mps.MTLCommandBuffer:
    command_buffer = (queue or commands.command_queue).command_buffer()
    commands.encode(command_buffer)
    finish(command_buffer)
    return command_buffer


def values(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write(image: mps.MPSImage, numbers: np.ndarray) -> None:
    image.write_bytes(np.ascontiguousarray(numbers.transpose(0, 2, 3, 1)))


def linear(bench: Bench) -> mps.MPSCNNNeuron:
    return mps.MPSCNNNeuronLinear(bench.device, 2.0, 0.0)


def relu(bench: Bench) -> mps.MPSCNNNeuron:
    return mps.MPSCNNNeuronReLU(bench.device, 0.0)


def test_each_time_it_reads_what_the_memory_holds(bench: Bench) -> None:
    source, result = bench.empty(SHAPE), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    relu(bench).encode(commands, source, result)
    for seed in range(5):
        write(source, values(seed))
        do(commands)
        np.testing.assert_array_equal(numbers(result), np.maximum(values(seed), 0.0))


def test_temporary_images_keep_their_memory(bench: Bench) -> None:
    source, result = bench.image(values(0)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    between = relu(bench).encode(commands, source)
    assert between.is_temporary
    assert between.read_count == 1
    mps.MPSCNNNeuronAbsolute(bench.device).encode(commands, between, result)
    assert between.read_count == 0
    with pytest.raises(mps.MPSLifetimeError, match="read_count 0"):
        relu(bench).encode(commands, between)
    for seed in (1, 2, 3):
        write(source, values(seed))
        do(commands)
        np.testing.assert_array_equal(numbers(result), np.maximum(values(seed), 0.0))
    with pytest.raises(mps.MPSLifetimeError, match="on the command buffer that it was made for"):
        relu(bench).encode(bench.command_buffer(), relu(bench).encode(commands, source))


def test_properties_are_those_of_the_encode(bench: Bench) -> None:
    kernel = mps.MPSCNNNeuronLinear(bench.device, 2.0, 0.0)
    source, result = bench.image(values(0)), bench.empty(SHAPE)
    kernel.edge_mode = mps.MPSImageEdgeMode.ZERO
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(0, 0, 0), mps.MTLSize(2, 5, 1))
    commands = mps.ReusableCommands(bench.queue)
    kernel.encode(commands, source, result)
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(0, 0, 0), mps.MTLSize(6, 5, 1))
    do(commands)
    expected = np.zeros(SHAPE, np.float32)
    expected[..., :2] = 2.0 * values(0)[..., :2]
    np.testing.assert_array_equal(numbers(result), expected)


def test_weights_are_those_of_the_time(bench: Bench) -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 3)
    weights = mps.ArrayConvolutionDataSource(descriptor, np.ones((3, 1, 1, 3), np.float32))
    kernel = mps.MPSCNNConvolution(bench.device, weights)
    source, result = bench.image(np.ones(SHAPE)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    kernel.encode(commands, source, result)
    do(commands)
    assert np.all(numbers(result) == 3.0)
    command_buffer = bench.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer)
    finish(command_buffer)
    state.weights.tensor(torch.float32).fill_(2.0)
    command_buffer = bench.command_buffer()
    kernel.reload_weights_and_biases(command_buffer, state)
    finish(command_buffer)
    do(commands)
    assert np.all(numbers(result) == 6.0)


def test_they_go_between_other_encodes(bench: Bench) -> None:
    """Added to what a command buffer holds, in order; what is encoded to them later counts from then on."""
    images = [bench.image(values(0)), *(bench.empty(SHAPE) for _ in range(4))]
    double = mps.MPSCNNNeuronLinear(bench.device, 2.0, 0.0)
    commands = mps.ReusableCommands(bench.queue)
    double.encode(commands, images[1], images[2])
    command_buffer = bench.command_buffer()
    double.encode(command_buffer, images[0], images[1])
    commands.encode(command_buffer)
    double.encode(commands, images[3], images[4])
    double.encode(command_buffer, images[2], images[3])
    commands.encode(command_buffer)
    assert [label for label, _ in command_buffer.encodings] == ["MPSCNNNeuronLinear"] * 5
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(images[4]), 16.0 * values(0))


def test_labels_groups_and_predicates_are_those_of_both(bench: Bench) -> None:
    source, result = bench.image(values(0)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    commands.push_debug_group("inner")
    relu(bench).encode(commands, source, result)
    commands.pop_debug_group()
    command_buffer = bench.command_buffer()
    command_buffer.push_debug_group("outer")
    commands.encode(command_buffer)
    assert [label for label, _ in command_buffer.encodings] == ["outer/inner/MPSCNNNeuronReLU"]
    del command_buffer
    predicate = mps.MPSPredicate(device=bench.device)
    predicated = mps.MPSCommandBuffer(bench.queue)
    predicated.predicate = predicate
    commands.encode(predicated)
    finish(predicated)
    assert not numbers(result).any()


def test_what_is_read_waits_for_command_buffers_alone(bench: Bench) -> None:
    source, result = bench.image(values(0)), bench.image(values(1))
    commands = mps.ReusableCommands(bench.queue)
    relu(bench).encode(commands, source, result)
    np.testing.assert_array_equal(numbers(result), values(1))
    command_buffer = bench.command_buffer()
    commands.encode(command_buffer)
    with pytest.raises(mps.MTLCommandBufferError, match="not committed"):
        numbers(result)
    command_buffer.commit()
    np.testing.assert_array_equal(numbers(result), np.maximum(values(0), 0.0))


def test_they_may_go_before_and_after_they_are_done(bench: Bench) -> None:
    """Nothing that they were to write is missed when they go; what command buffers have of them runs."""
    source, result, other = bench.image(values(0)), bench.empty(SHAPE), bench.empty(SHAPE)
    unused = mps.ReusableCommands(bench.queue)
    relu(bench).encode(unused, source, other)
    del unused
    gc.collect()
    assert not numbers(other).any()
    commands = mps.ReusableCommands(bench.queue)
    relu(bench).encode(commands, source, result)
    command_buffer = bench.command_buffer()
    commands.encode(command_buffer)
    del commands
    gc.collect()
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), np.maximum(values(0), 0.0))


def test_another_queue_of_the_device_does_them(bench: Bench) -> None:
    source, result = bench.image(values(0)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    relu(bench).encode(commands, source, result)
    do(commands, bench.device.new_command_queue())
    np.testing.assert_array_equal(numbers(result), np.maximum(values(0), 0.0))


def test_copies_of_buffers(bench: Bench) -> None:
    source, result = bench.device.new_buffer(data=np.arange(4, dtype=np.float32)), bench.device.new_buffer(16)
    commands = mps.ReusableCommands(bench.queue)
    encoder = commands.blit_command_encoder()
    with pytest.raises(mps.MTLCommandBufferError, match="needs every encoder to be ended"):
        commands.encode(bench.command_buffer())
    encoder.copy_from_buffer(source, 0, result, 4, 12)
    encoder.fill_buffer(result, range(4), 0)
    encoder.end_encoding()
    do(commands)
    assert result.tensor(torch.float32).tolist() == [0.0, 0.0, 1.0, 2.0]


def test_graphs(bench: Bench) -> None:
    image = mps.MPSNNImageNode()
    graph = mps.MPSNNGraph(
        bench.device, mps.MPSCNNNeuronAbsoluteNode(mps.MPSCNNNeuronReLUNode(image).result_image).result_image
    )
    source = bench.image(values(0))
    commands = mps.ReusableCommands(bench.queue)
    result = graph.encode(commands, [source])
    for seed in (3, 4):
        write(source, values(seed))
        do(commands)
        np.testing.assert_allclose(numbers(result), np.maximum(values(seed), 0.0), rtol=1e-3)


def _training(bench: Bench) -> tuple[mps.MPSNNGraph, Any]:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 2)
    weights = mps.TrainableConvolutionDataSource.uniform(
        descriptor,
        limit=0.1,
        bias=0.0,
        seed=0,
        label="layer",
        optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 0.1),
    )
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), weights).result_image
    gradients = mps.MPSCNNLossNode(image, loss).training_graph()
    return mps.MPSNNGraph(bench.device, gradients[0].result_image, False), weights


def test_a_training_graph_is_refused_before_it_counts(bench: Bench) -> None:
    graph, weights = _training(bench)

    def encode(command_buffer: mps.CommandBuffer) -> None:
        labels = mps.MPSCNNLossLabels.batch(bench.device, np.zeros((1, 5, 6, 2), np.float32))
        graph.encode_batch(
            command_buffer, [mps.MPSImageBatch.from_numpy(bench.device, np.ones((1, 5, 6, 3)))], [labels]
        )

    encode(bench.command_buffer())
    optimizer = weights._optimizer
    before = optimizer.time_step
    with pytest.raises(mps.MTLCommandBufferError, match="encode of 'MPSNNGraph' must do the same each time, got a"):
        encode(mps.ReusableCommands(bench.queue))
    assert optimizer.time_step == before


def test_an_optimizer_is_refused_before_it_counts(bench: Bench) -> None:
    adam = mps.MPSNNOptimizerAdam(bench.device, 0.1)
    vectors = [mps.MPSVector(bench.device.new_buffer(16), mps.MPSVectorDescriptor(4)) for _ in range(5)]
    with pytest.raises(
        mps.MTLCommandBufferError, match="must do the same each time, got an encode with a number of its own, 'rate'"
    ):
        adam.encode(mps.ReusableCommands(bench.queue), *vectors)
    assert adam.time_step == 0


def test_a_refused_gradient_leaves_the_state_as_it_was(bench: Bench) -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 3)
    weights = mps.ArrayConvolutionDataSource(descriptor, np.ones((3, 1, 1, 3), np.float32))
    kernel, gradient = (
        mps.MPSCNNConvolution(bench.device, weights),
        mps.MPSCNNConvolutionGradient(bench.device, weights),
    )
    source, flow, result = bench.image(values(0)), bench.image(values(1)), bench.empty(SHAPE)
    command_buffer = bench.command_buffer()
    _, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
    with pytest.raises(mps.MTLCommandBufferError, match="got an encode with states"):
        gradient.encode(mps.ReusableCommands(bench.queue), flow, source, state, result)
    gradient.encode(command_buffer, flow, source, state, result)
    finish(command_buffer)
    found = state.gradient_for_weights.tensor(torch.float32).view(3, 3).cpu().numpy()
    expected = np.einsum("nohw,nihw->oi", values(1), values(0))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_encodes_with_states_are_refused(bench: Bench) -> None:
    """What a state holds, and what it has counted, is that of one encode."""
    x, y, flow, result = (bench.image(values(seed)) for seed in range(4))
    says = "must do the same each time, got an encode with states"
    kernel = mps.MPSCNNNeuronReLU(bench.device, 0.1)
    gradient = mps.MPSCNNNeuronGradient(bench.device, mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, 0.1))
    state = kernel.result_state(x)
    for encode in (
        lambda to: kernel.encode(to, x, y, destination_state=state),
        lambda to: kernel.encode(to, x, destination_state_is_temporary=False),
        lambda to: gradient.encode(to, flow, x, state, result),
    ):
        kernel.encode(bench.command_buffer(), x, y, destination_state=state)
        commands = mps.ReusableCommands(bench.queue)
        with pytest.raises(mps.MTLCommandBufferError, match=says):
            encode(commands)
        assert not commands.encodings


def test_statistics_are_refused_before_they_count(bench: Bench) -> None:
    kernel = mps.MPSCNNBatchNormalization(bench.device, ChannelSource(3))
    statistics = mps.MPSCNNBatchNormalizationStatistics(bench.device)
    images, result = bench.batch(values(0, (4, 3, 5, 6))), bench.batch(np.zeros((4, 3, 5, 6)))
    state = kernel.result_state(images[0])
    with pytest.raises(mps.MTLCommandBufferError, match="must do the same each time"):
        statistics.encode_batch(mps.ReusableCommands(bench.queue), images, state)
    command_buffer = bench.command_buffer()
    statistics.encode_batch(command_buffer, images, state)
    kernel.encode_batch(command_buffer, images, state, result)
    finish(command_buffer)
    np.testing.assert_allclose(numbers(result).mean((0, 2, 3)), 0.0, atol=1e-5)


@pytest.mark.parametrize("as_graph", [False, True], ids=["kernel", "graph"])
def test_a_batch_normalization_with_other_numbers_is_to_be_encoded_again(bench: Bench, as_graph: bool) -> None:
    """Work that is recorded keeps the numbers that it was encoded with; a convolution beside it would not."""
    gamma, source = np.ones(3, np.float32), ChannelSource(3)
    source.gamma = lambda: gamma
    x, y, commands = bench.image(values(0)), bench.empty(SHAPE), mps.ReusableCommands(bench.queue)
    if as_graph:
        node = mps.MPSCNNBatchNormalizationNode(mps.MPSNNImageNode(), source)
        graph = mps.MPSNNGraph(bench.device, node.result_image, True)
        graph.encode(commands, [x])
        reload = graph.reload_from_data_sources
    else:
        kernel = mps.MPSCNNBatchNormalization(bench.device, source)
        kernel.encode(commands, x, y)
        reload = kernel.reload_gamma_and_beta_from_data_source
    do(commands)
    gamma[:] = 2.0
    reload()
    command_buffer = bench.command_buffer()
    with pytest.raises(mps.MTLCommandBufferError, match="encode must read what kernels hold, got numbers of a batch"):
        commands.encode(command_buffer)
    assert not command_buffer.encodings


def test_reloads_are_refused(bench: Bench) -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 2)
    weights = mps.ArrayConvolutionDataSource(descriptor, np.ones((2, 1, 1, 3), np.float32))
    convolution = mps.MPSCNNConvolution(bench.device, weights)
    says, commands = "must do the same each time, got new numbers", mps.ReusableCommands(bench.queue)
    with pytest.raises(mps.MTLCommandBufferError, match=says):
        convolution.reload_weights_and_biases(commands, convolution.parameters.state())
    buffers = [bench.device.new_buffer(12) for _ in range(2)]
    state = mps.MPSCNNNormalizationGammaAndBetaState(*buffers)
    for kind, source in (
        (mps.MPSCNNBatchNormalization, ChannelSource(3)), (mps.MPSCNNInstanceNormalization, GammaAndBetaSource(3))
    ):  # fmt: skip
        with pytest.raises(mps.MTLCommandBufferError, match=says):
            kind(bench.device, source).reload_gamma_and_beta(commands, state)
    assert not commands.encodings


def _unwritten(bench: Bench) -> Any:
    """An image that a command buffer was to write which is gone."""
    image, command_buffer = bench.empty(SHAPE), bench.command_buffer()
    linear(bench).encode(command_buffer, bench.image(values(0)), image)
    del command_buffer
    gc.collect()
    return image


def test_an_encode_that_raises_adds_nothing(bench: Bench) -> None:
    source, late = bench.image(values(0)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    linear(bench).encode(commands, source, bench.empty(SHAPE))
    linear(bench).encode(commands, late, bench.empty(SHAPE))
    command_buffer = bench.command_buffer()
    linear(bench).encode(command_buffer, source, late)
    del command_buffer
    gc.collect()
    command_buffer = bench.command_buffer()
    with pytest.raises(mps.MTLCommandBufferError, match="dropped"):
        commands.encode(command_buffer)
    assert not command_buffer.encodings


def test_what_was_dropped_may_be_written_and_read_by_work_that_is_encoded_once(bench: Bench) -> None:
    for make in (bench.command_buffer, lambda: mps.ReusableCommands(bench.queue)):
        late, target = _unwritten(bench), make()
        linear(bench).encode(target, bench.image(values(0)), late)
        linear(bench).encode(target, late, bench.empty(SHAPE))


def test_temporary_images_may_be_read_when_a_command_buffer_with_their_work_was_dropped(bench: Bench) -> None:
    commands = mps.ReusableCommands(bench.queue)
    between = linear(bench).encode(commands, bench.image(values(0)))
    command_buffer = bench.command_buffer()
    commands.encode(command_buffer)
    del command_buffer
    gc.collect()
    linear(bench).encode(commands, between, bench.empty(SHAPE))


def test_a_refused_gradient_makes_no_gradients(bench: Bench) -> None:
    forward = mps.MPSCNNInstanceNormalization(bench.device, GammaAndBetaSource(3))
    backward = mps.MPSCNNInstanceNormalizationGradient(bench.device)
    x, y, flow, result = (bench.image(values(seed)) for seed in range(4))
    state = forward.result_state(x)
    forward.encode(command_buffer := bench.command_buffer(), x, y, destination_state=state)
    finish(command_buffer)
    before = [slot.resource for slot in state._slots]
    with pytest.raises(mps.MTLCommandBufferError, match="must do the same each time"):
        backward.encode(mps.ReusableCommands(bench.queue), flow, x, state, result)
    assert [slot.resource for slot in state._slots] == before


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda c, q: c.commit(), "commit is for command buffers"),
        (lambda c, q: c.enqueue(), "enqueue is for command buffers"),
        (lambda c, q: c.add_completed_handler(print), "add_completed_handler is for command buffers"),
        (lambda c, q: c.add_scheduled_handler(print), "add_scheduled_handler is for command buffers"),
        (lambda c, q: c.commit_and_pass_on(), "commit_and_continue is for command buffers"),
        (lambda c, q: c.wait_until_completed(), "wait_until_completed is for command buffers"),
        (lambda c, q: c.record("it", lambda: None), "encode of 'it' must do the same each time, got a function"),
        (lambda c, q: c.encode(c), "must be an MTLCommandBuffer or an MPSCommandBuffer"),
        (lambda c, q: c.encode(mps.ReusableCommands(q)), "must be an MTLCommandBuffer or an MPSCommandBuffer"),
        (lambda c, q: c.encode(None), "must be an MTLCommandBuffer or an MPSCommandBuffer, got NoneType"),
        (lambda c, q: mps.MPSCommandBuffer(command_buffer=c), "command_buffer must be committed, got ReusableCommands"),
        (lambda c, q: mps.ReusableCommands(q.device), "command_queue must be an MTLCommandQueue, got MTLDevice"),
        (lambda c, q: c.encode(_committed(q)), "must not be committed yet"),
        (lambda c, q: c.encode(), "ReusableCommands: command_buffer must be given"),
    ],
)  # fmt: skip
def test_what_is_refused(bench: Bench, act: Callable[[Any, Any], Any], says: str) -> None:
    with pytest.raises(mps.MPSError, match=says):
        act(mps.ReusableCommands(bench.queue), bench.queue)


def _committed(queue: mps.MTLCommandQueue) -> mps.MTLCommandBuffer:
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    return command_buffer


def test_an_encode_to_a_committed_buffer_leaves_them_as_they_were(bench: Bench) -> None:
    source, result = bench.image(values(0)), bench.empty(SHAPE)
    commands = mps.ReusableCommands(bench.queue)
    relu(bench).encode(commands, source, result)
    with pytest.raises(mps.MTLCommandBufferError, match="must not be committed yet"):
        commands.encode(_committed(bench.queue))
    do(commands)
    np.testing.assert_array_equal(numbers(result), np.maximum(values(0), 0.0))


def test_replays_know_them(device: torch.device) -> None:
    """They are as encodes made anew to a queue that replays; commands and encodes are equal to one another."""
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    images = [bench.image(values(0)), *(bench.empty(SHAPE) for _ in range(5))]
    kernels = [relu(bench), *(mps.MPSCNNNeuronLinear(bench.device, 2.0, 1.0) for _ in range(4))]

    def encode(command_buffer: mps.CommandBuffer) -> None:
        for kernel, source, result in zip(kernels, images, images[1:], strict=False):
            kernel.encode(command_buffer, source, result)

    commands = mps.ReusableCommands(bench.queue)
    encode(commands)
    seen: list[Any] = []
    for seed in range(6):
        write(images[0], values(seed))
        if seed % 3 == 2:
            command_buffer = bench.command_buffer()
            encode(command_buffer)
            finish(command_buffer)
        else:
            command_buffer = do(commands)
        seen.append(outcomes(command_buffer))
        expected = np.maximum(values(seed), 0.0)
        for _ in range(4):
            expected = 2.0 * expected + 1.0
        np.testing.assert_allclose(numbers(images[-1]), expected, rtol=1e-6)
    assert set(seen[-1]) == {"replayed"}
    assert seen[-1] == seen[-2]


def test_what_it_shows(bench: Bench) -> None:
    commands = mps.ReusableCommands(bench.queue)
    commands.label = "frame"
    relu(bench).encode(commands, bench.image(values(0)), bench.empty(SHAPE))
    assert repr(commands) == f"<ReusableCommands 'frame', 1 work(s), on {bench.device.name}>"
    assert [work.outcome for work in commands.explain().works] == [mps.WorkOutcome.PENDING]
    assert commands.status is mps.MTLCommandBufferStatus.NOT_ENQUEUED
