"""What a graph consists of, as a table: each kernel with its shapes, its placement, its parameters and its memory."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.checks import of_kind
from openmps.core.image.descriptor import MPSImageDescriptor, descriptors_of
from openmps.core.image.storage import Extent
from openmps.core.padding.policy import padding_label
from openmps.errors import lengths_text
from openmps.graph.compile.program import Program, Stage
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNGradientFilterNode
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import MPSCNNConvolutionGradient
from openmps.kernels.convolution.weighted import WeightedKernel
from openmps.kernels.group_normalization.base import ImageNormalization
from openmps.selectors import name_arguments
from openmps.types import MPSCNNConvolutionGradientOption, MPSImageFeatureChannelFormat

_NOTHING = "-"


class SummaryColumn(NamedTuple):
    """A column of the table: its heading, and whether its cells are numbers, which stand at the right."""

    heading: str
    is_number: bool


COLUMNS = (
    SummaryColumn("label", False),
    SummaryColumn("class", False),
    SummaryColumn("source", False),
    SummaryColumn("result", False),
    SummaryColumn("format", False),
    SummaryColumn("offset", False),
    SummaryColumn("parameters", True),
    SummaryColumn("bytes", True),
    SummaryColumn("result bytes", True),
    SummaryColumn("padding", False),
)
_WIDTH = 80
"""Columns of text that a table of a graph takes at most."""
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One kernel of a graph. Shapes are (width, height, feature channels) of one image.

    ``result`` is None where only gradients of parameters are computed. ``padding`` and ``offset``, (x, y), are None
    where no policy has anything to place: a gradient, which follows its forward kernel, or a window of one pixel.
    ``parameters`` counts the numbers that the kernel owns; a kernel that shares another one's owns none.
    ``result_bytes`` are those of all images. ``is_fused`` marks a kernel that runs as a part of a neighbour: its result
    never exists.
    """

    label: str
    class_name: str
    sources: tuple[tuple[int, int, int], ...]
    result: tuple[int, int, int] | None
    channel_format: MPSImageFeatureChannelFormat
    padding: str | None
    offset: tuple[int, int] | None
    parameters: int
    parameter_bytes: int
    result_bytes: int
    is_fused: bool

    def cells(self) -> tuple[str, ...]:
        """The row as text, one cell for each of `COLUMNS`."""
        return (
            self.label or _NOTHING,
            self.class_name,
            ", ".join(lengths_text(source) for source in self.sources),
            _NOTHING if self.result is None else lengths_text(self.result),
            self.channel_format.name.lower(),
            _NOTHING if self.offset is None else str(self.offset),
            _count(self.parameters),
            _count(self.parameter_bytes),
            "fused" if self.is_fused else _count(self.result_bytes),
            self.padding or _NOTHING,
        )


@name_arguments
@dataclass(frozen=True, slots=True)
class GraphSummary:
    """The kernels of a graph in their order; printable as a table, in notebooks too.

    ``images`` is the number of images of a batch. Shapes are width x height x feature channels.
    """

    rows: tuple[SummaryRow, ...]
    images: int

    @property
    def parameters(self) -> int:
        """Numbers in all weights and biases."""
        return sum(row.parameters for row in self.rows)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights and biases."""
        return sum(row.parameter_bytes for row in self.rows)

    @property
    def result_bytes(self) -> int:
        """Bytes of all results of a batch together; a graph gives memory back early, so it needs less at once."""
        return sum(row.result_bytes for row in self.rows)

    def totals(self) -> tuple[str, ...]:
        """The last row of the table, one cell for each of `COLUMNS`."""
        what = f"{len(self.rows)} kernels, {self.images} image{'s' if self.images > 1 else ''}"
        numbers = (_count(self.parameters), _count(self.parameter_bytes), _count(self.result_bytes))
        return ("total", what, *[""] * (len(COLUMNS) - 6), *numbers, "")

    def __str__(self) -> str:
        """The table, within 80 columns: what does not fit on the line of a kernel stands below, indented."""
        rows = [tuple(column.heading for column in COLUMNS), *(row.cells() for row in self.rows), self.totals()]
        widths = [min(max(len(row[index]) for row in rows), _WIDTH - len(_INDENT)) for index in range(len(COLUMNS))]
        groups = _groups(widths)
        lines = [_lines(row, widths, groups) for row in rows]
        rule = "-" * max(len(line) for each in lines for line in each.splitlines())
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(column.heading)}</th>" for column in COLUMNS)
        function = "".join(_html_row(row.cells(), "td") for row in self.rows)
        return f"<table><tr>{head}</tr>{function}{_html_row(self.totals(), 'th')}</table>"


def graph_summary(
    graph: MPSNNGraph, image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor], count: int = 1
) -> GraphSummary:
    """The kernels of ``graph`` for source images of these shapes and formats, ``count`` images a batch.

    One descriptor for each of ``graph.source_image_handles``. Raises what an encode of such images would: the shapes
    are planned, nothing is computed.
    """
    of_kind("graph_summary", "graph", graph, MPSNNGraph)
    given = descriptors_of("graph_summary", image_descriptors)
    return GraphSummary(summary_rows(graph.program_for(given, count)), count)


def summary_rows(program: Program) -> tuple[SummaryRow, ...]:
    """A row for each stage of a program."""
    owners: set[int] = set()
    return tuple(_row(stage, owners, is_fused=stage.node in program.fused) for stage in program.stages)


def _row(stage: Stage, owners: set[int], *, is_fused: bool) -> SummaryRow:
    parameters, parameter_bytes = _owned(stage, owners)
    window = stage.plan.sources[0].window
    larger = any(axis.size > 1 or axis.stride > 1 for axis in (window.x, window.y))
    is_placed = larger and not isinstance(stage.node, MPSNNGradientFilterNode)
    kernel, data = stage.kernel, MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA
    has_result = not isinstance(kernel, MPSCNNConvolutionGradient) or bool(kernel.gradient_option & data)
    return SummaryRow(
        label=stage.node.label or "",
        class_name=type(stage.node).__name__,
        sources=tuple(_lengths(record.extent) for record in stage.plan.sources),
        result=_lengths(stage.shape.extent) if has_result else None,
        channel_format=stage.shape.channel_format,
        padding=padding_label(stage.node.padding_policy) if is_placed else None,
        offset=(window.x.offset, window.y.offset) if is_placed else None,
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        result_bytes=stage.shape.extent.bytes_as(stage.shape.channel_format) if has_result and not is_fused else 0,
        is_fused=is_fused,
    )


def _owned(stage: Stage, owners: set[int]) -> tuple[int, int]:
    """Count and bytes of the parameters that no kernel before has shown; ``owners`` are those that were."""
    owner, tensors = _held(stage.kernel)
    if id(owner) in owners:
        return 0, 0
    owners.add(id(owner))
    return sum(tensor.numel() for tensor in tensors), sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _held(kernel: object) -> tuple[object, list[Tensor]]:
    """Who holds a kernel's parameters, and what they are."""
    if isinstance(kernel, WeightedKernel):
        parameters = kernel.parameters
        return parameters, [each for each in (parameters.weights, parameters.biases) if each is not None]
    if isinstance(kernel, MPSCNNBatchNormalization):
        rows = (*kernel.gamma_and_beta, *kernel.mean_and_variance)
        return kernel, [row.memory(torch.float32) for row in rows]
    if isinstance(kernel, ImageNormalization):
        return kernel, [kernel.numbers.gamma.value(), kernel.numbers.beta.value()]
    return kernel, []


def _lengths(extent: Extent) -> tuple[int, int, int]:
    return extent.width, extent.height, extent.channels


def _count(number: int) -> str:
    return f"{number:,}" if number else _NOTHING


def _groups(widths: Sequence[int]) -> list[range]:
    """The columns of each line that a kernel takes."""
    groups, first, used = [range(0)], 0, 0
    for index, width in enumerate(widths):
        used += width + (2 if index > first else 0)
        if used > _WIDTH - (len(_INDENT) if first else 0):
            first, used = index, width
            groups.append(range(0))
        groups[-1] = range(first, index + 1)
    return groups


def _lines(cells: Sequence[str], widths: Sequence[int], groups: Sequence[range]) -> str:
    lines: list[str] = []
    for group in groups:
        wrapped = [textwrap.wrap(cells[index], widths[index]) or [""] for index in group]
        for parts in zip_longest(*wrapped, fillvalue=""):
            placed = [
                part.rjust(widths[index]) if COLUMNS[index].is_number else part.ljust(widths[index])
                for index, part in zip(group, parts, strict=True)
            ]
            lines.append((_INDENT if group.start else "") + "  ".join(placed).rstrip())
    return "\n".join(line for line in lines if line.strip())


def _html_row(cells: Sequence[str], tag: str) -> str:
    styles = [' style="text-align:right"' if column.is_number else "" for column in COLUMNS]
    row = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(row)}</tr>"
