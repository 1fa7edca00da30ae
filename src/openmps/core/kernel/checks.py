"""What every encode asks of its operands before anything is decided: kind, number, device, life."""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Stack, Storage
from openmps.core.lifetime import COMMAND_BUFFERS, check_device, check_is_open
from openmps.core.operand import Operand
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.types import MTLCommandBufferStatus

Images = MPSImage | MPSImageBatch
"""To ask for the former is faster: a batch is a sequence, which is an abstract class."""
_COMMITTED = MTLCommandBufferStatus.COMMITTED


def check_command_buffer(who: str, command_buffer: object, device: MTLDevice) -> CommandBuffer:
    """``command_buffer`` if a kernel on ``device`` can be encoded to it now."""
    if type(command_buffer) in COMMAND_BUFFERS:
        given: CommandBuffer = command_buffer  # pyright: ignore[reportAssignmentType]
        recording = given.recording
        is_open = recording.encoder is None and recording.execution.status < _COMMITTED
        if is_open and recording.queue.device is device and not recording.lifetime.ended:
            return given
    checked = check_is_open(who, command_buffer)
    check_device(who, "command_buffer", checked.device, device)
    if not checked.recording.is_open:
        rule = "must have every encoder ended"
        raise MTLCommandBufferError(who, "command_buffer", rule, repr(checked), "Call its end_encoding first")
    return checked


def check_sources(who: str, names: tuple[str, ...], sources: tuple[Images, ...], command_buffer: CommandBuffer) -> None:
    """Raise unless all sources can be read together: usable, and batches of one length."""
    first, are_several = sources[0], len(sources) > 1
    if not are_several and isinstance(first, MPSImage):
        first.check_usable(who, names[0], command_buffer)
        return
    expected = 0 if isinstance(first, MPSImage) else len(first)
    for name, images in zip(names, sources, strict=True):
        argument = name
        if not isinstance(images, MPSImage):
            argument = plural(name)
            if not expected or (images is not first and len(images) != expected):
                _refuse_length(who, argument, images, max(1, expected), names[0])
        images.check_usable(who, argument, command_buffer)
        if are_several and (reads := sources.count(images)) > 1:
            check_reads_left(who, argument, images, reads)


def check_operand(who: str, name: str, operand: Operand, command_buffer: CommandBuffer) -> None:
    """Raise unless one operand can be used, whatever the others are."""
    argument = name
    # Whether it is one of images, which is a quick question, comes first: most operands are none.
    if operand.is_batch and isinstance(operand, MPSImageBatch):
        argument = plural(name)
        if not len(operand):
            _refuse_length(who, argument, operand, 1, name)
    operand.check_usable(who, argument, command_buffer)


def check_destination(
    who: str, name: str, destination: Images, like: Images, command_buffer: CommandBuffer, count: int = 1
) -> None:
    """Raise unless the results for the source ``like``, ``count`` an image, can be written to ``destination``."""
    argument = name
    if not isinstance(destination, MPSImage):
        argument = plural(name)
        if not isinstance(like, MPSImage) and len(destination) != (expected := len(like) * count):
            each = "the sources" if count == 1 else f"{count} for each source"
            _refuse_length(who, argument, destination, expected, each)
    destination.check_usable(who, argument, command_buffer)


def check_apart(who: str, name: str, output: Stack) -> None:
    """Raise if two images of a batch that is written share memory: one result would be lost."""
    first, argument = 0, plural(name)
    seen: dict[object, list[Storage]] = {}
    for part in output.parts:
        # Blocks of textures may share memory with one another; of any other block the image tells it.
        places = [None] if part.block.is_shared else [(id(part.block), part.first + each) for each in range(part.count)]
        for place in places:
            others = seen.setdefault(place, [])
            if any(part.overlaps(other) for other in others):
                rule = "must share no memory with another image of the batch"
                remedy = "Pass an image of its own for each result"
                raise MPSArgumentError(who, f"{argument}[{first}]", rule, "an image that is there twice", remedy)
            others.append(part)
        first += part.count


def check_states(who: str, argument: str, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
    """Raise unless there is one usable state an image."""
    expected = len(images) if isinstance(images, MPSImageBatch) else 1
    if len(states) != expected:
        rule, got = f"must be one state an image, {expected}", f"{len(states)} state(s)"
        raise MPSArgumentError(who, argument, rule, got, "Pass the states that the forward encode of these images left")
    for state in states.counted():
        state.check_usable(who, argument, command_buffer)


def check_result_states(
    who: str, states: MPSStateBatch, kind: type[MPSState] | None, images: Images, command_buffer: CommandBuffer
) -> None:
    """Raise unless a forward kernel that leaves states of class ``kind`` can fill in ``states``."""
    argument = "destination_states" if isinstance(images, MPSImageBatch) else "destination_state"
    if kind is None:
        raise MPSTypeError(who, argument, "must not be given: this kernel leaves no state", repr(states))
    for state in states.counted():
        if not isinstance(state, kind):
            rule = f"must be {kind.__name__}"
            raise MPSTypeError(who, argument, rule, type(state).__name__, "Make it with result_state")
    check_states(who, argument, states, images, command_buffer)


@lru_cache(maxsize=256)
def plural(name: str) -> str:
    """What an argument is called where it is a batch; one of a list of arguments has one name for both."""
    return name if name.endswith("]") else f"{name}s"


def _refuse_length(who: str, argument: str, batch: MPSImageBatch, expected: int, like: str) -> NoReturn:
    rule = f"must be {expected} image(s), as many as {like}"
    raise MPSArgumentError(who, argument, rule, f"{len(batch)} image(s)")


def check_reads_left(who: str, argument: str, operand: Operand, reads: int) -> None:
    """Raise unless temporary objects that are passed ``reads`` times may be read as often."""
    for each in operand if reads > 1 and operand.is_batch and isinstance(operand, MPSImageBatch) else (operand,):
        left: int = getattr(each, "read_count", reads)
        if left < reads:
            rule = f"must have {reads} reads left: each source argument takes one"
            raise MPSLifetimeError(who, argument, rule, left, "Raise its read_count first")
