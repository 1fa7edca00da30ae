"""Exponential averages of numbers that are trained, kept on the device beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import described, finite
from openmps.core.training_state import TrainingState, numbers, whole_number
from openmps.errors import MPSArgumentError
from openmps.graph.compile.shards import Shards
from openmps.locks import new_lock
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.update.optimizers import MovingAverage
from openmps.runtime.binding import HeldTensor, Number, Numbers
from openmps.runtime.dispatch import Dispatch, function_of_op
from openmps.runtime.step_trace import step_number

_PREFIX = "average."
_STEPS = ".steps"
_counting = new_lock()
"""Held where a step is counted: threads may encode at once."""


def checked_decay(who: str, name: str, decay: object) -> float:
    """A share that averages keep, above 0 and below 1; ``MPSArgumentError`` where it is another number."""
    found = finite(who, name, decay)
    if not 0 < found < 1:
        raise MPSArgumentError(who, name, "must be above 0 and below 1", found)
    return found


class NumbersAverage:
    """The average of a data source's numbers ``w`` after each of the steps 1 to ``t``, the later the heavier.

    With the share ``d`` that is kept: ``a = (1 - d) / (1 - d^t) sum d^(t - i) w[i]``. The weights add up to 1 from the
    first step on, so the numbers that training began with have no part in it.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._steps: dict[str, int] = {}
        self._buffers: dict[str, MTLBuffer] = {}
        self._given: dict[str, NDArray[np.float32]] = {}
        """Out of a checkpoint, as long as no step was recorded."""

    @classmethod
    def of(cls, who: str, decay: object) -> NumbersAverage:
        """An average that keeps the share ``decay``, if that can be one."""
        return cls(checked_decay(who, "decay", decay))

    def __repr__(self) -> str:
        return described(self, decay=self.decay)

    def record(
        self, command_buffer: CommandBuffer, who: str, places: Mapping[str, Numbers], shards: Shards | None
    ) -> None:
        """Record one step, behind the update of the numbers, which are at ``places`` by the names of their parts.

        Of processes that share the optimizer's state each has the average of what it updates itself.
        """
        device, shard = command_buffer.device, None if shards is None else shards.shard
        own = [Numbers(self._buffer(device, part, each.count or 0), 0, each.count) for part, each in places.items()]
        share = step_number(command_buffer, partial(self._next_share, tuple(places)))
        bound = (share, *places.values(), *own, *own, HeldTensor(None))
        function = function_of_op(MovingAverage(len(own), shard=shard), (Number, *map(type, bound[1:])))
        command_buffer.record(f"{who} average", Dispatch(function, bound, (True,) * len(bound), ()))

    def _next_share(self, parts: Sequence[str]) -> float:
        """Minus the share that a step's numbers get."""
        with _counting:
            for part in parts:
                self._steps[part] = self._steps.get(part, 0) + 1
            step = self._steps[parts[0]]
        return -(1.0 - self.decay) / (1.0 - self.decay**step)

    def _buffer(self, device: MTLDevice, part: str, count: int) -> MTLBuffer:
        found = self._buffers.get(part)
        if found is None or found.device is not device:
            before = self._given.pop(part, None) if found is None else found.contents().view(np.float32)
            data = np.zeros(count, np.float32) if before is None else before.reshape(-1)
            found = self._buffers[part] = device.new_buffer(data=data)
        return found

    def arrays(self, now: Mapping[str, NDArray[np.float32]], shards: Shards | None) -> dict[str, NDArray[np.float32]]:
        """The averages by part; of what has had no step ``now``. Where processes have shares, called in all of them."""
        if shards is not None:
            for buffer in self._buffers.values():
                shards.processes.gather_shards([buffer.memory(torch.float32)])
        return {part: self._array(part, array) for part, array in now.items()}

    def _array(self, part: str, now: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._steps.get(part):
            return now
        found = self._buffers[part].contents().view(np.float32) if part in self._buffers else self._given[part]
        return np.array(found).reshape(now.shape)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state(self, arrays: Mapping[str, NDArray[np.float32]]) -> TrainingState:
        """What a checkpoint keeps: ``arrays``, which `arrays` gave, and the steps of each."""
        averages = {f"{_PREFIX}{part}": array for part, array in arrays.items()}
        return {**averages, **{f"{_PREFIX}{part}{_STEPS}": self._steps.get(part, 0) for part in arrays}}

    @staticmethod
    def names(parts: Sequence[str]) -> set[str]:
        """What `state` gives."""
        return {f"{_PREFIX}{part}{end}" for part in parts for end in ("", _STEPS)}

    def restored(self, who: str, state: TrainingState, shapes: Mapping[str, tuple[int, ...]]) -> NumbersAverage:
        """An average that goes on from what `state` gave."""
        found = NumbersAverage(self.decay)
        for part, shape in shapes.items():
            found._given[part] = np.array(numbers(who, state, f"{_PREFIX}{part}", shape))
            found._steps[part] = whole_number(who, state, f"{_PREFIX}{part}{_STEPS}")
        return found
