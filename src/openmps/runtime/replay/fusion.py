"""Works of a static function joined into one function, where one reads what another makes, and fused by the table.

Kernels that are encoded one by one are fused so when their command buffer comes again. An image between two of them is
a value of the joined function. Where it is given back within the run, as a temporary image is at its last read, nobody
can see it any more, and rules may do without it; any other comes out, and is there as ever.

Works are joined as long as each only computes: one that writes memory in place, that looks at its results, or that
other processes take part in stays by itself, and so does a graph, whose function was fused, or left as it is, when it
was compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.ops.op import Builder, Kind, Role, Value
from openmps.ops.rewrite.fuse import fuse
from openmps.ops.rewrite.recipe import computed
from openmps.ops.rewrite.rule import Situation, place_of
from openmps.runtime.binding import flat
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.partition import INNER, Part, Partition
from openmps.runtime.replay.static_bindings import Fixed, Outlet, Reader, StaticCall, Touched


class Joinable(NamedTuple):
    """One work of a static function, or several as one, and what tells whether it can be joined with others."""

    call: StaticCall
    ends: list[int]
    """Inner memory that no later work uses."""
    touched: Touched
    place: int = 0
    """Among the dispatches."""
    made: Mapping[int, int] = {}
    """Inner memory that it alone fills, as a whole, with the output that does."""
    read: Mapping[int, int] = {}
    """By the input that reads it, inner memory that it reads as a whole."""
    needed: frozenset[int] = frozenset()
    """All inner memory that it reads."""


def joinable(
    works: Sequence[Dispatch],
    partition: Partition,
    calls: Sequence[StaticCall],
    touched: Sequence[Touched],
    ends: Sequence[list[int]],
    writers: Mapping[int, int],
) -> list[Joinable]:
    """The works of a partition; ``writers`` says how many outputs go to each inner memory."""
    once = {number for number, count in writers.items() if count == 1}.difference(partition.beginnings)
    found: list[Joinable] = []
    each = zip(works, partition.parts, calls, ends, touched, strict=False)
    for place, (work, part, call, last, memory) in enumerate(each):
        inner = {index: source.memories for index, source in enumerate(part.sources) if source.how is INNER}
        needed = frozenset([number for numbers in inner.values() for number in numbers])
        found.append(Joinable(call, last, memory, place, _made(work, part, once), _read(work, inner), needed))
    return found


def _made(work: Dispatch, part: Part, once: set[int]) -> dict[int, int]:
    made: dict[int, int] = {}
    targets = iter(part.targets)
    for output, output_binding in enumerate(work.output_bindings):
        for one, target in zip(flat((output_binding,)), targets, strict=False):
            if target.how is INNER and one.is_whole and target.memories[0] in once:
                made[target.memories[0]] = output
    return made


def _read(work: Dispatch, inner: Mapping[int, Sequence[int]]) -> dict[int, int]:
    parted = {number for index, numbers in inner.items() if not work.inputs[index].is_whole for number in numbers}
    return {index: numbers[0] for index, numbers in inner.items() if parted.isdisjoint(numbers)}


def fused(works: Sequence[Joinable], device: torch.device) -> tuple[list[Joinable], frozenset[int]]:
    """The works, runs of them as one where a rule changes it; and which of them are parts of others."""
    found: list[Joinable] = []
    gone: set[int] = set()
    for run in _runs(works):
        places = {each.place for each in run}
        needed = {number for each in works if each.place not in places for number in each.needed}
        one = _Joining(run, needed).fused(device, gone) if len(run) > 1 else None
        found += run if one is None else [one]
    return found, frozenset(gone)


def _runs(works: Iterable[Joinable]) -> list[list[Joinable]]:
    """Works one behind the other that can be one function."""
    runs: list[list[Joinable]] = []
    for work in works:
        if runs and _computes_only(work.call) and _computes_only(runs[-1][0].call) and _is_apart(runs[-1], work):
            runs[-1].append(work)
        else:
            runs.append([work])
    return runs


def _computes_only(call: StaticCall) -> bool:
    """Whether a work is a kernel's, and has no effect but its results."""
    function = call.function
    is_pure = not any(each.op.has_effect or each.op.kind is Kind.COLLECTIVE for each in function.equations)
    return is_pure and call.guard is None and function.origin is None


def _is_apart(run: Sequence[Joinable], work: Joinable) -> bool:
    """Whether a work reads what others write as values alone, and the memory that stays is apart."""
    values = {(number,) for each in run for number in each.made if number in work.read.values()}
    read, written = work.touched.read - values, work.touched.written
    return all(
        each.touched.written.isdisjoint(read | written) and each.touched.read.isdisjoint(written) for each in run
    )


class _Joining:
    """Works as one function; ``needed`` is inner memory that works besides read."""

    def __init__(self, run: Sequence[Joinable], needed: set[int]) -> None:
        self._run = run
        self._readers: list[Reader] = []
        self._outlets: list[Outlet] = []
        self._results: list[tuple[int, set[int]]] = []
        """Of each work its place, and the values that it gives."""
        builder, values = Builder(), dict[int, Value]()
        for work in run:
            function = work.call.function
            operands: list[Value] = []
            for index, (each, reader) in enumerate(zip(function.inputs, work.call.readers, strict=True)):
                value = values.get(work.read.get(index, -1))
                if value is None:
                    value = builder.input(each.role, f"{work.place}:{each.name}")
                    self._readers.append(reader)
                operands.append(value)
            given = [*builder.splice(function, operands).values()]
            values |= {number: given[output] for number, output in work.made.items()}
            self._results.append((work.place, {each.index for each in given}))
            hidden = work.made.keys() - needed
            for output, outlet in work.call.takers:
                assert isinstance(outlet, Outlet)
                if outlet.numbers is not None and not hidden.isdisjoint(outlet.numbers):
                    outlet = outlet._replace(output_binding=None, numbers=None)
                if outlet.output_binding is not None or outlet.comes_out:
                    builder.output(f"{len(self._outlets)}", given[output])
                    self._outlets.append(outlet)
        self._function = builder.finish()

    def fused(self, device: torch.device, gone: set[int]) -> Joinable | None:
        """The works as one, if any rule has changed their function; ``gone`` takes those that are parts of others."""
        before = self._function
        found = fuse(before, Situation(place_of(device), self._images(), prepares=False))
        if found.function is before:
            return None
        gone.update(place for place, results in self._results if not results.isdisjoint(found.gone))
        function, readers = computed(found, before), dict(zip(before.inputs, self._readers, strict=True))
        takers = [
            (place, outlet._replace(is_shared=outlet.is_shared or shares))
            for place, (outlet, shares) in enumerate(zip(self._outlets, function.may_share, strict=True))
        ]
        touched = [work.touched for work in self._run]
        return Joinable(
            StaticCall(function, [readers[each] for each in function.inputs], takers, None),
            [number for work in self._run for number in work.ends],
            Touched(*(frozenset().union(*each) for each in zip(*touched, strict=True))),
        )

    def _images(self) -> int:
        """How many a batch has, as far as the images tell that the works are given."""
        roles = (each.role for each in self._function.inputs)
        given = [each for role, each in zip(roles, self._readers, strict=True) if role is Role.SOURCE]
        return max(
            (len(each.tensor) for each in given if isinstance(each, Fixed) and isinstance(each.tensor, Tensor)),
            default=1,
        )
