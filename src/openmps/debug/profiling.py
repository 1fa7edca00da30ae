"""Profiles: the time, operations and bytes of every step of what is encoded, against what the machine can do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import torch

from openmps.checks import whole
from openmps.core.lifetime import check_is_device
from openmps.debug.labels import step_labels
from openmps.debug.limits import MachineLimits, machine_limits
from openmps.debug.work import bytes_of, dtype_of, operations_of
from openmps.errors import MPSTypeError
from openmps.formats.atomic import write_for
from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.ops.op import Action
from openmps.runtime.dispatch import Dispatch
from openmps.runtime.observation import ObservingPlayer, observe
from openmps.selectors import accepts, name_arguments
from openmps.tables import printed_html, short, table

_WHO = "openmps.debug.profile"
_WARM_UP = 3
"""Runs before the first that counts: they plan, compile, and capture what is replayed."""
_CLOCK = 2e9
"""Cycles a second of a GPU, about."""
_AHEAD = 1.5
"""For how many times the time of its launches a GPU waits."""
_HEADINGS = ("label", "operation", "ms", "share", "GFLOP/s", "GB/s", "of the limit")
_NUMBERS = (False, False, True, True, True, True, True)

Encode = Callable[[CommandBuffer], object]
"""Records what is to be profiled."""


@name_arguments
@dataclass(frozen=True)
class ProfiledStep:
    """One step of an encode, by its median over the runs. Our addition.

    ``work`` is what was encoded, ``label`` the filters or the kernel whose step it is, ``operation`` what it computes.
    ``operations`` are floating point operations as the formula has them, ``bytes`` those of operands and results, and
    ``limit`` the share of what the machine can do: the time that these take at least over the time that they took, 0 to
    1. It is 1 for what does better than the limits, which are those of memory: a step whose numbers are in caches.
    ``began`` is when the step began, in seconds from the first one of its run.
    """

    work: str
    label: str
    operation: str
    seconds: float
    operations: int
    bytes: int
    limit: float
    began: float


@name_arguments
@dataclass(frozen=True)
class Profile:
    """Where the time of an encode goes; printable as a table, the longest steps first. Our addition.

    ``seconds`` is one run from its first encode to its end, as it is without a look into it; ``encode_seconds`` what
    Python takes of that until the commit, ``device_seconds`` what the device worked. ``steps`` were timed one by one in
    runs of their own, where nothing is replayed.
    """

    seconds: float
    encode_seconds: float
    device_seconds: float
    steps: tuple[ProfiledStep, ...]
    limits: MachineLimits
    is_gpu: bool = False

    @property
    def step_seconds(self) -> float:
        """All steps together."""
        return sum(step.seconds for step in self.steps)

    @property
    def python_share(self) -> float:
        """The share of a run in which no step runs: encodes, checks, bindings, waiting; 0 to 1.

        On a GPU, where steps run while Python goes on, the share of the run in which the device did not work.
        """
        worked = self.device_seconds if self.is_gpu else self.step_seconds
        return min(1.0, max(0.0, 1.0 - worked / self.seconds)) if self.seconds else 0.0

    def by_label(self) -> dict[str, float]:
        """The seconds of each label, the longest first."""
        found: dict[str, float] = {}
        for step in self.steps:
            found[step.label] = found.get(step.label, 0.0) + step.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def chrome_trace(self) -> dict[str, Any]:
        """The steps as the events of a Chrome trace, for chrome://tracing and Perfetto; times in microseconds."""
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"openmps on {self.limits.device}"}}
        ]
        threads = {work: number for number, work in enumerate(dict.fromkeys(step.work for step in self.steps))}
        for work, number in threads.items():
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": work}})
        for step in self.steps:
            about = {"operations": step.operations, "bytes": step.bytes, "share of the limit": round(step.limit, 4)}
            place = {"pid": 0, "tid": threads[step.work], "ts": step.began * 1e6, "dur": step.seconds * 1e6}
            name = f"{step.label}: {step.operation}"
            events.append({"name": name, "cat": step.operation, "ph": "X", **place, "args": about})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace` as JSON, whole or not at all; ``MPSFileError`` where that cannot be."""
        write_for("Profile.save_chrome_trace", path, json.dumps(self.chrome_trace()).encode())

    def __str__(self) -> str:
        total = self.step_seconds or 1.0
        rows = [
            (
                step.label, step.operation, f"{1e3 * step.seconds:.3f}", f"{100 * step.seconds / total:.1f} %",
                _rate(step.operations, step.seconds), _rate(step.bytes, step.seconds), f"{100 * step.limit:.0f} %",
            )
            for step in sorted(self.steps, key=lambda step: -step.seconds)
        ]  # fmt: skip
        times = [f"{name} {1e3 * each:.3f} ms" for name, each in (
            ("a run", self.seconds), ("encode", self.encode_seconds), ("device", self.device_seconds),
            ("steps one by one", self.step_seconds),
        )]  # fmt: skip
        lines = [table(_HEADINGS, rows, _NUMBERS), ", ".join(times)]
        return "\n".join([*lines, f"outside of steps: {100 * self.python_share:.0f} % of a run", str(self.limits)])

    _repr_html_ = printed_html


def _rate(count: float, seconds: float) -> str:
    return short(count / seconds / 1e9) if seconds and count else "-"


def profile(device: MTLDevice, encode: Encode, *, repeats: int = 5) -> Profile:
    """Run what ``encode(command_buffer)`` records, and say where the time goes. Our addition.

    It is called for every run with a new command buffer, and may encode graphs, kernels by hand, or both::

        openmps.debug.profile(device, lambda command_buffer: graph.encode_batch(command_buffer, [images], [labels]))

    A run is what it is without the profile: what it updates is updated, some dozen times. Then the steps of as many
    runs are timed one by one, on a GPU between events of its stream; what fusions join is one step.

    Raises:
        MPSTypeError: ``encode`` cannot be called with a command buffer.
        MPSArgumentError: ``repeats`` is below 1.
    """
    check_is_device(_WHO, "device", device)
    if not callable(encode):
        raise MPSTypeError(_WHO, "encode", "must be a function of a command buffer", type(encode).__name__)
    accepts(_WHO, "encode", encode, "command_buffer")
    whole(_WHO, "repeats", repeats)
    queue = device.new_command_queue()
    runs = [_run(queue, encode) for _ in range(_WARM_UP + repeats)][_WARM_UP:]
    looks, ahead, labels = list["_Look"](), 0.0, dict[int, list[str]]()
    for _ in range(1 + repeats):
        clock = _StreamClock(device.torch_device, ahead) if device.is_cuda else _HostClock()
        look, ahead = _look(queue, encode, clock, labels)
        looks.append(look)
    limits = machine_limits(device)
    seconds, encode_seconds, device_seconds = (median(run[place] for run in runs) for place in range(3))
    steps = _medians(looks[1:], limits)
    return Profile(seconds, encode_seconds, device_seconds, steps, limits, device.is_cuda)


def _run(queue: MTLCommandQueue, encode: Encode) -> tuple[float, float, float]:
    """The seconds of a run, of its encode, and of the device."""
    command_buffer = MPSCommandBuffer(queue)
    began = time.perf_counter()
    encode(command_buffer)
    encoded = time.perf_counter()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    worked = command_buffer.gpu_end_time - command_buffer.gpu_start_time
    return time.perf_counter() - began, encoded - began, worked


def _look(queue: MTLCommandQueue, encode: Encode, clock: _Timer, labels: dict[int, list[str]]) -> tuple[_Look, float]:
    """The steps of a run, timed, and for how long a GPU must wait so that launches are ahead of it."""
    command_buffer, watcher = MPSCommandBuffer(queue), _Watcher(clock, labels)
    encode(command_buffer)
    observe(_WHO, command_buffer, ObservingPlayer(watcher.run))
    began = time.perf_counter()
    command_buffer.commit()
    committed = time.perf_counter()
    command_buffer.wait_until_completed()
    return _Look(watcher.steps, clock.times()), _AHEAD * (committed - began)


# --- timing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """A step as it ran."""

    work: str
    label: str
    operation: str
    operations: int
    bytes: int
    dtype: torch.dtype


@dataclass(frozen=True)
class _Look:
    """The steps of a run, and when each began and how long it took."""

    steps: Sequence[_Seen]
    times: Sequence[tuple[float, float]]


class _Timer(Protocol):
    def time(self, work: Callable[[], Any]) -> Any:
        """Run, and note the time."""
        ...

    def times(self) -> list[tuple[float, float]]:
        """Of everything that ran, when it began and how long it took."""
        ...


class _HostClock:
    """Times of steps that have run when their call returns."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []

    def time(self, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        made = work()
        self._times.append((began, time.perf_counter() - began))
        return made

    def times(self) -> list[tuple[float, float]]:
        first = self._times[0][0] if self._times else 0.0
        return [(began - first, seconds) for began, seconds in self._times]


class _StreamClock:
    """Times between events of a CUDA stream, which waits at first, so that launches are ahead of it."""

    def __init__(self, device: torch.device, ahead: float) -> None:
        self._device = device
        self._ahead = ahead
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def time(self, work: Callable[[], Any]) -> Any:
        if not self._events:
            sleep: Callable[[int], None] = torch.cuda._sleep  # pyright: ignore[reportPrivateUsage]
            sleep(int(self._ahead * _CLOCK))
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        made = work()
        end.record()
        self._events.append((begin, end))
        return made

    def times(self) -> list[tuple[float, float]]:
        torch.cuda.synchronize(self._device)
        if not self._events:
            return []
        first = self._events[0][0]
        return [(first.elapsed_time(one) / 1e3, one.elapsed_time(other) / 1e3) for one, other in self._events]


@dataclass
class _Watcher:
    """Runs encodes step by step, and times each."""

    clock: _Timer
    labels: dict[int, list[str]]
    """Of the functions that were seen before."""
    steps: list[_Seen] = field(default_factory=list["_Seen"])

    def run(self, label: str, dispatch: Dispatch) -> None:
        """Run an encode as it would."""
        known = self.labels.get(id(dispatch.function))
        if known is None:
            known = self.labels[id(dispatch.function)] = step_labels(label, dispatch.function)
        labels = iter(known)

        def perform(action: Action, operands: list[Any]) -> Any:
            made = self.clock.time(lambda: action.op.run(action.wanted, *operands))
            results = (made,) if len(action.writes) == 1 else made or ()
            counts = operations_of(action, operands, results), bytes_of(action, operands, results)
            name = type(action.op).__name__
            self.steps.append(_Seen(label, next(labels), name, *counts, dtype_of(operands)))
            return made

        dispatch.hand_out(dispatch.function.run_each(dispatch.values(), perform))


def _medians(looks: Sequence[_Look], limits: MachineLimits) -> tuple[ProfiledStep, ...]:
    """Each step by its median time; runs that did other steps than the last one are left out."""
    last = looks[-1]
    names = [(each.work, each.label, each.operation) for each in last.steps]
    alike = [look for look in looks if [(each.work, each.label, each.operation) for each in look.steps] == names]
    found: list[ProfiledStep] = []
    for place, step in enumerate(last.steps):
        seconds = median(look.times[place][1] for look in alike)
        least = limits.least_seconds(step.operations, step.bytes, step.dtype)
        share = min(1.0, least / seconds) if seconds > 0 else 0.0
        counts = (step.operations, step.bytes, share, last.times[place][0])
        found.append(ProfiledStep(step.work, step.label, step.operation, seconds, *counts))
    return tuple(found)
