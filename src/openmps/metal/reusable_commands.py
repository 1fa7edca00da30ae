"""ReusableCommands: work that is encoded once, and then by one call into each of many command buffers. Our addition."""

from __future__ import annotations

from typing import NoReturn

from openmps.checks import of_kind, store
from openmps.errors import MPSDeviceError, MPSTypeError, MTLCommandBufferError
from openmps.metal.device import CommandBuffer, Lifetime, MTLCommandBuffer, MTLCommandQueue, Recording
from openmps.metal.execution import Handler, Release, Work, keep_place
from openmps.metal.pending import require_read_written, unwritten
from openmps.metal.version import Version
from openmps.selectors import name_arguments, name_calls

_COMMIT = "Call its encode(command_buffer), and commit that one"


class _Kept(Recording):
    """A record that is never committed: nothing waits for its work, and nothing is lost when it goes."""

    __slots__ = ()

    is_reusable = True

    def abandon(self) -> None:
        """Nothing is to be said of it."""


@name_arguments
class ReusableCommands(MTLCommandBuffer):
    """Work that is encoded once, and by one call into each command buffer that is to do it. Our addition.

    Kernels and graphs are encoded to it as to a command buffer, between the same images each time, as the frames of a
    video are filtered. `encode` then puts all of it into a command buffer of the device, as often as wanted, at a
    fraction of the time that the encodes take::

        commands = openmps.ReusableCommands(queue)
        blur.encode(commands, frame, blurred)
        sobel.encode(commands, blurred, edges)
        for picture in pictures:
            frame.write_bytes(picture)  # does not wait for work that reads the frame
            command_buffer = queue.command_buffer()
            commands.encode(command_buffer)
            command_buffer.commit()
            command_buffer.wait_until_completed()

    Settings are those of the encode: a property of a kernel that is set later counts for later ones. Images, buffers
    and weights are read when the work runs. Temporary objects that are made on it keep their memory as long as it is
    there, and are not valid on other command buffers.

    It takes work that does the same each time. What has numbers of its own encode (rates and steps of optimizers,
    counts of random masks), encodes with gradient states, reloads, functions of `record` and handlers raise; so does a
    commit. Recurrent layers may be trained so.
    """

    _versions: dict[int, tuple[Version, int]]
    """Those of what the work depends on, by identity, and what they were when it was encoded."""

    def __init__(self, command_queue: MTLCommandQueue) -> None:
        queue = of_kind(type(self).__name__, "command_queue", command_queue, MTLCommandQueue)
        recording = _Kept(queue.command_buffer().recording.executor)
        recording.queue, recording.lifetime = queue, Lifetime()
        store(self, "_recording", recording)
        store(self, "_device", queue.device)
        store(self, "_versions", {})

    def __repr__(self) -> str:
        return f"<{self.name}, {len(self.encodings)} work(s), on {self.device.name}>"

    def record(self, label: str, work: Work) -> None:
        """Add one piece of work of a kernel; see `CommandBuffer.record`.

        Raises:
            MTLCommandBufferError: It cannot be done again as it is.
        """
        if isinstance(work, Release):
            return  # what is temporary is written and read again
        single_use = getattr(work, "single_use", "" if work is keep_place else "a function")
        if single_use and callable(work):
            self.refuse(label, single_use)
        super().record(label, work)

    def refuse(self, label: str, got: str) -> NoReturn:
        """Raise for an encode that would not do the same each time."""
        rule, remedy = "must do the same each time", "Encode it to the command buffers themselves"
        raise MTLCommandBufferError(self.name, f"encode of {label!r}", rule, got, remedy)

    def depends_on(self, version: Version) -> None:
        """Have `encode` raise where this has become another version, so that the work would be another, too."""
        self._versions.setdefault(id(version), (version, version.number))

    def encode(self, command_buffer: CommandBuffer) -> None:
        """Add all work that was encoded so far to a command buffer, behind what it holds.

        Raises:
            MPSTypeError: It is neither an `MTLCommandBuffer` nor an `MPSCommandBuffer`.
            MPSDeviceError: It belongs to another device.
            MTLCommandBufferError: It is committed already, or an encoder is open on one of the two; or a batch
                normalization was given other numbers by its data source since the work was encoded.
        """
        recording = self.recording
        if recording.encoder is not None:
            self._refuse_encode("encode")
        if not isinstance(command_buffer, CommandBuffer) or isinstance(command_buffer, ReusableCommands):
            rule, got = "must be an MTLCommandBuffer or an MPSCommandBuffer", type(command_buffer).__name__
            raise MPSTypeError(self.name, "command_buffer", rule, got, "Make one with command_queue.command_buffer()")
        if command_buffer.device is not self.device:
            rule = f"must belong to the device {self.device}"
            raise MPSDeviceError(self.name, "command_buffer", rule, command_buffer.device)
        if not command_buffer.recording.is_open:
            rule = "must not be committed yet, and have every encoder ended"
            raise MTLCommandBufferError(self.name, "command_buffer", rule, repr(command_buffer))
        if any(version.number != number for version, number in self._versions.values()):
            rule, remedy = "must read what kernels hold", "Encode the work to new ReusableCommands"
            got = "numbers of a batch normalization that its data source has replaced since"
            raise MTLCommandBufferError(self.name, "encode", rule, got, remedy)
        works = tuple(recording.execution.works)  # another thread may encode meanwhile
        for label, work in works if unwritten else ():
            require_read_written(label, work)
        for label, work in works:
            command_buffer.record(label, work)

    # --- what only command buffers have ------------------------------------------------------------------------------

    def commit(self) -> NoReturn:
        """Not offered; see `encode`."""
        self._refuse("commit")

    def commit_and_pass_on(self) -> NoReturn:
        """Not offered; see `encode`."""
        self._refuse("commit_and_continue")

    def enqueue(self) -> NoReturn:
        """Not offered; see `encode`."""
        self._refuse("enqueue")

    def add_scheduled_handler(self, block: Handler) -> NoReturn:
        """Not offered: command buffers have handlers."""
        self._refuse("add_scheduled_handler")

    def add_completed_handler(self, block: Handler) -> NoReturn:
        """Not offered: command buffers have handlers."""
        self._refuse("add_completed_handler")

    def wait_until_scheduled(self) -> NoReturn:
        """Not offered: wait for the command buffers."""
        self._refuse("wait_until_scheduled")

    def wait_until_completed(self) -> NoReturn:
        """Not offered: wait for the command buffers."""
        self._refuse("wait_until_completed")

    def _refuse(self, action: str) -> NoReturn:
        raise MTLCommandBufferError(self.name, action, "is for command buffers, which are committed", None, _COMMIT)


name_calls(ReusableCommands, "encode")
