"""ONNX's rules on sizes that are known when a graph runs.

Source images are as large as the model says, where it does: the framework slides a dense layer over a larger one.
Images that meet are as large as one another: the framework's arithmetic takes what lies beyond an image for zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from openmps.checks import store
from openmps.core.image.storage import Shape
from openmps.errors import MPSArgumentError, lengths_text
from openmps.formats.onnx.ports import OnnxPort
from openmps.graph.compile.program import Program, Stage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNBinaryArithmeticNode

_STRIDES = ("stride_in_pixels_x", "stride_in_pixels_y")


def checked(graph: MPSNNGraph, inputs: Sequence[OnnxPort]) -> MPSNNGraph:
    """The graph, which from now on refuses source images of sizes that the model of these inputs is not for."""
    store(graph, "_check_shapes", partial(check_shapes, inputs))
    store(graph, "_check_program", check_sizes)
    return graph


def check_shapes(inputs: Sequence[OnnxPort], shapes: Sequence[Shape]) -> None:
    """Raise `MPSArgumentError` where a source image has another length than the model says."""
    for port in inputs:
        extent = shapes[port.image].extent
        got = extent.width, extent.height, extent.channels
        wanted = [port.length(places) for places in (port.columns, port.rows, port.channels)]
        if any(own not in (None, length) for own, length in zip(wanted, got, strict=True)):
            size = "x".join("?" if own is None else str(own) for own in wanted)
            rule = f"must be {size} (width, height, channels), as the model's {port.text} says"
            remedy = "Give images of that size"
            raise MPSArgumentError("MPSNNGraph", f"source image {port.name!r}", rule, lengths_text(got), remedy)


def check_sizes(program: Program) -> None:
    """Raise `MPSArgumentError` where arithmetic would meet images of unequal sizes."""
    for stage in program.stages:
        if isinstance(stage.node, MPSNNBinaryArithmeticNode):
            sizes = [*zip(*_compared(stage), strict=True)]
            if sizes[0] != sizes[1]:
                rule = "must be of one size: ONNX broadcasts an axis only where the model says that its length is 1"
                remedy = "Give inputs of a size that the model is for"
                raise MPSArgumentError(stage.node.name, "sources", rule, " and ".join(map(lengths_text, sizes)), remedy)


def _compared(stage: Stage) -> Iterator[tuple[int, int]]:
    """Columns, then rows of both sources; one that is broadcast is as long as the other."""
    for stride in _STRIDES:
        extents = [record.extent for record in stage.plan.sources]
        lengths = [each.width if stride.endswith("x") else each.height for each in extents]
        broadcast = [not getattr(stage.kernel, f"{side}_{stride}") for side in ("primary", "secondary")]
        longest = max(lengths)
        first, second = (longest if is_spread else own for own, is_spread in zip(lengths, broadcast, strict=True))
        yield first, second
