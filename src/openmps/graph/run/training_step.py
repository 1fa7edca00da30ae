"""One step of a training graph whose data sources declare their updates: program and updates as one dispatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openmps.core.kernel.plan import used_inputs
from openmps.core.state.state import Saved
from openmps.graph.compile.declared_updates import SplicedUpdates
from openmps.graph.compile.program import Program
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.run.encoding import Images, StagesStates, bindings, sinks
from openmps.graph.run.non_finite import encoding_of
from openmps.metal.device import CommandBuffer
from openmps.metal.memory import Memory
from openmps.ops.op import Role
from openmps.runtime.binding import NOWHERE, Binding, MemoryBinding, Number, Several, flat
from openmps.runtime.dispatch import Dispatch, Frame
from openmps.runtime.step_trace import StepNumber, StepTrace


class TrainingStep(Frame):
    """A program with its updates, encoded as one dispatch."""

    __slots__ = ("_actions", "_behind", "_checks", "_ends", "_program", "_spliced", "_used", "_works")

    def __init__(
        self, program: Program, spliced: SplicedUpdates, trace: StepTrace, ends: Sequence[Binding],
        works: Sequence[tuple[str, Dispatch]],
    ) -> None:  # fmt: skip
        first = len(program.function.inputs)
        numbers = [first + place for place, bound in enumerate(spliced.bound) if isinstance(bound, StepNumber)]
        super().__init__((*program.asked, *numbers), None)
        self._program, self._spliced = program, spliced
        self._actions, self._checks = trace.actions, trace.checks
        self._ends, self._works = ends, works
        self._used = used_inputs(spliced.function)
        anew = [place for place, each in enumerate(spliced.updates.inputs) if each.role is not Role.BUFFER]
        self._behind = Frame(tuple(anew))
        """Of dispatches of the updates alone."""

    def encode(
        self,
        command_buffer: CommandBuffer,
        who: str,
        sources: Sequence[Images],
        states: StagesStates,
        outputs: Mapping[MPSNNImageNode, Images],
        *,
        checked: bool,
    ) -> None:
        """Record a step; ``checked`` has results looked at before anything is updated."""
        program, spliced = self._program, self._spliced
        bound = bindings(program, sources, states)
        ends = sinks(program, spliced.handed_out, outputs, states)
        for check in self._checks:
            check(command_buffer)
        own = [Number(each.ask()) if type(each) is StepNumber else each for each in spliced.bound]
        for action, arguments in self._actions:
            action(*arguments)
        if checked:
            self._record_apart(command_buffer, who, bound, own, ends)
        else:
            command_buffer.record(who, Dispatch(spliced.function, (*bound, *own), self._used, tuple(ends), self))

    def _record_apart(
        self,
        command_buffer: CommandBuffer,
        who: str,
        bound: tuple[Binding, ...],
        own: Sequence[Binding],
        ends: Sequence[Binding],
    ) -> None:
        """Record the program, which looks at its results, and behind it the updates."""
        program, updates = self._program, self._spliced.updates
        taken: dict[str, Binding] = dict(zip(self._spliced.function.outputs, ends, strict=True))
        saved = {name: Saved() for role, name in updates.inputs if role is Role.SAVED}
        both = [
            [each for each in (taken.get(name), saved.get(name)) if each is not None]
            for name in program.function.outputs
        ]
        found = tuple([NOWHERE if not each else each[0] if len(each) == 1 else Several(each) for each in both])
        command_buffer.record(who, encoding_of(program, bound, found, checked=True))
        rest = iter(own)
        inputs = tuple([saved[name] if role is Role.SAVED else next(rest) for role, name in updates.inputs])
        command_buffer.record(f"{who} updates", Dispatch(updates, inputs, used_inputs(updates), (), self._behind))

    def apart(self, label: str, dispatch: Dispatch) -> list[tuple[str, Dispatch]]:
        """The program and each update by itself, over states of their own."""
        program = self._program
        count = len(program.function.inputs)
        rows: dict[int, Memory] = {id(memory): memory for end in flat(self._ends) for memory in end.memories()}
        fresh = {place: memory.empty_like() for place, memory in rows.items()}
        given = dict(zip(map(id, self._spliced.bound), dispatch.inputs[count:], strict=True))

        def own(bound: Binding) -> Binding:
            if isinstance(bound, Several):
                return Several([own(each) for each in bound.each])
            if isinstance(bound, MemoryBinding) and any(id(memory) in fresh for memory in bound.memories()):
                return bound.rebind([fresh[id(memory)] for memory in bound.memories()])
            return given.get(id(bound), bound)

        taken = dict(zip(self._spliced.function.outputs, dispatch.sinks, strict=True))
        ends = [taken.get(name) or own(end) for name, end in zip(program.function.outputs, self._ends, strict=True)]
        first = Dispatch(program.function, dispatch.inputs[:count], program.used, tuple(ends), program.frame)
        behind = [
            (name, Dispatch(each.function, tuple(map(own, each.inputs)), each.used, ())) for name, each in self._works
        ]
        return [(label, first), *behind]
