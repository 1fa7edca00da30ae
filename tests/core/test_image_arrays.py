"""Arrays and tensors of other libraries in and out of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.image import storage
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageFeatureChannelFormat,
)

Format = MPSImageFeatureChannelFormat
FORMATS = [Format.UNORM8, Format.UNORM16, Format.FLOAT16, Format.FLOAT32]
FLOAT32 = Format.FLOAT32
CPU = mtl_device("cpu")


def numbered(*shape: int) -> MPSImage:
    """An image of the numbers 0, 1, 2, … in the order of an array of this shape."""
    return MPSImage.from_numpy(CPU, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_numpy_is_a_copy_of_one_image_or_of_several() -> None:
    image = numbered(2, 3, 4)
    read = image.numpy()
    assert read.shape == (2, 3, 4)
    read[...] = -1
    assert image.numpy().min() == 0
    assert numbered(2, 2, 3, 4).numpy().shape == (2, 2, 3, 4)


def test_numpy_s_own_functions_take_images() -> None:
    image = MPSImage.from_numpy(CPU, np.array([[[0, 255]]], np.uint8))
    assert (np.asarray(image).dtype, np.asarray(image).tolist()) == (np.float32, [[[0, 1]]])
    assert np.asarray(image, dtype=np.float64).dtype == np.float64
    assert np.array(image, copy=True).sum() == 1
    with pytest.raises(ValueError, match=r"MPSImage: copy must not be False.*Use tensor\(\)"):
        image.__array__(copy=False)


def test_tensor_and_dlpack_share_the_memory(mtl: MTLDevice) -> None:
    for channel_format in FORMATS:
        image = MPSImage(mtl, MPSImageDescriptor(channel_format, 3, 2, 4, 2))
        for view in (image.tensor(), torch.from_dlpack(image)):
            assert (tuple(view.shape), view.dtype) == ((2, 4, 2, 3), storage.DTYPES[channel_format])
            assert view.data_ptr() == image.tensor().data_ptr()
    assert image.__dlpack_device__() == image.tensor().__dlpack_device__()


def test_numpy_reads_dlpack_without_a_copy() -> None:
    image = numbered(2, 3, 4)
    view = np.from_dlpack(image)
    view_before = view.copy()
    image.tensor().add_(1)
    np.testing.assert_array_equal(view, view_before + 1)


@in_one_test
@pytest.mark.parametrize(
    ("dtype", "channel_format"),
    [
        (np.uint8, Format.UNORM8),
        (np.uint16, Format.UNORM16),
        (np.float16, Format.FLOAT16),
        (np.float32, Format.FLOAT32),
        (np.float64, Format.FLOAT32),
        (np.longdouble, Format.FLOAT32),
        (">f4", Format.FLOAT32),
        (">u2", Format.UNORM16),
    ],
)
def test_an_array_s_type_is_its_format(mtl: MTLDevice, dtype: Any, channel_format: Format) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    image = MPSImage.from_numpy(mtl, array)
    assert (image.feature_channel_format, image.width, image.height) == (channel_format, 3, 2)
    assert (image.feature_channels, image.number_of_images, image.device) == (4, 1, mtl)
    np.testing.assert_array_equal(image.read_bytes(), array)


def test_elements_of_the_format_are_stored_as_they_are() -> None:
    array = np.array([0, 1, 128, 255], np.uint8).reshape(1, 4, 1)
    image = MPSImage.from_numpy(CPU, array, Format.UNORM8)
    assert image.numpy().reshape(-1).tolist() == pytest.approx([0, 1 / 255, 128 / 255, 1])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(48, dtype=np.float32).reshape(2, 3, 8)[:, ::-1, ::2],
        np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        np.broadcast_to(np.float32(1), (2, 3, 4)),
        [[[1.0, 2.0], [3.0, 4.0]]],
    ],
)
def test_any_array_is_copied(array: Any) -> None:
    image = MPSImage.from_numpy(CPU, array)
    np.testing.assert_array_equal(image.numpy(), np.asarray(array, np.float32))
    before = np.array(array)
    image.tensor().fill_(7)
    np.testing.assert_array_equal(array, before)


def test_several_images_in_one_object() -> None:
    array = np.random.default_rng(0).random((3, 2, 5, 4)).astype(np.float32)
    image = MPSImage.from_numpy(CPU, array)
    assert (image.number_of_images, image.width, image.height, image.feature_channels) == (3, 5, 2, 4)
    np.testing.assert_array_equal(image.numpy(), array)


@in_one_test
@pytest.mark.parametrize(
    ("array", "channel_format", "kind", "message"),
    [
        (np.zeros((2, 3)), None, MPSArgumentError, "array must be shaped [height, width, channels] or [images, height"),
        (np.zeros((1, 2, 3, 4, 5)), None, MPSArgumentError, "got shape (1, 2, 3, 4, 5). A missing axis is added by"),
        (np.zeros((2, 0, 3)), None, MPSArgumentError, "no axis of size 0, got shape (2, 0, 3)"),
        (
            np.zeros((1, 1, 1), np.uint8),
            Format.FLOAT32,
            MPSTypeError,
            "array of type uint8 cannot be stored as FLOAT32. C",
        ),
        (np.zeros((1, 1, 1), np.uint16), Format.UNORM8, MPSTypeError, "of type uint16 cannot be stored as UNORM8"),
        (
            np.zeros((1, 1, 1), np.int64),
            None,
            MPSTypeError,
            "of type int64 cannot be stored as an image: uint8, uint16",
        ),
        (np.zeros((1, 1, 1), np.bool_), None, MPSTypeError, "of type bool cannot be stored"),
        (np.zeros((1, 1, 1), np.complex64), FLOAT32, MPSTypeError, "of type complex64 cannot be stored as FLOAT32"),
        (
            np.full((1, 1, 1), "x"),
            None,
            MPSTypeError,
            "array must hold uint8, uint16 or floating point numbers, got <U1",
        ),
        (
            np.full((1, 1, 1), None),
            None,
            MPSTypeError,
            "array must hold uint8, uint16 or floating point numbers, got obj",
        ),
        (
            [[1.0], [1.0, 2.0]],
            None,
            MPSTypeError,
            "must be an array, or something that NumPy can view as one, got list",
        ),
        (
            np.zeros((1, 1, 1)),
            Format.NONE,
            MPSArgumentError,
            "channel_format must be UNORM8, UNORM16, FLOAT16 or FLOAT32",
        ),
        (np.zeros((1, 1, 1)), "float32", MPSArgumentError, "channel_format must be UNORM8.* got 'float32'"),
    ],
)
def test_arrays_that_are_no_images(array: Any, channel_format: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        MPSImage.from_numpy(CPU, array, channel_format)
    assert str(caught.value).startswith("MPSImage: ")
    assert all(part in str(caught.value) for part in message.split(".* "))


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float16, torch.float32])
def test_a_tensor_s_memory_is_shared(mtl: MTLDevice, dtype: torch.dtype) -> None:
    tensor = torch.zeros((2, 3, 4, 5), dtype=dtype, device=mtl.torch_device).contiguous(
        memory_format=torch.channels_last
    )
    image = MPSImage.from_tensor(mtl, tensor, copy=False)
    assert (image.number_of_images, image.feature_channels, image.height, image.width) == (2, 3, 4, 5)
    tensor[1, 2, 3, 4] = 9
    assert image.read_bytes(image_index=1)[3, 4, 2] == 9
    image.tensor()[0, 0, 0, 0] = 7
    assert tensor[0, 0, 0, 0].item() == 7
    assert MPSImage.from_tensor(mtl, image.tensor(), copy=False).tensor().data_ptr() == tensor.data_ptr()


def test_a_tensor_can_be_copied() -> None:
    tensor = torch.zeros(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    image = MPSImage.from_tensor(CPU, tensor, copy=True)
    tensor.fill_(1)
    assert not image.numpy().any()


@pytest.mark.parametrize(
    ("tensor", "channel_format"),
    [
        (torch.randn(2, 3, 4, 5), None),
        (torch.randn(3, 4, 5), None),
        (torch.randn(2, 3, 4, 5, dtype=torch.float64), None),
        (torch.randn(2, 3, 4, 5).to(torch.bfloat16), None),
        (torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), Format.FLOAT16),
        (torch.randn(1).expand(2, 3, 4, 5), None),
        (torch.randn(2, 3, 8, 5)[:, :, ::2], None),
    ],
)
def test_what_cannot_be_shared_is_copied(tensor: torch.Tensor, channel_format: Format | None) -> None:
    image = MPSImage.from_tensor(CPU, tensor, channel_format)
    assert image.feature_channel_format is (channel_format or FLOAT32)
    batch = tensor if tensor.dim() == 4 else tensor[None]
    expected = batch.to(image.tensor().dtype)
    assert torch.equal(image.tensor(), expected)
    if tensor.dim() == 4:
        with pytest.raises(
            MPSArgumentError, match=r"MPSImage: tensor cannot be shared: it must be torch.float.*got .*"
        ):
            MPSImage.from_tensor(CPU, tensor, channel_format, copy=False)


def test_images_of_one_channel_are_shared_whatever_the_order() -> None:
    tensor = torch.zeros(1, 2, 3)
    image = MPSImage.from_tensor(CPU, tensor, copy=False)
    tensor.fill_(1)
    assert image.numpy().sum() == 6


def test_parameters_and_inference_tensors() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 2, 2))
    assert MPSImage.from_tensor(CPU, parameter).numpy().sum() == 12
    with torch.inference_mode():
        frozen = torch.ones(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    image = MPSImage.from_tensor(CPU, frozen)
    image.write_bytes(np.zeros((2, 2, 3), np.float32))
    assert frozen.sum() == 12


class _Foreign:
    """A tensor of another library."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> object:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


def test_tensors_of_other_libraries_are_shared() -> None:
    tensor = torch.zeros(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    image = MPSImage.from_tensor(CPU, _Foreign(tensor), copy=False)
    tensor.fill_(1)
    assert image.numpy().sum() == 12
    assert MPSImage.from_tensor(CPU, image, copy=False).tensor().data_ptr() == tensor.data_ptr()


class _Broken(_Foreign):
    def __dlpack__(self, **options: Any) -> object:
        raise BufferError("not today")


@pytest.mark.parametrize(
    ("tensor", "kind", "message"),
    [
        (
            np.zeros((1, 1, 1)),
            MPSTypeError,
            "tensor must be a torch.Tensor, or .* got ndarray. For arrays, channels last",
        ),
        ([[[1.0]]], MPSTypeError, "tensor must be a torch.Tensor, or .* got list"),
        (_Broken(torch.zeros(1)), MPSTypeError, "tensor must be one that DLPack can hand over, got not today"),
        (
            torch.zeros(2, 3),
            MPSArgumentError,
            "tensor must be shaped [channels, height, width] or [images, channels, h",
        ),
        (torch.zeros(0, 3, 2, 2), MPSArgumentError, "no axis of size 0, got shape (0, 3, 2, 2)"),
        (torch.zeros(1, 2, 2, dtype=torch.int32), MPSTypeError, "tensor of type int32 cannot be stored as an image"),
        (torch.zeros(1, 2, 2).to_sparse(), MPSTypeError, "tensor must be a dense tensor of plain numbers"),
    ],
)
def test_tensors_that_are_no_images(tensor: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        MPSImage.from_tensor(CPU, tensor)
    assert str(caught.value).startswith("MPSImage: ")
    assert all(part in str(caught.value) for part in message.split(".* "))


def test_a_device_is_needed_for_arrays_and_tensors() -> None:
    for make in (MPSImage.from_numpy, MPSImage.from_tensor, MPSImageBatch.from_numpy, MPSImageBatch.from_tensor):
        with pytest.raises(MPSTypeError, match=r"device must be an MTLDevice, got str"):
            make("cpu", np.zeros((1, 1, 1, 1)))
