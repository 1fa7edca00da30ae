"""Replays of works that write their results where these go: their launches, at the same addresses, as one graph.

Nothing is copied, so a graph is for pictures that lie where those lay which it was captured with, as the frames of a
video do that are filtered in the same images each time, or in memory that is used in turns.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from weakref import ref

from openmps.metal.execution import Work, keep_place
from openmps.metal.explanation import Passage, WorkOutcome
from openmps.metal.memory import Memory
from openmps.runtime.binding import MemoryBinding
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.recorder import Recorder, Recording

Launch = Callable[[], None]
_REMEMBERED = 64
"""Sequences of launches that are known, captured or not."""


class _Sequence:
    """Launches one behind the other."""

    __slots__ = ("last_use", "launches", "needed", "recording", "refusal", "sightings")

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches
        """Held, so that no other objects get their numbers."""
        self.sightings = 0
        self.needed = 2
        """How often it must come before it is captured: more after each time that its graph had to go."""
        self.recording: Recording | None = None
        self.refusal = ""
        self.last_use = 0
        """A number that is larger for what was used later."""

    def run(self) -> tuple[()]:
        """Launch all."""
        for launch in self.launches:
            launch()
        return ()

    def drop(self) -> None:
        """Let go of its graph."""
        self.recording, self.sightings, self.needed = None, 0, 2 * self.needed


class _Again:
    """Works that came twice as the same objects, as `ReusableCommands` encode them; it holds none of what they hold.

    Their launches are the same as long as all memory that they see is the same tensors.
    """

    __slots__ = ("_memories", "_tensors", "_works", "sequence")

    def __init__(self, works: Iterable[Work], memories: Iterable[Memory], sequence: _Sequence) -> None:
        self._works, self._memories, self.sequence = [*map(ref, works)], [*map(ref, memories)], sequence
        self._tensors = [ref(each.present) for each in memories]

    def is_of(self, works: Iterable[Work]) -> bool:
        """Whether they are these works, and all of their memory is there, where it was."""
        if any(known() is not work for known, work in zip(self._works, works, strict=True)):
            return False
        for memory, tensor in zip(self._memories, self._tensors, strict=True):
            held, there = tensor(), memory()
            if held is None or there is None or there.present is not held:
                return False
        return True


class InPlaceReplays:
    """Captures and replays of one queue."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sequences: dict[tuple[int, ...], _Sequence] = {}
        """By the launches."""
        self._uses = itertools.count(1)
        self._last: list[int] = []
        """The identities of the works that came last."""
        self._again: _Again | None = None
        """What is known of them where they have come before."""

    @property
    def captures(self) -> int:
        """How many graphs are held."""
        return len(self._captured())

    @property
    def refusals(self) -> list[str]:
        """Why some of what was to be captured could not be."""
        return [each.refusal for each in self._sequences.values() if each.refusal]

    def play(self, works: deque[tuple[str, Work]], least: int, most: int) -> Passage | str | None:
        """Replay all works and take them off, or say why not; None where they are fewer, or some are of another kind.

        At most so many graphs are kept. What is captured runs by the first replay.
        """
        if len(works) < least:
            return None
        sequence = self._sequence_of(works)
        if not isinstance(sequence, _Sequence):
            return sequence
        sequence.last_use = next(self._uses)
        if sequence.refusal:
            return sequence.refusal
        outcome = WorkOutcome.REPLAYED
        if sequence.recording is None:
            sequence.sightings += 1
            if sequence.sightings < sequence.needed:
                return "the first of its kind; it is captured when an equal one comes"
            try:
                sequence.recording, outcome = self._recorder.record(sequence.run), WorkOutcome.CAPTURED
            except Exception as fault:
                sequence.refusal = f"it cannot be captured, {type(fault).__name__}: {fault}".partition("\n")[0]
                return sequence.refusal
            self.trim(most)
        sequence.recording.replay()
        passage = Passage(len(works), outcome, "")
        works.clear()
        return passage

    def _sequence_of(self, works: deque[tuple[str, Work]]) -> _Sequence | str | None:
        """What is known of the launches of works; see `_launches`."""
        present = [work for _, work in works]
        last, self._last = self._last, [*map(id, present)]
        is_again = last == self._last
        if is_again and self._again is not None and self._again.is_of(present):
            return self._again.sequence
        self._again, launches = None, _launches(present)
        if not isinstance(launches, list):
            return launches
        sequence, memories = self._sequence(launches), _memories(present) if is_again else None
        if memories is not None:
            self._again = _Again(present, memories, sequence)
        return sequence

    def _sequence(self, launches: list[Launch]) -> _Sequence:
        """What is known of launches."""
        key = tuple(map(id, launches))
        sequence = self._sequences.get(key)
        if sequence is None:
            if len(self._sequences) >= _REMEMBERED:
                self._remove(min(self._sequences, key=lambda each: self._sequences[each].last_use))
            sequence = self._sequences[key] = _Sequence(launches)
        return sequence

    def _captured(self) -> list[_Sequence]:
        """Those with a graph, the one that was used last behind the others."""
        captured = [each for each in self._sequences.values() if each.recording is not None]
        return sorted(captured, key=attrgetter("last_use"))

    def trim(self, most: int) -> None:
        """Keep so many graphs, those that were used last."""
        captured = self._captured()
        if len(captured) > most:
            self._recorder.retire()
            for each in captured[: len(captured) - most]:
                each.drop()

    def forget(self) -> None:
        """Let go of all graphs; what comes again is captured anew."""
        if self._captured():
            self._recorder.retire()
        self._sequences.clear()
        self._again = None

    def _remove(self, key: tuple[int, ...]) -> None:
        sequence, self._again = self._sequences.pop(key), None
        if sequence.recording is not None:
            self._recorder.retire()


def _memories(works: Iterable[Work]) -> list[Memory] | None:
    """What memory works see; None where they see something else that may be another one in each run."""
    found: dict[int, Memory] = {}
    for work in works:
        for each in (*work.inputs, *work.output_bindings) if isinstance(work, Dispatch) else ():
            if isinstance(each, MemoryBinding):
                found |= {id(memory): memory for memory in each.memories()}
            elif not each.value_stays or each.versions():
                return None
    return [*found.values()]


def _launches(works: Iterable[Work]) -> list[Launch] | str | None:
    """What launches works where they lie, or why that is not known; None where one is of another kind."""
    launches: list[Launch] = []
    is_known, are_apart = True, False
    for work in works:
        if isinstance(work, Dispatch) and type(work) is Dispatch and (place := work.function.placement) is not None:
            for each in work.inputs:
                if len(each.memories()) > 1:
                    # They are gathered when their values are asked for: here that were before the works ahead run.
                    is_known, are_apart = False, True
            # Behind one that has no memory for its result yet nothing is asked for: that would be made.
            launch = place(work.values(), work.output_bindings[0].room()) if is_known else None
            if launch is None:
                is_known = False
            else:
                launches.append(launch)
        elif work is not keep_place:
            return None
    if are_apart:
        return "its pictures lie in several pieces of memory"
    return launches if is_known else "where its pictures lie it has not run before"
