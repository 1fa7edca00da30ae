"""How each node of the framework is written as ONNX's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openmps.checks import FLT_MAX
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.formats.archive.sources import folded_numbers
from openmps.formats.onnx import shape_layers as shapes
from openmps.formats.onnx.model import Array
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.writing import Layer, Writer
from openmps.formats.windows import extents, padding
from openmps.graph.nodes import (
    arithmetic,
    concatenation,
    convolution,
    dropout,
    neuron,
    normalization,
    pooling,
    reduction,
    shape,
    softmax,
)
from openmps.graph.nodes import local_normalization as local
from openmps.kernels.convolution import MPSCNNDepthWiseConvolutionDescriptor, MPSCNNSubPixelConvolutionDescriptor
from openmps.kernels.convolution.descriptor import sub_pixel_factor
from openmps.kernels.pooling import counted_padding, norm_edge
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode, MPSRectNoClip

Kind = MPSCNNNeuronType

# --- windows ----------------------------------------------------------------------------------------------------------


def _windowed(writer: Writer, node: Any, kernel: Any) -> tuple[str, list[int]]:
    """The source, cut where windows do not begin at its first pixel, and ONNX's pads."""
    source = writer.name(node.sources[0])
    sizes, results = writer.shape(node.sources[0])[1:], writer.shape(node.result_image)[1:]
    before, behind = padding(kernel, sizes, results)
    if min(*before, *behind) < 0:
        starts = [max(0, -each) for each in before]
        ends = [n + min(0, each) for n, each in zip(sizes, behind, strict=True)]
        limits = [writer.constant(np.array(each, np.int64)) for each in (starts, ends, [2, 3])]
        source = writer.step("Slice", [source, *limits])
    return source, [max(0, each) for each in (*before, *behind)]


# --- weights ----------------------------------------------------------------------------------------------------------


def _convolution(writer: Writer, node: Any, kernel: Any) -> None:
    descriptor, weights, biases = folded_numbers(kernel)
    factor = sub_pixel_factor(descriptor)
    if factor > 1:
        raise NodeError("sub-pixel convolution is not written")
    source, pads = _windowed(writer, node, kernel)
    groups = descriptor.groups
    if isinstance(descriptor, MPSCNNDepthWiseConvolutionDescriptor):
        groups = descriptor.input_feature_channels
    _finish(
        writer, node, "Conv", source, weights.transpose(0, 3, 1, 2), biases, descriptor.fused_neuron_descriptor,
        pads=pads, group=groups, kernel_shape=[descriptor.kernel_height, descriptor.kernel_width],
        strides=[descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x],
        dilations=[descriptor.dilation_rate_y, descriptor.dilation_rate_x],
    )  # fmt: skip


def _transposed(writer: Writer, node: Any, kernel: Any) -> None:
    descriptor, weights, biases = folded_numbers(kernel)
    if isinstance(descriptor, MPSCNNDepthWiseConvolutionDescriptor | MPSCNNSubPixelConvolutionDescriptor):
        raise NodeError("a transposed convolution that is depthwise or of sub-pixels is not written")
    if kernel.offset.x or kernel.offset.y:
        raise NodeError("its offset is not 0")
    groups, (outputs, ky, kx, inputs) = descriptor.groups, weights.shape
    turned = weights[:, ::-1, ::-1].reshape(groups, outputs // groups, ky, kx, inputs)
    iohw = turned.transpose(0, 4, 1, 2, 3).reshape(groups * inputs, outputs // groups, ky, kx)
    taps, strides = extents(kernel), (descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x)
    offsets = kernel.kernel_offset_y, kernel.kernel_offset_x
    low = [offset - k // 2 + k - 1 for offset, k in zip(offsets, taps, strict=True)]
    sizes, results = writer.shape(node.sources[0])[1:], writer.shape(node.result_image)[1:]
    high = [(n - 1) * s + k - p - d for n, s, k, p, d in zip(sizes, strides, taps, low, results, strict=True)]
    if min(low) < 0 or any(-h >= s for h, s in zip(high, strides, strict=True)):
        raise NodeError("its padding is none that ONNX has")
    _finish(
        writer, node, "ConvTranspose", writer.name(node.sources[0]), iohw, biases, descriptor.fused_neuron_descriptor,
        pads=[*low, *(max(0, each) for each in high)], output_padding=[max(0, -each) for each in high], group=groups,
        kernel_shape=[ky, kx], strides=list(strides),
        dilations=[descriptor.dilation_rate_y, descriptor.dilation_rate_x],
    )  # fmt: skip


def _finish(
    writer: Writer,
    node: Any,
    operator: str,
    source: str,
    weights: Array,
    biases: Array | None,
    fused: MPSNNNeuronDescriptor | None,
    **attributes: Any,
) -> None:
    title = node.label or operator.lower()
    inputs = [source, writer.constant(weights.astype(np.float32, copy=False), f"{title}.weights")]
    if biases is not None:
        inputs.append(writer.constant(np.asarray(biases, np.float32), f"{title}.biases"))
    if fused is None or fused.neuron_type is Kind.NONE:
        writer.add(operator, inputs, writer.name(node.result_image), **attributes)
        return
    inner = writer.step(operator, inputs, **attributes)
    _apply(writer, inner, fused, writer.name(node.result_image))


# --- neurons ----------------------------------------------------------------------------------------------------------


def _neuron(writer: Writer, node: Any, kernel: Any) -> None:
    _apply(writer, writer.name(node.sources[0]), node.descriptor, writer.name(node.result_image))


_PLAIN = {
    Kind.SIGMOID: "Sigmoid",
    Kind.ABSOLUTE: "Abs",
    Kind.SOFT_SIGN: "Softsign",
    Kind.GELU: "Gelu",
    Kind.NONE: "Identity",
}


def _apply(writer: Writer, source: str, of: MPSNNNeuronDescriptor, output: str) -> None:
    """A pointwise function."""
    a, b, c = of.a, of.b, of.c
    kind = of.neuron_type
    if kind in _PLAIN:
        writer.add(_PLAIN[kind], [source], output)
    elif kind is Kind.RELU:
        if a == 0:
            writer.add("Relu", [source], output)
        else:
            writer.add("LeakyRelu", [source], output, alpha=a)
    elif kind is Kind.RELU_N:
        inner = writer.step("LeakyRelu", [source], alpha=a) if a else writer.step("Relu", [source])
        writer.add("Min", [inner, _number(writer, b)], output)
    elif kind is Kind.PRELU:
        slopes = writer.constant(np.asarray(of.data, np.float32).reshape(-1, 1, 1))
        writer.add("PRelu", [source, slopes], output)
    elif kind is Kind.HARD_SIGMOID:
        writer.add("HardSigmoid", [source], output, alpha=a, beta=b)
    elif kind is Kind.ELU:
        writer.add("Elu", [source], output, alpha=a)
    elif kind in (Kind.TANH, Kind.SOFT_PLUS):
        inner = writer.step("Tanh" if kind is Kind.TANH else "Softplus", [_line(writer, source, b, 0.0)])
        _line(writer, inner, a, 0.0, output)
    elif kind is Kind.LINEAR:
        _line(writer, source, a, b, output)
    else:
        _power(writer, source, of, output, c)


def _power(writer: Writer, source: str, of: MPSNNNeuronDescriptor, output: str, c: float) -> None:
    """Powers, exponentials and logarithms of ``a x + b``."""
    inner = _line(writer, source, of.a, of.b)
    if of.neuron_type is Kind.POWER:
        writer.add("Pow", [inner, _number(writer, c)], output)
        return
    factor = 1.0 if c == -1 else float(np.log(c))
    if of.neuron_type is Kind.EXPONENTIAL:
        writer.add("Exp", [_line(writer, inner, factor, 0.0)], output)
    elif of.neuron_type is Kind.LOGARITHM:
        _line(writer, writer.step("Log", [inner]), 1 / factor, 0.0, output)
    else:
        raise NodeError(f"the neuron {of.neuron_type.name} is not written")


def _number(writer: Writer, value: float) -> str:
    return writer.constant(np.array(value, np.float32))


def _line(writer: Writer, source: str, a: float, b: float, output: str | None = None) -> str:
    """``a x + b``, in as few operators as it takes; with an ``output`` one at least."""
    if a != 1 or (b == 0 and output is not None):
        named = output if b == 0 and output is not None else writer.fresh("mul")
        source = writer.add("Mul", [source, _number(writer, a)], named)
    if b != 0:
        source = writer.add("Add", [source, _number(writer, b)], output or writer.fresh("add"))
    return source


# --- pooling and reductions -------------------------------------------------------------------------------------------


def _shape_of(kernel: Any) -> dict[str, list[int]]:
    return {
        "kernel_shape": [kernel.kernel_height, kernel.kernel_width],
        "strides": [kernel.stride_in_pixels_y, kernel.stride_in_pixels_x],
    }


def _maximum(writer: Writer, node: Any, kernel: Any) -> None:
    if kernel.edge_mode is not MPSImageEdgeMode.CLAMP:
        raise NodeError(f"its edge mode is {kernel.edge_mode.name}")
    source, pads = _windowed(writer, node, kernel)
    # A tap beyond the edge reads the edge, which a window whose pixels lie apart may not hold.
    if max(kernel.dilation_rate_x, kernel.dilation_rate_y) > 1 or _is_far(pads, extents(kernel)):
        source, pads = _edged(writer, source, pads)
    dilations = {"dilations": [kernel.dilation_rate_y, kernel.dilation_rate_x]}
    writer.add("MaxPool", [source], writer.name(node.result_image), pads=pads, **_shape_of(kernel), **dilations)


def _is_far(pads: Sequence[int], windows: tuple[int, int]) -> bool:
    """Whether windows lie in the padding alone, which ONNX does not allow."""
    return any(pad >= size for pad, size in zip(pads, (*windows, *windows), strict=True))


def _edged(writer: Writer, source: str, pads: Sequence[int]) -> tuple[str, list[int]]:
    """An image that goes on beyond its edges with its edge pixels, and no pads any more."""
    if not any(pads):
        return source, list(pads)
    sides = writer.constant(np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64))
    return writer.step("Pad", [source, sides], mode="edge"), [0] * 4


def _average(writer: Writer, node: Any, kernel: Any) -> None:
    source, pads = _windowed(writer, node, kernel)
    edge_mode, (x, y) = counted_padding(kernel)
    counts = edge_mode is MPSImageEdgeMode.ZERO
    if not counts and (x or y):
        if any(side > zeros for side, zeros in zip(pads, (y, x, y, x), strict=True)):
            raise NodeError("its divisor counts a part of the padding")
        counts = True
    if _is_far(pads, extents(kernel)):
        raise NodeError("its padding is none that ONNX has")
    more = {"count_include_pad": int(counts)}
    writer.add("AveragePool", [source], writer.name(node.result_image), pads=pads, **_shape_of(kernel), **more)


def _norm(writer: Writer, node: Any, kernel: Any) -> None:
    source, pads = _windowed(writer, node, kernel)
    if norm_edge(kernel.conventions, kernel.edge_mode) is MPSImageEdgeMode.CLAMP:
        source, pads = _edged(writer, source, pads)
    writer.add("LpPool", [source], writer.name(node.result_image), pads=pads, p=2, **_shape_of(kernel))


def _reduction(operator: str, *axes: int) -> Layer:
    def write(writer: Writer, node: Any, kernel: Any) -> None:
        if node.clip_rect_source != MPSRectNoClip:
            raise NodeError("it reads a part of its source")
        weight = getattr(node, "weight", 1.0)
        over = writer.constant(np.array(axes, np.int64))
        inputs, output = [writer.name(node.sources[0]), over], writer.name(node.result_image)
        if weight == 1:
            writer.add(operator, inputs, output)
        else:
            _line(writer, writer.step(operator, inputs), weight, 0.0, output)

    return write


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _binary(operator: str) -> Layer:
    def write(writer: Writer, node: Any, kernel: Any) -> None:
        sources = [
            _line(writer, _broadcast(writer, node, kernel, index, word), getattr(kernel, f"{word}_scale"), 0.0)
            for index, word in enumerate(("primary", "secondary"))
        ]
        output, limits = writer.name(node.result_image), (kernel.minimum_value, kernel.maximum_value)
        is_limited = limits[0] > -FLT_MAX or limits[1] < FLT_MAX
        if not is_limited and kernel.bias == 0:
            writer.add(operator, sources, output)
            return
        inner = writer.step(operator, sources)
        if not is_limited:
            _line(writer, inner, 1.0, kernel.bias, output)
            return
        bounds = [_number(writer, each) for each in limits]
        writer.add("Clip", [_line(writer, inner, 1.0, kernel.bias), *bounds], output)

    return write


def _broadcast(writer: Writer, node: Any, kernel: Any, index: int, word: str) -> str:
    """A source; of one whose strides are 0 the first row, column or channel. Others have the size of the result."""
    source, wanted = node.sources[index], writer.shape(node.result_image)
    names = ("stride_in_feature_channels", "stride_in_pixels_y", "stride_in_pixels_x")
    lengths, strides = writer.shape(source), [getattr(kernel, f"{word}_{name}") for name in names]
    if any(stride and length != whole for stride, length, whole in zip(strides, lengths, wanted, strict=True)):
        raise NodeError(f"its {word} source ends before its result does", f"Set its {word}_stride_… to 0 to repeat it")
    axes = [
        axis for axis, (length, stride) in enumerate(zip(lengths, strides, strict=True), 1) if not stride and length > 1
    ]
    if not axes:
        return writer.name(source)
    limits = [writer.constant(np.array(each, np.int64)) for each in ([0] * len(axes), [1] * len(axes), axes)]
    return writer.step("Slice", [writer.name(source), *limits])


# --- normalizations ---------------------------------------------------------------------------------------------------


def _rows(writer: Writer, node: Any, values: Sequence[Any], names: Sequence[str]) -> list[str]:
    title = node.label or type(node).__name__
    return [
        writer.constant(np.asarray(value, np.float32).reshape(-1), f"{title}.{name}")
        for value, name in zip(values, names, strict=True)
    ]


def _batch(writer: Writer, node: Any, kernel: Any) -> None:
    if kernel.uses_batch:
        raise NodeError("it normalizes by the statistics of the batch", "Save a graph for inference")
    held = writer.stand_ins.normalization(kernel)
    rows = held.gamma(), held.beta(), held.mean(), held.variance()
    count = writer.shape(node.sources[0])[0]
    filled = [np.full(count, 0 if place in (1, 2) else 1) if row is None else row for place, row in enumerate(rows)]
    inputs = [writer.name(node.sources[0]), *_rows(writer, node, filled, ("gamma", "beta", "mean", "variance"))]
    momentum = getattr(node.data_source, "momentum", None)  # of running statistics; ONNX says what they keep
    more = {} if momentum is None else {"momentum": 1 - momentum}
    writer.add("BatchNormalization", inputs, writer.name(node.result_image), epsilon=kernel.epsilon, **more)


def _instance(writer: Writer, node: Any, kernel: Any) -> None:
    held = writer.stand_ins.normalization(kernel)
    inputs = [writer.name(node.sources[0]), *_rows(writer, node, (held.gamma(), held.beta()), ("gamma", "beta"))]
    writer.add("InstanceNormalization", inputs, writer.name(node.result_image), epsilon=kernel.settings.epsilon)


def _group(writer: Writer, node: Any, kernel: Any) -> None:
    held = writer.stand_ins.normalization(kernel)
    inputs = [writer.name(node.sources[0]), *_rows(writer, node, (held.gamma(), held.beta()), ("gamma", "beta"))]
    settings = {"epsilon": kernel.settings.epsilon, "num_groups": kernel.settings.groups}
    writer.add("GroupNormalization", inputs, writer.name(node.result_image), **settings)


def _local_response(writer: Writer, node: Any, kernel: Any) -> None:
    if node.kernel_size % 2 == 0:
        raise NodeError("an even window: it leans to the upper channels in ONNX, to the lower ones here")
    settings = {"alpha": node.alpha, "beta": node.beta, "bias": node.delta, "size": node.kernel_size}
    writer.add("LRN", [writer.name(node.sources[0])], writer.name(node.result_image), **settings)


# --- shapes -----------------------------------------------------------------------------------------------------------


def _same(operator: str, **attributes: Any) -> Layer:
    def write(writer: Writer, node: Any, kernel: Any) -> None:
        writer.add(operator, [writer.name(node.sources[0])], writer.name(node.result_image), **attributes)

    return write


def _dropout(writer: Writer, node: Any, kernel: Any) -> None:
    if kernel.keep_probability != 1:
        raise NodeError("it drops out at random", "Save a graph for inference, without dropout")
    writer.add("Identity", [writer.name(node.sources[0])], writer.name(node.result_image))


LAYERS: dict[type, Layer] = {
    convolution.MPSCNNConvolutionNode: _convolution,
    convolution.MPSCNNConvolutionTransposeNode: _transposed,
    neuron.MPSCNNNeuronNode: _neuron,
    pooling.MPSCNNPoolingMaxNode: _maximum,
    pooling.MPSCNNDilatedPoolingMaxNode: _maximum,
    pooling.MPSCNNPoolingAverageNode: _average,
    pooling.MPSCNNPoolingL2NormNode: _norm,
    reduction.MPSNNReductionSpatialMeanNode: _reduction("ReduceMean", 2, 3),
    reduction.MPSNNReductionRowMeanNode: _reduction("ReduceMean", 3),
    reduction.MPSNNReductionRowSumNode: _reduction("ReduceSum", 3),
    reduction.MPSNNReductionRowMaxNode: _reduction("ReduceMax", 3),
    reduction.MPSNNReductionRowMinNode: _reduction("ReduceMin", 3),
    reduction.MPSNNReductionColumnMeanNode: _reduction("ReduceMean", 2),
    reduction.MPSNNReductionColumnSumNode: _reduction("ReduceSum", 2),
    reduction.MPSNNReductionColumnMaxNode: _reduction("ReduceMax", 2),
    reduction.MPSNNReductionColumnMinNode: _reduction("ReduceMin", 2),
    reduction.MPSNNReductionFeatureChannelsMeanNode: _reduction("ReduceMean", 1),
    reduction.MPSNNReductionFeatureChannelsSumNode: _reduction("ReduceSum", 1),
    reduction.MPSNNReductionFeatureChannelsMaxNode: _reduction("ReduceMax", 1),
    reduction.MPSNNReductionFeatureChannelsMinNode: _reduction("ReduceMin", 1),
    arithmetic.MPSNNAdditionNode: _binary("Add"),
    arithmetic.MPSNNSubtractionNode: _binary("Sub"),
    arithmetic.MPSNNMultiplicationNode: _binary("Mul"),
    arithmetic.MPSNNDivisionNode: _binary("Div"),
    normalization.MPSCNNBatchNormalizationNode: _batch,
    normalization.MPSCNNInstanceNormalizationNode: _instance,
    normalization.MPSCNNGroupNormalizationNode: _group,
    local.MPSCNNCrossChannelNormalizationNode: _local_response,
    softmax.MPSCNNSoftMaxNode: _same("Softmax", axis=1),
    softmax.MPSCNNLogSoftMaxNode: _same("LogSoftmax", axis=1),
    dropout.MPSCNNDropoutNode: _dropout,
    shape.MPSNNReshapeNode: shapes.reshape,
    shape.MPSNNPadNode: shapes.pad,
    shape.MPSCNNUpsamplingNearestNode: shapes.resize("nearest"),
    shape.MPSCNNUpsamplingBilinearNode: shapes.resize("linear"),
    shape.MPSNNBilinearScaleNode: shapes.resize("linear"),
    concatenation.MPSNNConcatenationNode: shapes.concatenation,
}
