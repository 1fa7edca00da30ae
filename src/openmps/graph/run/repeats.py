"""Updates that come again as they were: a data source of the package says so, and need not be asked for each anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from openmps.core.state.batch import MPSStateBatch
from openmps.graph.run.watch import Layer
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.metal.device import CommandBuffer
from openmps.metal.execution import Work
from openmps.runtime.binding import Binding
from openmps.types import MPSNNTrainingStyle


class Repeat(Protocol):
    """The update of one data source by the gradients of one state, which is taken in place."""

    @property
    def operands(self) -> Sequence[Binding]:
        """What it is bound to besides its numbers and the gradients."""
        ...

    def holds(self) -> bool:
        """Whether ``update`` would encode it again."""
        ...

    def encoded(self) -> tuple[str, Work]:
        """What ``update`` would record, with its label; it has done all else that ``update`` does."""
        ...


class Repeated:
    """The updates of all layers, each of which is one recorded work, and kernels that need do nothing behind it."""

    __slots__ = ("_updates",)

    def __init__(self, updates: Sequence[tuple[Repeat, ConvolutionWeights]]) -> None:
        self._updates = updates

    def encode(self, command_buffer: CommandBuffer) -> bool:
        """Encode them as they were, if no data source, optimizer or kernel would do anything else; whether it did."""
        for update, weights in self._updates:
            if not update.holds() or not weights.is_all_in(update.operands):
                return False
        for update, weights in self._updates:
            command_buffer.record(*update.encoded())
            weights.held.take(weights.weights_buffer)
        return True


def repeats_of(asked: Sequence[tuple[Layer, MPSStateBatch]]) -> Repeated | None:
    """The updates of some layers, which were just encoded; None unless all of them may come again."""
    found: list[tuple[Repeat, ConvolutionWeights]] = []
    for layer, states in asked:
        # What stands for a data source and hands on what it does not have itself may have an update of its own.
        offer: Any = getattr(type(layer.source), "_repeat_of", None)
        is_alone = len(layer.callbacks) == 1 and layer.callbacks[0].takes_source
        if offer is None or not is_alone or layer.style is not MPSNNTrainingStyle.UPDATE_DEVICE_GPU:
            return None
        weights: ConvolutionWeights = layer.kernel.parameters
        update = offer(layer.source, states.shared, weights.state())
        if update is None:
            return None
        found.append((update, weights))
    return Repeated(found)
