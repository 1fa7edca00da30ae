"""MPSStateBatch: the states that one encode hands on or takes together (MPSState.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from openmps.checks import KnownAttributes, store
from openmps.core.numbers import position
from openmps.core.state.state import BatchableState, MPSState
from openmps.errors import MPSTypeError
from openmps.metal.device import CommandBuffer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT = TypeVar("StateT", bound=MPSState, default=MPSState, covariant=True)
else:
    from typing import TypeVar

    StateT = TypeVar("StateT")


class MPSStateBatch(KnownAttributes, Sequence[StateT]):
    """An immutable sequence of states, one an image (MPSState.h, macOS 10.13.4).

    A state that serves the whole batch is repeated. A kernel that makes one state an image gives a batch with one
    record and one block of data for all of them; the single states are made when they are asked for. Their reads are
    counted apart.

    >>> batch = mps.MPSStateBatch([state, state])
    >>> len(batch), mps.MPSStateBatchResourceSize(batch)
    (2, 16)
    """

    _states: list[Any]
    shared: MPSState | None
    """The state that stands for the whole batch, if one does."""
    _apart: bool

    def __init__(self, states: Sequence[MPSState] = ()) -> None:
        if type(states) is not list and not isinstance(states, Sequence):
            rule, remedy = "must be a sequence of MPSState", "Pass [state]"
            raise MPSTypeError("MPSStateBatch", "states", rule, type(states).__name__, remedy)
        for index, state in enumerate(states):
            if not isinstance(state, MPSState):
                raise MPSTypeError("MPSStateBatch", f"states[{index}]", "must be an MPSState", type(state).__name__)
        distinct = {id(state) for state in states}
        store(self, "_states", list(states))
        store(self, "shared", states[0] if len(distinct) == 1 else None)
        store(self, "_apart", False)

    @classmethod
    def of_images(
        cls, shared: BatchableState, count: int, command_buffer: CommandBuffer | None = None
    ) -> MPSStateBatch:
        """``count`` states, one an image, over the record and data of ``shared``; temporary if it is, or if told so."""
        command_buffer = shared.lives_on if command_buffer is None else command_buffer
        if command_buffer is not None:
            shared.make_temporary(command_buffer, count)
        batch = cls.__new__(cls)
        store(batch, "_states", [None] * count)
        store(batch, "shared", shared)
        store(batch, "_apart", True)
        return batch

    @classmethod
    def repeated(cls, shared: MPSState, count: int) -> MPSStateBatch:
        """One state that serves ``count`` images."""
        batch = cls.__new__(cls)
        store(batch, "_states", [shared] * count)
        store(batch, "shared", shared)
        store(batch, "_apart", False)
        return batch

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[StateT]:
        return (self._state(index) if state is None else state for index, state in enumerate(self._states))

    @overload
    def __getitem__(self, index: int) -> StateT: ...
    @overload
    def __getitem__(self, index: slice) -> MPSStateBatch[StateT]: ...
    def __getitem__(self, index: int | slice) -> StateT | MPSStateBatch[StateT]:
        found = position("MPSStateBatch", index, len(self))
        if isinstance(found, int):
            return self._state(found)
        return MPSStateBatch([self._state(each) for each in found])

    def _state(self, index: int) -> Any:
        state = self._states[index]
        if state is None and isinstance(self.shared, BatchableState):
            state = self._states[index] = self.shared.member(index)
            state.place_in_batch(self.shared, index)
        if state is None:
            raise MPSTypeError("MPSStateBatch", f"state {index}", "cannot be told from the others", repr(self.shared))
        return state

    def unique(self) -> list[MPSState]:
        """The different states, in order of first appearance."""
        return list({id(state): state for state in self}.values())

    def counted(self) -> list[MPSState]:
        """The states whose read counts the batch goes by."""
        return [self.shared] if self.shared is not None else self.unique()

    def count_unique(self) -> int:
        """The number of different states."""
        return len(self) if self._apart else len(self.unique())

    def __repr__(self) -> str:
        kind = "no states" if not self._states else repr(self.shared if self.shared is not None else self[0])
        return f"<MPSStateBatch of {len(self)}: {kind}>"


def as_state_batch(who: str, argument: str, states: object) -> MPSStateBatch:
    """Any sequence of states as a batch."""
    if isinstance(states, MPSStateBatch):
        return states
    if isinstance(states, MPSState) or not isinstance(states, Sequence):
        raise MPSTypeError(who, argument, "must be a sequence of MPSState", type(states).__name__)
    for index, state in enumerate(states):
        if not isinstance(state, MPSState):
            raise MPSTypeError(who, f"{argument}[{index}]", "must be an MPSState", type(state).__name__)
    return MPSStateBatch(states)


def MPSStateBatchIncrementReadCount(batch: Sequence[MPSState] | None, amount: int) -> int:
    """Add ``amount`` to the read count of each different temporary state once (MPSState.h, macOS 10.13.4).

    States whose count is 0 already are left alone. ``None`` is accepted. Returns the number of different states.
    """
    if batch is None:
        return 0
    who = "MPSStateBatchIncrementReadCount"
    whole = as_state_batch(who, "batch", batch)
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise MPSTypeError(who, "amount", "must be an integer", repr(amount))
    for state in whole.counted():
        state.add_reads(amount)
    return whole.count_unique()


def MPSStateBatchSynchronize(batch: Sequence[MPSState], command_buffer: CommandBuffer) -> None:
    """Synchronize each different state once (MPSState.h, macOS 10.13.4)."""
    for state in as_state_batch("MPSStateBatchSynchronize", "batch", batch).counted():
        state.synchronize(command_buffer)


def MPSStateBatchResourceSize(batch: Sequence[MPSState] | None) -> int:
    """Bytes of the resources of the different states (MPSState.h, macOS 10.13.4); ``None`` is accepted."""
    if batch is None:
        return 0
    return sum(state.resource_size() for state in as_state_batch("MPSStateBatchResourceSize", "batch", batch).counted())
