"""Layers of a neural network of Core ML in ONNX's terms, which the builders of ONNX's operators make nodes of.

A value is N, C, H, W, whatever its layer calls the axes before C, unless the network keeps shapes exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openmps.formats.coreml import recurrent_operations
from openmps.formats.coreml.draft import normalized
from openmps.formats.coreml.layer_windows import WINDOWS, Write
from openmps.formats.onnx.problems import NodeError

_FAR = 1 << 62


def _plain(operator: str, **attributes: Any) -> Write:
    def write(layer: Any) -> None:
        layer.becomes(operator, layer.inputs, **attributes)

    return write


# --- functions of a number --------------------------------------------------------------------------------------------


def _activation(layer: Any) -> None:
    word = layer.params.WhichOneof("NonlinearityType") or ""
    if word not in ACTIVATIONS:
        raise NodeError(f"no neuron of the framework is its {word or 'activation'}")
    ACTIVATIONS[word](layer, getattr(layer.params, word))


def _neuron(operator: str, **attributes: str) -> Callable[[Any, Any], None]:
    def write(layer: Any, of: Any) -> None:
        layer.becomes(operator, layer.inputs, **{ours: getattr(of, theirs) for ours, theirs in attributes.items()})

    return write


def _prelu(layer: Any, of: Any) -> None:
    slopes = layer.row(of.alpha).reshape(-1, 1, 1)
    layer.becomes("PRelu", [layer.inputs[0], slopes])


def _line(layer: Any, of: Any) -> None:
    inner = layer.step("Mul", [layer.inputs[0], float(of.alpha)])
    layer.becomes("Add", [inner, float(of.beta)])


def _scaled_tanh(layer: Any, of: Any) -> None:
    inner = layer.step("Tanh", [layer.step("Mul", [layer.inputs[0], float(of.beta)])])
    layer.becomes("Mul", [inner, float(of.alpha)])


ACTIVATIONS: Mapping[str, Callable[[Any, Any], None]] = {
    "ReLU": _neuron("Relu"),
    "leakyReLU": _neuron("LeakyRelu", alpha="alpha"),
    "PReLU": _prelu,
    "ELU": _neuron("Elu", alpha="alpha"),
    "tanh": _neuron("Tanh"),
    "scaledTanh": _scaled_tanh,
    "sigmoid": _neuron("Sigmoid"),
    "sigmoidHard": _neuron("HardSigmoid", alpha="alpha", beta="beta"),
    "linear": _line,
    "softsign": _neuron("Softsign"),
    "softplus": _neuron("Softplus"),
}
"""Activations by their names."""


def _clamped(layer: Any) -> None:
    inner = layer.step("LeakyRelu", layer.inputs, alpha=layer.params.alpha)
    layer.becomes("Min", [inner, float(layer.params.beta)])


_UNARY: tuple[tuple[str, str], ...] = (
    ("Sqrt", ""), ("Pow", "epsilon"), ("Reciprocal", "epsilon"), ("Pow", "alpha"), ("Exp", ""), ("Log", ""),
    ("Abs", ""), ("Max", "alpha"),
)  # fmt: skip
_ROOT = 1


def _unary(layer: Any) -> None:
    """A function of ``scale x + shift``; a small number is added before a reciprocal is made."""
    of = layer.params
    operator, more = _UNARY[of.type]
    inner, scale, shift = layer.inputs[0], float(of.scale), float(of.shift)
    inner = layer.step("Mul", [inner, scale]) if scale not in (0.0, 1.0) else inner
    shift += float(of.epsilon) if more == "epsilon" else 0.0
    inner = layer.step("Add", [inner, shift]) if shift else inner
    operands = [-0.5] if of.type == _ROOT else [float(of.alpha)] if more == "alpha" else []
    layer.becomes(operator, [inner, *operands])


_GELUS = ("none", "tanh")


def _gelu(layer: Any) -> None:
    if layer.params.mode >= len(_GELUS):
        layer.becomes("Swish", layer.inputs, alpha=1.702)
    else:
        layer.becomes("Gelu", layer.inputs, approximate=_GELUS[layer.params.mode])


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _joined(operator: str) -> Write:
    """Of several inputs, or of one and a number."""

    def write(layer: Any) -> None:
        if len(layer.inputs) == 1:
            layer.becomes(operator, [layer.inputs[0], float(layer.params.alpha)])
            return
        found = layer.inputs[0]
        for name in layer.inputs[1:-1]:
            found = layer.step(operator, [found, name])
        layer.becomes(operator, [found, layer.inputs[-1]])

    return write


def _average(layer: Any) -> None:
    layer.becomes("Mul", [layer.step("Sum", layer.inputs), 1.0 / len(layer.inputs)])


def _spread(layer: Any, weights: Any, shape: Any) -> Any:
    """A constant of C, or of C, H, W."""
    lengths = [int(each) for each in shape] or [1]
    lengths = [*lengths, 1, 1] if len(lengths) == 1 else lengths[-3:]
    return layer.weights(weights, (1, *lengths))


def _scale(layer: Any) -> None:
    of = layer.params
    factors = _spread(layer, of.scale, of.shapeScale)
    if not of.hasBias:
        layer.becomes("Mul", [layer.inputs[0], factors])
        return
    inner = layer.step("Mul", [layer.inputs[0], factors])
    layer.becomes("Add", [inner, _spread(layer, of.bias, of.shapeBias)])


def _bias(layer: Any) -> None:
    layer.becomes("Add", [layer.inputs[0], _spread(layer, layer.params.bias, layer.params.shape)])


def _constant(layer: Any) -> None:
    of = layer.params
    layer.becomes("Identity", [layer.weights(of.data, tuple(int(each) for each in of.shape))])


# --- matrices and normalizations --------------------------------------------------------------------------------------


def _inner_product(layer: Any) -> None:
    """A dense layer of the channels, whose image has one pixel."""
    of = layer.params
    if of.int8DynamicQuantize:
        raise NodeError("it rounds its input to 8 bits")
    weights = layer.weights(of.weights, (int(of.outputChannels), int(of.inputChannels)))
    biases = layer.weights(of.bias, (int(of.outputChannels),)) if of.hasBias else None
    if layer.rank == 2:
        layer.becomes("Gemm", [layer.inputs[0], weights, biases], transB=1)
        return
    flat = layer.step("Flatten", layer.inputs, axis=1)
    layer.becomes("Unsqueeze", [layer.step("Gemm", [flat, weights, biases], transB=1), np.array([2, 3])])


def _product(layer: Any) -> None:
    of = layer.params
    if len(layer.inputs) != 1 or of.transposeA or of.transposeB or of.int8DynamicQuantize:
        raise NodeError("it multiplies two values that depend on the model's inputs, or turns one")
    shape = int(of.weightMatrixFirstDimension), int(of.weightMatrixSecondDimension)
    biases = layer.weights(of.bias, shape[1:]) if of.hasBias else None
    layer.becomes("MatMul", [layer.inputs[0], layer.weights(of.weights, shape), biases])


def _normalization(layer: Any) -> None:
    of, count = layer.params, (int(layer.params.channels),)
    gamma, beta = layer.weights(of.gamma, count), layer.weights(of.beta, count)
    epsilon = float(of.epsilon) or 1e-5
    if of.instanceNormalization and of.computeMeanVar:
        layer.becomes("InstanceNormalization", [layer.inputs[0], gamma, beta], epsilon=epsilon)
    elif of.computeMeanVar:
        raise NodeError("it normalizes by the batch")
    else:
        rows = [gamma, beta, layer.weights(of.mean, count), layer.weights(of.variance, count)]
        layer.becomes("BatchNormalization", [layer.inputs[0], *rows], epsilon=epsilon)


def _layer_normalization(layer: Any) -> None:
    """Over the last axes."""
    of, rank = layer.params, layer.rank
    shape = tuple(int(each) for each in of.normalizedShape)
    if not 0 < len(shape) <= rank:
        raise NodeError(f"it normalizes over {len(shape)} axes of {rank}")
    rows = {name: layer.weights(getattr(of, name), shape) for name in ("gamma", "beta") if of.HasField(name)}
    axes = range(rank - len(shape), rank)
    layer.becomes(*normalized(layer.draft, layer.inputs[0], axes, rank, rows, float(of.eps) or 1e-5))


def _local_response(layer: Any) -> None:
    of = layer.params
    numbers = {"alpha": float(of.alpha), "beta": float(of.beta), "bias": float(of.k)}
    layer.becomes("LRN", layer.inputs, size=int(of.localSize), **numbers)


def _length_one(layer: Any) -> None:
    """``x / √(Σ x² + ε)`` over an image."""
    name = layer.inputs[0]
    squares = layer.step("ReduceSum", [layer.step("Mul", [name, name])], axes=[1, 2, 3], keepdims=1)
    root = layer.step("Sqrt", [layer.step("Add", [squares, float(layer.params.epsilon)])])
    layer.becomes("Div", [name, root])


# --- reductions -------------------------------------------------------------------------------------------------------

_AXES = ([1, 2, 3], [2, 3], [1], [2], [3])
_REDUCTIONS = {0: "ReduceSum", 1: "ReduceMean", 7: "ReduceMax", 8: "ReduceMin"}
_SQUARES, _NORM, _PLACE = 4, 6, 9


def _reduce(layer: Any) -> None:
    mode, axes = int(layer.params.mode), _AXES[layer.params.axis]
    source = layer.inputs[0]
    if mode == _PLACE and len(axes) == 1:
        layer.becomes("ArgMax", layer.inputs, axis=axes[0], keepdims=1)
    elif mode in (_SQUARES, _NORM):
        squares = [layer.step("Mul", [source, source])]
        if mode == _SQUARES:
            layer.becomes("ReduceSum", squares, axes=axes, keepdims=1)
        else:
            layer.becomes("Sqrt", [layer.step("ReduceSum", squares, axes=axes, keepdims=1)])
    elif mode in _REDUCTIONS:
        layer.becomes(_REDUCTIONS[mode], layer.inputs, axes=axes, keepdims=1)
    else:
        raise NodeError("it is no sum, mean or extreme")


def _reduction(operator: str) -> Write:
    def write(layer: Any) -> None:
        of = layer.params
        axes = list(range(layer.rank)) if of.reduceAll else [layer.axis(each) for each in of.axes]
        layer.becomes(operator, layer.inputs, axes=axes, keepdims=int(of.keepDims))
        layer.rank = layer.rank if of.keepDims else layer.rank - len(axes)

    return write


def _place(operator: str) -> Write:
    def write(layer: Any) -> None:
        layer.becomes(
            operator, layer.inputs, axis=layer.axis(layer.params.axis), keepdims=int(not layer.params.removeDim)
        )
        layer.rank -= int(layer.params.removeDim)

    return write


# --- shapes -----------------------------------------------------------------------------------------------------------

_ROWS_FIRST, _PLANES_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def _flatten(layer: Any) -> None:
    source = layer.step("Transpose", layer.inputs, perm=_ROWS_FIRST) if layer.params.mode else layer.inputs[0]
    layer.becomes("Unsqueeze", [layer.step("Flatten", [source], axis=1), np.array([2, 3])])


def _reshape(layer: Any) -> None:
    """To C, H, W, with the numbers counted along planes or along pixels."""
    shape = [int(each) for each in layer.params.targetShape]
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] != 1):
        raise NodeError(f"its shape {shape[:6]} is no C, H, W")
    channels, rows, columns = shape[-3:]
    if not layer.params.mode:
        layer.becomes("Reshape", [layer.inputs[0], np.array([0, channels, rows, columns])])
        return
    pixels = layer.step("Transpose", layer.inputs, perm=_ROWS_FIRST)
    found = layer.step("Reshape", [pixels, np.array([0, rows, columns, channels])])
    layer.becomes("Transpose", [found], perm=_PLANES_FIRST)


def _reshape_static(layer: Any) -> None:
    shape = [int(each) for each in layer.params.targetShape]
    layer.becomes("Reshape", [layer.inputs[0], np.array(shape)])
    layer.rank = len(shape)


def _permute(layer: Any) -> None:
    layer.becomes("Transpose", layer.inputs, perm=[int(each) for each in layer.params.axis])


def _transpose(layer: Any) -> None:
    layer.becomes("Transpose", layer.inputs, perm=[layer.axis(each) for each in layer.params.axes])


def _concatenation(layer: Any) -> None:
    if getattr(layer.params, "sequenceConcat", False):
        raise NodeError("it joins sequences")
    layer.becomes("Concat", layer.inputs, axis=1)


def _concatenation_nd(layer: Any) -> None:
    if layer.params.interleave:
        raise NodeError("it takes channels of its inputs by turns")
    layer.becomes("Concat", layer.inputs, axis=layer.axis(layer.params.axis))


def _split(layer: Any) -> None:
    layer.several("Split", layer.inputs, axis=1)


def _split_nd(layer: Any) -> None:
    sizes = [int(each) for each in layer.params.splitSizes]
    layer.several("Split", [layer.inputs[0], *([np.array(sizes)] if sizes else [])], axis=layer.axis(layer.params.axis))


def _slice(layer: Any) -> None:
    of = layer.params
    limits = [[int(of.startIndex)], [int(of.endIndex)]]
    rest = [[1 + int(of.axis)], [int(of.stride) or 1]]
    layer.becomes("Slice", [layer.inputs[0], *map(np.array, [*limits, *rest])])


def _slice_static(layer: Any) -> None:
    of = layer.params
    if any(of.squeezeMasks) or len(of.beginIds) != layer.rank:
        raise NodeError("it takes axes away, or does not say what of each it takes")
    steps = [int(each) for each in of.strides] or [1] * layer.rank
    starts = [0 if is_open else int(at) for at, is_open in zip(of.beginIds, of.beginMasks, strict=True)]
    ends = [_FAR if is_open else int(at) for at, is_open in zip(of.endIds, of.endMasks, strict=True)]
    layer.becomes("Slice", [layer.inputs[0], *map(np.array, [starts, ends, range(layer.rank), steps])])


def _reorganize(layer: Any) -> None:
    of = layer.params
    operator, mode = (("SpaceToDepth", "DCR"), ("DepthToSpace", "DCR"), ("DepthToSpace", "CRD"))[of.mode]
    layer.becomes(operator, layer.inputs, blocksize=int(of.blockSize), mode=mode)


def _squeeze(layer: Any) -> None:
    if layer.params.squeezeAll:
        raise NodeError("it takes away every axis of length 1, the batch's too")
    axes = [layer.axis(each) for each in layer.params.axes]
    layer.becomes("Squeeze", [layer.inputs[0], np.array(axes)])
    layer.rank -= len(axes)


def _expand(layer: Any) -> None:
    axes = [int(each) for each in layer.params.axes]
    layer.becomes("Unsqueeze", [layer.inputs[0], np.array(axes)])
    layer.rank += len(axes)


def _flatten_to_2d(layer: Any) -> None:
    layer.becomes("Flatten", layer.inputs, axis=layer.axis(layer.params.axis))
    layer.rank = 2


LAYERS: Mapping[str, Write] = {
    **WINDOWS,
    **recurrent_operations.LAYERS,
    "activation": _activation,
    "clampedReLU": _clamped,
    "unary": _unary,
    "gelu": _gelu,
    "tanh": _plain("Tanh"),
    "clip": lambda layer: layer.becomes(
        "Clip", [layer.inputs[0], float(layer.params.minVal), float(layer.params.maxVal)]
    ),
    "copy": _plain("Identity"),
    "add": _joined("Add"),
    "multiply": _joined("Mul"),
    "average": _average,
    "max": _plain("Max"),
    "min": _plain("Min"),
    "addBroadcastable": _plain("Add"),
    "subtractBroadcastable": _plain("Sub"),
    "multiplyBroadcastable": _plain("Mul"),
    "divideBroadcastable": _plain("Div"),
    "powBroadcastable": _plain("Pow"),
    "maxBroadcastable": _plain("Max"),
    "minBroadcastable": _plain("Min"),
    "scale": _scale,
    "bias": _bias,
    "loadConstant": _constant,
    "loadConstantND": _constant,
    "innerProduct": _inner_product,
    "batchedMatmul": _product,
    "batchnorm": _normalization,
    "layerNormalization": _layer_normalization,
    "lrn": _local_response,
    "l2normalize": _length_one,
    "softmax": lambda layer: layer.becomes("Softmax", layer.inputs, axis=1 if layer.rank == 4 else -1),
    "softmaxND": lambda layer: layer.becomes("Softmax", layer.inputs, axis=layer.axis(layer.params.axis)),
    "reduce": _reduce,
    "reduceMean": _reduction("ReduceMean"),
    "reduceSum": _reduction("ReduceSum"),
    "reduceMax": _reduction("ReduceMax"),
    "reduceMin": _reduction("ReduceMin"),
    "argMax": _place("ArgMax"),
    "argMin": _place("ArgMin"),
    "flatten": _flatten,
    "flattenTo2D": _flatten_to_2d,
    "reshape": _reshape,
    "reshapeStatic": _reshape_static,
    "permute": _permute,
    "transpose": _transpose,
    "concat": _concatenation,
    "concatND": _concatenation_nd,
    "split": _split,
    "splitND": _split_nd,
    "slice": _slice,
    "sliceStatic": _slice_static,
    "reorganizeData": _reorganize,
    "squeeze": _squeeze,
    "expandDims": _expand,
}  # fmt: skip
"""How each layer is written, by its kind."""
