"""Views of ordinary images share their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageFeatureChannelFormat,
    NSRange,
)

Format = MPSImageFeatureChannelFormat
FLOAT32 = Format.FLOAT32
CPU = mtl_device("cpu")


def descriptor(width: int = 5, height: int = 4, channels: int = 3, images: int = 1) -> MPSImageDescriptor:
    return MPSImageDescriptor(FLOAT32, width, height, channels, images)


def numbered(device: MTLDevice, width: int, height: int, channels: int, images: int = 1) -> MPSImage:
    """An image whose element [n][c][y][x] is its own number in that order."""
    image = MPSImage(device, descriptor(width, height, channels, images))
    memory = image.tensor()
    memory.copy_(torch.arange(memory.numel(), dtype=torch.float32).reshape(memory.shape))
    return image


# --- views -----------------------------------------------------------------------------------------------------------


def test_batch_representation_shares_memory_both_ways(mtl: MTLDevice) -> None:
    image = numbered(mtl, 3, 2, 5, 4)
    views = image.batch_representation()
    assert len(views) == 4
    assert all(view.parent is image and view.number_of_images == 1 for view in views)
    image.write_bytes(np.full((2, 3, 5), -1, np.float32), image_index=2)
    views[3].write_bytes(np.full((2, 3, 5), -2, np.float32))
    assert (views[2].numpy().max(), image.numpy()[3].max()) == (-1, -2)
    assert (views[0].resource_size(), image.resource_size()) == (0, 3 * 2 * 5 * 4 * 4)


@pytest.mark.parametrize("span", [NSRange(1, 2), range(1, 3)])
def test_batch_representation_of_a_sub_range(span: Any) -> None:
    image = numbered(CPU, 3, 2, 1, 4)
    views = image.batch_representation(span)
    np.testing.assert_array_equal([view.numpy() for view in views], image.numpy()[1:3])
    assert repr(views).endswith("one block>")


def test_views_of_an_image_that_has_no_memory_yet_share_what_it_gets() -> None:
    image = MPSImage(CPU, descriptor(2, 2, 8, 2))
    views = image.batch_representation()
    part = views[1].sub_image(NSRange(4, 4))
    part.write_bytes(np.ones((2, 2, 4), np.float32))
    assert image.numpy().sum(axis=(1, 2)).tolist() == [[0] * 8, [0] * 4 + [4] * 4]


@pytest.mark.parametrize(
    ("location", "length", "channels"),
    [(0, 4, range(4)), (4, 4, range(4, 8)), (8, 2, range(8, 10)), (4, 99, range(4, 10))],
)
def test_sub_images_are_channels(mtl: MTLDevice, location: int, length: int, channels: range) -> None:
    image = numbered(mtl, 3, 2, 10, 2)
    view = image.sub_image(NSRange(location, length))
    assert (view.feature_channels, view.number_of_images, view.parent) == (len(channels), 2, image)
    np.testing.assert_array_equal(view.numpy(), image.numpy()[..., channels.start : channels.stop])
    view.tensor().zero_()
    assert not image.numpy()[..., channels.start : channels.stop].any()


def test_views_of_views() -> None:
    image = numbered(CPU, 2, 2, 12, 3)
    middle = image.sub_image(NSRange(4, 8))
    view = middle.batch_representation(NSRange(1, 2))[1].sub_image(range(4, 8))
    assert (view.parent is not None and view.parent.parent is middle, middle.parent is image) == (True, True)
    np.testing.assert_array_equal(view.numpy(), image.numpy()[2, :, :, 8:12])
    view.tensor().fill_(-1)
    assert (image.numpy()[2, :, :, 8:].max(), image.numpy()[2, :, :, 7].min() >= 0) == (-1, True)


@in_one_test
@pytest.mark.parametrize(
    ("channels", "images", "span", "feature_channels", "chosen"),
    [
        (8, 5, NSRange(4, 4), 8, (slice(2, 4), slice(0, 8))),
        (8, 5, None, None, (slice(0, 5), slice(0, 8))),
        (8, 5, NSRange(4, 5), None, (slice(2, 4), slice(0, 8))),  # half an image more
        (8, 5, NSRange(3, 1), 4, (slice(1, 2), slice(4, 8))),
        (7, 2, NSRange(2, 2), 5, (slice(1, 2), slice(0, 5))),
        (7, 2, range(3, 4), 3, (slice(1, 2), slice(4, 7))),
        (12, 2, NSRange(1, 2), 8, (slice(0, 1), slice(4, 12))),
        (2, 3, NSRange(1, 2), 1, (slice(1, 3), slice(0, 1))),
    ],
)
def test_slices_of_a_parent(channels: int, images: int, span: Any, feature_channels: Any, chosen: Any) -> None:
    image = numbered(CPU, 2, 3, channels, images)
    view = MPSImage(parent_image=image, slice_range=span, feature_channels=feature_channels)
    expected = image.tensor()[chosen]
    assert (view.number_of_images, view.feature_channels, view.parent) == (*expected.shape[:2], image)
    assert torch.equal(view.tensor(), expected)
    view.tensor().zero_()
    assert not expected.any()


@in_one_test
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda i: i.batch_representation(NSRange(2, 2)),
            "sub_range must select some of the 3 image(s), got location 2",
        ),
        (lambda i: i.batch_representation(NSRange(0, 0)), "sub_range must select some of the 3 image(s)"),
        (lambda i: i.sub_image(NSRange(2, 4)), "feature_channel_range.location must be a multiple of 4 below 8, got 2"),
        (lambda i: i.sub_image(NSRange(8, 4)), "feature_channel_range.location must be a multiple of 4 below 8, got 8"),
        (
            lambda i: i.sub_image(NSRange(0, 3)),
            "feature_channel_range.length must be a positive multiple of 4, or reach",
        ),
        (
            lambda i: i.sub_image(NSRange(0, 0)),
            "feature_channel_range.length must be a positive multiple of 4, or reach",
        ),
        (lambda i: MPSImage(parent_image=i, slice_range=NSRange(5, 2)), "slice_range must lie within the 6 slice(s)"),
        (lambda i: MPSImage(parent_image=i, slice_range=NSRange(0, 1)), "hold an image of 8 channel(s), 2 slice(s)"),
        (lambda i: MPSImage(parent_image=i, slice_range=NSRange(1, 2), feature_channels=8), "must hold whole images"),
        (lambda i: MPSImage(parent_image=i, slice_range=NSRange(0, 2), feature_channels=4), "must hold whole images"),
        (lambda i: MPSImage(parent_image=i, feature_channels=9), "must hold whole images, or channels of one image"),
        (lambda i: MPSImage(parent_image=i, feature_channels=0), "feature_channels must be an integer of at least 1"),
    ],
)
def test_views_that_cannot_be(call: Any, message: str) -> None:
    image = MPSImage(CPU, descriptor(2, 2, 8, 3))
    image.label = "features"
    with pytest.raises(MPSArgumentError) as caught:
        call(image)
    assert str(caught.value).startswith("MPSImage 'features': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda i: i.batch_representation((0, 1)),
        lambda i: i.batch_representation(range(0, 3, 2)),
        lambda i: i.sub_image(4),
        lambda i: i.sub_image(range(-4, 0)),
        lambda i: MPSImage(parent_image=i, slice_range=(0, 1)),
    ],
)
def test_spans_are_ranges(call: Any) -> None:
    with pytest.raises(MPSTypeError, match=r"must be an NSRange\(location, length\), or a range of step 1, got"):
        call(MPSImage(CPU, descriptor(2, 2, 8, 3)))


def test_a_parent_is_an_image() -> None:
    with pytest.raises(MPSTypeError, match=r"MPSImage: parent_image must be an MPSImage, got MPSImageDescriptor"):
        MPSImage(parent_image=descriptor())
