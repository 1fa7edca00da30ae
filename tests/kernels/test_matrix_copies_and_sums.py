"""MPSMatrixCopy and MPSMatrixSum: their lists of matrices, offsets and permutations on the device, what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from in_one_test import in_one_test
from matrices import UNTOUCHED, matrix, run, vector
from measured import note_error
from oracles import matrix as oracle
from oracles import neuron as neuron_oracle

Type, Neuron = mps.MPSDataType, mps.MPSCNNNeuronType
CPU = torch.device("cpu")
S = np.arange(1.0, 13.0).reshape(3, 4)
Offsets = mps.MPSMatrixCopyOffsets
FLAGS = list(itertools.product((False, True), repeat=2))


@pytest.fixture
def bench() -> Bench:
    return Bench.on(CPU)


def words(bench: Bench, *numbers: int) -> mps.MPSVector:
    return vector(bench, np.array(numbers), Type.UINT32)


# --- copies -----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("where", ["descriptor", "device", "orders"])
@pytest.mark.parametrize(
    "data_type", [Type.FLOAT32, Type.FLOAT16, Type.UINT32, Type.INT64, Type.COMPLEX_FLOAT32, Type.BOOL]
)
def test_copies_equal_loops(data_type: Any, where: str, flags: tuple[bool, bool], device: torch.device) -> None:
    bench, offsets, size = Bench.on(device), (1, 2, 3, 1), (2, 3)
    source, target = (
        matrix(bench, np.arange(1, 37).reshape(6, 6), data_type),
        matrix(bench, np.zeros((7, 8)), data_type),
    )
    kernel = mps.MPSMatrixCopy(bench.device, *size, *flags)
    orders: list[list[int] | None] = [None, None]
    more: dict[str, Any] = {}
    descriptor = mps.MPSMatrixCopyDescriptor(source, target, Offsets(*offsets))
    if where == "device":
        given = words(bench, 9, 9, 9, 9, *offsets)
        descriptor = mps.MPSMatrixCopyDescriptor([source], [target], given, 16)
    if where == "orders":
        orders = [[2, 0, 1, 99], [1, 3, 0]]
        more = {
            "row_permute_indices": words(bench, 5, *orders[0]), "row_permute_offset": 1,
            "column_permute_indices": words(bench, *orders[1]), "column_permute_offset": 0,
        }  # fmt: skip
    expected = oracle.copied(source.numpy(), target.numpy(), size, offsets, flags, *orders)
    run(bench, kernel.encode, descriptor, **more)
    np.testing.assert_array_equal(target.numpy(), expected)
    if data_type is Type.FLOAT32:
        note_error(type(kernel), "forward", device, target.numpy(), expected)


@pytest.mark.parametrize(
    ("flags", "offsets", "order", "expected"),
    [
        ((False, False), (0, 1, 1, 0), None, [[0, 0, 0], [2, 3, 0], [6, 7, 0]]),
        ((True, False), (0, 1, 1, 0), None, [[0, 0, 0], [5, 9, 0], [6, 10, 0]]),
        ((False, False), (0, 1, 0, 0), (2, 0), [[6, 7, 0], [0, 0, 0], [2, 3, 0]]),
        ((False, True), (0, 1, 0, 0), (1, 2), [[0, 0, 0], [2, 6, 0], [3, 7, 0]]),
    ],
)
def test_worked_copies(bench: Bench, flags: Any, offsets: Any, order: Any, expected: Any) -> None:
    target = matrix(bench, np.zeros((3, 3)))
    descriptor = mps.MPSMatrixCopyDescriptor.descriptor(matrix(bench, S), target, Offsets(*offsets))
    indices = None if order is None else words(bench, *order)
    run(bench, mps.MPSMatrixCopy(bench.device, 2, 2, *flags).encode, descriptor, indices)
    assert target.numpy().tolist() == expected


def test_a_permutation_names_rows_of_the_destination(bench: Bench) -> None:
    """A cycle, which is not its own inverse, tells the two readings apart."""
    target = matrix(bench, np.zeros((3, 4)))
    descriptor = mps.MPSMatrixCopyDescriptor(matrix(bench, S), target)
    run(bench, mps.MPSMatrixCopy(bench.device, 3, 4, False, False).encode, descriptor, words(bench, 1, 2, 0))
    np.testing.assert_array_equal(target.numpy(), S[[2, 0, 1]])


def test_several_copies_and_one_within_a_matrix(bench: Bench) -> None:
    one, two = matrix(bench, S), matrix(bench, -S)
    target = matrix(bench, np.full((4, 4), UNTOUCHED))
    descriptor = mps.MPSMatrixCopyDescriptor(bench.device, 3)
    descriptor.set_copy_operation_at_index(0, one, target, Offsets(1, 0, 0, 0))
    descriptor.set_copy_operation_at_index(1, two, target, Offsets(0, 1, 2, 2))
    descriptor.set_copy_operation_at_index(2, one, one, Offsets(0, 0, 0, 1))
    run(bench, mps.MPSMatrixCopy(bench.device, 2, 2, False, False).encode, descriptor)
    expected = np.full((4, 4), float(UNTOUCHED))
    expected[:2, :2], expected[2:, 2:] = S[1:, :2], -S[:2, 1:3]
    np.testing.assert_array_equal(target.numpy(), expected)
    moved = S.copy()
    moved[:2, 1:3] = S[:2, :2]
    np.testing.assert_array_equal(one.numpy(), moved)


def test_temporary_matrices_give_a_read_for_each_copy(bench: Bench) -> None:
    command_buffer, target = bench.command_buffer(), matrix(bench, S)
    source = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(3, 4))
    kernel = mps.MPSMatrixCopy(bench.device, 1, 1, False, False)
    descriptor = mps.MPSMatrixCopyDescriptor([source, source], [target, matrix(bench, S)], None, 0)
    with pytest.raises(mps.MPSLifetimeError, match=r"source_matrices\[0\] must have 2 reads left"):
        kernel.encode(command_buffer, descriptor)
    source.read_count = 3
    kernel.encode(command_buffer, descriptor)
    assert source.read_count == 1


def test_copies_that_do_not_fit(bench: Bench) -> None:
    kernel, source, target = mps.MPSMatrixCopy(bench.device, 2, 2, False, True), matrix(bench, S), matrix(bench, S)
    one = mps.MPSMatrixCopyDescriptor
    several = matrix(bench, np.zeros((2, 3, 4)))
    cases: list[tuple[Any, str]] = [
        (one(source, target, Offsets(2, 0, 0, 0)), r"source_matrices\[0\] must have 4 rows of 2 elements"),
        (one(source, target, Offsets(0, 0, 3, 0)), r"destination_matrices\[0\] must have 2 rows of 5 elements"),
        (one(source, matrix(bench, S, Type.FLOAT16)), r"destination_matrices\[0\] must hold FLOAT32"),
        (one(several, target), r"source_matrices\[0\] must be a single matrix, got 2"),
        (one(source, several), r"destination_matrices\[0\] must be a single matrix, got 2"),
        (one(bench.device, 2), "copy_descriptor must have copy 0 set. Call set_copy_operation_at_index"),
        (one(bench.device, 10**30), "copy_descriptor must have copy 0 set. Call set_copy_operation_at_index"),
        (source, "copy_descriptor must be an MPSMatrixCopyDescriptor, got MPSMatrix"),
    ]
    for descriptor, message in cases:
        with pytest.raises(mps.MPSError, match=f"^MPSMatrixCopy: {message}"):
            kernel.encode(bench.command_buffer(), descriptor)
    with pytest.raises(mps.MPSArgumentError, match="row_permute_indices must hold 3 indices, 2 from index 1 on, got 2"):
        kernel.encode(bench.command_buffer(), one(source, target), words(bench, 0, 1), 1)
    with pytest.raises(mps.MPSArgumentError, match="column_permute_indices must hold UINT32, got FLOAT32"):
        kernel.encode(bench.command_buffer(), one(source, target), None, 0, vector(bench, [0.0, 1.0]))
    with pytest.raises(mps.MPSArgumentError, match="row_permute_offset must be an integer of at least 0, got -1"):
        kernel.encode(bench.command_buffer(), one(source, target), words(bench, 0, 1), -1)


@in_one_test
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, d: d(b.device, 0), "count must be an integer of at least 1, got 0"),
        (lambda b, d: d("cpu", count=1), "device must be an MTLDevice"),
        (lambda b, d: d(None, None), "source_matrix must be an MPSMatrix, got NoneType"),
        (
            lambda b, d: d(matrix(b, S), matrix(b, S), (0, 0, 0, 0)),
            "offsets must be an MPSMatrixCopyOffsets, got tuple",
        ),
        (lambda b, d: d([matrix(b, S)], [], None, 0), "destination_matrices must be as many as source_matrices, 1"),
        (
            lambda b, d: d([], [], None, 0),
            "destination_matrices must be as many as source_matrices, 0, and at least one",
        ),
        (lambda b, d: d([matrix(b, S)], [matrix(b, S)], words(b, 1, 2, 3), 0), "offset_vector must hold 4 numbers"),
        (
            lambda b, d: d([matrix(b, S)], [matrix(b, S)], words(b, *range(8)), 8),
            "offset must be a multiple of 16 bytes",
        ),
        (lambda b, d: d(b.device, 1).set_copy_operation_at_index(1, None, None), "index must be an integer of 0 to 0"),
    ],
)
def test_descriptors_that_are_refused(bench: Bench, make: Any, message: str) -> None:
    with pytest.raises(mps.MPSError, match=f"^MPSMatrixCopyDescriptor: {message}"):
        make(bench, mps.MPSMatrixCopyDescriptor)


# --- sums -------------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize("data_type", [Type.FLOAT32, Type.FLOAT16])
def test_sums_equal_loops(data_type: Any, has_offsets: bool, transpose: bool, device: torch.device) -> None:
    bench, rng = Bench.on(device), np.random.default_rng(1)
    rows, columns, count = 2, 3, 3
    arrays = [rng.normal(size=(4 + index, 5)) for index in range(count)]
    sources = [matrix(bench, each, data_type) for each in arrays]
    scales, bias = rng.normal(size=2 + count).astype(np.float32), rng.normal(size=columns).astype(np.float32)
    offsets = [(9, 9), (9, 9), (0, 1), (1, 0), (4, 3)] if has_offsets else [(0, 0)] * 5
    size = (columns, rows) if transpose else (rows, columns)
    bias = bias[: size[1]]
    result = matrix(bench, np.full((5, 6), UNTOUCHED), data_type)
    kernel = mps.MPSMatrixSum(bench.device, count, rows, columns, transpose)
    kernel.result_matrix_origin = mps.MTLOrigin(1, 2, 0)
    kernel.set_neuron_type(Neuron.TANH, 2.0, 0.5)
    given = words(bench, *itertools.chain(*offsets)) if has_offsets else None
    run(bench, kernel.encode, sources, result, vector(bench, scales), given, vector(bench, bias), 2)
    total = oracle.total([each.numpy() for each in sources], rows, columns, scales[2:], offsets[2:])
    total = total.T if transpose else total
    expected = np.full((5, 6), float(UNTOUCHED))
    activated = neuron_oracle.forward((total + bias)[:, :, None, None], int(Neuron.TANH), 2.0, 0.5, 0.0)
    expected[1 : 1 + size[0], 2 : 2 + size[1]] = activated[:, :, 0, 0]
    close = 1e-5 if data_type is Type.FLOAT32 else 2e-3
    np.testing.assert_allclose(result.numpy().astype(np.float64), expected, rtol=0, atol=close)
    if data_type is Type.FLOAT32:
        note_error(type(kernel), "forward", device, result.numpy(), expected)


def test_a_worked_sum(bench: Bench) -> None:
    one = matrix(bench, [[1, 2, 3], [4, 5, 6]])
    two = matrix(bench, [[0, 0, 0, 0], [0, 1, 2, 3], [0, 4, 5, -60]])
    kernel, result = mps.MPSMatrixSum(bench.device, 2, 2, 3, True), matrix(bench, np.zeros((3, 2)))
    kernel.set_neuron_type(Neuron.RELU, 0.0)
    vectors = vector(bench, [9, 2, -1]), words(bench, 5, 5, 0, 0, 1, 1), vector(bench, [1, -5])
    run(bench, kernel.encode, [one, two], result, *vectors, 1)
    assert result.numpy().tolist() == [[2, 0], [3, 0], [4, 67]]


def test_a_sum_without_vectors_and_of_one(bench: Bench) -> None:
    result = matrix(bench, np.zeros((3, 4)))
    run(bench, mps.MPSMatrixSum(bench.device, 1, 3, 4, False).encode, [matrix(bench, S)], result)
    np.testing.assert_array_equal(result.numpy(), S)
    run(bench, mps.MPSMatrixSum(bench.device, 2, 3, 4, False).encode, [result, result], result)
    np.testing.assert_array_equal(result.numpy(), 2 * S)


def test_sums_that_do_not_fit(bench: Bench) -> None:
    kernel, result = mps.MPSMatrixSum(bench.device, 2, 3, 4, True), matrix(bench, np.zeros((4, 3)))
    source = matrix(bench, S)
    ones, pairs, bias = vector(bench, np.ones(2)), words(bench, *[0] * 4), vector(bench, np.ones(3))
    cases: list[tuple[tuple[Any, ...], str]] = [
        (([source], result), "source_matrices must be 2 matrices, as count says, got 1"),
        ((source, result), "source_matrices must be a sequence of MPSMatrix, got MPSMatrix"),
        (
            ([source, matrix(bench, S[:2])], result),
            r"source_matrices\[1\] must have 3 rows of 4 elements, got 2 rows of 4",
        ),
        (([source, None], result), r"source_matrices\[1\] is needed"),
        (
            ([source, matrix(bench, np.zeros((2, 3, 4)))], result),
            r"source_matrices\[1\] must be a single matrix, got 2",
        ),
        (([source, source], source), "result_matrix must have 4 rows of 3 elements, got 3 rows of 4"),
        (([source, source], result, ones, None, None, 1), "scale_vector must hold 2 elements from element 1 on, got 1"),
        (([source, source], result, ones, pairs, bias, -1), "start_index must be an integer of at least 0, got -1"),
        (([source, source], result, ones, ones), "offset_vector must hold UINT32, got FLOAT32"),
        (([source, source], result, None, words(bench, 0, 0)), "offset_vector must hold 4 elements, got 2"),
        (([source, source], result, None, None, ones), "bias_vector must hold 3 elements, got 2"),
    ]
    for operands, message in cases:
        with pytest.raises(mps.MPSError, match=f"^MPSMatrixSum: {message}"):
            kernel.encode(bench.command_buffer(), *operands)
    with pytest.raises(mps.MPSArgumentError, match="MPSMatrixSum: neuron_type must not be PRELU"):
        kernel.set_neuron_type(Neuron.PRELU, 0.5)
    kernel.set_neuron_type(Neuron.LINEAR, 2.0, 3.0, 4.0)
    found = kernel.neuron_parameter_a, kernel.neuron_parameter_b, kernel.neuron_parameter_c
    assert (kernel.neuron_type(), found) == (Neuron.LINEAR, (2.0, 3.0, 4.0))
