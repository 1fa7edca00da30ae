"""Operators whose inputs are all constants, and arithmetic on shapes: done when a model is read.

Shapes may hold lengths that nobody knows yet, a batch's for one: they are arrays of objects then, with the atom of the
axis there, or None where the length is computed of one.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openmps.formats.onnx.layout import Length
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.problems import Budget, NodeError
from openmps.formats.onnx.tensors import BFLOAT16, dtype_of, to_bfloat16

Values = Sequence[Array | None]
Fold = Callable[[Node, Values, Budget, int], "Array"]

_MOST_LENGTHS = 64
_FAR = 1 << 40


def is_symbolic(value: Array) -> bool:
    """Whether an array of lengths may hold some that are not known."""
    return value.dtype == object


def lengths(values: Sequence[Length]) -> Array:
    """A row of lengths, some of which may not be known."""
    if all(isinstance(each, int) for each in values):
        return np.array(list(values), np.int64)
    row = np.empty(len(values), object)
    row[:] = list(values)
    return row


def known(value: Array, what: str) -> list[int]:
    """Whole numbers that must be known."""
    if value.dtype.kind not in "iub" or value.size > _MOST_LENGTHS:
        rule = "is no short row of whole numbers" if value.dtype != object else "holds a length that is not known"
        raise NodeError(f"its {what} {rule}", "Give the size of the input, as shapes={name: shape}")
    return [int(each) for each in value.reshape(-1)]


# --- one by one -------------------------------------------------------------------------------------------------------


def _need(values: Values, count: int) -> list[Array]:
    found = [value for value in values[:count] if value is not None]
    if len(found) < count:
        raise NodeError("an input is missing")
    return found


def _pointwise(function: Callable[..., Any], *, symbolic: Callable[..., Any] | None = None) -> Fold:
    def fold(node: Node, values: Values, budget: Budget, opset: int) -> Array:
        given = _need(values, len(values))
        shape = np.broadcast_shapes(*(value.shape for value in given))
        budget.take(8 * math.prod(shape), "arithmetic on constants")
        if any(map(is_symbolic, given)):
            if symbolic is None:
                raise NodeError("it computes with a length that is not known", "Give the size of the input")
            return _each(symbolic, given, shape)
        with np.errstate(all="ignore"):
            return np.asarray(function(*given)).astype(given[0].dtype if function not in _COMPARISONS else bool)

    return fold


def _each(function: Callable[..., Any], given: list[Array], shape: tuple[int, ...]) -> Array:
    """Whole numbers, some of them not known."""
    rows = [np.broadcast_to(value, shape).reshape(-1).tolist() for value in given]
    found = [_computed(function, *each) for each in zip(*rows, strict=True)]
    if any(isinstance(each, int) and abs(each) > _FAR for each in found):
        raise NodeError("it computes a length that no tensor has")
    return lengths(found).reshape(shape)


def _computed(function: Callable[..., Any], one: Length, other: Length) -> Length:
    """A length of two; one that is not known stays what it is where nothing is done to it."""
    if isinstance(one, int) and isinstance(other, int):
        return function(one, other)
    if function is not operator.sub and function is not _quotient and isinstance(one, int):
        one, other = other, one
    nothing = 0 if function in (operator.add, operator.sub) else 1
    return one if other == nothing else None


def _quotient(one: int, other: int) -> int:
    """Without its fraction: towards 0."""
    if not other:
        return 0
    below = one // other
    return below + (below < 0 and below * other != one)


def _divided(one: Array, other: Array) -> Array:
    if one.dtype.kind not in "iu":
        return one / other
    divisor = np.where(other == 0, 1, other).astype(one.dtype)
    below = one // divisor
    towards = below + ((below < 0) & (below * divisor != one))
    return np.where(other == 0, 0, towards)


_COMPARISONS = (np.equal, np.less, np.greater, np.less_equal, np.greater_equal, np.logical_and, np.logical_or)


def _cast(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    (value,) = _need(values, 1)
    dtype = dtype_of(node.integer("to", 0))
    if dtype is None:
        raise NodeError(f"it casts to ONNX number type {node.integer('to', 0)}, which is not read")
    if is_symbolic(value) and dtype.kind in "iu":
        return value
    if is_symbolic(value):
        raise NodeError("it makes a real number of a length that is not known", "Give the size of the input")
    budget.take(dtype.itemsize * value.size, "a cast")
    with np.errstate(all="ignore"):
        return to_bfloat16(value) if node.integer("to", 0) == BFLOAT16 else value.astype(dtype)


def _constant(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    if node.given("value"):
        return node.tensor("value")
    if node.given("value_float"):
        return np.array(node.decimal("value_float", 0), np.float32)
    if node.given("value_int"):
        return np.array(node.integer("value_int", 0), np.int64)
    if node.given("value_floats"):
        return np.array(node.decimals("value_floats"), np.float32)
    if node.given("value_ints"):
        return np.array(node.integers("value_ints"), np.int64)
    raise NodeError("it holds no dense numbers")


def _filled(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    (shape,) = _need(values, 1)
    sizes = _sizes(known(shape, "shape"))
    value = node.tensor("value") if node.given("value") else np.zeros(1, np.float32)
    if value.size != 1:
        raise NodeError("its value is not one number")
    budget.take(math.prod(sizes) * value.itemsize, "ConstantOfShape")
    return np.broadcast_to(value.reshape(()), sizes)  # takes no memory until it is copied


def _sizes(values: Sequence[int]) -> list[int]:
    if len(values) > _MOST_LENGTHS // 4 or any(not 0 <= each <= _FAR for each in values) or math.prod(values) > _FAR:
        raise NodeError("its shape is none that a tensor has")
    return list(values)


# --- shapes -----------------------------------------------------------------------------------------------------------


def _axes(node: Node, values: Values, opset: int, default: list[int] | None = None) -> list[int] | None:
    """The axes of an operator: an attribute in old versions, an input in new ones."""
    if len(values) > 1 and values[1] is not None:
        return known(values[1], "axes")
    return node.integers("axes") if node.given("axes") else default


def _squeeze(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, axes = _need(values, 1)[0], _axes(node, values, opset)
    return value.squeeze() if axes is None else value.squeeze(tuple(axes))


def _unsqueeze(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, axes = _need(values, 1)[0], _axes(node, values, opset)
    if axes is None or len(axes) + value.ndim > _MOST_LENGTHS // 4:
        raise NodeError("its axes are missing")
    return np.expand_dims(value, tuple(axes))


def _reshape(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value = _need(values, 1)[0]
    shape = known(values[1], "shape") if len(values) > 1 and values[1] is not None else node.integers("shape")
    sizes = [
        value.shape[axis] if each == 0 and not node.integer("allowzero", 0) else each for axis, each in enumerate(shape)
    ]
    budget.take(value.nbytes if value.base is not None and 0 in value.strides else 0, "a reshape")
    return value.reshape(sizes)


def _transpose(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value = _need(values, 1)[0]
    return value.transpose(node.integers("perm", list(range(value.ndim))[::-1]))


def _concat(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    given = _need(values, len(values))
    budget.take(sum(value.nbytes for value in given), "a concatenation of constants")
    symbolic = any(map(is_symbolic, given))
    joined = np.concatenate([value.astype(object) if symbolic else value for value in given], node.integer("axis", 0))
    return lengths(joined.tolist()) if symbolic and joined.ndim == 1 else joined


def _gather(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, places = _need(values, 2)
    axis = node.integer("axis", 0)
    size = value.size // max(1, value.shape[axis]) * places.size
    budget.take(size * value.itemsize, "Gather")
    found = np.take(value, places.astype(np.int64), axis)
    return np.asarray(found, value.dtype)


def _slice(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value = _need(values, 1)[0]
    return value[slices(node, values, value.ndim)]


def slices(node: Node, values: Values, rank: int) -> tuple[slice, ...]:
    """What a Slice takes of each axis."""
    if node.given("starts"):
        starts, ends = node.integers("starts"), node.integers("ends")
        axes, steps = node.integers("axes", list(range(len(starts)))), [1] * len(starts)
    else:
        more = [*values[1:], None, None, None, None]
        if more[0] is None or more[1] is None:
            raise NodeError("where it starts or ends is missing")
        starts, ends = known(more[0], "starts"), known(more[1], "ends")
        axes = list(range(len(starts))) if more[2] is None else known(more[2], "axes")
        steps = [1] * len(starts) if more[3] is None else known(more[3], "steps")
    found = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -rank <= axis < rank or step == 0:
            raise NodeError("its axes or steps are none that a slice has")
        # Backwards, an end before the first element is none at all.
        found[axis] = slice(start, None if step < 0 and end < -_FAR else end, step)
    return tuple(found)


def _expand(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, shape = _need(values, 2)
    sizes = _sizes(known(shape, "shape"))
    whole = np.broadcast_shapes(value.shape, tuple(sizes))
    budget.take(math.prod(whole) * value.itemsize, "Expand")
    return np.broadcast_to(value, whole)


def _tile(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, repeats = _need(values, 2)
    times = _sizes(known(repeats, "repeats"))
    budget.take(math.prod(times) * value.nbytes, "Tile")
    return np.tile(value, times)


def _range(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    start, limit, step = (value.reshape(()) for value in _need(values, 3))
    if any(is_symbolic(each) for each in (start, limit, step)) or not step:
        raise NodeError("its limits are not known")
    count = max(0, math.ceil((float(limit) - float(start)) / float(step)))
    budget.take(min(count, _FAR) * 8, "Range")
    return (start + np.arange(count) * step).astype(start.dtype)


def _product(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    value, axes = _need(values, 1)[0], _axes(node, values, opset)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return value
    keeps = bool(node.integer("keepdims", 1))
    return np.asarray(np.prod(value, tuple(axes) if axes else None, value.dtype, keepdims=keeps), value.dtype)


def _matrices(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    one, other = _need(values, 2)
    if one.ndim != 2 or other.ndim != 2 or one.size * other.shape[-1] > 1 << 30:
        raise NodeError("a product of constants that is not small or not of two axes")
    budget.take(8 * one.shape[0] * other.shape[1], "a product of constants")
    return one @ other


def _where(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    condition, one, other = _need(values, 3)
    budget.take(8 * math.prod(np.broadcast_shapes(condition.shape, one.shape, other.shape)), "Where")
    return np.where(condition.astype(bool), one, other)


def _shape(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    shape = _need(values, 1)[0].shape
    return np.array(shape[node.integer("start", 0) : node.integer("end", len(shape))], np.int64)


def _size(node: Node, values: Values, budget: Budget, opset: int) -> Array:
    return np.array(_need(values, 1)[0].size, np.int64)


FOLDS: dict[str, Fold] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Identity": lambda node, values, budget, opset: _need(values, 1)[0],
    "Cast": _cast,
    "Shape": _shape,
    "Size": _size,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": lambda node, values, budget, opset: _need(values, 1)[0].reshape(
        math.prod(_need(values, 1)[0].shape[: node.integer("axis", 1)]), -1
    ),
    "Transpose": _transpose,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "ReduceProd": _product,
    "MatMul": _matrices,
    "Where": _where,
    "Add": _pointwise(np.add, symbolic=operator.add),
    "Sub": _pointwise(np.subtract, symbolic=operator.sub),
    "Mul": _pointwise(np.multiply, symbolic=operator.mul),
    "Div": _pointwise(_divided, symbolic=_quotient),
    "Pow": _pointwise(np.power),
    "Mod": lambda node, values, budget, opset: _pointwise(np.fmod if node.integer("fmod", 0) else np.mod)(
        node, values, budget, opset
    ),
    "Min": _pointwise(lambda *each: np.minimum.reduce(np.broadcast_arrays(*each))),
    "Max": _pointwise(lambda *each: np.maximum.reduce(np.broadcast_arrays(*each))),
    "Sqrt": _pointwise(np.sqrt),
    "Reciprocal": _pointwise(functools.partial(np.divide, 1.0)),
    "Exp": _pointwise(np.exp),
    "Log": _pointwise(np.log),
    "Neg": _pointwise(np.negative),
    "Abs": _pointwise(np.abs),
    "Floor": _pointwise(np.floor),
    "Ceil": _pointwise(np.ceil),
    "Round": _pointwise(np.round),
    "Equal": _pointwise(np.equal),
    "Less": _pointwise(np.less),
    "Greater": _pointwise(np.greater),
    "LessOrEqual": _pointwise(np.less_equal),
    "GreaterOrEqual": _pointwise(np.greater_equal),
    "And": _pointwise(np.logical_and),
    "Or": _pointwise(np.logical_or),
    "Not": _pointwise(np.logical_not),
}  # fmt: skip
"""How an operator on constants is done, by its type."""

ORDERS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Those that move the numbers of their first input, and do nothing else."""
