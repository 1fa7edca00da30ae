"""What counts as an array of numbers: raw bytes, views, integers, and what would be lost and is refused."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.core.arrays import elements, numbers

VALUES = np.array([1.5, -2.0, 0.25], np.float32)
CPU = mps.mtl_device("cpu")

SAME: dict[str, Any] = {
    "array": VALUES,
    "list": [1.5, -2.0, 0.25],
    "doubles": VALUES.astype(np.float64),
    "big-endian": VALUES.astype(">f4"),
    "strided": np.repeat(VALUES, 2)[::2],
    "bytes": VALUES.tobytes(),
    "bytearray": bytearray(VALUES.tobytes()),
    "view of bytes": memoryview(VALUES.tobytes()),
    "view of floats": memoryview(VALUES),
    "view of doubles": memoryview(VALUES.astype(np.float64)),
    "array of doubles": array.array("d", VALUES.tolist()),
    "buffer": CPU.new_buffer(data=VALUES),
    "tensor": torch.tensor(VALUES),
    "tensor with a gradient": torch.tensor(VALUES, requires_grad=True),
    "bfloat16": torch.tensor(VALUES).to(torch.bfloat16),
}
LOST: dict[str, tuple[Any, type[Exception], str]] = {
    "too large": ([1.0, 1e300], mps.MPSArgumentError, "must be numbers that fit float32, got 1e\\+300"),
    "too large, negative": (np.array([-1e39]), mps.MPSArgumentError, "must be numbers that fit float32"),
    "complex": (np.array([1 + 2j]), mps.MPSTypeError, "must be .*, got an array of complex128"),
    "complex list": ([1j], mps.MPSTypeError, "must be .*, got list"),
    "complex tensor": (torch.tensor([1j]), mps.MPSTypeError, "must be .*, got an array of complex64"),
    "mask": (np.ma.masked_array([1.0, 2.0], [True, False]), mps.MPSTypeError, "must have no mask"),
    "text": (["1.5"], mps.MPSTypeError, "must be .*, got list"),
    "objects": (np.array([None, 1.0]), mps.MPSTypeError, "must be .*, got an array of object"),
    "dates": (np.array(["2020-01-01"], "datetime64[D]"), mps.MPSTypeError, "must be .*, got an array of datetime64"),
    "uneven": ([[1.0], [1.0, 2.0]], mps.MPSTypeError, "must be .*, got list"),
    "sparse": (torch.ones(2, 2).to_sparse(), mps.MPSTypeError, "must be .*, got Tensor"),
    "part of a number": (b"12345", mps.MPSArgumentError, "must be whole float32 numbers, got 5 bytes"),
    "nothing": (None, mps.MPSTypeError, "must be .*, got NoneType"),
}


@in_one_test
@pytest.mark.parametrize(
    "read", [lambda data: numbers("Who", "data", data), lambda d: elements("Who", "data", d, np.float32)]
)
@pytest.mark.parametrize("kind", SAME)
def test_the_same_numbers(read: Any, kind: str) -> None:
    found = read(SAME[kind])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, VALUES)


@in_one_test
@pytest.mark.parametrize(
    "read", [lambda data: numbers("Who", "data", data), lambda d: elements("Who", "data", d, np.float32)]
)
@pytest.mark.parametrize("kind", LOST)
def test_what_would_be_lost(read: Any, kind: str) -> None:
    data, error, message = LOST[kind]
    with pytest.raises(error, match=f"^Who: data {message}"):
        read(data)


def test_infinities_and_nan_are_numbers() -> None:
    given = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(numbers("Who", "data", given), given.astype(np.float32))


def test_arrays_of_uint8_are_bytes_of_a_data_source_and_numbers_elsewhere() -> None:
    raw = np.frombuffer(VALUES.tobytes(), np.uint8)
    np.testing.assert_array_equal(elements("Who", "data", raw, np.float32), VALUES)
    np.testing.assert_array_equal(numbers("Who", "data", raw), raw.astype(np.float32))
    np.testing.assert_array_equal(elements("Who", "data", raw, np.uint8), raw)


@pytest.mark.parametrize(
    ("data", "dtype", "error"),
    [
        (np.array([300], np.uint16), np.uint8, mps.MPSArgumentError),
        ([0.5], np.uint8, mps.MPSTypeError),
        ([70000.0], np.float16, mps.MPSArgumentError),
    ],
)
def test_elements_that_do_not_fit(data: Any, dtype: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="must be numbers that fit"):
        elements("Who", "data", data, dtype)


# --- everywhere -------------------------------------------------------------------------------------------------------

PRELU = mps.MPSCNNNeuronType.PRELU
TAKERS: dict[str, Any] = {
    "neuron": lambda data: mps.MPSNNNeuronDescriptor(PRELU, data=data),
    "fill values": lambda data: mps.MPSNNPad(CPU, fill_value_array=data),
    "anchors": lambda data: _anchors(data),
    "labels": lambda data: mps.MPSCNNLossDataDescriptor(data),
    "labels of a batch": lambda data: mps.MPSCNNLossLabels.batch(
        CPU, np.atleast_2d(data) if type(data) is list else data[None]
    ),
    "weights": lambda data: mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 2), data),
    "gamma": lambda data: mps.ArrayBatchNormalizationDataSource(2, gamma=data),
    "image": lambda data: mps.MPSImage.from_numpy(CPU, np.atleast_3d(data) if type(data) is list else data[None, None]),
}


def _anchors(data: Any) -> Any:
    kind = mps.MPSCNNLossType.MEAN_SQUARED_ERROR
    return mps.MPSCNNYOLOLossDescriptor(kind, kind, kind, kind, mps.MPSCNNReductionType.SUM, data)


@in_one_test
@pytest.mark.parametrize(
    "data",
    [[1.0, 1e300], np.array([1.0, 2 + 2j]), np.ma.masked_array([1.0, 2.0], [True, False])],
    ids=["large", "complex", "mask"],
)
@pytest.mark.parametrize("taker", TAKERS)
def test_nothing_is_lost_anywhere(taker: str, data: Any) -> None:
    TAKERS[taker](np.array([1.0, 2.0]))
    with pytest.raises(mps.MPSError):
        TAKERS[taker](data)


def test_a_tensor_of_doubles_that_no_image_of_float32_can_hold() -> None:
    tensor = torch.tensor([[[1e300]]], dtype=torch.float64)
    with pytest.raises(mps.MPSArgumentError, match="tensor must hold numbers that fit float32, got 1e\\+300"):
        mps.MPSImage.from_tensor(CPU, tensor, mps.MPSImageFeatureChannelFormat.FLOAT32)
    image = mps.MPSImage.from_tensor(CPU, tensor, mps.MPSImageFeatureChannelFormat.FLOAT16)
    assert image.numpy().item() == np.inf


def test_bytes_of_a_masked_array_are_refused() -> None:
    image = mps.MPSImage.from_numpy(CPU, np.zeros((1, 1, 2), np.float32))
    with pytest.raises(mps.MPSTypeError, match="data_bytes must have no mask"):
        image.write_bytes(np.ma.masked_array(np.ones(2, np.float32), [True, False]))


READERS: dict[str, Callable[[mps.MPSImage], object]] = {
    "numbers": lambda image: numbers("Who", "data", image),
    "elements": lambda image: elements("Who", "data", image, np.float32),
    "labels": lambda image: mps.MPSCNNLossLabels.batch(CPU, image),
    "closeness": lambda image: mps.debug.assert_images_close(np.ones((8, 8, 3)), image, 1.0),
    "from_numpy": lambda image: mps.MPSImage.from_numpy(CPU, image),
    "write_bytes": lambda image: mps.MPSImage.from_numpy(CPU, np.ones((8, 8, 3), np.float32)).write_bytes(image),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("allocator", "rule"),
    [(mps.MPSImage.default_allocator(), "is not committed has yet to write"), (None, "cannot be reached by the CPU")],
)
def test_an_image_that_cannot_be_read_says_so_itself(reader: str, allocator: Any, rule: str) -> None:
    neuron, command_buffer = mps.MPSCNNNeuronReLU(CPU), CPU.new_command_queue().command_buffer()
    if allocator is not None:
        neuron.destination_image_allocator = allocator
    image = neuron.encode(command_buffer, mps.MPSImage.from_numpy(CPU, np.ones((8, 8, 3), np.float32)))
    with pytest.raises(mps.MPSError, match=rule):
        READERS[reader](image)
    command_buffer.commit()
