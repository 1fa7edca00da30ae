"""Kernels over matrices (C and T; macOS 27.0 unless said). Inputs that were not printed are chosen here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench
from mac_facts.fact import DEVICE, Fact, or_none, row, set_up
from matrices import matrix, run, vector

BENCH = Bench(DEVICE)
NINE = np.arange(1.0, 10.0).reshape(3, 3)
SQUARE = np.array([[2.0, -1.0, 0.5], [1.0, 3.0, -2.0], [4.0, 0.0, 1.0]])
FLAGS = [(False, False), (False, True), (True, False), (True, True)]
X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0], [2.0, 8.0, 1.0], [9.0, 1.0, 5.0]])
MEAN, VARIANCE, GAMMA, BETA = [4.0, 5.0, 4.0], [8.0, 6.0, 6.0], [1.5, 0.75, 2.0], [0.5, -0.5, 1.0]
SIX = np.arange(1.0, 7.0).reshape(2, 3)


def _zeros(rows: int, columns: int, data_type: Any = mps.MPSDataType.FLOAT32) -> mps.MPSMatrix:
    return matrix(BENCH, np.zeros((rows, columns)), data_type)


def _all(*arrays: Any) -> np.ndarray:
    return np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in arrays])


def _products() -> np.ndarray:
    """2x2 of 3x3, with alpha 2 and beta 0.5, in the four transpositions."""
    found = []
    for left, right in FLAGS:
        result = matrix(BENCH, [[1.0, 2.0], [3.0, 4.0]])
        kernel = mps.MPSMatrixMultiplication(DEVICE, left, right, 2, 2, 3, 2.0, 0.5)
        run(BENCH, kernel.encode, matrix(BENCH, NINE), matrix(BENCH, SQUARE), result)
        found.append(result.numpy())
    return _all(*found)


def _batched(**which: int) -> np.ndarray:
    """Two matrices by 1, over zeros."""
    once = np.arange(1.0, 5.0).reshape(2, 2)
    factors = matrix(BENCH, np.stack([once, 2 * once])), matrix(BENCH, np.stack([np.eye(2)] * 2))
    result = matrix(BENCH, np.zeros((2, 2, 2)))
    run(BENCH, set_up(mps.MPSMatrixMultiplication(DEVICE, 2, 2, 2), **which).encode, *factors, result)
    return result.numpy()


def _by_formula() -> np.ndarray:
    c = np.array([[1.0, 2.0], [3.0, 4.0]])
    factors = [(NINE.T if left else NINE, SQUARE.T if right else SQUARE) for left, right in FLAGS]
    return _all(*(2.0 * (a[:2] @ b[:, :2]) + 0.5 * c for a, b in factors))


def _fresh_ranges() -> tuple[Any, ...]:
    kernel = mps.MPSMatrixMultiplication(DEVICE, 1, 1, 1)
    origins = (kernel.left_matrix_origin, kernel.right_matrix_origin, kernel.result_matrix_origin)
    return (*((each.x, each.y, each.z) for each in origins), kernel.batch_start, kernel.batch_size)


def _times_vector(transpose: bool) -> np.ndarray:
    """alpha 1.5; x is 1 -1 2, or its first two numbers."""
    rows, columns = (3, 2) if transpose else (2, 3)
    result = vector(BENCH, np.zeros(rows))
    kernel = mps.MPSMatrixVectorMultiplication(DEVICE, transpose, rows, columns, 1.5, 0.0)
    run(BENCH, kernel.encode, matrix(BENCH, SIX), vector(BENCH, [1.0, -1.0, 2.0]), result)
    return result.numpy()


def _copied(flags: tuple[bool, bool], **orders: Sequence[int]) -> np.ndarray:
    offsets = mps.MPSMatrixCopyOffsets() if orders else mps.MPSMatrixCopyOffsets(1, 1, 0, 0)
    values, size = (np.arange(1.0, 9.0).reshape(2, 4), (2, 4)) if orders else (NINE, (2, 2))
    target = _zeros(*size)
    descriptor = mps.MPSMatrixCopyDescriptor(matrix(BENCH, values), target, offsets)
    words = {name: vector(BENCH, np.array(order), mps.MPSDataType.UINT32) for name, order in orders.items()}
    run(BENCH, mps.MPSMatrixCopy(DEVICE, *size, *flags).encode, descriptor, **words)
    return target.numpy().reshape(-1)


def _encoded(kernel: Any, source: Any, *more: Any, size: tuple[int, int] | None = None) -> np.ndarray:
    result = _zeros(*(size or np.shape(source)))
    run(BENCH, kernel.encode, matrix(BENCH, source), *more, result)
    return result.numpy().reshape(-1)


def _largest(numbers: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    values, places = _zeros(1, k), _zeros(1, k, mps.MPSDataType.UINT32)
    run(BENCH, mps.MPSMatrixFindTopK(DEVICE, k).encode, matrix(BENCH, [numbers]), places, values)
    return values.numpy()[0], places.numpy()[0]


def _refuses(act: Any) -> bool:
    try:
        act()
    except mps.MPSArgumentError:
        return True
    return False


def _vectors(*given: Any) -> list[Any]:
    return [None if each is None else vector(BENCH, each) for each in given]


def _bias_gradient() -> np.ndarray:
    """Of a layer with alpha 1.25."""
    kernel, sums = set_up(mps.MPSMatrixFullyConnectedGradient(DEVICE), alpha=1.25), vector(BENCH, np.zeros(3))
    given = matrix(BENCH, NINE), matrix(BENCH, np.ones((3, 2))), _zeros(2, 3), sums
    run(BENCH, kernel.encode_gradient_for_weights_and_bias, *given)
    return sums.numpy()


def _connected() -> np.ndarray:
    kernel = set_up(mps.MPSMatrixFullyConnected(DEVICE), alpha=1.25)
    return _encoded(kernel, NINE[:, :2], matrix(BENCH, SIX), *_vectors([1.0, 2.0, 3.0]), size=(3, 3))


def _normalized() -> np.ndarray:
    kernel = set_up(mps.MPSMatrixBatchNormalization(DEVICE), epsilon=0.001)
    return _encoded(kernel, X, *_vectors(MEAN, VARIANCE, GAMMA, BETA))


def _statistics() -> np.ndarray:
    kernel, vectors = (
        set_up(mps.MPSMatrixBatchNormalization(DEVICE), compute_statistics=True),
        _vectors([0.0] * 3, [0.0] * 3),
    )
    _encoded(kernel, X, *vectors, None, None)
    return _all(*(each.numpy() for each in vectors))


def _normalized_gradient() -> np.ndarray:
    kernel = set_up(mps.MPSMatrixBatchNormalizationGradient(DEVICE), epsilon=0.001)
    return _encoded(kernel, X, matrix(BENCH, X), *_vectors(MEAN, VARIANCE, GAMMA, None))


def _normalization_sums() -> np.ndarray:
    """The gradients of gamma and beta, over a sentinel."""
    kernel = set_up(mps.MPSMatrixBatchNormalizationGradient(DEVICE), epsilon=0.001)
    sums = _vectors([7.0] * 3, [7.0] * 3)
    operands = matrix(BENCH, X), matrix(BENCH, X), *_vectors(MEAN, VARIANCE, GAMMA, None), _zeros(4, 3)
    run(BENCH, kernel.encode, *operands, *sums)
    return _all(*(each.numpy() for each in sums))


def _neuron_gradient() -> tuple[np.ndarray, np.ndarray]:
    """Of f(x) = x with alpha 0.5."""
    kernel, sums, result = (
        set_up(mps.MPSMatrixNeuronGradient(DEVICE), alpha=0.5),
        vector(BENCH, np.zeros(3)),
        _zeros(2, 3),
    )
    run(BENCH, kernel.encode, matrix(BENCH, SIX), matrix(BENCH, SIX), None, result, sums)
    return result.numpy(), sums.numpy()


def summed(
    bias: Any = None, *, transpose: bool = False, scales: Any = None, start: int = 0, size: Any = None
) -> np.ndarray:
    """1 to 6 and 10 to 60 in rows of three, into a matrix of a size; 1 and 2 with scales."""
    sources = [matrix(BENCH, SIX), matrix(BENCH, 10 * SIX)] if scales is None else _ones()
    rows, columns = (2, 3) if scales is None else (1, 1)
    kernel = mps.MPSMatrixSum(DEVICE, 2, rows, columns, transpose)
    result = _zeros(*(size or ((columns, rows) if transpose else (rows, columns))))
    given_scales, given_bias = _vectors(scales, bias)
    run(BENCH, kernel.encode, sources, result, given_scales, None, given_bias, start)
    return result.numpy().reshape(-1)


def _ones() -> list[mps.MPSMatrix]:
    return [matrix(BENCH, [[1.0]]), matrix(BENCH, [[2.0]])]


def _by_offsets() -> np.ndarray:
    kernel, result = mps.MPSMatrixSum(DEVICE, 2, 1, 1, False), _zeros(1, 1)
    pairs = vector(BENCH, np.array([1, 0, 0, 1]), mps.MPSDataType.UINT32)
    run(BENCH, kernel.encode, [matrix(BENCH, SIX), matrix(BENCH, 10 * SIX)], result, None, pairs)
    return result.numpy()[0]


def _factored() -> int:
    """The status of 1 2, 0 0."""
    status, pivots = DEVICE.new_buffer(length=4), _zeros(1, 2, mps.MPSDataType.UINT32)
    source = matrix(BENCH, [[1.0, 2.0], [0.0, 0.0]])
    run(BENCH, mps.MPSMatrixDecompositionLU(DEVICE, 2, 2).encode, source, source, pivots, status)
    return int(status.contents().view(np.int32)[0])


def _rebuilt(rows: int, columns: int) -> bool:
    """Whether L U is P A."""
    a = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    source, pivots = matrix(BENCH, a), _zeros(1, min(rows, columns), mps.MPSDataType.UINT32)
    run(BENCH, mps.MPSMatrixDecompositionLU(DEVICE, rows, columns).encode, source, source, pivots)
    factors, least = source.numpy().astype(np.float64), min(rows, columns)
    lower, upper = np.tril(factors, -1)[:, :least] + np.eye(rows, least), np.triu(factors)[:least]
    for step, other in enumerate(pivots.numpy()[0]):
        a[[step, other]] = a[[other, step]]
    return bool(np.allclose(lower @ upper, a, atol=1e-3))


_SOFT = np.array([[1.0, 2.0, 3.0, 4.0], [-3.0, 0.5, 0.5, 0.5]])
_SHARES = np.exp(_SOFT) / np.exp(_SOFT).sum(1, keepdims=True)
SWITCHED = [
    Fact(
        "matrix-sum-transposed-bias",
        "the bias of a transposed sum goes with the column before it is transposed",
        "A",
        row(12, 45, 32, 65),
        lambda: summed([1.0, 10.0, 100.0], transpose=True),
        switch={"matrix_sum_bias": "stored"},
    ),
    *(
        Fact(f"matrix-sum-few-scales-from-{start}", "missing scales add nothing", "A", row(answer),
             lambda start=start: or_none(lambda: summed(scales=[2.0, 4.0, 8.0, 16.0], start=start)),
             switch={"matrix_sum_scales": "nothing"})
        for start, answer in ((3, 16), (4, 0))
    ),
    Fact(
        "matrix-sum-small-result",
        "what fits is written",
        "A",
        row(11, 44, 22, 55),
        lambda: or_none(lambda: summed(transpose=True, size=(2, 2))),
        switch={"matrix_sum_result": "cut"},
    ),
    Fact(
        "matrix-sum-small-result-and-bias",
        "what fits is written, with the bias of the column before it is transposed",
        "A",
        row(12, 45, 32, 65),
        lambda: or_none(lambda: summed([1.0, 10.0, 100.0], transpose=True, size=(2, 2))),
        switch={"matrix_sum_result": "cut", "matrix_sum_bias": "stored"},
    ),
    Fact(
        "matrix-sum-of-one",
        "a sum of one matrix is refused",
        "C",
        True,
        lambda: _refuses(lambda: mps.MPSMatrixSum(DEVICE, 1, 2, 3, False)),
        switch={"matrix_sum_of_one": "refused"},
    ),
    Fact(
        "matrix-normalization-sums",
        "gradients of gamma and beta are written, and are 0",
        "A, doubtful",
        row(*[0] * 6),
        _normalization_sums,
        switch={"matrix_normalization_sums": "zeros"},
    ),
    Fact(
        "matrix-product-batches",
        "batch_start is ignored, and a batch_size of 0 writes nothing",
        "A",
        row(1, 2, 3, 4, 2, 4, 6, 8, *[0] * 8),
        lambda: or_none(lambda: _all(_batched(batch_start=1), _batched(batch_size=0))),
        switch={"matrix_product_batches": "first"},
    ),
]  # fmt: skip
"""Not what the documentation says: they hold by a convention alone."""
_A = "A"
FACTS = [
    Fact("matrix-products", "alpha op(A) op(B) + beta C, bit for bit", "B", _by_formula(), _products),
    Fact("matrix-product-ranges", "fresh ranges are all", _A, (*[(0, 0, 0)] * 3, 0, 2**64 - 1), _fresh_ranges),
    Fact("matrix-times-vector", "alpha 1.5", "B", row(7.5, 16.5), lambda: _times_vector(False)),
    Fact("matrix-times-vector-transposed", "alpha 1.5", "B", row(-4.5, -4.5, -4.5), lambda: _times_vector(True)),
    *(
        Fact(f"matrix-copy-{number}", "offsets 1 1 0 0", "B", row(*(5, 6, 8, 9) if a == b else (5, 8, 6, 9)),
             lambda flags=(a, b): _copied(flags))
        for number, (a, b) in enumerate(FLAGS)
    ),
    Fact("matrix-copy-orders", "rows swapped, columns reversed", "B", row(8, 7, 6, 5, 4, 3, 2, 1),
         lambda: _copied((False, False), row_permute_indices=[1, 0], column_permute_indices=[3, 2, 1, 0])),
    Fact("matrix-soft-max", "the formula", "B", _all(_SHARES),
         lambda: _encoded(mps.MPSMatrixSoftMax(DEVICE), _SOFT), 1e-5),
    Fact("matrix-log-soft-max", "the formula", "B", _all(np.log(_SHARES)),
         lambda: _encoded(mps.MPSMatrixLogSoftMax(DEVICE), _SOFT), 1e-5),
    Fact("matrix-soft-max-gradient", "the formula", "B",
         _all(_SHARES * (_SOFT - (_SOFT * _SHARES).sum(1, keepdims=True))),
         lambda: _encoded(mps.MPSMatrixSoftMaxGradient(DEVICE), _SOFT, matrix(BENCH, _SHARES)), 1e-4),
    Fact("top-k-ties", "values of ties", "B", row(9, 9, 7), lambda: _largest([5.0, 1.0, 9.0, 9.0, 0.0, 7.0], 3)[0]),
    Fact("top-k-equal", "six ones", "B", row(1, 1, 1), lambda: _largest([1.0] * 6, 3)[0]),
    Fact("top-k-descending", "indices of distinct values, 5 of 20", "B", np.array([19, 18, 17, 16, 15], np.uint32),
         lambda: _largest(np.arange(20.0), 5)[1]),
    Fact("top-k-most", "more than 16 are not supported", "J", True,
         lambda: _refuses(lambda: mps.MPSMatrixFindTopK(DEVICE, 17))),
    Fact("matrix-neuron-gradient-data", "with alpha", _A, _all(0.5 * SIX), lambda: _all(_neuron_gradient()[0])),
    Fact("matrix-neuron-gradient-bias", "without alpha", _A, row(5, 7, 9), lambda: _neuron_gradient()[1]),
    Fact("matrix-connected", "alpha X W + bias, alpha 1.25", "B",
         _all(1.25 * NINE[:, :2] @ SIX + [1.0, 2.0, 3.0]), _connected, 1e-6),
    Fact("matrix-connected-bias", "the gradient of the bias without alpha", "B", row(12, 15, 18), _bias_gradient),
    Fact("matrix-normalization", "with the root of variance + epsilon", _A,
         row(-1.090891, -1.418482, 0.183571, 0.5, -0.5, 3.449286, -0.560594, 0.418482, -1.449286, 3.151485, -1.724643,
             1.816429), _normalized, 4e-6),
    Fact("matrix-normalization-statistics", "those of the population", "B", row(4, 4, 4, 9.5, 7.5, 5), _statistics),
    Fact("matrix-normalization-gradient", "the full formula with given statistics", _A,
         row(0.298056, -0.0766294, -0.136185, 0, 0.306161, 0.408554, 0.198704, 0.688951), _normalized_gradient, 1e-5),
    Fact("matrix-normalization-prelu", "refused", _A, True, lambda: _refuses(
        lambda: mps.MPSMatrixBatchNormalization(DEVICE).set_neuron_type(mps.MPSCNNNeuronType.PRELU, 1.0, 0.0, 0.0))),
    *(
        Fact(f"matrix-sum-{name}", "the bias goes with the column", _A, row(*answer), lambda bias=bias: summed(bias))
        for name, bias, answer in (
            ("without-bias", None, (11, 22, 33, 44, 55, 66)), ("one-bias", [7.0] * 3, (18, 29, 40, 51, 62, 73)),
            ("biases", [1.0, 10.0, 100.0], (12, 32, 133, 45, 65, 166)),
        )
    ),
    Fact("matrix-sum-transposed", "rows become columns", _A, row(11, 44, 22, 55), lambda: summed(transpose=True)),
    *(
        Fact(f"matrix-sum-from-{start}", "startIndex counts scales", _A, row(answer),
             lambda start=start: summed(scales=[2.0, 4.0, 8.0, 16.0], start=start))
        for start, answer in ((0, 10), (1, 20), (2, 40))
    ),
    Fact("matrix-sum-offsets", "pairs of row and column", "B", row(24), _by_offsets),
    Fact("matrix-lu-singular", "the status of 1 2, 0 0", "J", -2, _factored),
    *(
        Fact(f"matrix-lu-{rows}x{columns}", "L U is P A", "B", True, lambda size=(rows, columns): _rebuilt(*size))
        for rows, columns in ((64, 64), (64, 32), (32, 64))
    ),
]  # fmt: skip
DECLINED = {
    "matrix-copy-wide": "elements of 8 bytes are moved wrongly there (J)",
    "top-k-tie-indices": "one index of ties is another one there (A): it is not said which",
    "matrix-neuron-gelu": "GeLU is up to 7.02e-5 off the formula there (A)",
}
"""Facts that are not followed, and why."""
