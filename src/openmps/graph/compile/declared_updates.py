"""Updates as a part of a graph's function: what data sources have recorded on a trace, spliced behind the program.

A gradient that an update reads is a value of the function; parameters and what optimizers accumulate are inputs whose
memory is written; rates are numbers that each step gives. The updates can also run behind the program as a function of
their own, which reads the program's outputs: where results are looked at before anything is updated.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from openmps.core.kernel.lowering_context import RESULT
from openmps.graph.compile.program import Program
from openmps.kernels.group_normalization.state import Added
from openmps.metal.device import MTLBuffer
from openmps.metal.execution import Work
from openmps.metal.memory import Memory
from openmps.ops.op import Builder, Function, Role, Value, roots_of
from openmps.ops.rewrite.rule import Place
from openmps.ops.update.joined_updates import join_updates, kind_of
from openmps.ops.update.rows import AddRow, PartOfRow, Row
from openmps.runtime.binding import Binding, MemoryBinding, Number, Numbers, Sum, flat
from openmps.runtime.derived import Dependents
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.signature import traits_of
from openmps.runtime.step_trace import StepNumber, UndeclaredError

_EVERYTHING = object()
"""Stands for memory that is not known: what touches it changes places with nothing."""


class GradientRow(NamedTuple):
    """What an update reads of the program: outputs of it, added up in one row."""

    outputs: tuple[str, ...]
    is_sum: bool
    """Whether the first output, too, is added, to zeros."""
    bound: MemoryBinding
    """The whole row, in the memory of the states that were traced."""


class SplicedUpdates(NamedTuple):
    """A program with its updates."""

    function: Function
    """All of a step: the program's inputs, then those of the updates."""
    updates: Function
    """The updates alone; they read rows of gradients as what was saved, by their numbers."""
    rows: tuple[GradientRow, ...]
    bound: tuple[Binding, ...]
    """What the inputs of the updates are bound to, but for the rows; a `StepNumber` for what each step gives."""
    handed_out: tuple[tuple[int, tuple[str, ...]], ...]
    """The outputs of the whole, as `Program.handed_out` has them."""


def splice_updates(
    program: Program,
    given: Sequence[Binding | None],
    ends: Sequence[Binding],
    works: Sequence[Dispatch],
    taken: Sequence[int],
    place: Place,
) -> SplicedUpdates:
    """A program with updates that were traced, to be run at a place.

    ``given`` are the bindings of the program's inputs, as far as they are persistent; ``ends`` those of its outputs,
    while the updates were traced. ``taken`` are the stages whose other outputs go to states of the user.

    Raises:
        UndeclaredError: Something of it cannot be a part of a function.
    """
    updates, rows, bound = _Updates(program, given, ends, works).finish()
    updates = program.known(updates)
    outputs = [each for each in program.outputs if each.name == RESULT or each.stage in taken]
    names = [f"{each.stage}:{each.name}" for each in outputs]
    read = {name for row in rows for name in row.outputs}
    builder = Builder()
    sources = [builder.input(role, name) for role, name in program.function.inputs]
    made = builder.splice(program.function.only({*names, *read}), sources)
    for name in names:
        builder.output(name, made[name])
    gradients = [_row(row, made) for row in rows]
    operands = [
        gradients[int(each.name)] if each.role is Role.SAVED else builder.input(*each) for each in updates.inputs
    ]
    builder.splice(updates, operands)
    whole = builder.finish()
    memories = [*map(_memory_of, (*given, *bound))]
    if place is Place.TRITON and not any(_EVERYTHING in each for each in memories):
        from openmps.ops.update.early_updates import begin_early

        whole = begin_early(whole, memories)
    function = program.known(whole)
    function.origin, function.fused = program.function.origin, program.function.fused
    groups = groupby(outputs, lambda each: (each.stage, each.name == RESULT))
    handed_out = tuple((stage, tuple(each.name for each in group)) for (stage, _), group in groups)
    return SplicedUpdates(function, updates, rows, bound, handed_out)


def _row(row: GradientRow, made: Mapping[str, Value]) -> Value:
    """The value of a row."""
    first, *others = (made[name] for name in row.outputs)
    value = AddRow()(None, first) if row.is_sum else Row()(first)
    for other in others:
        value = AddRow()(value, other)
    return value


class _Traced(NamedTuple):
    """A traced work, and the memory that it reads and writes."""

    dispatch: Dispatch
    read: frozenset[Hashable]
    written: frozenset[Hashable]


class _Updates:
    """Makes one function of traced works."""

    def __init__(
        self, program: Program, given: Sequence[Binding | None], ends: Sequence[Binding], works: Sequence[Dispatch]
    ) -> None:
        self._builder = Builder()
        self._inputs: dict[Hashable, tuple[Value, Binding]] = {}
        self._rows: dict[int, Value] = {}
        """Rows of gradients, by the identity of the memory that they would be in."""
        self._gradients: list[GradientRow] = []
        self._places: dict[int, int] = {}
        self._behind: dict[int, frozenset[Hashable]] = {}
        """Of each such memory that of the program's inputs which may be the very numbers."""
        read = {id(memory) for each in works for bound in each.inputs for memory in bound.memories()}
        self._take_outputs(program, given, ends, read)
        self._works = [self._traced(each) for each in works]

    def _take_outputs(
        self, program: Program, given: Sequence[Binding | None], ends: Sequence[Binding], read: set[int]
    ) -> None:
        """Have outputs that updates read in rows."""
        function = program.function
        roots, places = roots_of(function), {value: index for index, value in enumerate(function.input_values)}
        for name, value, end in zip(function.outputs, function.output_values, ends, strict=True):
            for output_binding in flat((end,)):
                memories = output_binding.memories()
                if not any(id(memory) in read for memory in memories):
                    continue
                if len(memories) != 1:
                    raise UndeclaredError(f"output {name} goes to several pieces of memory")
                self._add(name, output_binding, memories[0])
                behind = [_memory_of(given[places[root]]) for root in roots.get(value, ()) if root in places]
                place = id(memories[0])
                self._behind[place] = self._behind.get(place, frozenset[Hashable]()).union(*behind)

    def _add(self, output: str, output_binding: Binding, memory: Memory) -> None:
        """Have an output in the row of its memory, too."""
        known = self._rows.get(id(memory))
        if known is not None:
            place = int(self._places[id(memory)])
            row = self._gradients[place]
            self._gradients[place] = row._replace(outputs=(*row.outputs, output))
            return
        bound = (
            output_binding if output_binding.is_memory else Numbers(memory) if isinstance(memory, MTLBuffer) else None
        )
        if not isinstance(bound, MemoryBinding):
            raise UndeclaredError(f"output {output} goes to a {type(memory).__name__}")
        self._places[id(memory)] = len(self._gradients)
        self._rows[id(memory)] = self._builder.input(Role.SAVED, str(len(self._gradients)))
        self._gradients.append(GradientRow((output,), isinstance(output_binding, Sum | Added), bound))

    def _traced(self, dispatch: Dispatch) -> _Traced:
        read, written = set[Hashable](), set[Hashable]()
        for bound, is_written in zip(dispatch.inputs, traits_of(dispatch.function).written, strict=True):
            memory = self._touched(bound)
            read |= memory
            if is_written:
                written |= memory
        return _Traced(dispatch, frozenset(read), frozenset(written))

    def _touched(self, bound: Binding) -> frozenset[Hashable]:
        rows = [id(memory) for memory in bound.memories() if id(memory) in self._rows]
        return frozenset[Hashable]().union(*map(self._behind.__getitem__, rows)) if rows else _memory_of(bound)

    def finish(self) -> tuple[Function, tuple[GradientRow, ...], tuple[Binding, ...]]:
        """The function, updates of a kind together, the rows that it reads, and what its other inputs are bound to."""
        ranks = _ranks(self._works)
        kinds = [kind_of(each.dispatch.function.equations[0]) for each in self._works]
        first = {kind: place for place, kind in reversed([*enumerate(kinds)])}
        order = sorted(range(len(ranks)), key=lambda place: (ranks[place], first[kinds[place]]))
        operands = [[self._operand(bound) for bound in self._works[place].dispatch.inputs] for place in order]
        counts: list[int] = []
        for place, values in zip(order, operands, strict=True):
            function = self._works[place].dispatch.function
            self._builder.splice(function, values)
            counts.append(len(function.equations))
        each_rank = [ranks[place] for place, count in zip(order, counts, strict=True) for _ in range(count)]
        function = self._builder.finish()
        front = len(function.equations) - len(each_rank)
        joined = join_updates(function, [-1] * front + each_rank)
        return joined, tuple(self._gradients), tuple(bound for _, bound in self._inputs.values())

    def _operand(self, bound: Binding) -> Value:
        memories = bound.memories()
        if any(id(memory) in self._rows for memory in memories):
            return self._part(bound)
        if isinstance(bound, Number | StepNumber):
            return self._input(Role.NUMBER, (id(bound),), bound)
        key = (type(bound), bound.view_key(), *map(id, memories)) if memories else (id(bound),)
        return self._input(Role.BUFFER, key, bound)

    def _input(self, role: Role, key: Hashable, bound: Binding) -> Value:
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = self._builder.input(role, f"update:{len(self._inputs)}"), bound
        return found[0]

    def _part(self, bound: Binding) -> Value:
        part = bound.row_part if isinstance(bound, MemoryBinding) else None
        if part is None:
            raise UndeclaredError(f"{type(bound).__name__} of a state")
        row = self._rows[id(bound.memories()[0])]
        return row if part.is_whole else PartOfRow(part.first, part.shape)(row)


def as_update(label: str, work: Work) -> Dispatch:
    """A traced work as one that can be a part of a function; raises `UndeclaredError` where it cannot."""
    if isinstance(work, Dispatch) and type(work) is Dispatch and not work.output_bindings and all(work.used):
        return work
    raise UndeclaredError(label)


def _memory_of(bound: Binding | None) -> frozenset[Hashable]:
    """The memory that a binding sees, as what works touch is compared by.

    The memory itself besides its storage: a step that runs meanwhile may make the storage of what was asked before.
    """
    if bound is None or isinstance(bound, Number | StepNumber):
        return frozenset()
    if isinstance(bound, Dependents):
        return frozenset({_EVERYTHING})
    identity = bound.identity()
    storages = frozenset[int]() if identity is None else identity.storages()
    return storages.union(map(id, bound.memories()))


def _ranks(works: Sequence[_Traced]) -> list[int]:
    """Of each work a number above those of all before it that it must not change places with."""
    read: dict[Hashable, int] = {}
    written: dict[Hashable, int] = {}
    ranks: list[int] = []
    for each in works:
        if _EVERYTHING in each.read | each.written:
            rank = 1 + max(ranks, default=-1)
            read[_EVERYTHING] = written[_EVERYTHING] = rank
        else:
            before = [written.get(place, -1) for place in (*each.read, *each.written, _EVERYTHING)]
            before += [read.get(place, -1) for place in each.written]
            rank = 1 + max(before, default=-1)
        read |= {place: max(rank, read.get(place, -1)) for place in each.read}
        written |= dict.fromkeys(each.written, rank)
        ranks.append(rank)
    return ranks
