"""What a batch normalization holds of its data source: two pairs of rows on the device, and which version they are."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from openmps.core.state.rows import ChannelStatePair
from openmps.core.weight_versions import Held, Lineage, Part, fingerprint
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.version import Version
from openmps.ops.elements import Overwrite
from openmps.runtime.binding import Numbers
from openmps.runtime.derived import Dependents
from openmps.runtime.dispatch import record_op
from openmps.runtime.step_trace import at_each_step, check_reusable, depends_on

Rows = tuple[NDArray[np.float32], NDArray[np.float32]]
"""What a data source gives of a pair, one number a channel each."""
GAMMA_AND_BETA = Part.reloaded_by("gamma and beta", "reload_gamma_and_beta", "gamma_and_beta_state")
MEAN_AND_VARIANCE = Part.reloaded_by("mean and variance", "reload_mean_and_variance", "mean_and_variance_state")


class Pair(NamedTuple):
    """Two buffers of float32, one number a channel: gamma and beta, or mean and variance."""

    first: MTLBuffer
    second: MTLBuffer

    @classmethod
    def of(cls, device: MTLDevice, rows: Rows) -> Pair:
        """New buffers with these numbers."""
        first, second = (device.new_buffer(data=row) for row in rows)
        return cls(first, second)

    def rows(self) -> Rows:
        """The numbers as they are in memory; queued work is not waited for."""
        first, second = (Numbers(buffer).value().cpu().numpy() for buffer in self)
        return first, second


class HeldPair:
    """One pair of a kernel, and the version of it that the kernel holds."""

    def __init__(self, buffers: Pair, held: Held) -> None:
        self.buffers = buffers
        self.held = held
        held.memory = WeakMethod(self.numbers)
        self.version = Version()
        """Another one where the numbers are in other buffers."""
        self.dependents = Dependents()
        """What follows from the numbers in these buffers."""

    @classmethod
    def of(cls, device: MTLDevice, source: object, part: Part, rows: Rows) -> HeldPair:
        """What ``source`` gave at first."""
        return cls(Pair.of(device, rows), Held(Lineage.of(source, part), fingerprint(*rows)))

    def copied(self, device: MTLDevice, source: object) -> HeldPair:
        """The numbers as they are now, for a copy of the kernel over ``source``."""
        return HeldPair(Pair.of(device, self.buffers.rows()), self.held.copied(source))

    def read(self, device: MTLDevice, rows: Rows) -> None:
        """Take what a data source gave, for encodes to come."""
        self.held.read(fingerprint(*rows), lambda: not self.equal(rows))
        # New buffers: work that is recorded already keeps the numbers that it was encoded with.
        self.buffers = Pair.of(device, rows)
        self.dependents = self.dependents.replaced()
        self.version.advance()

    def numbers(self) -> list[Numbers]:
        """Where the numbers are in memory."""
        return [*map(Numbers, self.buffers)]

    def equal(self, rows: Rows) -> bool:
        """Whether these are the numbers that a data source gave. Reads them; queued work is not waited for."""
        return all(np.array_equal(mine, given) for mine, given in zip(self.buffers.rows(), rows, strict=True))

    def take(self, command_buffer: CommandBuffer, who: str, state: ChannelStatePair) -> None:
        """Record that the first numbers of a state are taken, which was checked and is read by this."""
        check_reusable(command_buffer, who, "new numbers, which kernels take note of")
        given = [buffer for buffer in map(state.resource_at_index, range(2)) if isinstance(buffer, MTLBuffer)]
        channels = self.buffers.first.length // 4
        places = (*self.numbers(), *(Numbers(buffer, 0, channels) for buffer in given))
        record_op(command_buffer, f"{who} reload", Overwrite(), places)
        depends_on(command_buffer, self.version)
        at_each_step(command_buffer, self.held.take, given[0])
        self.dependents.record(command_buffer, f"{who} derived")
