"""Means, sums and extremes along axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openmps.formats.onnx.layout import Atom, Layout
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.site import Builder, Site
from openmps.graph.nodes import reduction as nodes
from openmps.types import MPSImageFeatureChannelFormat

_Kinds = Mapping[str, Any]
_MEAN: _Kinds = {
    "C": nodes.MPSNNReductionFeatureChannelsMeanNode,
    "H": nodes.MPSNNReductionColumnMeanNode,
    "W": nodes.MPSNNReductionRowMeanNode,
    "HW": nodes.MPSNNReductionSpatialMeanNode,
}
_SUM: _Kinds = {
    "C": nodes.MPSNNReductionFeatureChannelsSumNode,
    "H": nodes.MPSNNReductionColumnSumNode,
    "W": nodes.MPSNNReductionRowSumNode,
}
_MAXIMUM: _Kinds = {
    "C": nodes.MPSNNReductionFeatureChannelsMaxNode,
    "H": nodes.MPSNNReductionColumnMaxNode,
    "W": nodes.MPSNNReductionRowMaxNode,
}
_MINIMUM: _Kinds = {
    "C": nodes.MPSNNReductionFeatureChannelsMinNode,
    "H": nodes.MPSNNReductionColumnMinNode,
    "W": nodes.MPSNNReductionRowMinNode,
}
_LARGEST: _Kinds = {"C": nodes.MPSNNReductionFeatureChannelsArgumentMaxNode}
_SMALLEST: _Kinds = {"C": nodes.MPSNNReductionFeatureChannelsArgumentMinNode}


def reduced_axes(at: Site, node: Node, rank: int) -> list[int]:
    """The axes that are reduced: an attribute in old versions, an input in new ones; all where none are named."""
    given = at.integers(node, 1, "axes")
    if given is None:
        given = node.integers("axes", [])
    if not given and not node.integer("noop_with_empty_axes", 0):
        given = list(range(rank))
    if not all(-rank <= axis < rank for axis in given):
        raise NodeError(f"its axes {given[:8]} are none of {rank}")
    return sorted({axis % rank for axis in given})


def _reduction(kinds: _Kinds) -> Builder:
    def build(at: Site, node: Node) -> Picture:
        x = at.picture(node)
        axes = reduced_axes(at, node, x.layout.rank)
        return reduced(at, node, x, kinds, axes, keeps=bool(node.integer("keepdims", 1)))

    return build


def _argument(kinds: _Kinds) -> Builder:
    def build(at: Site, node: Node) -> Picture:
        x, axis = at.picture(node), node.integer("axis", 0)
        if node.integer("select_last_index", 0):
            raise NodeError("the last of equal numbers: the kernel gives the first")
        if not -x.layout.rank <= axis < x.layout.rank:
            raise NodeError(f"its axis {axis} is none of {x.layout.rank}")
        keeps = bool(node.integer("keepdims", 1))
        own = x.layout.axes[axis]
        if set(own) == set(x.layout.channels) and own != x.layout.channels:
            x = at.mover.permuted(x, own)  # places are counted along the axis
        return reduced(at, node, x, kinds, [axis % x.layout.rank], keeps=keeps)

    return build


def reduced(at: Site, node: Node, x: Picture, kinds: _Kinds, axes: list[int], *, keeps: bool) -> Picture:
    """A picture reduced along some axes, each of which is all channels, all rows or all columns of its image."""
    taken = {atom for axis in axes for atom in x.layout.axes[axis]}
    if x.layout.batch in taken:
        raise NodeError("it reduces the batch")
    image, layout = x.image, x.layout
    places = {"W": layout.columns, "H": layout.rows, "C": layout.channels}
    chosen = [name for name, atoms in places.items() if taken & set(atoms)]
    if {atom for name in chosen for atom in places[name]} != taken:
        raise NodeError("it reduces a part of the pixels or channels")
    if not chosen and kinds in (_LARGEST, _SMALLEST):
        raise NodeError("there is one number to choose from")
    steps = ["HW", *[name for name in chosen if name == "C"]] if {"H", "W"} <= {*chosen} and "HW" in kinds else chosen
    for step in steps:
        if step not in kinds:
            raise NodeError("it does not look for the place along feature channels")
        made = kinds[step](image)
        made.label = node.title
        image = made.result_image
        if kinds in (_LARGEST, _SMALLEST):  # float16 holds no odd place beyond 2,048
            image.format = MPSImageFeatureChannelFormat.FLOAT32
    return Picture(image, _without(layout, taken, axes, keeps=keeps))


def _without(layout: Layout, taken: set[Atom], axes: list[int], *, keeps: bool) -> Layout:
    found = layout.exchanged(dict.fromkeys(taken, ()))
    return found if keeps else found.with_axes(axis for place, axis in enumerate(found.axes) if place not in axes)


BUILDERS: dict[str, Builder] = {
    "ReduceMean": _reduction(_MEAN),
    "ReduceSum": _reduction(_SUM),
    "ReduceMax": _reduction(_MAXIMUM),
    "ReduceMin": _reduction(_MINIMUM),
    "ArgMax": _argument(_LARGEST),
    "ArgMin": _argument(_SMALLEST),
}
