"""Gradient states: what a forward kernel records for its gradient kernel (MPSNNGradientState.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from openmps.checks import store
from openmps.core.image.storage import Extent, Target
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import BatchableState, MPSState, Saved
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.pending import Region
from openmps.ops.geometry import Window
from openmps.runtime.binding import MemoryBinding
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


@dataclass(frozen=True, slots=True, eq=False)
class ForwardRecord:
    """The properties of one forward encode; equal encodes have the same object."""

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

    >>> import numpy as np, openmps as mps
    >>> device = mps.mtl_device("cpu")
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> x = mps.MPSImage.from_numpy(device, np.float32([-1, 2]).reshape(1, 2, 1))
    >>> relu = mps.MPSCNNNeuronReLU(device, 0.0)
    >>> result, state = relu.encode(command_buffer, x, destination_state_is_temporary=False)
    >>> state.source_width, state.source_height
    (2, 1)
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
        if value is not None and not isinstance(value, ForwardRecord):
            raise MPSTypeError(self.name, "record", "must be a ForwardRecord or None", type(value).__name__)
        store(self, "_record", value)

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
            raise unrecorded(self.name)
        return self.record

    def member(self, index: int) -> MPSState:
        """The state of image ``index`` of the batch."""
        state = type(self).__new__(type(self))
        state.__dict__.update(self.__dict__)
        state.image_index = index
        # What a later encode of the whole batch records is the member's too.
        state._record, state._whole = None, self
        return state


class MPSNNBinaryGradientState(MPSNNGradientState):
    """The gradient state of kernels with two sources (MPSNNGradientState.h, macOS 10.13.4).

    >>> result, state = mps.MPSCNNMultiply(device).encode(command_buffer, x, x, destination_state_is_temporary=False)
    >>> isinstance(state, mps.MPSNNBinaryGradientState)
    True
    """


class MPSNNMultiaryGradientState(MPSNNGradientState):
    """The gradient state of kernels with any number of sources (MPSNNGradientState.h, macOS 10.15)."""


def attach(states: MPSStateBatch, record: ForwardRecord) -> Saved:
    """Record a forward encode in the states of its batch; returns the place for what its work saves."""
    if states.shared is not None:
        shared = states.shared
        if isinstance(shared, MPSNNGradientState):
            store(shared, "record", record)
        return shared.saved
    saved = Saved()
    for index, state in enumerate(states):
        store(state, "saved", saved)
        if isinstance(state, MPSNNGradientState):
            store(state, "record", record)
            store(state, "image_index", index)
    return saved


def unrecorded(name: str) -> MPSArgumentError:
    """The error about a state, called by its name, that no forward encode has filled in."""
    remedy = "Pass it as destination_state to the forward kernel first"
    return MPSArgumentError(name, "gradient state", "must come from a forward encode", "an empty state", remedy)


class _SavedPartsFields(NamedTuple):
    parts: list[tuple[Saved, int | None]]


class SavedParts(_SavedPartsFields, MemoryBinding):
    """What the forward work saved for some images, read when the gradient work runs."""

    __slots__ = ()

    def memories(self) -> tuple[Saved, ...]:
        """The memory that it reads."""
        return tuple([saved for saved, _ in self.parts])

    def view_key(self) -> Hashable:
        """How it reads it."""
        return tuple([index for _, index in self.parts])

    def rebind(self, memories: Sequence[Saved]) -> SavedParts:
        """The same of other memory."""
        return SavedParts([(saved, index) for saved, (_, index) in zip(memories, self.parts, strict=True)])

    def regions(self) -> list[Region]:
        """What the forward kernel leaves for each."""
        return [region for saved, _ in self.parts for region in saved.regions()]

    def value(self) -> Any:
        """The rows of the images one behind the other; None if one of them has nothing saved."""
        values = [_row(saved.content, index) for saved, index in self.parts]
        return None if any(value is None for value in values) else torch.cat(values)


def saved_by(states: MPSStateBatch | None) -> Saved | SavedParts:
    """Where the function of a gradient finds what the forward encodes of these states saved."""
    if states is None or not len(states):
        return Saved()
    first = states.shared if states.shared is not None else states[0]
    index = getattr(first, "image_index", None)
    if states.shared is not None and (index is None or len(states) > 1):
        return states.shared.saved
    return SavedParts([(state.saved, getattr(state, "image_index", None)) for state in states])


def _row(value: Any, index: int | None) -> Any:
    if index is None or not isinstance(value, Tensor):
        return value
    return value[index : index + 1]
