"""Gradient states: what a forward kernel records for its gradient kernel (MPSNNGradientState.h, macOS 10.13.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from openmps.core.state.state import BatchableState, MPSState, MPSStateBatch, Saved
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from openmps.core.image.storage import Extent, Target
    from openmps.ops.geometry import Window
    from openmps.types import MPSImageEdgeMode


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """How one source was read: its shape, its window, its edges and its channels."""

    extent: Extent
    window: Window
    edge_mode: MPSImageEdgeMode
    channel: int
    channels: int
    first_image: int = 0


@dataclass(frozen=True, slots=True)
class ForwardRecord:
    """The properties of one forward encode."""

    sources: tuple[SourceRecord, ...]
    destination: Extent
    target: Target
    parameters: Any = None
    first_destination_image: int = 0
    images: int = 1
    is_batch: bool = False
    made_by: type = object


@runtime_checkable
class MPSImageSizeEncodingState(Protocol):
    """A state that remembers the size of the forward source (MPSNeuralNetworkTypes.h, macOS 10.13).

    A kernel that makes images smaller loses the remainder of size / stride; a pass that enlarges them again needs the
    size from here. `MPSCNNConvolutionTranspose` takes it from the state of the convolution that it undoes. Every
    gradient state of this library conforms.
    """

    @property
    def source_width(self) -> int:
        """Width of the source image of the forward encode."""
        ...

    @property
    def source_height(self) -> int:
        """Height of the source image of the forward encode."""
        ...


class MPSNNGradientState(BatchableState):
    """What one forward encode leaves for its gradient kernel (MPSNNGradientState.h, macOS 10.13.4).

    Made by a kernel's ``result_state…`` methods only; the contents are private to the pair of kernels.
    """

    image_index: int | None = None
    source_extent: Extent | None = None
    """The shape of the source that the state was made for; a forward encode's record overrules it."""
    _record: ForwardRecord | None = None
    _whole: MPSNNGradientState | None = None

    @property
    def record(self) -> ForwardRecord | None:
        """What the forward encode recorded; None before it. For those who extend the framework."""
        if self._record is None and self._whole is not None:
            return self._whole.record
        return self._record

    @record.setter
    def record(self, value: ForwardRecord | None) -> None:
        self._record = value

    @property
    def source_width(self) -> int:
        """Width of the source image of the forward encode (MPSImageSizeEncodingState)."""
        return self._source().width

    @property
    def source_height(self) -> int:
        """Height of the source image of the forward encode (MPSImageSizeEncodingState)."""
        return self._source().height

    def _source(self) -> Extent:
        extent = self.source_extent
        return self.forward().sources[0].extent if self.record is not None or extent is None else extent

    def forward(self) -> ForwardRecord:
        """The record; raises if no forward encode has filled it in."""
        if self.record is None:
            raise MPSArgumentError(
                self.name,
                "gradient state",
                "must come from a forward encode",
                "an empty state",
                "Pass it as destination_state to the forward kernel first",
            )
        return self.record

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch."""
        state = type(self).__new__(type(self))
        state.__dict__.update(self.__dict__)
        state.image_index = index
        state._whole = self
        return state


class MPSNNBinaryGradientState(MPSNNGradientState):
    """The gradient state of kernels with two sources (MPSNNGradientState.h, macOS 10.13.4)."""


class MPSNNMultiaryGradientState(MPSNNGradientState):
    """The gradient state of kernels with any number of sources (MPSNNGradientState.h, macOS 10.15)."""


def attach(states: MPSStateBatch, record: ForwardRecord) -> Saved:
    """Record a forward encode in the states of its batch; returns the place for what its work saves."""
    if states.shared is not None:
        shared = states.shared
        if isinstance(shared, MPSNNGradientState):
            shared.record = record
        return shared.saved
    saved = Saved()
    for index, state in enumerate(states):
        state.saved = saved
        if isinstance(state, MPSNNGradientState):
            state.record = record
            state.image_index = index
    return saved


def saved_by(states: MPSStateBatch) -> Callable[[], Any]:
    """What the forward work saved for these images, read when the gradient work runs."""
    first = states.shared if states.shared is not None else states[0]
    index = getattr(first, "image_index", None)
    if states.shared is not None and (index is None or len(states) > 1):
        cell = states.shared.saved
        return lambda: cell.value
    picks = [(state.saved, getattr(state, "image_index", None)) for state in states]

    def collect() -> Any:
        values = [_pick(cell.value, position) for cell, position in picks]
        return None if any(value is None for value in values) else torch.cat(values)

    return collect


def _pick(value: Any, index: int | None) -> Any:
    if index is None or not isinstance(value, Tensor):
        return value
    return value[index : index + 1]
