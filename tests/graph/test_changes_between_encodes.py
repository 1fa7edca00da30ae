"""Weights that change between encodes in other ways than by an update: they show as in a graph that is made anew."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from graph.test_working_set import Training
from replay_twin import assert_same, replaying_queue

Array = np.ndarray
ENCODES = 5
Format = mps.MPSImageFeatureChannelFormat

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


class Source(mps.ArrayConvolutionDataSource):
    """Weights, biases and a batch normalization that is folded in."""

    def fold(self, variance: float) -> None:
        """Fold in another one."""
        outputs = self.descriptor().output_feature_channels
        mean, beta = np.linspace(-1, 1, outputs), np.linspace(2, 0, outputs)
        self.descriptor().set_batch_normalization_parameters_for_inference(mean, np.full(outputs, variance), None, beta)


def _source(rng: np.random.Generator) -> Source:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 2, 5)
    return Source(descriptor, rng.normal(0, 1, descriptor.weight_shape()), rng.normal(0, 1, 5))


def _graph(device: mps.MTLDevice, source: Source) -> Any:
    image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image
    graph = mps.MPSNNGraph(device, mps.MPSCNNNeuronReLUNode(image).result_image, True)
    graph.format = Format.FLOAT32
    return graph


def _kernel(graph: Any) -> Any:
    return next(kernel for kernel in graph._kernels.values() if hasattr(kernel, "reload_weights_and_biases"))


def _queues(device: torch.device) -> tuple[mps.MTLCommandQueue, mps.MTLCommandQueue]:
    plain = mps.mtl_device(device).new_command_queue()
    plain.max_capture_count = 0
    return replaying_queue(device), plain


@pytest.mark.parametrize("place", ["before", "after", "another buffer"])
@pytest.mark.parametrize("encode", [0, 1, 3])
def test_a_recorded_reload(device: torch.device, place: str, encode: int) -> None:
    """In the command buffer of the first encode, when nothing of the graph is prepared, as in those of later ones."""
    results: list[list[Array]] = []
    for queue in _queues(device):
        rng = np.random.default_rng(3)
        source = _source(rng)
        graph = _graph(queue.device, source)
        weights, biases = (queue.device.new_buffer(data=2 * each) for each in (source.weights(), source.bias_terms()))
        state = mps.MPSCNNConvolutionWeightsAndBiasesState(weights=weights, biases=biases)
        batch = mps.MPSImageBatch.from_numpy(queue.device, rng.normal(0, 1, (2, 6, 6, 2)).astype(np.float32))
        found: list[Array] = []
        for number in range(ENCODES):
            command_buffer = mps.MPSCommandBuffer(queue)
            if number == encode and place != "after":
                _kernel(graph).reload_weights_and_biases(command_buffer, state)
            if number == encode and place == "another buffer":
                command_buffer.commit()
                command_buffer = mps.MPSCommandBuffer(queue)
            made = graph.encode_batch(command_buffer, [batch])
            if number == encode and place == "after":
                _kernel(graph).reload_weights_and_biases(command_buffer, state)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            found.append(made.numpy().copy())
        results.append(found)
    for replayed, plain in zip(*results, strict=True):
        assert_same(replayed, plain, device)
    first, last = results[1][0], results[1][-1]
    reloaded_first = encode == 0 and place != "after"
    assert np.array_equal(first, last) == reloaded_first


def test_other_folded_numbers_are_reloaded(device: torch.device, rng: np.random.Generator) -> None:
    queue = replaying_queue(device)
    source = _source(rng)
    source.fold(1.0)
    graph = _graph(queue.device, source)
    batch = mps.MPSImageBatch.from_numpy(queue.device, rng.normal(0, 1, (2, 6, 6, 2)).astype(np.float32))

    def result(of: Any) -> Array:
        command_buffer = mps.MPSCommandBuffer(queue)
        made = of.encode_batch(command_buffer, [batch])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return made.numpy().copy()

    before = [result(graph) for _ in range(ENCODES)]
    source.fold(9.0)
    assert len(graph.stale_weights()) == 1
    graph.reload_from_data_sources()
    assert graph.stale_weights() == []
    after = [result(graph) for _ in range(ENCODES)]
    expected = result(_graph(queue.device, source))
    assert not np.allclose(before[-1], expected)
    for found in after:
        assert_same(found, expected, device)


def test_a_reload_keeps_folding_or_not_folding(device: torch.device, rng: np.random.Generator) -> None:
    source = _source(rng)
    graph = _graph(mps.mtl_device(device), source)
    _ = _kernel(graph).parameters
    source.fold(1.0)
    with pytest.raises(mps.MPSArgumentError, match="must fold no batch normalization"):
        graph.reload_from_data_sources()


def test_a_deep_copy_of_a_data_source_goes_on_by_itself(device: torch.device) -> None:
    training = Training(mps.mtl_device(device).new_command_queue(), None, None)
    for _ in range(2):
        training.step()
    before = training.convolution.arrays()
    twin = copy.deepcopy(training.convolution)
    training.step()
    for name, numbers in twin.arrays().items():
        assert np.array_equal(numbers, before[name])
        assert not np.array_equal(numbers, training.convolution.arrays()[name])
    assert twin.optimizer is not training.convolution.optimizer
    assert twin.optimizer.time_step + 1 == training.convolution.optimizer.time_step


def test_a_deep_copy_of_a_state_of_weights(device: torch.device) -> None:
    training = Training(mps.mtl_device(device).new_command_queue(), None, None)
    training.step()
    kernel = next(each for each in training.graph._kernels.values() if hasattr(each, "parameters"))
    state = kernel.parameters.state()
    twin = copy.deepcopy(state)
    before = twin.weights.tensor(torch.float32).clone()
    assert torch.equal(before, state.weights.tensor(torch.float32))
    training.step()
    assert torch.equal(before, twin.weights.tensor(torch.float32))
    assert not torch.equal(before, state.weights.tensor(torch.float32))


class Wider:
    """A padding policy of the user's: some more columns, and another offset."""

    def __init__(self) -> None:
        self.columns, self.offset = 1, 0

    def padding_method(self) -> mps.MPSNNPaddingMethod:
        return mps.MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        suggested.width += self.columns
        kernel.offset = mps.MPSOffset(self.offset, 0, 0)
        return suggested


@pytest.mark.parametrize("change", [{"columns": 3}, {"offset": 1}, {"columns": 0, "offset": -1}])
def test_a_padding_policy_is_asked_at_each_encode(
    device: torch.device, rng: np.random.Generator, change: dict[str, int]
) -> None:
    """Two nodes in a row, of which the second sees what the first one's policy made."""
    queue, policy, source = replaying_queue(device), Wider(), _source(rng)
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    node.padding_policy = policy
    pooling = mps.MPSCNNPoolingMaxNode(mps.MPSCNNNeuronReLUNode(node.result_image).result_image, 2, 1)
    pooling.padding_policy = policy
    batch = mps.MPSImageBatch.from_numpy(queue.device, rng.normal(0, 1, (2, 6, 6, 2)).astype(np.float32))

    def result(graph: Any) -> Array:
        command_buffer = mps.MPSCommandBuffer(queue)
        made = graph.encode_batch(command_buffer, [batch])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return made.numpy().copy()

    graph = mps.MPSNNGraph(queue.device, pooling.result_image, True)
    graph.format = Format.FLOAT32
    first = [result(graph) for _ in range(ENCODES)]
    before = vars(policy).copy()
    vars(policy).update(change)
    second = [result(graph) for _ in range(ENCODES)]
    fresh = mps.MPSNNGraph(queue.device, pooling.result_image, True)
    fresh.format = Format.FLOAT32
    expected = result(fresh)
    vars(policy).update(before)
    third = result(graph)
    for found in second:
        assert_same(found, expected, device)
    for found in (*first[1:], third):
        assert_same(found, first[0], device)
    assert expected.shape != first[0].shape or not np.array_equal(expected, first[0])


class Bound(Source):
    """Weights that an update replaces by other memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: list[tuple[Array, Array]] = []

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        """Numbers that have nothing to do with the gradients, so that they are known."""
        step = len(self.given)
        rng, place = np.random.default_rng(step), command_buffer.device.torch_device
        numbers = tuple(rng.normal(0, 1, each.shape).astype(np.float32) for each in (self.weights(), self.bias_terms()))
        self.given.append(numbers)
        for buffer, array in zip((source_state.weights, source_state.biases), numbers, strict=True):
            buffer.bind(torch.from_numpy(array.copy()).to(place))
        return source_state


@pytest.mark.parametrize("channel_format", [Format.FLOAT32, Format.FLOAT16])
def test_weights_that_an_update_binds_to_other_memory(
    device: torch.device,
    channel_format: Format,
) -> None:
    """What is recorded behind the update, and all later encodes, computes with the numbers in that memory."""
    results: list[list[Array]] = []
    for queue in _queues(device):
        rng = np.random.default_rng(3)
        plain = _source(rng)
        source = Bound(plain.descriptor(), plain.weights(), plain.bias_terms())
        image = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image
        image = mps.MPSCNNNeuronReLUNode(image).result_image
        loss = mps.MPSCNNLossNode(
            image, mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
        )
        graph = mps.MPSNNGraph(queue.device, next(node.result_image for node in loss.training_graph()), False)
        graph.format = channel_format
        pixels = rng.normal(0, 1, (2, 6, 6, 2)).astype(np.float32)
        batch = mps.MPSImageBatch.from_numpy(queue.device, pixels, channel_format)
        found: list[Array] = []
        for _ in range(ENCODES + 1):
            targets = np.zeros((2, 6, 6, 5), np.float32)
            command_buffer = mps.MPSCommandBuffer(queue)
            graph.encode_batch(command_buffer, [batch], [mps.MPSCNNLossLabels.batch(queue.device, targets)])
            made = mps.MPSImageBatch.from_numpy(queue.device, targets, channel_format)
            _kernel(graph).encode_batch(command_buffer, batch, destination_images=made)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            found.append(made.numpy().copy())
        for (weights, biases), made in zip(source.given, found, strict=True):
            fresh = Source(plain.descriptor(), weights, biases)
            kernel = mps.MPSCNNConvolution(queue.device, fresh)
            kernel.destination_image_allocator = mps.MPSImage.default_allocator()
            command_buffer = mps.MPSCommandBuffer(queue)
            expected = kernel.encode_batch(command_buffer, batch)
            command_buffer.commit()
            command_buffer.wait_until_completed()
            assert np.allclose(
                made, expected.numpy(), rtol=1e-2 if channel_format is Format.FLOAT16 else 1e-5, atol=1e-3
            )
        results.append(found)
    for replayed, plain_result in zip(*results, strict=True):
        assert_same(replayed, plain_result, device)


class Shifting(mps.ExplicitPadding):
    """One of the package's policies with a last word of the user's."""

    columns = 0

    def destination_image_descriptor(self, source_images: Any, source_states: Any, for_kernel: Any, found: Any) -> Any:
        found = super().destination_image_descriptor(source_images, source_states, for_kernel, found)
        for_kernel.offset = mps.MPSOffset(for_kernel.offset.x + self.columns, for_kernel.offset.y, 0)
        return found


@pytest.mark.parametrize("kind", [mps.ExplicitPadding, Shifting])
def test_only_a_policy_of_the_users_is_asked_again(
    kind: type[mps.ExplicitPadding], device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    own = mps.ExplicitPadding.destination_image_descriptor
    monkeypatch.setattr(
        mps.ExplicitPadding, "destination_image_descriptor", lambda *given: calls.append(given) or own(*given)
    )
    queue, node = replaying_queue(device), mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _source(rng))
    node.padding_policy = kind(1, 1, 1, 1)
    graph: Any = mps.MPSNNGraph(queue.device, node.result_image, True)
    batch = mps.MPSImageBatch.from_numpy(queue.device, rng.normal(0, 1, (2, 6, 6, 2)).astype(np.float32))
    results, counts = list[Array](), list[int]()
    for encode in range(ENCODES):
        monkeypatch.setattr(Shifting, "columns", encode // 3)
        command_buffer = mps.MPSCommandBuffer(queue)
        made = graph.encode_batch(command_buffer, [batch])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        results.append(made.numpy().copy())
        counts.append(len(calls))
    is_asked = kind is Shifting
    assert (counts[0] < counts[1] < counts[2]) if is_asked else counts[0] == counts[-1]
    assert np.array_equal(results[2], results[0]) and np.array_equal(results[3], results[0]) != is_asked
