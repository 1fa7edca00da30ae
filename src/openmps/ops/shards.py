"""Vectors of parameters in shards: which of several processes updates which numbers, and has the moments of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

_UNIT = 16
"""Numbers that stay together: those of the widest vectors of a CPU, so that a shard's bits are those of the whole."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What process ``rank`` of ``count`` has of each vector: a run of numbers, as long in all processes but the last.

    Of a vector of ``n`` numbers each process has the next ``16 ceil(n / (16 count))``, as long as there are some left:
    short vectors are whole in the first processes, and the others have none of them.
    """

    rank: int
    count: int

    def room(self, length: int) -> int:
        """How many numbers of a vector one process has at most: the same in all."""
        return min(length, _UNIT * -(-length // (_UNIT * self.count)))

    def bounds(self, length: int) -> tuple[int, int]:
        """Where the run of a vector begins and ends, which may be the same."""
        room = self.room(length)
        return min(self.rank * room, length), min((self.rank + 1) * room, length)

    def of(self, vector: Tensor) -> Tensor:
        """The run of a vector, sharing its memory."""
        begin, end = self.bounds(vector.numel())
        return vector[begin:end]

    def narrowed(self, runs: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """What an update takes: of gradients, values and results the shards, and its own vectors, which are shards.

        Vectors of which this process has nothing are left out.
        """
        gradients, values, *own, results = runs
        places = [place for place, each in enumerate(values) if self.of(each).numel()]
        whole = [[self.of(run[place]) for place in places] for run in (gradients, values, results)]
        kept = [[run[place][: whole[0][at].numel()] for at, place in enumerate(places)] for run in own]
        return [*whole[:2], *kept, whole[2]]

    def of_all(self) -> list[Shard]:
        """The shards of all processes, in their order."""
        return [replace(self, rank=rank) for rank in range(self.count)]
