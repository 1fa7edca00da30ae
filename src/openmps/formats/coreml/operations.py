"""Operations of an ML program in ONNX's terms, which the builders of ONNX's operators then make nodes of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from openmps.formats.coreml import recurrent_operations, windows
from openmps.formats.coreml.draft import FLOAT, HALF, INTEGER, normalized
from openmps.formats.coreml.windows import Write
from openmps.formats.onnx.problems import NodeError

_FAR = 1 << 62
"""An end beyond every axis."""


def _plain(operator: str, *arguments: str, **attributes: Any) -> Write:
    """An operator of the same arguments."""

    def write(operation: Any) -> None:
        operation.becomes(operator, [operation.name(each) for each in arguments or ("x",)], **attributes)

    return write


def _with(operator: str, **attributes: tuple[str, float]) -> Write:
    """An operator with attributes that are arguments here: their names, and their defaults."""

    def write(operation: Any) -> None:
        found = {ours: operation.decimal(*theirs) for ours, theirs in attributes.items()}
        operation.becomes(operator, [operation.name()], **found)

    return write


# --- functions of a number --------------------------------------------------------------------------------------------


def _shifted(operation: Any, epsilon: float) -> str:
    """The input and a small number."""
    small = operation.decimal("epsilon", epsilon)
    return operation.draft.step("Add", [operation.name(), small]) if np.float32(small) else operation.name()


def _inverse_root(operation: Any) -> None:
    operation.becomes("Pow", [_shifted(operation, 1e-12), -0.5])


def _line(operation: Any) -> None:
    """``alpha x + beta``."""
    product = operation.draft.step("Mul", [operation.name(), operation.decimal("alpha", 1.0)])
    operation.becomes("Add", [product, operation.decimal("beta", 0.0)])


def _scaled_tanh(operation: Any) -> None:
    """``alpha tanh(beta x)``."""
    inner = operation.draft.step("Mul", [operation.name(), operation.decimal("beta", 1.0)])
    operation.becomes("Mul", [operation.draft.step("Tanh", [inner]), operation.decimal("alpha", 1.0)])


def _clamped(operation: Any) -> None:
    """``min(x, beta)`` with a slope of alpha below 0."""
    inner = operation.draft.step("LeakyRelu", [operation.name()], alpha=operation.decimal("alpha", 1.0))
    operation.becomes("Min", [inner, operation.decimal("beta", 1.0)])


def _prelu(operation: Any) -> None:
    slopes = operation.array("alpha").reshape(-1, *[1] * (operation.rank - 2))
    operation.becomes("PRelu", [operation.name(), slopes])


_GELUS = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}


def _gelu(operation: Any) -> None:
    word = operation.text("mode", "EXACT")
    if word == "SIGMOID_APPROXIMATION":
        operation.becomes("Swish", [operation.name()], alpha=1.702)
    elif word in _GELUS:
        operation.becomes("Gelu", [operation.name()], approximate=_GELUS[word])
    else:
        raise NodeError(f"its mode is {word[:40]!r}")


_CASTS = {"fp16": HALF, "fp32": FLOAT, "int32": INTEGER}


def _cast(operation: Any) -> None:
    word = operation.text("dtype", "")
    if word not in _CASTS:
        raise NodeError(f"it makes numbers of {word[:40]!r}")
    operation.becomes("Cast", [operation.name()], to=_CASTS[word])


# --- matrices and normalizations --------------------------------------------------------------------------------------


def _linear(operation: Any) -> None:
    """``x Wᵀ + b``, of each row."""
    weights = operation.name("weight")
    if operation.rank == 2:
        operation.becomes("Gemm", [operation.name(), weights, operation.optional("bias")], transB=1)
        return
    turned = operation.draft.step("Transpose", [weights], perm=[1, 0])
    operation.becomes("MatMul", [operation.name(), turned, operation.optional("bias")])


def _product(operation: Any) -> None:
    if operation.flag("transpose_x", default=False):
        raise NodeError("its first matrix is transposed")
    other = operation.name("y")
    if operation.flag("transpose_y", default=False):
        other = operation.draft.step("Transpose", [other], perm=[1, 0])
    operation.becomes("MatMul", [operation.name(), other])


def _rows(operation: Any, count: int, *names: str) -> list[Any]:
    """Scales and shifts: 1 and 0 where they are left out."""
    return [operation.optional(name) or np.full(count, float(name == "gamma"), np.float32) for name in names]


def _channels(operation: Any) -> int:
    count = operation.shape()[1]
    if count is None:
        raise NodeError("its number of channels is not known")
    return count


def _normalization(operation: Any) -> None:
    rows = _rows(operation, _channels(operation), "gamma", "beta")
    inputs = [operation.name(), *rows, operation.name("mean"), operation.name("variance")]
    operation.becomes("BatchNormalization", inputs, epsilon=operation.decimal("epsilon", 1e-5))


def _instance(operation: Any) -> None:
    inputs = [operation.name(), *_rows(operation, _channels(operation), "gamma", "beta")]
    operation.becomes("InstanceNormalization", inputs, epsilon=operation.decimal("epsilon", 1e-5))


def _layer_normalization(operation: Any) -> None:
    rank = operation.rank
    axes = [axis % rank for axis in operation.integers("axes", list(range(rank)))]
    rows = {name: operation.array(name) for name in ("gamma", "beta") if operation.given(name)}
    operation.becomes(
        *normalized(operation.draft, operation.name(), axes, rank, rows, operation.decimal("epsilon", 1e-5))
    )


def _local_response(operation: Any) -> None:
    numbers = {"alpha": ("alpha", 1e-4), "beta": ("beta", 0.75), "bias": ("k", 1.0)}
    found = {ours: operation.decimal(*theirs) for ours, theirs in numbers.items()}
    operation.becomes("LRN", [operation.name()], size=operation.integer("size", 0), **found)


# --- reductions -------------------------------------------------------------------------------------------------------


def _reduction(operator: str, *, squares: bool = False, before: str = "", behind: str = "") -> Write:
    """Over some axes; of squares, or of functions, and a function of what comes out."""

    def write(operation: Any) -> None:
        axes = operation.integers("axes", list(range(operation.rank)))
        keeps, source = int(operation.flag("keep_dims", default=False)), operation.name()
        if squares:
            source = operation.draft.step("Mul", [source, source])
        source = operation.draft.step(before, [source]) if before else source
        if behind:
            source = operation.draft.step(operator, [source], axes=axes, keepdims=keeps)
            operation.becomes(behind, [source])
        else:
            operation.becomes(operator, [source], axes=axes, keepdims=keeps)

    return write


def _log_sum_exp(operation: Any) -> None:
    """``m + log Σ exp(x - m)``, m the largest x."""
    axes, step = operation.integers("axes", list(range(operation.rank))), operation.draft.step
    most = step("ReduceMax", [operation.name()], axes=axes, keepdims=1)
    shifted = step("Exp", [step("Sub", [operation.name(), most])])
    found = [step("Log", [step("ReduceSum", [shifted], axes=axes, keepdims=1)]), most]
    if operation.flag("keep_dims", default=False):
        operation.becomes("Add", found)
    else:
        operation.becomes("Squeeze", [step("Add", found), np.array(axes)])


def _place(operator: str) -> Write:
    def write(operation: Any) -> None:
        keeps = int(operation.flag("keep_dims", default=False))
        operation.becomes(operator, [operation.name()], axis=operation.integer("axis", -1), keepdims=keeps)

    return write


# --- shapes -----------------------------------------------------------------------------------------------------------


def _concatenation(operation: Any) -> None:
    if operation.flag("interleave", default=False):
        raise NodeError("it takes channels of its inputs by turns")
    operation.becomes("Concat", operation.names("values"), axis=operation.integer("axis", 0))


def _stack(operation: Any) -> None:
    axis = operation.integer("axis", 0)
    parts = [operation.draft.step("Unsqueeze", [name, np.array([axis])]) for name in operation.names("values")]
    operation.becomes("Concat", parts, axis=axis)


def _split(operation: Any) -> None:
    axis, count = operation.integer("axis", 0), len(operation.outputs)
    length = operation.shape()[axis]
    sizes = operation.integers("split_sizes", [])
    if not sizes and (length is None or length % count):
        raise NodeError(f"its {count} parts of {length} are not of one length")
    lengths = np.array(sizes or [(length or 0) // count] * count)
    operation.draft.several("Split", [operation.name(), lengths], operation.outputs, axis=axis)


def _slice(operation: Any) -> None:
    """From a begin to an end along each axis; masks leave one of them out, or take the axis away."""
    rank = operation.rank
    begin, end = operation.integers("begin"), operation.integers("end")
    steps = operation.integers("stride", [1] * rank)
    opened, closed, gone = (
        operation.integers(f"{word}_mask", [0] * rank) for word in ("begin", "end", "squeeze")
    )  # fmt: skip
    starts = [
        (0 if step > 0 else _FAR) if is_open else at for at, is_open, step in zip(begin, opened, steps, strict=True)
    ]
    ends = [
        (_FAR if step > 0 else -_FAR) if is_open else at for at, is_open, step in zip(end, closed, steps, strict=True)
    ]
    ends = [at if not is_gone else (start + 1 or _FAR) for at, start, is_gone in zip(ends, starts, gone, strict=True)]
    inputs = [operation.name(), *(np.array(each) for each in (starts, ends, range(rank), steps))]
    if not any(gone):
        operation.becomes("Slice", inputs)
        return
    axes = np.array([axis for axis, is_gone in enumerate(gone) if is_gone])
    operation.becomes("Squeeze", [operation.draft.step("Slice", inputs), axes])


def _slice_by_size(operation: Any) -> None:
    begin, sizes = operation.integers("begin"), operation.integers("size")
    ends = [_FAR if size == -1 else at + size for at, size in zip(begin, sizes, strict=True)]
    operation.becomes("Slice", [operation.name(), *(np.array(each) for each in (begin, ends, range(operation.rank)))])


def _crop(operation: Any) -> None:
    """Rows and columns are cut off at both ends."""
    sides = [operation.integers(f"crop_{side}") for side in ("height", "width")]
    sizes = operation.lengths()
    starts = [before for before, _ in sides]
    ends = [size - behind for size, (_, behind) in zip(sizes, sides, strict=True)]
    operation.becomes("Slice", [operation.name(), *(np.array(each) for each in (starts, ends, [-2, -1]))])


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _pad(operation: Any) -> None:
    """Pads of the last axes, two an axis."""
    given, word = operation.integers("pad"), operation.text("mode", "constant")
    if word not in _MODES:
        raise NodeError(f"its mode is {word[:40]!r}")
    before, behind = given[::2], given[1::2]
    others = [0] * (operation.rank - len(before))
    pads = np.array([*others, *before, *others, *behind])
    operation.becomes("Pad", [operation.name(), pads, operation.decimal("constant_val", 0.0)], mode=_MODES[word])


def _reshape(operation: Any) -> None:
    shape = operation.name("shape")
    operation.becomes("Reshape", [operation.name(), shape])


def _axes(operator: str) -> Write:
    def write(operation: Any) -> None:
        axes = [np.array(operation.integers("axes"))] if operation.given("axes") else []
        operation.becomes(operator, [operation.name(), *axes])

    return write


def _blocks(operator: str, argument: str, mode: str) -> Write:
    def write(operation: Any) -> None:
        operation.becomes(operator, [operation.name()], blocksize=operation.integer(argument, 1), mode=mode)

    return write


def _gather(operation: Any) -> None:
    operation.becomes("Gather", [operation.name(), operation.name("indices")], axis=operation.integer("axis", 0))


OPERATIONS: Mapping[str, Write] = {
    **windows.OPERATIONS,
    **recurrent_operations.OPERATIONS,
    "identity": _plain("Identity"),
    "cast": _cast,
    "relu": _plain("Relu"),
    "relu6": lambda operation: operation.becomes("Clip", [operation.name(), 0.0, 6.0]),
    "leaky_relu": _with("LeakyRelu", alpha=("alpha", 0.01)),
    "thresholded_relu": _with("ThresholdedRelu", alpha=("alpha", 1.0)),
    "clamped_relu": _clamped,
    "prelu": _prelu,
    "elu": _with("Elu", alpha=("alpha", 1.0)),
    "sigmoid": _plain("Sigmoid"),
    "sigmoid_hard": _with("HardSigmoid", alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "tanh": _plain("Tanh"),
    "scaled_tanh": _scaled_tanh,
    "softplus": _plain("Softplus"),
    "softsign": _plain("Softsign"),
    "silu": _plain("Swish"),
    "gelu": _gelu,
    "erf": _plain("Erf"),
    "linear_activation": _line,
    "abs": _plain("Abs"),
    "exp": _plain("Exp"),
    "log": lambda operation: operation.becomes("Log", [_shifted(operation, 1e-45)]),
    "sqrt": _plain("Sqrt"),
    "rsqrt": _inverse_root,
    "inverse": lambda operation: operation.becomes("Reciprocal", [_shifted(operation, 1e-4)]),
    "square": lambda operation: operation.becomes("Pow", [operation.name(), 2.0]),
    "clip": lambda operation: operation.becomes(
        "Clip", [operation.name(), operation.decimal("alpha", 0.0), operation.decimal("beta", 1.0)]
    ),
    "threshold": lambda operation: operation.becomes("Max", [operation.name(), operation.decimal("alpha", 0.0)]),
    "add": _plain("Add", "x", "y"),
    "sub": _plain("Sub", "x", "y"),
    "mul": _plain("Mul", "x", "y"),
    "real_div": _plain("Div", "x", "y"),
    "pow": _plain("Pow", "x", "y"),
    "maximum": _plain("Max", "x", "y"),
    "minimum": _plain("Min", "x", "y"),
    "softmax": lambda operation: operation.becomes(
        "Softmax", [operation.name()], axis=operation.integer("axis", -1)
    ),
    "linear": _linear,
    "matmul": _product,
    "batch_norm": _normalization,
    "instance_norm": _instance,
    "layer_norm": _layer_normalization,
    "local_response_norm": _local_response,
    "reduce_mean": _reduction("ReduceMean"),
    "reduce_sum": _reduction("ReduceSum"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_sum_square": _reduction("ReduceSum", squares=True),
    "reduce_l2_norm": _reduction("ReduceSum", squares=True, behind="Sqrt"),
    "reduce_l1_norm": _reduction("ReduceSum", before="Abs"),
    "reduce_log_sum": _reduction("ReduceSum", behind="Log"),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_argmax": _place("ArgMax"),
    "reduce_argmin": _place("ArgMin"),
    "concat": _concatenation,
    "stack": _stack,
    "split": _split,
    "slice_by_index": _slice,
    "slice_by_size": _slice_by_size,
    "crop": _crop,
    "pad": _pad,
    "gather": _gather,
    "shape": _plain("Shape"),
    "reshape": _reshape,
    "flatten2d": lambda operation: operation.becomes(
        "Flatten", [operation.name()], axis=operation.integer("axis", 1)
    ),
    "transpose": lambda operation: operation.becomes(
        "Transpose", [operation.name()], perm=operation.integers("perm")
    ),
    "squeeze": _axes("Squeeze"),
    "expand_dims": _axes("Unsqueeze"),
    "pixel_shuffle": _blocks("DepthToSpace", "upscale_factor", "CRD"),
    "pixel_unshuffle": _blocks("SpaceToDepth", "downscale_factor", "CRD"),
    "depth_to_space": _blocks("DepthToSpace", "block_size", "DCR"),
    "space_to_depth": _blocks("SpaceToDepth", "block_size", "DCR"),
}  # fmt: skip
"""How each operation is written, by its type."""
