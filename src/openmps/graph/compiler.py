"""From nodes to a program: kernels made once, a plan for each set of input shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from openmps.core.data_source import copy_of
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent
from openmps.core.kernel.encode import ImageKernel
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.graph.catalog import READS_FORWARD_RESULT, make_kernel
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.fusion import fuse
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.nodes import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.passes import lifetimes, wants_parameter_gradients
from openmps.graph.plan import Program, Shape, Step
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDataSource,
    MPSCNNConvolutionGradient,
)
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.types import MPSCNNConvolutionGradientOption, MPSImageFeatureChannelFormat

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


_WEIGHTED = MPSCNNConvolution | MPSCNNConvolutionGradient


def make_kernels(
    filters: Sequence[MPSNNFilterNode], read: set[MPSNNImageNode], device: MTLDevice
) -> dict[MPSNNFilterNode, ImageKernel]:
    """A kernel for each filter. Convolutions over one data source share one copy of its weights.

    ``read`` are the images that somebody reads.
    """
    kernels: dict[MPSNNFilterNode, ImageKernel] = {}
    owners: dict[int, ConvolutionWeights] = {}
    for node in filters:
        kernel = kernels[node] = make_kernel(node, device)
        if isinstance(kernel, _WEIGHTED):
            key = id(kernel.data_source)
            if key not in owners:
                owners[key] = kernel.parameters
            kernel.share_parameters(owners[key])
        if isinstance(kernel, MPSCNNConvolutionGradient) and isinstance(node, MPSCNNConvolutionGradientNode):
            kernel.gradient_option = _gradient_option(node, read)
    return kernels


def copy_kernels(
    originals: Mapping[MPSNNFilterNode, ImageKernel], device: MTLDevice
) -> dict[MPSNNFilterNode, ImageKernel]:
    """Copies of a graph's kernels on ``device``. What the originals share, data sources and weights, is copied once."""
    copies: dict[MPSNNFilterNode, ImageKernel] = {}
    sources: dict[int, MPSCNNConvolutionDataSource] = {}
    owners: dict[int, ConvolutionWeights] = {}
    for node, original in originals.items():
        if not isinstance(original, _WEIGHTED):
            copies[node] = original.copy(device)
            continue
        source, weights = original.data_source, original.parameters
        if id(source) not in sources:
            sources[id(source)] = copy_of(source, device)
        if id(weights) not in owners:
            owners[id(weights)] = weights.copy(device, sources[id(source)])
        copies[node] = original.copy_over(device, sources[id(source)], owners[id(weights)])
    return copies


def _gradient_option(node: MPSCNNConvolutionGradientNode, read: set[MPSNNImageNode]) -> MPSCNNConvolutionGradientOption:
    """Only what somebody looks at is computed."""
    option = MPSCNNConvolutionGradientOption(0)
    if node.result_image in read:
        option |= MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA
    if wants_parameter_gradients(node):
        option |= MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    return option


class Compiler:
    """Makes the program of a graph for one set of input shapes."""

    def __init__(
        self,
        kernels: dict[MPSNNFilterNode, ImageKernel],
        inputs: Sequence[MPSNNImageNode],
        shapes: Sequence[Shape],
        channel_format: MPSImageFeatureChannelFormat,
        device: MTLDevice,
        formats: Mapping[MPSNNImageNode, MPSImageFeatureChannelFormat],
    ) -> None:
        self._kernels = kernels
        self._formats = formats
        self._format = channel_format
        self._device = device
        self._images = shapes[0].extent.images
        self._registers = {node: register for register, node in enumerate(inputs)}
        self._inputs = dict(self._registers)
        self._shapes = list(shapes)
        self._specimens = [self._specimen(_descriptor(shape)) for shape in shapes]
        self._state_registers: dict[MPSNNStateNode, int] = {}
        self._states: dict[MPSNNStateNode, MPSState] = {}

    def compile(self, keep: set[MPSNNImageNode], keep_states: set[MPSNNStateNode], *, allow_fusion: bool) -> Program:
        """Plan every filter in order; ``keep`` are images, ``keep_states`` states that are read from outside."""
        steps = [self._step(node, kernel) for node, kernel in self._kernels.items()]
        kept = {self._registers[image] for image in keep if image in self._registers}
        kept_states = {self._state_registers[state] for state in keep_states}
        steps = _without_unread_states(steps, kept_states)
        if allow_fusion:
            steps = fuse(steps, kept, kept_states)
        lifetimes(steps, kept)
        return Program(
            images=self._images,
            steps=steps,
            registers=len(self._shapes),
            states=len(self._state_registers),
            inputs=self._inputs,
            image_registers=self._registers,
            state_registers=self._state_registers,
            descriptors={node: _descriptor(self._shapes[index]) for node, index in self._registers.items()},
        )

    def _step(self, node: MPSNNFilterNode, kernel: ImageKernel) -> Step:
        inputs = tuple(self._registers[image] for image in self._sources(node))
        specimens = [self._specimens[register] for register in inputs]
        states = self._source_states(node)
        suggested = kernel.destination_image_descriptor(specimens, list(states) if states is not None else None)
        descriptor = suggested.copy()
        chosen = self._formats[node.result_image]
        descriptor.channel_format = self._format if chosen is MPSImageFeatureChannelFormat.NONE else chosen
        extent = Extent(descriptor.width, descriptor.height, descriptor.feature_channels, self._images)
        plan = kernel.plan(tuple(self._shapes[register].extent for register in inputs), extent, states)
        output = self._add(node.result_image, Shape(extent, descriptor.channel_format), descriptor)
        return Step(
            node=node,
            kernel=kernel,
            plan=plan,
            inputs=inputs,
            input_formats=tuple(self._shapes[register].channel_format for register in inputs),
            output=output,
            shape=self._shapes[output],
            covers=plan.target.covers(extent),
            state_in=self._state_in(node),
            state_out=self._state_out(node, kernel, plan.record),
        )

    def _sources(self, node: MPSNNFilterNode) -> tuple[MPSNNImageNode, ...]:
        if isinstance(node, READS_FORWARD_RESULT):
            return (node.sources[0], node.forward.result_image)
        return node.sources

    def _source_states(self, node: MPSNNFilterNode) -> MPSStateBatch | None:
        """Stand-ins for the states that the kernel takes: gradient states with the forward record."""
        if not isinstance(node, MPSNNGradientFilterNode) or not node.source_states:
            return None
        return MPSStateBatch([self._states[node.source_states[0]]] * self._images)

    def _state_in(self, node: MPSNNFilterNode) -> int | None:
        if isinstance(node, MPSCNNLossNode | MPSCNNConvolutionGradientNode) or not node.source_states:
            return None
        return self._state_registers.get(node.source_states[0])

    def _state_out(self, node: MPSNNFilterNode, kernel: ImageKernel, record: ForwardRecord) -> int | None:
        state_node = node.result_state
        if state_node is None:
            return None
        state = kernel.make_state()
        if isinstance(state, MPSNNGradientState):
            state.record = record
            self._states[state_node] = state
        return self._state_registers.setdefault(state_node, len(self._state_registers))

    def _add(self, image: MPSNNImageNode, shape: Shape, descriptor: MPSImageDescriptor) -> int:
        register = len(self._shapes)
        self._registers[image] = register
        self._shapes.append(shape)
        self._specimens.append(self._specimen(descriptor))
        return register

    def _specimen(self, descriptor: MPSImageDescriptor) -> MPSImage:
        """An image that is asked for its shape only and never has memory."""
        return MPSImage(self._device, descriptor)


def _without_unread_states(steps: Sequence[Step], kept_states: set[int]) -> list[Step]:
    """Steps that leave out the work whose only use is to fill a state that nobody reads."""
    read = kept_states | {step.state_in for step in steps if step.state_in is not None}
    return [
        step if step.state_out in read else replace(step, plan=step.kernel.without_state(step.plan)) for step in steps
    ]


def _descriptor(shape: Shape) -> MPSImageDescriptor:
    extent = shape.extent
    return MPSImageDescriptor(shape.channel_format, extent.width, extent.height, extent.channels)
