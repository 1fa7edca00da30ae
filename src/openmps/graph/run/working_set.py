"""What one encode of a program lends to the next: states for updates, and bindings to their memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from openmps.core.kernel.lease import Lease
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.state.batch import MPSStateBatch
from openmps.graph.compile.program import Program
from openmps.graph.nodes.node import MPSNNImageNode, MPSNNStateNode
from openmps.graph.run.encoding import Images, StagesStates, bind, sinks
from openmps.graph.run.update import UpdatePass, Updates
from openmps.metal.device import CommandBuffer
from openmps.ops.op import Role
from openmps.runtime.dispatch import Dispatch

_MOST_IN_VAIN, _RARELY = 8, 64
"""After so many that did not come back in a row only one of so many encodes makes another."""


class WorkingSet(Lease):
    """States, and what a program's function is bound to, but for images, numbers, and what the user's states hold."""

    __slots__ = ("_asked", "_bound", "_images", "_own", "_own_places", "_sinks", "update", "working")

    def __init__(self, program: Program, working: StagesStates, update: UpdatePass) -> None:
        lent = [index for index in program.asked if _is_lent(program, index, working)]
        self._sinks: list[Any] = []
        self._own: list[tuple[int, tuple[str, ...]]] = []
        """What the sinks are of that are each encode's own."""
        for place, names in program.handed_out:
            if names in ((RESULT,), (SAVED,)) or (place in working.given and place not in working.held):
                self._own.append((place, names))
                self._sinks += [None] * len(names)
            else:
                self._sinks += working.sinks(place, names)
        anew = tuple(index for index in program.asked if index not in lent)
        self._images = [(index, program.parts[index][2]) for index in anew if program.parts[index][3] is None]
        """The inputs of these that are images, and which of the sources each is."""
        self._asked = tuple(index for index in anew if program.parts[index][3] is not None)
        self._own_places = tuple(index for index, sink in enumerate(self._sinks) if sink is None)
        super().__init__(anew, self._own_places, program.spare)
        self._bound = program.bound()
        bind(self._bound, lent, program, (), working)
        self.working = working
        self.update = update
        self.states = update.states_lent()
        self.lend()

    @staticmethod
    def spare_of(program: Program) -> WorkingSet | None:
        """One that has come back."""
        with suppress(IndexError):  # Other threads take from them, too.
            while True:
                found: WorkingSet = program.spare.pop()
                program.lent_in_vain = 0
                if found.is_current():
                    return found
        return None

    @staticmethod
    def may_come_back(program: Program, command_buffer: CommandBuffer) -> bool:
        """Whether one that is made now may come back: if command buffers are replayed, and nobody keeps the states."""
        player = command_buffer.recording.executor.player
        if player is None or not player.max_capture_count:
            return False
        program.lent_in_vain += 1
        return program.lent_in_vain <= _MOST_IN_VAIN or not program.lent_in_vain % _RARELY

    def bound(self) -> Iterable[Any]:
        """See `Lease`."""
        return (each for each in self._sinks if each is not None)

    def dispatch(
        self, program: Program, sources: Sequence[Images], images: Mapping[MPSNNImageNode, Images]
    ) -> Dispatch:
        """The work of this encode."""
        bound, ends = self._bound.copy(), self._sinks.copy()
        for index, place in self._images:
            bound[index] = sources[place].whole()
        bind(bound, self._asked, program, sources, self.working)
        for index, sink in zip(self._own_places, sinks(program, self._own, images, self.working), strict=True):
            ends[index] = sink
        return Dispatch(program.function, tuple(bound), program.used, tuple(ends), self)

    def begin(self, program: Program, given: Mapping[MPSNNStateNode, MPSStateBatch]) -> None:
        """Work for another encode, with these states of the user's."""
        self.is_open = True
        self.working.give(program, given)

    def end(self) -> None:
        """The encode is over: hold nothing of the user's."""
        self.working.given = {}
        self.is_open = False


def working_set(
    program: Program, command_buffer: CommandBuffer, updates: Updates, given: Mapping[MPSNNStateNode, MPSStateBatch]
) -> WorkingSet | None:
    """What an earlier encode has lent, or what later ones may have; None where none may."""
    found = WorkingSet.spare_of(program)
    if found is not None:
        updates.begin_again()
    elif updates.may_lend and WorkingSet.may_come_back(program, command_buffer):
        working = StagesStates(program)
        working.give(program, given)
        found = WorkingSet(program, working, updates.begin(program, working))
    if found is not None:
        found.begin(program, given)
    return found


def _is_lent(program: Program, index: int, working: StagesStates) -> bool:
    """Whether an input that kernels are asked for in each encode is bound to the same until the epoch ends."""
    role, _, place, stage = program.parts[index]
    return role is Role.BUFFER and stage is not None and place not in working.given and stage.kernel.stays_in_an_epoch
