"""Operators that change the shape of a tensor; most of them move no number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openmps.formats.onnx.constants import known, lengths
from openmps.formats.onnx.layout import Layout, Length, merged, reshaped, size_of, transposed
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.pictures import Picture
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.site import Builder, Site


def _shape(at: Site, node: Node) -> Array:
    """The lengths of a picture's axes, a constant but for those that are not known."""
    shape = at.picture(node).layout.lengths
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return lengths(shape[start:end])


def _reshape(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    if node.given("shape"):
        shape: list[Length] = [*node.integers("shape")]
    else:
        given = at.constant(node, 1, "shape")
        if given.ndim != 1 or given.size > 16 or given.dtype.kind not in "iuO":
            raise NodeError("its new shape is no row of whole numbers")
        shape = given.tolist()
    if 0 in shape and not node.integer("allowzero", 0):
        own = x.layout.lengths
        shape = [own[place] if length == 0 and place < len(own) else length for place, length in enumerate(shape)]
    if any(isinstance(length, int) and (length < -1 or length == 0) for length in shape):
        raise NodeError(f"its new shape {shape} is none that a tensor has")
    return x.over(reshaped(x.layout, shape))


def _flatten(at: Site, node: Node) -> Picture:
    x, axis = at.picture(node), node.integer("axis", 1)
    if not -x.layout.rank <= axis <= x.layout.rank:
        raise NodeError(f"its axis {axis} is none of {x.layout.rank}")
    return x.over(merged(x.layout, axis if axis >= 0 else axis + x.layout.rank))


def _transpose(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    return x.over(transposed(x.layout, node.integers("perm", list(range(x.layout.rank))[::-1])))


def _given_axes(at: Site, node: Node, rank: int) -> list[int] | None:
    axes = at.integers(node, 1, "axes")
    if axes is None and node.given("axes"):
        axes = node.integers("axes")
    if axes is None:
        return None
    if not all(-rank <= axis < rank for axis in axes):
        raise NodeError(f"its axes {axes[:8]} are none of {rank}")
    return sorted({axis % rank for axis in axes})


def _squeeze(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    axes = _given_axes(at, node, x.layout.rank)
    own = x.layout.axes
    if axes is None:
        if x.layout.batch.size in (None, 1) or None in x.layout.shape:
            raise NodeError("it takes away every axis of length 1, perhaps the batch's", "Name its axes in the model")
        axes = [place for place, axis in enumerate(own) if size_of(axis) == 1]
    if any(own[axis] for axis in axes):
        raise NodeError("it takes away an axis of a length that is not 1, or the batch's")
    return x.over(x.layout.with_axes(axis for place, axis in enumerate(own) if place not in axes))


def _unsqueeze(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    count = len(node.integers("axes")) if node.given("axes") else len(at.integers(node, 1, "axes") or [])
    axes = _given_axes(at, node, x.layout.rank + count)
    if axes is None or len(axes) != count or x.layout.rank + count > 16:
        raise NodeError("its axes are missing, or named twice")
    own = iter(x.layout.axes)
    return x.over(x.layout.with_axes(() if place in axes else next(own) for place in range(x.layout.rank + count)))


def _expand(at: Site, node: Node) -> Picture:
    """Only one that changes nothing."""
    x = at.picture(node)
    shape = known(at.constant(node, 1, "shape"), "shape")
    own = x.layout.shape[x.layout.rank - len(shape) :] if len(shape) <= x.layout.rank else ()
    if len(own) != len(shape) or any(length not in (1, mine) for length, mine in zip(shape, own, strict=True)):
        raise NodeError("it repeats numbers of an image", "Arithmetic repeats by itself: leave Expand out")
    return x


def axis_of(layout: Layout, axis: int) -> int:
    """An axis, counted from the front."""
    if not -layout.rank <= axis < layout.rank:
        raise NodeError(f"its axis {axis} is none of {layout.rank}")
    return axis % layout.rank


def is_everything(places: Sequence[int | None], count: int) -> bool:
    """Whether a choice is of everything, in order."""
    return list(places) == list(np.arange(count))


BUILDERS: dict[str, Builder] = {
    "Shape": _shape,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
}
