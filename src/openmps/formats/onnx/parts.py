"""Operators that put tensors together and take them apart: concatenation, slices, pads, blocks of pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openmps.core.padding.explicit import ExplicitPadding
from openmps.formats.onnx.constants import slices
from openmps.formats.onnx.layout import Atoms, Layout, atoms, planar, size_of, unified
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.shapes import axis_of, is_everything
from openmps.formats.onnx.site import Builder, Site
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.graph.nodes.shape import MPSNNPadNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor, MPSCNNSubPixelConvolutionDescriptor
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode

_GIVE = "Give the size of the input, as shapes={name: shape} or --shape NAME=1,3,224,224"
_PLACES = ("channels", "rows", "columns")


def _place(layout: Layout, axis: int) -> str:
    """Which place of the image an axis is: its channels, its rows or its columns."""
    own = layout.axes[axis]
    found = [name for name in _PLACES if getattr(layout, name) == own]
    if layout.batch in own or not found:
        raise NodeError("its axis is not all channels, all rows or all columns of an image")
    return found[0]


def _resized(layout: Layout, axis: int, place: str, size: int | None) -> Layout:
    """Another length of one axis and of the place that it is."""
    new = atoms(size)
    axes = tuple(new if each == axis else own for each, own in enumerate(layout.axes))
    return replace(layout, axes=axes, **{place: new})


def _length(axis: Atoms) -> int:
    size = size_of(axis)
    if size is None:
        raise NodeError("the length of its axis is not known", _GIVE)
    return size


# --- together ---------------------------------------------------------------------------------------------------------


def concatenation(at: Site, node: Node) -> Picture:
    """Of channels, rows or columns."""
    pictures = [at.picture(node, place) for place in range(len(node.inputs))]
    if not pictures:
        raise NodeError("an input is missing")
    axis = axis_of(pictures[0].layout, node.integer("axis", 1))
    pictures = _alike(at, pictures, axis)
    layout = pictures[0].layout
    place = _joined_place(pictures, axis)
    sizes = [_length(picture.layout.axes[axis]) for picture in pictures]
    result = _resized(layout, axis, place, sum(sizes))
    if len(pictures) == 1:
        return pictures[0]
    if place == "channels":
        return _joined(at, node, pictures, sizes, result)
    return _side_by_side(at, node, pictures, sizes, place, result)


def _alike(at: Site, pictures: list[Picture], axis: int) -> list[Picture]:
    """Pictures that hold their axes in the same places."""
    layouts = [picture.layout for picture in pictures]
    if any(layout.rank != layouts[0].rank for layout in layouts):
        raise NodeError("its inputs have different numbers of axes")
    if any([len(axis) for axis in layout.axes] != [len(axis) for axis in layouts[0].axes] for layout in layouts):
        pictures = [at.mover.planar(picture) for picture in pictures]
    # What is concatenated may be of any length; along the other axes all are of the same.
    others = [_without(picture.layout, axis) for picture in pictures]
    for other in others[1:]:
        one, two = unified(others[0], other)
        if one.axes != two.axes or one.places != two.places:
            raise NodeError("its inputs hold their axes in different places, or are of different sizes")
    return pictures


def _without(layout: Layout, axis: int) -> Layout:
    gone = dict.fromkeys(layout.axes[axis], ())
    return layout.exchanged(gone)


def _joined_place(pictures: list[Picture], axis: int) -> str:
    """The place of the axis, which the others than those of length 1 tell."""
    layouts = [picture.layout for picture in pictures]
    telling = [layout for layout in layouts if layout.axes[axis]]
    if not telling:  # all of length 1: whichever place is free
        free = [name for name in _PLACES if all(not getattr(layout, name) for layout in layouts)]
        if not free:
            raise NodeError("its axis has no place in the image")
        return free[0]
    places = {_place(layout, axis) for layout in telling}
    (place, *more) = sorted(places)
    if more or any(getattr(layout, place) != layout.axes[axis] for layout in layouts):
        raise NodeError("its inputs hold the axis in different places")
    return place


def _joined(at: Site, node: Node, pictures: list[Picture], sizes: list[int], layout: Layout) -> Picture:
    """Channels one after another; the framework fills each source up to a multiple of 4, which is taken out again."""
    made = MPSNNConcatenationNode([picture.image for picture in pictures])
    made.label = node.title
    if all(size % 4 == 0 for size in sizes):
        return Picture(made.result_image, layout)
    at.budget.take(4 * sum(sizes) ** 2, "a concatenation whose channels close up")
    taken: list[int | None] = []
    start = 0
    for size in sizes:
        taken += range(start, start + size)
        start += -(-size // 4) * 4
    whole = Picture(made.result_image, replace(layout, channels=atoms(start)))
    return Picture(at.mover.selected(whole, taken), layout)


def _side_by_side(
    at: Site, node: Node, pictures: list[Picture], sizes: list[int], place: str, layout: Layout
) -> Picture:
    """Rows or columns one after another: each picture among zeros, and the sum."""
    total, start, found = sum(sizes), 0, None
    for picture, size in zip(pictures, sizes, strict=True):
        sides = [
            MPSImageCoordinate(*((n, 0) if place == "columns" else (0, n)), 0) for n in (start, total - start - size)
        ]
        padded = MPSNNPadNode(picture.image, sides[0], sides[1], MPSImageEdgeMode.ZERO).result_image
        found = padded if found is None else MPSNNAdditionNode(found, padded).result_image
        start += size
    assert found is not None
    return Picture(found, layout)


# --- apart ------------------------------------------------------------------------------------------------------------


def part(at: Site, x: Picture, axis: int, places: range | list[int]) -> Picture:
    """Some of the numbers along an axis."""
    layout = x.layout
    if not len(places):
        raise NodeError("it takes nothing: an image has at least one pixel and one channel")
    size = _length(layout.axes[axis])
    if places == range(size) or (isinstance(places, list) and is_everything(places, size)):
        return x
    own = layout.axes[axis]
    if own and set(own) <= set(layout.channels):
        at.budget.take(4 * channels_of(layout.channels) * len(places), "a choice of channels")
    if own != layout.channels and set(own) <= set(layout.channels):
        return _part_of_channels(at, x, axis, list(places))
    place = _place(layout, axis)
    result = _resized(layout, axis, place, len(places))
    if place == "channels":
        return Picture(at.mover.selected(x, list(places)), result)
    if not isinstance(places, range) or places.step < 1:
        raise NodeError("it takes pixels in another order", "The framework cuts out pixels from the first on")
    first, behind = places[0], _length(layout.axes[axis]) - 1 - places[-1]
    sides = (first, 0, behind, 0) if place == "columns" else (0, first, 0, behind)
    steps = (places.step, 1) if place == "columns" else (1, places.step)
    cut = MPSCNNPoolingMaxNode(x.image, 1, 1, *steps)
    cut.padding_policy = ExplicitPadding(*(-side for side in sides))
    return Picture(cut.result_image, result)


def _part_of_channels(at: Site, x: Picture, axis: int, places: list[int]) -> Picture:
    """Some numbers along an axis that is a factor of the channels."""
    layout, own = x.layout, x.layout.axes[axis]
    rest = tuple(atom for atom in layout.channels if atom not in own)
    numbers = np.arange(channels_of(layout.channels)).reshape([atom.size or 1 for atom in layout.channels])
    order = [layout.channels.index(atom) for atom in (*own, *rest)]
    chosen = numbers.transpose(order).reshape(_length(own), -1)[places]
    new = atoms(len(places))
    axes = tuple(new if each == axis else axis_ for each, axis_ in enumerate(layout.axes))
    image = at.mover.selected(x, chosen.reshape(-1).tolist())
    return Picture(image, replace(layout, axes=axes, channels=(*new, *rest)))


def _slice(at: Site, node: Node) -> Picture:
    x = at.picture(node)
    for axis, chosen in enumerate(
        slices(
            node,
            [at.optional(node, place, "limits") if place else None for place in range(len(node.inputs))],
            x.layout.rank,
        )
    ):
        if chosen == slice(None):
            continue
        size = size_of(x.layout.axes[axis])
        is_from_the_first = (chosen.start or 0) == 0 and chosen.step in (None, 1)
        if size is None and is_from_the_first and (chosen.stop is None or chosen.stop > 1 << 30):
            continue
        x = part(at, x, axis, range(*chosen.indices(_length(x.layout.axes[axis]))))
    return x


def _split(at: Site, node: Node) -> list[Picture | None]:
    x = at.picture(node)
    x = Picture(x.image, x.layout)
    axis = axis_of(x.layout, node.integer("axis", 0))
    size, count = _length(x.layout.axes[axis]), len(node.outputs)
    sizes = at.integers(node, 1, "lengths") if len(node.inputs) > 1 else None
    sizes = sizes if sizes is not None else node.integers("split", [-(-size // count)] * (count - 1))
    sizes = sizes if len(sizes) == count else [*sizes, size - sum(sizes)]
    if len(sizes) != count or sum(sizes) != size or min(sizes) < 1:
        raise NodeError(f"its lengths {sizes[:8]} do not add up to {size}")
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        part(at, x, axis, range(start, end)) if name and at.readers[name] else None
        for name, start, end in zip(node.outputs, starts[:-1], starts[1:], strict=True)
    ]


def _gather(at: Site, node: Node) -> Picture:
    """Some channels, or one row or column."""
    x, places = at.picture(node), at.constant(node, 1, "places")
    axis = axis_of(x.layout, node.integer("axis", 0))
    size = _length(x.layout.axes[axis])
    if (
        places.ndim > 1
        or places.dtype.kind not in "iu"
        or not all(-size <= place < size for place in places.reshape(-1).tolist())
    ):
        raise NodeError(f"its places are no row of numbers below {size}")
    chosen = [int(place) % size for place in places.reshape(-1)]
    run = range(chosen[0], chosen[-1] + 1) if chosen else range(0)
    found = part(at, x, axis, run if chosen == list(run) else chosen)
    if places.ndim == 0:
        found = found.over(found.layout.with_axes(own for place, own in enumerate(found.layout.axes) if place != axis))
    return found


# --- pads -------------------------------------------------------------------------------------------------------------

_MODES = {
    "constant": MPSImageEdgeMode.CONSTANT,
    "edge": MPSImageEdgeMode.CLAMP,
    "reflect": MPSImageEdgeMode.MIRROR,
}


def _pad(at: Site, node: Node) -> Picture:
    x, mode = at.planar(node), node.text("mode", "constant")
    if mode not in _MODES:
        raise NodeError(f"{mode[:20]}: no edge mode reads from the other side")
    pads = _pads(at, node, x.layout.rank)
    fill = at.number(node, 2, "value", 0.0) if at.opset >= 11 else node.decimal("value", 0)
    for axis in range(1, x.layout.rank):  # negative ones cut
        size, (before, behind) = size_of(x.layout.axes[axis]), pads[axis]
        if min(before, behind) < 0:
            x = part(at, x, axis, range(max(0, -before), _length(x.layout.axes[axis]) + min(0, behind)))
            size = size_of(x.layout.axes[axis])
        if mode == "reflect" and size is not None and max(before, behind) >= size:
            raise NodeError("it mirrors more than there is")
    sides = [tuple(max(0, side) for side in pad) for pad in pads]
    if not any(map(any, sides)):
        return x
    layout = x.layout
    spatial = [(0, 0)] * (4 - layout.rank) + sides[2:]
    (top, bottom), (left, right) = spatial if layout.rank > 2 else [(0, 0), (0, 0)]
    before, behind = (
        MPSImageCoordinate(left, top, sides[1][0]), MPSImageCoordinate(right, bottom, sides[1][1])
    )  # fmt: skip
    made = MPSNNPadNode(x.image, before, behind, _MODES[mode])
    made.fill_value = fill
    found = [
        atoms(None if (size := size_of(axis)) is None else size + sum(pad)) if any(pad) else axis
        for axis, pad in zip((layout.channels, layout.rows, layout.columns), (sides[1], *spatial[-2:]), strict=True)
    ] if layout.rank > 2 else [atoms(channels_of(layout.channels) + sum(sides[1])), (), ()]  # fmt: skip
    return at.made(made, planar(layout.batch, *found, rank=layout.rank), node.title)


def _pads(at: Site, node: Node, rank: int) -> list[tuple[int, int]]:
    """Pads before and behind of each axis."""
    given = (
        at.integers(node, 1, "pads") if at.opset >= 11 else node.integers("pads" if node.given("pads") else "paddings")
    )
    axes = at.integers(node, 3, "axes")
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes if -rank <= axis < rank]
    if given is None or len(given) != 2 * len(axes) or any(abs(pad) > 1 << 20 for pad in given):
        raise NodeError("its pads are not two for each axis")
    found = [(0, 0)] * rank
    for axis, before, behind in zip(axes, given[: len(axes)], given[len(axes) :], strict=True):
        found[axis] = before, behind
    if any(found[0]):
        raise NodeError("it pads the batch")
    return found


# --- blocks -----------------------------------------------------------------------------------------------------------


def _block(node: Node) -> int:
    size = node.integer("blocksize", 0)
    if not 1 <= size <= 1024:
        raise NodeError(f"its blocksize is {size}")
    return size


def _times(size: int | None, factor: int) -> int | None:
    return None if size is None else size * factor


def _depth_to_space(at: Site, node: Node) -> Picture:
    """Channels to blocks of pixels, by a convolution that copies."""
    x, block = at.planar(node, spatial=2), _block(node)
    layout = x.layout
    channels = channels_of(layout.channels)
    if channels % block**2:
        raise NodeError(f"{block} squared does not divide {channels} channels")
    at.budget.take(4 * channels**2, "DepthToSpace")
    order = np.arange(channels)
    if node.text("mode", "DCR") == "CRD":
        order = order.reshape(-1, block**2).T.reshape(-1)
    weights = np.eye(channels, dtype=np.float32)[order].reshape(channels, 1, 1, channels)
    descriptor = MPSCNNSubPixelConvolutionDescriptor(1, 1, channels, channels)
    descriptor.sub_pixel_scale_factor = block
    sizes = (_times(size_of(layout.rows), block), _times(size_of(layout.columns), block))
    rows, columns = map(atoms, sizes)
    found = planar(layout.batch, atoms(channels // block**2), rows, columns)
    made = at.convolution(node, x.image, found, descriptor, weights, None)
    return Picture(made.image, made.layout)


def _space_to_depth(at: Site, node: Node) -> Picture:
    """Blocks of pixels to channels, by a convolution that copies."""
    x, block = at.planar(node, spatial=2), _block(node)
    layout = x.layout
    channels = channels_of(layout.channels)
    count = channels * block**2
    at.budget.take(4 * count**2, "SpaceToDepth")
    order = np.arange(count)
    if node.text("mode", "DCR") == "CRD":
        order = order.reshape(block**2, channels).T.reshape(-1)
    weights = np.eye(count, dtype=np.float32)[order].reshape(count, block, block, channels)
    descriptor = MPSCNNConvolutionDescriptor(block, block, channels, count)
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = block
    sizes = [None if (size := size_of(axis)) is None else size // block for axis in (layout.rows, layout.columns)]
    rows, columns = map(atoms, sizes)
    found = planar(layout.batch, atoms(count), rows, columns)
    padding = ExplicitPadding(0, 0, 0, 0)
    return at.convolution(node, x.image, found, descriptor, weights, None, MPSCNNConvolutionNode, padding)


BUILDERS: dict[str, Builder] = {
    "Concat": concatenation,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
