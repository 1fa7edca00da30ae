"""Decides what is captured and what is replayed, and plays it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from openmps.metal.execution import MAX_CAPTURE_COUNT, Release, Work, keep_place
from openmps.metal.explanation import Passage, WorkOutcome
from openmps.metal.memory import Memory
from openmps.metal.pending import Region, Writer
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.replay.deferred_outputs import DeferredOutputs
from openmps.runtime.replay.in_place import InPlaceReplays
from openmps.runtime.replay.partition import Partition, analyse, things_of, values_of
from openmps.runtime.replay.recorder import Recorder, Recording
from openmps.runtime.replay.signature import Key, Signature, Signatures
from openmps.runtime.replay.static_function import StaticFunction
from openmps.runtime.replay.warmup import Warmups

MIN_STEPS = 4
"""Fewer operations than so many gain nothing: to copy in and out costs as much as to launch them."""
MOST_COPIED = 8 << 20
"""Bytes of images, for each operation, that a capture copies into its memory: of more the copies take longer."""
_REMEMBERED = 256
"""Segments that are known, captured or not."""
_MOST_LOOKED_AT_AGAIN = 32
"""Works behind one that cannot be captured yet: of more not each rest is looked at when they come for the first time.

That would take longer than to run them; what stands in the way, memory that is yet to be made, is mostly gone then.
"""
_FIRST = "not replayed: the first of its kind; it is captured when an equal one comes"


class _Capture:
    """A partition that was captured."""

    def __init__(self, static_function: StaticFunction, recording: Recording, partition: Partition) -> None:
        self.upload = static_function.upload
        self.output_bindings = static_function.output_bindings
        self.may_defer = [output_binding.may_defer for output_binding in static_function.output_bindings]
        self.outs = static_function.outs
        self.is_guarded = static_function.is_guarded
        self.recording = recording
        works, fused = partition.works, static_function.fused
        self.passages = tuple([Passage(works, how, "", fused) for how in (WorkOutcome.CAPTURED, WorkOutcome.REPLAYED)])
        """What is told of the first replay, and of each later one."""


class _Entry:
    """What is known of runs with one key."""

    def __init__(self, kept: list[ref[object]], partition: Partition) -> None:
        self.allow_fusion = True
        """Whether its capture may be fused."""
        self.kept = kept
        """What the key tells by identity: when it goes, the key means nothing any more."""
        self.partition = partition
        self.looks = 0
        """How often such a run was looked at."""
        self.sightings = 0
        self.needed = 2
        """How many equal runs must come before they are captured; more after each time that a capture had to go."""
        self.refusal = ""
        self.capture: _Capture | None = None
        self.last_use = 0
        """A number that is larger for what was used later."""
        self.too_many_copies = ""
        """Why its images are not to be copied at each replay; nothing where they may be."""


class Replayer:
    """Plays the works of one queue."""

    def __init__(self, device: torch.device, recorder: Recorder, min_steps: int = MIN_STEPS) -> None:
        self.max_capture_count = MAX_CAPTURE_COUNT
        self.allow_fusion = True
        self._device, self._device_type = device, device.type
        self._recorder = recorder
        self._min_steps = min_steps
        self._entries: dict[Key, _Entry] = {}
        self._newest: tuple[bool, Key, _Entry] | None = None
        """The entry that was used last, whose key most often is the next one, too: to compare is quick, to hash not."""
        self._dead: deque[Key] = deque()
        self._signatures = Signatures()
        self._warmups = Warmups(device)
        self._deferred = DeferredOutputs(device)
        self._in_place = InPlaceReplays(recorder)
        self._uses = itertools.count(1)

    @property
    def captures(self) -> int:
        """How many captures are held."""
        self._forget_the_dead()
        return self._in_place.captures + sum(entry.capture is not None for entry in self._entries.values())

    @property
    def refusals(self) -> list[str]:
        """Why some of what was to be captured could not be."""
        return [entry.refusal for entry in self._entries.values() if entry.refusal] + self._in_place.refusals

    def play(self, works: deque[tuple[str, Work]], passages: list[Passage]) -> int:
        """See `Player`."""
        if self._dead:
            self._forget_the_dead()
        first = works[0][1]
        function = first.function if isinstance(first, Dispatch) and not first.guards else None
        is_long = function is not None and function.launches >= self._min_steps
        is_placed = function is not None and function.placement is not None and bool(self._min_steps)
        del first  # what only the works hold is to go with them
        if not self.max_capture_count:
            self._trim()
            count, reason = len(works), "not replayed: max_capture_count of the queue is 0"
        elif self._recorder.is_taken():
            count, reason = len(works), "not replayed: the program itself captures what is launched"
        elif is_placed and (found := self._in_place.play(works, self._min_steps, self.max_capture_count)) is not None:
            if isinstance(found, Passage):
                passages.append(found)
                return 0
            count, reason = len(works), f"not replayed: its steps write their results where these go; {found}"
        elif not is_long and (steps := _steps_below(self._min_steps, works)) is not None:
            count, reason = len(works), _too_few(steps)
        else:
            signature = self._signatures.look(works)
            if not signature.works:
                count, reason = 1, f"not replayed: {_reason(signature.refusal)}"
            elif signature.steps < self._min_steps:
                count, reason = signature.works, _too_few(signature.steps)
            else:
                entry = self._entry(works, signature)
                passage, reason = self._play(works, entry, signature)
                if passage is not None:
                    passages.append(passage)
                    return 0
                count = max(1, entry.partition.works)
                if entry.too_many_copies or (entry.looks == 1 and signature.works - count > _MOST_LOOKED_AT_AGAIN):
                    count = signature.works
        passages.append(Passage(count, WorkOutcome.RUN, reason))
        return count

    def _play(self, works: deque[tuple[str, Work]], entry: _Entry, signature: Signature) -> tuple[Passage | None, str]:
        """Replay a partition, and tell what became of it; or None, and why it was not replayed."""
        capture, is_again = entry.capture, True
        if capture is None:
            capture, is_again = self._capture(entry, signature), False
            if isinstance(capture, str):
                return None, capture
        elif signature.derived and _brings_new_memory(signature):
            return None, _FIRST
        if not _replay(capture, entry.partition, signature, works, self._deferred):
            return None, "not replayed: a result may not be finite, and it is looked for where"
        return capture.passages[is_again], ""

    def _capture(self, entry: _Entry, signature: Signature) -> _Capture | str:
        """Capture a partition, or say why not."""
        partition = entry.partition
        if entry.too_many_copies:
            return f"not replayed: {entry.too_many_copies}"
        if not partition.works:
            return f"not replayed: {_reason(partition.refusal)}"
        if partition.steps < self._min_steps:
            return _too_few(partition.steps)
        if entry.refusal:
            return f"not replayed: {entry.refusal}"
        entry.sightings += 1
        if entry.sightings < entry.needed or (signature.derived and _brings_new_memory(signature)):
            return _FIRST
        try:
            static_function = StaticFunction(signature, partition, self._device, allow_fusion=entry.allow_fusion)
            recording = self._recorder.record(static_function.run)
        except Exception as fault:
            entry.refusal = f"it cannot be captured, {type(fault).__name__}: {fault}".partition("\n")[0]
            return f"not replayed: {entry.refusal}"
        made = entry.capture = _Capture(static_function, recording, partition)
        self._trim()
        return made

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _entry(self, works: deque[tuple[str, Work]], signature: Signature) -> _Entry:
        newest, entry = self._newest, None
        if newest is not None and newest[0] is self.allow_fusion and newest[1] == signature.key:
            entry = newest[2]
        else:
            entry = self._entries.get((self.allow_fusion, *signature.key))
        if entry is None:
            key = (self.allow_fusion, *signature.key)
            self._warmups.hold(signature.dispatches)
            forget = partial(_note, self._dead, key)
            # The callbacks run anywhere, so they only note the key: what it holds goes when this thread comes by.
            kept = [ref(each, forget) for each in things_of(signature)]
            entry = self._entries[key] = _Entry(kept, analyse(works, signature))
            entry.too_many_copies = _too_large(signature, self._device)
            if self._min_steps and not entry.too_many_copies:
                entry.too_many_copies = _in_place_already(signature, entry.partition, self._device)
            entry.allow_fusion = self.allow_fusion
            self._forget_least_used()
        if newest is None or newest[2] is not entry:
            self._newest = self.allow_fusion, signature.key, entry
        entry.looks += 1
        entry.last_use = next(self._uses)
        return entry

    def _forget_the_dead(self) -> None:
        self._newest = None
        while self._dead:
            self._drop(self._entries.pop(self._dead.popleft(), None))

    def forget(self) -> None:
        """See `openmps.metal.execution.Player`."""
        for entry in list(self._entries.values()):
            if entry.capture is not None:
                self._drop(entry)
                entry.sightings = 0
        self._in_place.forget()

    def _trim(self) -> None:
        """Have as many captures as are allowed, and no more entries than are remembered: the last used ones."""
        captured = [entry for entry in self._entries.values() if entry.capture is not None]
        captured.sort(key=attrgetter("last_use"))
        for entry in captured[: max(0, len(captured) - self.max_capture_count)]:
            self._drop(entry)
            entry.sightings, entry.needed = 0, 2 * entry.needed
        self._in_place.trim(self.max_capture_count)
        self._forget_least_used()

    def _forget_least_used(self) -> None:
        while len(self._entries) > _REMEMBERED:
            self._newest = None
            # The newest has no use yet.
            oldest = min(list(self._entries)[:-1], key=lambda key: self._entries[key].last_use)
            self._drop(self._entries.pop(oldest))

    def _drop(self, entry: _Entry | None) -> None:
        if entry is not None and entry.capture is not None:
            self._recorder.retire()
            entry.capture = None


def _too_large(signature: Signature, device: torch.device) -> str:
    """What stands in the way of copying images from the device itself at each replay, if anything does."""
    copies = [bound.device_bytes(device.type) for work in signature.dispatches for bound in work.inputs]
    copied = sum({each[0]: each[1] for each in copies if each is not None}.values())
    if copied <= MOST_COPIED * max(1, signature.steps):
        return ""
    return f"its images, {copied >> 20} MiB for {signature.steps} step(s), take longer to copy than to launch the steps"


def _in_place_already(signature: Signature, partition: Partition, device: torch.device) -> str:
    """What stands in the way of works that write results where these go, as `Form` does, if anything does."""
    outs = sum(target.comes_out for part in partition.parts for target in part.targets)
    copies = len(partition.values) + outs
    if copies < partition.steps or not all(device.type in work.function.forms for work in signature.dispatches):
        return ""
    return f"its {partition.steps} step(s) write their results where these go, and a replay copies {copies} image(s)"


def _brings_new_memory(signature: Signature) -> bool:
    """Make what is derived again where memory was written at once: captured work reads it without asking.

    Whether some of it lies elsewhere since then, so that the signature is no longer that of the works.
    """
    derived = signature.derived
    before = [each.place for each in derived]
    for each in derived:
        each.value()
    return [each.place for each in derived] != before


def _note(dead: deque[Key], key: Key, _: ref[object]) -> None:
    dead.append(key)


def _reason(refusal: str) -> str:
    return refusal.partition(": ")[2]


def _steps_below(most: int, works: Iterable[tuple[str, Work]]) -> int | None:
    """Operations of all works, if there are fewer than ``most`` and none stands in the way of a capture; else None."""
    steps = 0
    for _, work in works:
        if isinstance(work, Dispatch) and type(work) is Dispatch:
            steps += work.function.launches
        elif not isinstance(work, Release) and work is not keep_place:
            return None
        if steps >= most:
            return None
    return steps


def _too_few(steps: int) -> str:
    return f"not replayed: {steps} step(s) are too few to gain by it"


def _replay(
    capture: _Capture,
    partition: Partition,
    signature: Signature,
    works: deque[tuple[str, Work]],
    deferred: DeferredOutputs,
) -> bool:
    """Play a capture in the place of the works, which are taken off; False, and nothing has changed, if it fails."""
    stream = deferred.resolve() if deferred.pending else None
    upload, memories = capture.upload, signature.memories
    upload.send(values_of(partition, signature), signature.numbers[: partition.numbers])
    capture.recording.replay()
    upload.stages.leave()
    values = capture.recording.values
    if capture.is_guarded:
        *values, sound = values
        if sound is not None and not bool(sound):
            return False
    outs: list[list[ref[Memory]]] = []
    for numbers in capture.outs:
        outs.append([*map(ref, map(memories.__getitem__, numbers))])
    memories.clear()
    signature.dispatches.clear()
    # The works must be gone for what they alone hold to be gone; this one says meanwhile what is yet to be written.
    works.insert(partition.works, ("replay", _HandOut(outs)))
    for _ in range(partition.works):
        _, work = works.popleft()
        if isinstance(work, Release):
            work()
        del work
    _hand_out(capture, outs, values, deferred, stream)
    works.popleft()
    return True


def _tensor_or_none(present: object) -> Tensor | None:
    return present if isinstance(present, Tensor) else None


class _HandOut(Writer):
    """What says which memory is yet to be written while results are handed out."""

    __slots__ = ("_outs",)

    def __init__(self, outs: Sequence[Sequence[ref[Memory]]]) -> None:
        self._outs = outs

    def __call__(self) -> None:
        """It is taken off before its turn; where handing out has failed it does nothing."""

    def writes(self) -> Iterable[Region]:
        """All memory that results go to, as far as anybody still holds it."""
        memories = [memory for places in self._outs for place in places if (memory := place()) is not None]
        return [Region(each, (), _tensor_or_none(each.present)) for each in memories]


def _hand_out(
    capture: _Capture,
    outs: Sequence[Sequence[ref[Memory]]],
    values: Sequence[Tensor | None],
    deferred: DeferredOutputs,
    stream: torch.cuda.Stream | None,
) -> None:
    """Bring what comes out to its places, as far as anybody still holds these."""
    for output_binding, may_defer, places, value in zip(
        capture.output_bindings, capture.may_defer, outs, values, strict=True
    ):
        held = [place() for place in places]
        if held.count(None) == len(held):
            continue
        first: Any = held[0]
        if may_defer and value is not None and first is not None and first.present is None:
            deferred.add(first, value, stream)
            continue
        memories = [
            each.empty_like() if memory is None else memory
            for memory, each in zip(held, output_binding.memories(), strict=True)
        ]
        # The memory is the capture's: it is copied.
        output_binding.rebind(memories).take(value, is_shared=True)
