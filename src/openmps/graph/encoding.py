"""What one encode of a graph binds to its program: source images, labels, the images and states that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.allocator import MPSImageAllocator
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Stack
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.state.state import MPSState, MPSStateBatch, as_state_batch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.convolution_nodes import MPSCNNConvolutionGradientNode
from openmps.graph.executor import Binding
from openmps.graph.interface import Interface
from openmps.graph.loss_nodes import MPSCNNLossNode
from openmps.graph.nodes import MPSNNImageNode, MPSNNStateNode
from openmps.graph.plan import Program, Shape
from openmps.kernels.convolution import MPSCNNConvolutionGradientState
from openmps.kernels.loss import MPSCNNLoss, labels_reader, loss_writer

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer

Images = MPSImage | MPSImageBatch


def image_list(who: str, images: object) -> list[MPSImage]:
    """``source_images`` of an encode of single images."""
    if isinstance(images, MPSImage) or not isinstance(images, Sequence):
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
    if isinstance(batches, MPSImage | MPSImageBatch) or not isinstance(batches, Sequence):
        rule, remedy = "must be a sequence, one batch a source", "Pass [batch]"
        raise MPSTypeError(who, "source_images", rule, type(batches).__name__, remedy)
    return [as_batch(who, f"source_images[{index}]", batch) for index, batch in enumerate(batches)]


def state_list(who: str, states: object) -> list[MPSStateBatch]:
    """``source_states`` of an encode of single images, each a batch of one."""
    return [MPSStateBatch([state]) for state in _sequence(who, "one state a state input", states)]


def state_batch_list(who: str, states: object) -> list[MPSStateBatch]:
    """``source_states`` of an encode of batches."""
    listed = _sequence(who, "one batch of states a state input", states)
    return [as_state_batch(who, f"source_states[{index}]", batch) for index, batch in enumerate(listed)]


def _sequence(who: str, rule: str, states: object) -> Sequence[Any]:
    if states is None:
        return ()
    if isinstance(states, MPSState) or not isinstance(states, Sequence):
        raise MPSTypeError(who, "source_states", f"must be a sequence, {rule}, or None", type(states).__name__)
    return states


def check_receiver(who: str, argument: str, receiver: object) -> None:
    """Raise unless an encode can append to ``receiver``."""
    if receiver is not None and not callable(getattr(receiver, "extend", None)):
        raise MPSTypeError(who, argument, "must be a list to append to, or None", type(receiver).__name__)


def count_of(images: Images) -> int:
    """Images in an image object or a batch."""
    return images.number_of_images if isinstance(images, MPSImage) else len(images)


def stack_of(images: Images) -> Stack:
    """All images, as a program reads or writes them."""
    return images.stack(0, images.number_of_images) if isinstance(images, MPSImage) else images.stack()


def check_sources(
    who: str,
    interface: Interface,
    command_buffer: CommandBuffer,
    sources: Sequence[Images],
    states: Sequence[MPSStateBatch],
) -> None:
    """Raise unless there is a usable image for every input, and a state an image for every state input."""
    given: tuple[tuple[str, Sequence[object], Sequence[MPSNNImageNode | MPSNNStateNode]], ...] = (
        ("source_images", sources, interface.inputs),
        ("source_states", states, interface.input_states),
    )
    for name, objects, nodes in given:
        if len(objects) != len(nodes):
            rule = f"must have {len(nodes)} entries, for the handles {interface.labels(nodes)}"
            raise MPSArgumentError(who, name, rule if nodes else "must be empty", f"{len(objects)}")
    count = count_of(sources[0])
    for index, images in enumerate(sources):
        if count_of(images) != count or count == 0:
            rule = f"must hold {count or 'at least one'} image(s), like the first source"
            raise MPSArgumentError(who, f"source_images[{index}]", rule, count_of(images))
        images.check_usable(who, f"source_images[{index}]", command_buffer)
    for index, batch in enumerate(states):
        if len(batch) != count:
            remedy = "Use encode_batch with one image an image object" if isinstance(sources[0], MPSImage) else ""
            rule = f"must hold {count} state(s), one an image"
            raise MPSArgumentError(who, f"source_states[{index}]", rule, len(batch), remedy)
        for state in batch.counted():
            state.check_usable(who, f"source_states[{index}]", command_buffer)


def bind_labels(program: Program, binding: Binding, given: Mapping[MPSNNStateNode, MPSStateBatch]) -> None:
    """Have loss steps read their labels and write their losses."""
    for step in program.steps:
        node, kernel = step.node, step.kernel
        if isinstance(node, MPSCNNLossNode) and isinstance(kernel, MPSCNNLoss):
            labels = given[node.input_labels]
            kernel.check_labels(labels, step.plan.sources[0])
            binding.labels[node] = labels_reader(kernel.name, labels)
            binding.keepers.setdefault(node, []).append(loss_writer(labels))


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
        descriptor = program.descriptors[node]
        made[node] = _allocate(allocator, command_buffer, descriptor, kernel, program.images, single)
        shape = Extent(descriptor.width, descriptor.height, descriptor.feature_channels, program.images)
        extent = stack_of(made[node]).extent
        if extent != shape:
            raise MPSArgumentError(
                kernel.name,
                "image allocator",
                f"must make images as the descriptor says, {shape}",
                str(extent),
                "Return MPSImage(command_buffer.device, image_descriptor)",
            )
        made[node].check_usable(kernel.name, "image allocator", command_buffer)
    return made


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


def make_states(
    command_buffer: CommandBuffer,
    program: Program,
    binding: Binding,
    wanted: Sequence[MPSNNStateNode],
    *,
    temporary: bool,
) -> list[MPSStateBatch]:
    """A batch of states for each exported state node, filled in when the program runs."""
    steps = {step.node: step for step in program.steps}
    made: list[MPSStateBatch] = []
    for node in wanted:
        step = steps[node.producer] if node.producer is not None else None
        state = None if step is None else step.kernel.make_state()
        if step is None or state is None:
            continue
        state.record = step.record
        whole = step.kernel.is_result_state_reused_across_batch()
        if temporary:
            state.make_temporary(command_buffer, 1 if whole else program.images)
        for filler, keep in _fillers(program, step.node, state):
            binding.keepers.setdefault(filler, []).append(keep)
        made.append(
            MPSStateBatch([state] * program.images) if whole else MPSStateBatch.of_images(state, program.images)
        )
    return made


def _fillers(program: Program, maker: Any, state: Any) -> list[tuple[Any, Callable[[Any], None]]]:
    """The nodes whose work fills a state: a convolution's gradients come from its gradient nodes, and add up."""
    if not isinstance(state, MPSCNNConvolutionGradientState):
        return [(maker, state.absorb)]

    def add(produced: tuple[Tensor, Tensor]) -> None:
        # The update has the gradients in a state of its own: this one must not share their memory.
        state.absorb(tuple(gradient.clone() for gradient in produced))

    gradients = [step.node for step in program.steps if isinstance(step.node, MPSCNNConvolutionGradientNode)]
    return [(node, add) for node in gradients if node.forward is maker]


# --- read counts ------------------------------------------------------------------------------------------------------


def count_reads(interface: Interface, sources: Sequence[Images], states: Sequence[MPSStateBatch]) -> None:
    """Take from temporary inputs as many reads as filters make, or one if they have fewer: MPSNNGraph.h says both."""
    for node, images in zip(interface.inputs, sources, strict=True):
        reads, fewest = interface.reads(node), _fewest(images)
        if fewest is not None:
            images.count_read(reads if fewest >= reads else 1)
    for node, batch in zip(interface.input_states, states, strict=True):
        reads = interface.reads(node)
        for state in batch.counted():
            state.count_read(reads if state.lives_on is None or state.read_count >= reads else 1)


def _fewest(images: Images) -> int | None:
    """The smallest read count among the temporary images; None if there are none."""
    listed: Sequence[MPSImage] = [images] if isinstance(images, MPSImage) else images
    return min((image.read_count for image in listed if isinstance(image, MPSTemporaryImage)), default=None)


def shapes_of(sources: Sequence[Images]) -> tuple[Shape, ...]:
    """The shapes that a program is compiled for."""
    return tuple(Shape(stack.extent, stack.channel_format) for stack in map(stack_of, sources))
