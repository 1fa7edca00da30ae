"""What users say of a command queue: whether its buffers are timed, and of its replays. Our addition."""

from __future__ import annotations

from openmps.checks import NamedProperties, flag, whole
from openmps.metal.execution import MAX_CAPTURE_COUNT
from openmps.metal.queue_executor import QueueExecutor


class QueueSettings(NamedProperties):
    """The part of an `MTLCommandQueue` that its executor and its player ask."""

    def __init__(self, executor: QueueExecutor) -> None:
        self._executor = executor
        self._max_capture_count = MAX_CAPTURE_COUNT
        self._allow_fusion = True

    @property
    def measures_times(self) -> bool:
        """Whether command buffers made from now on have a `gpu_start_time` and a `gpu_end_time`; True at first.

        On CUDA that takes two events with a time for each of them, 5 to 12 µs of the committing thread, which a step of
        a small network may wait for. With False there is one event, without a time, and to ask raises. Our addition.
        """
        return self._executor.clock.measures

    @measures_times.setter
    def measures_times(self, value: bool) -> None:
        self._executor.clock.measures = flag("MTLCommandQueue", "measures_times", value)

    @property
    def max_capture_count(self) -> int:
        """How many captures of command buffers are kept for replays on a GPU; 16 at first, 0 turns them off.

        Work that equals that of an earlier command buffer of the queue, but for numbers (rates, counts), the images
        bound and what states carry from one encode to another, is captured as a CUDA graph the second time and replayed
        from then on, faster and with the same results. Each capture holds memory of its own, for what is read, made and
        left over; the one that was not used for longest goes first, and those of weights that are gone go as well.
        `CommandBuffer.explain` tells what was replayed, and why the rest was not. Our addition.
        """
        return self._max_capture_count

    @max_capture_count.setter
    def max_capture_count(self, value: int) -> None:
        self._max_capture_count = whole("MTLCommandQueue", "max_capture_count", value, 0)
        if self._executor.player is not None:
            self._executor.player.max_capture_count = value

    @property
    def allow_fusion(self) -> bool:
        """Whether replays fuse kernels that were encoded one by one, as `MPSNNGraph.allow_fusion` does filters.

        True at first. Images between two kernels that are temporary and have had their last read are then never made;
        numbers are the same but for rounding. `CommandBuffer.explain` tells what was fused. False keeps every kernel
        apart. Our addition.
        """
        return self._allow_fusion

    @allow_fusion.setter
    def allow_fusion(self, value: bool) -> None:
        self._allow_fusion = flag("MTLCommandQueue", "allow_fusion", value)
        if self._executor.player is not None:
            self._executor.player.allow_fusion = value
