"""One step of a training graph whose data sources declare their updates: program and updates as one dispatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openmps.core.kernel.plan import used_inputs
from openmps.graph.compile.declared_updates import GradientRow, SplicedUpdates
from openmps.graph.compile.program import Program
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.run.encoding import Images, StagesStates, bind, output_bindings
from openmps.graph.run.non_finite import encoding_of
from openmps.metal.device import CommandBuffer
from openmps.metal.memory import Memory
from openmps.ops.op import Role
from openmps.runtime.binding import Binding, MemoryBinding, Several, flat, new_number
from openmps.runtime.dispatch import Dispatch, Frame
from openmps.runtime.step_trace import StepNumber, StepTrace

Fresh = Mapping[int, Memory]
"""Memory that stands for that of the states which were traced, by its identity."""


class _Traced(NamedTuple):
    """What was traced of a step, over states of its own."""

    rows: Sequence[GradientRow]
    bound: Sequence[Binding]
    """What updates are bound to besides."""
    works: Sequence[tuple[str, Dispatch]]
    ends: Sequence[Binding]
    """Where the program's outputs go."""

    def fresh(self) -> Fresh:
        """Memory for one step."""
        memories = {id(memory): memory for end in flat(self.ends) for memory in end.memories()}
        return {place: memory.empty_like() for place, memory in memories.items()}

    def updates(self, fresh: Fresh, own: Sequence[Binding]) -> list[tuple[str, Dispatch]]:
        """Each update by itself; ``own`` is what they are bound to besides in this step."""
        given = dict(zip(map(id, self.bound), own, strict=True))
        found: list[tuple[str, Dispatch]] = []
        for label, work in self.works:
            inputs = tuple([given.get(id(each)) or _over(each, fresh) for each in work.inputs])
            found.append((label, Dispatch(work.function, inputs, work.used, ())))
        return found


class TrainingStep(Frame):
    """A program with its updates, encoded as one dispatch. It does not hold the program."""

    __slots__ = (
        "_actions",
        "_behind",
        "_bound",
        "_checks",
        "_count",
        "_numbers",
        "_program",
        "_spliced",
        "_traced",
        "_used",
    )

    def __init__(
        self,
        program: Program,
        spliced: SplicedUpdates,
        trace: StepTrace,
        ends: Sequence[Binding],
        works: Sequence[tuple[str, Dispatch]],
    ) -> None:
        first = len(program.function.inputs)
        numbers = [first + place for place, bound in enumerate(spliced.bound) if isinstance(bound, StepNumber)]
        super().__init__((*program.asked, *numbers), None)
        self._program = program.function, program.used, program.frame
        self._spliced, self._used = spliced, used_inputs(spliced.function)
        # What the program stays bound to: where that changes, its versions do, and another step is traced.
        self._bound, self._count = [*program.bound(), *spliced.bound], first
        self._actions, self._checks = trace.actions, trace.checks
        # Asked for in the order in which they were recorded: an optimizer of several layers counts.
        asked = [each for _, work in works for each in work.inputs if isinstance(each, StepNumber)]
        places = {id(bound): place for place, bound in enumerate(spliced.bound)}
        self._numbers = [(first + places[id(each)], each.ask) for each in asked]
        self._traced = _Traced(spliced.rows, spliced.bound, works, ends)
        anew = [place for place, each in enumerate(spliced.updates.inputs) if each.role is not Role.BUFFER]
        self._behind = _Updates(tuple(anew), self._traced)

    def encode(
        self,
        command_buffer: CommandBuffer,
        who: str,
        program: Program,
        sources: Sequence[Images],
        states: StagesStates,
        outputs: Mapping[MPSNNImageNode, Images],
        *,
        checked: bool,
    ) -> None:
        """Record a step; ``checked`` has results looked at before anything is updated."""
        spliced, inputs = self._spliced, self._bound.copy()
        bind(inputs, program.asked, program, sources, states)
        ends = output_bindings(program, spliced.handed_out, outputs, states)
        for check in self._checks:
            check(command_buffer)
        for place, ask in self._numbers:
            inputs[place] = new_number((ask(),))
        for action, arguments in self._actions:
            action(*arguments)
        if not checked:
            command_buffer.record(who, Dispatch(spliced.function, tuple(inputs), self._used, tuple(ends), self))
            return
        bound, own, fresh = tuple(inputs[: self._count]), inputs[self._count :], self._traced.fresh()
        command_buffer.record(who, encoding_of(program, bound, self._ends_in(fresh, ends), checked=True))
        rows, rest = [_over(row.bound, fresh) for row in spliced.rows], iter(own)
        pairs = spliced.updates.inputs
        read = tuple([rows[int(name)] if role is Role.SAVED else next(rest) for role, name in pairs])
        used = used_inputs(spliced.updates)
        command_buffer.record(f"{who} updates", Dispatch(spliced.updates, read, used, (), self._behind))

    def apart(self, label: str, dispatch: Dispatch) -> list[tuple[str, Dispatch]]:
        """The program and each update by itself, over states of their own."""
        (function, used, frame), fresh = self._program, self._traced.fresh()
        count = len(function.inputs)
        first = Dispatch(function, dispatch.inputs[:count], used, self._ends_in(fresh, dispatch.output_bindings), frame)
        return [(label, first), *self._traced.updates(fresh, dispatch.inputs[count:])]

    def _ends_in(self, fresh: Fresh, ends: Sequence[Binding]) -> tuple[Binding, ...]:
        """Where the program's outputs go: to ``ends`` those of a step, others to fresh memory."""
        taken: dict[str, Binding] = dict(zip(self._spliced.function.outputs, ends, strict=True))
        pairs = zip(self._program[0].outputs, self._traced.ends, strict=True)
        return tuple([taken.get(name) or _over(end, fresh) for name, end in pairs])


class _Updates(Frame):
    """Updates behind a program that looks at its results."""

    __slots__ = ("_traced",)

    def __init__(self, anew: tuple[int, ...], traced: _Traced) -> None:
        super().__init__(anew)
        self._traced = traced

    def apart(self, label: str, dispatch: Dispatch) -> list[tuple[str, Dispatch]]:
        """Each by itself."""
        fresh: dict[int, Memory] = {}
        own: list[Binding] = []
        for (role, name), bound in zip(dispatch.function.inputs, dispatch.inputs, strict=True):
            if role is Role.SAVED:
                fresh[id(self._traced.rows[int(name)].bound.memories()[0])] = bound.memories()[0]
            else:
                own.append(bound)
        return self._traced.updates(fresh, own)


def _over(bound: Binding, fresh: Fresh) -> Binding:
    """The same over fresh memory, where it sees memory that some stands for."""
    if isinstance(bound, Several):
        return Several([_over(each, fresh) for each in bound.each])
    if isinstance(bound, MemoryBinding) and any(id(memory) in fresh for memory in bound.memories()):
        return bound.rebind([fresh[id(memory)] for memory in bound.memories()])
    return bound
