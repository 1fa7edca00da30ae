"""Images in the memory of textures, and textures in the memory of images: neither is a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.metal.device import MTLCommandQueue, MTLDevice, MTLTexture
from openmps.types import MPSImageFeatureChannelFormat as Format
from openmps.types import MTLPixelFormat, MTLStorageMode, MTLTextureType
from replay_twin import replaying_queue

CPU = mps.mtl_device("cpu")
WIDE = MTLPixelFormat.RGBA32_FLOAT


def texture(device: MTLDevice = CPU, **values: Any) -> MTLTexture:
    return device.new_texture(mps.MTLTextureDescriptor(**{"width": 5, "height": 3, **values}))


def array(device: MTLDevice, slices: int) -> MTLTexture:
    kind = MTLTextureType.TYPE_2D_ARRAY
    return texture(device, pixel_format=WIDE, texture_type=kind, array_length=slices)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def pooled(command_buffer: mps.CommandBuffer, source: MPSImage, destination: MPSImage) -> None:
    mps.MPSCNNPoolingMax(source.device, 2, 2).encode(command_buffer, source, destination)


# --- images of textures ----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("channels", [1, 3, 4, None])
@pytest.mark.parametrize("name", ["RGBA8_UNORM", "BGRA8_UNORM"])
def test_a_picture(name: str, channels: int | None, mtl: MTLDevice, rng: np.random.Generator) -> None:
    """Channels are red, green, blue and alpha whatever the order of bytes; both see what is written to either."""
    source = texture(mtl, pixel_format=MTLPixelFormat[name])
    image = MPSImage(texture=source, feature_channels=channels)
    count = channels or 4
    assert (image.width, image.height, image.feature_channels, image.number_of_images) == (5, 3, count, 1)
    assert (image.texture, image.pixel_format, image.resource_size()) == (source, MTLPixelFormat[name], 0)
    given = rng.integers(0, 256, (3, 5, 4), np.uint8)
    source.replace_region(None, 0, given)
    colours = given[..., (2, 1, 0, 3)] if name == "BGRA8_UNORM" else given
    np.testing.assert_array_equal(image.read_bytes(), colours[..., :count])
    image.write_bytes(np.full((3, 5, count), 7, np.uint8))
    np.testing.assert_array_equal(source.numpy()[..., :count], np.float32(7 / 255))
    np.testing.assert_array_equal(source.numpy()[..., count:], (colours / np.float32(255)).astype("f")[..., count:])


@pytest.mark.parametrize(("slices", "channels", "images"), [(6, 10, 2), (6, 4, 6), (6, 3, 6), (6, 22, 1), (7, 8, 3)])
def test_slices(slices: int, channels: int, images: int, mtl: MTLDevice, rng: np.random.Generator) -> None:
    """Four channels a slice, the images one behind the other; what is left over belongs to none."""
    source = array(mtl, slices)
    image = MPSImage(source, channels)
    assert (image.feature_channels, image.number_of_images, image.texture_type) == (
        channels, images, MTLTextureType.TYPE_2D_ARRAY,
    )  # fmt: skip
    each = -(-channels // 4)
    given = numbers(rng, slices, 3, 5, 4)
    for index in range(slices):
        source.replace_region(None, 0, given[index], slice=index)
    expected = [np.concatenate(given[n * each : (n + 1) * each], -1)[..., :channels] for n in range(images)]
    np.testing.assert_array_equal(image.numpy().reshape(images, 3, 5, channels), expected)
    changed = numbers(rng, 3, 5, channels)
    image.write_bytes(changed, image_index=images - 1)
    found = np.concatenate([source.get_bytes(slice=(images - 1) * each + s) for s in range(each)], -1)
    np.testing.assert_array_equal(found[..., :channels], changed)
    np.testing.assert_array_equal(
        found[..., channels:], np.concatenate(given[each * (images - 1) :][:each], -1)[..., channels:]
    )


def test_kernels_read_and_write_textures(queue: MTLCommandQueue, rng: np.random.Generator) -> None:
    """Several images of several slices each, by kernels, in the order of the queue; a read waits for them."""
    device = queue.device
    source, destination, by_hand = array(device, 6), array(device, 6), numbers(rng, 2, 3, 5, 12)
    MPSImage(source, 12).tensor().copy_(mps.MPSImage.from_numpy(device, by_hand).tensor())
    command_buffer = queue.command_buffer()
    mps.MPSCNNNeuronReLU(device, 0.0).encode(command_buffer, MPSImage(source, 12), MPSImage(destination, 12))
    with pytest.raises(mps.MTLCommandBufferError, match="^MTLTexture: get_bytes cannot read what a command buffer"):
        destination.get_bytes(slice=1)
    command_buffer.commit()
    expected = np.maximum(by_hand, 0)
    for index in range(6):
        image, first = divmod(index, 3)
        np.testing.assert_array_equal(destination.get_bytes(slice=index), expected[image, ..., 4 * first :][..., :4])


def test_a_batch_of_textures_and_a_network(mtl: MTLDevice, rng: np.random.Generator) -> None:
    """Images of textures where images are taken: gathered into a batch, computed, compared with ordinary images."""
    queue, given = mtl.new_command_queue(), numbers(rng, 2, 3, 5, 4)
    images = []
    for each in given:
        held = texture(mtl, pixel_format=WIDE)
        held.replace_region(None, 0, each)
        images.append(MPSImage(texture=held))
    results = []
    for sources in (mps.MPSImageBatch(images), mps.MPSImageBatch.from_numpy(mtl, given)):
        command_buffer = queue.command_buffer()
        pool = mps.MPSCNNPoolingAverage(mtl, 3, 3)
        pool.destination_image_allocator = MPSImage.default_allocator()
        results.append(pool.encode_batch(command_buffer, sources))
        command_buffer.commit()
    np.testing.assert_array_equal(results[0].numpy(), results[1].numpy())


def test_arguments_that_are_called_textures(queue: MTLCommandQueue) -> None:
    """Filters take textures where the framework does, and images alone where it does not."""
    source, destination = (texture(queue.device, pixel_format=WIDE, width=size, height=size) for size in (8, 4))
    source.replace_region(None, 0, np.full((8, 8, 4), 0.25, np.float32))
    command_buffer, kernel = queue.command_buffer(), mps.MPSImageLanczosScale(queue.device)
    taken: Any = {"source_texture": source, "destination_texture": destination}
    kernel.encode(command_buffer, **taken)
    command_buffer.commit()
    np.testing.assert_allclose(destination.numpy(), 0.25, rtol=1e-6)
    image: Any = source
    said = "source_image must be an MPSImage, got MTLTexture. Pass it as source_texture=…"
    with pytest.raises(MPSTypeError, match=said):
        kernel.encode(queue.command_buffer(), image, image)


def test_replays_over_textures(device: torch.device, rng: np.random.Generator) -> None:
    """A texture that one kernel writes as two images is read by another one as six, time and again."""
    queue = replaying_queue(device)
    source, between, last = (array(queue.device, 6) for _ in range(3))
    images = MPSImage(source, 10), MPSImage(between, 10), MPSImage(between, 4), MPSImage(last, 4)
    double, negative = (mps.MPSCNNNeuronLinear(queue.device, a, 0.0) for a in (2.0, -1.0))
    seen = set[str]()
    for _ in range(6):
        given = numbers(rng, 6, 3, 5, 4)
        for index in range(6):
            source.replace_region(None, 0, given[index], slice=index)
        command_buffer = queue.command_buffer()
        double.encode(command_buffer, images[0], images[1])
        negative.encode(command_buffer, images[2], images[3])
        command_buffer.commit()
        expected = -2 * given
        expected[[2, 5], ..., 2:] = 0  # no channels of the first
        np.testing.assert_array_equal(last.numpy(), expected)
        seen |= {str(each.outcome) for each in command_buffer.explain().works}
    assert any("REPLAYED" in each.upper() for each in seen)


def test_a_level_is_an_image(rng: np.random.Generator) -> None:
    source = texture(width=8, height=4, pixel_format=WIDE, mipmap_level_count=3)
    image = MPSImage(texture=source.new_texture_view(WIDE, None, range(1, 2)))
    given = numbers(rng, 2, 4, 4)
    image.write_bytes(given)
    np.testing.assert_array_equal(source.get_bytes(mipmap_level=1), given)


@pytest.mark.parametrize("again", ["another image", "other channels", "a view", "several images"])
def test_a_source_that_is_the_destination(again: str, queue: MTLCommandQueue) -> None:
    """Two images of one texture share memory, whichever way they see it."""
    source = array(queue.device, 2)
    other = {
        "another image": lambda: MPSImage(source, 8),
        "other channels": lambda: MPSImage(source, 5),
        "a view": lambda: MPSImage(source.new_texture_view(WIDE), 8),
        "several images": lambda: MPSImage(source, 4),
    }[again]()
    with pytest.raises(MPSArgumentError, match="must not share memory with a source"):
        pooled(queue.command_buffer(), other, MPSImage(source, 8))


def test_slices_that_are_source_and_destination(queue: MTLCommandQueue, rng: np.random.Generator) -> None:
    """Slices of one texture are different images, though their memory interleaves."""
    whole = array(queue.device, 4)
    one, other = (MPSImage(whole.new_texture_view(WIDE, slices=span), 8) for span in (range(2), range(2, 4)))
    one.write_bytes(numbers(rng, 3, 5, 8))
    command_buffer = queue.command_buffer()
    pooled(command_buffer, one, other)
    command_buffer.commit()
    assert other.numpy().any()


def test_contents_that_go_stay_shared() -> None:
    source = texture(pixel_format=WIDE)
    image = MPSImage(texture=source)
    image.write_bytes(np.ones((3, 5, 4), np.float32))
    image.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
    assert not source.get_bytes().any()
    image.write_bytes(np.ones((3, 5, 4), np.float32))
    assert source.get_bytes().all()


# --- textures of images ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "images", "pixel"), [(1, 1, "R"), (2, 1, "RG"), (3, 1, "RGBA"), (10, 2, "RGBA")])
def test_the_texture_of_an_image(
    channels: int, images: int, pixel: str, mtl: MTLDevice, rng: np.random.Generator
) -> None:
    """Its memory, from before it is allocated; components that the image does not have are 0."""
    image = MPSImage(mtl, mps.MPSImageDescriptor(Format.FLOAT16, 5, 3, channels, images))
    found, slices = image.texture, -(-channels // 4)
    assert found is image.texture
    assert (found.pixel_format, found.texture_type) == (MTLPixelFormat[f"{pixel}16_FLOAT"], image.texture_type)
    assert (found.width, found.height, found.array_length, found.is_allocated) == (5, 3, slices * images, False)
    components = len(pixel)
    padded = np.zeros((images, 3, 5, slices * components), np.float16)
    padded[..., :channels] = given = rng.normal(size=(images, 3, 5, channels)).astype(np.float16)
    for index in range(images):
        image.write_bytes(given[index], image_index=index)
    for index in range(slices * images):
        n, s = divmod(index, slices)
        np.testing.assert_array_equal(found.get_bytes(slice=index), padded[n, ..., components * s :][..., :components])
    found.replace_region(None, 0, np.ones((3, 5, components), np.float16), slice=slices * images - 1)
    last = image.numpy().reshape(images, 3, 5, channels)[-1, ..., components * (slices - 1) :]
    assert last.min() == 1 == last.max()
    again = MPSImage(texture=found, feature_channels=channels)
    np.testing.assert_array_equal(again.numpy(), image.numpy())
    assert again.tensor().data_ptr() == image.tensor().data_ptr()


def test_what_is_replaced_is_written(queue: MTLCommandQueue) -> None:
    """Memory whose command buffer was dropped cannot be read until something writes it, the CPU for one."""
    image = MPSImage(queue.device, mps.MPSImageDescriptor(Format.FLOAT32, 2, 2, 4))
    command_buffer = queue.command_buffer()
    mps.MPSCNNNeuronReLU(queue.device, 0.0).encode(command_buffer, MPSImage(texture(queue.device), 4), image)
    del command_buffer
    with pytest.raises(mps.MTLCommandBufferError, match="^MTLTexture: get_bytes cannot read .* dropped before"):
        image.texture.get_bytes()
    image.texture.replace_region(None, 0, np.ones((2, 2, 4), np.float32))
    assert image.texture.get_bytes().all() and image.numpy().all()


def test_the_memory_of_an_image_is_not_regrouped() -> None:
    """Its images lie one behind the other: channels of two of them are no image."""
    found = MPSImage(CPU, mps.MPSImageDescriptor(Format.FLOAT32, 2, 2, 4, 4)).texture
    with pytest.raises(
        MPSArgumentError, match="feature_channels must hold whole images, or channels of one image .* of a descriptor"
    ):
        MPSImage(texture=found, feature_channels=8)


# --- temporary images ------------------------------------------------------------------------------------------------


def test_temporary_images_of_a_descriptor_of_a_texture(queue: MTLCommandQueue) -> None:
    descriptor = mps.MTLTextureDescriptor(
        texture_type=MTLTextureType.TYPE_2D_ARRAY, pixel_format=WIDE, width=5, height=3, array_length=6
    )
    image = mps.MPSTemporaryImage(queue.command_buffer(), texture_descriptor=descriptor, feature_channels=10)
    assert (image.width, image.height, image.feature_channels, image.number_of_images) == (5, 3, 10, 2)
    plain = mps.MPSTemporaryImage(queue.command_buffer(), texture_descriptor=mps.MTLTextureDescriptor())
    assert (plain.feature_channels, plain.feature_channel_format, plain.read_count) == (4, Format.UNORM8, 1)
    with pytest.raises(MPSLifetimeError, match="MPSTemporaryImage: texture is not offered"):
        _ = plain.texture


# --- what is refused -------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MPSImage(texture=texture(), feature_channels=5), "feature_channels must be at most 4, the components"),
        (lambda: MPSImage(texture=array(CPU, 2), feature_channels=9), "feature_channels must be at most 8"),
        (lambda: MPSImage(texture=texture(pixel_format=MTLPixelFormat.R8_UNORM), feature_channels=2), "feature_channe"),
        (lambda: MPSImage(texture=texture(), feature_channels=0), "feature_channels must be an integer of at least 1"),
        (lambda: MPSImage(texture=7), "texture must be an MTLTexture"),  # type: ignore[arg-type]
        (lambda: MPSImage(CPU, texture=texture()), "texture must be given with feature_channels alone"),
        (lambda: MPSImage(texture(), 3, 4), "texture must be given with feature_channels alone"),
        (
            lambda: MPSImage(texture=texture(pixel_format=MTLPixelFormat.RGBA8_UNORM_SRGB)),
            r"texture must have a linear format.*got RGBA8_UNORM_SRGB.*new_texture_view.*texture\.numpy\(\)",
        ),
        (
            lambda: MPSImage(texture=texture(storage_mode=MTLStorageMode.PRIVATE)).numpy(),
            "numpy needs memory that the CPU may touch",
        ),
    ],
)
def test_images_that_cannot_be(make: Any, said: str) -> None:
    with pytest.raises((MPSArgumentError, MPSTypeError), match=f"^MPSImage: {said}"):
        make()
