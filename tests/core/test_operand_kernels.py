"""Small kernels over matrices, and over a matrix and an image, written on the path of all operands.

Each takes no more than thirty lines; all else is asked of the path: numbers in every type, parts of matrices, read
counts, what is refused and how errors name it, plans, replays, memory that two operands share.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import openmps as mps
from encoding import FLOAT16, FLOAT32, Bench, finish, numbers
from openmps.checks import number
from openmps.core.kernel.arguments import single
from openmps.core.kernel.configuration import KernelProperty, at_least
from openmps.core.kernel.operands import FLOATS, Argument, OperandContext, OperandKernel
from openmps.ops.op import Op
from replay_twin import outcomes, replaying_queue

DATA = mps.MPSDataType
CPU = torch.device("cpu")


def weighted_sum(a: Tensor, b: Tensor, *, alpha: float) -> Tensor:
    """``a + alpha b``."""
    return a + alpha * b


class WeightedSum(Op, of=weighted_sum):
    """`weighted_sum` of two tensors of one shape."""

    alpha: float


def scaled_pixels(rows: Tensor, *, alpha: float, size: tuple[int, int, int]) -> Tensor:
    """Images ``[N, C, H, W]`` of ``alpha`` times rows of ``C H W`` numbers."""
    return (alpha * rows).unflatten(-1, size)


class ScaledPixels(Op, of=scaled_pixels):
    """`scaled_pixels` of rows."""

    alpha: float
    size: tuple[int, int, int]


def scaled(x: Tensor, *, alpha: float) -> Tensor:
    """``alpha x``; what is not scaled is handed on as it is."""
    return x if alpha == 1.0 else alpha * x


class Scaled(Op, of=scaled, half=True, gives_view=True):
    """`scaled` numbers."""

    alpha: float


# --- the kernels ------------------------------------------------------------------------------------------------------


class MatrixSum(OperandKernel):
    """``R = L + alpha M``."""

    _arguments = (
        Argument("left_matrix", mps.MPSMatrix, FLOATS),
        Argument("right_matrix", mps.MPSMatrix, FLOATS, is_optional=True),
        Argument("result_matrix", mps.MPSMatrix, FLOATS, is_result=True),
    )
    alpha = KernelProperty(1.0, number, "Factor of the right matrix.")

    def _lower(self, at: OperandContext) -> None:
        at.check_alike("left_matrix", "right_matrix", "result_matrix")
        result = at.numbers("left_matrix")
        if at.has("right_matrix"):
            result = WeightedSum(self.alpha)(result, at.numbers("right_matrix"))
        at.store("result_matrix", result)

    def encode(self, command_buffer: Any, left_matrix: Any, right_matrix: Any, result_matrix: Any) -> None:
        """Record the sum; without a right matrix a copy."""
        self._encode(command_buffer, left_matrix, right_matrix, result_matrix)


class MatrixCopy(OperandKernel):
    """``R[result_row + i] = alpha S[source_row + i]`` for ``rows`` rows of all matrices."""

    _arguments = (
        Argument("source_matrix", mps.MPSMatrix, FLOATS),
        Argument("result_matrix", mps.MPSMatrix, FLOATS, is_result=True),
    )
    alpha = KernelProperty(1.0, number, "Factor.")
    rows = KernelProperty(1, at_least(1), "Rows copied.")
    source_row = KernelProperty(0, at_least(0), "The first row read.")
    result_row = KernelProperty(0, at_least(0), "The first row written.")

    def _part(self, at: OperandContext, name: str, first: int) -> tuple[slice, slice]:
        rows = at.sizes(name)[1]
        if first + self.rows > rows:
            raise mps.MPSArgumentError(self.name, name, f"must have {first + self.rows} rows", rows)
        return slice(None), slice(first, first + self.rows)

    def _lower(self, at: OperandContext) -> None:
        source = at.numbers("source_matrix", *self._part(at, "source_matrix", self.source_row))
        at.store("result_matrix", Scaled(self.alpha)(source), *self._part(at, "result_matrix", self.result_row))

    def encode(self, command_buffer: Any, source_matrix: Any, result_matrix: Any) -> None:
        """Record the copy."""
        self._encode(command_buffer, source_matrix, result_matrix)


class ExclusiveSum(MatrixSum):
    """A sum whose result must not share memory with a source."""

    _arguments = (
        *MatrixSum._arguments[:2],
        Argument("result_matrix", mps.MPSMatrix, FLOATS, is_result=True, may_overlap=False),
    )


class MatrixToImage(OperandKernel):
    """An image of alpha times the rows of a matrix, one row an image: a matrix is read, an image is written."""

    _arguments = (
        Argument("source_matrix", mps.MPSMatrix, FLOATS),
        Argument("destination_image", mps.MPSImage, is_result=True),
    )
    alpha = KernelProperty(1.0, number, "Factor.")

    def _lower(self, at: OperandContext) -> None:
        images, channels, height, width = at.shape("destination_image").extent.shape
        needed = (1, images, channels * height * width)
        if at.sizes("source_matrix") != needed:
            raise mps.MPSArgumentError(self.name, "source_matrix", f"must be {needed}", at.sizes("source_matrix"))
        rows = at.numbers("source_matrix", 0)
        at.store("destination_image", ScaledPixels(self.alpha, (channels, height, width))(rows))

    def encode(self, command_buffer: Any, source_matrix: Any, destination_image: Any) -> None:
        """Record the copy."""
        self._encode(command_buffer, source_matrix, single(self.name, "destination_image", destination_image))


class ImageToVector(OperandKernel):
    """Alpha times the numbers of an image, in a vector: an image is read, a vector is written."""

    _arguments = (
        Argument("source_image", mps.MPSImage),
        Argument("result_vector", mps.MPSVector, (DATA.FLOAT32,), is_result=True),
    )

    def _lower(self, at: OperandContext) -> None:
        at.store("result_vector", WeightedSum(1.0)(*[at.numbers("source_image")] * 2))

    def encode(self, command_buffer: Any, source_image: Any, result_vector: Any) -> None:
        """Record it."""
        self._encode(command_buffer, source_image, result_vector)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _values(number: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def _empty(bench: Bench, rows: int, columns: int, data_type: Any = DATA.FLOAT32, **more: Any) -> mps.MPSMatrix:
    return mps.MPSMatrix(bench.device, mps.MPSMatrixDescriptor(rows, columns, data_type=data_type, **more))


def _matrix(bench: Bench, values: np.ndarray, data_type: Any = DATA.FLOAT32, **more: Any) -> mps.MPSMatrix:
    made = _empty(bench, *values.shape[-2:], data_type, matrices=1 if values.ndim == 2 else len(values), **more)
    made.memory().copy_(torch.from_numpy(values))
    return made


def _run(bench: Bench, kernel: Any, *operands: Any) -> Any:
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, *operands)
    finish(command_buffer)
    return command_buffer


def _labelled(kernel: Any) -> Any:
    kernel.label = "mine"
    return kernel


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MatrixSum, MatrixCopy, MatrixToImage, ImageToVector])
def test_a_kernel_takes_thirty_lines_at_most(kind: type) -> None:
    assert len(inspect.getsource(kind).splitlines()) <= 30


@pytest.mark.parametrize(
    "types", [(DATA.FLOAT32,) * 3, (DATA.FLOAT16,) * 3, (DATA.FLOAT16, DATA.FLOAT32, DATA.FLOAT16)]
)
def test_numbers_are_summed_in_float32_and_rounded_once(types: Any, device: torch.device) -> None:
    bench, kernel = Bench.on(device), MatrixSum(mps.mtl_device(device))
    kernel.alpha = 0.37
    a, b = (_matrix(bench, _values(seed, 3, 4, 5), each) for seed, each in enumerate(types[:2]))
    result = _empty(bench, 4, 5, types[2], matrices=3, row_bytes=32, matrix_bytes=160)
    _run(bench, kernel, a, b, result)
    expected = a.numpy().astype(np.float32) + np.float32(0.37) * b.numpy().astype(np.float32)
    np.testing.assert_allclose(
        result.numpy(), expected.astype(result.numpy().dtype), rtol=1e-3 if 16 in types else 1e-6
    )
    assert result.numpy().dtype == (np.float32 if types[2] is DATA.FLOAT32 else np.float16)


def test_gaps_and_what_is_outside_of_a_part_stay(device: torch.device) -> None:
    bench, kernel = Bench.on(device), MatrixCopy(mps.mtl_device(device))
    kernel.alpha, kernel.rows, kernel.source_row, kernel.result_row = 2.0, 2, 1, 3
    source = _matrix(bench, _values(1, 2, 4, 3))
    result = _matrix(bench, _values(2, 2, 6, 3), row_bytes=24, matrix_bytes=168)
    flat, before = result.data.tensor(torch.float32), result.numpy()
    flat.masked_fill_(flat == 0, 7.0)
    _run(bench, kernel, source, result)
    before[:, 3:5] = 2 * source.numpy()[:, 1:3]
    np.testing.assert_array_equal(result.numpy(), before)
    assert (flat == 7).sum() == flat.numel() - result.numpy().size


def test_a_matrix_becomes_an_image_in_every_format(device: torch.device) -> None:
    bench, kernel = Bench.on(device), MatrixToImage(mps.mtl_device(device))
    kernel.alpha = 0.5
    values = np.abs(_values(3, 2, 4 * 3 * 5)) % 1
    for form, digits in ((FLOAT32, 1e-7), (FLOAT16, 1e-3), (mps.MPSImageFeatureChannelFormat.UNORM8, 1 / 500)):
        image = bench.empty((2, 4, 3, 5), form)
        _run(bench, kernel, _matrix(bench, values), image)
        np.testing.assert_allclose(numbers(image).reshape(2, -1), 0.5 * values, atol=digits)


# --- memory that operands share, parts and reads ----------------------------------------------------------------------


def test_a_result_may_be_a_source(bench: Bench) -> None:
    a, b = _matrix(bench, _values(1, 3, 4)), _matrix(bench, _values(2, 3, 4))
    expected = a.numpy() + b.numpy()
    _run(bench, MatrixSum(bench.device), a, b, a)
    np.testing.assert_array_equal(a.numpy(), expected)


@pytest.mark.parametrize("first", [0, 1])
def test_rows_move_within_a_matrix_as_if_all_were_read_before(bench: Bench, first: int) -> None:
    kernel, matrix = MatrixCopy(bench.device), _matrix(bench, _values(1, 4, 3))
    kernel.rows, kernel.source_row, kernel.result_row = 3, first, 1 - first
    expected = matrix.numpy()
    expected[1 - first : 4 - first] = matrix.numpy()[first : first + 3]
    _run(bench, kernel, matrix, matrix)
    np.testing.assert_array_equal(matrix.numpy(), expected)


def test_a_kernel_may_refuse_shared_memory(bench: Bench) -> None:
    a, b = _matrix(bench, _values(1, 3, 4)), _matrix(bench, _values(2, 3, 4))
    kernel = _labelled(ExclusiveSum(bench.device))
    _run(bench, kernel, a, b, _empty(bench, 3, 4))
    with pytest.raises(
        mps.MPSArgumentError, match="^ExclusiveSum 'mine': result_matrix must not share memory with right"
    ):
        kernel.encode(bench.command_buffer(), a, b, b)
    part = mps.MPSMatrix(a.data, mps.MPSMatrixDescriptor(1, 4), 16)
    with pytest.raises(mps.MPSArgumentError, match="must not share memory with left_matrix"):
        kernel.encode(bench.command_buffer(), part, None, mps.MPSMatrix(a.data, mps.MPSMatrixDescriptor(1, 4), 28))
    other = mps.MPSMatrix(a.data, mps.MPSMatrixDescriptor(1, 4), 32)
    kernel.encode(bench.command_buffer(), part, None, other)


def test_each_argument_takes_a_read_and_results_take_none(bench: Bench) -> None:
    kernel, command_buffer = _labelled(MatrixSum(bench.device)), bench.command_buffer()
    a, b, result = (mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(2, 2)) for _ in range(3))
    b.read_count = 3
    kernel.encode(command_buffer, a, b, result)
    assert (a.read_count, b.read_count, result.read_count) == (0, 2, 1)
    with pytest.raises(mps.MPSLifetimeError, match="^MatrixSum 'mine': left_matrix must have reads left"):
        kernel.encode(command_buffer, a, b, result)
    kernel.encode(command_buffer, b, b, result)
    assert b.read_count == 0
    with pytest.raises(mps.MPSLifetimeError, match="^MatrixSum 'mine': left_matrix must have 2 reads left"):
        kernel.encode(command_buffer, result, result, _empty(bench, 2, 2))
    assert result.read_count == 1


def test_what_nothing_has_written_is_not_read(bench: Bench) -> None:
    a, b = _matrix(bench, _values(1, 2, 2)), _empty(bench, 2, 2)
    kernel, dropped = _labelled(MatrixSum(bench.device)), bench.command_buffer()
    kernel.encode(dropped, a, None, b)
    del dropped
    with pytest.raises(
        mps.MTLCommandBufferError, match="^MatrixSum 'mine': encode cannot read what a command buffer that"
    ):
        kernel.encode(bench.command_buffer(), b, None, _empty(bench, 2, 2))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_errors_name_class_label_and_argument(bench: Bench) -> None:
    kernel, a = _labelled(MatrixSum(bench.device)), _matrix(bench, _values(1, 2, 2))
    there = mps.MPSMatrix(mps.MTLDevice(torch.device("cpu")), mps.MPSMatrixDescriptor(2, 2))
    integers = _empty(bench, 2, 2, DATA.INT32)
    vector = mps.MPSVector(bench.device, mps.MPSVectorDescriptor(4))
    wrong: list[tuple[Any, Any, str]] = [
        (None, mps.MPSTypeError, "is needed"),
        (vector, mps.MPSTypeError, "must be an MPSMatrix, got MPSVector"),
        (np.zeros((2, 2)), mps.MPSTypeError, "must be an MPSMatrix, got ndarray"),
        (integers, mps.MPSArgumentError, "must hold FLOAT32 or FLOAT16, got INT32"),
        (there, mps.MPSDeviceError, "must belong to the device"),
    ]
    for place, name in ((0, "left_matrix"), (2, "result_matrix")):
        for given, error, rule in wrong:
            operands = [a, None, _empty(bench, 2, 2)]
            operands[place] = given
            with pytest.raises(error, match=f"^MatrixSum 'mine': {name} {rule}"):
                kernel.encode(bench.command_buffer(), *operands)
    rule = (
        r"^MatrixSum 'mine': right_matrix must have the shape of left_matrix, MPSMatrix of \(1, 2, 2\), got MPSMatrix"
    )
    with pytest.raises(mps.MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), a, _empty(bench, 2, 3), a)
    with pytest.raises(mps.MPSTypeError, match="^MatrixSum 'mine': command_buffer must be a command buffer"):
        kernel.encode(bench.queue, a, None, a)
    image = _labelled(MatrixToImage(bench.device))
    with pytest.raises(mps.MPSTypeError, match="^MatrixToImage 'mine': destination_image must be an MPSImage"):
        image.encode(bench.command_buffer(), a, a)
    with pytest.raises(mps.MPSArgumentError, match="^MatrixToImage 'mine': source_matrix must be"):
        image.encode(bench.command_buffer(), a, bench.empty((1, 1, 3, 2)))


# --- plans and replays ------------------------------------------------------------------------------------------------


def test_plans_follow_from_configuration_and_shapes(bench: Bench) -> None:
    kernel, other = MatrixSum(bench.device), _labelled(MatrixSum(bench.device))
    a, b = _matrix(bench, _values(1, 2, 2)), _matrix(bench, _values(2, 2, 2))
    functions: list[Any] = []

    def encode(by: Any, *operands: Any) -> Any:
        command_buffer = bench.command_buffer()
        by.encode(command_buffer, *operands)
        functions.append(command_buffer.recording.execution.works[-1][1].function)
        return functions[-1]

    first = encode(kernel, a, b, a)
    assert encode(other, b, a, b) is first
    assert encode(copy.copy(kernel), a, b, a) is first
    assert encode(kernel, a, None, a) is not first
    half = _matrix(bench, _values(1, 2, 2), DATA.FLOAT16)
    assert encode(kernel, a, b, half) is not first
    kernel.alpha = 2.0
    doubled = encode(kernel, a, b, a)
    assert doubled is not first
    kernel.alpha = 3.0
    assert encode(kernel, a, b, a) is not doubled
    kernel.alpha = 2.0
    assert encode(kernel, a, b, a) is doubled


def test_command_buffers_are_replayed(device: torch.device) -> None:
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    add, image_of = MatrixSum(bench.device), MatrixToImage(bench.device)
    a, b = _matrix(bench, _values(1, 1, 24)), _matrix(bench, _values(2, 1, 24))
    found: list[str] = []
    for step in range(4):
        a.memory().copy_(torch.from_numpy(_values(step, 1, 24)))
        command_buffer, image = bench.command_buffer(), bench.empty((1, 2, 3, 4))
        total = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(1, 24))
        add.encode(command_buffer, a, b, total)
        image_of.encode(command_buffer, total, image)
        finish(command_buffer)
        found.append(outcomes(command_buffer)[0])
        np.testing.assert_array_equal(numbers(image).reshape(1, 24), _values(step, 1, 24) + b.numpy())
    assert found == ["run", "captured", "replayed", "replayed"]


def test_rows_in_place_are_replayed(device: torch.device) -> None:
    bench = Bench.on(device)
    bench.queue = replaying_queue(device)
    kernel, a = MatrixCopy(bench.device), _matrix(bench, _values(1, 3, 2))
    kernel.alpha, kernel.rows, kernel.result_row = 2.0, 2, 1
    expected, found = a.numpy(), list[str]()
    for _ in range(4):
        found += outcomes(_run(bench, kernel, a, a))
        expected[1:] = 2 * expected[:2]
        np.testing.assert_array_equal(a.numpy(), expected)
    assert found == ["run", "captured", "replayed", "replayed"]


@pytest.fixture
def bench() -> Bench:
    return Bench.on(CPU)
