"""ONNX's operators, as openmps writes graphs in them, as operations of an ML program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from openmps.checks import FLT_MAX
from openmps.formats.coreml.blobs import Array
from openmps.formats.coreml.writing import LARGEST_HALF, Program, Shape, Value
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.problems import NodeError


class Step:
    """One operator on its way: what it reads, and what it is to be called."""

    def __init__(
        self, program: Program, node: Node, values: Mapping[str, Value], constants: Mapping[str, Array]
    ) -> None:
        self.program, self.node, self._values, self._constants = program, node, values, constants

    def value(self, place: int = 0) -> Value:
        """An input; a constant becomes a value."""
        name = self.node.inputs[place]
        if name in self._values:
            return self._values[name]
        return self.program.constant(np.asarray(self._constants[name]), name)

    def constant(self, place: int) -> Array:
        """An input that is a constant."""
        name = self.node.inputs[place] if place < len(self.node.inputs) else ""
        if name not in self._constants:
            raise NodeError("it computes what Core ML wants to know before")
        return self._constants[name]

    def whole(self, place: int) -> list[int]:
        """Whole numbers that are a constant."""
        return [int(each) for each in self.constant(place).reshape(-1)]

    def has(self, place: int) -> bool:
        """Whether an input is there."""
        return place < len(self.node.inputs) and bool(self.node.inputs[place])

    def becomes(self, operation: str, shape: Shape, /, **arguments: Any) -> Value:
        """The operation that gives the operator's output."""
        given = {key: value for key, value in arguments.items() if value is not None}
        return self.program.add(operation, self.node.outputs[0], shape, given)

    def step(self, operation: str, shape: Shape, /, **arguments: Any) -> Value:
        """An operation before that."""
        return self.program.add(operation, f"{self.node.outputs[0]}_{operation}", shape, arguments)


Write = Callable[[Step], Value]

# --- windows ----------------------------------------------------------------------------------------------------------


def _sides(pads: Sequence[int]) -> Array:
    """Before and behind of each axis, one axis after the other."""
    return np.array(pads, np.int32).reshape(2, -1).T.reshape(-1)


def _integers(step: Step, name: str) -> Array:
    return np.array(step.node.integers(name), np.int32)


def _lengths(step: Step, kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """Rows and columns of what windows give."""
    sizes, pads, strides = step.value().shape[2:], step.node.integers("pads"), step.node.integers("strides")
    return tuple(
        (n + before + behind - (k - 1) * d - 1) // s + 1
        for n, k, d, s, before, behind in zip(sizes, kernel, dilations, strides, pads[:2], pads[2:], strict=True)
    )


def _biases(step: Step) -> Array | None:
    return step.constant(2) if step.has(2) else None


def _convolution(step: Step) -> Value:
    x, weights = step.value(), step.constant(1)
    shape = (x.shape[0], len(weights), *_lengths(step, weights.shape[2:], step.node.integers("dilations")))
    return step.becomes(
        "conv", shape, x=x, weight=weights, bias=_biases(step), strides=_integers(step, "strides"), pad_type="custom",
        pad=_sides(step.node.integers("pads")), dilations=_integers(step, "dilations"),
        groups=np.int32(step.node.integer("group", 1)),
    )  # fmt: skip


def _transposed(step: Step) -> Value:
    """Rows beyond the windows are asked for without pads; what the pads take away is cut off then."""
    x, weights, of = step.value(), step.constant(1), step.node
    pads, more = of.integers("pads"), of.integers("output_padding")
    strides, dilations = of.integers("strides"), of.integers("dilations")
    windows = zip(x.shape[2:], weights.shape[2:], strides, dilations, strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in windows]
    groups = of.integer("group", 1)
    arguments: dict[str, Any] = {
        "x": x, "weight": weights, "strides": np.array(strides, np.int32), "pad_type": "custom",
        "dilations": np.array(dilations, np.int32), "groups": np.int32(groups),
    }  # fmt: skip
    if _biases(step) is not None:
        arguments["bias"] = _biases(step)
    channels = weights.shape[1] * groups
    if not any(more):
        lengths = [length - pads[axis] - pads[axis + 2] for axis, length in enumerate(full)]
        return step.becomes("conv_transpose", (x.shape[0], channels, *lengths), **arguments, pad=_sides(pads))
    whole = (x.shape[0], channels, *(length + extra for length, extra in zip(full, more, strict=True)))
    made = step.step(
        "conv_transpose", whole, **arguments, pad=np.zeros(4, np.int32), output_shape=np.array(whole, np.int32)
    )
    lengths = [whole[axis + 2] - pads[axis] - pads[axis + 2] for axis in range(2)]
    return step.becomes(
        "crop", (*whole[:2], *lengths), x=made, crop_height=np.array(pads[::2], np.int32),
        crop_width=np.array(pads[1::2], np.int32),
    )  # fmt: skip


def _pooling(operation: str) -> Write:
    def write(step: Step) -> Value:
        x, of = step.value(), step.node
        if set(of.integers("dilations", [1])) != {1}:
            raise NodeError("its window has gaps, and Core ML's pooling has none")
        kernel = of.integers("kernel_shape")
        more = (
            {"exclude_padding_from_average": not of.integer("count_include_pad", 0)} if operation == "avg_pool" else {}
        )
        return step.becomes(
            operation, (*x.shape[:2], *_lengths(step, kernel, [1, 1])), x=x, kernel_sizes=np.array(kernel, np.int32),
            strides=_integers(step, "strides"), pad_type="custom", pad=_sides(of.integers("pads")),
            **({} if operation == "l2_pool" else {"ceil_mode": False}), **more,
        )  # fmt: skip

    return write


_SAMPLING = {"align_corners": "STRICT_ALIGN_CORNERS", "half_pixel": "UNALIGN_CORNERS", "asymmetric": "DEFAULT"}


def _resize(step: Step) -> Value:
    x, sizes = step.value(), step.whole(3)
    shape = (*x.shape[:2], *sizes)
    if step.node.text("mode", "") == "nearest":
        rows, columns = (new // old for new, old in zip(sizes, x.shape[2:], strict=True))
        factors = {"scale_factor_height": np.int32(rows), "scale_factor_width": np.int32(columns)}
        return step.becomes("upsample_nearest_neighbor", shape, x=x, **factors)
    where = _SAMPLING[step.node.text("coordinate_transformation_mode", "")]
    rows, columns = (np.int32(each) for each in sizes)
    return step.becomes(
        "resize_bilinear", shape, x=x, target_size_height=rows, target_size_width=columns, sampling_mode=where
    )


# --- functions of a number --------------------------------------------------------------------------------------------


def _plain(operation: str, **arguments: Any) -> Write:
    def write(step: Step) -> Value:
        x = step.value()
        return step.becomes(operation, x.shape, x=x, **arguments)

    return write


def _with(operation: str, *names: str) -> Write:
    """An operation with arguments of the attributes' names."""

    def write(step: Step) -> Value:
        x = step.value()
        return step.becomes(operation, x.shape, x=x, **{name: np.float32(step.node.decimal(name, 0)) for name in names})

    return write


def _prelu(step: Step) -> Value:
    x = step.value()
    slopes = np.broadcast_to(step.constant(1).reshape(-1), x.shape[1])
    return step.becomes("prelu", x.shape, x=x, alpha=np.array(slopes))


def _binary(operation: str) -> Write:
    def write(step: Step) -> Value:
        x, y = step.value(0), step.value(1)
        return step.becomes(operation, tuple(np.broadcast_shapes(x.shape, y.shape)), x=x, y=y)

    return write


def _power(step: Step) -> Value:
    exponent = float(step.constant(1).reshape(()))
    return _plain("square")(step) if exponent == 2 else _binary("pow")(step)


def _clip(step: Step) -> Value:
    x = step.value()
    most = LARGEST_HALF if step.program.half else FLT_MAX
    low, high = (float(step.constant(place).reshape(())) for place in (1, 2))
    return step.becomes("clip", x.shape, x=x, alpha=np.float32(max(low, -most)), beta=np.float32(min(high, most)))


# --- normalizations ---------------------------------------------------------------------------------------------------


def _epsilon(step: Step) -> np.float32:
    return np.float32(step.node.decimal("epsilon", 1e-5))


def _batch(step: Step) -> Value:
    x, epsilon = step.value(), _epsilon(step)
    names = ("gamma", "beta", "mean", "variance")
    rows = {name: step.constant(1 + place) for place, name in enumerate(names)}
    kind = np.float16 if step.program.half else np.float32
    if not np.all(rows["variance"].astype(kind) + kind(epsilon) > 0):
        raise NodeError("a variance and its epsilon are 0 in float16", "Write the package in float32")
    return step.becomes("batch_norm", x.shape, x=x, **rows, epsilon=epsilon)


def _instance(step: Step) -> Value:
    x = step.value()
    rows = {"gamma": step.constant(1), "beta": step.constant(2)}
    return step.becomes("instance_norm", x.shape, x=x, **rows, epsilon=_epsilon(step))


def _group(step: Step) -> Value:
    """An instance normalization of groups, and a factor and a shift of each channel."""
    x, groups = step.value(), step.node.integer("num_groups", 1)
    flat = (x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    inner = step.step("reshape", flat, x=x, shape=np.array(flat, np.int32))
    one, none = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    inner = step.step("instance_norm", flat, x=inner, gamma=one, beta=none, epsilon=_epsilon(step))
    inner = step.step("reshape", x.shape, x=inner, shape=np.array(x.shape, np.int32))
    gamma, beta = (step.constant(place).reshape(1, -1, 1, 1) for place in (1, 2))
    return step.becomes("add", x.shape, x=step.step("mul", x.shape, x=inner, y=gamma), y=beta)


def _local_response(step: Step) -> Value:
    x, of = step.value(), step.node
    numbers = {"alpha": ("alpha", 1e-4), "beta": ("beta", 0.75), "k": ("bias", 1.0)}
    rows = {name: np.float32(of.decimal(*theirs)) for name, theirs in numbers.items()}
    return step.becomes("local_response_norm", x.shape, x=x, size=np.int32(of.integer("size", 1)), **rows)


def _log_softmax(step: Step) -> Value:
    x = step.value()
    total = step.step("reduce_log_sum_exp", (x.shape[0], 1, *x.shape[2:]), x=x, axes=np.array([1]), keep_dims=True)
    return step.becomes("sub", x.shape, x=x, y=total)


# --- shapes -----------------------------------------------------------------------------------------------------------


def _reduction(operation: str) -> Write:
    def write(step: Step) -> Value:
        x, axes = step.value(), step.whole(1)
        shape = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
        return step.becomes(operation, shape, x=x, axes=np.array(axes, np.int32), keep_dims=True)

    return write


def _slice(step: Step) -> Value:
    x = step.value()
    begin, end = [0] * len(x.shape), list(x.shape)
    for start, stop, axis in zip(step.whole(1), step.whole(2), step.whole(3), strict=True):
        begin[axis], end[axis] = start, min(stop, x.shape[axis])
    shape = tuple(stop - start for start, stop in zip(begin, end, strict=True))
    return step.becomes("slice_by_index", shape, x=x, begin=np.array(begin, np.int32), end=np.array(end, np.int32))


_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}


def _pad(step: Step) -> Value:
    x, mode = step.value(), _MODES[step.node.text("mode", "constant")]
    before, behind = np.array(step.whole(1)).reshape(2, -1)
    shape = tuple(int(n + a + b) for n, a, b in zip(x.shape, before, behind, strict=True))
    kept = 0 if mode == "constant" else 2  # the others pad the last two axes
    if any(before[:kept]) or any(behind[:kept]):
        raise NodeError(f"it pads channels, and Core ML's mode {mode} does not")
    sides = np.stack([before, behind], 1)[kept:].reshape(-1).astype(np.int32)
    fill = np.float32(step.constant(2).reshape(())) if step.has(2) else np.float32(0)
    return step.becomes("pad", shape, x=x, pad=sides, mode=mode, constant_val=fill)


def _reshape(step: Step) -> Value:
    x = step.value()
    shape = tuple(length or x.shape[place] for place, length in enumerate(step.whole(1)))
    return step.becomes("reshape", shape, x=x, shape=np.array(shape, np.int32))


def _transpose(step: Step) -> Value:
    x, order = step.value(), step.node.integers("perm")
    return step.becomes("transpose", tuple(x.shape[axis] for axis in order), x=x, perm=np.array(order, np.int32))


def _concatenation(step: Step) -> Value:
    values = [step.value(place) for place in range(len(step.node.inputs))]
    channels = sum(value.shape[1] for value in values)
    shape = (values[0].shape[0], channels, *values[0].shape[2:])
    return step.becomes("concat", shape, values=values, axis=np.int32(1), interleave=False)


OPERATIONS: Mapping[str, Write] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pooling("max_pool"),
    "AveragePool": _pooling("avg_pool"),
    "LpPool": _pooling("l2_pool"),
    "Resize": _resize,
    "Identity": _plain("identity"),
    "Relu": _plain("relu"),
    "LeakyRelu": _with("leaky_relu", "alpha"),
    "PRelu": _prelu,
    "Elu": _with("elu", "alpha"),
    "Sigmoid": _plain("sigmoid"),
    "HardSigmoid": _with("sigmoid_hard", "alpha", "beta"),
    "Tanh": _plain("tanh"),
    "Softplus": _plain("softplus"),
    "Softsign": _plain("softsign"),
    "Gelu": _plain("gelu", mode="EXACT"),
    "Abs": _plain("abs"),
    "Exp": _plain("exp"),
    "Log": _plain("log"),
    "Pow": _power,
    "Clip": _clip,
    "Add": _binary("add"),
    "Sub": _binary("sub"),
    "Mul": _binary("mul"),
    "Div": _binary("real_div"),
    "Min": _binary("minimum"),
    "Softmax": _plain("softmax", axis=np.int32(1)),
    "LogSoftmax": _log_softmax,
    "BatchNormalization": _batch,
    "InstanceNormalization": _instance,
    "GroupNormalization": _group,
    "LRN": _local_response,
    "ReduceMean": _reduction("reduce_mean"),
    "ReduceSum": _reduction("reduce_sum"),
    "ReduceMax": _reduction("reduce_max"),
    "ReduceMin": _reduction("reduce_min"),
    "Slice": _slice,
    "Pad": _pad,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concatenation,
}
"""How each operator is written."""
