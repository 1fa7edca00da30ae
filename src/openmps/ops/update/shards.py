"""Vectors of parameters in shards: which of several processes updates which numbers, and has the moments of those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from openmps.ops.op import Kind, Op

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


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first, rounded to its type, all in a few launches."""
    wanted = [(to, given) for to, given in pairs if to.numel()]
    if wanted:
        _copy_each([to for to, _ in wanted], [given for _, given in wanted])


_copy_each: Any = torch.ops.aten._foreach_copy_


class RoundGathered(Op, kind=Kind.UPDATE, results=0, has_effect=True):
    """Vectors as they were gathered, rounded to float16.

    Operands: the vectors, then of each None, or tensors of float16 or float32 that take it.
    """

    def overwritten(self, operands: int) -> Iterable[int]:
        """What takes them."""
        return range(operands // 2, operands)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See the class."""
        half = len(operands) // 2
        pairs = zip(operands[:half], operands[half:], strict=True)
        taken = [(each.view(-1), vector) for vector, takers in pairs for each in takers or ()]
        copy_all((to, vector) for to, vector in taken if to.dtype == torch.float16)
        for to, vector in taken:
            if to.dtype != torch.float16:
                to.copy_(vector.to(torch.float16))
