"""What rules look at: the graph, its shapes, the magnitudes that samples gave, and the system that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.graph.compile.program import Program
from openmps.graph.graph import MPSNNGraph
from openmps.graph.lint.findings import Finding, Severity
from openmps.graph.lint.target import Target
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode, handle_label
from openmps.types import MPSImageFeatureChannelFormat

FLOAT16_LIMIT = 65504.0
"""The largest number of float16."""


@dataclass(frozen=True)
class Peak:
    """The largest magnitude of an image over the samples, and whether every number was finite."""

    magnitude: float
    is_finite: bool


@dataclass(frozen=True)
class View:
    """One graph, and what is known of it."""

    graph: MPSNNGraph
    program: Program | None
    """The plan for some shapes, unfused; None where no shapes were given."""
    target: Target | None
    peaks: Mapping[MPSNNImageNode, Peak] | None
    """Of every image, where samples were run."""

    def layers(self) -> Iterator[tuple[MPSNNFilterNode, Any]]:
        """The filters that run and their kernels, in order."""
        yield from self.graph.kernels.items()

    def where(self, node: MPSNNFilterNode) -> str:
        """A node's label, or its class and its place."""
        if node.label:
            return node.label
        return f"filter {list(self.graph.kernels).index(node)}"

    def format_of(self, image: MPSNNImageNode) -> MPSImageFeatureChannelFormat:
        """How a result image is stored."""
        chosen = self.graph.interface.formats.get(image, MPSImageFeatureChannelFormat.NONE)
        return self.graph.format if chosen is MPSImageFeatureChannelFormat.NONE else chosen

    def format_read(self, image: MPSNNImageNode) -> MPSImageFeatureChannelFormat | None:
        """How an image that a filter reads is stored; None for a source image of which nothing is known."""
        if image.producer is not None:
            return self.format_of(image)
        shape = self.shape_of(image)
        return None if shape is None else shape.channel_format

    def shape_of(self, image: MPSNNImageNode) -> MPSImageDescriptor | None:
        """The size of an image, where shapes are known."""
        return None if self.program is None else self.program.descriptors.get(image)

    def label_of(self, image: MPSNNImageNode) -> str:
        """The label of an image's handle, or the filter that makes it."""
        label = handle_label(image.handle)
        if label is not None:
            return repr(label)
        return "a source image" if image.producer is None else f"the result of {self.where(image.producer)}"

    def finding(
        self, severity: Severity, rule: str, node: MPSNNFilterNode | None, says: str, got: object, remedy: str
    ) -> Finding:
        """A finding at a node, or at the graph."""
        name = type(self.graph if node is None else node).__name__
        where = "graph" if node is None else self.where(node)
        return Finding(severity, rule, where, name, says, str(got), remedy)


def numbers_of(buffer: Any) -> torch.Tensor:
    """The float32 numbers of a kernel's buffer."""
    return buffer.tensor(torch.float32)
