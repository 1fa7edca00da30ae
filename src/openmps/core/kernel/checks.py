"""What every encode asks of its operands before anything is decided: kind, number, device, life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.lifetime import check_device, check_is_open
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

Images = MPSImage | MPSImageBatch


def check_command_buffer(who: str, command_buffer: object, device: MTLDevice) -> CommandBuffer:
    """``command_buffer`` if a kernel on ``device`` can be encoded to it now."""
    checked = check_is_open(who, command_buffer)
    check_device(who, "command_buffer", checked.device, device)
    if not checked.recording.is_open:
        raise MTLCommandBufferError(
            who, "command_buffer", "must have every encoder ended", repr(checked), "Call its end_encoding first"
        )
    return checked


def check_sources(who: str, names: tuple[str, ...], sources: tuple[Images, ...], command_buffer: CommandBuffer) -> None:
    """Raise unless all sources can be read together: usable, and batches of one length and shape."""
    first = sources[0]
    for name, images in zip(names, sources, strict=True):
        argument = _argument(name, images)
        if isinstance(first, MPSImageBatch) and isinstance(images, MPSImageBatch):
            _check_length(who, argument, images, max(1, len(first)), names[0])
        images.check_usable(who, argument, command_buffer)
        _check_alike(who, argument, images)
        _check_reads(who, argument, images, sum(each is images for each in sources))


def check_destination(
    who: str, name: str, destination: Images, like: Images, command_buffer: CommandBuffer, count: int = 1
) -> None:
    """Raise unless the results for the source ``like``, ``count`` an image, can be written to ``destination``."""
    argument = _argument(name, destination)
    if isinstance(destination, MPSImageBatch) and isinstance(like, MPSImageBatch):
        expected = "the sources" if count == 1 else f"{count} for each source"
        _check_length(who, argument, destination, len(like) * count, expected)
    destination.check_usable(who, argument, command_buffer)
    _check_alike(who, argument, destination)


def check_states(who: str, argument: str, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
    """Raise unless there is one usable state an image."""
    expected = len(images) if isinstance(images, MPSImageBatch) else 1
    if len(states) != expected:
        raise MPSArgumentError(
            who,
            argument,
            f"must be one state an image, {expected}",
            f"{len(states)} state(s)",
            "Pass the states that the forward encode of these images left",
        )
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
            raise MPSTypeError(
                who, argument, f"must be {kind.__name__}", type(state).__name__, "Make it with result_state"
            )
    check_states(who, argument, states, images, command_buffer)


def _argument(name: str, images: Images) -> str:
    """Its name in the plural for a batch; one of a list of arguments has one name for both."""
    return f"{name}s" if isinstance(images, MPSImageBatch) and not name.endswith("]") else name


def _check_length(who: str, argument: str, batch: MPSImageBatch, expected: int, like: str) -> None:
    if len(batch) != expected:
        raise MPSArgumentError(
            who, argument, f"must be {expected} image(s), as many as {like}", f"{len(batch)} image(s)"
        )


def _check_reads(who: str, argument: str, images: Images, reads: int) -> None:
    """Raise unless temporary images that are passed ``reads`` times may be read as often."""
    if reads == 1:
        return
    for image in [images] if isinstance(images, MPSImage) else images:
        if isinstance(image, MPSTemporaryImage) and image.read_count < reads:
            raise MPSLifetimeError(
                who,
                argument,
                f"must have {reads} reads left: each source argument takes one",
                image.read_count,
                "Raise its read_count first",
            )


def _check_alike(who: str, argument: str, images: Images) -> None:
    """A batch says itself what is wrong with it; the kernel says which argument it is."""
    if isinstance(images, MPSImage):
        return
    try:
        images.stack()
    except MPSArgumentError as fault:
        raise MPSArgumentError(who, f"{argument}: {fault.argument}", fault.rule, fault.got, fault.remedy) from fault
