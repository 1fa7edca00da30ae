"""Batches: one block where possible, gathered where not; read counts, functions, arrays and tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.batch_functions import (
    MPSImageBatchIncrementReadCount,
    MPSImageBatchIterate,
    MPSImageBatchResourceSize,
    MPSImageBatchSynchronize,
)
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import DTYPES, Target
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSLifetimeError, MPSTypeError
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.ops.elements import encode
from openmps.runtime.devices import mtl_device
from openmps.types import MPSDataLayout, MPSImageFeatureChannelFormat, NSRange

Format = MPSImageFeatureChannelFormat
FORMATS = [Format.UNORM8, Format.UNORM16, Format.FLOAT16, Format.FLOAT32]
Encode = Callable[..., None]
CPU = mtl_device("cpu")
WIDTH, HEIGHT, CHANNELS = 3, 2, 4


def descriptor(channels: int = CHANNELS, channel_format: Format = Format.FLOAT32) -> MPSImageDescriptor:
    return MPSImageDescriptor(channel_format, WIDTH, HEIGHT, channels)


def filled(device: MTLDevice, count: int, channel_format: Format = Format.FLOAT32) -> MPSImageBatch:
    """Image i of the block holds numbers around i / 10."""
    numbers = (
        np.arange(count).reshape(-1, 1, 1, 1) / 10 + np.random.default_rng(0).random((1, HEIGHT, WIDTH, CHANNELS)) / 20
    )
    return MPSImageBatch.from_numpy(device, numbers, channel_format)


def scattered(device: MTLDevice, count: int, channel_format: Format = Format.FLOAT32) -> list[MPSImage]:
    """The same numbers in images of their own."""
    return [
        MPSImage.from_numpy(device, image.numpy(), channel_format) for image in filled(device, count, channel_format)
    ]


def parts(batch: MPSImageBatch) -> int:
    return len(batch.stack().parts)


# --- a sequence ------------------------------------------------------------------------------------------------------


def test_an_allocated_batch(mtl: MTLDevice) -> None:
    made = descriptor(5)
    batch = MPSImageBatch.allocate(mtl, made, 3)
    made.width = 9
    assert (len(batch), batch[0].width, batch[2].feature_channels, batch[1].number_of_images) == (3, WIDTH, 5, 1)
    assert {type(image) for image in batch} == {MPSImage}
    assert (batch[0].device, batch[0].parent, parts(batch)) == (mtl, None, 1)
    assert not batch[0].storage.block.is_allocated
    assert not batch.numpy().any()
    assert repr(batch) == f"<MPSImageBatch of 3 x <MPSImage 3x2x5 FLOAT32 on {mtl.name}>, one block>"


def test_elements_are_always_the_same_objects() -> None:
    batch = MPSImageBatch.allocate(CPU, descriptor(), 4)
    listed = list(batch)
    assert all(batch[index] is listed[index] is batch[index - 4] for index in range(4))
    assert (batch[1:3][0] is listed[1], batch[::2][1] is listed[2], batch[1:][1:][0] is listed[2]) == (True, True, True)
    assert (batch.index(listed[2]), listed[3] in batch, list(reversed(batch)) == listed[::-1]) == (2, True, True)
    assert batch[np.int64(2)] is listed[2]


@pytest.mark.parametrize("make", [
    lambda: MPSImageBatch.allocate(CPU, descriptor(), 200),
    lambda: MPSImageBatch.from_numpy(CPU, np.zeros((200, 2, 2, 1), np.float32)),
])  # fmt: skip
def test_threads_see_the_same_objects(make: Callable[[], MPSImageBatch]) -> None:
    for _ in range(20):
        batch, gate, seen = make(), threading.Barrier(4), list[list[int]]()

        def look(batch: MPSImageBatch = batch, gate: threading.Barrier = gate, seen: list[list[int]] = seen) -> None:
            gate.wait()
            seen.append([id(image) for image in (*batch[:1], *batch)])

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [[id(image) for image in (*batch[:1], *batch)]] * 4


def test_images_of_arrays_are_made_when_they_are_asked_for() -> None:
    """What reads a batch as a whole makes none of the objects, and the batch of another device is refused as before."""
    batch = MPSImageBatch.from_numpy(CPU, np.zeros((3, 2, 2, 1), np.float32))
    stack, buffer = batch.whole(), CPU.new_command_queue().command_buffer()
    batch.check_usable("Kernel", "source_images", buffer)
    batch.count_read()
    batch.add_reads(2)
    assert (batch.fewest_reads(), stack.members) == (None, None)
    assert batch[1] is batch[1:][0] is stack.members.image(1)
    assert batch[1].storage.block is stack.parts[0].block


@pytest.mark.parametrize("span", [slice(1, 3), slice(None), slice(2, None), slice(-2, None), slice(0, 99), slice(3, 4)])
def test_slices_are_runs_of_the_block(mtl: MTLDevice, span: slice) -> None:
    batch = filled(mtl, 4)
    part = batch[span]
    assert (isinstance(part, MPSImageBatch), parts(part), list(part)) == (True, 1, list(batch)[span])
    np.testing.assert_array_equal(part.numpy(), batch.numpy()[span])
    assert part.tensor().data_ptr() == batch.tensor()[span].data_ptr()


def test_slices_make_no_images() -> None:
    batch = MPSImageBatch.allocate(CPU, descriptor(), 1000)
    assert batch[10:].stack().extent.images == 990
    assert batch._members is not None
    assert not batch._members._made


def test_slices_with_steps() -> None:
    batch = filled(CPU, 5)
    assert parts(batch[::2]) == 3
    np.testing.assert_array_equal(batch[::-2].numpy(), batch.numpy()[::-2])
    assert (len(batch[3:3]), repr(batch[3:3])) == (0, "<MPSImageBatch of 0 images>")


def test_images_of_a_block_put_together_again_are_one_run() -> None:
    batch = filled(CPU, 6)
    assert parts(MPSImageBatch(list(batch))) == 1
    assert parts(MPSImageBatch([*batch[2:4], *batch[4:5]])) == 1
    assert parts(MPSImageBatch([batch[1], batch[0]])) == 2
    assert parts(MPSImageBatch([*batch[:2], *batch[4:]])) == 2
    assert "one block" in repr(MPSImageBatch(list(batch)))


def test_views_of_one_image_are_one_run() -> None:
    image = MPSImage(CPU, MPSImageDescriptor(Format.FLOAT32, 2, 2, 8, 5))
    views = image.batch_representation(NSRange(1, 3))
    assert isinstance(views, MPSImageBatch)
    assert (parts(views), views.tensor().data_ptr()) == (1, image.tensor()[1:].data_ptr())
    channels = MPSImageBatch(view.sub_image(NSRange(4, 4)) for view in views)
    assert (parts(channels), tuple(channels.tensor().shape)) == (1, (3, 4, 2, 2))
    assert parts(MPSImageBatch([views[0].sub_image(NSRange(0, 4)), views[1].sub_image(NSRange(4, 4))])) == 2


def test_a_batch_of_unrelated_images_says_so() -> None:
    batch = MPSImageBatch(scattered(CPU, 3))
    assert parts(batch) == 3
    assert repr(batch).endswith("unrelated images, gathered at each encode>")
    with pytest.raises(MPSArgumentError, match=r"MPSImageBatch: images must lie in one block, got .*Use numpy\(\)"):
        batch.tensor()


@pytest.mark.parametrize("index", [4, -5, 2**70])
def test_there_is_no_such_image(index: int) -> None:
    with pytest.raises(IndexError, match=rf"MPSImageBatch: index {index} outside 4 element\(s\)"):
        MPSImageBatch.allocate(CPU, descriptor(), 4)[index]


@pytest.mark.parametrize("index", ["0", 1.0, None, (0, 1), slice("a", None)])
def test_an_index_is_an_integer_or_a_slice(index: Any) -> None:
    with pytest.raises(MPSTypeError, match="MPSImageBatch: index must be an integer or a slice, got"):
        MPSImageBatch.allocate(CPU, descriptor(), 4)[index]


# --- what does not belong together -----------------------------------------------------------------------------------

ODD = {
    "width": MPSImageDescriptor(Format.FLOAT32, 4, HEIGHT, CHANNELS),
    "height": MPSImageDescriptor(Format.FLOAT32, WIDTH, 3, CHANNELS),
    "channels": MPSImageDescriptor(Format.FLOAT32, WIDTH, HEIGHT, 5),
    "format": MPSImageDescriptor(Format.FLOAT16, WIDTH, HEIGHT, CHANNELS),
}


@pytest.mark.parametrize("name", ODD)
def test_images_of_different_descriptors(name: str) -> None:
    batch = MPSImageBatch([MPSImage(CPU, descriptor()), MPSImage(CPU, descriptor()), MPSImage(CPU, ODD[name])])
    assert repr(batch).endswith("and images that differ from it>")
    for call in (batch.stack, batch.numpy, batch.tensor):
        with pytest.raises(MPSArgumentError) as caught:
            call()
        assert "MPSImageBatch: image 2 must have the size, channels and format of image 0, <MPSImage 3x2x4 FLOA" in str(
            caught.value
        )
        assert repr(batch[2]) in str(caught.value)


def test_views_of_different_channels_of_one_image() -> None:
    image = MPSImage(CPU, descriptor(6))
    batch = MPSImageBatch([image.sub_image(NSRange(0, 4)), image.sub_image(NSRange(4, 2))])
    with pytest.raises(MPSArgumentError, match="image 1 must have the size, channels and format of image 0"):
        batch.stack()


def test_images_of_different_devices(stranger: MTLDevice) -> None:
    batch = MPSImageBatch([MPSImage(CPU, descriptor()), MPSImage(stranger, descriptor())])
    with pytest.raises(MPSDeviceError, match="MPSImageBatch: image 1 must belong to the device"):
        batch.stack()


def test_images_that_hold_several() -> None:
    several = MPSImage(CPU, MPSImageDescriptor(Format.FLOAT32, WIDTH, HEIGHT, CHANNELS, 2))
    with pytest.raises(MPSArgumentError, match=r"image 0 must hold exactly one image, got 2 images. Use its batch_rep"):
        MPSImageBatch([several, several]).stack()


def test_an_empty_batch_has_nothing_to_encode() -> None:
    for call in (MPSImageBatch().stack, MPSImageBatch().representative, MPSImageBatch().numpy):
        with pytest.raises(
            MPSArgumentError, match="MPSImageBatch: images must be at least one image, got an empty batch"
        ):
            call()


@in_one_test
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: MPSImageBatch([1]), MPSTypeError, "images[0] must be an MPSImage, got int"),
        (
            lambda: MPSImageBatch.allocate(CPU, descriptor(), 0),
            MPSArgumentError,
            "count must be an integer of at least 1, g",
        ),
        (lambda: MPSImageBatch.allocate(CPU, descriptor(), -2), MPSArgumentError, "got -2"),
        (lambda: MPSImageBatch.allocate(CPU, descriptor(), True), MPSArgumentError, "got True"),
        (lambda: MPSImageBatch.allocate(CPU, descriptor(), 2.0), MPSArgumentError, "got 2.0"),
        (
            lambda: MPSImageBatch.allocate(CPU, descriptor(), 2**50),
            MPSArgumentError,
            "count must be at most 1048576 im",
        ),
        (
            lambda: MPSImageBatch.allocate(CPU, MPSImageDescriptor(Format.UNORM8, 2**14, 2**14, 2**11), 2**20),
            MPSArgumentError,
            "image_descriptor must fit the",
        ),
        (
            lambda: MPSImageBatch.allocate(CPU, descriptor(0), 2),
            MPSArgumentError,
            "image_descriptor.feature_channels must",
        ),
        (lambda: MPSImageBatch.allocate(CPU, None, 2), MPSTypeError, "image_descriptor must be an MPSImageDescriptor"),
        (
            lambda: MPSImageBatch.allocate(None, descriptor(), 2),
            MPSTypeError,
            "device must be an MTLDevice, got NoneType",
        ),
        (
            lambda: MPSImageBatch.allocate(CPU, MPSImageDescriptor(Format.UNORM8, 1, 1, 1, 2), 2),
            MPSArgumentError,
            "image_descriptor.number_of_images must be 1 for the images of a batch, got 2",
        ),
        (lambda: MPSImageBatch.allocate_temporary(CPU, descriptor(), 2), MPSTypeError, "command_buffer must be a comm"),
        (
            lambda: MPSImageBatch.from_numpy(CPU, np.zeros((2, 3, 4))),
            MPSArgumentError,
            "array must be shaped [images, height",
        ),
        (
            lambda: MPSImageBatch.from_tensor(CPU, torch.zeros(2, 3, 4)),
            MPSArgumentError,
            "tensor must be shaped [images, ch",
        ),
    ],
)
def test_batches_that_cannot_be_made(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith("MPSImageBatch: ")
    assert message in str(caught.value)


def test_any_sequence_is_a_batch() -> None:
    image = MPSImage(CPU, descriptor())
    batch = MPSImageBatch([image])
    assert as_batch("Kernel", "source_images", batch) is batch
    assert list(as_batch("Kernel", "source_images", (image, image))) == [image, image]
    for wrong in (image, None, {image}, iter([image])):
        with pytest.raises(MPSTypeError, match=r"Kernel: source_images must be a sequence of MPSImage, got"):
            as_batch("Kernel", "source_images", wrong)


# --- contents --------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("apart", [False, True])
def test_a_batch_is_read_as_one_tensor(mtl: MTLDevice, channel_format: Format, apart: bool) -> None:
    batch = MPSImageBatch(scattered(mtl, 3, channel_format)) if apart else filled(mtl, 3, channel_format)
    values = batch.stack().values()
    assert (values.dtype, tuple(values.shape)) == (torch.float32, (3, CHANNELS, HEIGHT, WIDTH))
    assert values.is_contiguous(memory_format=torch.channels_last)
    each = np.stack([image.numpy() for image in batch])
    np.testing.assert_array_equal(values.permute(0, 2, 3, 1).cpu().numpy(), each)
    np.testing.assert_array_equal(batch.numpy(), each)
    np.testing.assert_array_equal(batch.stack().values(1, 2).permute(0, 2, 3, 1).cpu().numpy(), each[..., 1:3])


@in_one_test
@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("target", [Target(0, 0, WIDTH, HEIGHT, 0, CHANNELS), Target(1, 1, 2, 1, 1, 2)])
def test_a_batch_is_written_as_one_tensor(
    mtl: MTLDevice, channel_format: Format, apart: bool, used: bool, target: Target
) -> None:
    made = descriptor(channel_format=channel_format)
    batch = MPSImageBatch.allocate(mtl, made, 3)
    if apart:
        batch = MPSImageBatch(MPSImage(mtl, made) for _ in range(3))
    if used:
        batch.numpy()
    numbers = torch.tensor([0.0, 1.0, 0.2], device=mtl.torch_device).reshape(3, 1, 1, 1)
    stored = encode(numbers.expand(3, target.channels, target.height, target.width), channel_format)
    batch.stack().write(stored, target, is_shared=False)
    expected = np.zeros((3, HEIGHT, WIDTH, CHANNELS))
    rows, columns = slice(target.y, target.y + target.height), slice(target.x, target.x + target.width)
    steps = {Format.UNORM8: 255, Format.UNORM16: 65535}.get(channel_format)
    third = round(0.2 * steps) / steps if steps else DTYPES[channel_format]
    third = torch.tensor(0.2, dtype=third).item() if isinstance(third, torch.dtype) else third
    written = np.array([0, 1, third]).reshape(3, 1, 1, 1)
    expected[:, rows, columns, target.channel : target.channel + target.channels] = written
    np.testing.assert_array_equal(batch.numpy(), expected.astype(np.float32))
    batch[0].tensor().fill_(1)
    np.testing.assert_array_equal(batch.numpy()[1:], expected[1:].astype(np.float32))


def test_a_result_that_is_a_source_is_copied() -> None:
    source, result = filled(CPU, 2), MPSImageBatch.allocate(CPU, descriptor(), 2)
    values = source.stack().values()
    result.stack().write(values, Target(0, 0, WIDTH, HEIGHT, 0, CHANNELS), is_shared=True)
    before = source.numpy()
    result.tensor().zero_()
    np.testing.assert_array_equal(source.numpy(), before)


def test_results_have_the_target_s_shape() -> None:
    stack = MPSImageBatch.allocate(CPU, descriptor(), 2).stack()
    with pytest.raises(MPSArgumentError, match=r"values must be shaped \(2, 4, 2, 3\), got \(1, 4, 2, 3\)"):
        stack.write(torch.zeros(1, 4, 2, 3), Target(0, 0, WIDTH, HEIGHT, 0, CHANNELS), is_shared=False)


def test_overlaps() -> None:
    image = MPSImage(CPU, MPSImageDescriptor(Format.FLOAT32, 2, 2, 8, 4))
    whole = image.stack(0, 4)
    assert image.stack(1, 2).overlaps(whole)
    assert not image.stack(0, 2).overlaps(image.stack(2, 2))
    low, high = (image.sub_image(NSRange(channel, 4)).stack(0, 4) for channel in (0, 4))
    assert (low.overlaps(high), high.overlaps(low), high.overlaps(whole)) == (False, False, True)
    batch = MPSImageBatch([MPSImage(CPU, descriptor()), image.batch_representation()[3].sub_image(NSRange(4, 4))])
    assert not whole.overlaps(MPSImageBatch(scattered(CPU, 2)).stack())
    assert batch._images[1].stack(0, 1).overlaps(whole)


def test_batches_of_arrays(mtl: MTLDevice) -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, HEIGHT, WIDTH, 3), np.uint8)
    batch = MPSImageBatch.from_numpy(mtl, array)
    assert (len(batch), parts(batch), batch[0].feature_channel_format) == (4, 1, Format.UNORM8)
    assert batch[0].storage.block is batch[3].storage.block
    for image, pixels in zip(batch, array, strict=True):
        np.testing.assert_array_equal(image.read_bytes(), pixels)
    assert np.asarray(batch).dtype == np.float32
    np.testing.assert_allclose(np.asarray(batch), array / 255, rtol=1e-6)
    with pytest.raises(MPSArgumentError, match="MPSImageBatch: copy must not be False"):
        batch.__array__(copy=False)


def test_batches_of_tensors_share_them(mtl: MTLDevice) -> None:
    tensor = torch.zeros(4, 3, HEIGHT, WIDTH, device=mtl.torch_device).contiguous(memory_format=torch.channels_last)
    batch = MPSImageBatch.from_tensor(mtl, tensor, copy=False)
    tensor[2].fill_(1)
    assert [image.numpy().sum() for image in batch] == [0, 0, 3 * HEIGHT * WIDTH, 0]
    assert torch.from_dlpack(batch).data_ptr() == batch.tensor().data_ptr() == tensor.data_ptr()
    assert batch.__dlpack_device__() == tensor.__dlpack_device__()
    assert torch.from_dlpack(batch[1:3]).data_ptr() == tensor[1:3].data_ptr()


@pytest.mark.parametrize("layout", [MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS, 0])
def test_tensors_with_their_channels_last_say_so(mtl: MTLDevice, layout: Any) -> None:
    tensor = torch.arange(4 * HEIGHT * WIDTH * 3, dtype=torch.float32).reshape(4, HEIGHT, WIDTH, 3)
    tensor = tensor.to(mtl.torch_device)
    batch = MPSImageBatch.from_tensor(mtl, tensor, copy=False, data_layout=layout)
    np.testing.assert_array_equal(batch.numpy(), tensor.cpu().numpy())
    image = MPSImage.from_tensor(mtl, tensor[1], copy=False, data_layout=layout)
    np.testing.assert_array_equal(image.numpy(), tensor[1].cpu().numpy())
    tensor.zero_()
    assert not batch.numpy().any() and not image.numpy().any()


@pytest.mark.parametrize("layout", [None, "NHWC", 2, [], 10**5000], ids=lambda each: type(each).__name__)
def test_layouts_that_there_are_not(layout: Any) -> None:
    with pytest.raises(MPSArgumentError, match="data_layout must be a value of MPSDataLayout, got"):
        MPSImageBatch.from_tensor(CPU, torch.zeros(1, 2, 2, 3), data_layout=layout)


def test_axes_are_named_in_their_layout() -> None:
    with pytest.raises(MPSArgumentError, match=r"must be shaped \[images, height, width, channels\]"):
        MPSImageBatch.from_tensor(
            CPU, torch.zeros(2, 2, 3), data_layout=MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS
        )


# --- read counts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command_buffer(queue: MTLCommandQueue) -> MTLCommandBuffer:
    return queue.command_buffer()


def temporary(command_buffer: MTLCommandBuffer, count: int = 4) -> MPSImageBatch:
    return MPSImageBatch.allocate_temporary(command_buffer, descriptor(), count)


def reads(batch: MPSImageBatch) -> list[int]:
    return [image.read_count for image in batch if isinstance(image, MPSTemporaryImage)]


def test_a_batch_is_read_as_a_whole(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    batch = temporary(command_buffer)
    assert MPSImageBatchIncrementReadCount(batch, 1) == 4
    encode(command_buffer, batch)
    assert reads(batch) == [1, 1, 1, 1]
    encode(command_buffer, batch)
    assert reads(batch) == [0, 0, 0, 0]
    with pytest.raises(
        MPSLifetimeError, match=r"Kernel: source must have reads left, got a batch of 4 temporary images"
    ):
        encode(command_buffer, batch)


@pytest.mark.parametrize("listed", [False, True])
def test_images_of_a_batch_are_counted_apart(command_buffer: MTLCommandBuffer, encode: Encode, listed: bool) -> None:
    batch = temporary(command_buffer)
    encode(command_buffer, batch[1])
    part = MPSImageBatch(list(batch[2:])) if listed else batch[2:]
    encode(command_buffer, part)
    assert reads(batch) == [1, 0, 0, 0]
    with pytest.raises(MPSLifetimeError, match="must have reads left"):
        encode(command_buffer, part)
    with pytest.raises(MPSLifetimeError, match="must have reads left"):
        encode(command_buffer, batch)
    encode(command_buffer, batch[:1])
    assert reads(batch) == [0, 0, 0, 0]


def test_an_image_that_fills_several_places_is_read_once(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    repeated = MPSImageBatch([image, image, image])
    assert (MPSImageBatchIncrementReadCount(repeated, 2), image.read_count) == (1, 3)
    encode(command_buffer, repeated)
    assert image.read_count == 2


def test_increments_skip_ordinary_and_finished_images(command_buffer: MTLCommandBuffer) -> None:
    batch = temporary(command_buffer, 3)
    batch[1].count_read()
    ordinary = MPSImage(command_buffer.device, descriptor())
    mixed = [*batch, ordinary, batch[0]]
    assert MPSImageBatchIncrementReadCount(mixed, 3) == 4
    assert reads(batch) == [4, 0, 4]
    assert MPSImageBatchIncrementReadCount(batch, -9) == 3
    assert reads(batch) == [0, 0, 0]
    assert MPSImageBatchIncrementReadCount(MPSImageBatch.allocate(command_buffer.device, descriptor(), 5), 1) == 5


def test_increments_of_a_part(command_buffer: MTLCommandBuffer) -> None:
    batch = temporary(command_buffer, 3)
    assert MPSImageBatchIncrementReadCount(batch[1:], 2) == 2
    assert reads(batch) == [1, 3, 3]
    with pytest.raises(MPSTypeError, match=r"MPSImageBatchIncrementReadCount: amount must be an integer, got 1\.5"):
        MPSImageBatchIncrementReadCount(batch, 1.5)
    with pytest.raises(MPSTypeError, match="MPSImageBatchIncrementReadCount: batch must be a sequence of MPSImage"):
        MPSImageBatchIncrementReadCount(batch[0], 1)


def test_increments_after_the_commit_record_nothing(command_buffer: MTLCommandBuffer) -> None:
    batch = temporary(command_buffer, 2)
    command_buffer.commit()
    assert MPSImageBatchIncrementReadCount(batch, -1) == 2


def test_batches_live_on_one_command_buffer(
    command_buffer: MTLCommandBuffer, queue: MTLCommandQueue, stranger: MTLDevice, encode: Encode
) -> None:
    batch, other = temporary(command_buffer), queue.command_buffer()
    with pytest.raises(
        MPSLifetimeError, match="Kernel: source is temporary and must be used on the command buffer that"
    ):
        encode(other, batch)
    with pytest.raises(MPSLifetimeError, match=r"Kernel: source\[0\] is temporary"):
        encode(other, MPSImageBatch(list(batch)))
    for operand in (batch, MPSImageBatch.allocate(queue.device, descriptor(), 2)):
        with pytest.raises(MPSDeviceError, match="Kernel: source must belong to the device"):
            encode(stranger.new_command_queue().command_buffer(), operand)
    assert reads(batch) == [1] * 4


# --- functions -------------------------------------------------------------------------------------------------------


def test_synchronize_each_once(command_buffer: MTLCommandBuffer) -> None:
    device = command_buffer.device
    images = scattered(device, 2)
    MPSImageBatchSynchronize([*images, images[0]], command_buffer)
    assert len(command_buffer.recording.execution.works) == 2
    MPSImageBatchSynchronize(MPSImageBatch.allocate(device, descriptor(), 9), command_buffer)
    assert len(command_buffer.recording.execution.works) == 3
    with pytest.raises(MPSTypeError, match="command_buffer must be a command buffer"):
        MPSImageBatchSynchronize(images, None)


def test_resource_size_counts_each_once() -> None:
    one = WIDTH * HEIGHT * CHANNELS * 4
    images = scattered(CPU, 2)
    assert MPSImageBatchResourceSize([*images, images[0]]) == 2 * one
    batch = MPSImageBatch.allocate(CPU, descriptor(), 5)
    assert (MPSImageBatchResourceSize(batch), MPSImageBatchResourceSize(batch[1:3])) == (5 * one, 2 * one)
    image = MPSImage(CPU, MPSImageDescriptor(Format.FLOAT32, 2, 2, 4, 3))
    assert MPSImageBatchResourceSize(image.batch_representation()) == 0


def test_iterate_visits_each_once() -> None:
    first, second = scattered(CPU, 2)
    seen: list[tuple[MPSImage, int]] = []
    answer = MPSImageBatchIterate([first, first, second, first], lambda image, index: seen.append((image, index)))
    assert (answer, seen) == (-(2**63), [(first, 0), (second, 2)])


@pytest.mark.parametrize(
    ("answers", "result", "visits"), [([-(2**63), 5, 6], 5, 2), ([0], 0, 1), ([None, None], -(2**63), 2)]
)
def test_iterate_stops_at_an_answer(answers: list[Any], result: int, visits: int) -> None:
    calls = iter(answers)
    seen: list[int] = []

    def block(_: MPSImage, index: int) -> Any:
        seen.append(index)
        return next(calls)

    assert MPSImageBatchIterate(scattered(CPU, 2), block) == result
    assert len(seen) == visits


def test_iterate_wants_a_number() -> None:
    with pytest.raises(MPSTypeError, match=r"MPSImageBatchIterate: block must return an integer or None, got str"):
        MPSImageBatchIterate(scattered(CPU, 1), lambda *_: "stop")


def test_the_different_images_of_a_very_long_block_are_made_when_asked_for() -> None:
    """There are as many as it is long."""
    batch = MPSImageBatch.allocate(mtl_device("cpu"), MPSImageDescriptor(Format.UNORM8), 2**20)
    assert len(batch.unique()) == batch.count_unique() == 2**20
    assert batch.unique()[-1] is batch[-1]
    assert len(batch._members._made) == 1
