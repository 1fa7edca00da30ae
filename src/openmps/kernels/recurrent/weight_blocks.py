"""Where the weights of a layer that is trained lie: matrices that are made together, and what encodes see of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from openmps.core.elements import Elements
from openmps.core.kernel.operands import FLOATS
from openmps.core.operand import View
from openmps.core.vector import MPSMatrix, MPSMatrixDescriptor
from openmps.core.vector_descriptor import TORCH_TYPES
from openmps.kernels.recurrent.sequences import SequenceOperand, Steps, StepsShape, single_matrix
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.version import Version
from openmps.ops.geometry import meet
from openmps.types import MPSDataType


class Layout(NamedTuple):
    """How the matrices of a layer are read and written, by their numbers in a list of them."""

    shapes: tuple[tuple[int, int], ...]
    """Rows and columns of each."""
    order: tuple[int, ...]
    """The order in which they are read, as one vector."""
    sums: tuple[tuple[int, ...], ...]
    """Those that are written at once."""


_EVEN = 64
"""Bytes of which the memory of each has a multiple, so that all begin where memory of their own could."""


def new_matrices(device: MTLDevice, layout: Layout, data_type: MPSDataType) -> list[MPSMatrix]:
    """Matrices of zeros in buffers of their own, whose memory lies one behind the other in the layout's order."""
    descriptors = [MPSMatrixDescriptor(*shape, data_type=data_type) for shape in layout.shapes]
    lengths = [descriptors[at].rows * descriptors[at].row_bytes for at in layout.order]
    if any(length % _EVEN for length in lengths):
        made = [MPSMatrix(device=device, descriptor=each) for each in descriptors]
    else:
        memory = torch.zeros(sum(lengths), dtype=torch.uint8, device=device.torch_device)
        pieces = zip(layout.order, memory.split(lengths), strict=True)
        buffers = {at: MTLBuffer(device, piece.numel(), storage=piece) for at, piece in pieces}
        made = [MPSMatrix(buffers[at], each) for at, each in enumerate(descriptors)]
    if made:
        _together[made[0]] = _Together(device, made, layout)
    return made


class _Together:
    """Matrices that `new_matrices` has made, and what encodes see of them, made once for all."""

    __slots__ = ("_matrices", "device", "flat", "layout", "sums")

    def __init__(self, device: MTLDevice, matrices: Sequence[MPSMatrix], layout: Layout) -> None:
        self._matrices = [ref(each) for each in matrices]
        self.device, self.layout = device, layout
        whole = [each.whole() for each in matrices]
        # The operands of ordinary matrices, whose reads nobody counts, hold their memory alone.
        self.flat = SequenceOperand((), *_flat([whole[at] for at in layout.order]))
        self.sums = [SequenceOperand((), *_stretch([whole[at] for at in some])) for some in layout.sums]

    def are(self, given: Sequence[object]) -> bool:
        """Whether a list holds them, all in their order."""
        return [each() for each in self._matrices] == [*given]


_together: WeakKeyDictionary[MPSMatrix, _Together] = WeakKeyDictionary()
"""By the first matrix."""


def made_together(command_buffer: CommandBuffer, given: Sequence[object], layout: Layout) -> _Together | None:
    """What encodes see of matrices that were made at once for such a layer; None of other lists."""
    first = given[0] if given else None
    found = _together.get(first) if type(first) is MPSMatrix else None
    if found is None or found.device is not command_buffer.device or found.layout != layout or not found.are(given):
        return None
    return found


class _InOnePiece(NamedTuple):
    """Elements of some buffers as they lie, one axis, as long as none of them has other memory."""

    versions: list[Version]
    changes: int
    elements: Tensor

    @property
    def is_current(self) -> bool:
        """Whether all buffers have the memory that they had."""
        return sum([each.number for each in self.versions]) == self.changes


def _in_one_piece(parts: Sequence[Elements]) -> _InOnePiece | None:
    """The elements of some buffers that lie one behind the other in one piece of memory.

    None where they lie apart, or where a buffer is seen in part: as many elements as fit lie without gaps.
    """
    kind = parts[0].shape.stored_as
    versions = [version for part in parts for version in part.buffer.versions()]
    # Before the memory: what changes meanwhile is looked up again.
    changes, dtype = sum([each.number for each in versions]), TORCH_TYPES[kind]
    memories = [each for part in parts if (each := part.buffer.present) is not None]
    if len(memories) < len(parts):
        return None
    first = memories[0]
    storage, start = first.untyped_storage().data_ptr(), first.storage_offset()
    end = start
    for part, memory in zip(parts, memories, strict=True):
        is_all = part.shape.stored_as is kind and prod(part.shape.sizes) * dtype.itemsize == memory.numel()
        follows = memory.storage_offset() == end and memory.untyped_storage().data_ptr() == storage
        if not is_all or not follows or memory.dtype != torch.uint8:
            return None
        end += memory.numel()
    # An array that begins where the storage does has, as one of its own, its part of the memory alone.
    if start % dtype.itemsize or end > first.untyped_storage().nbytes():
        return None
    return _InOnePiece(versions, changes, first.as_strided((end - start,), (1,)).view(dtype))


class _OfBlock(Steps):
    """The elements of a layer's matrices, which may follow one another in a block."""

    __slots__ = ("_there",)

    def __init__(self, parts: tuple[Elements, ...], shape: StepsShape) -> None:
        super().__init__(parts, shape)
        self._there: _InOnePiece | None = None

    def _elements(self) -> Tensor | None:
        """As they lie, one axis; None where they lie apart."""
        there = self._there
        if there is None or not there.is_current:
            there = self._there = _in_one_piece(self.parts)
        return None if there is None else there.elements


class _Flat(_OfBlock):
    """The elements of matrices of any sizes, those of each behind one another; none are stored."""

    __slots__ = ()

    def value(self) -> Tensor:
        """The elements as they lie, or in memory of their own, one axis."""
        found = self._elements()
        return torch.cat([part.value().flatten() for part in self.parts]) if found is None else found


class _Stretch(_OfBlock):
    """The rows of some matrices."""

    __slots__ = ()

    def value(self) -> Tensor:
        """The elements as they lie, or in memory of their own."""
        found = self._elements()
        return super().value() if found is None else found.view(self.shape.sizes)

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Store the rows of each matrix in their place."""
        found = self._elements()
        if found is None:
            super().take(value, is_shared=is_shared)
            return
        place = found.view(self.shape.sizes)
        place.copy_(value.clone() if is_shared and meet(value, place) else value)


def _stretch(parts: Sequence[Elements]) -> tuple[View[Any], list[int]]:
    """The rows of some of a layer's matrices, and how many each has."""
    each = [part.part(0) for part in parts]
    rows = [part.shape.sizes[0] for part in each]
    types = frozenset([part.shape.stored_as for part in each])
    shape = StepsShape(tuple(rows), each[0].shape.sizes[1], types)
    return each[0] if len(each) == 1 else _Stretch(tuple(each), shape), rows


def _flat(parts: Sequence[Elements]) -> tuple[View[Any], tuple[int, ...]]:
    """The elements of a layer's matrices as one vector, and how many each has."""
    types = frozenset([part.shape.stored_as for part in parts])
    shape = StepsShape(tuple([prod(part.shape.sizes) for part in parts]), 1, types)
    return _Flat(tuple(parts), shape), shape.rows


def some_matrices(
    who: str, argument: str, command_buffer: CommandBuffer, matrices: Sequence[MPSMatrix], order: Iterable[int]
) -> SequenceOperand:
    """The rows of some of a layer's single matrices, whose sizes are known to be right."""
    return SequenceOperand(matrices, *_stretch(_each_single(who, argument, command_buffer, matrices, order)))


def flat_matrices(
    who: str, argument: str, command_buffer: CommandBuffer, matrices: Sequence[MPSMatrix], order: Iterable[int]
) -> SequenceOperand:
    """The elements of a layer's single matrices, whose sizes are known to be right, in an order, as one vector."""
    return SequenceOperand(matrices, *_flat(_each_single(who, argument, command_buffer, matrices, order)))


def _each_single(
    who: str, argument: str, command_buffer: CommandBuffer, matrices: Sequence[MPSMatrix], order: Iterable[int]
) -> list[Elements]:
    """All of each matrix; few calls for ordinary ones, as most are."""
    device, ordered = command_buffer.device, [*order]
    parts = [matrices[at].whole() for at in ordered] if {*map(type, matrices)} == {MPSMatrix} else []
    if parts and all(part.buffer.device is device and part.shape.stored_as in FLOATS for part in parts):
        return parts
    return [single_matrix(who, f"{argument}[{at}]", matrices[at], command_buffer) for at in ordered]
