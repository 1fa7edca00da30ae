"""What a dropped command buffer was to write is refused as a source of every kernel, copy, graph, update and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isabstract
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from catalogue import SOME_OF_CLASS, having
from encoding import Bench, encode, keep_results, shape_of
from in_one_test import in_one_test
from openmps.core.state.state import Saved
from openmps.runtime.binding import Binding

NEVER = "cannot read what a command buffer that was dropped before its commit was to write, got"
AGAIN = r"Encode it again, and call commit\(\) before it goes"
F32 = mps.MPSImageFeatureChannelFormat.FLOAT32
X = np.ones((2, 4, 6, 6))


def refused(action: Callable[[], object], what: str = "encode", writer: str = "lost") -> None:
    with pytest.raises(mps.MTLCommandBufferError, match=f"{what} {NEVER} '{writer}' on MTLCommandBuffer. {AGAIN}"):
        action()


def filling(bench: Bench, command_buffer: Any, values: Any, result: Any) -> None:
    """Encode numbers into images."""
    kernel = mps.MPSCNNNeuronReLU(bench.device, 1.0)
    kernel.label = "lost"
    vars(kernel)["_name"] = "lost"
    kernel.encode_batch(command_buffer, bench.batch(values), destination_images=result)


def unwritten_batch(bench: Bench, values: Any = X) -> Any:
    """Images without contents, whose command buffer was dropped."""
    images, channels, height, width = np.shape(values)
    descriptor = mps.MPSImageDescriptor(F32, width, height, channels)
    result = mps.MPSImageBatch.allocate(bench.device, descriptor, images)
    filling(bench, bench.command_buffer(), values, result)
    return result


# --- kernels ----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_every_kernel_refuses_it_as_each_of_its_sources(sample: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = sample.make(bench.device)
    keep_results(kernel)
    sources = sample.sources(2)
    for lost in range(len(sources)):
        images = [
            (unwritten_batch if index == lost else Bench.batch)(bench, each) for index, each in enumerate(sources)
        ]
        command_buffer, more = bench.command_buffer(), sample.more(bench, 2, 0, False)
        with pytest.raises(mps.MTLCommandBufferError, match=f"encode {NEVER} .* on MTLCommandBuffer. {AGAIN}") as found:
            encode(kernel, command_buffer, images, *more)
        assert found.value.who == kernel.name
        assert not command_buffer.encodings


@in_one_test
@pytest.mark.parametrize("sample", having(gradients=True, of=SOME_OF_CLASS), ids=str)
def test_every_gradient_kernel_refuses_it_as_gradient_and_as_state(sample: Any, device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = sample.make(bench.device)
    keep_results(kernel)
    sources = sample.sources(2)
    images, more = [bench.batch(each) for each in sources], sample.more(bench, 2, 0, False)
    for backward in sample.gradients:
        forward, lost = bench.command_buffer(), bench.command_buffer()
        result, states = encode(kernel, forward, images, *more, destination_state_is_temporary=False)
        _, lost_states = encode(kernel, lost, images, *more, destination_state_is_temporary=False)
        saves = any(isinstance(region.owner, Saved) for _, work in lost.encodings for region in work.writes())
        forward.commit()
        del lost
        gradient = backward.make(bench.device)
        keep_results(gradient)
        secondary = result if backward.reads_result else images[backward.secondary]
        incoming = sample.incoming(shape_of(result))
        with pytest.raises(mps.MTLCommandBufferError, match=f"encode {NEVER}"):
            encode(gradient, bench.command_buffer(), [unwritten_batch(bench, incoming), secondary], states)
        again = bench.command_buffer()
        encode(gradient, again, [bench.batch(incoming), secondary], states)
        ((_, work),) = [each for each in again.encodings if each[0] == gradient.name][:1]
        if saves and any(isinstance(region.owner, Saved) for region in work.reads()):
            with pytest.raises(mps.MTLCommandBufferError, match=f"encode {NEVER}"):
                encode(gradient, bench.command_buffer(), [bench.batch(incoming), secondary], lost_states)
        again.commit()
        again.wait_until_completed()


def test_whatever_a_body_is_bound_to_says_what_it_reads() -> None:
    """Nothing that encodes are bound to is left out of the look."""
    import openmps.names  # noqa: F401  all kernels are there

    kinds, seen = [object], dict[int, type]()
    while kinds:
        kind = kinds.pop()
        for each in type.__subclasses__(kind):
            if id(each) not in seen:  # the hash of one of Python's own warns that it is deprecated
                seen[id(each)] = each
                kinds.append(each)
    own = [kind for kind in seen.values() if str(kind.__module__).startswith("openmps.")]
    bound = [kind for kind in own if issubclass(kind, Binding)]
    assert len(bound) > 15
    assert [kind.__name__ for kind in bound if kind.regions is Binding.regions and not isabstract(kind)] == []
    assert [kind.__name__ for kind in own if kind not in bound and {"value", "regions"} <= {*dir(kind)}] == []


# --- graphs, copies, states, exports ----------------------------------------------------------------------------------


def _network() -> tuple[Any, Any]:
    source = mps.TrainableConvolutionDataSource.uniform(
        mps.MPSCNNConvolutionDescriptor(3, 3, 4, 2), limit=0.2, bias=0.1, seed=1, label="conv",
        optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.1),
    )  # fmt: skip
    return mps.MPSCNNNeuronReLUNode(mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source).result_image), source


def _inference(bench: Bench) -> Any:
    graph = mps.MPSNNGraph(bench.device, _network()[0].result_image)
    graph.format = F32
    return graph


def _training(bench: Bench) -> Any:
    loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    gradients = mps.MPSCNNLossNode(_network()[0].result_image, loss).training_graph()
    graph = mps.MPSNNGraph(bench.device, gradients[0].result_image, False)
    graph.format = F32
    return graph


def _label_images(bench: Bench, images: Sequence[Any]) -> list[Any]:
    return [mps.MPSCNNLossLabels(bench.device, labels_image=each) for each in images]


def encode_inference(bench: Bench) -> None:
    _inference(bench).encode_batch(bench.command_buffer(), [unwritten_batch(bench)])


def encode_one(bench: Bench) -> None:
    _inference(bench).encode(mps.MPSCommandBuffer(bench.queue), [unwritten_batch(bench)[1]])


def encode_training(bench: Bench) -> None:
    labels = _label_images(bench, bench.batch(np.ones((2, 2, 6, 6))))
    _training(bench).encode_batch(bench.command_buffer(), [unwritten_batch(bench)], [labels])


def encode_labels(bench: Bench) -> None:
    labels = _label_images(bench, unwritten_batch(bench, np.ones((2, 2, 6, 6))))
    _training(bench).encode_batch(bench.command_buffer(), [bench.batch(X)], [labels])


def encode_an_execution(bench: Bench) -> None:
    _inference(bench).execute_async([unwritten_batch(bench)[0]])


def trace(bench: Bench) -> None:
    _inference(bench).trace([unwritten_batch(bench)])


def encode_a_warm_graph(bench: Bench) -> None:
    """A graph that recognizes that it is encoded again."""
    graph = _training(bench)
    for _ in range(4):
        command_buffer = mps.MPSCommandBuffer(bench.queue)
        labels = _label_images(bench, bench.batch(np.ones((2, 2, 6, 6))))
        graph.encode_batch(command_buffer, [bench.batch(X)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()
    labels = _label_images(bench, bench.batch(np.ones((2, 2, 6, 6))))
    graph.encode_batch(mps.MPSCommandBuffer(bench.queue), [unwritten_batch(bench)], [labels])


def encode_copy_to_matrix(bench: Bench) -> None:
    matrix = mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(2, 144, 576, mps.MPSDataType.FLOAT32))
    kernel = mps.MPSImageCopyToMatrix(bench.device, mps.MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS)
    kernel.encode_batch(bench.command_buffer(), unwritten_batch(bench), matrix)


def encode_a_view(bench: Bench) -> None:
    kernel = mps.MPSCNNNeuronReLU(bench.device, 1.0)
    keep_results(kernel)
    kernel.encode(bench.command_buffer(), unwritten_batch(bench)[0].sub_image(range(0, 4)))


def synchronize_images(bench: Bench) -> None:
    unwritten_batch(bench).synchronize(bench.command_buffer())


def synchronize_one_image(bench: Bench) -> None:
    unwritten_batch(bench)[1].synchronize(bench.command_buffer())


def dlpack(bench: Bench) -> None:
    torch.from_dlpack(unwritten_batch(bench)[0])


def dlpack_of_a_batch(bench: Bench) -> None:
    torch.from_dlpack(unwritten_batch(bench))


def numpy_array(bench: Bench) -> None:
    np.asarray(unwritten_batch(bench)[0])


def read_bytes(bench: Bench) -> None:
    unwritten_batch(bench)[0].read_bytes()


WAYS: dict[Callable[[Bench], None], str] = {
    encode_inference: "encode", encode_one: "encode", encode_training: "encode", encode_labels: "encode",
    encode_an_execution: "encode", trace: "encode", encode_a_warm_graph: "encode", encode_copy_to_matrix: "encode",
    encode_a_view: "encode", synchronize_images: "synchronize", synchronize_one_image: "synchronize",
    dlpack: "tensor", dlpack_of_a_batch: "tensor", numpy_array: "numpy",
    read_bytes: "read_bytes",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_images_without_contents(way: Callable[[Bench], None], device: torch.device) -> None:
    refused(lambda: way(Bench.on(device)), WAYS[way])


def unwritten_buffer(bench: Bench, length: int = 16) -> Any:
    buffer = bench.device.new_buffer(length=length)
    with bench.command_buffer().blit_command_encoder() as blit:
        blit.fill_buffer(buffer, range(length), 1)
    return buffer


def copy_from_buffer(bench: Bench) -> None:
    with bench.command_buffer().blit_command_encoder() as blit:
        blit.copy_from_buffer(unwritten_buffer(bench), 0, bench.device.new_buffer(length=16), 0, 16)


def encode_an_optimizer(bench: Bench) -> None:
    descriptor = mps.MPSVectorDescriptor(4, mps.MPSDataType.FLOAT32)
    gradient = mps.MPSVector(unwritten_buffer(bench), descriptor)
    values = mps.MPSVector(bench.device, descriptor)
    optimizer = mps.MPSNNOptimizerStochasticGradientDescent(bench.device, 0.1)
    optimizer.encode(bench.command_buffer(), gradient, values, None, values)


def encode_under_a_predicate(bench: Bench) -> None:
    command_buffer = mps.MPSCommandBuffer(bench.queue)
    command_buffer.predicate = mps.MPSPredicate(unwritten_buffer(bench), 0)
    kernel = mps.MPSCNNNeuronReLU(bench.device, 1.0)
    keep_results(kernel)
    kernel.encode_batch(command_buffer, bench.batch(X))


def synchronize_a_vector(bench: Bench) -> None:
    descriptor = mps.MPSVectorDescriptor(4, mps.MPSDataType.FLOAT32)
    mps.MPSVector(unwritten_buffer(bench), descriptor).synchronize(bench.command_buffer())


def synchronize_a_state(bench: Bench) -> None:
    mps.MPSState(resource=unwritten_buffer(bench)).synchronize(bench.command_buffer())


def contents(bench: Bench) -> None:
    unwritten_buffer(bench).contents()


def tensor(bench: Bench) -> None:
    unwritten_buffer(bench).tensor(torch.float32)


BUFFERS: dict[Callable[[Bench], None], str] = {
    copy_from_buffer: "copy_from_buffer", encode_an_optimizer: "encode", encode_under_a_predicate: "encode",
    synchronize_a_vector: "synchronize", synchronize_a_state: "synchronize", contents: "contents", tensor: "tensor",
}  # fmt: skip


@pytest.mark.parametrize("way", BUFFERS, ids=lambda way: way.__name__)
def test_buffers_without_contents(way: Callable[[Bench], None], device: torch.device) -> None:
    refused(lambda: way(Bench.on(device)), BUFFERS[way], "fill_buffer")


@pytest.mark.parametrize("early", [True, False])
def test_gradients_of_weights_without_contents(device: torch.device, early: bool) -> None:
    """An optimizer and a reload refuse the states that a dropped command buffer was to fill."""
    bench, (_, source) = Bench.on(device), _network()
    kernel = mps.MPSCNNConvolution(bench.device, source)
    keep_results(kernel)
    command_buffer, batch = bench.command_buffer(), bench.batch(X)
    result, states = kernel.encode_batch(command_buffer, batch, destination_state_is_temporary=False)
    gradient = mps.MPSCNNConvolutionGradient(bench.device, source)
    keep_results(gradient)
    gradient.encode_batch(command_buffer, result, batch, states)
    state = states[0]
    if early:
        state.gradient_for_weights  # noqa: B018  its buffer is there before the command buffer goes
    exported = kernel.export_weights_and_biases(command_buffer)
    del command_buffer
    optimizer = mps.MPSNNOptimizerStochasticGradientDescent(bench.device, 0.1)
    values = kernel.export_weights_and_biases(written := bench.command_buffer())
    for action in (
        lambda: optimizer.encode(written, state, values, None, values),
        lambda: kernel.reload_weights_and_biases(bench.command_buffer(), exported),
        lambda: optimizer.encode(bench.command_buffer(), state, exported, None, values),
    ):
        with pytest.raises(mps.MTLCommandBufferError, match=NEVER):
            action()
    with pytest.raises(mps.MTLCommandBufferError, match=NEVER):
        source.update(bench.command_buffer(), state, values)


# --- what may be read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_what_is_encoded_again_may_be_read_behind_it(device: torch.device, same: bool) -> None:
    """By the next encode of that command buffer, and of another one, before anything has run."""
    bench = Bench.on(device)
    lost = unwritten_batch(bench)
    first = bench.command_buffer()
    second = first if same else bench.command_buffer()
    filling(bench, first, X, lost)
    kernel = mps.MPSCNNNeuronReLU(bench.device, 1.0)
    keep_results(kernel)
    result = kernel.encode_batch(second, lost)
    first.commit()
    if not same:
        second.commit()
    np.testing.assert_array_equal(result.numpy(), lost.numpy())
    assert result.numpy().min() == 1


def test_what_is_dropped_after_the_encode_stops_the_command_buffer(device: torch.device) -> None:
    """It is not known at the encode: the work is not run, and its own result cannot be read, either."""
    bench = Bench.on(device)
    lost = mps.MPSImageBatch.allocate(bench.device, mps.MPSImageDescriptor(F32, 6, 6, 4), 2)
    first, second = bench.command_buffer(), bench.command_buffer()
    filling(bench, first, X, lost)
    kernel = mps.MPSCNNNeuronReLU(bench.device, 1.0)
    keep_results(kernel)
    result = kernel.encode_batch(second, lost)
    del first
    second.commit()
    with pytest.raises(mps.MTLExecutionError, match=f"MPSCNNNeuronReLU.*{NEVER} 'lost'"):
        second.wait_until_completed()
    with pytest.raises(mps.MTLExecutionError, match="MPSCNNNeuronReLU"):
        result.numpy()


def test_what_is_filled_anew_needs_no_contents(device: torch.device) -> None:
    """Destinations are written, not read: of kernels, fills, copies and random numbers."""
    bench, lost = Bench.on(device), unwritten_buffer(Bench.on(device))
    descriptor = mps.MPSVectorDescriptor(4, mps.MPSDataType.FLOAT32)
    uniform = mps.MPSMatrixRandomDistributionDescriptor.uniform_distribution_descriptor(1, 2)
    fill = mps.MPSMatrixRandomPhilox(bench.device, mps.MPSDataType.FLOAT32, 1, uniform)
    command_buffer = bench.command_buffer()
    fill.encode(command_buffer, mps.MPSVector(lost, descriptor))
    filling(bench, command_buffer, X, images := unwritten_batch(bench))
    command_buffer.commit()
    assert lost.contents().view(np.float32).min() >= 1
    assert images.numpy().min() == 1
