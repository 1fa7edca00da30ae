"""What one encode of a graph binds to its program: source images, labels, the images and states that come out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from openmps.core.image.allocator import ORDINARY, TEMPORARY
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage, MPSImageAllocator
from openmps.core.image.pixels import Pixels
from openmps.core.image.storage import Extent
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.state.batch import MPSStateBatch, as_state_batch
from openmps.core.state.gradient import MPSNNGradientState
from openmps.core.state.state import MPSState, Saved
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.compile.interface import Interface
from openmps.graph.compile.program import Program, all_of
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.kernels.group_normalization.state import ImageNormalizationState
from openmps.kernels.loss.labels import LabelBlocks, LabelsBatch, MPSCNNLossLabels, labels_reader
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import require_written, unwritten
from openmps.ops.op import Role
from openmps.runtime.binding import NOWHERE, Binding, Several
from openmps.types import MPSImageFeatureChannelFormat

_log = logging.getLogger(__name__)
Images = MPSImage | MPSImageBatch
Formats = Mapping[MPSNNImageNode, MPSImageFeatureChannelFormat]
_LABELS = (MPSCNNLossLabels, LabelBlocks)
"""The only states that a graph takes from its user, one by one or as the batch that they were made as."""


def image_list(who: str, images: object) -> list[MPSImage]:
    """``source_images`` of an encode of single images."""
    # A list is told without asking abstract classes, which is slow.
    if type(images) is not list and (isinstance(images, MPSImage) or not isinstance(images, Sequence)):
        raise MPSTypeError(who, "source_images", "must be a sequence, one image a source", type(images).__name__)
    listed: list[MPSImage] = []
    for index, image in enumerate(images):
        if not isinstance(image, MPSImage):
            remedy = "Use encode_batch for batches"
            raise MPSTypeError(who, f"source_images[{index}]", "must be an MPSImage", type(image).__name__, remedy)
        listed.append(image)
    return listed


def batch_list(who: str, batches: object) -> list[MPSImageBatch]:
    """``source_images`` of an encode of batches."""
    if type(batches) is not list and (
        isinstance(batches, MPSImage | MPSImageBatch) or not isinstance(batches, Sequence)
    ):
        rule, remedy = "must be a sequence, one batch a source", "Pass [batch]"
        raise MPSTypeError(who, "source_images", rule, type(batches).__name__, remedy)
    listed: list[MPSImageBatch] = []
    for index, batch in enumerate(batches):
        listed.append(batch if type(batch) is MPSImageBatch else as_batch(who, f"source_images[{index}]", batch))
    return listed


def state_list(who: str, states: object) -> list[MPSStateBatch]:
    """``source_states`` of an encode of single images, each a batch of one."""
    return [MPSStateBatch([state]) for state in _sequence(who, "one state a state input", states)]


def state_batch_list(who: str, states: object) -> list[MPSStateBatch]:
    """``source_states`` of an encode of batches."""
    given: Any = states
    listed: Sequence[Any] = given if type(given) is list else _sequence(who, "one batch of states a state input", given)
    found: list[MPSStateBatch] = []
    for index, batch in enumerate(listed):
        is_one = type(batch) is LabelsBatch or isinstance(batch, MPSStateBatch)
        found.append(batch if is_one else as_state_batch(who, f"source_states[{index}]", batch))
    return found


def _sequence(who: str, rule: str, states: object) -> Sequence[Any]:
    if states is None:
        return ()
    if type(states) is not list and (isinstance(states, MPSState) or not isinstance(states, Sequence)):
        raise MPSTypeError(who, "source_states", f"must be a sequence, {rule}, or None", type(states).__name__)
    return states


def traced_sources(who: str, device: MTLDevice, sources: object) -> list[Images]:
    """``source_images`` of a trace: an image, a batch or an array a source."""
    if isinstance(sources, MPSImage | MPSImageBatch | np.ndarray) or not isinstance(sources, Sequence):
        rule = "must be a sequence, an image, a batch or an array a source"
        raise MPSTypeError(who, "source_images", rule, type(sources).__name__, "Pass [images]")
    return [
        each if isinstance(each, MPSImage | MPSImageBatch)
        else MPSImageBatch.from_numpy(device, each) if isinstance(each, np.ndarray)
        else as_batch(who, f"source_images[{index}]", each)
        for index, each in enumerate(sources)
    ]  # fmt: skip


def traced_states(who: str, states: object) -> list[MPSStateBatch]:
    """``source_states`` of a trace: a state or a batch of states a state input."""
    return [
        batch if isinstance(batch, MPSStateBatch)
        else MPSStateBatch([batch]) if isinstance(batch, MPSState)
        else as_state_batch(who, f"source_states[{index}]", batch)
        for index, batch in enumerate(_sequence(who, "one batch of states a state input", states))
    ]  # fmt: skip


def check_receiver(who: str, argument: str, receiver: object) -> None:
    """Raise unless an encode can append to ``receiver``."""
    if receiver is not None and not callable(getattr(receiver, "extend", None)):
        raise MPSTypeError(who, argument, "must be a list to append to, or None", type(receiver).__name__)


def count_of(images: Images) -> int:
    """Images in an image object or a batch."""
    return images.number_of_images if isinstance(images, MPSImage) else len(images)


def check_sources(
    who: str,
    interface: Interface,
    command_buffer: CommandBuffer,
    sources: Sequence[Images],
    states: Sequence[MPSStateBatch],
) -> list[list[MPSState]]:
    """Raise unless there is a usable image for every input, and a state an image for every state input.

    Images that a dropped command buffer was to write are not usable. The states whose reads count, input by input.
    """
    if len(sources) != len(interface.inputs):
        raise MPSArgumentError(who, "source_images", interface.count_rule(interface.inputs), f"{len(sources)}")
    if len(states) != len(interface.input_states):
        remedy = "" if states else "Labels of a loss are a batch of states: MPSCNNLossLabels.batch(device, one_hot)"
        rule = interface.count_rule(interface.input_states)
        raise MPSArgumentError(who, "source_states", rule, f"{len(states)}", remedy)
    if not sources:
        rule, remedy = (
            "must read a source image, which says how many images there are",
            "Begin it with an MPSNNImageNode",
        )
        raise MPSArgumentError(who, "graph", rule, "none", remedy)
    first = sources[0]
    count = first.number_of_images if isinstance(first, MPSImage) else len(first)
    for argument, images in zip(interface.image_arguments, sources, strict=True):
        if count == 0 or (images is not first and count_of(images) != count):
            rule = f"must hold {count or 'at least one'} image(s), like the first source"
            raise MPSArgumentError(who, argument, rule, count_of(images))
        images.check_usable(who, argument, command_buffer)
    counted: list[list[MPSState]] = []
    for argument, batch in zip(interface.state_arguments, states, strict=True):
        if len(batch) != count:
            remedy = "Use encode_batch with one image an image object" if isinstance(first, MPSImage) else ""
            rule = f"must hold {count} state(s), one an image"
            raise MPSArgumentError(who, argument, rule, len(batch), remedy)
        counted.append(batch.counted())
        for state in counted[-1]:
            if not isinstance(state, _LABELS):
                rule = "must hold MPSCNNLossLabels, one an image"
                raise MPSTypeError(who, argument, rule, type(state).__name__)
            state.check_usable(who, argument, command_buffer)
    if unwritten:
        read = [images.whole() for images in sources]
        read += [labels_reader(who, batch, name) for batch in states for name in ("labels", "weights")]
        require_written(who, "encode", (region for each in read for region in each.regions()))
    return counted


# --- what a program is bound to ---------------------------------------------------------------------------------------


def bindings(program: Program, sources: Sequence[Images], states: StagesStates) -> tuple[Binding, ...]:
    """What each input of the program's function is bound to in this encode."""
    found = program.bound()
    bind(found, program.asked, program, sources, states)
    return tuple(found)


def persistent_bindings(program: Program, taken: Collection[int]) -> list[Binding | None]:
    """What the inputs of the program's function are bound to in every encode; None for the others.

    ``taken`` are the stages that read states of the user.
    """
    found: list[Binding | None] = [*program.bound()]
    for index, (role, name, place, stage) in enumerate(program.parts):
        if found[index] is None and role is Role.BUFFER and stage is not None and place not in taken:
            found[index] = stage.kernel.bound(role, name, stage.plan, stage.states)
    return found


def bind(
    found: list[Any], asked: Sequence[int], program: Program, sources: Sequence[Images], states: StagesStates
) -> None:
    """Bind some of the inputs."""
    held, given, parts = states.held, states.given, program.parts
    for index in asked:
        role, name, place, stage = parts[index]
        if stage is None:
            found[index] = sources[place].whole()
        else:
            taking = held.get(place)
            known = given.get(place, stage.states) if taking is None else taking[0]
            found[index] = stage.kernel.bound(role, name, stage.plan, known)


def output_bindings(
    program: Program,
    groups: Iterable[tuple[int, tuple[str, ...]]],
    images: Mapping[MPSNNImageNode, Images],
    states: StagesStates,
) -> list[Binding]:
    """Where outputs of the program's function go, those of one kernel together as `Program.handed_out` has them."""
    found: list[Binding] = []
    for place, names in groups:
        if names == (RESULT,):
            # What nobody takes is not made.
            taken = images.get(program.stages[place].node.result_image) if images else None
            stack = None if taken is None else taken.whole()
            found.append(NOWHERE if stack is None else Pixels(stack, all_of(stack.extent)))
        elif names == (SAVED,):
            found.append(states.saved[place])
        else:
            found.extend(states.output_bindings(place, names))
    return found


# --- images that come out ---------------------------------------------------------------------------------------------


def make_outputs(
    kernel: Any,
    command_buffer: CommandBuffer,
    program: Program,
    allocators: Mapping[MPSNNImageNode, MPSImageAllocator],
    *,
    single: bool,
) -> dict[MPSNNImageNode, Images]:
    """An image object, or a batch, of the right size for each node; its format is the allocator's affair."""
    made: dict[MPSNNImageNode, Images] = {}
    for node, allocator in allocators.items():
        if allocator is ORDINARY or allocator is TEMPORARY:
            is_temporary = allocator is TEMPORARY
            made[node] = program.new_images(node, command_buffer, is_temporary=is_temporary, single=single)
            continue
        descriptor = program.descriptors[node]
        made[node] = _allocate(allocator, command_buffer, descriptor, kernel, program.images, single)
        shape = Extent(descriptor.width, descriptor.height, descriptor.feature_channels, program.images)
        extent = made[node].whole().extent
        if extent != shape:
            rule = f"must make images as the descriptor says, {shape}"
            remedy = "Return MPSImage(command_buffer.device, image_descriptor)"
            raise MPSArgumentError(kernel.name, "image allocator", rule, str(extent), remedy)
        made[node].check_usable(kernel.name, "image allocator", command_buffer)
    return made


def other_formats(program: Program, outputs: Mapping[MPSNNImageNode, Images]) -> Formats:
    """The formats of images that an allocator made in another one than it was asked for: it may, and they are exact."""
    formats = [(node, images.whole().channel_format) for node, images in outputs.items()]
    return {node: made for node, made in formats if made is not program.descriptors[node].channel_format}


def as_image(images: Images) -> MPSImage:
    """What an encode of single images made."""
    assert isinstance(images, MPSImage)
    return images


def as_images(images: Images) -> MPSImageBatch:
    """What an encode of batches made."""
    assert isinstance(images, MPSImageBatch)
    return images


def _allocate(
    allocator: MPSImageAllocator,
    command_buffer: CommandBuffer,
    descriptor: MPSImageDescriptor,
    kernel: Any,
    count: int,
    single: bool,
) -> Images:
    who = f"{kernel.name} image allocator"
    if single:
        whole = descriptor.copy()
        whole.number_of_images = count
        return image_list(who, [allocator.image(command_buffer, whole, kernel)])[0]
    make = getattr(allocator, "image_batch", None)
    if callable(make):
        return as_batch(who, "image_batch()", make(command_buffer, descriptor, kernel, count))
    return MPSImageBatch(allocator.image(command_buffer, descriptor, kernel) for _ in range(count))


# --- states that come out ---------------------------------------------------------------------------------------------


class StagesStates:
    """The states that the kernels of one encode work with, by stage."""

    def __init__(self, program: Program, given: Mapping[MPSNNStateNode, MPSStateBatch] = MappingProxyType({})) -> None:
        """``given`` are states of the user's, handed to the kernels that read them."""
        self._program, self._stages = program, program.stages
        self.given: dict[int, MPSStateBatch] = {}
        """Those that a kernel takes from the user: labels."""
        for node, states in given.items():
            for place in program.readers[node]:
                self.given[place] = states
        self.saved: dict[int, Saved] = {}
        """Where what a forward kernel saves goes, for states that come out."""
        self.held: dict[int, list[MPSStateBatch]] = {}
        """Those that take what a kernel gives besides: statistics, gradients of parameters."""

    def hold(self, place: int, states: MPSStateBatch) -> None:
        """Have what one kernel gives besides images go into ``states``."""
        stage = self._stages[place]
        if stage.kernel.fills_states:
            stage.kernel.fill(stage.plan, states)
        self.held.setdefault(place, []).append(states)

    def hold_all(self, forward: MPSNNFilterNode, states: MPSStateBatch) -> None:
        """Have what a layer's kernels, forward and gradient, give besides images go into ``states``."""
        for place, stage in enumerate(self._stages):
            node = stage.node
            if node is forward or (isinstance(node, MPSNNGradientFilterNode) and node.forward is forward):
                self.hold(place, states)

    def ends(self) -> list[Binding]:
        """Where all outputs of the program's function go, as far as states of these take them."""
        found: list[Binding] = []
        for place, names in self._program.handed_out:
            is_held = place in self.held and names not in ((RESULT,), (SAVED,))
            found += self.output_bindings(place, names) if is_held else [NOWHERE] * len(names)
        return found

    def output_bindings(self, place: int, names: Sequence[str]) -> Sequence[Binding]:
        """Where what one kernel gives besides images and saved tensors goes."""
        kernel = self._stages[place].kernel
        takers = self.held.get(place)
        if takers is None:
            return kernel.output_bindings(names, self.given[place]) if place in self.given else [NOWHERE] * len(names)
        if len(takers) == 1:
            return kernel.output_bindings(names, takers[0])
        return [*map(Several, zip(*[kernel.output_bindings(names, states) for states in takers], strict=True))]


def make_states(
    command_buffer: CommandBuffer,
    program: Program,
    states: StagesStates,
    wanted: Sequence[MPSNNStateNode],
    *,
    temporary: bool,
) -> list[MPSStateBatch]:
    """A batch of states for each exported state node, filled in when the program runs."""
    made: list[MPSStateBatch] = []
    for node in wanted:
        place = program.places[node.producer] if node.producer is not None else None
        stage = None if place is None else program.stages[place]
        state = None if stage is None else stage.kernel.make_state()
        if place is None or stage is None or state is None:
            continue
        state.record = stage.plan.record
        batch = batch_of(stage.kernel, state, program.images, command_buffer if temporary else None)
        states.saved[place] = state.saved
        states.hold_all(stage.node, batch)
        made.append(batch)
    return made


def batch_of(
    kernel: ImageKernel, state: MPSNNGradientState, count: int, command_buffer: CommandBuffer | None = None
) -> MPSStateBatch:
    """The states of ``count`` images that ``state`` stands for, temporary on a command buffer if one is given."""
    whole = kernel.is_result_state_reused_across_batch()
    if isinstance(state, ImageNormalizationState):
        state.stand_for(count)
    if command_buffer is not None:
        state.make_temporary(command_buffer, 1 if whole else count)
    return MPSStateBatch.repeated(state, count) if whole else MPSStateBatch.of_images(state, count)


# --- read counts ------------------------------------------------------------------------------------------------------


def count_reads(interface: Interface, sources: Sequence[Images], counted: Sequence[Sequence[MPSState]]) -> None:
    """Take from temporary inputs as many reads as filters make, or one if they have fewer: MPSNNGraph.h says both."""
    for node, images in zip(interface.inputs, sources, strict=True):
        fewest = images.fewest_reads()
        if fewest is not None:
            reads = interface.taken(node)
            images.count_read(reads if fewest >= reads else 1)
    for node, states in zip(interface.input_states, counted, strict=True):
        for state in states:
            if state.lives_on is not None:
                reads = interface.taken(node)
                state.count_read(reads if state.read_count >= reads else 1)


def tell(who: str, handler: Callable[[Any, Any], object], result: object, error: object) -> None:
    """Call a completion handler; log what it raises, as nobody has the command buffer to ask it for the error."""
    try:
        handler(result, error)
    except BaseException:
        _log.exception("%s: the completion handler of execute_async failed", who)
        raise
