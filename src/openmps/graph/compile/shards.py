"""Parameters that each of several processes updates a share of, which then come to all.

Data sources say what they have updated; where the encode of a graph has asked all of them, the numbers are gathered,
some megabytes in one exchange, and kernels take them behind that.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer
from openmps.ops.update.collectives import GatherShards, Processes
from openmps.ops.update.shards import RoundGathered, Shard
from openmps.runtime.binding import Binding, HeldTensor, Numbers
from openmps.runtime.dispatch import Dispatch, prepared_op

_Places = list[tuple[Any, int, int, Binding | None]]
"""Buffer, offset, how many numbers, and what takes them rounded."""


class Shards:
    """The shares of several processes in what optimizers update; one object for all graphs of a group."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.shard = Shard(processes.rank, processes.count)
        """This process's."""
        self._command_buffer: CommandBuffer | None = None
        self._updated: _Places = []
        self._last: tuple[_Places, int, list[Dispatch]] = ([], 0, [])

    @contextmanager
    def of_graph(self, command_buffer: CommandBuffer, bucket_bytes: int) -> Generator[None]:
        """Within, data sources are asked for updates; at the end the gathering of what they updated is recorded."""
        self._command_buffer, self._updated = command_buffer, []
        try:
            yield
        finally:
            self._command_buffer = None
        places, size, encodings = self._last
        if places != self._updated or size != bucket_bytes:
            encodings = self._encodings(bucket_bytes)
            self._last = self._updated, bucket_bytes, encodings
        for encoding in encodings:
            command_buffer.record("gathered parameters", encoding)

    def check_open(self, who: str, command_buffer: CommandBuffer) -> None:
        """Raise unless a graph is asking for updates on this command buffer."""
        if command_buffer is not self._command_buffer:
            rule = "must be that of an encode of the graph that processes share with shards of the optimizer's state"
            remedy = "Kernels encoded by hand update whole parameters: share no graph of this data source so"
            raise MPSArgumentError(who, "command_buffer", rule, None, remedy)

    def note(self, places: Sequence[Numbers], rounded: Binding | None = None) -> None:
        """Numbers were updated, this process's share of them; ``rounded`` takes the first ones, rounded to float16."""
        takers = (rounded, *[None] * len(places))
        self._updated += [
            (each.buffer, each.offset, each.count or 0, taker) for each, taker in zip(places, takers, strict=False)
        ]

    def _encodings(self, limit: int) -> list[Dispatch]:
        """The gathering, and at the end the rounding, of which those who take the numbers see that it is done."""
        buckets: list[list[Numbers]] = []
        takers: dict[Numbers, Binding] = {}
        filled = 0
        for buffer, offset, count, taker in self._updated:
            if not buckets or filled + 4 * count > limit:
                buckets.append([])
                filled = 0
            numbers = Numbers(buffer, offset, count)
            buckets[-1].append(numbers)
            filled += 4 * count
            if taker is not None and not isinstance(taker, HeldTensor):
                takers[numbers] = taker
        gathered = [prepared_op(GatherShards(self.processes), each) for each in buckets]
        return gathered + ([prepared_op(RoundGathered(), [*takers, *takers.values()])] if takers else [])


@runtime_checkable
class Shardable(Protocol):
    """A data source whose optimizer may keep its vectors of a share of the parameters."""

    def shard_optimizer(self, shards: Shards | None) -> None:
        """Keep this process's share from now on, None: all; vectors that are there are cut, or gathered."""
        ...
