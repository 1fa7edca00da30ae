"""Pooling, with windows and over whole images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openmps.checks import FLT_MAX
from openmps.core.padding.explicit import ExplicitPadding
from openmps.formats.onnx.layout import Layout
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.site import Builder, Site
from openmps.formats.onnx.windows import Window, window_of
from openmps.graph.nodes.node import MPSNNFilterNode
from openmps.graph.nodes.pooling import (
    MPSCNNDilatedPoolingMaxNode,
    MPSCNNPoolingAverageNode,
    MPSCNNPoolingL2NormNode,
    MPSCNNPoolingMaxNode,
)
from openmps.graph.nodes.reduction import (
    MPSNNReductionColumnMaxNode,
    MPSNNReductionRowMaxNode,
    MPSNNReductionSpatialMeanNode,
)
from openmps.graph.nodes.shape import MPSNNPadNode
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode


def _window(at: Site, node: Node) -> tuple[Picture, Window]:
    x = at.planar(node)
    return x, window_of(node, tuple(node.integers("kernel_shape")), x.layout)


def _sizes(window: Window) -> tuple[int, int, int, int]:
    return window.size[1], window.size[0], window.stride[1], window.stride[0]


def _undilated(window: Window, what: str) -> None:
    if window.dilation != (1, 1):
        raise NodeError(f"dilated {what} pooling: only maximum pooling has a dilation rate")


def _placed(at: Site, node: Node, made: MPSNNFilterNode, x: Picture, window: Window, padding: object) -> Picture:
    made.padding_policy = padding  # pyright: ignore[reportAttributeAccessIssue]
    return at.made(made, window.result(x.layout, channels_of(x.layout.channels)), node.title)


def maximum(at: Site, node: Node) -> Picture:
    """MaxPool, dilated or not."""
    x, window = _window(at, node)
    if len(node.outputs) > 1 and node.outputs[1] and at.readers[node.outputs[1]]:
        raise NodeError("its second output is the places of the maxima: pooling keeps them to itself")
    if window.dilation == (1, 1):
        made = MPSCNNPoolingMaxNode(x.image, *_sizes(window)[:2], *_sizes(window)[2:])
        return _placed(at, node, made, x, window, window.policy())
    # Beyond its edges an image goes on with its edge pixels, which a window whose pixels lie apart may not hold.
    pads = window.pads()
    if pads is None:
        raise NodeError("its padding depends on a size that is not known", "Give the size of the input")
    image, policy = x.image, window.policy()
    if window.is_ceiling:  # the last windows may reach beyond the padding
        rows, columns = _reached(window, pads[0])
        pads = pads[0], (max(0, rows), max(0, columns))
    if any(pads[0] + pads[1]):
        (top, left), (bottom, right) = pads
        sides = MPSImageCoordinate(left, top, 0), MPSImageCoordinate(right, bottom, 0)
        padded = MPSNNPadNode(image, *sides, MPSImageEdgeMode.CONSTANT)
        padded.fill_value = -FLT_MAX
        image, policy = padded.result_image, ExplicitPadding(0, 0, 0, 0)
    made = MPSCNNDilatedPoolingMaxNode(image, *_sizes(window), window.dilation[1], window.dilation[0])
    return _placed(at, node, made, x, window, policy)


def average(at: Site, node: Node) -> Picture:
    """AveragePool, whose divisor counts the pads or not."""
    x, window = _window(at, node)
    _undilated(window, "average")
    counted = bool(node.integer("count_include_pad", 0)) and window.is_padded
    pads = window.pads()
    if counted and pads is None:
        raise NodeError("it counts a padding that depends on a size that is not known", "Give the size of the input")
    if not counted or pads is None:
        made = MPSCNNPoolingAverageNode(x.image, *_sizes(window))
        return _placed(
            at, node, made, x, window, window.policy(**({} if pads is None else {"count_include_pad": False}))
        )
    # Zeros that count are zeros of the image.
    (top, left), (bottom, right) = pads
    before, behind = MPSImageCoordinate(left, top, 0), MPSImageCoordinate(right, bottom, 0)
    padded = MPSNNPadNode(x.image, before, behind, MPSImageEdgeMode.ZERO)
    made = MPSCNNPoolingAverageNode(padded.result_image, *_sizes(window))
    policy = _behind(window, (top + bottom, left + right), count_include_pad=False)
    return _placed(at, node, made, x, window, policy)


def _behind(window: Window, added: tuple[int, int], **options: Any) -> ExplicitPadding:
    """What is left to pad of an image to which pixels were added: what windows of a ceiling reach beyond them."""
    if not window.is_ceiling:
        return ExplicitPadding(0, 0, 0, 0, **options)
    rows, columns = _reached(window, added)
    return ExplicitPadding(0, 0, columns, rows, **options)


def _reached(window: Window, added: tuple[int, int]) -> tuple[int, int]:
    """How far the last windows reach beyond an image to which pixels were added."""
    more: list[int] = []
    lengths = window.lengths()
    for length, source, zeros, k, s in zip(lengths, window.source, added, window.extent, window.stride, strict=True):
        if length is None or source is None:
            raise NodeError("its padding depends on a size that is not known", "Give the size of the input")
        more.append((length - 1) * s + k - source - zeros)
    return more[0], more[1]


def norm(at: Site, node: Node) -> Picture:
    """LpPool with p = 2."""
    x, window = _window(at, node)
    if node.integer("p", 2) != 2:
        raise NodeError(f"L{node.integer('p', 2)} pooling: the framework pools by the L2 norm only")
    _undilated(window, "L2")
    policy = window.policy(edge_mode=MPSImageEdgeMode.ZERO)
    return _placed(at, node, MPSCNNPoolingL2NormNode(x.image, *_sizes(window)), x, window, policy)


def whole_mean(at: Site, node: Node) -> Picture:
    """GlobalAveragePool."""
    x = at.planar(node)
    return at.made(MPSNNReductionSpatialMeanNode(x.image), pointed(x.layout), node.title)


def whole_maximum(at: Site, node: Node) -> Picture:
    """GlobalMaxPool: of rows, then of what they leave."""
    x = at.planar(node)
    rows = MPSNNReductionRowMaxNode(x.image)
    return at.made(MPSNNReductionColumnMaxNode(rows.result_image), pointed(x.layout), node.title)


def pointed(layout: Layout) -> Layout:
    """An image of one pixel, its spatial axes of length 1."""
    gone = dict.fromkeys((*layout.rows, *layout.columns), ())
    return replace(layout.exchanged(gone))


BUILDERS: dict[str, Builder] = {
    "MaxPool": maximum,
    "AveragePool": average,
    "LpPool": norm,
    "GlobalAveragePool": whole_mean,
    "GlobalMaxPool": whole_maximum,
}
