"""Convolutions, transposed convolutions and products with constant matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from openmps.core.padding.explicit import ExplicitPadding
from openmps.formats.onnx.layout import Layout, atoms, planar, size_of
from openmps.formats.onnx.learning import Learns
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError, ShapeError
from openmps.formats.onnx.site import Builder, Site
from openmps.formats.onnx.windows import Window, placed, window_of
from openmps.graph.nodes.convolution import (
    MPSCNNConvolutionNode,
    MPSCNNConvolutionTransposeNode,
    MPSCNNFullyConnectedNode,
)
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNDepthWiseConvolutionDescriptor
from openmps.types import MPSCNNNeuronType

Weights = NDArray[np.float32]


def _four(weights: Weights) -> Weights:
    """Weights with one spatial axis or two, as with two."""
    if weights.ndim not in (3, 4):
        raise NodeError(f"its weights have {weights.ndim} axes: images have two spatial ones")
    return weights if weights.ndim == 4 else weights[:, :, None]


def _descriptor(window: Window, inputs: int, outputs: int, groups: int) -> MPSCNNConvolutionDescriptor:
    is_depthwise = groups == inputs > 1
    kind = MPSCNNDepthWiseConvolutionDescriptor if is_depthwise else MPSCNNConvolutionDescriptor
    made = kind(window.size[1], window.size[0], inputs, outputs)
    made.stride_in_pixels_y, made.stride_in_pixels_x = window.stride
    made.dilation_rate_y, made.dilation_rate_x = window.dilation
    made.groups = 1 if is_depthwise else groups
    return made


def _groups(node: Node, channels: int, weights: Weights, of_weights: int) -> int:
    """The groups of a convolution, whose weights have axis ``of_weights`` for the input channels."""
    groups, shape = node.integer("group", 1), weights.shape
    weights = _four(weights)
    if groups < 1 or channels % groups or weights.shape[0] % groups:
        raise ShapeError(f"its {groups} groups do not divide its {channels} input channels and {len(weights)} weights")
    wanted = channels // groups if of_weights == 1 else channels
    if weights.shape[of_weights] != wanted or not weights.size:
        of_groups = f" in {groups} groups" if groups > 1 else ""
        raise ShapeError(f"its weights of shape {shape} do not fit {channels} input channels{of_groups}")
    return groups


def _kernel(node: Node, weights: Weights) -> tuple[int, ...]:
    kernel = tuple(node.integers("kernel_shape", list(weights.shape[2:])))
    if kernel != weights.shape[2:]:
        raise ShapeError(f"its kernel_shape {kernel[:4]} is not that of its weights, {weights.shape}")
    return kernel


def convolution(at: Site, node: Node) -> Picture:
    """Weights OIHW; a group for each channel makes it depthwise."""
    x, raw = at.planar(node), at.weights(node, 1, "weights")
    channels = channels_of(x.layout.channels)
    groups = _groups(node, channels, raw, 1)
    window = window_of(node, _kernel(node, raw), x.layout)
    biases = None if at.value(node, 2) is None else at.row(node, 2, "biases", len(raw))
    descriptor = _descriptor(window, channels, len(raw), groups)
    layout, padding = window.result(x.layout, len(raw)), window.policy()
    return at.convolution(node, x.image, layout, descriptor, _ohwi(raw), biases, padding=padding, learns=Learns(_ohwi))


def _ohwi(weights: Array) -> Array:
    return _four(weights).transpose(0, 2, 3, 1)


def transposed_convolution(at: Site, node: Node) -> Picture:
    """Weights ``[I, O / groups, H, W]``, turned by half a turn for the framework."""
    x, raw = at.planar(node), at.weights(node, 1, "weights")
    channels = channels_of(x.layout.channels)
    groups = _groups(node, channels, raw, 0)
    inputs, outputs, ky, kx = _four(raw).shape
    window = window_of(node, _kernel(node, raw), x.layout)

    def turned(weights: Array) -> Array:
        parts = _four(weights)[:, :, ::-1, ::-1].reshape(groups, inputs // groups, outputs, ky, kx)
        return parts.transpose(0, 2, 3, 4, 1).reshape(groups * outputs, ky, kx, inputs // groups)

    biases = None if at.value(node, 2) is None else at.row(node, 2, "biases", groups * outputs)
    descriptor = _descriptor(window, channels, groups * outputs, groups)
    padding, sizes = _transposed_padding(node, window, x.layout.rank - 2)
    layout = planar(x.layout.batch, atoms(groups * outputs), *map(atoms, sizes), rank=x.layout.rank)
    kind = MPSCNNConvolutionTransposeNode
    return at.convolution(node, x.image, layout, descriptor, turned(raw), biases, kind, padding, learns=Learns(turned))


def _transposed_padding(node: Node, window: Window, rank: int) -> tuple[ExplicitPadding, list[int | None]]:
    """The pads of a transposed convolution, given or such that a size comes out, and the size of the result."""
    more = [0] * (2 - rank) + node.integers("output_padding", [0] * rank)
    wanted = [1] * (2 - rank) + node.integers("output_shape")[-rank:] if node.given("output_shape") else None
    if wanted is None and window.automatic in ("SAME_UPPER", "SAME_LOWER"):
        # No less than the windows make: pads are no less than 0 here, as in ONNX's rule of shapes.
        wanted = [
            None if n is None else min(n * s, (n - 1) * s + e + k)
            for n, s, e, k in zip(window.source, window.stride, more, window.extent, strict=True)
        ]
    before, behind = window.before, window.behind
    if wanted is not None:
        if None in window.source or len(wanted) != 2:
            raise NodeError("its padding depends on a size that is not known", "Give the size of the input")
        if any(length is not None and length < 1 for length in wanted):
            raise NodeError(f"its output_shape {wanted} has a length below 1")
        total = [
            ((n or 1) - 1) * s + e + k - (r or 1)
            for n, s, e, k, r in zip(window.source, window.stride, more, window.extent, wanted, strict=True)
        ]
        odd = 0 if window.automatic == "SAME_UPPER" else 1
        before = (max(0, total[0]) + odd) // 2, (max(0, total[1]) + odd) // 2
        behind = total[0] - before[0], total[1] - before[1]  # what is beyond the windows lies behind them
    elif window.automatic == "VALID":
        before = behind = (0, 0)
    (top, left), (bottom, right) = before, behind
    padding = ExplicitPadding(left, top, right - more[1], bottom - more[0])
    sizes = [
        None if n is None else placed(padding, n, k, s, d, axis=axis, is_backwards=True)
        for n, k, s, d, axis in zip(window.source, window.size, window.stride, window.dilation, "yx", strict=True)
    ]
    return padding, sizes


# --- matrices ---------------------------------------------------------------------------------------------------------


def product(at: Site, node: Node) -> Picture:
    """MatMul of a picture and a constant matrix: the last axis is what is summed. Biases may be a third input."""
    x, matrix = at.picture(node), at.weights(node, 1, "second matrix")
    if matrix.ndim != 2:
        raise NodeError(f"its second matrix has {matrix.ndim} axes")
    biases = None if at.value(node, 2) is None else at.row(node, 2, "biases", matrix.shape[1])
    return _matrix(at, node, x, matrix, biases, is_turned=False)


def general_product(at: Site, node: Node) -> Picture:
    """Gemm: ``alpha A B + beta C`` of a picture A and constants."""
    x, matrix = at.picture(node), at.weights(node, 1, "matrix B")
    if node.integer("transA", 0) or x.layout.rank != 2 or matrix.ndim != 2:
        raise NodeError("its matrix A is transposed, or one of its matrices has not two axes")
    alpha, beta, is_turned = node.decimal("alpha", 1), node.decimal("beta", 1), bool(node.integer("transB", 0))
    outputs, biases = matrix.shape[0 if is_turned else 1], None
    if at.value(node, 2) is not None:
        given = at.weights(node, 2, "matrix C")
        if (1, *given.shape)[-2:] not in ((1,), (1, 1), (1, outputs)) or given.ndim > 2:
            raise ShapeError(f"its matrix C of shape {given.shape} is no row of {outputs} numbers")
        if at.trainable and (beta != 1 or given.size != outputs):
            raise NodeError(
                "its matrix C has a factor, or is one number for all: biases of a layer are trained one by one"
            )
        biases = np.array(np.broadcast_to(beta * given.reshape(-1), outputs), np.float32)
    with np.errstate(over="ignore"):
        product = (alpha * matrix).astype(np.float32)
    if alpha != 1 and (at.trainable or not np.isfinite(product).all()):
        x = at.neuron(node, x, MPSCNNNeuronType.LINEAR, alpha, 0.0)  # so that the matrix stays as it is
    else:
        matrix = product
    return _matrix(at, node, x, matrix, biases, is_turned=is_turned)


def _matrix(at: Site, node: Node, x: Picture, matrix: Weights, biases: Weights | None, *, is_turned: bool) -> Picture:
    """A matrix over the last axis: a fully connected layer where that is whole images, else one for each pixel.

    ``is_turned`` says that the matrix's first axis is what comes out.
    """
    layout, axis = x.layout, x.layout.axes[-1]
    if layout.rank < 2 or layout.batch in axis:
        raise NodeError("what it sums over is the batch")
    if size_of(axis) is None:
        raise NodeError("the size of what it sums over is not known", "Give the size of the input")
    outputs, inputs = matrix.shape if is_turned else matrix.shape[::-1]
    if size_of(axis) != inputs:
        turned = ", transposed," if is_turned else ""
        raise ShapeError(f"its matrix of shape {matrix.shape}{turned} does not fit {size_of(axis)} numbers")
    sizes = [atom.size or 1 for atom in axis]
    taken = set(axis)
    if not set(layout.channels) <= taken:
        raise NodeError("it does not sum over feature channels", "Let the model keep them in the last axis")
    pixels = (*layout.rows, *layout.columns)
    is_whole = set(pixels) <= taken
    if not is_whole and taken & set(pixels):
        raise NodeError("it sums over a part of the pixels")
    order = [axis.index(atom) for atom in (*(pixels if is_whole else ()), *layout.channels)]
    channels = channels_of(layout.channels)
    height, width = ((size_of(layout.rows) or 1), (size_of(layout.columns) or 1)) if is_whole else (1, 1)

    def ohwi(array: Array) -> Array:
        rows = (array if is_turned else array.T).reshape([outputs, *sizes])
        return rows.transpose([0, *(1 + place for place in order)]).reshape(outputs, height, width, channels)

    new = atoms(outputs)
    found = layout.with_axes((*layout.axes[:-1], new))
    found = Layout(found.batch, found.axes, new) if is_whole else replace(found, channels=new)
    descriptor = MPSCNNConvolutionDescriptor(width, height, channels, outputs)
    kind = MPSCNNFullyConnectedNode if is_whole else MPSCNNConvolutionNode
    return at.convolution(node, x.image, found, descriptor, ohwi(matrix), biases, kind, learns=Learns(ohwi))


BUILDERS: dict[str, Builder] = {
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "MatMul": product,
    "Gemm": general_product,
}
