"""From nodes to a program: kernels made once, a plan for each set of input shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openmps.core.data_source import copy_of
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.state.batch import MPSStateBatch
from openmps.graph.compile.derived_inputs import Recipe
from openmps.graph.compile.program import PolicyAnswer, Program, Question, Stage
from openmps.graph.compile.sharing import Sharing, share_gradients
from openmps.graph.nodes.catalog import make_kernel
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode, row_of
from openmps.graph.nodes.rows import Asked, GradientRow, Reads, Use
from openmps.graph.nodes.trainable import exports_parameter_gradients, wants_parameter_gradients
from openmps.graph.run.encoding import batch_of
from openmps.kernels.convolution import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.weighted import WeightedKernel
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.kernels.loss.image_loss import LabelImages
from openmps.metal.device import MTLDevice
from openmps.ops.op import Function, Input, Role
from openmps.ops.rewrite.fuse import fuse
from openmps.ops.rewrite.rule import Situation, place_of
from openmps.types import MPSImageFeatureChannelFormat


def make_kernels(
    filters: Sequence[MPSNNFilterNode], read: set[MPSNNImageNode], device: MTLDevice
) -> dict[MPSNNFilterNode, ImageKernel]:
    """A kernel for each filter. Convolutions over one data source share one copy of its weights.

    ``read`` are the images that somebody reads.
    """
    kernels: dict[MPSNNFilterNode, ImageKernel] = {}
    owners: dict[int, ConvolutionWeights] = {}
    consumed = {state for node in filters for state in node.source_states}
    for node in filters:
        kernel = kernels[node] = make_kernel(node, device)
        if isinstance(kernel, WeightedKernel):
            key = id(_source_of(kernel))
            if key not in owners:
                owners[key] = kernel.parameters
            kernel.share_parameters(owners[key])
        row = row_of(node)
        if row is not None and row.adapt is not None:
            is_consumed = not consumed.isdisjoint(node.result_states or ())
            wants, exports = wants_parameter_gradients(node), exports_parameter_gradients(node)
            row.adapt(kernel, Use(node.result_image in read, is_consumed, wants, exports))
    return kernels


def copy_kernels(
    originals: Mapping[MPSNNFilterNode, ImageKernel], device: MTLDevice
) -> dict[MPSNNFilterNode, ImageKernel]:
    """Copies of a graph's kernels on ``device``. What the originals share, data sources and weights, is copied once."""
    copies: dict[MPSNNFilterNode, ImageKernel] = {}
    sources: dict[int, MPSCNNConvolutionDataSource] = {}
    owners: dict[int, ConvolutionWeights] = {}
    for node, original in originals.items():
        if not isinstance(original, WeightedKernel):
            copies[node] = original.copy(device)
            continue
        source, weights = _source_of(original), original.parameters
        if id(source) not in sources:
            sources[id(source)] = copy_of(source, device)
        if id(weights) not in owners:
            owners[id(weights)] = weights.copy(device, sources[id(source)])
        copies[node] = original.copy_over(device, sources[id(source)], owners[id(weights)])
    return copies


def _source_of(kernel: Any) -> MPSCNNConvolutionDataSource:
    """The data source of a kernel with weights; those of graphs have one."""
    return kernel.data_source


_MADE, _PIXELS = 2, 128
"""How many channels weights make at least, and of how many pixels, for each channel that they read, so that second
moments pay for themselves."""


def _narrow(program: Program, function: Function) -> frozenset[Input]:
    """The weights in a function that make far more channels than they read, of many pixels."""
    found: set[Input] = set()
    for each in function.inputs:
        place, _, what = each.name.partition(":")
        if each.role is Role.BUFFER and what.startswith("weights"):
            stage = program.stages[int(place)]
            read = program.descriptors[stage.sources[0]].feature_channels
            made = stage.shape.extent
            if made.channels >= _MADE * read and made.images * made.height * made.width >= _PIXELS * read:
                found.add(each)
    return frozenset(found)


_OPERANDS: tuple[str, ...] = ("labels", "weights")
"""What the images behind a loss's own are, in order."""


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
        given: Mapping[MPSNNStateNode, MPSStateBatch],
        answers: dict[MPSNNFilterNode, Any],
        sharing: Sharing | None = None,
    ) -> None:
        self._sharing = sharing
        self._answers = answers
        self._questions: list[Question] = []
        self._policies: list[PolicyAnswer] = []
        self._given = given
        self._kernels = kernels
        self._formats = formats
        self._format = channel_format
        self._device = device
        self._inputs = inputs
        self._count = shapes[0].extent.images
        self._shapes = dict(zip(inputs, shapes, strict=True))
        self._states: dict[MPSNNStateNode, MPSStateBatch] = {}

    def compile(
        self,
        images: Iterable[MPSNNImageNode],
        states: Iterable[MPSNNStateNode],
        *,
        allow_fusion: bool,
        by_moments: bool = False,
    ) -> Program:
        """Plan every filter in order; ``images`` and ``states`` are read from outside."""
        stages = [self._stage(node, kernel) for node, kernel in self._kernels.items()]
        descriptors = {node: _descriptor(shape) for node, shape in self._shapes.items()}
        program = Program(self._count, stages, self._inputs, descriptors, self._questions, self._policies)
        wanted = {(program.places[node.producer], RESULT) for node in images if node.producer in program.places}
        wanted |= {(program.places[node.producer], SAVED) for node in states if node.producer in program.places}
        function, makers = program.assemble(wanted)
        gone: Mapping[int, str] = {}
        recipes: Mapping[Input, Recipe] = {}
        if allow_fusion:
            moments = _narrow(program, function) if by_moments else frozenset[Input]()
            place = place_of(self._device.torch_device)
            function, gone, recipes = fuse(function, Situation(place, self._count, moments=moments))
        fused = {stages[makers[value]].node: rule for value, rule in gone.items() if value in makers}
        if self._sharing is not None:
            function = share_gradients(function, program, self._sharing)
            program.processes = self._sharing.processes
        program.use(function, fused, recipes)
        return program

    def _stage(self, node: MPSNNFilterNode, kernel: ImageKernel) -> Stage:
        row, sources = row_of(node), _sources(node)
        count = len(sources) if row is None or row.images is None else row.images
        operands: dict[str, MPSNNImageNode] = dict(zip(_OPERANDS, sources[count:], strict=False))
        sources = sources[:count]
        shapes = tuple(self._shapes[image] for image in sources)
        if row is not None and row.check is not None:
            row.check(node, [shape.extent for shape in shapes])
        states = self._source_states(node)
        made_here = bool(node.source_states) and node.source_states[0] in self._states
        shape = self._shapes[node.result_image] = self._result(node, kernel, shapes, states if made_here else None)
        if row is not None and row.asked is not None:
            self._ask(node, row.asked, kernel, shapes[-1], shape)
        given = states
        if operands:
            labels = (self._specimen(self._shapes[image], self._count) for image in operands.values())
            given = MPSStateBatch([LabelImages(self._device, next(labels), next(labels, None), states)])
        plan = kernel.plan(shapes, shape, kernel.given(given))
        if node.result_state is not None and (state := kernel.make_state()) is not None:
            state.record = plan.record
            made = self._states[node.result_state] = batch_of(kernel, state, self._count)
            kernel.fill(plan, made)
        state_in = node.source_states[0] if made_here else None
        return Stage(node, kernel, plan, sources, state_in, shape, states if made_here else None, operands)

    def _result(
        self, node: MPSNNFilterNode, kernel: ImageKernel, shapes: tuple[Shape, ...], states: MPSStateBatch | None
    ) -> Shape:
        """The result's shape, as node, kernel and states say, and how its numbers are stored."""
        row = row_of(node)
        if row is not None and row.size is not None:
            extent = row.size(node, shapes[0].extent)
        else:
            specimens = [self._specimen(shape) for shape in shapes]
            is_loss = row is not None and row.images is not None
            sizing = None if states is None or is_loss else list(states)
            if kernel.asks_a_policy:
                self._policies.append(PolicyAnswer.of(kernel, specimens, sizing))
                width, height, channels = self._policies[-1].size
            else:
                suggested = kernel.destination_image_descriptor(specimens, sizing)
                width, height, channels = suggested.width, suggested.height, suggested.feature_channels
            extent = Extent(width, height, channels, self._count)
        chosen = self._formats[node.result_image]
        channel_format = self._format if chosen is MPSImageFeatureChannelFormat.NONE else chosen
        return Shape(extent._replace(images=self._count), channel_format)

    def _ask(self, node: MPSNNFilterNode, asked: Asked, kernel: ImageKernel, source: Shape, result: Shape) -> None:
        """Ask the user's callback, unless the encode has asked it already."""
        callback = getattr(node, asked.callback)
        if callback is None:
            return
        question = Question(node, asked, kernel, callback, self._specimen(source), self._specimen(result))
        if node not in self._answers:
            self._answers[node] = question.answer()
        question.use(self._answers[node])
        self._questions.append(question)

    def _specimen(self, shape: Shape, images: int = 1) -> MPSImage:
        """An image that is asked for its shape only and never has memory."""
        descriptor = _descriptor(shape)
        descriptor.number_of_images = images
        return MPSImage(self._device, descriptor)

    def _source_states(self, node: MPSNNFilterNode) -> MPSStateBatch | None:
        """The states that the kernel takes: those that are given, stand-ins with the forward record for the others."""
        if not node.source_states:
            return None
        made = self._states.get(node.source_states[0])
        return self._given.get(node.source_states[0]) if made is None else made


def _sources(node: MPSNNFilterNode) -> tuple[MPSNNImageNode, ...]:
    """The images that a node's kernel takes."""
    row = row_of(node)
    if not isinstance(row, GradientRow) or not isinstance(node, MPSNNGradientFilterNode):
        return node.sources
    if row.reads is Reads.RESULT:
        return node.sources[0], node.forward.result_image
    if row.reads is Reads.OTHER:
        left, right = node.forward.sources
        return node.sources[0], left if getattr(node, "is_secondary_source_filter", False) else right
    return node.sources


def _descriptor(shape: Shape) -> MPSImageDescriptor:
    extent = shape.extent
    return MPSImageDescriptor(shape.channel_format, extent.width, extent.height, extent.channels)
