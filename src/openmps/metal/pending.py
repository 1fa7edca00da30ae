"""What recorded work has yet to write, found when the CPU wants to read it.

An encode pays nothing for this: every record is known here from its making to its end, and a read looks through the
work of those that are in flight. Memory that a command buffer writes that nobody has committed cannot be read; one that
is committed is waited for. What a handler or recorded work reads is never held up: it runs in its queue's order.

Works that never run (their command buffer was dropped before its commit, or failed before their turn) leave memory that
nothing has written: it cannot be read, either, until something else writes it, neither by the CPU nor by work that is
recorded or runs. Memory with earlier contents keeps them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from openmps.errors import MTLCommandBufferError, MTLExecutionError


class Region(NamedTuple):
    """Some memory, whether it is allocated yet or not."""

    owner: object
    """Whose memory it is: a buffer, a block of images; None for a tensor alone."""
    ranges: tuple[range, ...] = ()
    """Which part of the owner's, along the first axes of its tensor; all of it without any."""
    tensor: Tensor | None = None
    """The owner's memory where it is allocated: two owners may share it."""

    def meets(self, other: Region) -> bool:
        """Whether some memory is part of both."""
        if self.owner is not None and self.owner is other.owner:
            pairs = zip(self.ranges, other.ranges, strict=False)
            return all(mine.start < theirs.stop and theirs.start < mine.stop for mine, theirs in pairs)
        if self.tensor is None or other.tensor is None or self.tensor.device != other.tensor.device:
            return False
        mine, theirs = _addresses(self.tensor, self.ranges), _addresses(other.tensor, other.ranges)
        return mine.start < theirs.stop and theirs.start < mine.stop


def _addresses(whole: Tensor, ranges: tuple[range, ...]) -> range:
    tensor = whole[tuple(slice(each.start, each.stop) for each in ranges)]
    first, lengths = tensor.data_ptr(), zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in lengths) if tensor.numel() else 0
    return range(first, first + elements * tensor.element_size())


class Writer:
    """Work that says what it writes."""

    __slots__ = ()

    @property
    def single_use(self) -> str:
        """Why it is not the same each time that it runs, whatever the memory holds that it reads; empty where it is."""
        return f"{type(self).__name__}, which may do something else each time"

    def writes(self) -> Iterable[Region]:
        """The memory that it will write when it runs."""
        raise NotImplementedError

    def reads(self) -> Iterable[Region]:
        """The memory that it will read when it runs; asked where some memory is known to be unwritten."""
        return ()


class Unfinished(Protocol):
    """The record of a command buffer, from its making to the end of its last handler."""

    is_reusable: ClassVar[bool]
    """Whether it runs as a part of others alone: nobody waits for it, but work behind it reads what it writes."""

    @property
    def name(self) -> str:
        """What errors call the command buffer."""
        ...

    @property
    def is_committed(self) -> bool:
        """Whether its work will run without more ado."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether its work has run."""
        ...

    def unfinished_works(self) -> Sequence[tuple[str, object]]:
        """What has not run to its end yet, with labels."""
        ...

    def finish(self, who: str, action: str) -> MTLExecutionError | None:
        """Wait until it has run; why it failed, if it did."""
        ...


_unfinished: set[weakref.ref[Unfinished]] = set()
thread = threading.local()
"""``in_queue``: what `is_in_queue` tells. Each launch writes it, which should cost no call."""


def is_in_queue() -> bool:
    """Whether what this thread reads is read in the order of a queue: it runs recorded work, or handlers."""
    return getattr(thread, "in_queue", False)


def be_in_queue(entered: bool = True) -> None:
    """Say what `is_in_queue` tells from now on."""
    thread.in_queue = entered


def watch(record: Unfinished) -> None:
    """Know a record until it is finished or dropped. No lock: a signal handler may make one while another is made."""
    _unfinished.add(weakref.ref(record, _unfinished.discard))


class _Unwritten(NamedTuple):
    """Memory without contents whose writer will never run."""

    owner: weakref.ref[object]
    ranges: tuple[range, ...]
    writer: str
    """The work and its command buffer, in words."""
    error: MTLExecutionError | None
    """Why it did not run; None where its command buffer was dropped."""

    def region(self) -> Region | None:
        """The memory; None if it is gone."""
        owner: Any = self.owner()
        return None if owner is None else Region(owner, self.ranges, _tensor_of(owner))


def _tensor_of(owner: Any) -> Tensor | None:
    present = getattr(owner, "present", None)
    return present if isinstance(present, Tensor) else None


_Key = tuple[int, tuple[range, ...]]
unwritten: dict[_Key, _Unwritten] = {}
"""By `_key`: of works that write the same one stands for all. Empty but after a fault."""


def _key(owner: object, ranges: tuple[range, ...]) -> _Key:
    """Owners need not be hashable; the number of one that is gone may be another's, whose entry takes the place."""
    return id(owner), ranges


def mark_unwritten(works: Iterable[tuple[str, object]], name: str, error: MTLExecutionError | None = None) -> None:
    """Works of the command buffer called ``name`` will never run: what only they would write cannot be read."""
    # The error that was raised has the frames that it went through, and with them the memory: it would never go.
    told = None if error is None else _told_again(error)
    for label, work in works:
        for region in work.writes() if isinstance(work, Writer) else ():
            if region.owner is not None and region.tensor is None:
                entry = _Unwritten(weakref.ref(region.owner), region.ranges, f"{label!r} on {name}", told)
                unwritten[_key(region.owner, region.ranges)] = entry


def mark_written(regions: Iterable[Region]) -> None:
    """The regions are written now, whoever should have written them before."""
    for key, _ in _unwritten_of(list(regions)) if unwritten else ():
        unwritten.pop(key, None)


def mark_written_by(works: Iterable[tuple[str, object]]) -> None:
    """The same of what works write that are about to run."""
    mark_written(region for _, work in works if isinstance(work, Writer) for region in work.writes())


def rename_unwritten(owner: object, heir: object) -> None:
    """What is unwritten of ``owner`` is unwritten of ``heir``, all of which takes its place."""
    for key, entry in _unwritten_of([Region(owner)]) if unwritten else ():
        unwritten.pop(key, None)
        unwritten[_key(heir, ())] = entry._replace(owner=weakref.ref(heir), ranges=())


def _unwritten_of(regions: Sequence[Region]) -> list[tuple[_Key, _Unwritten]]:
    """What is known to be unwritten of some regions."""
    found: list[tuple[_Key, _Unwritten]] = []
    for key, entry in unwritten.copy().items():
        region = entry.region()
        if region is None:
            unwritten.pop(key, None)
        elif any(region.meets(each) for each in regions):
            found.append((key, entry))
    return found


def wait_until_written(who: str, action: str, regions: Iterable[Region]) -> None:
    """Called before the CPU reads: wait for what is committed, and refuse what is not.

    Raises:
        MTLCommandBufferError: Something that is not committed writes one of the regions, or would have been the first
            to write it and was dropped.
        MTLExecutionError: What was waited for has failed, or what would have been the first to write did not run.
    """
    if not (_unfinished or unwritten) or is_in_queue():
        return
    wanted = list(regions)
    _wait_for_unfinished(who, action, wanted)
    for _, entry in _unwritten_of(wanted)[:1] if unwritten else ():
        raise _never_written(who, action, entry)


def _never_written(who: str, action: str, entry: _Unwritten) -> MTLCommandBufferError | MTLExecutionError:
    if entry.error is not None:
        return _told_again(entry.error)
    rule = "cannot read what a command buffer that was dropped before its commit was to write"
    return MTLCommandBufferError(who, action, rule, entry.writer, "Encode it again, and call commit() before it goes")


def _told_again(error: MTLExecutionError) -> MTLExecutionError:
    return MTLExecutionError(error.who, error.argument, error.rule, error.got, error.remedy)


def require_written(who: str, action: str, regions: Iterable[Region]) -> None:
    """Called before work that reads some regions is recorded, where something is `unwritten`.

    What some work that has not run yet writes in between may be read behind it.

    Raises:
        MTLCommandBufferError: What would have been the first to write one of the regions was dropped.
        MTLExecutionError: It did not run.
    """
    for _, entry in _unwritten_of(list(regions)):
        region = entry.region()
        if region is not None and _writers([region], are_reusable=True) == (None, []):
            raise _never_written(who, action, entry)


def require_read_written(label: str, work: object) -> None:
    """`require_written` for what a work says that it reads."""
    if isinstance(work, Writer):
        require_written(label, "encode", work.reads())


def unreadable(works: Iterable[tuple[str, object]]) -> tuple[str, MTLCommandBufferError | MTLExecutionError] | None:
    """Of works that are about to run in order: the first that reads what nothing has written, and why it must not."""
    written: list[Region] = []
    for label, work in works:
        if not isinstance(work, Writer):
            continue
        for _, entry in _unwritten_of(list(work.reads())):
            region = entry.region()
            if region is not None and not any(region.meets(each) for each in written):
                return label, _never_written(label, "run", entry)
        written.extend(work.writes())
    return None


NOT_COMMITTED = "cannot read what a command buffer that is not committed has yet to write"


def _wait_for_unfinished(who: str, action: str, wanted: Sequence[Region]) -> None:
    # No record stays in this frame: whoever keeps the error would keep a command buffer that was dropped.
    refused, awaited = _writers(wanted)
    if refused is not None:
        remedy = "Call its commit() and wait_until_completed() first"
        if action == "tensor":
            remedy += "; recorded work asks for the tensor when it runs"
        raise MTLCommandBufferError(who, action, NOT_COMMITTED, refused, remedy)
    for record in awaited:
        error = record.finish(who, action)
        if error is not None:
            raise _told_again(error) from error.__cause__


def _writers(wanted: Sequence[Region], *, are_reusable: bool = False) -> tuple[str | None, list[Unfinished]]:
    """What writes one of the regions: the first work that is not committed, in words, and committed records.

    Of those that are `are_reusable` nothing is told unless they are asked for, too.
    """
    refused: str | None = None
    awaited: list[Unfinished] = []
    # A copy in one step: records come and go on other threads.
    for reference in _unfinished.copy():
        record = reference()
        if record is None or record.is_finished:
            _unfinished.discard(reference)
            continue
        if record.is_reusable and not are_reusable:
            continue
        is_committed = record.is_committed
        label = _writer(record, wanted)
        if label is not None and is_committed:
            awaited.append(record)
        elif label is not None:
            refused = f"{label!r} on {record.name}"
    return refused, awaited


def _writer(record: Unfinished, wanted: Sequence[Region]) -> str | None:
    """The label of the work that writes one of the regions."""
    for label, work in record.unfinished_works():
        written = work.writes() if isinstance(work, Writer) else ()
        if any(region.meets(each) for region in written for each in wanted):
            return label
    return None
