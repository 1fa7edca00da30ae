"""Ordinary images: descriptor, properties, memory, allocator."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSTypeError, MTLCommandBufferError
from openmps.kernels.image_filters.threshold import MPSImageThresholdTruncate
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageFeatureChannelFormat,
    MPSPurgeableState,
    MTLCPUCacheMode,
    MTLPixelFormat,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
)

Format = MPSImageFeatureChannelFormat
State = MPSPurgeableState
FORMATS = [Format.UNORM8, Format.UNORM16, Format.FLOAT16, Format.FLOAT32]
FLOAT32 = Format.FLOAT32
CPU = mtl_device("cpu")


def descriptor(width: int = 5, height: int = 4, channels: int = 3, images: int = 1) -> MPSImageDescriptor:
    return MPSImageDescriptor(FLOAT32, width, height, channels, images)


# --- descriptor ------------------------------------------------------------------------------------------------------


def test_descriptor_defaults() -> None:
    made = MPSImageDescriptor(Format.FLOAT16)
    assert (made.width, made.height, made.feature_channels, made.number_of_images) == (1, 1, 1, 1)
    assert made.usage == MTLTextureUsage.SHADER_READ | MTLTextureUsage.SHADER_WRITE == 3
    assert (made.cpu_cache_mode, made.storage_mode) == (MTLCPUCacheMode.DEFAULT_CACHE, MTLStorageMode.SHARED)


@pytest.mark.parametrize(
    ("channel_format", "one", "two", "more"),
    [
        (Format.UNORM8, 10, 30, 70),
        (Format.UNORM16, 20, 60, 110),
        (Format.FLOAT16, 25, 65, 115),
        (Format.FLOAT32, 55, 105, 125),
        (Format.NONE, 0, 0, 0),
    ],
)
def test_pixel_formats_follow(channel_format: Format, one: int, two: int, more: int) -> None:
    made = MPSImageDescriptor(channel_format, 2, 2, 1)
    found = []
    for channels in (1, 2, 3, 4, 5, 64):
        made.feature_channels = channels
        found.append(made.pixel_format)
    assert found == [one, two, more, more, more, more]
    assert isinstance(made.pixel_format, MTLPixelFormat)


def test_a_copy_of_a_descriptor_is_its_own() -> None:
    made = MPSImageDescriptor(Format.UNORM8, 3, 4, 5, 6, MTLTextureUsage.SHADER_READ)
    made.storage_mode, made.cpu_cache_mode = MTLStorageMode.PRIVATE, MTLCPUCacheMode.WRITE_COMBINED
    for twin in (made.copy(), copy.copy(made)):
        assert twin == made
        twin.width = 9
        assert (twin != made, made.width) == (True, 3)
    with pytest.raises(TypeError):
        hash(made)
    assert made != "descriptor"


def test_a_descriptor_changed_later_leaves_its_image_alone() -> None:
    made = descriptor()
    image = MPSImage(CPU, made)
    made.width, made.channel_format = 9, Format.UNORM8
    assert (image.width, image.descriptor().width, image.feature_channel_format) == (5, 5, FLOAT32)


@pytest.mark.parametrize("wrong", [17, -1, "float32", None])
def test_no_such_format(wrong: Any) -> None:
    with pytest.raises(MPSArgumentError, match=r"MPSImageDescriptor: channel_format must be one of .*FLOAT16.*, got"):
        MPSImageDescriptor(wrong, 1, 1, 1)


@in_one_test
@pytest.mark.parametrize("name", ["width", "height", "feature_channels", "number_of_images"])
@pytest.mark.parametrize("value", [0, -3, 2.0, True, "4", None])
def test_sizes_are_whole_numbers(name: str, value: Any) -> None:
    made = descriptor()
    setattr(made, name, value)
    with pytest.raises(MPSArgumentError) as caught:
        MPSImage(CPU, made)
    assert str(caught.value) == f"MPSImage: image_descriptor.{name} must be an integer of at least 1, got {value!r}"


def test_sizes_may_be_integers_of_numpy() -> None:
    image = MPSImage(CPU, descriptor(np.int64(2), np.int32(3), np.uint8(4), np.int16(2)))
    assert image.tensor().shape == (2, 4, 3, 2)
    assert {type(size) for size in (image.width, image.height, image.feature_channels, image.number_of_images)} == {int}


@pytest.mark.parametrize("channel_format", [Format.NONE, Format.RESERVED0, Format.COUNT])
def test_formats_that_cannot_be_stored(channel_format: Format) -> None:
    with pytest.raises(MPSArgumentError, match=r"channel_format must be UNORM8.* got (NONE|RESERVED0|COUNT)"):
        MPSImage(CPU, MPSImageDescriptor(channel_format, 1, 1, 1))


def test_memoryless_images_are_refused() -> None:
    made = descriptor()
    made.storage_mode = MTLStorageMode.MEMORYLESS
    with pytest.raises(MPSArgumentError, match=r"image_descriptor.storage_mode must be SHARED.*, got MEMORYLESS"):
        MPSImage(CPU, made)


# --- what an image is ------------------------------------------------------------------------------------------------


def test_properties(mtl: MTLDevice) -> None:
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT16, 5, 4, 7, 3, MTLTextureUsage.SHADER_READ))
    assert (image.device, image.width, image.height, image.feature_channels) == (mtl, 5, 4, 7)
    assert (image.number_of_images, image.feature_channel_format) == (3, Format.FLOAT16)
    assert (image.pixel_format, image.usage) == (MTLPixelFormat.RGBA16_FLOAT, MTLTextureUsage.SHADER_READ)
    assert (image.parent, image.label, image.is_temporary) == (None, None, False)
    assert image.resource_size() == 5 * 4 * 7 * 3 * 2
    assert image.descriptor() == MPSImageDescriptor(Format.FLOAT16, 5, 4, 7, 3, MTLTextureUsage.SHADER_READ)
    assert repr(image) == f"<MPSImage 5x4x7 FLOAT16, 3 images on {mtl.name}>"
    image.label = "input"
    assert (image.name, repr(image)[:17]) == ("MPSImage 'input'", "<MPSImage 'input'")


@pytest.mark.parametrize(("channel_format", "bits"), list(zip(FORMATS, [8, 16, 11, 24], strict=True)))
def test_precision(channel_format: Format, bits: int) -> None:
    assert MPSImage(CPU, MPSImageDescriptor(channel_format)).precision == bits


@pytest.mark.parametrize(("channels", "elements"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4), (64, 4)])
def test_pixel_size(channels: int, elements: int) -> None:
    sizes = [MPSImage(CPU, MPSImageDescriptor(each, 2, 2, channels)).pixel_size for each in FORMATS]
    assert sizes == [elements, 2 * elements, 2 * elements, 4 * elements]


@pytest.mark.parametrize(
    ("channels", "images", "texture_type"),
    [
        (1, 1, MTLTextureType.TYPE_2D),
        (4, 1, MTLTextureType.TYPE_2D),
        (5, 1, MTLTextureType.TYPE_2D_ARRAY),
        (1, 2, MTLTextureType.TYPE_2D_ARRAY),
        (4, 2, MTLTextureType.TYPE_2D_ARRAY),
    ],
)
def test_texture_type(channels: int, images: int, texture_type: MTLTextureType) -> None:
    assert MPSImage(CPU, descriptor(2, 2, channels, images)).texture_type is texture_type


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "MPSImage: device must be an MTLDevice, got NoneType. Make one with"),
        (("cpu", descriptor()), "MPSImage: device must be an MTLDevice, got str"),
        ((CPU,), "MPSImage: image_descriptor must be an MPSImageDescriptor, got NoneType"),
        ((CPU, FLOAT32), "MPSImage: image_descriptor must be an MPSImageDescriptor, got MPSImageFeatureChannelFormat"),
    ],
)
def test_constructor_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(MPSTypeError) as caught:
        MPSImage(*arguments)
    assert message in str(caught.value)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_allocated_on_first_use_and_zero(mtl: MTLDevice) -> None:
    for channel_format in FORMATS:
        image = MPSImage(mtl, MPSImageDescriptor(channel_format, 3, 2, 5, 2))
        assert not image.storage.block.is_allocated
        assert (image.resource_size() > 0, image.descriptor().width, repr(image)[:9]) == (True, 3, "<MPSImage")
        assert not image.storage.block.is_allocated
        assert not image.numpy().any()
        memory = image.tensor()
        assert (image.storage.block.is_allocated, memory.device) == (True, mtl.torch_device)
        assert memory.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [2**20, 2**40, 2**62])
def test_images_larger_than_the_memory_are_refused_before_any_allocation(size: int) -> None:
    with pytest.raises(MPSArgumentError) as caught:
        MPSImage(CPU, descriptor(size, size, 4))
    assert "MPSImage: image_descriptor must fit the" in str(caught.value)
    assert f"got {size * size * 16} bytes for {size}x{size}x4" in str(caught.value)


def test_images_of_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        images = [MPSImage(CPU, descriptor()), MPSImage.from_numpy(CPU, np.zeros((4, 5, 3), np.float32))]
        images.append(MPSImage.from_tensor(CPU, torch.zeros(3, 4, 5)))
        for image in images:
            image.numpy()
    for image in images:
        image.write_bytes(np.ones((4, 5, 3), np.float32))
        assert image.numpy().min() == 1


def test_purgeable_state() -> None:
    image = MPSImage(CPU, descriptor())
    assert image.set_purgeable_state(State.EMPTY) is State.ALLOCATION_DEFERRED
    image.write_bytes(np.ones((4, 5, 3), np.float32))
    assert image.set_purgeable_state(State.VOLATILE) is State.NON_VOLATILE
    assert image.set_purgeable_state(State.KEEP_CURRENT) is State.VOLATILE
    assert image.set_purgeable_state(State.EMPTY) is State.VOLATILE
    assert not image.storage.block.is_allocated
    assert image.set_purgeable_state(State.NON_VOLATILE) is State.EMPTY
    assert not image.numpy().any()
    with pytest.raises(MPSArgumentError, match=r"state must be one that can be asked for, got ALLOCATION_DEFERRED"):
        image.set_purgeable_state(State.ALLOCATION_DEFERRED)
    with pytest.raises(MPSTypeError, match=r"state must be an MPSPurgeableState, got int"):
        image.set_purgeable_state(4)


def test_emptying_one_image_of_a_block_leaves_the_others() -> None:
    batch = MPSImageBatch.from_numpy(CPU, np.ones((3, 2, 2, 1), np.float32))
    batch[1].set_purgeable_state(State.EMPTY)
    assert batch.numpy().sum(axis=(1, 2, 3)).tolist() == [4, 0, 4]


def test_synchronize_is_checked_and_recorded(queue: MTLCommandQueue, mtl: MTLDevice, stranger: MTLDevice) -> None:
    image = MPSImage(mtl, descriptor())
    command_buffer = queue.command_buffer()
    image.synchronize(command_buffer)
    assert [label for label, _ in command_buffer.recording.execution.works] == ["synchronize of MPSImage"]
    with pytest.raises(MPSDeviceError, match=r"MPSImage: command_buffer must belong to the device"):
        image.synchronize(stranger.new_command_queue().command_buffer())
    command_buffer.commit()
    command_buffer.wait_until_completed()
    with pytest.raises(MTLCommandBufferError, match=r"command_buffer must not be committed yet, got status COMPLETED"):
        image.synchronize(command_buffer)
    with pytest.raises(MPSTypeError, match=r"command_buffer must be a command buffer, got NoneType"):
        image.synchronize(None)


def test_private_images_are_the_device_s_own() -> None:
    private = descriptor()
    private.storage_mode = MTLStorageMode.PRIVATE
    image = MPSImage(CPU, private)
    for method in (image.read_bytes, lambda: image.write_bytes(b""), image.numpy, image.tensor):
        with pytest.raises(MPSArgumentError, match=r"needs memory that the CPU may touch, got PRIVATE storage"):
            method()
    with pytest.raises(MPSArgumentError, match="PRIVATE"):
        np.asarray(image.batch_representation()[0])


def test_an_image_may_be_larger_than_textures() -> None:
    """For data that never goes to a Mac; `openmps lint` names those of graphs. Their texture is an error."""
    numbers = np.arange(20_000, dtype=np.float32)
    for shape in ((1, 20_000, 1), (20_000, 1, 1)):
        source = MPSImage.from_numpy(CPU, numbers.reshape(shape))
        made = MPSImage(CPU, source.descriptor())
        command_buffer = CPU.new_command_queue().command_buffer()
        MPSImageThresholdTruncate(CPU, 17_000.0).encode(command_buffer, source, made)
        command_buffer.commit()
        assert (made.numpy().ravel() == np.minimum(numbers, 17_000)).all()
        with pytest.raises(MPSArgumentError, match="must be an integer of 1 to 16384, got 20000"):
            _ = made.texture


# --- allocator -------------------------------------------------------------------------------------------------------


def test_the_default_allocator_makes_ordinary_images(queue: MTLCommandQueue) -> None:
    allocator = MPSImage.default_allocator()
    image = allocator.image(queue.command_buffer(), descriptor(), None)
    assert (type(image), image.device, image.width) == (MPSImage, queue.device, 5)
    batch = allocator.image_batch(queue.command_buffer(), descriptor(), None, 3)
    assert (len(batch), type(batch[0]), len(batch.stack().parts)) == (3, MPSImage, 1)
