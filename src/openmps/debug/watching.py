"""Traces of what kernels compute that are encoded by hand, and of whole command buffers."""

from __future__ import annotations

from openmps.checks import NamedAttributes, described
from openmps.core.lifetime import check_is_open
from openmps.errors import MTLCommandBufferError
from openmps.graph.run.trace import Trace, Tracer
from openmps.metal.device import CommandBuffer
from openmps.runtime.observation import ObservingPlayer, observe
from openmps.selectors import name_arguments
from openmps.types import MTLCommandBufferStatus

_WHO = "openmps.debug.watch"


@name_arguments
class Watch(NamedAttributes):
    """What a command buffer computes; made by `watch`. Our addition."""

    def __init__(self, command_buffer: CommandBuffer) -> None:
        check_is_open(_WHO, command_buffer)
        self._tracer = Tracer()
        self._execution = observe(_WHO, command_buffer, ObservingPlayer(self._tracer.run, self._not_seen))

    def __repr__(self) -> str:
        return described(self, self._execution.status.name)

    def _not_seen(self, label: str) -> None:
        self._tracer.note(f"its steps are not known: {label}")

    def trace(self) -> Trace:
        """Everything that was computed; waits for it. Where the work failed, everything before that.

        Raises:
            MTLCommandBufferError: The command buffer is not committed yet.
        """
        execution = self._execution
        if execution.status < MTLCommandBufferStatus.COMMITTED:
            got = f"status {execution.status.name}"
            raise MTLCommandBufferError(_WHO, "trace", "needs a committed buffer", got, "Call commit first")
        execution.finished.wait()
        if execution.error is not None:
            self._tracer.note(f"the work failed: {execution.error}")
        return self._tracer.trace()


def watch(command_buffer: CommandBuffer) -> Watch:
    """Keep everything that a command buffer computes, by label. Our addition.

    Call it before the commit; encodes before and after it are watched, up to the commit or `commit_and_continue`::

        watch = openmps.debug.watch(command_buffer)
        result = convolution.encode(command_buffer, image)
        command_buffer.commit()
        print(watch.trace())

    Encodes cost what they cost without. What runs is each kernel by itself, one behind the other: nothing is replayed,
    and the filters of an `MPSNNGraph` run unfused. Results, states and weights are there as the encodes left them,
    those that a data source updates too. Kernels go by their labels, or by their classes and numbers.

    Raises:
        MTLCommandBufferError: The command buffer is committed already.
    """
    return Watch(command_buffer)
