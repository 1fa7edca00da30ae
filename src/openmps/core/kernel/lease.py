"""Bindings that one encode lends to the next: states that a graph makes for updates, and that nobody else holds.

A replay hands nothing out to a state that is let go. So the next encode may take the same state, with all that is bound
to its memory, as if it were a new one; what is not made anew need not be checked, looked at and told apart anew either.
A lease knows whether that is so: whether all that it lends is held by itself and by the works of one run alone, and is
as it was.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain
from operator import add, attrgetter
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount, ref

from openmps.checks import store
from openmps.core.state.state import MPSState
from openmps.metal.resource import epoch
from openmps.runtime.dispatch import Dispatch, ReusableFrame

_RESOURCE = attrgetter("resource")
_PRESENT = attrgetter("present")


class Lease(ReusableFrame):
    """States without contents, and what dispatches of one function bind to their memory."""

    __slots__ = (
        "_base",
        "_buffers",
        "_epoch",
        "_facts",
        "_home",
        "_resources",
        "_slots",
        "_watched",
        "is_open",
        "states",
    )

    def __init__(self, anew: tuple[int, ...], anew_sinks: tuple[int, ...], home: deque[Any]) -> None:
        super().__init__(anew, anew_sinks)
        self._home = ref(home)
        self.is_open = True
        """Whether the encode goes on that has it: more of its command buffer may be about to be recorded."""
        self.states: tuple[MPSState, ...] = ()

    def bound(self) -> Iterable[Any]:
        """What is bound to the memory of the states."""
        return ()

    def lend(self) -> None:
        """Lend new states from now on, and what is bound to their memory. Nobody else holds any of it yet."""
        # No variable may hold a state when it is counted how often each is held.
        _ready(self.states)
        self._epoch = epoch.number
        self._slots = [slot for state in self.states for slot in state.parts()[2:]]
        self._resources = [*map(_RESOURCE, self._slots)]
        self._buffers = [each for each in self._resources if each is not None]
        self._facts = [dict(vars(state)) for state in self.states]
        # A copy of a state shares its list of memory; who keeps what an update is bound to holds the operands.
        lists = [vars(state)["_slots"] for state in self.states]
        operands = [each for state in self.states for each in state.own_operands()]
        watched = chain(self.states, lists, operands, self._slots, self._buffers, self.bound())
        self._watched = list({id(each): each for each in watched}.values())
        del lists, operands, watched
        self._base = [*map(getrefcount, self._watched)]

    def memories(self) -> list[object]:
        """The memory that it lends, as works are bound to it."""
        return [*self._slots, *self._buffers]

    def uses(self, dispatches: Iterable[Dispatch], memories: Iterable[object] = ()) -> list[int]:
        """How often each part is held when these dispatches and this list of memory hold it, and nobody else does."""
        held = Counter(id(each) for work in dispatches for each in (*work.inputs, *work.sinks))
        held.update(map(id, memories))
        return [*map(add, self._base, [held[id(each)] for each in self._watched])]

    def is_free(self, uses: list[int]) -> bool:
        """Whether each part is held so often, and no state has been given anything since it was lent."""
        return (
            not self.is_open
            and [*map(getrefcount, self._watched)] == uses
            and not any(map(getweakrefcount, self._watched))
            and [*map(_RESOURCE, self._slots)] == self._resources
            and not any(each is not None for each in map(_PRESENT, self._buffers))
            and [*map(vars, self.states)] == self._facts
        )

    def is_current(self) -> bool:
        """Whether what it is bound to has the memory that it had."""
        return self._epoch == epoch.number

    def give_back(self) -> None:
        """Let the next encode have it: a replay has taken the place of the works that held it."""
        home = self._home()
        if home is not None:
            home.append(self)


def _ready(states: Iterable[MPSState]) -> None:
    """Have states keep what is made ready for them, and all that they make when they are first asked."""
    for state in states:
        store(state, "prepared", {})
        state.own_operands()
        _ = state.name
