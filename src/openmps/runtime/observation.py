"""Looks into command buffers: each encode is run by whoever looks, one behind the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from openmps.errors import MTLCommandBufferError
from openmps.metal.device import CommandBuffer
from openmps.metal.execution import MAX_CAPTURE_COUNT, Execution, Release, Work
from openmps.metal.explanation import Passage, WorkOutcome
from openmps.runtime.dispatch import Dispatch
from openmps.types import MTLCommandBufferStatus

_REASON = "not replayed: it is looked into"


class ObservingPlayer:
    """Runs every encode of a record by ``run(label, encoding)``, and everything else as it is.

    ``others`` takes the labels of works whose steps are not known.
    """

    def __init__(
        self, run: Callable[[str, Dispatch], None], others: Callable[[str], None] = lambda label: None
    ) -> None:
        self.max_capture_count = MAX_CAPTURE_COUNT
        self.allow_fusion = True
        self._run = run
        self._others = others

    def forget(self) -> None:
        """See `openmps.metal.execution.Player`: there is nothing."""

    def play(self, works: deque[tuple[str, Work]], passages: list[Passage]) -> int:
        """See `openmps.metal.execution.Player`."""
        label, work = works[0]
        passages.append(Passage(1, WorkOutcome.RUN, _REASON))
        if not isinstance(work, Dispatch):
            if not isinstance(work, Release):
                self._others(label)
            return 1
        for name, each in work.apart(label):
            self._run(name, each)
        # It stays the first while it runs: a thread that wants to read looks for what is yet to be written.
        works.popleft()
        return 0


def observe(who: str, command_buffer: CommandBuffer, player: ObservingPlayer) -> Execution:
    """Have ``player`` run what a command buffer records until its commit; encodes cost what they cost without.

    Raises:
        MTLCommandBufferError: It is committed already.
    """
    execution = command_buffer.recording.execution
    if execution.status >= MTLCommandBufferStatus.COMMITTED:
        rule, got = "must not be committed yet", f"status {execution.status.name}"
        raise MTLCommandBufferError(who, "command_buffer", rule, got, "Call it before the commit")
    execution.player = player
    execution.is_awaited = True
    return execution
