"""A compiled graph: its kernels planned for one set of input shapes, and their bodies end to end as one body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.plan import Plan, used_inputs
from openmps.core.kernel.scene import RESULT, SAVED
from openmps.core.state.batch import MPSStateBatch
from openmps.graph.nodes import MPSNNFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.rows import Asked
from openmps.ops.elements import Place
from openmps.ops.op import Body, Builder, Role, Slot


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
    """Buffers of the kernel's body that are images of the graph."""


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
class Output:
    """Something that comes out of a graph's body: an image, what a state saves, or what one kernel gives besides."""

    stage: int
    name: str


class Program:
    """The stages of a graph for one set of input shapes, and the body that they make together.

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
    ) -> None:
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
        self._readers: dict[MPSNNStateNode, tuple[int, ...]] = {}
        self.fused: frozenset[MPSNNFilterNode] = frozenset()
        """The filters whose results never exist: they run as a part of a neighbour."""
        self.body: Body
        self.parts: tuple[tuple[Role, str, int, Stage | None], ...]
        """Of each input of the body: its role, its name in the body of its stage, and that stage; none for images."""
        self.outputs: tuple[Output, ...]
        self.used: tuple[bool, ...]

    def use(self, body: Body, fused: frozenset[MPSNNFilterNode]) -> None:
        """Run ``body``."""
        self.body = body
        self.fused = fused
        self.parts = tuple(self._part(role, name) for role, name in body.inputs)
        names = (name.split(":") for name in body.outputs)
        self.outputs = tuple(Output(int(place), what) for place, what in names)
        self.used = used_inputs(body)

    def _part(self, role: Role, name: str) -> tuple[Role, str, int, Stage | None]:
        if role is Role.SOURCE:
            return role, name, int(name), None
        place, what = name.split(":")
        return role, what, int(place), self.stages[int(place)]

    def readers(self, node: MPSNNStateNode) -> tuple[int, ...]:
        """The stages that read a state of the user's."""
        found = self._readers.get(node)
        if found is None:
            found = tuple(place for place, stage in enumerate(self.stages) if node in stage.node.source_states)
            self._readers[node] = found
        return found

    def assemble(self, wanted: set[tuple[int, str]] | None = None) -> tuple[Body, dict[int, int]]:
        """All bodies end to end, and which stage made each image's slot.

        ``wanted`` are the images and saved tensors that come out, by stage and name; all of them for None.
        """
        builder = Builder()
        images = {node: builder.input(Role.SOURCE, str(index)) for index, node in enumerate(self.inputs)}
        saved: dict[MPSNNStateNode, Slot] = {}
        makers: dict[int, int] = {}
        for place, stage in enumerate(self.stages):
            operands = [
                _operand(builder, place, stage, role, name, images, saved) for role, name in stage.plan.body.inputs
            ]
            for name, slot in builder.splice(stage.plan.body, operands).items():
                if name == RESULT:
                    slot = images[stage.node.result_image] = _whole(stage, slot)
                    makers[slot.index] = place
                elif name == SAVED and stage.node.result_state is not None:
                    saved[stage.node.result_state] = slot
                if name not in (RESULT, SAVED) or wanted is None or (place, name) in wanted:
                    builder.output(f"{place}:{name}", slot)
        return builder.finish(), makers


def _operand(
    builder: Builder,
    place: int,
    stage: Stage,
    role: Role,
    name: str,
    images: Mapping[MPSNNImageNode, Slot],
    saved: Mapping[MPSNNStateNode, Slot],
) -> Slot | None:
    """The slot of the graph's body that an input of a stage's body is; None where nothing was saved for it."""
    if role is Role.SOURCE:
        return images[stage.sources[int(name)]]
    if role is Role.SAVED:
        return None if stage.state_in is None else saved.get(stage.state_in)
    if role is Role.BUFFER and name in stage.operands:
        return images[stage.operands[name]]
    return builder.input(role, f"{place}:{name}")


def _whole(stage: Stage, result: Slot) -> Slot:
    """A result that fills a part of its image only, in an image of zeros."""
    target, extent = stage.plan.target, stage.shape.extent
    if target.covers(extent):
        return result
    return Place(extent.shape, target.channel, target.y, target.x)(result)


def all_of(extent: Extent) -> Target:
    """All pixels and channels of an image."""
    return Target(0, 0, extent.width, extent.height, 0, extent.channels)
