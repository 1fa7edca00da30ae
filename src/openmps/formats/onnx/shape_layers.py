"""How nodes that move numbers within images, or between sizes, are written as ONNX's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.writing import Layer, Writer
from openmps.graph.nodes import shape
from openmps.types import MPSImageEdgeMode


def reshape(writer: Writer, node: Any, kernel: Any) -> None:
    """The framework counts numbers along rows, columns, channels, or as ONNX does, by the convention."""
    if kernel.conventions["reshape_order"] == "planes":
        wanted = writer.constant(np.array([0, *writer.shape(node.result_image)], np.int64))
        writer.add("Reshape", [writer.name(node.sources[0]), wanted], writer.name(node.result_image))
        return
    pixels = writer.step("Transpose", [writer.name(node.sources[0])], perm=[0, 2, 3, 1])
    channels, rows, columns = writer.shape(node.result_image)
    wanted = writer.constant(np.array([0, rows, columns, channels], np.int64))
    found = writer.step("Reshape", [pixels, wanted])
    writer.add("Transpose", [found], writer.name(node.result_image), perm=[0, 3, 1, 2])


_MODES = {
    MPSImageEdgeMode.ZERO: "constant",
    MPSImageEdgeMode.CONSTANT: "constant",
    MPSImageEdgeMode.CLAMP: "edge",
    MPSImageEdgeMode.MIRROR: "reflect",
}


def _lengths(sides: Any) -> tuple[int, int, int]:
    return sides.channel, sides.y, sides.x


def pad(writer: Writer, node: Any, kernel: Any) -> None:
    """`Pad` by the mode that ONNX calls the edge mode."""
    if node.edge_mode not in _MODES:
        raise NodeError(f"its edge mode is {node.edge_mode.name}")
    before, after = node.padding_size_before, node.padding_size_after
    added = [max(pair) for pair in zip(_lengths(before), _lengths(after), strict=True)]
    if node.edge_mode is MPSImageEdgeMode.MIRROR and any(
        more >= length for more, length in zip(added, writer.shape(node.sources[0]), strict=True)
    ):
        raise NodeError("it mirrors more than there is")
    sides = [[0, each.channel, each.y, each.x] for each in (node.padding_size_before, node.padding_size_after)]
    pads = writer.constant(np.array(sides, np.int64).reshape(-1))
    value = node.fill_value if node.edge_mode is MPSImageEdgeMode.CONSTANT else 0.0
    fill = writer.constant(np.array(value, np.float32))
    inputs = [writer.name(node.sources[0]), pads, fill]
    writer.add("Pad", inputs, writer.name(node.result_image), mode=_MODES[node.edge_mode])


def samples_of(node: Any, kernel: Any) -> str:
    """Where a node that scales linearly has its samples, in ONNX's words."""
    if isinstance(node, shape.MPSNNScaleNode):
        if node.transform_provider is not None:
            raise NodeError("it has a transform of its own")
        return "half_pixel"
    if node.align_corners:
        return "align_corners"
    return "half_pixel" if kernel.conventions["bilinear_centres"] == "half_pixel" else "asymmetric"


def resize(mode: str) -> Layer:
    """`Resize`, nearest or linear, with samples where the node has them."""

    def write(writer: Writer, node: Any, kernel: Any) -> None:
        where, more = (samples_of(node, kernel), {}) if mode == "linear" else ("asymmetric", {"nearest_mode": "floor"})
        sizes = writer.constant(np.array(writer.shape(node.result_image)[1:], np.int64))
        inputs = [writer.name(node.sources[0]), "", "", sizes]
        output = writer.name(node.result_image)
        writer.add("Resize", inputs, output, mode=mode, axes=[2, 3], coordinate_transformation_mode=where, **more)

    return write


def concatenation(writer: Writer, node: Any, kernel: Any) -> None:
    """Each source is filled up to a multiple of 4 channels: with zeros, but the fourth channel of one or two."""
    parts: list[str] = []
    has_ones = kernel.conventions["concatenation_filler"] == "texture"
    for source in node.sources:
        name, channels = writer.name(source), writer.shape(source)[0]
        missing = -channels % 4
        ones = int(has_ones and channels in (1, 2))
        for count, value in ((missing - ones, 0.0), (ones, 1.0)):
            if count > 0:
                pads = writer.constant(np.array([0, 0, 0, 0, 0, count, 0, 0], np.int64))
                filler = [] if value == 0.0 else [writer.constant(np.array(value, np.float32))]
                name = writer.step("Pad", [name, pads, *filler])
        parts.append(name)
    writer.add("Concat", parts, writer.name(node.result_image), axis=1)
