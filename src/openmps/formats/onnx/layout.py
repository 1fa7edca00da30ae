"""Which numbers of an image are which numbers of a tensor.

A tensor's axes are products of atoms, and so are the channels, rows and columns of the image that holds it. To
transpose, squeeze, flatten or reshape a tensor then moves no number: only the axes are described anew. Where an
operator needs its axes in their usual places, `openmps.formats.onnx.pictures` moves numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from openmps.formats.onnx.problems import NodeError


class Atom:
    """A part of an axis that is never divided further, of a length above 1, or None where it is not known."""

    __slots__ = ("size",)

    def __init__(self, size: int | None) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"Atom({self.size})"


Atoms = tuple[Atom, ...]
"""A product of atoms, the last varying fastest."""
Length = int | Atom | None
"""The length of an axis: a number, that of an atom whose size is not known, or None, computed of such."""


def atoms(size: int | None) -> Atoms:
    """A new axis; one of length 1 needs no atom."""
    return () if size == 1 else (Atom(size),)


def size_of(axis: Iterable[Atom]) -> int | None:
    """The length of an axis; None where it is not known."""
    sizes = [atom.size for atom in axis]
    known = [size for size in sizes if size is not None]
    return None if len(known) < len(sizes) else math.prod(known)


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor, and where its image keeps them. The images of a batch are an atom of the axes, too."""

    batch: Atom
    axes: tuple[Atoms, ...]
    channels: Atoms
    rows: Atoms = ()
    columns: Atoms = ()

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The lengths of the axes."""
        return tuple(size_of(axis) for axis in self.axes)

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The lengths of the axes, in which those that are not known can be told apart."""
        return tuple(axis[0] if len(axis) == 1 and axis[0].size is None else size_of(axis) for axis in self.axes)

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.axes)

    @property
    def places(self) -> tuple[Atoms, Atoms, Atoms]:
        """Channels, rows and columns."""
        return self.channels, self.rows, self.columns

    @property
    def numbers(self) -> Atoms:
        """All atoms of an image in the order in which the framework counts its numbers: the channel fastest."""
        return (*self.rows, *self.columns, *self.channels)

    @property
    def is_batched(self) -> bool:
        """Whether the first axis is the images of a batch and no other axis has a part in it."""
        return self.rank > 0 and self.axes[0] == (self.batch,)

    def with_axes(self, axes: Iterable[Atoms]) -> Layout:
        """The same image, described by other axes."""
        return replace(self, axes=tuple(axes))

    def exchanged(self, new: Mapping[Atom, Atoms]) -> Layout:
        """Some atoms replaced everywhere."""

        def put(axis: Atoms) -> Atoms:
            return tuple(each for atom in axis for each in new.get(atom, (atom,)))

        axes = tuple(put(axis) for axis in self.axes)
        return Layout(self.batch, axes, put(self.channels), put(self.rows), put(self.columns))


def planar(batch: Atom, channels: Atoms, rows: Atoms, columns: Atoms, rank: int = 4) -> Layout:
    """The usual axes: N, C, H, W; without H where there are three, without both where there are two."""
    spatial = {2: (), 3: (columns,), 4: (rows, columns)}[rank]
    return Layout(batch, ((batch,), channels, *spatial), channels, rows, columns)


# --- other axes over the same numbers ---------------------------------------------------------------------------------


def transposed(layout: Layout, order: Sequence[int]) -> Layout:
    """The axes in another order."""
    if sorted(order) != list(range(layout.rank)):
        raise NodeError(f"its order of axes, {list(order)[:8]}, is none of {layout.rank} axes")
    return layout.with_axes(layout.axes[axis] for axis in order)


def merged(layout: Layout, axis: int) -> Layout:
    """ONNX's Flatten: the axes before ``axis`` as one, and those from it on as another."""
    before = tuple(atom for each in layout.axes[:axis] for atom in each)
    behind = tuple(atom for each in layout.axes[axis:] for atom in each)
    return layout.with_axes((before, behind))


def reshaped(layout: Layout, shape: Sequence[Length]) -> Layout:
    """The numbers counted anew, along other axes.

    At most one length is -1, what is left over.
    """
    flat = [atom for axis in layout.axes for atom in axis]
    if list(shape).count(-1) > 1:
        raise NodeError("its new shape leaves two lengths open")
    if None in shape:
        raise NodeError("its new shape has a length that is computed of one that is not known", _GIVE)
    if -1 not in shape:
        return _taken(layout, flat, shape)
    open_at = list(shape).index(-1)
    known, sizes = size_of(flat), [length for length in shape if isinstance(length, int) and length != -1]
    if known is not None and len(sizes) == len(shape) - 1 and (count := math.prod(sizes)):
        if known % count:
            raise NodeError(f"{known} numbers do not fit its new shape, {_text(shape)}")
        return _taken(layout, flat, [known // count if length == -1 else length for length in shape])
    layout, head = _axes(layout, flat, shape[:open_at], from_left=True)
    flat = _remaining(layout, head)
    layout, tail = _axes(layout, flat, shape[open_at + 1 :], from_left=False)
    count = sum(map(len, tail))
    middle = _remaining(layout, head)
    return layout.with_axes((*head, tuple(middle[: len(middle) - count]), *tail))


def _taken(layout: Layout, flat: Sequence[Atom], shape: Sequence[Length]) -> Layout:
    layout, axes = _axes(layout, flat, shape, from_left=True)
    rest = _remaining(layout, axes)
    if rest:
        raise NodeError(f"its new shape, {_text(shape)}, has fewer numbers than there are")
    return layout.with_axes(axes)


def _remaining(layout: Layout, axes: Sequence[Atoms]) -> list[Atom]:
    """The atoms behind those of some axes, which are the first."""
    flat = [atom for axis in layout.axes for atom in axis]
    return flat[sum(map(len, axes)) :]


def _axes(
    layout: Layout, flat: Sequence[Atom], shape: Sequence[Length], *, from_left: bool
) -> tuple[Layout, list[Atoms]]:
    """Atoms for some axes, from one end on; atoms that belong to two of them are divided."""
    rest = list(flat) if from_left else list(flat)[::-1]
    axes: list[Atoms] = []
    for length in shape if from_left else list(shape)[::-1]:
        layout, axis, rest = _axis(layout, rest, length, from_left=from_left, whole=shape)
        axes.append(axis if from_left else axis[::-1])
    return layout, axes if from_left else axes[::-1]


def _axis(
    layout: Layout, rest: list[Atom], length: Length, *, from_left: bool, whole: Sequence[Length]
) -> tuple[Layout, Atoms, list[Atom]]:
    """The atoms of one axis, what is left of the others, and the layout with what had to be divided."""
    if not isinstance(length, int):
        own = [atom for axis in layout.axes for atom in axis]
        if not rest or rest[0].size is not None or (length is not rest[0] and length in own):
            raise NodeError(f"its new shape, {_text(whole)}, puts a length that is not known elsewhere", _GIVE)
        return layout, (rest[0],), rest[1:]
    wanted, axis = length, list[Atom]()
    if rest and rest[0] is layout.batch and rest[0].size == 1 and length == 1 and from_left:
        return layout, (rest[0],), rest[1:]
    while wanted != 1:
        if not rest:
            raise NodeError(f"its new shape, {_text(whole)}, has more numbers than there are")
        atom = rest[0]
        if atom.size is not None and wanted % atom.size == 0:
            axis.append(atom)
            rest = rest[1:]
            wanted //= atom.size
            continue
        if atom.size is None:
            raise NodeError(f"its new shape, {_text(whole)}, divides an axis whose length is not known", _GIVE)
        if atom.size % wanted or atom is layout.batch:
            raise NodeError(f"its new shape, {_text(whole)}, cuts across the axes that there are")
        parts = (wanted, atom.size // wanted) if from_left else (atom.size // wanted, wanted)
        first, second = Atom(parts[0]), Atom(parts[1])
        layout = layout.exchanged({atom: (first, second)})
        near, far = (first, second) if from_left else (second, first)
        return layout, (*axis, near), [far, *rest[1:]]
    return layout, tuple(axis), rest


_GIVE = "Give the size of the input, as shapes={name: shape} or --shape NAME=1,3,224,224"


def _text(shape: Sequence[Length]) -> str:
    return "x".join(str(length) if isinstance(length, int) else "?" for length in shape[:12])


# --- two tensors ------------------------------------------------------------------------------------------------------


def unified(one: Layout, other: Layout) -> tuple[Layout, Layout]:
    """Two tensors that are broadcast to one another, described by the same atoms on the axes that both have.

    Raises `NodeError` where lengths differ, or are known of one and not of the other.
    """
    rank = max(one.rank, other.rank)
    one = one.with_axes(((),) * (rank - one.rank) + one.axes)
    other = other.with_axes(((),) * (rank - other.rank) + other.axes)
    if one.batch is not other.batch:
        raise NodeError("its inputs have batches of their own")
    other = _apart(one, other)
    for axis in range(rank):
        if one.axes[axis] and other.axes[axis]:
            one, other = _matched(one, other, axis)
    return one, other


def _apart(one: Layout, other: Layout) -> Layout:
    """The other tensor with atoms of its own in the place of those that one tensor has on another axis."""
    places = {atom: axis for axis, atoms in enumerate(one.axes) for atom in atoms}
    crossed = [
        atom for axis, atoms in enumerate(other.axes) for atom in atoms if places.get(atom, axis) != axis
    ]  # fmt: skip
    if one.batch in crossed:
        raise NodeError("the batch of one of its inputs is another axis of the other")
    return other.exchanged({atom: (Atom(atom.size),) for atom in crossed})


def _matched(one: Layout, other: Layout, axis: int) -> tuple[Layout, Layout]:
    """One axis of two tensors, of the same atoms."""
    place = 0
    while place < max(len(one.axes[axis]), len(other.axes[axis])):
        if place >= min(len(one.axes[axis]), len(other.axes[axis])):
            raise NodeError(f"its inputs have different lengths on axis {axis}")
        first, second = one.axes[axis][place], other.axes[axis][place]
        if first is second:
            place += 1
        elif one.batch in (first, second):
            raise NodeError("the batch of one of its inputs is another axis of the other")
        elif first.size == second.size:
            other = other.exchanged({second: (first,)})
            place += 1
        elif first.size is None or second.size is None:
            raise NodeError(f"the length of axis {axis} is known of one of its inputs only", _GIVE)
        elif first.size > second.size and first.size % second.size == 0:
            one = one.exchanged({first: (Atom(second.size), Atom(first.size // second.size))})
        elif second.size > first.size and second.size % first.size == 0:
            other = other.exchanged({second: (Atom(first.size), Atom(second.size // first.size))})
        else:
            raise NodeError(f"its inputs have different lengths on axis {axis}, {first.size} and {second.size}")
    return one, other
