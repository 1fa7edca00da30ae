"""Rules on padding: windows that a device may place otherwise (MPSNeuralNetworkTypes.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.geometry import axis_placement, window_extent
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.graph.lint.findings import Finding, Severity
from openmps.graph.lint.view import View
from openmps.graph.nodes.convolution import MPSCNNConvolutionTransposeNode, MPSCNNFullyConnectedNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode
from openmps.types import MPSNNPaddingMethod

_AXES = (("x", "width"), ("y", "height"))


def _placed(view: View) -> Iterator[tuple[MPSNNFilterNode, Any, int]]:
    """Forward filters with a window that a method places, their kernels, and the method."""
    for node, kernel in view.layers():
        is_apart = isinstance(node, MPSNNGradientFilterNode | MPSCNNFullyConnectedNode)
        if is_apart or isinstance(kernel.padding, ExplicitPadding) or not hasattr(kernel, "kernel_width"):
            continue
        method = int(kernel.padding.padding_method())
        # Of custom policies the average-pooling presets place as their method says; others have the last word.
        is_own = method & int(MPSNNPaddingMethod.CUSTOM) and not isinstance(kernel.padding, MPSNNDefaultPadding)
        if max(kernel.kernel_width, kernel.kernel_height) > 1 and not is_own:
            yield node, kernel, method


def remainder(view: View) -> Iterator[Finding]:
    """An odd pixel of padding goes to the top left unless the method says otherwise, unlike in other frameworks."""
    bits = int(MPSNNPaddingMethod.ADD_REMAINDER_TO_MASK)
    sized = int(MPSNNPaddingMethod.SIZE_SAME)
    for node, kernel, method in _placed(view):
        shape = view.shape_of(node.sources[0])
        if shape is None or kernel.is_backwards or method & bits or not method & sized:
            continue
        odd = [name for axis, name in _AXES if _missing(shape, kernel, method, axis, name) % 2]
        if odd:
            yield view.finding(
                Severity.NOTE, "padding-remainder", node,
                "an odd pixel of padding goes to the top left; TensorFlow and ONNX's SAME_UPPER put it bottom right",
                f"an odd padding of the {' and the '.join(odd)}",
                "Use MPSNNDefaultPadding.tensorflow_same() for weights of those frameworks",
            )  # fmt: skip


def _missing(shape: Any, kernel: Any, method: int, axis: Any, name: str) -> int:
    lengths = getattr(shape, name), getattr(kernel, f"kernel_{name}")
    steps = getattr(kernel, f"stride_in_pixels_{axis}"), getattr(kernel, f"dilation_rate_{axis}")
    return max(axis_placement(*lengths, *steps, method=method, axis=axis).missing, 0)


def dilation(view: View) -> Iterator[Finding]:
    """The header does not say how dilated windows are placed by a method."""
    for node, kernel, method in _placed(view):
        rates = kernel.dilation_rate_x, kernel.dilation_rate_y
        if max(rates) > 1:
            extents = (window_extent(kernel.kernel_width, rates[0]), window_extent(kernel.kernel_height, rates[1]))
            yield view.finding(
                Severity.WARNING, "padding-dilation", node,
                "the framework does not say where a method puts dilated windows; openmps counts their whole extent",
                f"a window of {extents[0]}x{extents[1]} pixels with its gaps",
                "Use ExplicitPadding, which sets size and offset on a device too",
            )  # fmt: skip
        if method & int(MPSNNPaddingMethod.EXCLUDE_EDGES):
            yield view.finding(
                Severity.WARNING, "padding-edges", node,
                "the framework does not say how much padding EXCLUDE_EDGES assumes; openmps goes by the size bits",
                f"method {method:#x}", "Use ExplicitPadding with count_include_pad",
            )  # fmt: skip


def transposed(view: View) -> Iterator[Finding]:
    """The header's formula of offsets has no meaning for transposed convolutions with strides."""
    for node, kernel, _ in _placed(view):
        strides = kernel.stride_in_pixels_x, kernel.stride_in_pixels_y
        if isinstance(node, MPSCNNConvolutionTransposeNode) and max(strides) > 1 and not node.source_states:
            yield view.finding(
                Severity.WARNING, "padding-transposed", node,
                "the framework does not say how a method places a transposed convolution with strides above 1",
                f"strides {strides[0]}x{strides[1]}", "Use ExplicitPadding, or the state of a convolution",
            )  # fmt: skip
