"""Every kernel over matrices: loops, types, origins, gaps, batches, temporary operands, replays, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from in_one_test import in_one_test
from matrices import UNTOUCHED, Placed, matrix, run, vector
from measured import note_error
from replay_twin import outcomes, replaying_queue
from samples.matrix import FLOATS, MATRIX_SAMPLES, MatrixSample

Type = mps.MPSDataType
CPU = torch.device("cpu")
ERRORS = {Type.FLOAT32: 1e-5, Type.FLOAT16: 2.0**-10}
"""Of the largest magnitude: float32's sums; float16 results are rounded once."""
samples = pytest.mark.parametrize("sample", MATRIX_SAMPLES, ids=str)


def _types(sample: MatrixSample) -> list[Any]:
    return [each for each in FLOATS if each in sample.operands[0].types]


ALL = [(sample, data_type) for sample in MATRIX_SAMPLES for data_type in _types(sample)]


def check(placed: Placed, data_type: Any) -> None:
    """The results are those of the loops, and nothing else was written."""
    found = placed.results()
    for name, value in placed.expected().items():
        largest = max(1.0, float(np.abs(value[value != UNTOUCHED]).max(initial=0.0)))
        np.testing.assert_allclose(found[name].astype(np.float64), value, rtol=0, atol=ERRORS[data_type] * largest)


@in_one_test
@pytest.mark.parametrize("is_placed", [False, True], ids=["whole", "placed"])
@pytest.mark.parametrize(("sample", "data_type"), ALL, ids=str)
def test_equals_loops(sample: MatrixSample, data_type: Any, is_placed: bool, device: torch.device) -> None:
    bench = Bench.on(device)
    placed = Placed(bench, sample, data_type, is_placed=is_placed)
    kernel = placed.kernel(bench.device)
    run(bench, getattr(kernel, sample.encode), *placed.objects)
    check(placed, data_type)
    if data_type is Type.FLOAT32 and not is_placed:
        for name, value in placed.expected().items():
            note_error(type(kernel), "forward", device, placed.results()[name], value)


@in_one_test
@samples
def test_temporary_sources_give_a_read_and_results_none(sample: MatrixSample) -> None:
    bench = Bench.on(CPU)
    placed = Placed(bench, sample, Type.FLOAT32, is_placed=False)
    command_buffer, given = bench.command_buffer(), []
    for operand, made in zip(sample.operands, placed.objects, strict=True):
        given.append(None if made is None else _temporary(command_buffer, operand.shape, made.data_type))
    getattr(sample.kernel(bench.device), sample.encode)(command_buffer, *given)
    for operand, made in zip(sample.operands, given, strict=True):
        assert made is None or made.read_count == int(operand.is_result), operand.name
    for operand, made in zip(sample.operands, given, strict=True):
        if made is not None and operand.is_result:
            made.read_count = 0
    finish(command_buffer)


def _temporary(command_buffer: Any, shape: tuple[int, ...], data_type: Any) -> Any:
    if len(shape) == 1:
        return mps.MPSTemporaryVector(command_buffer, mps.MPSVectorDescriptor(*shape, data_type))
    return mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(*shape, data_type=data_type))


@in_one_test
@samples
def test_a_vector_serves_several_matrices(sample: MatrixSample) -> None:
    """A bias, gamma, mean of one vector; other operands are there for each matrix."""
    bench = Bench.on(CPU)
    given, arrays, rng = [], [], np.random.default_rng(3)
    is_shared = "product" not in sample.name
    for operand in sample.operands:
        data_type = operand.types[0]
        kind = vector if len(operand.shape) == 1 else matrix
        count = 1 if kind is vector and is_shared and not operand.is_result else 3
        values = [
            np.zeros(operand.shape) if operand.is_result else operand.make(rng, operand.shape) for _ in range(count)
        ]
        given.append(kind(bench, np.array(values), data_type) if operand.shape else None)
        arrays.append(given[-1].numpy().reshape(count, *operand.shape).astype(np.float64) if operand.shape else None)
    kernel = sample.kernel(bench.device)
    kernel.batch_start = 1
    run(bench, getattr(kernel, sample.encode), *given)
    for index in (1, 2):
        parts = {
            operand.name: array[index % len(array)]
            for operand, array in zip(sample.operands, arrays, strict=True)
            if array is not None
        }
        for name, value in sample.oracle(parts).items():
            place = [operand.name for operand in sample.operands].index(name)
            found = given[place].numpy().reshape(3, *sample.operands[place].shape)[index]
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-5 * max(1.0, float(np.abs(value).max())))


@in_one_test
@samples
def test_replays(sample: MatrixSample) -> None:
    bench = Bench.on(CPU)
    bench.queue = replaying_queue(CPU)
    placed = Placed(bench, sample, Type.FLOAT32, is_placed=True)
    kernel, found = placed.kernel(bench.device), list[str]()
    for _ in range(4):
        for operand, made in zip(sample.operands, placed.objects, strict=True):
            if operand.is_result and made is not None:
                made.memory().copy_(torch.from_numpy(placed.arrays[operand.name]))
        found += outcomes(run(bench, getattr(kernel, sample.encode), *placed.objects))
        check(placed, Type.FLOAT32)
    assert found == ["run", "captured", "replayed", "replayed"]


# --- what is refused --------------------------------------------------------------------------------------------------


def _refused(bench: Bench, kernel: Any, sample: MatrixSample, operands: Any, argument: str, error: Any) -> str:
    """The error of an encode with these operands, which records nothing."""
    kernel.label, command_buffer = "mine", bench.command_buffer()
    with pytest.raises(error) as fault:
        getattr(kernel, sample.encode)(command_buffer, *operands)
    assert str(fault.value).startswith(f"{type(kernel).__name__} 'mine': {argument} "), fault.value
    assert not command_buffer.encodings
    return str(fault.value)


@in_one_test
@samples
def test_operands_that_do_not_fit(sample: MatrixSample) -> None:
    bench = Bench.on(CPU)
    placed = Placed(bench, sample, Type.FLOAT32, is_placed=False)
    device = bench.device
    for index, operand in enumerate(sample.operands):
        if placed.objects[index] is None:
            continue
        given = list(placed.objects)
        kind = vector if len(operand.shape) == 1 else matrix
        given[index] = kind(bench, np.zeros(operand.shape), Type.INT64)
        text = _refused(bench, sample.kernel(device), sample, given, operand.name, mps.MPSArgumentError)
        assert "must hold " in text and text.endswith("got INT64")
        given[index] = np.zeros(operand.shape)
        text = _refused(bench, sample.kernel(device), sample, given, operand.name, mps.MPSTypeError)
        assert "must be an MPS" in text
        for axis, length in enumerate(operand.shape):
            if operand.is_sized and length > 1:
                shape = tuple(size - (place == axis) for place, size in enumerate(operand.shape))
                given[index] = kind(bench, np.zeros(shape), placed.objects[index].data_type)
                _refused(bench, sample.kernel(device), sample, given, operand.name, mps.MPSArgumentError)


@in_one_test
@samples
def test_origins_and_batches_that_do_not_fit(sample: MatrixSample) -> None:
    bench = Bench.on(CPU)
    placed = Placed(bench, sample, Type.FLOAT32, is_placed=False)
    kernel = sample.kernel(bench.device)
    kernel.batch_start = 1
    _refused(bench, kernel, sample, placed.objects, "batch_start", mps.MPSArgumentError)
    for operand in sample.operands:
        if not operand.origin:
            continue
        kernel = sample.kernel(bench.device)
        setattr(kernel, operand.origin, mps.MTLOrigin(operand.shape[0], 0, 0))
        argument = operand.name if len(operand.shape) == 1 else operand.origin
        _refused(bench, kernel, sample, placed.objects, argument, mps.MPSArgumentError)
        with pytest.raises(mps.MPSArgumentError, match=f"{operand.origin}.z must be 0, got 1"):
            setattr(kernel, operand.origin, mps.MTLOrigin(0, 0, 1))
        with pytest.raises(
            mps.MPSTypeError, match=rf"{operand.origin} must be an MTLOrigin\(row, column, 0\), got tuple"
        ):
            setattr(kernel, operand.origin, (0, 0, 0))


def test_every_class_has_a_sample() -> None:
    device = mps.mtl_device("cpu")
    kinds = {type(sample.kernel(device)).__name__ for sample in MATRIX_SAMPLES}
    missing = {name for name in mps.__all__ if name.startswith("MPSMatrix") and hasattr(getattr(mps, name), "encode")}
    assert missing - kinds == {"MPSMatrixCopy", "MPSMatrixCopyToImage", "MPSMatrixRandom", "MPSMatrixRandomMTGP32",
                               "MPSMatrixRandomPhilox", "MPSMatrixSum"}  # fmt: skip


def test_samples_have_names_of_their_own() -> None:
    names = [sample.name for sample in MATRIX_SAMPLES]
    assert len(names) == len(set(names)) and replace(MATRIX_SAMPLES[0], name="x").name == "x"


@pytest.mark.parametrize("give", [mps.MPSMatrix.from_numpy, mps.MPSMatrix.from_dlpack])
def test_a_product_may_overlap_a_factor_in_an_array(give: Any, rng: np.random.Generator) -> None:
    """Two views of one array are two storages of the engine's, which begin at different bytes."""
    device, size = mps.mtl_device("cpu"), 16
    pool, right = (rng.normal(size=(rows, size)).astype(np.float32) for rows in (size + 1, size))
    factor, result = give(device, pool[:-1]), give(device, pool[1:])
    expected = pool[:-1].astype(np.float64) @ right
    command_buffer = device.new_command_queue().command_buffer()
    product = mps.MPSMatrixMultiplication(device, size, size, size)
    product.encode(command_buffer, factor, mps.MPSMatrix.from_numpy(device, right), result)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(result.numpy(), pool[1:])


@in_one_test
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("order", [72, 256])
def test_a_factorization_in_place_of_a_part(order: int, lower: bool, device: torch.device) -> None:
    """The result may be the source: a part of a larger matrix, of which nothing else is written."""
    bench, rng = Bench.on(device), np.random.default_rng(order)
    root = rng.normal(size=(order, order))
    part = root @ root.T / order + np.eye(order)
    every = np.full((order + 4, order + 7), float(UNTOUCHED))
    every[3:-1, 5:-2] = part
    cholesky = mps.MPSMatrixDecompositionCholesky(bench.device, lower, order)
    lu = mps.MPSMatrixDecompositionLU(bench.device, order, order)
    for kernel in (cholesky, lu):
        kernel.source_matrix_origin = kernel.result_matrix_origin = mps.MTLOrigin(3, 5, 0)
        both, pivots = matrix(bench, every), matrix(bench, np.zeros((1, order)), Type.UINT32)
        status = bench.device.new_buffer(4)
        run(bench, kernel.encode, *([both, both] if kernel is cholesky else [both, both, pivots]), status)
        found, exact = both.numpy().astype(np.float64), every.astype(np.float32).astype(np.float64)
        inside = found[3:-1, 5:-2].copy()
        found[3:-1, 5:-2] = exact[3:-1, 5:-2]
        np.testing.assert_array_equal(found, exact)
        if kernel is cholesky:
            factor = np.tril(inside) if lower else np.triu(inside).T
            np.testing.assert_allclose(factor @ factor.T, part, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(
                *(np.tril(each.T if lower else each, -1) for each in (inside, exact[3:-1, 5:-2]))
            )
            continue
        product = (np.tril(inside, -1) + np.eye(order)) @ np.triu(inside)
        for row, other in reversed([*enumerate(pivots.numpy()[0].astype(int))]):
            product[[row, other]] = product[[other, row]]
        np.testing.assert_allclose(product, part, rtol=0, atol=1e-5)
