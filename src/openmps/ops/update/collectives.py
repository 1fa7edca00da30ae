"""Sums over processes that compute on shares of one batch (`torch.distributed`: NCCL on CUDA, gloo on the CPU).

Every process runs the same operations in the same order on as many images. A sum is started when its numbers are there
and awaited where it is needed: what stands between the two runs meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from openmps.ops.normalization.batch_normalization import Moments
from openmps.ops.op import Kind, Op
from openmps.ops.update.shards import Shard, copy_all

Explain = Callable[[BaseException], BaseException]
"""Gives the error that is raised for one of the engine's: which process has ended, and why."""
_serials = itertools.count(1)
_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)
_gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
"""Its name in PyTorch 2.13, and before."""


@contextmanager
def alone() -> Generator[None]:
    """Within, nothing is sent or awaited, and what should be sums means nothing.

    For runs that other processes do not take part in.
    """
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


class _InFlight(NamedTuple):
    """A sum that was started."""

    room: Tensor
    """What was handed to the engine: the sum, or all processes' numbers."""
    shapes: tuple[torch.Size, ...]
    work: Any


class Processes:
    """The processes that share each batch, as operations know them: process ``rank`` of ``count``.

    ``group`` is the engine's. With ``in_order`` sums are made in the order of the processes, whatever their number of
    bytes: the same bits as the sum of as many pieces in one process; every process then gets the numbers of all.
    """

    def __init__(self, group: Any, rank: int, count: int, *, in_order: bool, explain: Explain) -> None:
        self.group = group
        self.rank = rank
        self.count = count
        self.in_order = in_order
        self._explain = explain
        self._serial = next(_serials)
        self._in_flight: dict[int, _InFlight] = {}

    def start_sum(self, tensors: Iterable[Tensor]) -> Tensor:
        """Begin to add tensors up over the processes; what `finish_sum` takes."""
        given = list(tensors)
        shapes = tuple(each.shape for each in given)
        flat = torch.cat([each.reshape(-1) for each in given])
        with self._explained():
            if _is_alone.get():
                room, work = flat.expand(self.count, -1).contiguous() if self.in_order else flat, None
            elif self.in_order:
                room = flat.new_empty((self.count, flat.numel()))
                work = _gather(room.view(-1), flat, group=self.group, async_op=True)
            else:
                room, work = flat, dist.all_reduce(flat, group=self.group, async_op=True)
        self._in_flight[id(room)] = _InFlight(room, shapes, work)
        return room

    def finish_sum(self, room: Tensor) -> list[Tensor]:
        """The sums, views of one tensor: on CUDA the stream waits, on the CPU the caller."""
        started = self._in_flight.pop(id(room))
        if started.work is not None:
            with self._explained():
                started.work.wait()
        total = room
        if self.in_order:
            total = room[0].clone()
            for other in room[1:]:
                total += other
        parts = total.split([shape.numel() for shape in started.shapes])
        return [part.view(shape) for part, shape in zip(parts, started.shapes, strict=True)]

    def gathered(self, numbers: Tensor) -> Tensor:
        """The numbers of all processes, ``[count, …]``."""
        if _is_alone.get():
            return numbers.expand(self.count, *numbers.shape).contiguous()
        room = numbers.new_empty((self.count, numbers.numel()))
        with self._explained():
            _gather(room.view(-1), numbers.reshape(-1).contiguous(), group=self.group)
        return room.view(self.count, *numbers.shape)

    def gather_shards(self, vectors: Sequence[Tensor]) -> None:
        """Fill in what the other processes have updated of each vector: one exchange, of each process's `Shard`."""
        if _is_alone.get():
            return
        own = Shard(self.rank, self.count)
        rooms = [own.room(vector.numel()) for vector in vectors]
        mine = vectors[0].new_zeros(sum(rooms))
        copy_all(
            (part[: len(shard)], shard) for part, shard in zip(mine.split(rooms), map(own.of, vectors), strict=True)
        )
        found = self.gathered(mine)
        others = [(shard, numbers) for shard, numbers in zip(own.of_all(), found, strict=True) if shard != own]
        copy_all(
            (kept, part[: len(kept)])
            for shard, numbers in others
            for part, kept in zip(numbers.split(rooms), map(shard.of, vectors), strict=True)
        )

    def whole(self, shard: Tensor, length: int) -> Tensor:
        """A vector of ``length`` numbers of which each process has a shard, in as much room everywhere."""
        parts = self.gathered(shard)
        bounds = [each.bounds(length) for each in Shard(self.rank, self.count).of_all()]
        return torch.cat([part[: end - begin] for part, (begin, end) in zip(parts, bounds, strict=True)])

    def all_agree(self, flag: Tensor) -> Tensor:
        """Whether a flag is true in every process."""
        if _is_alone.get():
            return flag.bool().reshape(())
        found = flag.to(torch.int32).reshape(1)
        with self._explained():
            dist.all_reduce(found, dist.ReduceOp.MIN, group=self.group)
        return found.bool().reshape(())

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except RuntimeError as error:
            self._in_flight.clear()
            raise self._explain(error) from error

    def __repr__(self) -> str:
        # Plans are told apart by what their properties say.
        return f"<process {self.rank} of {self.count}, {self._serial}>"


def shared_moments(own: Moments, processes: Processes) -> Moments:
    """The moments of the pixels of all processes, from those of each: as many pixels everywhere, one exchange.

    With means ``m`` and variances ``v`` of N processes: ``m = sum m[i] / N``,
    ``v = sum (v[i] + (m[i] - m)^2) / N``; every term is positive, and each process computes the same bits.
    """
    mean, correction, variance = processes.gathered(torch.stack(tuple(own))).unbind(1)
    first = mean[0]
    apart = (mean - first).add_(correction)
    step = apart.mean(0)
    total = first + step
    # What the sum rounded off, exactly (Knuth's two-sum).
    kept = total - first
    rest = (first - (total - kept)).add_(step - kept)
    return Moments(total, rest, apart.sub_(step).square_().add_(variance).mean(0))


class _Collective(Op, kind=Kind.COLLECTIVE):
    """The base of what is done by all processes together."""

    processes: Processes


class StartSum(_Collective):
    """Begins to add its operands up over the processes."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `Processes.start_sum`."""
        return self.processes.start_sum(operands)


class FinishSum(_Collective, gives_view=True):
    """The sums that a `StartSum` began, ``parts`` of them; those with a ``scale`` are multiplied by it."""

    parts: int
    scales: tuple[float, ...]

    @property
    def results(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As many as there were operands."""
        return self.parts

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See `Processes.finish_sum`."""
        sums = self.processes.finish_sum(operands[0])
        for each, scale in zip(sums, self.scales, strict=True):
            if scale != 1.0:
                each.mul_(scale)
        return sums[0] if self.parts == 1 else tuple(sums)


class GatherShards(_Collective, results=0, has_effect=True):
    """Its operands, vectors of parameters, as all processes have updated them, each its `Shard` of them."""

    def overwritten(self, operands: int) -> Iterable[int]:
        """All."""
        return range(operands)

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        """See `Processes.gather_shards`."""
        self.processes.gather_shards(operands)


class SharedMoments(_Collective, results=3):
    """`shared_moments` of mean, correction and variance."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Moments:
        """See `shared_moments`."""
        return shared_moments(Moments(*operands), self.processes)


class SharedSums(_Collective, results=2):
    """Two rows of numbers added up over the processes."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, ...]:
        """See `Processes.start_sum`."""
        return tuple(self.processes.finish_sum(self.processes.start_sum(operands)))


class TotalFigures(_Collective):
    """A row of figures and some numbers more, added up over the processes."""

    takes_device_numbers = True

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See `Processes.start_sum`."""
        figures, *numbers = operands
        more = [torch.as_tensor(each, dtype=figures.dtype, device=figures.device).reshape(1) for each in numbers]
        return self.processes.finish_sum(self.processes.start_sum([torch.cat((figures, *more))]))[0]
