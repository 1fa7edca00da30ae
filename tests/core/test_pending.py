"""Reading too early: what an uncommitted command buffer has yet to write raises, what is committed is waited for."""

from __future__ import annotations

import ast
import gc
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from openmps.metal import pending
from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device

PATIENCE = 60.0
X = np.float32([[[-1.0, 1, 2, 3, 4, 5, 6, 7]], [[8.0, -9, 10, 11, 12, 13, 14, 15]]])
"""An image of 1x2 pixels with 8 channels."""


@pytest.fixture
def queue(device: torch.device) -> MTLCommandQueue:
    return mtl_device(device).new_command_queue()


def image(device: MTLDevice) -> mps.MPSImage:
    return mps.MPSImage.from_numpy(device, X)


def descriptor() -> mps.MPSImageDescriptor:
    return mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 1, 2, 8)


def relu(command_buffer: CommandBuffer, source: Any, destination: Any) -> None:
    kernel = mps.MPSCNNNeuronReLU(command_buffer.device, 0.0)
    (kernel.encode if isinstance(source, mps.MPSImage) else kernel.encode_batch)(command_buffer, source, destination)


def refused(read: Callable[[], object]) -> mps.MTLCommandBufferError:
    with pytest.raises(mps.MTLCommandBufferError, match="not committed.*commit.*wait_until_completed") as caught:
        read()
    return caught.value


READS: dict[str, Callable[[mps.MPSImage], object]] = {
    "numpy": lambda image: image.numpy(),
    "read_bytes": lambda image: image.read_bytes(),
    "tensor": lambda image: image.tensor(),
    "texture": lambda image: image.texture.get_bytes(),
    "array": np.asarray,
    "dlpack": torch.from_dlpack,
    "view": lambda image: mps.MPSImage(parent_image=image, slice_range=range(1), feature_channels=4).numpy(),
    "sub-image": lambda image: image.sub_image(range(4, 8)).numpy(),
    "batch": lambda image: mps.MPSImageBatch([image]).numpy(),
    "tensor of a batch": lambda image: mps.MPSImageBatch([image]).tensor(),
    "batch representation": lambda image: image.batch_representation()[0].read_bytes(),
    "state": lambda image: mps.MPSState(resource=image).resource.numpy(),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("way", READS)
def test_an_image_that_is_yet_to_be_written(queue: MTLCommandQueue, way: str) -> None:
    result = mps.MPSImage(queue.device, descriptor())
    command_buffer = queue.command_buffer()
    command_buffer.label = "step"
    relu(command_buffer, image(queue.device), result)
    error = refused(lambda: READS[way](result))
    assert "'MPSCNNNeuronReLU' on MTLCommandBuffer 'step'" in str(error)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    READS[way](result)
    np.testing.assert_array_equal(result.numpy(), np.maximum(X, 0))


def test_only_what_is_written(queue: MTLCommandQueue) -> None:
    """Other images of a block, other channels, the sources, and what was read before."""
    batch = mps.MPSImageBatch.from_numpy(queue.device, np.stack([X, X, X]))
    half = image(queue.device)
    command_buffer = queue.command_buffer()
    relu(command_buffer, batch[0], batch[1])
    relu(command_buffer, batch[0].sub_image(range(4)), half.sub_image(range(4)))
    refused(batch[1].numpy)
    refused(batch.numpy)
    refused(batch[1:].numpy)
    refused(half.numpy)
    np.testing.assert_array_equal(batch[0].numpy(), X)
    np.testing.assert_array_equal(batch[2].numpy(), X)
    np.testing.assert_array_equal(half.sub_image(range(4, 8)).numpy(), X[..., 4:])


def test_images_that_share_memory(queue: MTLCommandQueue) -> None:
    """Two images of one tensor are two blocks."""
    memory = torch.zeros(2, 8, 2, 1, device=queue.device.torch_device).contiguous(memory_format=torch.channels_last)
    one, other = (mps.MPSImage.from_tensor(queue.device, memory[:1], copy=False) for _ in range(2))
    apart = mps.MPSImage.from_tensor(queue.device, memory[1:], copy=False)
    command_buffer = queue.command_buffer()
    relu(command_buffer, image(queue.device), one)
    refused(other.numpy)
    assert not apart.numpy().any()


@pytest.mark.parametrize("kind", [lambda q: q.command_buffer(), mps.MPSCommandBuffer])
def test_a_committed_writer_is_waited_for(queue: MTLCommandQueue, kind: Callable[[MTLCommandQueue], Any]) -> None:
    result, begun, go_on = mps.MPSImage(queue.device, descriptor()), threading.Event(), threading.Event()
    command_buffer = kind(queue)
    if not queue.device.is_cuda:  # where work runs at commit, nothing of it could be held up
        command_buffer.record("hold", lambda: (begun.set(), go_on.wait(PATIENCE)))
    relu(command_buffer, image(queue.device), result)
    command_buffer.commit()
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    np.testing.assert_array_equal(result.numpy(), np.maximum(X, 0))
    timer.join()


def test_the_work_that_runs_is_waited_for(queue: MTLCommandQueue) -> None:
    """It is no longer recorded and not yet done."""
    buffer, begun, go_on = queue.device.new_buffer(length=4), threading.Event(), threading.Event()
    command_buffer = queue.command_buffer()

    class Slow(mps.metal.pending.Writer):
        def writes(self) -> Any:
            return (buffer.region(0, 4),)

        def __call__(self) -> None:
            begun.set()
            assert queue.device.is_cuda or go_on.wait(PATIENCE)
            buffer.memory(torch.uint8).fill_(7)

    command_buffer.record("slow", Slow())
    command_buffer.commit()
    assert begun.wait(PATIENCE)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    assert buffer.contents().tolist() == [7] * 4
    timer.join()


def test_a_committed_writer_that_fails(queue: MTLCommandQueue) -> None:
    """A read that waited says that there is nothing to read, as the wait for the command buffer does."""
    if queue.device.is_cuda:
        pytest.skip("the work has failed when commit returns: nothing is waited for")
    result, go_on = mps.MPSImage(queue.device, descriptor()), threading.Event()
    command_buffer = queue.command_buffer()

    def fail() -> None:
        go_on.wait(PATIENCE)
        raise OSError("broken")

    command_buffer.record("fail", fail)
    relu(command_buffer, image(queue.device), result)
    command_buffer.commit()
    threading.Timer(0.2, go_on.set).start()
    with pytest.raises(mps.MTLExecutionError, match="broken"):
        result.numpy()


def test_a_writer_that_was_dropped_is_gone(queue: MTLCommandQueue) -> None:
    result = image(queue.device)
    for command_buffer in (queue.command_buffer(), mps.MPSCommandBuffer(queue)):
        command_buffer.enqueue()
        relu(command_buffer, image(queue.device), result)
    refused(result.numpy)
    gc.disable()
    try:
        del command_buffer
        np.testing.assert_array_equal(result.numpy(), X)
    finally:
        gc.enable()


def dropped(queue: MTLCommandQueue, result: mps.MPSImage, kind: Callable[[MTLCommandQueue], Any]) -> None:
    relu(kind(queue), image(queue.device), result)


KINDS: list[Callable[[MTLCommandQueue], Any]] = [lambda queue: queue.command_buffer(), mps.MPSCommandBuffer]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", READS)
def test_a_result_that_nothing_will_write(queue: MTLCommandQueue, way: str, kind: Callable[..., Any]) -> None:
    """Its command buffer is gone: there are no numbers, whoever asks and however often."""
    result = mps.MPSImage(queue.device, descriptor())
    dropped(queue, result, kind)
    for _ in range(2):
        with pytest.raises(mps.MTLCommandBufferError, match="dropped before its commit.*'MPSCNNNeuronReLU'.*commit"):
            READS[way](result)


WRITES: dict[str, Callable[[MTLCommandQueue, mps.MPSImage], object]] = {
    "a later command buffer": lambda queue, result: committed(queue, result),
    "the host": lambda queue, result: result.write_bytes(np.maximum(X, 0)),
}


def committed(queue: MTLCommandQueue, result: mps.MPSImage) -> None:
    command_buffer = queue.command_buffer()
    relu(command_buffer, image(queue.device), result)
    command_buffer.commit()


@pytest.mark.parametrize("way", WRITES)
def test_a_result_that_something_else_writes(queue: MTLCommandQueue, way: str) -> None:
    result = mps.MPSImage(queue.device, descriptor())
    dropped(queue, result, mps.MPSCommandBuffer)
    WRITES[way](queue, result)
    np.testing.assert_array_equal(result.numpy(), np.maximum(X, 0))


def test_parts_that_nothing_will_write(queue: MTLCommandQueue) -> None:
    """Other images of a block that others have written can be read; buffers are known by their bytes."""
    several = descriptor()
    several.number_of_images = 2
    batch = mps.MPSImage(queue.device, several).batch_representation()
    dropped(queue, batch[0], mps.MPSCommandBuffer)
    committed(queue, batch[1])
    np.testing.assert_array_equal(batch[1].numpy(), np.maximum(X, 0))
    with pytest.raises(mps.MTLCommandBufferError, match="dropped before its commit"):
        batch.numpy()
    buffer = queue.device.new_buffer(length=8)
    with queue.command_buffer().blit_command_encoder() as blit:
        blit.fill_buffer(buffer, range(4), 9)
    assert buffer.tensor(torch.uint8, 4).tolist() == [0] * 4
    with pytest.raises(mps.MTLCommandBufferError, match="dropped before its commit.*on MTLCommandBuffer"):
        buffer.contents()
    buffer.bind(torch.ones(8, dtype=torch.uint8, device=queue.device.torch_device))
    assert buffer.contents().tolist() == [1] * 8


def test_results_of_work_that_was_skipped(queue: MTLCommandQueue) -> None:
    """Read when the command buffer has failed and is gone: the same fault as the wait for it raises."""
    result, after = mps.MPSImage(queue.device, descriptor()), queue.command_buffer()
    command_buffer = queue.command_buffer()

    def fail() -> None:
        raise OSError("broken")

    command_buffer.record("fail", fail)
    relu(command_buffer, image(queue.device), result)
    command_buffer.commit()
    del command_buffer
    after.commit()
    after.wait_until_completed()
    for _ in range(2):
        with pytest.raises(mps.MTLExecutionError, match=r"work 'fail'.*broken"):
            result.numpy()


def test_handlers_and_work_read_in_their_order(queue: MTLCommandQueue) -> None:
    """They neither wait nor are refused: what is recorded later is none of their business."""
    result, found = mps.MPSImage(queue.device, descriptor()), list[np.ndarray]()
    first, later = queue.command_buffer(), queue.command_buffer()
    relu(later, mps.MPSImage.from_numpy(queue.device, 100 + X), result)
    relu(first, image(queue.device), result)
    first.record("look", lambda: found.append(result.numpy()))
    first.add_completed_handler(lambda _: found.append(result.numpy()))
    first.commit()
    first.wait_until_completed()
    for values in found:
        np.testing.assert_array_equal(values, np.maximum(X, 0))
    assert len(found) == 2
    refused(result.numpy)


def test_parts_of_an_mps_command_buffer(queue: MTLCommandQueue) -> None:
    first, second = (mps.MPSImage(queue.device, descriptor()) for _ in range(2))
    command_buffer = mps.MPSCommandBuffer(queue)
    relu(command_buffer, image(queue.device), first)
    command_buffer.commit_and_continue()
    relu(command_buffer, first, second)
    np.testing.assert_array_equal(first.numpy(), np.maximum(X, 0))
    refused(second.numpy)


def test_work_under_a_predicate_may_write(queue: MTLCommandQueue) -> None:
    command_buffer, result = mps.MPSCommandBuffer(queue), image(queue.device)
    command_buffer.predicate = mps.MPSPredicate(device=queue.device)
    relu(command_buffer, image(queue.device), result)
    refused(result.numpy)
    command_buffer.commit()
    np.testing.assert_array_equal(result.numpy(), X)


def test_the_host_may_write(queue: MTLCommandQueue) -> None:
    """As in the framework: into what pending work reads, and into what it writes."""
    source, result = image(queue.device), mps.MPSImage(queue.device, descriptor())
    command_buffer = queue.command_buffer()
    relu(command_buffer, source, result)
    source.write_bytes(np.ascontiguousarray(X + 20))
    result.write_bytes(X)
    command_buffer.commit()
    np.testing.assert_array_equal(result.numpy(), X + 20)


def test_temporary_objects_say_what_they_are(queue: MTLCommandQueue) -> None:
    command_buffer = queue.command_buffer()
    result = mps.MPSTemporaryImage(command_buffer, descriptor())
    relu(command_buffer, image(queue.device), result)
    with pytest.raises(mps.MPSLifetimeError):
        result.numpy()


# --- buffers, vectors, matrices ---------------------------------------------------------------------------------------


def test_bytes_of_a_buffer(queue: MTLCommandQueue) -> None:
    source, target = (queue.device.new_buffer(data=np.arange(8, dtype=np.uint8)) for _ in range(2))
    command_buffer = queue.command_buffer()
    with command_buffer.blit_command_encoder() as blit:
        blit.copy_from_buffer(source, 0, target, 4, 4)
        refused(target.contents)  # while the encoder is open, too
    refused(target.contents)
    refused(lambda: target.tensor(torch.uint8, 4, 1))
    assert target.tensor(torch.uint8, 0, 4).tolist() == [0, 1, 2, 3]
    with queue.command_buffer().blit_command_encoder() as blit:
        blit.fill_buffer(target, range(1), 9)
    assert target.tensor(torch.uint8, 0, 4).tolist() == [0, 1, 2, 3]  # that command buffer is gone
    vector = mps.MPSVector(target, mps.MPSVectorDescriptor(2, mps.MPSDataType.UINT8), offset=2)
    assert vector.numpy().tolist() == [2, 3]
    refused(mps.MPSVector(target, mps.MPSVectorDescriptor(2, mps.MPSDataType.UINT8), offset=3).numpy)
    command_buffer.commit()
    assert target.contents().tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_vectors_that_an_optimizer_writes(queue: MTLCommandQueue) -> None:
    device = queue.device
    gradient, values, result, momentum = (
        mps.MPSVector(device.new_buffer(data=np.float32([1, 2])), mps.MPSVectorDescriptor(2)) for _ in range(4)
    )
    command_buffer = queue.command_buffer()
    mps.MPSNNOptimizerStochasticGradientDescent(device, 1.0, momentum_scale=0.5).encode(
        command_buffer,
        input_gradient_vector=gradient,
        input_values_vector=values,
        input_momentum_vector=momentum,
        result_values_vector=result,
    )
    refused(result.numpy)
    refused(momentum.tensor)
    refused(lambda: torch.from_numpy(result.data.contents()))
    assert gradient.numpy().tolist() == values.numpy().tolist() == [1, 2]
    command_buffer.commit()
    assert result.numpy().tolist() == [-0.5, -1]


def test_matrices(queue: MTLCommandQueue) -> None:
    """Rows that images are copied to, and random numbers."""
    matrix = mps.MPSMatrix(device=queue.device, descriptor=mps.MPSMatrixDescriptor(1, 16, 64))
    command_buffer = queue.command_buffer()
    mps.MPSImageCopyToMatrix(queue.device).encode(command_buffer, image(queue.device), matrix)
    refused(matrix.numpy)
    command_buffer.commit()
    assert matrix.numpy().any()
    words = mps.MPSVector(device=queue.device, descriptor=mps.MPSVectorDescriptor(4, mps.MPSDataType.UINT32))
    command_buffer = queue.command_buffer()
    mps.MPSMatrixRandomPhilox(queue.device).encode(command_buffer, destination_vector=words)
    refused(words.tensor)
    command_buffer.commit()
    assert words.numpy().any()


# --- states, labels, data sources -------------------------------------------------------------------------------------


def test_loss_images(queue: MTLCommandQueue) -> None:
    loss = mps.MPSCNNLoss(
        queue.device,
        mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM),
    )
    batch = mps.MPSImageBatch.from_numpy(queue.device, np.stack([X, X]))
    labels = mps.MPSCNNLossLabels.batch(queue.device, np.zeros((2, *X.shape), np.float32))
    alone = mps.MPSCNNLossLabels(queue.device, mps.MPSCNNLossDataDescriptor(X, size=mps.MTLSize(1, 2, 8)))
    command_buffer = queue.command_buffer()
    loss.encode_batch(command_buffer, batch, labels)
    loss.encode(command_buffer, batch[0], alone)
    for each in (*labels, alone):
        refused(each.loss_image().numpy)  # type: ignore[attr-defined]
        assert each.labels_image().numpy().shape == X.shape  # type: ignore[attr-defined]
    command_buffer.commit()
    assert labels[1].loss_image().numpy() > 0  # type: ignore[attr-defined]


def source(**options: Any) -> Any:
    convolution = mps.MPSCNNConvolutionDescriptor(1, 1, 8, 2)
    return mps.TrainableConvolutionDataSource(
        convolution,
        np.ones((2, 1, 1, 8), np.float32),
        np.zeros(2, np.float32),
        optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 1e-3),
        **options,
    )


class Curious:
    """Delegates to a data source, and looks at the gradients in its update, when they are not there yet."""

    def __init__(self) -> None:
        self.inner, self.seen = source(), list[Exception | None]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        for name in ("gradient_for_weights", "gradient_for_biases"):
            self.seen.append(refused(lambda name=name: getattr(gradient_state, name).contents()))
        return self.inner.update(command_buffer, gradient_state, source_state)


def trained(device: mps.MTLDevice, given: Any, *, is_needed: bool) -> mps.MPSNNGraph:
    """The training graph of one convolution."""
    layer = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), given)
    layer.training_style = mps.MPSNNTrainingStyle.UPDATE_DEVICE_GPU
    kind = mps.MPSCNNLossType.MEAN_SQUARED_ERROR
    loss = mps.MPSCNNLossNode(layer.result_image, mps.MPSCNNLossDescriptor(kind, mps.MPSCNNReductionType.SUM))
    end = loss.training_graph(mps.MPSNNInitialGradientNode(loss.result_image).result_image, None)
    return mps.MPSNNGraph(device, result_image=end[0].result_image, result_image_is_needed=is_needed)


def test_gradients_in_the_update_of_a_data_source(queue: MTLCommandQueue) -> None:
    given = Curious()
    graph = trained(queue.device, given, is_needed=False)
    command_buffer = mps.MPSCommandBuffer(queue)
    batch = mps.MPSImageBatch.from_numpy(queue.device, np.stack([X, X]))
    labels = mps.MPSCNNLossLabels.batch(queue.device, np.zeros((2, 2, 1, 2), np.float32))
    graph.encode_batch(command_buffer, [batch], [labels])
    assert len(given.seen) == 2
    refused(given.inner.weights)  # the update is recorded, too
    command_buffer.commit()
    assert (given.inner.weights() != 1).any()


def test_a_step_that_is_dropped(queue: MTLCommandQueue) -> None:
    """Its loss is not there; weights and accumulators are what they were, and can be saved."""
    given = source()
    graph = trained(queue.device, given, is_needed=True)
    batch = mps.MPSImageBatch.from_numpy(queue.device, np.stack([X, X]))
    labels = mps.MPSCNNLossLabels.batch(queue.device, np.zeros((2, 2, 1, 2), np.float32))

    def step() -> Any:
        return graph.encode_batch(mps.MPSCommandBuffer(queue), [batch], [labels])

    results = [step(), labels[0].loss_image()]  # type: ignore[attr-defined]
    for result in results:
        with pytest.raises(mps.MTLCommandBufferError, match="dropped before its commit"):
            result.numpy()
    assert (given.weights() == 1).all()
    state = given.training_state()
    assert {name: np.any(state[name]) for name in state if "vector" in name} == {
        f"input_{kind}_vectors.{part}": False for kind in ("momentum",) for part in (0, 1)
    }


def test_weights_that_are_yet_to_be_exported_or_reloaded(queue: MTLCommandQueue) -> None:
    kernel = mps.MPSCNNConvolution(queue.device, weights=source())
    command_buffer = queue.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer, result_state_can_be_temporary=False)
    refused(state.weights.contents)
    command_buffer.commit()
    assert (state.weights.contents().view(np.float32) == 1).all()
    command_buffer = queue.command_buffer()
    state.weights.contents().view(np.float32)[:] = 2
    kernel.reload_weights_and_biases(command_buffer, state)
    own = mps.MPSCNNConvolution(queue.device, weights=source())
    assert own is not kernel


def test_of_works_that_write_the_same_one_is_remembered(queue: MTLCommandQueue) -> None:
    """Each later encode looks through all that is."""
    source, result, other = image(queue.device), *(mps.MPSImage(queue.device, descriptor()) for _ in range(2))
    places = [each.whole().parts[0].block for each in (result, other)]

    def remembered() -> int:
        return sum(any(each.owner() is place for place in places) for each in pending.unwritten.values())

    command_buffer = queue.command_buffer()
    for _ in range(20):
        relu(command_buffer, source, result)
        relu(command_buffer, source, other)
    del command_buffer
    gc.collect()
    assert remembered() == 2
    command_buffer = queue.command_buffer()
    relu(command_buffer, source, result)
    command_buffer.commit()
    np.testing.assert_array_equal(result.numpy(), np.maximum(X, 0.0))
    with pytest.raises(mps.MTLCommandBufferError, match="dropped"):
        other.numpy()
    assert remembered() == 1


def test_the_mask_of_a_dropout(queue: MTLCommandQueue) -> None:
    dropout = mps.MPSCNNDropout(queue.device, 0.5, 1, mps.MTLSize(1, 1, 1))
    command_buffer = queue.command_buffer()
    _, state = dropout.encode(command_buffer, image(queue.device), destination_state_is_temporary=False)
    refused(state.mask_data)
    command_buffer.commit()
    assert state.mask_data().shape == (1, 2, 1, 8)


def test_whatever_takes_a_result_says_where_it_goes() -> None:
    """An output binding without regions would be read too early, or fail where somebody reads."""
    output_bindings = list[tuple[str, bool]]()
    for path in Path(mps.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
            take = methods.get("take")
            if take and [each.arg for each in take.args.kwonlyargs] == ["is_shared"]:
                module = path.relative_to(Path(mps.__file__).parents[1]).with_suffix("").parts
                kind = getattr(importlib.import_module(".".join(module)), node.name)
                # The abstract ones of the bases of bindings do not count.
                output_bindings.append((node.name, not getattr(kind.regions, "__isabstractmethod__", False)))
    assert len(output_bindings) >= 8
    assert [name for name, has_regions in output_bindings if not has_regions and name != "Binding"] == []
