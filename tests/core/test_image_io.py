"""readBytes and writeBytes against slices of a NumPy array ``[image][channel][y][x]``."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from in_one_test import in_one_test
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSDataLayout,
    MPSImageFeatureChannelFormat,
    MPSImageReadWriteParams,
    MTLOrigin,
    MTLRegion,
    MTLSize,
    NSRange,
)

HWC, CHW = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS, MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
Format = MPSImageFeatureChannelFormat
DTYPES = {
    Format.UNORM8: np.uint8,
    Format.UNORM16: np.uint16,
    Format.FLOAT16: np.float16,
    Format.FLOAT32: np.float32,
}
FORMATS = list(DTYPES)
WIDTH, HEIGHT, CHANNELS, IMAGES = 5, 4, 7, 3


def elements(shape: tuple[int, ...], channel_format: Format = Format.FLOAT32, seed: int = 0) -> np.ndarray:
    """Any bits that are numbers of the format."""
    random, dtype = np.random.default_rng(seed), DTYPES[channel_format]
    if np.issubdtype(dtype, np.floating):
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def image_of(device: MTLDevice, pixels: np.ndarray, channel_format: Format = Format.FLOAT32) -> MPSImage:
    """An image object of ``[image][channel][y][x]``, without write_bytes."""
    images, channels, height, width = pixels.shape
    image = MPSImage(device, MPSImageDescriptor(channel_format, width, height, channels, images))
    image.tensor().copy_(torch.from_numpy(pixels.copy()))
    return image


def region(x: int, y: int, width: int, height: int, z: int = 0, depth: int = 1) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, z), MTLSize(width, height, depth))


def in_layout(pixels: np.ndarray, layout: MPSDataLayout) -> np.ndarray:
    """``[image][channel][y][x]`` in the order of a layout."""
    return pixels.transpose(0, 2, 3, 1) if layout == HWC else pixels


@pytest.fixture
def pixels() -> np.ndarray:
    return elements((IMAGES, CHANNELS, HEIGHT, WIDTH))


@pytest.fixture
def image(pixels: np.ndarray) -> MPSImage:
    return image_of(mtl_device("cpu"), pixels)


# --- whole images ----------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("layout", [HWC, CHW])
@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_reads_are_tight_and_exact(
    mtl: MTLDevice, channel_format: Format, layout: MPSDataLayout, channels: int
) -> None:
    pixels = elements((2, channels, 3, 2), channel_format)
    image = image_of(mtl, pixels, channel_format)
    for index in range(2):
        read = image.read_bytes(layout, image_index=index)
        assert (read.dtype, read.size) == (DTYPES[channel_format], channels * 6)
        assert read.flags.c_contiguous
        np.testing.assert_array_equal(read, in_layout(pixels, layout)[index])


@in_one_test
@pytest.mark.parametrize("layout", [HWC, CHW])
@pytest.mark.parametrize("channel_format", FORMATS)
def test_writes_are_exact(mtl: MTLDevice, channel_format: Format, layout: MPSDataLayout) -> None:
    pixels = elements((2, 5, 3, 2), channel_format)
    image = MPSImage(mtl, MPSImageDescriptor(channel_format, 2, 3, 5, 2))
    for index in range(2):
        image.write_bytes(in_layout(pixels, layout)[index], layout, image_index=index)
    assert image.tensor().dtype is torch.from_numpy(pixels).dtype
    np.testing.assert_array_equal(image.tensor().cpu().numpy(), pixels)


def test_a_read_is_a_copy(image: MPSImage, pixels: np.ndarray) -> None:
    for layout in (HWC, CHW):
        image.read_bytes(layout)[...] = -1
    np.testing.assert_array_equal(image.tensor().numpy(), pixels)


def test_a_write_copies(image: MPSImage) -> None:
    data = np.zeros((HEIGHT, WIDTH, CHANNELS), np.float32)
    image.write_bytes(data)
    data[...] = -1
    assert not image.read_bytes().any()


def test_a_1x1x10_half_image_is_ten_halves(mtl: MTLDevice) -> None:
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT16, 1, 1, 10))
    assert image.read_bytes(CHW).tobytes() == bytes(20)
    assert image.read_bytes(CHW).shape == (10, 1, 1)


def test_special_numbers_pass_unchanged(mtl: MTLDevice) -> None:
    bits = np.array([0x7F800000, 0xFF800000, 0x7FC00001, 0x80000000, 1], np.uint32)
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT32, 5))
    image.write_bytes(bits.tobytes())
    np.testing.assert_array_equal(image.read_bytes().reshape(-1).view(np.uint32), bits)


# --- regions, channels, images ---------------------------------------------------------------------------------------


@st.composite
def selections(draw: st.DrawFn) -> tuple[MTLRegion, MPSImageReadWriteParams | None, int, tuple[slice, ...]]:
    """A region, channels and an image index, and the same as slices ``[image, channel, y, x]``."""

    def part(limit: int) -> tuple[int, int]:
        start = draw(st.integers(0, limit - 1))
        return start, draw(st.integers(1, limit - start))

    (x, width), (y, height), (first, depth) = part(WIDTH), part(HEIGHT), part(IMAGES)
    index = draw(st.integers(0, first))
    offset = draw(st.sampled_from([0, 4]))
    rest = CHANNELS - offset
    count = draw(st.sampled_from([c for c in range(1, rest + 1) if c % 4 == 0 or offset == 0 or c == rest]))
    params = draw(st.sampled_from([None, MPSImageReadWriteParams(offset, count)]))
    channels = slice(None) if params is None else slice(offset, offset + count)
    chosen = (slice(first, first + depth), channels, slice(y, y + height), slice(x, x + width))
    return region(x, y, width, height, first - index, depth), params, index, chosen


@settings(max_examples=60, deadline=None)
@given(selections(), st.sampled_from([HWC, CHW]), st.sampled_from(FORMATS))
def test_any_selection_is_read(selection: Any, layout: MPSDataLayout, channel_format: Format) -> None:
    box, params, index, chosen = selection
    pixels = elements((IMAGES, CHANNELS, HEIGHT, WIDTH), channel_format)
    read = image_of(mtl_device("cpu"), pixels, channel_format).read_bytes(layout, box, params, index)
    expected = in_layout(pixels[chosen], layout)
    np.testing.assert_array_equal(read, expected if box.size.depth > 1 else expected[0])


@settings(max_examples=60, deadline=None)
@given(selections(), st.sampled_from([HWC, CHW]), st.sampled_from(FORMATS), st.booleans())
def test_any_selection_is_written_and_nothing_else(
    selection: Any, layout: MPSDataLayout, channel_format: Format, flat: bool
) -> None:
    box, params, index, chosen = selection
    pixels = elements((IMAGES, CHANNELS, HEIGHT, WIDTH), channel_format)
    image = image_of(mtl_device("cpu"), pixels, channel_format)
    pixels[chosen] = elements(pixels[chosen].shape, channel_format, seed=1)
    data = in_layout(pixels[chosen], layout)
    data = data if box.size.depth > 1 else data[0]
    image.write_bytes(data.reshape(-1) if flat else data, layout, box, params, index)
    np.testing.assert_array_equal(image.tensor().numpy(), pixels)


def test_views_are_read_and_written_in_place(image: MPSImage, pixels: np.ndarray) -> None:
    view = image.batch_representation(NSRange(1, 2))[1].sub_image(NSRange(4, 4))
    np.testing.assert_array_equal(view.read_bytes(CHW), pixels[2, 4:7])
    view.write_bytes(np.full((1, 1, 3), 9, np.float32), HWC, region(4, 3, 1, 1))
    pixels[2, 4:7, 3, 4] = 9
    np.testing.assert_array_equal(image.tensor().numpy(), pixels)


# --- what data may be ------------------------------------------------------------------------------------------------

DATA = np.arange(6, dtype=np.float32)
ACCEPTED = {
    "bytes": DATA.tobytes(),
    "bytearray": bytearray(DATA.tobytes()),
    "memoryview of floats": memoryview(DATA),
    "memoryview with gaps": memoryview(np.repeat(DATA, 2))[::2],
    "array.array": array.array("f", DATA.tolist()),
    "column": DATA.reshape(6, 1),
    "image": DATA.reshape(3, 2, 1),
    "without the channel axis": DATA.reshape(3, 2),
    "with gaps": np.repeat(DATA, 2)[::2].reshape(3, 2),
    "reversed": DATA[::-1].copy()[::-1],
    "read-only": np.frombuffer(DATA.tobytes(), np.float32),
    "tensor": torch.from_numpy(DATA.copy()),
    "tensor of parameters": torch.nn.Parameter(torch.from_numpy(DATA.copy())),
}


@in_one_test
@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.filterwarnings("error")
def test_data_that_is_accepted(mtl: MTLDevice, name: str) -> None:
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT32, 2, 3))
    if name == "column":
        image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT32, 1, 6))
    image.write_bytes(ACCEPTED[name])
    np.testing.assert_array_equal(image.read_bytes().reshape(-1), DATA)


class _Opaque:
    """Nothing that NumPy can view."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("no array")


WRONG_TYPES = {
    "float64": (DATA.astype(np.float64), "must have the image's own element type float32, got float64. Convert it"),
    "list": (DATA.tolist(), "must have the image's own element type float32, got float64"),
    "uint8": (DATA.astype(np.uint8), "got uint8"),
    "the other byte order": (DATA.astype(">f4"), "got >f4"),
    "objects": ([object()] * 6, "got object"),
    "None": (None, "got object"),
    "ragged": ([[1.0], [1.0, 2.0]], "must be an array of numbers, or bytes, got list"),
    "opaque": (_Opaque(), "must be an array of numbers, or bytes, got _Opaque"),
    "bfloat16": (torch.zeros(6, dtype=torch.bfloat16), "must be an array of numbers, or bytes, got Tensor"),
    "sparse": (torch.zeros(6).to_sparse(), "must be an array of numbers, or bytes, got Tensor"),
}


@in_one_test
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_data_of_another_type_is_refused(mtl: MTLDevice, name: str) -> None:
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT32, 2, 3))
    image.label = "input"
    data, message = WRONG_TYPES[name]
    with pytest.raises(MPSTypeError) as caught:
        image.write_bytes(data)
    assert str(caught.value).startswith("MPSImage 'input': data_bytes")
    assert message in str(caught.value)


WRONG_SIZES = {
    "too few": (DATA[:5], "must be shaped (3, 2, 1), or hold 6 elements in a row, got shape (5,)"),
    "too many": (np.zeros(7, np.float32), "got shape (7,)"),
    "other layout": (DATA.reshape(2, 3), "got shape (2, 3). Look at data_layout and region"),
    "bytes": (DATA.tobytes()[:-1], "must hold 24 bytes, 6 elements of float32, got 23 bytes"),
    "no data": (b"", "got 0 bytes"),
}


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_data_of_another_size_is_refused(mtl: MTLDevice, name: str) -> None:
    image = MPSImage(mtl, MPSImageDescriptor(Format.FLOAT32, 2, 3))
    data, message = WRONG_SIZES[name]
    with pytest.raises(MPSArgumentError) as caught:
        image.write_bytes(data)
    assert str(caught.value).startswith("MPSImage: data_bytes must")
    assert message in str(caught.value)


# --- what cannot be selected -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "layout": ({"data_layout": 2}, MPSArgumentError, "data_layout must be a value of MPSDataLayout, got 2"),
    "layout name": ({"data_layout": "HWC"}, MPSArgumentError, "got 'HWC'"),
    "layout list": ({"data_layout": []}, MPSArgumentError, "got []"),
    "region type": ({"region": (0, 0, 1, 1)}, MPSTypeError, "region must be an MTLRegion, got tuple"),
    "columns": ({"region": region(3, 0, 3, 1)}, MPSArgumentError, "region (columns) must select some of 0 to 4"),
    "rows": ({"region": region(0, 4, 1, 1)}, MPSArgumentError, "region (rows) must select some of 0 to 3, got start 4"),
    "no columns": ({"region": region(0, 0, 0, 1)}, MPSArgumentError, "got start 0, size 0"),
    "no images": ({"region": region(0, 0, 1, 1, 0, 0)}, MPSArgumentError, "image_index + region (depth) must select"),
    "depth": (
        {"region": region(0, 0, 1, 1, 2, 2)},
        MPSArgumentError,
        "must select some of 0 to 2, got start 2, size 2",
    ),
    "index and z": ({"region": region(0, 0, 1, 1, 2), "image_index": 1}, MPSArgumentError, "got start 3, size 1"),
    "index": ({"image_index": 3}, MPSArgumentError, "image_index must select some of 0 to 2, got start 3"),
    "negative index": ({"image_index": -1}, MPSArgumentError, "image_index must select some of 0 to 2, got start -1"),
    "index type": ({"image_index": 0.0}, MPSTypeError, "image_index must be an integer, got 0.0"),
    "index bool": ({"image_index": True}, MPSTypeError, "image_index must be an integer, got True"),
    "channels type": ({"feature_channel_info": (0, 4)}, MPSTypeError, "must be an MPSImageReadWriteParams, got tuple"),
    "channel offset": (
        {"feature_channel_info": MPSImageReadWriteParams(2, 4)},
        MPSArgumentError,
        "feature_channel_info.feature_channel_offset must be a multiple of 4, got 2",
    ),
    "channel count": (
        {"feature_channel_info": MPSImageReadWriteParams(4, 2)},
        MPSArgumentError,
        "number_of_feature_channels_to_read_write must be positive, a multiple of 4 unless the offset is 0",
    ),
    "no channels": ({"feature_channel_info": MPSImageReadWriteParams(0, 0)}, MPSArgumentError, "got 0 from channel 0"),
    "too many channels": (
        {"feature_channel_info": MPSImageReadWriteParams(4, 4)},
        MPSArgumentError,
        "stay within 7 channels, got 4 from channel 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_selection_outside_the_image_is_refused(image: MPSImage, pixels: np.ndarray, name: str) -> None:
    options, kind, message = REFUSED[name]
    for call in (image.read_bytes, lambda **given: image.write_bytes(b"", **given)):
        with pytest.raises(kind) as caught:
            call(**options)
        assert str(caught.value).startswith("MPSImage: ")
        assert message in str(caught.value)
    np.testing.assert_array_equal(image.tensor().numpy(), pixels)
