"""A compiled graph: steps over numbered registers, ready to run for one set of input shapes."""

from __future__ import annotations

from dataclasses import dataclass

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.storage import Extent
from openmps.core.kernel.encode import ImageKernel, Plan
from openmps.core.state.gradient import ForwardRecord
from openmps.graph.nodes import MPSNNFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.types import MPSImageFeatureChannelFormat


@dataclass(frozen=True, slots=True)
class Shape:
    """What a register holds: an image's shape and how its numbers are stored."""

    extent: Extent
    channel_format: MPSImageFeatureChannelFormat


@dataclass(slots=True)
class Step:
    """One kernel of the graph, decided: which registers it reads, what it computes, which register it fills."""

    node: MPSNNFilterNode
    kernel: ImageKernel
    plan: Plan
    inputs: tuple[int, ...]
    input_formats: tuple[MPSImageFeatureChannelFormat, ...]
    output: int
    shape: Shape
    covers: bool
    state_in: int | None
    state_out: int | None
    frees: tuple[int, ...] = ()
    frees_states: tuple[int, ...] = ()

    @property
    def record(self) -> ForwardRecord:
        """The forward record that a state of this step holds."""
        return self.plan.record


@dataclass(slots=True)
class Program:
    """The steps of a graph for one set of input shapes, and where inputs, results and exports lie."""

    images: int
    steps: list[Step]
    registers: int
    states: int
    inputs: dict[MPSNNImageNode, int]
    image_registers: dict[MPSNNImageNode, int]
    state_registers: dict[MPSNNStateNode, int]
    descriptors: dict[MPSNNImageNode, MPSImageDescriptor]
