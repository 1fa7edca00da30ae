"""Vectors and matrices in buffers: spacing, offsets, read counts."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.core.vector import (
    MPSMatrix,
    MPSMatrixDescriptor,
    MPSTemporaryMatrix,
    MPSTemporaryVector,
    MPSVector,
    MPSVectorDescriptor,
)
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSDataType, MTLResourceOptions, MTLStorageMode

Encode = Callable[..., None]
CPU = mtl_device("cpu")
TYPES = {
    MPSDataType.FLOAT32: np.float32,
    MPSDataType.FLOAT16: np.float16,
    MPSDataType.INT8: np.int8,
    MPSDataType.INT16: np.int16,
    MPSDataType.INT32: np.int32,
    MPSDataType.INT64: np.int64,
    MPSDataType.UINT8: np.uint8,
    MPSDataType.UINT16: np.uint16,
    MPSDataType.UINT32: np.uint32,
    MPSDataType.UINT64: np.uint64,
    MPSDataType.COMPLEX_FLOAT32: np.complex64,
    MPSDataType.BOOL: np.bool_,
    MPSDataType.UNORM8: np.uint8,
}


@pytest.fixture
def command_buffer(queue: MTLCommandQueue) -> MTLCommandBuffer:
    return queue.command_buffer()


def finish(command_buffer: MTLCommandBuffer) -> None:
    command_buffer.commit()
    command_buffer.wait_until_completed()


# --- descriptors -----------------------------------------------------------------------------------------------------


def test_vector_descriptor_defaults() -> None:
    made = MPSVectorDescriptor(10)
    assert (made.length, made.vectors, made.data_type, made.vector_bytes) == (10, 1, MPSDataType.FLOAT32, 40)
    assert repr(made) == "MPSVectorDescriptor(length=10, FLOAT32, vectors=1, vector_bytes=40)"
    for name in ("vectors", "vector_bytes"):
        with pytest.raises(AttributeError):
            setattr(made, name, 80)


def test_matrix_descriptor_defaults() -> None:
    made = MPSMatrixDescriptor(2, 3, data_type=MPSDataType.FLOAT16)
    assert (made.rows, made.columns, made.matrices, made.row_bytes, made.matrix_bytes) == (2, 3, 1, 6, 12)
    assert MPSMatrixDescriptor(dimensions=2, columns=3, row_bytes=16, data_type=MPSDataType.FLOAT32).rows == 2
    made.row_bytes = 8
    assert (made.row_bytes, made.matrix_bytes) == (8, 12), "as it was made"
    made.rows, made.columns = 5, 4
    assert (made.matrix_bytes, repr(made)) == (
        12,
        "MPSMatrixDescriptor(rows=5, columns=4, row_bytes=8, FLOAT16, matrices=1, matrix_bytes=12)",
    )
    for name in ("matrices", "matrix_bytes"):
        with pytest.raises(AttributeError):
            setattr(made, name, 80)


def test_spacing_of_matrices_whose_rows_change() -> None:
    """One matrix has nothing behind it; several would overlap."""
    one, several = MPSMatrixDescriptor(2, 3), MPSMatrixDescriptor(2, 3, matrices=2)
    one.rows = 5
    matrix = MPSMatrix(device=mtl_device("cpu"), descriptor=one)
    assert (matrix.matrix_bytes, matrix.numpy().shape, matrix.data.length) == (24, (5, 3), 60)
    with pytest.raises(MPSArgumentError, match="matrix_bytes must be a multiple of 16, at least 32, got 24"):
        several.row_bytes = 16
    one.rows = 0
    with pytest.raises(MPSArgumentError, match="rows must be an integer of at least 1, got 0"):
        MPSMatrix(device=mtl_device("cpu"), descriptor=one)


def test_advised_spacing() -> None:
    """Floats to 16 bytes, integers to 4 elements, one element for one, none for none."""
    half, byte = MPSDataType.FLOAT16, MPSDataType.UINT8
    assert [MPSVectorDescriptor.vector_bytes(length, half) for length in (0, 1, 2, 8, 9)] == [0, 2, 16, 16, 32]
    assert MPSVectorDescriptor.vector_bytes(length=5, data_type=MPSDataType.FLOAT32) == 32
    assert [MPSMatrixDescriptor.row_bytes(columns, byte) for columns in (0, 1, 3, 5)] == [0, 1, 4, 8]
    assert MPSMatrixDescriptor.row_bytes(columns=3, data_type=MPSDataType.UINT16) == 8
    others = (MPSDataType.COMPLEX_FLOAT32, MPSDataType.BOOL, MPSDataType.UNORM8)
    assert [MPSMatrixDescriptor.row_bytes(3, kind) for kind in others] == [32, 4, 4]
    with pytest.raises(MPSArgumentError, match="MPSMatrixDescriptor: columns must be an integer of at least 0, got -1"):
        MPSMatrixDescriptor.row_bytes(-1, byte)


def test_copies_of_descriptors_are_their_own() -> None:
    vector, matrix = MPSVectorDescriptor(3, vectors=2, vector_bytes=16), MPSMatrixDescriptor(2, 3, 16, matrices=2)
    for made in (vector, matrix):
        twin: Any = copy.copy(made)
        assert (repr(twin), twin is made) == (repr(made), False)
        twin.data_type = MPSDataType.UINT8
        assert made.data_type is MPSDataType.FLOAT32


@in_one_test
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MPSVectorDescriptor(0), "MPSVectorDescriptor: length must be an integer of at least 1, got 0"),
        (lambda: MPSVectorDescriptor(2.0), "length must be an integer of at least 1, got 2.0"),
        (lambda: MPSVectorDescriptor(True), "length must be an integer of at least 1, got True"),
        (lambda: MPSVectorDescriptor(3, vectors=-1), "vectors must be an integer of at least 1, got -1"),
        (lambda: MPSVectorDescriptor(3, vector_bytes=8), "vector_bytes must be a multiple of 4, at least 12, got 8"),
        (lambda: MPSVectorDescriptor(3, vector_bytes=14), "vector_bytes must be a multiple of 4, at least 12, got 14"),
        (lambda: MPSVectorDescriptor(3, vector_bytes=16.0), "vector_bytes must be a multiple of 4"),
        (lambda: MPSVectorDescriptor(3, MPSDataType.COMPLEX_FLOAT16), "data_type must be one of FLOAT32, FLOAT16"),
        (lambda: MPSVectorDescriptor(3, MPSDataType.UNORM1), "got UNORM1"),
        (lambda: MPSVectorDescriptor(3, "float"), "got 'float'"),
        (lambda: MPSMatrixDescriptor(0, 3), "MPSMatrixDescriptor: rows must be an integer of at least 1, got 0"),
        (lambda: MPSMatrixDescriptor(2, -3), "columns must be an integer of at least 1, got -3"),
        (lambda: MPSMatrixDescriptor(2, 3, matrices=0), "matrices must be an integer of at least 1, got 0"),
        (lambda: MPSMatrixDescriptor(2, 3, 8), "row_bytes must be a multiple of 4, at least 12, got 8"),
        (
            lambda: MPSMatrixDescriptor(2, 3, matrix_bytes=12),
            "matrix_bytes must be a multiple of 12, at least 24, got 12",
        ),
        (
            lambda: MPSMatrixDescriptor(2, 3, matrix_bytes=28),
            "matrix_bytes must be a multiple of 12, at least 24, got 28",
        ),
        (lambda: setattr(MPSMatrixDescriptor(2, 3), "row_bytes", 4), "row_bytes must be a multiple of 4, at least 12"),
    ],
)
def test_descriptors_that_cannot_be(call: Any, message: str) -> None:
    with pytest.raises(MPSArgumentError) as caught:
        call()
    assert message in str(caught.value)


def test_integers_of_numpy_are_pythons() -> None:
    three, sixteen = np.int64(3), np.uint16(16)
    matrix = MPSMatrixDescriptor(three, three, sixteen, matrices=three, matrix_bytes=np.int32(64))
    vector = MPSVectorDescriptor(three, vectors=three, vector_bytes=sixteen)
    matrix.row_bytes = sixteen
    numbers = (matrix.rows, matrix.columns, matrix.row_bytes, matrix.matrices, matrix.matrix_bytes)
    numbers += (vector.length, vector.vectors, vector.vector_bytes)
    assert numbers == (3, 3, 16, 3, 64, 3, 3, 16)
    assert {type(number) for number in numbers} == {int}


def test_rows_have_one_name() -> None:
    for call in (lambda: MPSMatrixDescriptor(columns=3), lambda: MPSMatrixDescriptor(2, 3, dimensions=2)):
        with pytest.raises(MPSTypeError, match="rows or dimensions, its older name, must be given(, not both)?, got"):
            call()


def test_a_descriptor_that_was_changed_is_checked_again() -> None:
    made = MPSVectorDescriptor(3, vector_bytes=12)
    made.length = 4
    with pytest.raises(MPSArgumentError, match="vector_bytes must be a multiple of 4, at least 16, got 12"):
        MPSVector(device=CPU, descriptor=made)


# --- contents --------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("data_type", TYPES)
def test_a_new_vector_is_zero_and_shares_its_buffer(mtl: MTLDevice, data_type: MPSDataType) -> None:
    vector = MPSVector(device=mtl, descriptor=MPSVectorDescriptor(5, data_type))
    assert (vector.device, vector.length, vector.vectors, vector.data_type) == (mtl, 5, 1, data_type)
    assert not vector.data.is_allocated
    assert (vector.resource_size(), vector.offset) == (vector.data.length, 0)
    assert vector.data.length == 5 * np.dtype(TYPES[data_type]).itemsize
    assert (vector.numpy().dtype, vector.numpy().tolist()) == (TYPES[data_type], [0] * 5)
    vector.data.tensor(torch.uint8).fill_(1)
    assert vector.numpy().tobytes() == b"\1" * vector.data.length
    assert repr(vector) == f"<MPSVector 1x5 {data_type.name}>"


def test_vectors_lie_where_offset_and_spacing_say(mtl: MTLDevice) -> None:
    numbers = np.arange(20, dtype=np.float32)
    buffer = mtl.new_buffer(data=numbers)
    vector = MPSVector(buffer, MPSVectorDescriptor(3, vectors=2, vector_bytes=32), offset=8)
    assert (vector.vector_bytes, vector.offset, vector.data) == (32, 8, buffer)
    np.testing.assert_array_equal(vector.numpy(), [numbers[2:5], numbers[10:13]])
    vector.tensor()[1, 2] = -1
    assert buffer.tensor(torch.float32)[12] == -1
    vector.numpy()[...] = 7
    assert buffer.tensor(torch.float32)[2] == 2


def test_matrices_lie_where_offset_and_spacing_say(mtl: MTLDevice) -> None:
    numbers = np.arange(60, dtype=np.int16)
    made = MPSMatrixDescriptor(2, 3, 10, MPSDataType.INT16, matrices=2, matrix_bytes=40)
    matrix = MPSMatrix(mtl.new_buffer(data=numbers), made, offset=4)
    assert (matrix.rows, matrix.columns, matrix.matrices, matrix.row_bytes, matrix.matrix_bytes) == (2, 3, 2, 10, 40)
    expected = [[[2 + 20 * m + 5 * i + j for j in range(3)] for i in range(2)] for m in range(2)]
    np.testing.assert_array_equal(matrix.numpy(), expected)
    assert MPSMatrix(device=mtl, descriptor=MPSMatrixDescriptor(2, 3)).tensor().shape == (2, 3)


def test_a_buffer_of_exactly_the_bytes_needed_will_do() -> None:
    vector = MPSVector(CPU.new_buffer(length=8 + 32 + 12), MPSVectorDescriptor(3, vectors=2, vector_bytes=32), offset=8)
    assert vector.tensor().shape == (2, 3)
    with pytest.raises(MPSArgumentError) as caught:
        MPSVector(CPU.new_buffer(length=8 + 32 + 11), MPSVectorDescriptor(3, vectors=2, vector_bytes=32), offset=8)
    assert "MPSVector: buffer must hold 44 bytes from the offset on, got 51 bytes, offset 8" in str(caught.value)
    made = MPSMatrixDescriptor(2, 3, 16, matrices=2, matrix_bytes=48)
    assert MPSMatrix(CPU.new_buffer(length=48 + 16 + 12), made).tensor().shape == (2, 2, 3)
    with pytest.raises(MPSArgumentError, match="MPSMatrix: buffer must hold 76 bytes from the offset on, got 75 bytes"):
        MPSMatrix(CPU.new_buffer(length=75), made)


def test_a_descriptor_changed_later_leaves_its_vector_alone() -> None:
    made = MPSVectorDescriptor(3)
    vector = MPSVector(device=CPU, descriptor=made)
    made.length = 9
    assert (vector.length, vector.tensor().shape) == (3, (3,))


@in_one_test
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: MPSVector(), MPSTypeError, "MPSVector: descriptor must be an MPSVectorDescriptor, got NoneType"),
        (
            lambda: MPSVector(device=CPU, descriptor=MPSMatrixDescriptor(1, 1)),
            MPSTypeError,
            "MPSVector: descriptor must be an MPSVectorDescriptor, got MPSMatrixDescriptor",
        ),
        (
            lambda: MPSMatrix(device=CPU, descriptor=MPSVectorDescriptor(1)),
            MPSTypeError,
            "MPSMatrix: descriptor must be an MPSMatrixDescriptor, got MPSVectorDescriptor",
        ),
        (
            lambda: MPSVector(descriptor=MPSVectorDescriptor(1)),
            MPSTypeError,
            "buffer or device must be given, with a desc",
        ),
        (
            lambda: MPSVector("cpu", MPSVectorDescriptor(1)),  # type: ignore[arg-type]
            MPSTypeError,
            "buffer must be an MTLBuffer, got str. A device is given as device=",
        ),
        (
            lambda: MPSVector(device="cpu", descriptor=MPSVectorDescriptor(1)),
            MPSTypeError,
            "device must be an MTLDevice",
        ),
        (
            lambda: MPSVector(device=CPU, descriptor=MPSVectorDescriptor(2**50)),
            MPSArgumentError,
            "descriptor must be 1 to",
        ),
        (
            lambda: MPSVector(CPU.new_buffer(length=16), MPSVectorDescriptor(1), offset=2),
            MPSArgumentError,
            "MPSVector: offset must be a multiple of 4, the bytes of an element, got 2",
        ),
        (lambda: MPSVector(CPU.new_buffer(length=16), MPSVectorDescriptor(1), -4), MPSArgumentError, "got -4"),
        (lambda: MPSVector(CPU.new_buffer(length=16), MPSVectorDescriptor(1), 0.0), MPSArgumentError, "got 0.0"),
        (
            lambda: MPSVector(CPU.new_buffer(length=16), MPSVectorDescriptor(1), 16),
            MPSArgumentError,
            "must hold 4 bytes",
        ),
    ],
)
def test_vectors_that_cannot_be(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


def test_one_device(stranger: MTLDevice, command_buffer: MTLCommandBuffer, encode: Encode) -> None:
    with pytest.raises(MPSDeviceError, match="MPSVector: buffer must belong to the device"):
        MPSVector(CPU.new_buffer(length=4), MPSVectorDescriptor(1), device=stranger)
    vector = MPSVector(device=stranger, descriptor=MPSVectorDescriptor(1))
    with pytest.raises(MPSDeviceError, match="Kernel: source must belong to the device"):
        encode(command_buffer, vector)
    with pytest.raises(MPSDeviceError, match="MPSVector: command_buffer must belong to the device"):
        vector.synchronize(command_buffer)


def test_synchronize_is_recorded(command_buffer: MTLCommandBuffer) -> None:
    vector = MPSVector(device=command_buffer.device, descriptor=MPSVectorDescriptor(1))
    vector.label = "velocity"
    vector.synchronize(command_buffer)
    assert [label for label, _ in command_buffer.recording.execution.works] == ["synchronize of MPSVector 'velocity'"]


def test_private_buffers_are_the_device_s_own() -> None:
    buffer = CPU.new_buffer(length=4, options=MTLResourceOptions.STORAGE_MODE_PRIVATE)
    with pytest.raises(
        MPSArgumentError, match="MPSVector: numpy needs memory that the CPU may touch, got PRIVATE storage"
    ):
        MPSVector(buffer, MPSVectorDescriptor(1)).numpy()


# --- temporary ones --------------------------------------------------------------------------------------------------

MAKE: list[Callable[[MTLCommandBuffer], Any]] = [
    lambda command_buffer: MPSTemporaryVector(command_buffer, MPSVectorDescriptor(6)),
    lambda command_buffer: MPSTemporaryMatrix(command_buffer, matrix_descriptor=MPSMatrixDescriptor(2, 3)),
]


@pytest.mark.parametrize("make", MAKE)
def test_reads_are_counted(command_buffer: MTLCommandBuffer, encode: Encode, make: Any) -> None:
    temporary = make(command_buffer)
    assert (temporary.read_count, temporary.data.storage_mode, temporary.device) == (
        1,
        MTLStorageMode.PRIVATE,
        command_buffer.device,
    )
    temporary.read_count = 2
    held = weakref.ref(temporary.data)
    released: list[bool] = []
    for _ in range(2):
        encode(command_buffer, temporary, work=lambda: temporary.tensor().fill_(1))
        command_buffer.record("look", lambda: released.append(held() is None))
    with pytest.raises(
        MPSLifetimeError, match=r"Kernel: source must have reads left, got MPSTemporary.* with read_count 0"
    ):
        encode(command_buffer, temporary)
    with pytest.raises(MPSLifetimeError, match="read_count cannot change after it reached 0"):
        temporary.read_count = 1
    finish(command_buffer)
    assert released == [False, True]
    with pytest.raises(MPSLifetimeError, match="data is gone: the temporary object was read for the last time"):
        _ = temporary.data


@pytest.mark.parametrize("make", MAKE)
def test_one_command_buffer(
    command_buffer: MTLCommandBuffer, queue: MTLCommandQueue, encode: Encode, make: Any
) -> None:
    temporary = make(command_buffer)
    with pytest.raises(
        MPSLifetimeError, match="is temporary and must be used on the command buffer that it was made for"
    ):
        encode(queue.command_buffer(), temporary)
    with pytest.raises(MPSLifetimeError, match=r"MPSTemporary\w+: numpy is not offered"):
        temporary.numpy()
    finish(command_buffer)
    with pytest.raises(MPSLifetimeError, match="read_count is gone"):
        temporary.read_count = 2
    with pytest.raises(MPSLifetimeError, match="data is gone"):
        temporary.tensor()
    with pytest.raises(MTLCommandBufferError, match="command_buffer must not be committed yet"):
        make(command_buffer)


def test_what_temporary_ones_cannot_be(command_buffer: MTLCommandBuffer) -> None:
    with pytest.raises(
        MPSTypeError, match="MPSTemporaryVector: command_buffer must be a command buffer, got MTLDevice"
    ):
        MPSTemporaryVector(CPU, MPSVectorDescriptor(1))
    for wrong in (None, MPSMatrixDescriptor(1, 1)):
        with pytest.raises(MPSTypeError, match="MPSTemporaryVector: descriptor must be an MPSVectorDescriptor, got"):
            MPSTemporaryVector(command_buffer, wrong)
    with pytest.raises(MPSArgumentError, match="MPSTemporaryMatrix: descriptor must be 1 to"):
        MPSTemporaryMatrix(command_buffer, MPSMatrixDescriptor(2**30, 2**30))


def test_prefetch_is_checked(command_buffer: MTLCommandBuffer) -> None:
    vector, matrix = MPSVectorDescriptor(3), MPSMatrixDescriptor(2, 3)
    MPSTemporaryVector.prefetch_storage(command_buffer, [vector])
    MPSTemporaryMatrix.prefetch_storage(command_buffer, [matrix])
    vector.length = matrix.rows = 0
    with pytest.raises(MPSArgumentError, match="length must be"):
        MPSTemporaryVector.prefetch_storage(command_buffer, [vector])
    with pytest.raises(MPSArgumentError, match="rows must be"):
        MPSTemporaryMatrix.prefetch_storage(command_buffer, [matrix])


@pytest.mark.parametrize("make", MAKE)
def test_they_are_freed_without_the_garbage_collector(command_buffer: MTLCommandBuffer, make: Any) -> None:
    gc.disable()
    try:
        temporary = make(command_buffer)
        held = weakref.ref(temporary)
        del temporary
        assert held() is None
    finally:
        gc.enable()
