"""Images copied to matrices and back: layouts, rows, origins, formats, round trips, and what is refused."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8, Bench, Format, finish, numbers, stored, temporary_copy
from in_one_test import in_one_test
from measured import note_error
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.vector import MPSMatrix, MPSMatrixDescriptor, MPSTemporaryMatrix
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.kernels.image_copy import MPSImageCopyToMatrix, MPSMatrixCopyToImage
from openmps.metal.device import MTLDevice
from openmps.types import MPSDataLayout, MPSDataType, MTLOrigin
from scenes import CPU

HWC, CHW = MPSDataLayout.HEIGHT_X_WIDTH_X_FEATURE_CHANNELS, MPSDataLayout.FEATURE_CHANNELS_X_HEIGHT_X_WIDTH
UNORM16 = Format.UNORM16
TYPES = {
    FLOAT32: MPSDataType.FLOAT32,
    FLOAT16: MPSDataType.FLOAT16,
    UNORM8: MPSDataType.UINT8,
    UNORM16: MPSDataType.UINT16,
}
UNTOUCHED = 77


def _matrix(bench: Bench, rows: int, columns: int, kind: MPSDataType = MPSDataType.FLOAT32, **more: Any) -> MPSMatrix:
    """A matrix full of `UNTOUCHED`."""
    matrix = MPSMatrix(device=bench.device, descriptor=MPSMatrixDescriptor(rows, columns, data_type=kind, **more))
    matrix.tensor().copy_(torch.full(matrix.tensor().shape, UNTOUCHED).to(matrix.tensor().dtype))
    return matrix


def _flat(pixels: np.ndarray, layout: MPSDataLayout) -> np.ndarray:
    """Rows of elements `[N, H, W, C]`, element by element from the rule."""
    images, height, width, channels = pixels.shape
    rows = np.zeros((images, height * width * channels), pixels.dtype)
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                place = (y * width + x) * channels + c if layout is HWC else (c * height + y) * width + x
                rows[:, place] = pixels[:, y, x, c]
    return rows


def _draw(rng: np.random.Generator, shape: tuple[int, ...], channel_format: Format) -> np.ndarray:
    return rng.uniform(size=shape) if channel_format in (UNORM8, UNORM16) else rng.normal(size=shape)


def _pixels(values: np.ndarray, channel_format: Format) -> np.ndarray:
    if channel_format is UNORM16:
        return np.round(values.transpose(0, 2, 3, 1) * 65535).astype(np.uint16)
    return stored(values, channel_format)


def _filled(bench: Bench, pixels: np.ndarray, channel_format: Format, how: str) -> Any:
    """Elements `[N, H, W, C]` as one image object, a batch in a block, or a batch of unrelated images."""
    images, height, width, channels = pixels.shape
    if how == "image":
        image = bench.empty((images, channels, height, width), channel_format)
        for index, each in enumerate(pixels):
            image.write_bytes(each, image_index=index)
        return image
    descriptor = MPSImageDescriptor(channel_format, width, height, channels)
    batch = MPSImageBatch.allocate(bench.device, descriptor, images)
    if how == "unrelated":
        batch = MPSImageBatch([bench.empty((1, channels, height, width), channel_format) for _ in range(images)])
    for image, each in zip(batch, pixels, strict=True):
        image.write_bytes(each)
    return batch


def _encode(kernel: Any, command_buffer: Any, first: Any, second: Any) -> None:
    images = first if isinstance(kernel, MPSImageCopyToMatrix) else second
    call = kernel.encode_batch if isinstance(images, MPSImageBatch) else kernel.encode
    assert call(command_buffer, first, second) is None


HOW = ["image", "batch", "unrelated"]


@in_one_test
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("layout", MPSDataLayout)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("channel_format", TYPES, ids=lambda f: f.name)
def test_there_and_back(
    channels: int,
    layout: MPSDataLayout,
    how: str,
    channel_format: Format,
    rng: np.random.Generator,
    device: torch.device,
) -> None:
    bench = Bench.on(device)
    pixels = _pixels(_draw(rng, (3, channels, 2, 4), channel_format), channel_format)
    length = 8 * channels
    there, back = MPSImageCopyToMatrix(bench.device, layout), MPSMatrixCopyToImage(bench.device, layout)
    there.destination_matrix_origin = back.source_matrix_origin = MTLOrigin(2, 3, 0)
    matrix = _matrix(bench, 6, length + 4, TYPES[channel_format])
    result = _filled(bench, np.zeros_like(pixels), channel_format, how)
    command_buffer = bench.command_buffer()
    _encode(there, command_buffer, _filled(bench, pixels, channel_format, how), matrix)
    _encode(back, command_buffer, matrix, result)
    finish(command_buffer)
    expected = np.full((6, length + 4), UNTOUCHED, pixels.dtype)
    expected[2:5, 3 : 3 + length] = _flat(pixels, layout)
    np.testing.assert_array_equal(matrix.numpy(), expected)
    note_error(type(there), "forward", device, matrix.numpy(), expected)
    images = [result] * 3 if how == "image" else result
    for index, image in enumerate(images):
        found = image.read_bytes(image_index=index if how == "image" else 0)
        np.testing.assert_array_equal(found, pixels[index])
        note_error(type(back), "forward", device, found, pixels[index])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 3, 1), (2, 7, 1, 5)])
@pytest.mark.parametrize("layout", MPSDataLayout)
def test_an_image_without_memory_takes_a_copy(
    shape: tuple[int, ...], layout: MPSDataLayout, rng: np.random.Generator, device: torch.device
) -> None:
    """The first write may hand memory over: it must not be the matrix's own."""
    bench = Bench.on(device)
    values = rng.normal(size=shape).astype(np.float32)
    matrix = _matrix(bench, shape[0], values[0].size)
    rows = _flat(values.transpose(0, 2, 3, 1), layout)
    matrix.tensor().copy_(torch.from_numpy(rows))
    result = bench.empty(shape)
    command_buffer = bench.command_buffer()
    MPSMatrixCopyToImage(bench.device, layout).encode(command_buffer, matrix, result)
    finish(command_buffer)
    matrix.tensor().zero_()
    np.testing.assert_array_equal(numbers(result), values)
    command_buffer = bench.command_buffer()
    MPSMatrixCopyToImage(bench.device, layout).encode(command_buffer, matrix, result)
    finish(command_buffer)
    assert not numbers(result).any()


def test_the_order_of_commands_is_kept(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSImageCopyToMatrix(bench.device)
    matrix = _matrix(bench, 1, 4)
    command_buffer = bench.command_buffer()
    for value in (1.0, 2.0):
        kernel.encode(command_buffer, bench.filled((1, 1, 2, 2), value), matrix)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy(), np.full((1, 4), 2.0))


def test_spacing_and_buffer_offset(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    values = rng.normal(size=(2, 3, 2, 2)).astype(np.float32)
    buffer = bench.device.new_buffer(length=4 * (5 + 3 * 20))
    descriptor = MPSMatrixDescriptor(3, 14, row_bytes=80)
    matrix = MPSMatrix(buffer, descriptor, offset=20)
    kernel = MPSImageCopyToMatrix(bench.device, HWC)
    kernel.destination_matrix_origin = MTLOrigin(1, 2, 0)
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(values), matrix)
    finish(command_buffer)
    expected = np.zeros(65, np.float32)
    rows = _flat(values.transpose(0, 2, 3, 1), HWC)
    for image in range(2):
        start = 5 + (1 + image) * 20 + 2
        expected[start : start + 12] = rows[image]
    np.testing.assert_array_equal(buffer.tensor(torch.float32).cpu().numpy(), expected)


def test_one_of_several_matrices(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    values = rng.normal(size=(1, 4, 1, 2)).astype(np.float32)
    matrix = _matrix(bench, 1, 8, matrices=3)
    there, back = MPSImageCopyToMatrix(bench.device), MPSMatrixCopyToImage(bench.device)
    there.destination_matrix_batch_index = back.source_matrix_batch_index = 1
    result = bench.empty(values.shape)
    command_buffer = bench.command_buffer()
    there.encode(command_buffer, bench.image(values), matrix)
    back.encode(command_buffer, matrix, result)
    finish(command_buffer)
    found = matrix.numpy()
    np.testing.assert_array_equal(found[1], values.reshape(1, 8))
    assert (found[[0, 2]] == UNTOUCHED).all()
    np.testing.assert_array_equal(numbers(result), values)


def test_a_view_of_some_channels(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    image = bench.image(rng.normal(size=(2, 8, 2, 3)))
    part = image.sub_image(range(4, 8))
    matrix = _matrix(bench, 2, 24)
    command_buffer = bench.command_buffer()
    MPSImageCopyToMatrix(bench.device).encode(command_buffer, part, matrix)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy(), numbers(image)[:, 4:].reshape(2, 24))
    target = bench.filled((2, 8, 2, 3), 1.0)
    command_buffer = bench.command_buffer()
    MPSMatrixCopyToImage(bench.device).encode(command_buffer, matrix, target.sub_image(range(0, 4)))
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(target)[:, :4], numbers(image)[:, 4:])
    assert (numbers(target)[:, 4:] == 1).all()


# --- temporary objects -----------------------------------------------------------------------------------------------


def test_temporary_objects_are_counted_down(rng: np.random.Generator, device: torch.device) -> None:
    bench = Bench.on(device)
    values = rng.normal(size=(2, 3, 2, 2)).astype(np.float32)
    there, back = MPSImageCopyToMatrix(bench.device, HWC), MPSMatrixCopyToImage(bench.device, HWC)
    command_buffer = bench.command_buffer()
    source = temporary_copy(command_buffer, bench.batch(values))
    matrix = MPSTemporaryMatrix(command_buffer, MPSMatrixDescriptor(2, 12))
    there.encode_batch(command_buffer, source, matrix)
    assert [image.read_count for image in source] == [0, 0]
    assert matrix.read_count == 1
    results = bench.batch(np.zeros(values.shape))
    back.encode_batch(command_buffer, matrix, results)
    assert matrix.read_count == 0
    with pytest.raises(MPSLifetimeError, match="^MPSImageCopyToMatrix: source_images"):
        there.encode_batch(command_buffer, source, matrix)
    with pytest.raises(MPSLifetimeError, match="^MPSMatrixCopyToImage: source_matrix must have reads left"):
        back.encode_batch(command_buffer, matrix, results)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(results), values)


def test_a_temporary_destination_keeps_its_reads(device: torch.device) -> None:
    bench = Bench.on(device)
    command_buffer = bench.command_buffer()
    result = MPSTemporaryImage(command_buffer, MPSImageDescriptor(FLOAT32, 2, 1, 1))
    MPSMatrixCopyToImage(bench.device).encode(command_buffer, _matrix(bench, 1, 2), result)
    assert result.read_count == 1
    matrix = _matrix(bench, 1, 2)
    MPSImageCopyToMatrix(bench.device).encode(command_buffer, result, matrix)
    finish(command_buffer)
    assert (matrix.numpy() == UNTOUCHED).all()


# --- properties ------------------------------------------------------------------------------------------------------


def test_properties_and_their_defaults() -> None:
    there, back = MPSImageCopyToMatrix(CPU), MPSMatrixCopyToImage(CPU)
    assert there.data_layout is back.data_layout is CHW
    assert MPSImageCopyToMatrix(CPU, data_layout=HWC).data_layout is HWC
    assert MPSMatrixCopyToImage(CPU, 0).data_layout is HWC  # type: ignore[arg-type]
    assert there.destination_matrix_origin == back.source_matrix_origin == MTLOrigin(0, 0, 0)
    assert there.destination_matrix_batch_index == back.source_matrix_batch_index == 0
    for kernel in (there, back):
        with pytest.raises(AttributeError):
            kernel.data_layout = HWC  # type: ignore[misc]


def test_signatures_are_the_selectors_words() -> None:
    def names(method: Any) -> list[str]:
        return list(inspect.signature(method).parameters)[1:]

    assert names(MPSImageCopyToMatrix.encode) == ["command_buffer", "source_image", "destination_matrix"]
    assert names(MPSImageCopyToMatrix.encode_batch) == ["command_buffer", "source_images", "destination_matrix"]
    assert names(MPSMatrixCopyToImage.encode) == ["command_buffer", "source_matrix", "destination_image"]
    assert names(MPSMatrixCopyToImage.encode_batch) == ["command_buffer", "source_matrix", "destination_images"]


@pytest.mark.parametrize("make_copy", [lambda kernel: kernel.copy(), copy.copy], ids=["copy()", "copy.copy"])
def test_copies_have_their_own_properties(make_copy: Any) -> None:
    kernel = MPSImageCopyToMatrix(CPU, HWC)
    kernel.destination_matrix_origin, kernel.destination_matrix_batch_index = MTLOrigin(1, 2, 0), 3
    twin = make_copy(kernel)
    assert (twin.data_layout, twin.destination_matrix_origin) == (HWC, MTLOrigin(1, 2, 0))
    assert twin.destination_matrix_batch_index == 3
    twin.destination_matrix_origin, twin.destination_matrix_batch_index = MTLOrigin(0, 0, 0), 0
    assert (kernel.destination_matrix_origin, kernel.destination_matrix_batch_index) == (MTLOrigin(1, 2, 0), 3)


def test_an_encode_keeps_the_properties_of_its_time(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSImageCopyToMatrix(bench.device)
    matrix = _matrix(bench, 2, 1)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.filled((1, 1, 1, 1), 5.0), matrix)
    kernel.destination_matrix_origin = MTLOrigin(1, 0, 0)
    finish(command_buffer)
    np.testing.assert_array_equal(matrix.numpy(), [[5], [UNTOUCHED]])


# --- misuse ----------------------------------------------------------------------------------------------------------


def test_wrong_properties() -> None:
    with pytest.raises(MPSArgumentError, match="^MPSImageCopyToMatrix: data_layout must be one of HEIGHT_X_WIDTH_X_"):
        MPSImageCopyToMatrix(CPU, 7)  # type: ignore[arg-type]
    there, back = MPSImageCopyToMatrix(CPU), MPSMatrixCopyToImage(CPU)
    back.label = "back"
    with pytest.raises(MPSTypeError, match="^MPSImageCopyToMatrix: destination_matrix_origin must be an MTLOrigin"):
        there.destination_matrix_origin = (0, 0, 0)  # type: ignore[assignment]
    with pytest.raises(MPSArgumentError, match="^MPSMatrixCopyToImage 'back': source_matrix_origin.z must be 0, got 1"):
        back.source_matrix_origin = MTLOrigin(0, 0, 1)
    for wrong in (-1, 1.0, True):
        with pytest.raises(MPSArgumentError, match="destination_matrix_batch_index must be an integer of at least 0"):
            there.destination_matrix_batch_index = wrong  # type: ignore[assignment]
        with pytest.raises(MPSArgumentError, match="'back': source_matrix_batch_index must be an integer of at least"):
            back.source_matrix_batch_index = wrong  # type: ignore[assignment]


class Both:
    """One copy in each direction between an image of 2x3 pixels, 4 channels, and a matrix."""

    def __init__(self) -> None:
        self.bench = Bench(CPU)
        self.there, self.back = MPSImageCopyToMatrix(CPU), MPSMatrixCopyToImage(CPU)
        self.image = self.bench.filled((2, 4, 3, 2), 1.0)

    def refused(self, kind: type[Exception], match: str, matrix: Any, image: Any = None) -> None:
        """Both directions; `{}` stands for the matrix's argument."""
        image = self.image if image is None else image
        command_buffer = self.bench.command_buffer()
        with pytest.raises(kind, match=f"^MPSImageCopyToMatrix: {match.format('destination_matrix', 'source_image')}"):
            self.there.encode(command_buffer, image, matrix)
        rule = match.format("source_matrix", "destination_image")
        with pytest.raises(kind, match=f"^MPSMatrixCopyToImage: {rule}"):
            self.back.encode(command_buffer, matrix, image)


def test_matrices_that_are_too_small() -> None:
    both = Both()
    rule = r"{0} must have 2 rows of 24 elements: 2x3x4 .*, 2 image\(s\) from row 0, column 0"
    both.refused(MPSArgumentError, f"{rule} on, got 1 rows of 24", _matrix(both.bench, 1, 24))
    both.refused(MPSArgumentError, f"{rule} on, got 2 rows of 23", _matrix(both.bench, 2, 23))
    both.there.destination_matrix_origin = both.back.source_matrix_origin = MTLOrigin(1, 2, 0)
    rule = "{0} must have 3 rows of 26 elements: .* from row 1, column 2 on, got"
    both.refused(MPSArgumentError, f"{rule} 2 rows of 26", _matrix(both.bench, 2, 26))
    both.refused(MPSArgumentError, f"{rule} 3 rows of 25", _matrix(both.bench, 3, 25))


def test_matrices_of_another_type() -> None:
    both = Both()
    for kind in (MPSDataType.FLOAT16, MPSDataType.UINT32):
        rule = f"{{0}} must hold FLOAT32, as FLOAT32 images do, got {kind.name}"
        both.refused(MPSArgumentError, rule, _matrix(both.bench, 2, 24, kind))
    bytes_ = both.bench.empty((2, 4, 3, 2), UNORM8)
    rule = "{0} must hold UINT8, as UNORM8 images do, got FLOAT32"
    both.refused(MPSArgumentError, rule, _matrix(both.bench, 2, 24), bytes_)
    both.refused(MPSTypeError, "{0} must be an MPSMatrix, got ndarray", np.zeros((2, 24)))


def test_an_index_beyond_the_matrices() -> None:
    both = Both()
    both.there.destination_matrix_batch_index = both.back.source_matrix_batch_index = 2
    matrix = _matrix(both.bench, 2, 24, matrices=2)
    both.refused(MPSArgumentError, "{0}_batch_index must be below 2, the matrices there are, got 2", matrix)


def test_other_devices_and_command_buffers() -> None:
    both = Both()
    other = Bench(MTLDevice(torch.device("cpu")))
    both.refused(MPSDeviceError, "{0} must belong to the device", _matrix(other, 2, 24))
    both.refused(MPSDeviceError, "{1} must belong to the device", _matrix(both.bench, 2, 24), other.empty((2, 4, 3, 2)))
    matrix = _matrix(both.bench, 2, 24)
    with pytest.raises(MPSDeviceError, match="^MPSImageCopyToMatrix: command_buffer must belong"):
        both.there.encode(other.command_buffer(), both.image, matrix)
    done = both.bench.command_buffer()
    finish(done)
    with pytest.raises(MTLCommandBufferError, match="^MPSMatrixCopyToImage: command_buffer must not be committed"):
        both.back.encode(done, matrix, both.image)


def test_images_for_batches_and_batches_for_images() -> None:
    both = Both()
    matrix, batch = _matrix(both.bench, 2, 24), both.bench.batch(np.zeros((2, 4, 3, 2)))
    both.refused(MPSTypeError, "{1} must be an MPSImage, got MPSImageBatch", matrix, batch)
    command_buffer = both.bench.command_buffer()
    with pytest.raises(MPSTypeError, match="^MPSImageCopyToMatrix: source_images must be a sequence"):
        both.there.encode_batch(command_buffer, both.image, matrix)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^MPSMatrixCopyToImage: destination_images must be a sequence"):
        both.back.encode_batch(command_buffer, matrix, both.image)  # type: ignore[arg-type]
    with pytest.raises(MPSArgumentError, match=r"^MPSImageCopyToMatrix: source_images must be 1 image\(s\)"):
        both.there.encode_batch(command_buffer, [], matrix)
    unlike = [both.bench.empty((1, 4, 3, 2)), both.bench.empty((1, 4, 2, 2))]
    with pytest.raises(MPSArgumentError, match=r"^MPSImageCopyToMatrix: source_images: image 1 must have the size"):
        both.there.encode_batch(command_buffer, unlike, matrix)
    several = [both.image, both.image]
    with pytest.raises(MPSArgumentError, match=r"^MPSMatrixCopyToImage: destination_images: image 0 must"):
        both.back.encode_batch(command_buffer, matrix, several)


def test_a_temporary_matrix_of_another_command_buffer() -> None:
    both = Both()
    matrix = MPSTemporaryMatrix(both.bench.command_buffer(), MPSMatrixDescriptor(2, 24))
    both.refused(MPSLifetimeError, "{0} is temporary and must be used on the command buffer", matrix)
