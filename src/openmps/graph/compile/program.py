"""A compiled graph: its kernels planned for one set of input shapes, and their functions end to end as one function."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any
from weakref import ref

from openmps.core.image.batch import BatchTemplate, MPSImageBatch, TemporaryTemplate
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.kernel.plan import Plan, used_inputs
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError
from openmps.graph.compile.derived_inputs import DerivedInputs, Recipe
from openmps.graph.compile.gradients import Treatment
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.nodes.rows import Asked
from openmps.metal.device import CommandBuffer
from openmps.metal.version import Version
from openmps.ops.elements import Place
from openmps.ops.op import Builder, Function, Input, Role, Value
from openmps.ops.update.collectives import Processes
from openmps.runtime.dispatch import Frame
from openmps.runtime.step_trace import Traced

_MOST_TRACED = 16
"""Functions with updates, and of updates, that are known: settings may be changed back and forth."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel of the graph, planned."""

    node: MPSNNFilterNode
    kernel: ImageKernel
    plan: Plan
    sources: tuple[MPSNNImageNode, ...]
    state_in: MPSNNStateNode | None
    """The state whose saved tensor the kernel takes."""
    shape: Shape
    """The result's."""
    states: MPSStateBatch | None = None
    """What stands for the states that the kernel takes from other kernels, while no real ones are made."""
    operands: Mapping[str, MPSNNImageNode] = field(default_factory=dict[str, MPSNNImageNode])
    """Buffers of the kernel's function that are images of the graph."""


class _Readers(dict[MPSNNStateNode, tuple[int, ...]]):
    """The stages that read each state of the user's, found when they are first asked for."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self._stages = stages

    def __missing__(self, node: MPSNNStateNode) -> tuple[int, ...]:
        found = tuple(place for place, stage in enumerate(self._stages) if node in stage.node.source_states)
        self[node] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Something that the user's callback is asked before each encode."""

    node: MPSNNFilterNode
    asked: Asked
    kernel: ImageKernel
    callback: Any
    source: MPSImage
    result: MPSImage

    def answer(self) -> Any:
        """What the callback says."""
        return self.asked.ask(self.callback, self.node, self.source, self.result)

    def use(self, answer: Any) -> None:
        """Have the kernel planned with an answer."""
        setattr(self.kernel, self.asked.kernel_property, answer)


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a custom padding policy said when the program was compiled; it is asked again before each encode."""

    kernel: ImageKernel
    images: Sequence[MPSImage]
    states: Sequence[MPSState] | None
    size: tuple[int, int, int]
    """Width, height and feature channels of the result."""
    properties: object
    """The kernel's, with the offset that the policy set."""

    @classmethod
    def of(cls, kernel: ImageKernel, images: Sequence[MPSImage], states: Sequence[MPSState] | None) -> PolicyAnswer:
        """Ask the policy of a kernel; its say on the offset becomes the kernel's."""
        found = kernel.destination_image_descriptor(images, states)
        size = found.width, found.height, found.feature_channels
        return cls(kernel, images, states, size, kernel.interned_properties())

    def holds(self) -> bool:
        """Whether the policy says the same now."""
        now = PolicyAnswer.of(self.kernel, self.images, self.states)
        return now.size == self.size and now.properties == self.properties


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a graph's function: an image, what a state saves, or what one kernel gives besides."""

    stage: int
    name: str


class Program:
    """The stages of a graph for one set of input shapes, and the function that they make together.

    ``images`` are image nodes that are read from outside, ``states`` the state nodes. What kernels give besides images
    and saved tensors, losses and gradients of parameters, comes out always.
    """

    def __init__(
        self,
        count: int,
        stages: Sequence[Stage],
        inputs: Sequence[MPSNNImageNode],
        descriptors: Mapping[MPSNNImageNode, MPSImageDescriptor],
        questions: Sequence[Question] = (),
        policies: Sequence[PolicyAnswer] = (),
    ) -> None:
        self.policies = tuple(policies)
        """What custom padding policies said, in the order of the kernels."""
        self.questions = tuple(questions)
        """What callbacks were asked, to be asked again before the next encode."""
        self.images = count
        """Images of a batch."""
        self.stages = tuple(stages)
        self.places = {stage.node: place for place, stage in enumerate(stages)}
        """Where the kernel of each filter node stands."""
        self.inputs = tuple(inputs)
        self.descriptors = descriptors
        """A descriptor of each image, for one image object of a batch."""
        self._ends: list[int] = []
        self.readers = _Readers(self.stages)
        """The stages that read a state of the user's."""
        self.processes: Processes | None = None
        """Those that share each batch, if there are several."""
        self.fused: Mapping[MPSNNFilterNode, str] = {}
        """The filters whose results never exist, as they run as a part of a neighbour, and the rules that did it."""
        self.function: Function
        self.parts: tuple[tuple[Role, str, int, Stage | None], ...]
        """Of each input of the function: role, name in its stage's function, and that stage; none for images."""
        self.outputs: tuple[Output, ...]
        self.handed_out: tuple[tuple[int, tuple[str, ...]], ...]
        """The outputs again, those that one kernel gives besides images and saved tensors together."""
        self.asked: tuple[int, ...]
        """The inputs of the function that are bound anew in each encode; the others stay where they are."""
        self.used: tuple[bool, ...]
        self.frame: Frame
        """What its encodes have in common."""
        self.updates: dict[Treatment, Traced] = {}
        """What was traced of the updates behind it, of dispatches with both, by what becomes of the gradients."""
        self._traced = deque[Function](maxlen=_MOST_TRACED)
        self._bound: list[Any] = []
        self.versions: list[Version] = []
        """Of what decides on the memory that stays bound."""
        self._numbers: list[int] | None = None
        self._derived_inputs: DerivedInputs
        self._ordinary: dict[MPSNNImageNode, BatchTemplate] = {}
        self._temporary: dict[MPSNNImageNode, TemporaryTemplate] = {}

    def use(
        self,
        function: Function,
        fused: Mapping[MPSNNFilterNode, str],
        recipes: Mapping[Input, Recipe] = MappingProxyType({}),
    ) -> None:
        """Run ``function``, whose prepared inputs are made as ``recipes`` say."""
        self.function = function
        function.origin = ref(self)
        self._derived_inputs = DerivedInputs(recipes, self.stages)
        self.fused = fused
        function.fused = tuple(stage.kernel.name for stage in self.stages if stage.node in fused)
        self.parts = tuple(self._part(role, name) for role, name in function.inputs)
        names = (name.split(":") for name in function.outputs)
        self.outputs = tuple(Output(int(place), what) for place, what in names)
        groups = groupby(self.outputs, lambda each: (each.stage, each.name in (RESULT, SAVED) and each.name))
        together = [list(group) for _, group in groups]
        self.handed_out = tuple((group[0].stage, tuple(output.name for output in group)) for group in together)
        self.asked = tuple(index for index, part in enumerate(self.parts) if not _stays(part[0], part[3]))
        self.used = used_inputs(function)

    def known(self, traced: Function) -> Function:
        """The function like one that was traced which came first: what replays know of it holds for all of them."""
        for each in self._traced:
            if each.is_like(traced):
                return each
        self._traced.append(traced)
        return traced

    def bound(self) -> list[Any]:
        """What the inputs of the function are bound to, a new list; nothing yet for those that each encode binds."""
        if [each.number for each in self.versions] != self._numbers:
            self._bind()
        return self._bound.copy()

    def _bind(self) -> None:
        """Find what stays bound; dispatches from now on are of another frame."""
        self._bound = [None] * len(self.parts)
        kernels: dict[int, ImageKernel] = {}
        for index, (role, name, _, stage) in enumerate(self.parts):
            if role is Role.PREPARED:
                self._bound[index] = self._derived_inputs.bound(self.function.inputs[index])
            elif stage is not None and _stays(role, stage):
                self._bound[index] = stage.kernel.bound(role, name, stage.plan, None)
                kernels[id(stage.kernel)] = stage.kernel
        versions = [version for each in kernels.values() for version in each.buffer_versions() or ()]
        self.versions = [*versions, *self._derived_inputs.versions()]
        self._numbers = [each.number for each in self.versions]
        self.frame = Frame(self.asked, None)

    def memory(self, each: Input) -> Any:
        """The memory that an input of a kernel is bound to, where the function that runs does without it."""
        role, name, _, stage = self._part(*each)
        return None if stage is None else stage.kernel.bound(role, name, stage.plan, None).value()

    def run_apart(self, found: Mapping[Input, Any]) -> tuple[dict[Input, Any], dict[str, Any]]:
        """Run every kernel, one behind the other: what all inputs are, and what comes out by place and name."""
        function, _ = self.assemble()
        given = [found[each] if each in found else self.memory(each) for each in function.inputs]
        made = dict(zip(function.outputs, function.run(list(given)), strict=True))
        return dict(zip(function.inputs, given, strict=True)), made

    def new_images(
        self, node: MPSNNImageNode, command_buffer: CommandBuffer, *, is_temporary: bool, single: bool
    ) -> MPSImage | MPSImageBatch:
        """A new batch of an image, or one image object with all of it, as the engine's own allocators give it."""
        device, descriptor = command_buffer.device, self.descriptors[node]
        if is_temporary:
            temporary = self._temporary.get(node)
            if temporary is None:
                temporary = self._temporary[node] = TemporaryTemplate(device, descriptor, self.images)
            return temporary.image_on(command_buffer) if single else temporary.on(command_buffer)
        ordinary = self._ordinary.get(node)
        if ordinary is None:
            ordinary = self._ordinary[node] = BatchTemplate(device, descriptor, self.images)
        return ordinary.image() if single else ordinary.batch()

    def _part(self, role: Role, name: str) -> tuple[Role, str, int, Stage | None]:
        if role is Role.SOURCE:
            return role, name, int(name), None
        if role is Role.PREPARED:
            return role, name, -1, None
        place, what = name.split(":")
        return role, what, int(place), self.stages[int(place)]

    def taken(self, states: Iterable[MPSNNStateNode]) -> list[int]:
        """The stages that read these states of the user's, and may put something into them."""
        return [place for node in states for place in self.readers[node]]

    def assemble(self, wanted: set[tuple[int, str]] | None = None) -> tuple[Function, dict[int, int]]:
        """All functions end to end, and which stage made each image's value.

        ``wanted`` are the images and saved tensors that come out, by stage and name; all of them for None. What kernels
        give besides comes out where states may take it: those of the user, and all of them where there are gradients.
        """
        builder, filled = Builder(), self._filled({place for place, name in wanted or () if name == SAVED})
        images = {node: builder.input(Role.SOURCE, str(index)) for index, node in enumerate(self.inputs)}
        saved: dict[MPSNNStateNode, Value] = {}
        makers: dict[int, int] = {}
        self._ends.clear()
        for place, stage in enumerate(self.stages):
            operands = [
                _operand(builder, place, stage, role, name, images, saved) for role, name in stage.plan.function.inputs
            ]
            for name, value in builder.splice(stage.plan.function, operands).items():
                if name == RESULT:
                    value = images[stage.node.result_image] = _whole(stage, value)
                    makers[value.index] = place
                elif name == SAVED and stage.node.result_state is not None:
                    saved[stage.node.result_state] = value
                if wanted is None or (place, name) in wanted or (name not in (RESULT, SAVED) and place in filled):
                    builder.output(f"{place}:{name}", value)
            self._ends.append(builder.value_count)
        return builder.finish(), makers

    def maker(self, value: int) -> int | None:
        """The stage whose equations fill a value of the assembled function; None where a fusion made the value."""
        place = bisect_right(self._ends, value)
        return place if place < len(self._ends) else None

    def _filled(self, exported: set[int]) -> set[int]:
        """The stages with a state that takes what they give besides images; ``exported`` ones come out."""
        nodes = [stage.node for stage in self.stages]
        if any(isinstance(node, MPSNNGradientFilterNode) for node in nodes):
            return set(range(len(nodes)))
        return exported | {place for place, node in enumerate(nodes) if node.source_states}


def _stays(role: Role, stage: Stage | None) -> bool:
    """Whether an input is bound to the same in every encode, unless memory is replaced."""
    if role is Role.PREPARED:
        return True
    if stage is None:
        return False
    return role is Role.CONSTANT or (role is Role.BUFFER and stage.kernel.buffer_versions() is not None)


def _operand(
    builder: Builder,
    place: int,
    stage: Stage,
    role: Role,
    name: str,
    images: Mapping[MPSNNImageNode, Value],
    saved: Mapping[MPSNNStateNode, Value],
) -> Value | None:
    """The value of the graph's function that an input of a stage's function is; None where nothing was saved for it."""
    if role is Role.SOURCE:
        return _made(images, stage.sources[int(name)], stage)
    if role is Role.SAVED:
        return None if stage.state_in is None else saved.get(stage.state_in)
    if role is Role.BUFFER and name in stage.operands:
        return images[stage.operands[name]]
    return builder.input(role, f"{place}:{name}")


def _made(images: Mapping[MPSNNImageNode, Value], image: MPSNNImageNode, stage: Stage) -> Value:
    """The value of an image that a stage reads."""
    if image not in images:
        rule, got = (
            "must be made by the filter before it",
            "no image: its gradient_option leaves out the data's gradient",
        )
        remedy = "Let that filter's gradient_option include the data, or end the graph before this filter"
        raise MPSArgumentError(stage.kernel.name, "source_image", rule, got, remedy)
    return images[image]


def _whole(stage: Stage, result: Value) -> Value:
    """A result that fills a part of its image only, in an image of zeros."""
    target, extent = stage.plan.target, stage.shape.extent
    if target.covers(extent):
        return result
    return Place(extent.shape, target.channel, target.y, target.x)(result)


def all_of(extent: Extent) -> Target:
    """All pixels and channels of an image."""
    return Target(0, 0, extent.width, extent.height, 0, extent.channels)
