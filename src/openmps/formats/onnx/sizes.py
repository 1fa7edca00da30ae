"""ONNX's rule on sizes that are known when a graph runs: images that meet are as large as one another.

The framework's arithmetic takes what lies beyond an image for zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

from openmps.checks import lengths_text, store
from openmps.errors import MPSArgumentError
from openmps.graph.arithmetic_nodes import MPSNNBinaryArithmeticNode
from openmps.graph.graph import MPSNNGraph
from openmps.graph.program import Program, Stage

_STRIDES = ("stride_in_pixels_x", "stride_in_pixels_y")


def checked(graph: MPSNNGraph) -> MPSNNGraph:
    """The graph, which from now on refuses source images for which images that meet are of unequal sizes."""
    store(graph, "_check_program", check_sizes)
    return graph


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
