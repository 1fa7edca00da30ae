"""How neurons, arithmetic, reductions and nodes that move numbers are written for MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openmps.checks import FLT_MAX
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.mlx.text import Layer, Text, number
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.shape_layers import samples_of
from openmps.graph.nodes import arithmetic, concatenation, neuron, reduction, shape, softmax
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode, MPSRectNoClip

Kind = MPSCNNNeuronType

# --- neurons ----------------------------------------------------------------------------------------------------------


def line(x: str, a: float, b: float) -> str:
    """``a x + b``."""
    product = x if a == 1 else f"{number(a)} * {x}"
    return product if b == 0 else f"{product} {'-' if b < 0 else '+'} {number(abs(b))}"


def _times(a: float, x: str) -> str:
    return x if a == 1 else f"{number(a)} * {x}"


def _leaky(x: str, a: float) -> str:
    return f"mx.maximum({x}, 0)" if a == 0 else f"mx.where({x} >= 0, {x}, {number(a)} * {x})"


def _logarithm(base: float) -> float:
    return 1.0 if base == -1 else float(np.log(base))


_NEURONS: Mapping[MPSCNNNeuronType, Callable[[str, float, float, float], str]] = {
    Kind.NONE: lambda x, a, b, c: x,
    Kind.RELU: lambda x, a, b, c: _leaky(x, a),
    Kind.LINEAR: lambda x, a, b, c: line(x, a, b),
    Kind.SIGMOID: lambda x, a, b, c: f"mx.sigmoid({x})",
    Kind.HARD_SIGMOID: lambda x, a, b, c: f"mx.clip({line(x, a, b)}, 0, 1)",
    Kind.TANH: lambda x, a, b, c: _times(a, f"mx.tanh({_times(b, x)})"),
    Kind.ABSOLUTE: lambda x, a, b, c: f"mx.abs({x})",
    Kind.SOFT_PLUS: lambda x, a, b, c: _times(a, f"mx.logaddexp({_times(b, x)}, 0)"),
    Kind.SOFT_SIGN: lambda x, a, b, c: f"{x} / (1 + mx.abs({x}))",
    Kind.ELU: lambda x, a, b, c: f"mx.where({x} >= 0, {x}, {_times(a, f'mx.expm1(mx.minimum({x}, 0))')})",
    Kind.RELU_N: lambda x, a, b, c: f"mx.minimum({_leaky(x, a)}, {number(b)})",
    Kind.POWER: lambda x, a, b, c: f"mx.power({line(x, a, b)}, {number(c)})",
    Kind.EXPONENTIAL: lambda x, a, b, c: f"mx.exp({_times(_logarithm(c), f'({line(x, a, b)})')})",
    Kind.LOGARITHM: lambda x, a, b, c: _times(1 / _logarithm(c), f"mx.log({line(x, a, b)})"),
    Kind.GELU: lambda x, a, b, c: f"nn.gelu({x})",
}
"""Expressions of a variable."""


def applied(text: Text, node: Any, expression: str, of: MPSNNNeuronDescriptor | None) -> str:
    """A pointwise function of an expression; the expression itself without one."""
    if of is None or of.neuron_type is Kind.NONE:
        return expression
    x = text.let(f"{text.variable(node.result_image)}_sums", expression)
    return _neuron_of(text, node, x, of)


def _neuron_of(text: Text, node: Any, x: str, of: MPSNNNeuronDescriptor) -> str:
    if of.neuron_type is Kind.PRELU:
        slopes = np.asarray(of.data, np.float32)
        label = f"{node.label or 'prelu'}_slopes"
        return f"{text.member(label, f'nn.PReLU({slopes.size})', {'weight': slopes}, frozen=text.trains)}({x})"
    if of.neuron_type not in _NEURONS:
        raise NodeError(f"the neuron {of.neuron_type.name} is not written")
    return _NEURONS[of.neuron_type](x, of.a, of.b, of.c)


def _neuron(text: Text, node: Any, kernel: Any) -> str:
    return _neuron_of(text, node, text.variable(node.sources[0]), node.descriptor)


# --- arithmetic and reductions ----------------------------------------------------------------------------------------


def _binary(sign: str) -> Layer:
    def write(text: Text, node: Any, kernel: Any) -> str:
        parts = [_operand(text, node, kernel, place, word) for place, word in enumerate(("primary", "secondary"))]
        found = line(f" {sign} ".join(parts), 1.0, kernel.bias)
        if kernel.minimum_value > -FLT_MAX or kernel.maximum_value < FLT_MAX:
            return f"mx.clip({found}, {number(kernel.minimum_value)}, {number(kernel.maximum_value)})"
        return found

    return write


def _operand(text: Text, node: Any, kernel: Any, place: int, word: str) -> str:
    """A source times its factor; of one whose strides are 0 the first row, column or channel."""
    source, wanted = node.sources[place], text.shape(node.result_image)
    strides = ("stride_in_pixels_y", "stride_in_pixels_x", "stride_in_feature_channels")
    steps = [getattr(kernel, f"{word}_{stride}") for stride in strides]
    if any(step and length != whole for step, length, whole in zip(steps, text.shape(source), wanted, strict=True)):
        raise NodeError(f"its {word} source ends before its result does", f"Set its {word}_stride_… to 0 to repeat it")
    parts = [":1" if step == 0 else ":" for step in steps]
    cut = "" if parts == [":"] * 3 else f"[:, {', '.join(parts)}]"
    factor = getattr(kernel, f"{word}_scale")
    found = f"{text.variable(source)}{cut}"
    return found if factor == 1 else f"({number(factor)} * {found})"


def _reduction(function: str, axes: str) -> Layer:
    def write(text: Text, node: Any, kernel: Any) -> str:
        if node.clip_rect_source != MPSRectNoClip:
            raise NodeError("it reads a part of its source")
        found = f"mx.{function}({text.variable(node.sources[0])}, axis={axes}, keepdims=True)"
        return _times(getattr(node, "weight", 1.0), found)

    return write


# --- numbers that move ------------------------------------------------------------------------------------------------


def _softmax(text: Text, node: Any, kernel: Any) -> str:
    return f"mx.softmax({text.variable(node.sources[0])}, axis=-1)"


def _log_softmax(text: Text, node: Any, kernel: Any) -> str:
    x = text.variable(node.sources[0])
    return f"{x} - mx.logsumexp({x}, axis=-1, keepdims=True)"


def _reshape(text: Text, node: Any, kernel: Any) -> str:
    if kernel.conventions["reshape_order"] == "planes":
        raise NodeError("it counts numbers plane by plane")
    return f"mx.reshape({text.variable(node.sources[0])}, (-1, {', '.join(map(str, text.shape(node.result_image)))}))"


def _pad(text: Text, node: Any, kernel: Any) -> str:
    modes = {
        MPSImageEdgeMode.ZERO: "",
        MPSImageEdgeMode.CONSTANT: f", constant_values={number(node.fill_value)}",
        MPSImageEdgeMode.CLAMP: ', mode="edge"',
    }
    if node.edge_mode not in modes:
        raise NodeError(f"its edge mode is {node.edge_mode.name}")
    before, after = node.padding_size_before, node.padding_size_after
    sides = ((0, 0), *((getattr(before, axis), getattr(after, axis)) for axis in ("y", "x", "channel")))
    return f"mx.pad({text.variable(node.sources[0])}, {sides}{modes[node.edge_mode]})"


def _nearest(text: Text, node: Any, kernel: Any) -> str:
    y, x = node.integer_scale_factor_y, node.integer_scale_factor_x
    return f"mx.repeat(mx.repeat({text.variable(node.sources[0])}, {y}, axis=1), {x}, axis=2)"


def _bilinear(text: Text, node: Any, kernel: Any) -> str:
    text.use("resized")
    size, where = text.shape(node.result_image)[:2], samples_of(node, kernel)
    return f'resized({text.variable(node.sources[0])}, {size}, "{where}")'


def _concatenation(text: Text, node: Any, kernel: Any) -> str:
    """Each source is filled up to a multiple of 4 channels: with zeros, but the fourth channel of one or two."""
    has_ones, parts = kernel.conventions["concatenation_filler"] == "texture", list[str]()
    for source in node.sources:
        name, channels = text.variable(source), text.shape(source)[2]
        missing = -channels % 4
        ones = int(has_ones and channels in (1, 2))
        for count, value in ((missing - ones, ""), (ones, ", constant_values=1")):
            name = f"mx.pad({name}, ((0, 0), (0, 0), (0, 0), (0, {count})){value})" if count > 0 else name
        parts.append(name)
    return f"mx.concatenate([{', '.join(parts)}], axis=-1)"


POINTWISE: dict[type, Layer] = {
    neuron.MPSCNNNeuronNode: _neuron,
    reduction.MPSNNReductionSpatialMeanNode: _reduction("mean", "(1, 2)"),
    reduction.MPSNNReductionRowMeanNode: _reduction("mean", "2"),
    reduction.MPSNNReductionRowSumNode: _reduction("sum", "2"),
    reduction.MPSNNReductionRowMaxNode: _reduction("max", "2"),
    reduction.MPSNNReductionRowMinNode: _reduction("min", "2"),
    reduction.MPSNNReductionColumnMeanNode: _reduction("mean", "1"),
    reduction.MPSNNReductionColumnSumNode: _reduction("sum", "1"),
    reduction.MPSNNReductionColumnMaxNode: _reduction("max", "1"),
    reduction.MPSNNReductionColumnMinNode: _reduction("min", "1"),
    reduction.MPSNNReductionFeatureChannelsMeanNode: _reduction("mean", "-1"),
    reduction.MPSNNReductionFeatureChannelsSumNode: _reduction("sum", "-1"),
    reduction.MPSNNReductionFeatureChannelsMaxNode: _reduction("max", "-1"),
    reduction.MPSNNReductionFeatureChannelsMinNode: _reduction("min", "-1"),
    arithmetic.MPSNNAdditionNode: _binary("+"),
    arithmetic.MPSNNSubtractionNode: _binary("-"),
    arithmetic.MPSNNMultiplicationNode: _binary("*"),
    arithmetic.MPSNNDivisionNode: _binary("/"),
    softmax.MPSCNNSoftMaxNode: _softmax,
    softmax.MPSCNNLogSoftMaxNode: _log_softmax,
    shape.MPSNNReshapeNode: _reshape,
    shape.MPSNNPadNode: _pad,
    shape.MPSCNNUpsamplingNearestNode: _nearest,
    shape.MPSCNNUpsamplingBilinearNode: _bilinear,
    shape.MPSNNBilinearScaleNode: _bilinear,
    concatenation.MPSNNConcatenationNode: _concatenation,
}
