"""The order of records on the streams of a CUDA device, and when the device began and ended each."""

from __future__ import annotations

import time
from collections import deque

import torch

from openmps.metal.execution import Clock, Timer
from openmps.metal.stream import DEFAULT, Event, current_stream, is_capturing


class StreamOrder(Clock):
    """Keeps the records of one queue in order on a CUDA device, whatever streams are current when they are launched."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tail: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None
        """Where the record was launched last, and what marks its end there."""
        self.spare: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=16)
        """Events of records that nobody holds any more, which may mark others."""
        self.spare_ends: deque[torch.cuda.Event] = deque(maxlen=16)
        """The same of records whose times are not measured."""
        self._idle: torch.cuda.Stream | None = None
        """Where nothing else waits, to ask what time it is on the device."""

    def timer(self) -> Timer:
        """A timer for the next record, or what tells its end alone."""
        return _StreamTimer(self) if self.measures else _StreamEnd(self)

    def take_events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Two events for the begin and the end of a record: making them costs more than recording them."""
        try:
            return self.spare.pop()
        except IndexError:
            return Event(enable_timing=True), Event(enable_timing=True, blocking=True)

    def moment_of(self, event: torch.cuda.Event) -> float:
        """When the device passed an event, in seconds of `time.perf_counter`."""
        if self._idle is None:
            self._idle = torch.cuda.Stream(self.device)
        now = Event(enable_timing=True)
        now.record(self._idle)
        now.synchronize()
        return time.perf_counter() - event.elapsed_time(now) / 1000.0

    def enter(self) -> torch.cuda.Stream:
        """The current stream, made to wait for the record launched before this one, and for numbers on their way."""
        stream = current_stream(self.device)
        if stream.cuda_stream != DEFAULT:
            stream.wait_stream(torch.cuda.default_stream(self.device))
        tail = self.tail
        # Mostly the very object.
        if tail is not None and tail[0] is not stream and tail[0] != stream:
            stream.wait_event(tail[1])
        return stream


class _StreamEnd:
    """The end of work that a CUDA stream runs after its call returned; when that was is not measured."""

    _stream: torch.cuda.Stream | None = None
    _end: torch.cuda.Event | None = None
    _is_recorded = False
    _has_passed = False
    """Whether the device is known to have passed it."""

    def __init__(self, order: StreamOrder) -> None:
        self._order = order

    def __del__(self) -> None:
        if self._end is not None:
            self._order.spare_ends.append(self._end)

    def begin(self) -> None:
        try:
            self._end = self._order.spare_ends.pop()
        except IndexError:
            self._end = Event(blocking=True)
        self._stream = self._order.enter()

    def end(self) -> None:
        stream, end = self._stream, self._end
        if stream is not None and end is not None:
            end.record(stream)
            self._order.tail = stream, end
            self._is_recorded = True

    def is_over(self) -> bool:
        if self._end is None:
            return True
        # To ask while the program captures would end its capture.
        self._has_passed = not is_capturing() and self._end.query()
        return self._has_passed

    def wait(self) -> None:
        if self._end is not None and not self._has_passed:
            self._end.synchronize()

    def times(self) -> tuple[float, float]:
        return 0.0, 0.0


class _StreamTimer(_StreamEnd):
    """Times of such work, by two events of the device."""

    _first: torch.cuda.Event | None = None
    _times: tuple[float, float] | None = None
    _noticed = 0.0

    def __del__(self) -> None:
        # Not before: whoever holds the record may ask for its times.
        if self._first is not None and self._end is not None:
            self._order.spare.append((self._first, self._end))

    def begin(self) -> None:
        self._first, self._end = self._order.take_events()
        self._stream = self._order.enter()
        self._first.record(self._stream)

    def wait(self) -> None:
        super().wait()
        self._noticed = time.perf_counter()

    def times(self) -> tuple[float, float]:
        if self._times is None:
            self._times = self._measured()
        return self._times

    def _measured(self) -> tuple[float, float]:
        """Asked for when they are read: a step of a small network takes as long as a few such questions."""
        if self._first is None or self._end is None or not self._is_recorded or is_capturing():
            return self._noticed, self._noticed
        ended = min(self._noticed, self._order.moment_of(self._end))
        return ended - self._first.elapsed_time(self._end) / 1000.0, ended
