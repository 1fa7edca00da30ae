"""Kernels over matrices: their defaults, types, statuses and neurons, and what each refuses by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from in_one_test import in_one_test
from matrices import matrix, run, vector

Type, Neuron, Status = mps.MPSDataType, mps.MPSCNNNeuronType, mps.MPSMatrixDecompositionStatus
CPU = torch.device("cpu")
DEVICE = mps.mtl_device("cpu")
ALL, ORIGIN = 2**64 - 1, mps.MTLOrigin(0, 0, 0)


@pytest.fixture
def bench() -> Bench:
    return Bench.on(CPU)


DEFAULTS: dict[str, dict[str, Any]] = {
    "MPSMatrixSoftMax": {"source_rows": ALL, "source_columns": ALL, "source_matrix_origin": ORIGIN},
    "MPSMatrixLogSoftMaxGradient": {"source_rows": ALL, "source_columns": ALL, "primary_source_matrix_origin": ORIGIN},
    "MPSMatrixNeuron": {"alpha": 1.0, "source_number_of_feature_vectors": ALL, "source_input_feature_channels": ALL},
    "MPSMatrixNeuronGradient": {"alpha": 1.0, "batch_start": 0, "batch_size": ALL, "result_matrix_origin": ORIGIN},
    "MPSMatrixFullyConnected": {"alpha": 1.0, "source_output_feature_channels": ALL, "batch_size": ALL},
    "MPSMatrixFullyConnectedGradient": {"alpha": 1.0, "source_output_feature_channels": ALL, "batch_start": 0},
    "MPSMatrixBatchNormalization": {"epsilon": float(np.finfo(np.float32).tiny), "compute_statistics": False},
    "MPSMatrixBatchNormalizationGradient": {"epsilon": float(np.finfo(np.float32).tiny), "batch_size": ALL},
}


@in_one_test
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    kernel = getattr(mps, name)(DEVICE)
    assert {key: getattr(kernel, key) for key in DEFAULTS[name]} == DEFAULTS[name]
    if hasattr(kernel, "neuron_type"):
        parameters = kernel.neuron_parameter_a(), kernel.neuron_parameter_b(), kernel.neuron_parameter_c()
        assert (kernel.neuron_type(), parameters) == (Neuron.NONE, (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("source_rows", 0), ("source_columns", 1.5), ("batch_start", -1), ("batch_size", 0), ("batch_size", True)],
)
def test_sizes_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(mps.MPSArgumentError, match=f"^MPSMatrixSoftMax: {name} must be an integer of at least"):
        setattr(mps.MPSMatrixSoftMax(DEVICE), name, value)


# --- products ---------------------------------------------------------------------------------------------------------

PAIRS = {
    (Type.FLOAT32, Type.FLOAT32), (Type.FLOAT16, Type.FLOAT16), (Type.FLOAT16, Type.FLOAT32),
    (Type.INT8, Type.FLOAT16), (Type.INT8, Type.FLOAT32), (Type.INT16, Type.FLOAT32),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("stored", [Type.FLOAT32, Type.FLOAT16, Type.INT32])
@pytest.mark.parametrize("factor", [Type.FLOAT32, Type.FLOAT16, Type.INT8, Type.INT16, Type.UINT8])
def test_types_of_products(bench: Bench, factor: Any, stored: Any) -> None:
    a, result = matrix(bench, [[1, 2], [3, -4]], factor), matrix(bench, np.zeros((2, 2)), stored)
    x, y = vector(bench, [5, -6], factor), vector(bench, [0, 0], stored)
    product = mps.MPSMatrixMultiplication(bench.device, 2, 2, 2)
    of_vector = mps.MPSMatrixVectorMultiplication(bench.device, 2, 2)
    if (factor, stored) in PAIRS:
        run(bench, product.encode, a, a, result)
        run(bench, of_vector.encode, a, x, y)
        assert (result.numpy().tolist(), y.numpy().tolist()) == ([[7, -6], [-9, 22]], [-7, 39])
        return
    for kernel, operands in ((product, (a, a, result)), (of_vector, (a, x, y))):
        with pytest.raises(mps.MPSArgumentError, match="must hold "):
            kernel.encode(bench.command_buffer(), *operands)


def test_factors_are_of_one_type(bench: Bench) -> None:
    a, b = matrix(bench, np.eye(2)), matrix(bench, np.eye(2), Type.FLOAT16)
    kernel = mps.MPSMatrixMultiplication(bench.device, 2, 2, 2)
    with pytest.raises(mps.MPSArgumentError, match="right_matrix must hold FLOAT32, as left_matrix does, got FLOAT16"):
        kernel.encode(bench.command_buffer(), a, b, a)


def test_a_result_is_not_read_without_beta(bench: Bench) -> None:
    result = matrix(bench, np.full((2, 2), np.nan))
    run(bench, mps.MPSMatrixMultiplication(bench.device, 2, 2, 2).encode, *[matrix(bench, np.eye(2))] * 2, result)
    np.testing.assert_array_equal(result.numpy(), np.eye(2))


def test_a_result_is_read_with_beta(bench: Bench) -> None:
    """So what nothing has written is refused."""
    one, never = matrix(bench, np.eye(2)), mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(2, 2))
    dropped = bench.command_buffer()
    mps.MPSMatrixSoftMax(bench.device).encode(dropped, one, never)
    del dropped
    kernel = mps.MPSMatrixMultiplication(bench.device, 2, 2, 2, beta=1.0)
    with pytest.raises(mps.MTLCommandBufferError, match="cannot read what a command buffer that was dropped"):
        kernel.encode(bench.command_buffer(), one, one, never)
    mps.MPSMatrixMultiplication(bench.device, 2, 2, 2).encode(bench.command_buffer(), one, one, never)


def test_a_result_may_be_a_factor(bench: Bench) -> None:
    a = np.arange(9.0).reshape(3, 3)
    one = matrix(bench, a)
    run(bench, mps.MPSMatrixMultiplication(bench.device, 3, 3, 3).encode, one, one, one)
    np.testing.assert_array_equal(one.numpy(), a @ a)


def test_a_tile_of_a_larger_product(bench: Bench) -> None:
    """The header's origins, as x the row and y the column of what is stored."""
    a, b = matrix(bench, np.arange(1.0, 13.0).reshape(3, 4)), matrix(bench, np.arange(1.0, 13.0).reshape(4, 3) / 2)
    c = matrix(bench, np.full((3, 4), 10.0))
    kernel = mps.MPSMatrixMultiplication(bench.device, False, False, 2, 2, 2, 2.0, 0.5)
    kernel.left_matrix_origin, kernel.right_matrix_origin = mps.MTLOrigin(1, 2, 0), mps.MTLOrigin(2, 1, 0)
    kernel.result_matrix_origin = mps.MTLOrigin(1, 1, 0)
    run(bench, kernel.encode, a, b, c)
    assert c.numpy().tolist() == [[10, 10, 10, 10], [10, 149, 164, 10], [10, 225, 248, 10]]


def test_a_product_of_none_is_a_convention() -> None:
    """Which copies and archives keep outside of its block, where others refuse it."""
    with mps.conventions(matrix_product_batches="first"):
        kernel = mps.MPSMatrixMultiplication(DEVICE, 1, 1, 1, beta=2.0)
        with pytest.raises(mps.MPSArgumentError, match="batch_size must be an integer of at least 0, got -1"):
            kernel.batch_size = -1
    kernel.batch_size = 0
    archive = mps.MPSKeyedArchiver.archived_data(kernel)
    again = mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSMatrixMultiplication, archive, DEVICE)
    for each in (kernel, kernel.copy(), again):
        factor, result = matrix(Bench(DEVICE), [[3.0]]), matrix(Bench(DEVICE), [[5.0]])
        run(Bench(DEVICE), each.encode, factor, factor, result)
        assert (each.batch_size, result.numpy().tolist()) == (0, [[5.0]])
    with pytest.raises(mps.MPSArgumentError, match="batch_size must be an integer of at least 1, got 0"):
        mps.MPSMatrixMultiplication(DEVICE, 1, 1, 1).batch_size = 0


@pytest.mark.parametrize("start", [1, 2, 9])
def test_scales_behind_the_last_are_missing_by_a_convention(start: int) -> None:
    """Not a number times nothing is nothing."""
    with mps.conventions(matrix_sum_scales="nothing"):
        kernel = mps.MPSMatrixSum(DEVICE, 2, 1, 1, False)
    bench, result = Bench(DEVICE), matrix(Bench(DEVICE), [[5.0]])
    sources = [matrix(bench, [[2.0]]), matrix(bench, [[np.nan]])]
    run(bench, kernel.encode, sources, result, vector(bench, [7.0, 3.0]), start_index=start)
    assert result.numpy().tolist() == [[6.0 if start == 1 else 0.0]]


@in_one_test
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mps.MPSMatrixMultiplication(DEVICE, 0, 1, 1), "result_rows must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixMultiplication(DEVICE, 1, 1, 1, alpha=np.nan), "alpha must be a number, got nan"),
        (lambda: mps.MPSMatrixMultiplication(DEVICE, "no", False, 1, 1, 1, 1.0, 0.0), "transpose_left must be True or"),
        (lambda: mps.MPSMatrixVectorMultiplication(DEVICE, 1, -1), "columns must be an integer of at least 1, got -1"),
        (lambda: mps.MPSMatrixFindTopK(DEVICE, 17), "number_of_top_k_values must be an integer of at most 16, got 17"),
        (lambda: mps.MPSMatrixFindTopK(DEVICE, 0), "number_of_top_k_values must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixCopy(DEVICE, 1, 0, False, False), "copy_columns must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixSum(DEVICE, 0, 1, 1, False), "count must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixDecompositionLU(DEVICE, 1, 0), "columns must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixDecompositionCholesky(DEVICE, "x", 1), "lower must be True or False, got 'x'"),
        (lambda: mps.MPSMatrixSolveLU(DEVICE, False, 0, 1), "order must be an integer of at least 1, got 0"),
        (lambda: mps.MPSMatrixSolveCholesky(DEVICE, False, 1, 0), "number_of_right_hand_sides must be an integer"),
        (
            lambda: mps.MPSMatrixSolveTriangular(DEVICE, *[False] * 4, 1, 1, np.inf * 0),
            "alpha must be a number, got nan",
        ),
        (lambda: mps.MPSMatrixMultiplication("cpu", 1, 1, 1), "device must be an MTLDevice, got str"),
    ],
)
def test_constructors_refuse(make: Any, message: str) -> None:
    with pytest.raises(mps.MPSError, match=f"^MPSMatrix[A-Za-z]+: {message}"):
        make()


# --- rows -------------------------------------------------------------------------------------------------------------


def test_types_of_one_kernel_are_equal(bench: Bench) -> None:
    a, half = matrix(bench, np.eye(2)), matrix(bench, np.eye(2), Type.FLOAT16)
    for kernel, operands, name in (
        (mps.MPSMatrixSoftMax(DEVICE), (a, half), "result_matrix"),
        (mps.MPSMatrixLogSoftMaxGradient(DEVICE), (half, a, half), "forward_output_matrix"),
        (mps.MPSMatrixFindTopK(DEVICE, 1), (a, matrix(bench, np.eye(2), Type.UINT32), half), "result_value_matrix"),
    ):
        with pytest.raises(
            mps.MPSArgumentError, match=f"{name} must hold FLOAT(16|32), as (input|gradient)_matrix does"
        ):
            kernel.encode(bench.command_buffer(), *operands)


def test_top_k_needs_columns_and_words(bench: Bench) -> None:
    kernel, values = mps.MPSMatrixFindTopK(DEVICE, 3), matrix(bench, np.eye(4))
    places = matrix(bench, np.zeros((4, 3)), Type.UINT32)
    kernel.source_columns = 2
    with pytest.raises(
        mps.MPSArgumentError, match="input_matrix must have 3 columns that are used, one for each value"
    ):
        kernel.encode(bench.command_buffer(), values, places, values)
    kernel.source_columns, kernel.index_offset = 4, 2**32 - 4
    run(bench, kernel.encode, values, places, matrix(bench, np.zeros((4, 3))))
    assert places.numpy()[3].tolist() == [2**32 - 1, 2**32 - 4, 2**32 - 3]
    kernel.index_offset += 1
    with pytest.raises(mps.MPSArgumentError, match=f"index_offset must be at most {2**32 - 4}, got {2**32 - 3}"):
        kernel.encode(bench.command_buffer(), values, places, values)


def test_a_vector_begins_in_its_only_row(bench: Bench) -> None:
    kernel = mps.MPSMatrixVectorMultiplication(DEVICE, 1, 1)
    kernel.secondary_source_matrix_origin = mps.MTLOrigin(0, 1, 0)
    with pytest.raises(mps.MPSArgumentError, match="secondary_source_matrix_origin.y must be 0 for a vector, got 1"):
        kernel.encode(bench.command_buffer(), matrix(bench, [[1.0]]), vector(bench, [1.0, 2.0]), vector(bench, [1.0]))


# --- neurons ----------------------------------------------------------------------------------------------------------


def test_neurons_are_set_and_kept() -> None:
    kernel = mps.MPSMatrixNeuron(DEVICE)
    kernel.set_neuron_type(Neuron.LINEAR, 2.0, 3.0, 4.0)
    assert (kernel.neuron_type(), kernel.neuron_parameter_a(), kernel.neuron_parameter_b()) == (Neuron.LINEAR, 2, 3)
    slopes = np.array([0.5, 2.0], np.float32)
    kernel.set_neuron_to_prelu(slopes)
    slopes[0] = 9
    assert kernel.neuron_descriptor.data is not None and kernel.neuron_descriptor.data.tolist() == [0.5, 2.0]
    data = mps.MPSKeyedArchiver.archived_data(kernel)
    again = mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSMatrixNeuron, data, DEVICE)
    assert again.neuron_descriptor == kernel.neuron_descriptor == kernel.copy().neuron_descriptor
    assert again.neuron_type() is Neuron.PRELU


@pytest.mark.parametrize("kind", ["FullyConnected", "BatchNormalization", "BatchNormalizationGradient"])
def test_layers_have_no_prelu(kind: str) -> None:
    kernel = getattr(mps, f"MPSMatrix{kind}")(DEVICE)
    with pytest.raises(mps.MPSArgumentError, match="neuron_type must not be PRELU.*Use MPSMatrixNeuron behind it"):
        kernel.set_neuron_type(Neuron.PRELU, 0.5)
    with pytest.raises(mps.MPSArgumentError, match="neuron_descriptor must be no PReLU"):
        kernel.neuron_descriptor = mps.MPSNNNeuronDescriptor(data=[1.0])
    with pytest.raises(mps.MPSTypeError, match="neuron_descriptor must be an MPSNNNeuronDescriptor, got str"):
        kernel.neuron_descriptor = "relu"
    with pytest.raises(mps.MPSArgumentError, match="type must be a neuron of MPSCNNNeuronType"):
        kernel.set_neuron_type(99)


def test_a_prelu_has_a_slope_for_each_column(bench: Bench) -> None:
    kernel, x = mps.MPSMatrixNeuron(DEVICE), matrix(bench, -np.ones((2, 3)))
    with pytest.raises(mps.MPSArgumentError, match="neuron_type must not be PRELU.*Use set_neuron_to_prelu"):
        kernel.set_neuron_type(Neuron.PRELU, 0.5)
    kernel.set_neuron_to_prelu([0.5, 2.0])
    with pytest.raises(mps.MPSArgumentError, match="neuron data must hold one number a channel, 3, got 2"):
        kernel.encode(bench.command_buffer(), x, None, x)
    kernel.source_input_feature_channels = 2
    run(bench, kernel.encode, x, None, x)
    assert x.numpy().tolist() == [[-0.5, -2.0, -1.0]] * 2


# --- linear systems ---------------------------------------------------------------------------------------------------


def _status(bench: Bench, kernel: Any, values: Any, *more: Any) -> int:
    status, source = bench.device.new_buffer(length=16), matrix(bench, values)
    run(bench, kernel.encode, source, source, *more, status)
    words = status.contents().view(np.int32)
    assert words[1:].tolist() == [0, 0, 0]
    return int(words[0])


def test_statuses(bench: Bench) -> None:
    lu, cholesky = mps.MPSMatrixDecompositionLU(DEVICE, 2, 2), mps.MPSMatrixDecompositionCholesky(DEVICE, True, 2)
    pivots = matrix(bench, np.zeros((3, 1, 2)), Type.UINT32)
    good, singular = [[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0]]
    assert _status(bench, lu, [good, good, good], pivots) == Status.SUCCESS
    assert _status(bench, lu, [good, singular, good], pivots) == Status.SINGULAR
    assert _status(bench, cholesky, [good, good]) == Status.SUCCESS
    assert _status(bench, cholesky, [[4.0, 2.0], [2.0, 1.0]]) == Status.NON_POSITIVE_DEFINITE
    assert _status(bench, cholesky, [[np.nan, 0.0], [0.0, 1.0]]) == Status.NON_POSITIVE_DEFINITE


def test_a_status_needs_a_buffer_of_a_word(bench: Bench) -> None:
    kernel, a = mps.MPSMatrixDecompositionCholesky(DEVICE, True, 1), matrix(bench, [[1.0]])
    with pytest.raises(mps.MPSTypeError, match="^MPSMatrixDecompositionCholesky: status must be an MTLBuffer, got"):
        kernel.encode(bench.command_buffer(), a, a, a)
    with pytest.raises(mps.MPSArgumentError, match="buffer must hold 4 bytes"):
        kernel.encode(bench.command_buffer(), a, a, bench.device.new_buffer(length=2))


def test_a_system_is_factored_and_solved(bench: Bench) -> None:
    """In one command buffer, by temporary factors and pivots."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
    command_buffer, x = bench.command_buffer(), matrix(bench, np.zeros((4, 2)))
    factors = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(4, 4))
    pivots = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(1, 4, data_type=Type.UINT32))
    mps.MPSMatrixDecompositionLU(DEVICE, 4, 4).encode(command_buffer, matrix(bench, a), factors, pivots)
    mps.MPSMatrixSolveLU(DEVICE, False, 4, 2).encode(command_buffer, factors, matrix(bench, b), pivots, x)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(a, b), rtol=1e-4)
