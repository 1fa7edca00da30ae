"""What became of the works of a command buffer, and why: what `explain` tells. Our addition."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import openmps.cpu as cpu
from openmps.selectors import name_arguments
from openmps.tables import printed_html


class WorkOutcome(Enum):
    """What became of one work of a command buffer. Our addition."""

    PENDING = "pending"
    """It has not run yet."""
    RUN = "run"
    """It ran by itself."""
    CAPTURED = "captured"
    """It was captured together with its neighbours, and ran by the first replay."""
    REPLAYED = "replayed"
    """It ran by a replay of what an equal command buffer had captured."""
    SKIPPED = "skipped"
    """It did not run, because work before it failed."""


_NOT_RUN = (WorkOutcome.PENDING, WorkOutcome.SKIPPED)


@name_arguments
class ExplainedWork(NamedTuple):
    """One work of a command buffer, as `CommandBuffer.explain` tells it. Our addition."""

    label: str
    """What was encoded: the kernel's class and label."""
    operations: tuple[str, ...]
    """The names of its steps, in the order in which they run; none where they are not known."""
    fused: tuple[str, ...]
    """Filters of a graph, or the kernel itself, that run as a part of a neighbour."""
    outcome: WorkOutcome
    """What became of it."""
    reason: str
    """Why it was not replayed; empty where it was."""
    library: str = ""
    """What computes an image filter on the CPU, or will: Numba, OpenCV or PyTorch. Empty of other work."""


@name_arguments
class CommandBufferExplanation(NamedTuple):
    """What a command buffer ran: rows for programs, text by `str`. Made by `CommandBuffer.explain`. Our addition."""

    device: str
    """The device as PyTorch calls it, such as ``cuda:0``."""
    works: tuple[ExplainedWork, ...]
    """A row for each work, in order."""
    processor: str = ""
    """The named features of the CPU by which forms of computations are chosen there; empty on a GPU."""
    choices: tuple[str, ...] = ()
    """The forms that they choose, each with what it is for: see the page on processors. None on a GPU."""

    @property
    def steps(self) -> int:
        """How many operations the works have together, those of replayed works with them."""
        return sum(len(work.operations) for work in self.works)

    def count(self, outcome: WorkOutcome) -> int:
        """How many works came to this."""
        return sum(work.outcome is outcome for work in self.works)

    def __str__(self) -> str:
        counts = ((outcome.value, self.count(outcome)) for outcome in WorkOutcome)
        parts = [f"{len(self.works)} work(s)", f"{self.steps} step(s)", *(f"{n} {name}" for name, n in counts if n)]
        device = f"{self.device} ({self.processor})" if self.processor else self.device
        return "\n".join([f"{device}: {', '.join(parts)}", *map(_line, self.works)])

    _repr_html_ = printed_html


def _line(work: ExplainedWork) -> str:
    text = f"  {work.outcome.value:8} {len(work.operations):4} step(s)  {work.label}"
    if work.library:
        text += f", by {work.library}"
    if work.fused:
        text += f"; fused into others: {', '.join(work.fused)}"
    return f"{text}; {work.reason}" if work.reason else text


# --- what is kept for it ----------------------------------------------------------------------------------------------


class Described(Protocol):
    """What a work computes, as far as it can be told without holding what it works on."""

    @property
    def fused(self) -> tuple[str, ...]:
        """What runs as a part of something else."""
        ...

    def operations(self) -> tuple[str, ...]:
        """The names of the operations, in order."""
        ...

    def library_on(self, device: str, *, has_run: bool) -> str:
        """What computes it on a device, or will unless it ``has_run``, where there is a choice; else nothing."""
        ...


Content = tuple[str, Described | None]
"""The label of a work and what it computes, where that is known."""


class Passage(NamedTuple):
    """What became of so many works of a record, and why."""

    works: int
    outcome: WorkOutcome
    reason: str
    fused: frozenset[int] = frozenset()
    """Of works that were captured together, those whose results are never made, by their places among functions."""


def explained(device: str, contents: Sequence[Content], passages: Sequence[Passage]) -> CommandBufferExplanation:
    """The explanation of works of which ``passages`` tell the outcomes one after the other."""
    rows: list[ExplainedWork] = []
    for passage in passages:
        places, has_run = itertools.count(), passage.outcome not in _NOT_RUN
        for label, function in contents[len(rows) : len(rows) + passage.works]:
            is_fused = function is not None and next(places) in passage.fused
            operations, fused = (function.operations(), function.fused) if function else ((), ())
            fused = (*fused, label) if is_fused else fused
            library = function.library_on(device, has_run=has_run) if function else ""
            rows.append(ExplainedWork(label, operations, fused, passage.outcome, passage.reason, library))
    if device != "cpu":
        return CommandBufferExplanation(device, tuple(rows))
    return CommandBufferExplanation(device, tuple(rows), str(cpu.cpu_features()), tuple(map(str, cpu.CpuChoice)))
