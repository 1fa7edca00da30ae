"""Kernels over matrices: sample configurations, operands that suit them, and their oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import openmps as mps
from oracles import matrix as oracle
from oracles import neuron as neuron_oracle
from oracles import softmax as softmax_oracle

Array = np.ndarray
Type, Neuron = mps.MPSDataType, mps.MPSCNNNeuronType
FLOATS, FLOAT32, WORDS = (Type.FLOAT32, Type.FLOAT16), (Type.FLOAT32,), (Type.UINT32,)


@dataclass(frozen=True)
class Operand:
    """One operand of an encode: a vector or a matrix of one index."""

    name: str
    shape: tuple[int, ...]
    is_result: bool = False
    origin: str = ""
    """The kernel's property that places it."""
    types: tuple[Any, ...] = FLOATS
    make: Callable[[np.random.Generator, tuple[int, ...]], Array] = lambda rng, shape: rng.normal(size=shape)
    is_sized: bool = True
    """Whether the kernel's configuration, or other operands, say its size: a smaller one is refused."""


@dataclass(frozen=True)
class MatrixSample:
    """A kernel, its operands in the order of the encode, and what each result must be."""

    name: str
    make: Callable[[Any], Any]
    operands: tuple[Operand, ...]
    oracle: Callable[[dict[str, Array]], dict[str, Array]]
    encode: str = "encode"
    properties: dict[str, Any] = field(default_factory=dict)

    def kernel(self, device: Any) -> Any:
        """One on a device."""
        kernel = self.make(device)
        for name, value in self.properties.items():
            if name == "neuron":
                kernel.neuron_descriptor = value
            else:
                setattr(kernel, name, value)
        return kernel

    def __str__(self) -> str:
        return self.name


def _result(name: str, shape: tuple[int, ...], **more: Any) -> Operand:
    return Operand(name, shape, is_result=True, **more)


def _source(name: str, shape: tuple[int, ...], **more: Any) -> Operand:
    """A source whose size says how much is used."""
    return Operand(name, shape, is_sized=False, **more)


# --- products ---------------------------------------------------------------------------------------------------------


def _product(rows: int, columns: int, inner: int, left: bool, right: bool, alpha: float, beta: float) -> MatrixSample:
    a, b = (inner, rows) if left else (rows, inner), (columns, inner) if right else (inner, columns)
    operands = (
        Operand("left_matrix", a, origin="left_matrix_origin"),
        Operand("right_matrix", b, origin="right_matrix_origin"),
        _result("result_matrix", (rows, columns), origin="result_matrix_origin"),
    )
    return MatrixSample(
        f"product {rows}x{inner}x{columns} {left} {right} {alpha} {beta}",
        lambda device: mps.MPSMatrixMultiplication(device, left, right, rows, columns, inner, alpha, beta),
        operands,
        lambda of: {
            "result_matrix": oracle.product(
                of["left_matrix"], of["right_matrix"], of["result_matrix"], alpha, beta, left, right
            )
        },
    )


def _vector_product(rows: int, columns: int, transpose: bool, alpha: float, beta: float) -> MatrixSample:
    operands = (
        Operand(
            "input_matrix", (columns, rows) if transpose else (rows, columns), origin="primary_source_matrix_origin"
        ),
        Operand("input_vector", (columns,), origin="secondary_source_matrix_origin"),
        _result("result_vector", (rows,), origin="result_matrix_origin"),
    )

    def expected(of: dict[str, Array]) -> dict[str, Array]:
        column, addend = of["input_vector"][:, None], of["result_vector"][:, None]
        return {"result_vector": oracle.product(of["input_matrix"], column, addend, alpha, beta, transpose)[:, 0]}

    return MatrixSample(
        f"vector product {rows}x{columns} {transpose} {alpha} {beta}",
        lambda device: mps.MPSMatrixVectorMultiplication(device, transpose, rows, columns, alpha, beta),
        operands,
        expected,
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def _pixels(x: Array) -> Array:
    return x[:, :, None, None]


def _soft_max(kind: str, shape: tuple[int, int]) -> MatrixSample:
    function = softmax_oracle.log_softmax if "Log" in kind else softmax_oracle.softmax
    return MatrixSample(
        f"{kind} of {shape}",
        getattr(mps, kind),
        (
            _source("input_matrix", shape, origin="source_matrix_origin"),
            _result("result_matrix", shape, origin="result_matrix_origin"),
        ),
        lambda of: {"result_matrix": function(_pixels(of["input_matrix"]))[:, :, 0, 0]},
    )


def _soft_max_gradient(kind: str, shape: tuple[int, int]) -> MatrixSample:
    is_log = "Log" in kind
    function = softmax_oracle.log_softmax_gradient if is_log else softmax_oracle.softmax_gradient
    forward = softmax_oracle.log_softmax if is_log else softmax_oracle.softmax
    return MatrixSample(
        f"{kind} of {shape}",
        getattr(mps, kind),
        (
            _source("gradient_matrix", shape, origin="primary_source_matrix_origin"),
            _source(
                "forward_output_matrix",
                shape,
                origin="secondary_source_matrix_origin",
                make=lambda rng, size: forward(_pixels(rng.normal(size=size)))[:, :, 0, 0],
            ),
            _result("result_matrix", shape, origin="result_matrix_origin"),
        ),
        lambda of: {
            "result_matrix": function(_pixels(of["gradient_matrix"]), _pixels(of["forward_output_matrix"]))[:, :, 0, 0]
        },
    )


def _few_values(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers with ties."""
    return rng.integers(-2, 3, shape).astype(np.float64)


def _top_k(shape: tuple[int, int], count: int, first: int) -> MatrixSample:
    def expected(of: dict[str, Array]) -> dict[str, Array]:
        values, places = oracle.top_k(of["input_matrix"], count, first)
        return {"result_value_matrix": values, "result_index_matrix": places}

    size = (shape[0], count)
    return MatrixSample(
        f"top {count} of {shape} from {first}",
        lambda device: mps.MPSMatrixFindTopK(device, count),
        (
            _source("input_matrix", shape, origin="source_matrix_origin", make=_few_values),
            _result("result_index_matrix", size, origin="result_matrix_origin", types=WORDS),
            _result("result_value_matrix", size, origin="result_matrix_origin"),
        ),
        expected,
        properties={"index_offset": first},
    )


# --- layers -----------------------------------------------------------------------------------------------------------

PRELU = mps.MPSNNNeuronDescriptor(data=[0.5, -0.25, 2.0, 1.5])
SIGMOID = mps.MPSNNNeuronDescriptor(Neuron.SIGMOID)
NONE = mps.MPSNNNeuronDescriptor()
ELU = mps.MPSNNNeuronDescriptor(Neuron.ELU, 1.5)


def _applied(x: Array, neuron: Any) -> Array:
    parts = int(neuron.neuron_type), neuron.a, neuron.b, neuron.c, neuron.data
    return neuron_oracle.forward(_pixels(x), *parts)[:, :, 0, 0]


def _slope(g: Array, x: Array, neuron: Any) -> Array:
    parts = int(neuron.neuron_type), neuron.a, neuron.b, neuron.c, neuron.data
    return neuron_oracle.gradient(_pixels(g), _pixels(x), *parts)[:, :, 0, 0]


def _optional(name: str, size: int, is_given: bool, *, is_result: bool = False) -> tuple[Operand, ...]:
    return (Operand(name, (size,) if is_given else (), is_result),)


def _neuron(shape: tuple[int, int], neuron: Any, alpha: float, has_bias: bool) -> MatrixSample:
    return MatrixSample(
        f"{neuron.neuron_type.name} of {shape}, alpha {alpha}{', biased' if has_bias else ''}",
        mps.MPSMatrixNeuron,
        (
            _source("input_matrix", shape, origin="source_matrix_origin"),
            *_optional("bias_vector", shape[1], has_bias),
            _result("result_matrix", shape, origin="result_matrix_origin"),
        ),
        lambda of: {"result_matrix": _applied(alpha * of["input_matrix"] + of.get("bias_vector", 0.0), neuron)},
        properties={"alpha": alpha, "neuron": neuron},
    )


def _neuron_gradient(shape: tuple[int, int], neuron: Any, alpha: float, has_bias: bool) -> MatrixSample:
    def expected(of: dict[str, Array]) -> dict[str, Array]:
        slope = _slope(of["gradient_matrix"], alpha * of["input_matrix"] + of.get("bias_vector", 0.0), neuron)
        found = {"result_gradient_for_data_matrix": alpha * slope}
        return found | ({"result_gradient_for_bias_vector": slope.sum(0)} if has_bias else {})

    return MatrixSample(
        f"gradient of {neuron.neuron_type.name} of {shape}, alpha {alpha}{', biased' if has_bias else ''}",
        mps.MPSMatrixNeuronGradient,
        (
            _source("gradient_matrix", shape, origin="primary_source_matrix_origin"),
            _source("input_matrix", shape, origin="secondary_source_matrix_origin"),
            *_optional("bias_vector", shape[1], has_bias),
            _result("result_gradient_for_data_matrix", shape, origin="result_matrix_origin"),
            *_optional("result_gradient_for_bias_vector", shape[1], has_bias, is_result=True),
        ),
        expected,
        properties={"alpha": alpha, "neuron": neuron},
    )


def _connected(rows: int, inputs: int, outputs: int, neuron: Any, alpha: float, has_bias: bool) -> MatrixSample:
    def expected(of: dict[str, Array]) -> dict[str, Array]:
        y = oracle.product(of["input_matrix"], of["weight_matrix"], np.zeros((rows, outputs)), alpha, 0.0)
        return {"result_matrix": _applied(y + of.get("bias_vector", 0.0), neuron)}

    return MatrixSample(
        f"connected {rows}x{inputs}x{outputs}, {neuron.neuron_type.name}{', biased' if has_bias else ''}",
        mps.MPSMatrixFullyConnected,
        (
            _source("input_matrix", (rows, inputs), origin="primary_source_matrix_origin"),
            _source("weight_matrix", (inputs, outputs), origin="secondary_source_matrix_origin"),
            *_optional("bias_vector", outputs, has_bias),
            _result("result_matrix", (rows, outputs), origin="result_matrix_origin"),
        ),
        expected,
        properties={"alpha": alpha, "neuron": neuron},
    )


def _connected_gradients(rows: int, inputs: int, outputs: int, alpha: float) -> list[MatrixSample]:
    gradient = _source("gradient_matrix", (rows, outputs), origin="primary_source_matrix_origin")

    def of_weights(of: dict[str, Array]) -> dict[str, Array]:
        g, zeros = of["gradient_matrix"], np.zeros((inputs, outputs))
        found = oracle.product(of["input_matrix"], g, zeros, alpha, 0.0, is_left_transposed=True)
        return {"result_gradient_for_weight_matrix": found, "result_gradient_for_bias_vector": g.sum(0)}

    name, kind = f"gradient of connected {rows}x{inputs}x{outputs}, alpha {alpha}", mps.MPSMatrixFullyConnectedGradient
    return [
        MatrixSample(
            f"{name}: data",
            kind,
            (
                gradient,
                _source("weight_matrix", (inputs, outputs), origin="secondary_source_matrix_origin"),
                _result("result_gradient_for_data_matrix", (rows, inputs), origin="result_matrix_origin"),
            ),
            lambda of: {
                "result_gradient_for_data_matrix": oracle.product(
                    of["gradient_matrix"], of["weight_matrix"], np.zeros((rows, inputs)), alpha, 0.0, False, True
                )
            },
            encode="encode_gradient_for_data",
            properties={"alpha": alpha},
        ),
        MatrixSample(
            f"{name}: weights",
            kind,
            (
                gradient,
                _source("input_matrix", (rows, inputs), origin="secondary_source_matrix_origin"),
                _result("result_gradient_for_weight_matrix", (inputs, outputs), origin="result_matrix_origin"),
                _result("result_gradient_for_bias_vector", (outputs,)),
            ),
            of_weights,
            encode="encode_gradient_for_weights_and_bias",
            properties={"alpha": alpha},
        ),
    ]


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.5, 2.0, shape)


def _affine(of: dict[str, Array], columns: int) -> tuple[Array, Array]:
    return of.get("gamma_vector", np.ones(columns)), of.get("beta_vector", np.zeros(columns))


def _normalization(shape: tuple[int, int], neuron: Any, is_computed: bool, is_affine: bool) -> MatrixSample:
    columns, epsilon = shape[1], 0.25

    def expected(of: dict[str, Array]) -> dict[str, Array]:
        x = of["input_matrix"]
        mean, variance = oracle.statistics(x) if is_computed else (of["mean_vector"], of["variance_vector"])
        y = _applied(oracle.normalized(x, mean, variance, *_affine(of, columns), epsilon), neuron)
        return {"result_matrix": y} | ({"mean_vector": mean, "variance_vector": variance} if is_computed else {})

    return MatrixSample(
        f"normalization of {shape}, {neuron.neuron_type.name} {is_computed} {is_affine}",
        mps.MPSMatrixBatchNormalization,
        (
            _source("input_matrix", shape, origin="source_matrix_origin"),
            Operand("mean_vector", (columns,), is_computed),
            Operand("variance_vector", (columns,), is_computed, make=_positive),
            *_optional("gamma_vector", columns, is_affine),
            *_optional("beta_vector", columns, is_affine),
            _result("result_matrix", shape, origin="result_matrix_origin"),
        ),
        expected,
        properties={"epsilon": epsilon, "neuron": neuron, "compute_statistics": is_computed},
    )


def _normalization_gradient(shape: tuple[int, int], neuron: Any, is_affine: bool) -> MatrixSample:
    columns, epsilon = shape[1], 0.25

    def expected(of: dict[str, Array]) -> dict[str, Array]:
        g, x, mean, variance = (
            of[name] for name in ("gradient_matrix", "input_matrix", "mean_vector", "variance_vector")
        )
        gamma, beta = _affine(of, columns)
        g = _slope(g, oracle.normalized(x, mean, variance, gamma, beta, epsilon), neuron)
        found = oracle.normalized_gradient(g, x, mean, variance, gamma, epsilon)
        names = ("data_matrix", *(("gamma_vector", "beta_vector") if is_affine else ()))
        return {f"result_gradient_for_{name}": each for name, each in zip(names, found, strict=False)}

    return MatrixSample(
        f"gradient of normalization of {shape}, {neuron.neuron_type.name} {is_affine}",
        mps.MPSMatrixBatchNormalizationGradient,
        (
            _source("gradient_matrix", shape, origin="primary_source_matrix_origin"),
            _source("input_matrix", shape, origin="secondary_source_matrix_origin"),
            Operand("mean_vector", (columns,)),
            Operand("variance_vector", (columns,), make=_positive),
            *_optional("gamma_vector", columns, is_affine),
            *_optional("beta_vector", columns, is_affine),
            _result("result_gradient_for_data_matrix", shape, origin="result_matrix_origin"),
            *_optional("result_gradient_for_gamma_vector", columns, is_affine, is_result=True),
            *_optional("result_gradient_for_beta_vector", columns, is_affine, is_result=True),
        ),
        expected,
        properties={"epsilon": epsilon, "neuron": neuron},
    )


# --- linear systems ---------------------------------------------------------------------------------------------------


def _positive_definite(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    root = rng.normal(size=shape)
    return root @ root.T + np.eye(shape[0])


def _diagonal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Far from singular, whichever triangle is used."""
    return rng.normal(size=shape) + 4.0 * np.eye(shape[0])


def _lu(rows: int, columns: int) -> MatrixSample:
    def expected(of: dict[str, Array]) -> dict[str, Array]:
        factors, pivots = oracle.lu(of["source_matrix"])
        return {"result_matrix": factors, "pivot_indices": pivots[None]}

    return MatrixSample(
        f"LU of {rows}x{columns}",
        lambda device: mps.MPSMatrixDecompositionLU(device, rows, columns),
        (
            Operand("source_matrix", (rows, columns), origin="source_matrix_origin", types=FLOAT32),
            _result("result_matrix", (rows, columns), origin="result_matrix_origin", types=FLOAT32),
            _result("pivot_indices", (1, min(rows, columns)), types=WORDS),
        ),
        expected,
    )


def _cholesky(order: int, is_lower: bool, make: Any = _positive_definite) -> MatrixSample:
    size = (order, order)
    return MatrixSample(
        f"Cholesky of {order}, {'lower' if is_lower else 'upper'}{'' if make is _positive_definite else ', failing'}",
        lambda device: mps.MPSMatrixDecompositionCholesky(device, is_lower, order),
        (
            Operand("source_matrix", size, origin="source_matrix_origin", types=FLOAT32, make=make),
            _result("result_matrix", size, origin="result_matrix_origin", types=FLOAT32),
        ),
        lambda of: {"result_matrix": oracle.cholesky(of["source_matrix"], of["result_matrix"], is_lower)},
    )


def _failing(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Not positive definite from the third pivot on."""
    found = _positive_definite(rng, shape)
    found[2, 2] -= 50.0
    return found


_PLACES = {"source": "primary_source_matrix_origin", "right_hand_side": "secondary_source_matrix_origin"}


def _triangular(order: int, sides: int, right: bool, upper: bool, transpose: bool, unit: bool) -> MatrixSample:
    shape = (sides, order) if right else (order, sides)

    def expected(of: dict[str, Array]) -> dict[str, Array]:
        a = np.triu(of["source_matrix"]) if upper else np.tril(of["source_matrix"])
        if unit:
            a = a - np.diag(np.diag(a)) + np.eye(order)
        a, b = a.T if transpose else a, -0.5 * of["right_hand_side_matrix"]
        return {"solution_matrix": oracle.solved(a.T, b.T).T if right else oracle.solved(a, b)}

    return MatrixSample(
        f"triangular {order}x{sides} {right} {upper} {transpose} {unit}",
        lambda device: mps.MPSMatrixSolveTriangular(device, right, upper, transpose, unit, order, sides, -0.5),
        (
            Operand("source_matrix", (order, order), origin=_PLACES["source"], types=FLOAT32, make=_diagonal),
            Operand("right_hand_side_matrix", shape, origin=_PLACES["right_hand_side"], types=FLOAT32),
            _result("solution_matrix", shape, origin="result_matrix_origin", types=FLOAT32),
        ),
        expected,
    )


def _solve_lu(order: int, sides: int, transpose: bool) -> MatrixSample:
    swaps = np.minimum(np.arange(order) + 1, order - 1)

    def expected(of: dict[str, Array]) -> dict[str, Array]:
        factors = of["source_matrix"]
        a = (np.tril(factors, -1) + np.eye(order)) @ np.triu(factors)
        for row in reversed(range(order)):
            a[[row, swaps[row]]] = a[[swaps[row], row]]
        return {"solution_matrix": oracle.solved(a.T if transpose else a, of["right_hand_side_matrix"])}

    return MatrixSample(
        f"solution of LU {order}x{sides} {transpose}",
        lambda device: mps.MPSMatrixSolveLU(device, transpose, order, sides),
        (
            Operand("source_matrix", (order, order), origin=_PLACES["source"], types=FLOAT32, make=_diagonal),
            Operand("right_hand_side_matrix", (order, sides), origin=_PLACES["right_hand_side"], types=FLOAT32),
            Operand("pivot_indices", (1, order), types=WORDS, make=lambda rng, shape: np.resize(swaps, shape)),
            _result("solution_matrix", (order, sides), origin="result_matrix_origin", types=FLOAT32),
        ),
        expected,
    )


def _solve_cholesky(order: int, sides: int, upper: bool) -> MatrixSample:
    def expected(of: dict[str, Array]) -> dict[str, Array]:
        factor = np.triu(of["source_matrix"]).T if upper else np.tril(of["source_matrix"])
        return {"solution_matrix": oracle.solved(factor @ factor.T, of["right_hand_side_matrix"])}

    return MatrixSample(
        f"solution of Cholesky {order}x{sides} {upper}",
        lambda device: mps.MPSMatrixSolveCholesky(device, upper, order, sides),
        (
            Operand("source_matrix", (order, order), origin=_PLACES["source"], types=FLOAT32, make=_diagonal),
            Operand("right_hand_side_matrix", (order, sides), origin=_PLACES["right_hand_side"], types=FLOAT32),
            _result("solution_matrix", (order, sides), origin="result_matrix_origin", types=FLOAT32),
        ),
        expected,
    )


MATRIX_SAMPLES: list[MatrixSample] = [
    _product(3, 4, 5, False, False, 1.0, 0.0),
    _product(2, 3, 4, True, False, 2.0, 0.5),
    _product(4, 2, 3, False, True, -0.5, 1.0),
    _product(1, 3, 2, True, True, 1.0, -2.0),
    _vector_product(3, 4, False, 1.0, 0.0),
    _vector_product(4, 3, True, 1.5, -1.0),
    *(_soft_max(kind, (3, 4)) for kind in ("MPSMatrixSoftMax", "MPSMatrixLogSoftMax")),
    *(_soft_max_gradient(kind, (3, 4)) for kind in ("MPSMatrixSoftMaxGradient", "MPSMatrixLogSoftMaxGradient")),
    _top_k((3, 9), 4, 0),
    _top_k((2, 16), 16, 7),
    *(_neuron((3, 4), neuron, 1.5, has_bias) for neuron, has_bias in ((SIGMOID, True), (PRELU, False), (NONE, True))),
    _neuron((2, 3), NONE, 1.0, False),
    *(_neuron_gradient((3, 4), neuron, 1.5, has_bias) for neuron, has_bias in ((SIGMOID, True), (PRELU, False))),
    _neuron_gradient((3, 4), ELU, 1.0, True),
    _connected(3, 4, 2, SIGMOID, 1.25, True),
    _connected(2, 3, 4, NONE, 1.0, False),
    *_connected_gradients(3, 4, 2, 1.25),
    *(_normalization((5, 3), neuron, *how) for neuron, how in ((NONE, (True, False)), (ELU, (True, True)))),
    _normalization((4, 3), SIGMOID, False, True),
    _normalization_gradient((5, 3), NONE, False),
    _normalization_gradient((5, 3), SIGMOID, True),
    _lu(4, 4),
    _lu(5, 3),
    _lu(3, 5),
    _cholesky(4, True),
    _cholesky(4, False),
    _cholesky(5, True, _failing),
    _cholesky(5, False, _failing),
    *(
        _triangular(3, 2, right, upper, transpose, unit)
        for right, upper, transpose, unit in ((0, 1, 0, 0), (1, 0, 0, 1), (0, 0, 1, 1), (1, 1, 1, 0))
    ),
    _solve_lu(4, 2, False),
    _solve_lu(3, 3, True),
    _solve_cholesky(4, 2, False),
    _solve_cholesky(3, 1, True),
]
"""Those whose encode takes each operand by a name of its own; copies and sums have tests of their own."""


def summing(device: Any) -> mps.MPSMatrixSum:
    """A sum of two matrices."""
    kernel = mps.MPSMatrixSum(device, 2, 2, 3, True)
    kernel.set_neuron_type(Neuron.RELU, 0.5)
    return kernel


FIRST_OF_KIND: dict[type, MatrixSample] = {}
"""The first sample of each class."""
for _sample in MATRIX_SAMPLES:
    FIRST_OF_KIND.setdefault(type(_sample.make(mps.mtl_device("cpu"))), _sample)
