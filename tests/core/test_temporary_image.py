"""Temporary images: one command buffer, counted reads, memory that goes back in queue order."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageFeatureChannelFormat, MPSPurgeableState, MTLStorageMode, NSRange

Format = MPSImageFeatureChannelFormat
Encode = Callable[..., None]
CPU = mtl_device("cpu")


def descriptor(channels: int = 3, images: int = 1) -> MPSImageDescriptor:
    return MPSImageDescriptor(Format.FLOAT32, 5, 4, channels, images)


def finish(command_buffer: Any) -> None:
    command_buffer.commit()
    command_buffer.wait_until_completed()


def fill(image: MPSImage, value: float) -> Callable[[], None]:
    """Work that fills an image."""

    def work() -> None:
        image.storage.tensor().fill_(value)

    return work


@pytest.fixture
def command_buffer(queue: MTLCommandQueue) -> MTLCommandBuffer:
    return queue.command_buffer()


# --- making them -----------------------------------------------------------------------------------------------------


def test_a_temporary_image(command_buffer: MTLCommandBuffer) -> None:
    made = descriptor(7, 2)
    image = MPSTemporaryImage(command_buffer, made)
    assert (image.width, image.height, image.feature_channels, image.number_of_images) == (5, 4, 7, 2)
    assert (image.device, image.read_count, image.is_temporary) == (command_buffer.device, 1, True)
    assert (image.descriptor().storage_mode, made.storage_mode) == (MTLStorageMode.PRIVATE, MTLStorageMode.SHARED)
    assert isinstance(image, MPSImage)
    assert repr(image).startswith("<MPSTemporaryImage 5x4x7 FLOAT32, 2 images on ")
    assert image.set_purgeable_state(MPSPurgeableState.EMPTY) is MPSPurgeableState.ALLOCATION_DEFERRED


@pytest.mark.parametrize(
    ("channels", "images", "feature_channels", "expected"),
    [
        (4, 1, None, (4, 1)),
        (3, 5, None, (3, 5)),
        (4, 6, 8, (8, 3)),
        (8, 3, 4, (4, 6)),
        (8, 3, 9, (9, 2)),
        (4, 5, 7, (7, 2)),
    ],
)
def test_from_a_texture_descriptor(
    command_buffer: MTLCommandBuffer,
    channels: int,
    images: int,
    feature_channels: int | None,
    expected: tuple[int, int],
) -> None:
    texture = descriptor(channels, images)
    image = MPSTemporaryImage(command_buffer, texture_descriptor=texture, feature_channels=feature_channels)
    assert (image.feature_channels, image.number_of_images) == expected
    assert texture == descriptor(channels, images)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda b: MPSTemporaryImage(b),
            MPSTypeError,
            "image_descriptor or texture_descriptor must be given, got neither",
        ),
        (
            lambda b: MPSTemporaryImage(b, descriptor(), texture_descriptor=descriptor()),
            MPSTypeError,
            "image_descriptor or texture_descriptor must be given, not both",
        ),
        (
            lambda b: MPSTemporaryImage(b, descriptor(), feature_channels=3),
            MPSTypeError,
            "feature_channels belongs to texture_descriptor=…, got 3",
        ),
        (
            lambda b: MPSTemporaryImage(b, texture_descriptor=descriptor(4, 2), feature_channels=9),
            MPSArgumentError,
            "feature_channels must fit the 2 four-channel slice(s) of the texture, got 9",
        ),
        (
            lambda b: MPSTemporaryImage(b, texture_descriptor=descriptor(4, 2), feature_channels=0),
            MPSArgumentError,
            "image_descriptor.feature_channels must be an integer of at least 1, got 0",
        ),
        (
            lambda b: MPSTemporaryImage(b, "big"),
            MPSTypeError,
            "image_descriptor must be an MPSImageDescriptor, got str",
        ),
        (lambda b: MPSTemporaryImage(b, descriptor(0)), MPSArgumentError, "feature_channels must be an integer of at"),
        (lambda b: MPSTemporaryImage(b, descriptor(2**50)), MPSArgumentError, "image_descriptor must fit the"),
        (lambda b: MPSTemporaryImage(b.device, descriptor()), MPSTypeError, "must be a command buffer, got MTLDevice"),
        (lambda b: MPSTemporaryImage(None, descriptor()), MPSTypeError, "must be a command buffer, got NoneType"),
    ],
)
def test_what_cannot_be_made(command_buffer: MTLCommandBuffer, make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        make(command_buffer)
    assert str(caught.value).startswith("MPSTemporaryImage: ")
    assert message in str(caught.value)


def test_not_after_the_commit(command_buffer: MTLCommandBuffer) -> None:
    finish(command_buffer)
    with pytest.raises(
        MTLCommandBufferError, match=r"MPSTemporaryImage: command_buffer must not be committed yet, got st"
    ):
        MPSTemporaryImage(command_buffer, descriptor())
    with pytest.raises(MTLCommandBufferError, match=r"MPSImageBatch: command_buffer must not be committed yet"):
        MPSImageBatch.allocate_temporary(command_buffer, descriptor(), 2)


def test_prefetch_is_checked(command_buffer: MTLCommandBuffer) -> None:
    MPSTemporaryImage.prefetch_storage(command_buffer, [descriptor(), descriptor(4)])
    with pytest.raises(MPSTypeError, match=r"image_descriptor_list\[1\] must be an MPSImageDescriptor, got int"):
        MPSTemporaryImage.prefetch_storage(command_buffer, [descriptor(), 3])
    with pytest.raises(MPSArgumentError, match=r"prefetch_storage: image_descriptor.feature_channels must be"):
        MPSTemporaryImage.prefetch_storage(command_buffer, [descriptor(0)])
    with pytest.raises(MPSTypeError, match="must be a command buffer"):
        MPSTemporaryImage.prefetch_storage(None, [])


def test_the_default_allocator_makes_temporary_images(command_buffer: MTLCommandBuffer) -> None:
    allocator: Any = MPSTemporaryImage.default_allocator()
    assert type(allocator.image(command_buffer, descriptor(), None)) is MPSTemporaryImage
    batch = allocator.image_batch(command_buffer, descriptor(), None, 3)
    assert (len(batch), {type(image) for image in batch}, len(batch.stack().parts)) == (3, {MPSTemporaryImage}, 1)


# --- not for the CPU -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("read_bytes", lambda i: i.read_bytes()),
        ("write_bytes", lambda i: i.write_bytes(b"")),
        ("numpy", lambda i: i.numpy()),
        ("numpy", lambda i: np.asarray(i)),
        ("tensor", lambda i: i.tensor()),
        ("texture", lambda i: i.texture),
        ("tensor", lambda i: np.from_dlpack(i)),
        ("numpy", lambda i: i.sub_image(NSRange(0, 3)).numpy()),
    ],
)
def test_the_cpu_cannot_reach_it(command_buffer: MTLCommandBuffer, method: str, call: Any) -> None:
    with pytest.raises(MPSLifetimeError) as caught:
        call(MPSTemporaryImage(command_buffer, descriptor()))
    assert f"MPSTemporaryImage: {method} is not offered: a temporary image cannot be reached by" in str(caught.value)
    assert "MPSImage.default_allocator()" in str(caught.value)
    assert "image_allocator of its node" in str(caught.value)


def test_nor_a_batch_of_them(command_buffer: MTLCommandBuffer) -> None:
    batch = MPSImageBatch.allocate_temporary(command_buffer, descriptor(), 2)
    for call in (batch.numpy, batch.tensor, MPSImageBatch(list(batch)).numpy):
        with pytest.raises(MPSLifetimeError, match="cannot be reached by the CPU"):
            call()


def test_constructors_of_ordinary_images_are_not_offered(command_buffer: MTLCommandBuffer) -> None:
    for method in ("from_numpy", "from_tensor"):
        with pytest.raises(MPSTypeError, match=rf"MPSTemporaryImage: {method} is not offered.*Use MPSImage.{method}"):
            getattr(MPSTemporaryImage, method)(CPU, np.zeros((1, 1, 1)))
    with pytest.raises(MPSTypeError, match=r"parent_image must not be temporary.*Use its batch_representation\(\)"):
        MPSImage(parent_image=MPSTemporaryImage(command_buffer, descriptor()))


# --- reads -----------------------------------------------------------------------------------------------------------


def test_each_encode_takes_one_read(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    image.read_count = 3
    for left in (2, 1, 0):
        encode(command_buffer, image)
        assert image.read_count == left
    with pytest.raises(MPSLifetimeError) as caught:
        encode(command_buffer, image)
    assert "Kernel: source must have reads left, got <MPSTemporaryImage 5x4x3" in str(caught.value)
    assert "with read_count 0. Raise its read_count before the encode that reads it last" in str(caught.value)


def test_writing_takes_none(command_buffer: MTLCommandBuffer) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    for _ in range(3):
        image.check_usable("Kernel", "destination", command_buffer)
    assert image.read_count == 1


def test_one_image_as_both_sources_needs_two_reads(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    with pytest.raises(
        MPSLifetimeError, match=r"MPSTemporaryImage: read_count must be at least 1 for this encode, got 0"
    ):
        encode(command_buffer, image, image)
    image = MPSTemporaryImage(command_buffer, descriptor())
    image.read_count = 2
    encode(command_buffer, image, image)
    assert image.read_count == 0


def test_the_count_is_set_before_the_last_read(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    image.label = "map"
    with pytest.raises(MPSArgumentError, match=r"MPSTemporaryImage 'map': read_count must be an integer of at least 0"):
        image.read_count = -1
    encode(command_buffer, image)
    with pytest.raises(MPSLifetimeError, match=r"MPSTemporaryImage 'map': read_count cannot change after it reached 0"):
        image.read_count = 1


def test_a_count_of_zero_ends_the_image(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    image.read_count = 0
    with pytest.raises(MPSLifetimeError, match="must have reads left"):
        encode(command_buffer, image)
    with pytest.raises(MPSLifetimeError, match="must have reads left"):
        image.batch_representation()
    finish(command_buffer)
    assert image.storage.block.released


# --- one command buffer ----------------------------------------------------------------------------------------------


def test_another_command_buffer_is_refused(
    command_buffer: MTLCommandBuffer, queue: MTLCommandQueue, encode: Encode
) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    with pytest.raises(MPSLifetimeError) as caught:
        encode(queue.command_buffer(), image)
    assert "Kernel: source is temporary and must be used on the command buffer that it was made for" in str(
        caught.value
    )
    assert "commit_and_continue()" in str(caught.value)
    assert image.read_count == 1


def test_another_device_is_refused(command_buffer: MTLCommandBuffer, stranger: MTLDevice, encode: Encode) -> None:
    with pytest.raises(MPSDeviceError, match="Kernel: source must belong to the device"):
        encode(stranger.new_command_queue().command_buffer(), MPSTemporaryImage(command_buffer, descriptor()))


def test_after_the_commit_it_is_gone(command_buffer: MTLCommandBuffer, queue: MTLCommandQueue, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    finish(command_buffer)
    with pytest.raises(MTLCommandBufferError):
        encode(command_buffer, image)
    with pytest.raises(MPSLifetimeError):
        encode(queue.command_buffer(), image)
    with pytest.raises(
        MPSLifetimeError, match=r"read_count is gone: the command buffer of a temporary object was commi"
    ):
        image.read_count = 5


def test_it_outlives_commit_and_continue(queue: MTLCommandQueue, encode: Encode) -> None:
    command_buffer = MPSCommandBuffer(queue)
    image = MPSTemporaryImage(command_buffer, descriptor())
    image.read_count = 2
    encode(command_buffer, image, work=fill(image, 7))
    command_buffer.commit_and_continue()
    seen: list[float] = []
    encode(command_buffer, image, work=lambda: seen.append(float(image.storage.values().sum())))
    finish(command_buffer)
    assert (seen, image.storage.block.released) == ([7.0 * 60], True)


def test_wrappers_of_one_command_buffer_share_its_images(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    encode(MPSCommandBuffer(command_buffer=command_buffer), image)
    assert image.read_count == 0


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_goes_back_after_the_last_read_in_queue_order(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    block, seen = image.storage.block, []

    def look() -> None:
        seen.append((block.is_allocated, block.released))

    command_buffer.record("write", fill(image, 1))
    encode(command_buffer, image, work=look)
    command_buffer.record("look", look)
    assert not block.released
    finish(command_buffer)
    assert seen == [(True, False), (False, True)]


def test_a_batch_s_memory_goes_back_when_all_its_images_were_read(
    command_buffer: MTLCommandBuffer, encode: Encode
) -> None:
    batch = MPSImageBatch.allocate_temporary(command_buffer, descriptor(), 3)
    block = batch[0].storage.block
    released = []
    for image in batch:
        encode(command_buffer, image)
        command_buffer.record("look", lambda: released.append(block.released))
    finish(command_buffer)
    assert released == [False, False, True]


def test_memory_with_reads_left_goes_back_after_the_last_work(command_buffer: MTLCommandBuffer) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    batch = MPSImageBatch.allocate_temporary(command_buffer, descriptor(), 2)
    seen = []

    def use() -> None:
        for block in (image.storage.block, batch[0].storage.block):
            block.tensor()
            seen.append(block.is_allocated)

    command_buffer.record("use", use)
    finish(command_buffer)
    assert seen == [True, True]
    assert (image.storage.block.released, batch[0].storage.block.released) == (True, True)


def test_released_memory_cannot_come_back(command_buffer: MTLCommandBuffer) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor())
    finish(command_buffer)
    with pytest.raises(MPSLifetimeError, match="memory cannot be used after its last read"):
        image.storage.tensor()


def test_images_are_freed_without_the_garbage_collector(queue: MTLCommandQueue, encode: Encode) -> None:
    gc.disable()
    try:
        command_buffer = queue.command_buffer()
        image = MPSTemporaryImage(command_buffer, descriptor(4, 2))
        view = image.batch_representation()[0].sub_image(NSRange(0, 4))
        batch = MPSImageBatch.allocate_temporary(command_buffer, descriptor(), 2)
        encode(command_buffer, view, batch)
        blocks = [weakref.ref(each.storage.block) for each in (image, batch[0])]
        finish(command_buffer)
        del image, view, batch
        assert [block() for block in blocks] == [None, None]
    finally:
        gc.enable()


def test_a_long_stream_of_commits_does_not_pile_up(queue: MTLCommandQueue, encode: Encode) -> None:
    command_buffer = MPSCommandBuffer(queue)
    for _ in range(50):
        image = MPSTemporaryImage(command_buffer, descriptor())
        encode(command_buffer, image)
        command_buffer.commit_and_continue()
    assert len(command_buffer.lifetime.before_end) == 1
    finish(command_buffer)


# --- views -----------------------------------------------------------------------------------------------------------


def test_views_together_hold_one_read_of_their_parent(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor(8, 3))
    image.read_count = 2
    views = image.batch_representation(NSRange(0, 2))
    assert {type(view) for view in views} == {MPSTemporaryImage}
    assert ([view.read_count for view in views], image.read_count) == ([1, 1], 2)
    encode(command_buffer, views[0])
    assert image.read_count == 2
    encode(command_buffer, views[1])
    assert image.read_count == 1
    encode(command_buffer, image.sub_image(NSRange(4, 4)))
    assert image.read_count == 0


def test_views_read_as_a_batch(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor(8, 3))
    encode(command_buffer, image.batch_representation())
    assert image.read_count == 0


def test_views_of_views_pass_reads_on(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor(8, 2))
    middle = image.sub_image(NSRange(4, 4))
    middle.read_count = 2
    views = middle.batch_representation()
    encode(command_buffer, views)
    assert (middle.read_count, image.read_count) == (1, 1)
    encode(command_buffer, middle)
    assert (middle.read_count, image.read_count) == (0, 0)


def test_a_view_does_not_outlive_its_parent(command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor(8, 2))
    view = image.sub_image(NSRange(4, 4))
    encode(command_buffer, image)
    with pytest.raises(MPSLifetimeError, match=r"Kernel: source.parent must have reads left"):
        encode(command_buffer, view)
    view.read_count = 0
    assert image.read_count == 0


def test_views_share_memory(command_buffer: MTLCommandBuffer) -> None:
    image = MPSTemporaryImage(command_buffer, descriptor(8, 2))
    view = image.batch_representation()[1].sub_image(NSRange(4, 4))
    sums: list[float] = []
    command_buffer.record("write", fill(view, 2))
    command_buffer.record("read", lambda: sums.append(float(image.storage.values().sum())))
    finish(command_buffer)
    assert sums == [2 * 5 * 4 * 4]


# --- results as memory -----------------------------------------------------------------------------------------------


def test_a_whole_result_becomes_the_memory(command_buffer: MTLCommandBuffer) -> None:
    batch = MPSImageBatch.allocate_temporary(command_buffer, descriptor(4), 2)
    result = torch.randn(2, 4, 4, 5, device=command_buffer.device.torch_device).contiguous(
        memory_format=torch.channels_last
    )
    addresses: list[int] = []

    def work() -> None:
        batch.stack().write(result, Target(0, 0, 5, 4, 0, 4), is_shared=False)
        addresses.append(batch[0].storage.block.tensor().data_ptr())

    command_buffer.record("Kernel", work)
    finish(command_buffer)
    assert addresses == [result.data_ptr()]


def test_the_queue_and_the_program_use_an_image_at_once(queue: MTLCommandQueue) -> None:
    for _ in range(20):
        image = MPSImage(queue.device, descriptor())
        command_buffer, gate = queue.command_buffer(), threading.Event()
        command_buffer.record("wait", lambda gate=gate: gate.wait(5))

        def ones(image: MPSImage = image) -> None:
            value = image.storage.values().new_ones((1, 3, 4, 5))
            image.stack(0, 1).write(value, Target(0, 0, 5, 4, 0, 3), is_shared=False)

        command_buffer.record("Kernel", ones)
        committing = threading.Thread(target=command_buffer.commit)
        committing.start()
        gate.set()
        held = image.tensor()
        committing.join()
        command_buffer.wait_until_completed()
        assert held.sum() == image.tensor().sum() == 60
