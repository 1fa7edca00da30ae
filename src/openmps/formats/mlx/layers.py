"""How the framework's nodes with weights and windows are written for MLX."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.formats.archive.sources import folded_numbers, normalization_numbers
from openmps.formats.mlx.pointwise import POINTWISE, applied
from openmps.formats.mlx.text import Layer, Text, number
from openmps.formats.onnx.problems import NodeError
from openmps.formats.windows import Padding, extents, padding, transposed_padding
from openmps.graph.nodes import convolution, dropout, normalization, pooling
from openmps.graph.nodes import local_normalization as local
from openmps.graph.nodes.trainable import offered_updates
from openmps.kernels.convolution import MPSCNNDepthWiseConvolutionDescriptor
from openmps.kernels.convolution.descriptor import sub_pixel_factor
from openmps.kernels.pooling import counted_padding, norm_edge
from openmps.types import MPSCNNBatchNormalizationFlags, MPSImageEdgeMode, MTLSize

Array = NDArray[np.float32]
_NO_PADS = ((0, 0), (0, 0))
_EVERY_NUMBER = MTLSize(1, 1, 1)
_MOMENTUM = 0.1
"""Of running statistics of a data source that has none: what MLX takes, too."""


# --- windows ----------------------------------------------------------------------------------------------------------


def _windowed(text: Text, node: Any, kernel: Any) -> tuple[str, Padding]:
    """The source, cut where windows do not reach its edges, and what they reach beyond them."""
    source, sizes = text.variable(node.sources[0]), text.shape(node.sources[0])[:2]
    found = padding(kernel, sizes, text.shape(node.result_image)[:2])
    return f"{source}{_cut(found)}", _positive(found)


def _cut(sides: Padding) -> str:
    """What takes rows and columns off that windows do not reach; nothing where they reach all."""
    parts = [_slice(-before, -behind) for before, behind in zip(*sides, strict=True)]
    return "" if parts == [":", ":"] else f"[:, {', '.join(parts)}]"


def _slice(before: int, behind: int) -> str:
    return f"{before if before > 0 else ''}:{-behind if behind > 0 else ''}"


def _positive(sides: Padding) -> Padding:
    (top, left), (bottom, right) = ((max(0, each) for each in side) for side in sides)
    return Padding((top, left), (bottom, right))


def _pads(sides: Padding) -> str:
    return str((tuple(sides.before), tuple(sides.behind)))


def _size(kernel: Any) -> str:
    size, stride = (kernel.kernel_height, kernel.kernel_width), (kernel.stride_in_pixels_y, kernel.stride_in_pixels_x)
    return f"{size}, {stride}"


def _beyond(text: Text, source: str, sides: Padding, value: str | None) -> str:
    """An image that goes on beyond its edges, with zeros or another value, or with its edge pixels."""
    name = "edged" if value is None else "padded"
    text.use(name)
    return f"{name}({source}, {_pads(sides)}{value or ''})"


# --- convolutions -----------------------------------------------------------------------------------------------------


def _label(node: Any, kernel: Any) -> str:
    """What a layer's part is called: as its data source is labelled, or its node."""
    source = kernel.data_source
    return (None if source is None else source.label()) or node.label or type(node).__name__


def _weights(kernel: Any) -> tuple[Any, Array, dict[str, Array]]:
    """Descriptor, weights and biases, batch normalization folded into both."""
    descriptor, weights, biases = folded_numbers(kernel)
    if sub_pixel_factor(descriptor) > 1:
        raise NodeError("sub-pixel convolution is not written")
    return descriptor, weights, {} if biases is None else {"bias": biases}


def _settings(descriptor: Any, sides: Padding, weights: Array, biases: dict[str, Array]) -> str:
    """The arguments of a convolution, but for those that are as usual."""
    is_depthwise = isinstance(descriptor, MPSCNNDepthWiseConvolutionDescriptor)
    groups = descriptor.input_feature_channels if is_depthwise else descriptor.groups
    settings = {
        "bias": (bool(biases), True),
        "stride": ((descriptor.stride_in_pixels_y, descriptor.stride_in_pixels_x), (1, 1)),
        "pads": ((tuple(sides.before), tuple(sides.behind)), _NO_PADS),
        "dilation": ((descriptor.dilation_rate_y, descriptor.dilation_rate_x), (1, 1)),
        "groups": (int(groups), 1),
    }
    given = [f"{name}={value}" for name, (value, usual) in settings.items() if value != usual]
    return ", ".join([str(tuple(map(int, weights.shape))), *given])


def _convolution(text: Text, node: Any, kernel: Any) -> str:
    if kernel.edge_mode is not MPSImageEdgeMode.ZERO:
        raise NodeError(f"its edge mode is {kernel.edge_mode.name}")
    descriptor, weights, biases = _weights(kernel)
    source, sides = _windowed(text, node, kernel)
    text.use("convolution")
    made = f"Convolution({_settings(descriptor, sides, weights, biases)})"
    part = text.member(_label(node, kernel), made, {"weight": weights, **biases}, frozen=_is_frozen(text, node))
    return applied(text, node, f"{part}({source})", descriptor.fused_neuron_descriptor)


def _connected(text: Text, node: Any, kernel: Any) -> str:
    """A fully connected layer reads rows, columns and channels in a row."""
    descriptor, weights, biases = _weights(kernel)
    shape = text.shape(node.sources[0])
    if weights.shape[1:] != shape or text.shape(node.result_image)[:2] != (1, 1):
        return _convolution(text, node, kernel)
    rows = weights.reshape(len(weights), -1)
    made = f"nn.Linear({rows.shape[1]}, {len(rows)}{'' if biases else ', bias=False'})"
    part = text.member(_label(node, kernel), made, {"weight": rows, **biases}, frozen=_is_frozen(text, node))
    called = f"{part}(mx.flatten({text.variable(node.sources[0])}, 1))[:, None, None]"
    return applied(text, node, called, descriptor.fused_neuron_descriptor)


def _transposed(text: Text, node: Any, kernel: Any) -> str:
    descriptor, weights, biases = _weights(kernel)
    if isinstance(descriptor, MPSCNNDepthWiseConvolutionDescriptor):
        raise NodeError("a transposed convolution that is depthwise is not written")
    if kernel.offset.x or kernel.offset.y:
        raise NodeError("its offset is not 0")
    sizes, results = text.shape(node.sources[0])[:2], text.shape(node.result_image)[:2]
    found = transposed_padding(kernel, sizes, results)
    text.use("transposed_convolution")
    made = f"TransposedConvolution({_settings(descriptor, _positive(found), weights, biases)})"
    arrays = {"weight": weights[:, ::-1, ::-1], **biases}
    part = text.member(_label(node, kernel), made, arrays, frozen=_is_frozen(text, node))
    called = f"{part}({text.variable(node.sources[0])}){_cut(found)}"
    return applied(text, node, called, descriptor.fused_neuron_descriptor)


def _is_frozen(text: Text, node: Any) -> bool:
    """Whether a graph that trains leaves the node's parameters as they are."""
    return text.trains and not offered_updates(node)


# --- poolings ---------------------------------------------------------------------------------------------------------


def _maximum(text: Text, node: Any, kernel: Any) -> str:
    if kernel.edge_mode is not MPSImageEdgeMode.CLAMP:
        raise NodeError(f"its edge mode is {kernel.edge_mode.name}")
    source, sides = _windowed(text, node, kernel)
    dilation = kernel.dilation_rate_y, kernel.dilation_rate_x
    text.use("max_pool")
    if (sides.before, sides.behind) != _NO_PADS:
        # A tap beyond the edge reads the edge, which other taps of the window hold unless it is dilated or far away.
        reach = [max(pair) for pair in zip(*sides, strict=True)]
        is_near = max(dilation) == 1 and all(pad < size for pad, size in zip(reach, extents(kernel), strict=True))
        source = _beyond(text, source, sides, ", -mx.inf" if is_near else None)
    more = "" if dilation == (1, 1) else f", {dilation}"
    return f"max_pool({source}, {_size(kernel)}{more})"


def _average(text: Text, node: Any, kernel: Any) -> str:
    source, sides = _windowed(text, node, kernel)
    edge_mode, (x, y) = counted_padding(kernel)
    text.use("average_pool")
    if (sides.before, sides.behind) == _NO_PADS:
        return f"average_pool({source}, {_size(kernel)})"
    zeros = (10**9, 10**9) if edge_mode is MPSImageEdgeMode.ZERO else (y, x)
    counted = tuple(tuple(min(pad, most) for pad, most in zip(side, zeros, strict=True)) for side in sides)
    more = "" if counted == _NO_PADS else f", {counted}"
    return f"average_pool({source}, {_size(kernel)}, {_pads(sides)}{more})"


def _norm(text: Text, node: Any, kernel: Any) -> str:
    source, sides = _windowed(text, node, kernel)
    text.use("norm_pool")
    if (sides.before, sides.behind) != _NO_PADS:
        is_edge = norm_edge(kernel.conventions, kernel.edge_mode) is MPSImageEdgeMode.CLAMP
        source = _beyond(text, source, sides, None if is_edge else "")
    return f"norm_pool({source}, {_size(kernel)})"


# --- normalizations ---------------------------------------------------------------------------------------------------


def _batch(text: Text, node: Any, kernel: Any) -> str:
    held, never = normalization_numbers(kernel), MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER
    if text.trains and node.flags is never:
        raise NodeError("it trains with fixed statistics, which MLX's batch normalization does not")
    if kernel.epsilon <= 0:
        raise NodeError("its epsilon is 0, which MLX's batch normalization refuses")
    arrays = {"weight": held.gamma_array, "bias": held.beta_array}
    settings = f"{held.gamma_array.size}, eps={number(kernel.epsilon)}"
    if node.flags is MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS and not text.trains:
        settings += ", track_running_stats=False"
    else:
        settings += f", momentum={number(getattr(node.data_source, 'momentum', _MOMENTUM))}"
        arrays |= {"running_mean": held.mean_array, "running_var": held.variance_array}
    return _normalized(text, node, kernel, f"nn.BatchNorm({settings})", arrays)


def _instance(text: Text, node: Any, kernel: Any) -> str:
    held = normalization_numbers(kernel)
    made = f"nn.InstanceNorm({held.gamma_array.size}, eps={number(kernel.settings.epsilon)}, affine=True)"
    return _normalized(text, node, kernel, made, {"weight": held.gamma_array, "bias": held.beta_array})


def _group(text: Text, node: Any, kernel: Any) -> str:
    held, settings = normalization_numbers(kernel), kernel.settings
    sizes = f"{settings.groups}, {held.gamma_array.size}, eps={number(settings.epsilon)}"
    made = f"nn.GroupNorm({sizes}, pytorch_compatible=True)"
    return _normalized(text, node, kernel, made, {"weight": held.gamma_array, "bias": held.beta_array})


def _normalized(text: Text, node: Any, kernel: Any, made: str, arrays: dict[str, Any]) -> str:
    part = text.member(_label(node, kernel), made, arrays, frozen=_is_frozen(text, node))
    return f"{part}({text.variable(node.sources[0])})"


def _cross_channel(text: Text, node: Any, kernel: Any) -> str:
    text.use("cross_channel_normalization")
    numbers = ", ".join(number(each) for each in (node.alpha, node.beta, node.delta))
    return f"cross_channel_normalization({text.variable(node.sources[0])}, {node.kernel_size}, {numbers})"


def _dropout(text: Text, node: Any, kernel: Any) -> str:
    if not text.trains and node.keep_probability != 1:
        raise NodeError("it drops out at random outside training, which MLX's dropout does not")
    if node.mask_stride_in_pixels != _EVERY_NUMBER:
        raise NodeError("it shares mask values over an axis")
    if not 0 < node.keep_probability <= 1:
        raise NodeError(f"it keeps {number(node.keep_probability)}, which MLX's dropout refuses")
    part = text.member(node.label or "dropout", f"nn.Dropout({number(1 - node.keep_probability)})", {})
    return f"{part}({text.variable(node.sources[0])})"


LAYERS: dict[type, Layer] = {
    **POINTWISE,
    convolution.MPSCNNFullyConnectedNode: _connected,
    convolution.MPSCNNConvolutionNode: _convolution,
    convolution.MPSCNNConvolutionTransposeNode: _transposed,
    pooling.MPSCNNPoolingMaxNode: _maximum,
    pooling.MPSCNNDilatedPoolingMaxNode: _maximum,
    pooling.MPSCNNPoolingAverageNode: _average,
    pooling.MPSCNNPoolingL2NormNode: _norm,
    normalization.MPSCNNBatchNormalizationNode: _batch,
    normalization.MPSCNNInstanceNormalizationNode: _instance,
    normalization.MPSCNNGroupNormalizationNode: _group,
    local.MPSCNNCrossChannelNormalizationNode: _cross_channel,
    dropout.MPSCNNDropoutNode: _dropout,
}
"""Node classes; what stands nearest in a class's bases is taken."""
