"""Resize and Upsample: nearest by whole factors, and linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from openmps.convention import current
from openmps.core.padding.explicit import ExplicitPadding
from openmps.formats.onnx.layout import Layout, atoms, planar, size_of
from openmps.formats.onnx.model import Array, Node
from openmps.formats.onnx.pictures import Picture, channels_of
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.shapes import axis_of
from openmps.formats.onnx.site import Builder, Site
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingAverageNode
from openmps.graph.nodes.shape import (
    MPSCNNUpsamplingBilinearNode,
    MPSCNNUpsamplingNearestNode,
    MPSNNBilinearScaleNode,
    MPSNNPadNode,
)
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode, MTLSize

_GIVE = "Give the size of the input, as shapes={name: shape} or --shape NAME=1,3,224,224"
_MOST = 1 << 20
Sizes = list[int | None]
Scales = Array | Sequence[float] | None


def resize(at: Site, node: Node) -> Picture:
    """Resize, of version 10 and later."""
    if at.opset < 11:
        return _resized(at, node, at.optional(node, 1, "scales"), None, "asymmetric", "floor")
    if node.integer("antialias", 0):
        raise NodeError("a filter that widens when it shrinks, with ONNX's weights at the border")
    scales, sizes = at.optional(node, 2, "scales"), at.integers(node, 3, "sizes")
    scales = None if scales is not None and not scales.size else scales
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NodeError("it keeps an aspect ratio", "Give scales or sizes of all axes")
    if node.given("axes"):
        scales, sizes = _of_all_axes(at.picture(node).layout, node.integers("axes"), scales, sizes)
    where = node.text("coordinate_transformation_mode", "half_pixel")
    return _resized(at, node, scales, sizes, where, node.text("nearest_mode", "round_prefer_floor"))


def _of_all_axes(
    layout: Layout, axes: list[int], scales: Array | None, sizes: list[int] | None
) -> tuple[Array | None, Sizes | None]:
    """Scales and sizes of some axes as those of all."""
    places = [axis_of(layout, axis) for axis in axes]
    if scales is not None:
        factors = np.ones(layout.rank)
        factors[places] = scales.reshape(-1)
        return factors, None
    if sizes is None or len(sizes) != len(places):
        raise NodeError("it has neither scales nor sizes of its axes")
    whole = list(layout.shape)
    for place, size in zip(places, sizes, strict=True):
        whole[place] = size
    return None, whole


def upsample(at: Site, node: Node) -> Picture:
    """Upsample, of version 9 and earlier."""
    given = node.decimals("scales") if node.given("scales") else at.optional(node, 1, "scales")
    return _resized(at, node, given, None, "asymmetric", "floor")


def _resized(
    at: Site, node: Node, scales: Scales, sizes: Sequence[int | None] | None, where: str, nearest: str
) -> Picture:
    x = at.planar(node)
    layout = x.layout
    source: Sizes = [size_of(layout.rows), size_of(layout.columns)]
    factors, result = _asked(layout, source, scales, sizes)
    mode = node.text("mode", "nearest")
    found = planar(layout.batch, layout.channels, *map(atoms, result), rank=layout.rank)
    if all(factor == 1 for factor in factors):
        return x
    if mode == "nearest":
        for size, factor in zip(source, factors, strict=True):
            _check_nearest(size, factor, where, nearest)
        made = MPSCNNUpsamplingNearestNode(x.image, int(factors[1]), int(factors[0]))
        return at.made(made, found, node.title)
    if mode not in ("linear", "bilinear"):
        raise NodeError(f"{mode[:20]} interpolation: the framework has nearest, bilinear and Lanczos")
    return _linear(at, node, x, factors, result, found, where)


def _asked(
    layout: Layout, source: Sizes, scales: Scales, sizes: Sequence[int | None] | None
) -> tuple[list[Fraction], Sizes]:
    """The factors of rows and columns, and the size of the result."""
    rank, kept = layout.rank, layout.shape[:2]
    spatial = rank - 2
    if sizes is not None:
        if len(sizes) != rank or None in source or not all(0 < (size or 0) <= _MOST for size in sizes[2:]):
            raise NodeError("the factors that its sizes make are not known", _GIVE)
        if list(sizes[:2]) != list(kept):
            raise NodeError(f"its sizes {sizes[:8]} change the batch or the channels, or fix a batch that varies")
        wanted: Sizes = [*[1] * (2 - spatial), *sizes[2:]]
        return [Fraction(new or 1, old or 1) for new, old in zip(wanted, source, strict=True)], wanted
    values = [float(each) for each in np.asarray([] if scales is None else scales).reshape(-1)[:8]]
    if len(values) != rank or values[:2] != [1, 1] or not all(2**-20 < each < _MOST for each in values):
        raise NodeError(f"its scales {values[:4]} are not those of rows and columns alone")
    factors = [*[1.0] * (2 - spatial), *values[2:]]
    result: Sizes = [
        None if size is None else math.floor(size * factor) for size, factor in zip(source, factors, strict=True)
    ]
    ratios: list[Fraction] = []
    for factor, size, new in zip(factors, source, result, strict=True):
        if size is None and not factor.is_integer():
            raise NodeError("a factor that is not whole, of a size that is not known", _GIVE)
        ratio = Fraction(factor) if size is None else Fraction(new or 0, size)
        if not ratio or abs(float(ratio) - factor) > 1e-6 * factor:
            raise NodeError("a scale that is not the ratio of the sizes: the kernels go by the sizes")
        ratios.append(ratio)
    return ratios, result


def _check_nearest(size: int | None, factor: Fraction, where: str, nearest: str) -> None:
    """Whether every pixel is repeated ``factor`` times, which is what the framework does."""
    if factor.denominator != 1:
        raise NodeError("nearest by a factor that is not whole: upsampling repeats each pixel")
    if factor == 1:
        return
    count = int(factor)
    pixels = (
        range(2 * count) if where in ("asymmetric", "half_pixel", "pytorch_half_pixel") else range((size or 0) * count)
    )
    for pixel in pixels:
        if _nearest(_position(pixel, count, size, where), nearest) != pixel // count or len(pixels) > 1 << 16:
            raise NodeError(f"nearest with {where} and {nearest}: upsampling is the pixel below, index // factor")
    if not pixels:
        raise NodeError(f"nearest with {where}, of a size that is not known", _GIVE)


def _position(pixel: int, factor: int, size: int | None, where: str) -> Fraction:
    if where in ("half_pixel", "pytorch_half_pixel"):
        return (pixel + Fraction(1, 2)) / factor - Fraction(1, 2)
    if where == "asymmetric":
        return Fraction(pixel, factor)
    if where == "align_corners" and size is not None:
        return Fraction(pixel * (size - 1), max(1, size * factor - 1))
    raise NodeError(f"{where[:40]}: the framework has asymmetric, half-pixel and aligned corners")


def _nearest(position: Fraction, how: str) -> int:
    if how == "floor":
        return math.floor(position)
    if how == "ceil":
        return math.ceil(position)
    if how == "round_prefer_floor":
        return math.ceil(position - Fraction(1, 2))
    if how == "round_prefer_ceil":
        return math.floor(position + Fraction(1, 2))
    raise NodeError(f"{how[:40]} is none of ONNX's ways to round")


def _upsampled(
    image: MPSNNImageNode, columns: int, rows: int, align_corners: bool = False
) -> MPSCNNUpsamplingBilinearNode:
    """Bilinear samples at i / factor, where the convention says so."""
    if not align_corners and current()["bilinear_centres"] != "asymmetric":
        raise NodeError(
            "it samples at i / factor, and the convention bilinear_centres='half_pixel' does not",
            "Read the model, and make its graph, where bilinear_centres is 'asymmetric'",
        )
    return MPSCNNUpsamplingBilinearNode(image, columns, rows, align_corners)


def _linear(
    at: Site, node: Node, x: Picture, factors: list[Fraction], result: Sizes, layout: Layout, where: str
) -> Picture:
    rows, columns = factors
    is_whole = rows.denominator == columns.denominator == 1
    if where in ("asymmetric", "align_corners") and is_whole:
        made = _upsampled(x.image, int(columns), int(rows), where == "align_corners")
        return at.made(made, layout, node.title)
    if where not in ("half_pixel", "pytorch_half_pixel") or (where == "pytorch_half_pixel" and 1 in result):
        raise NodeError(f"{where[:40]} by these factors: the framework has half-pixel, and whole factors otherwise")
    if at.trainable and is_whole:
        return _in_steps(at, node, x, (int(columns), int(rows)), layout)
    height, width = result
    if height is None or width is None:
        raise NodeError("linear with half-pixel centres, of a size that is not known", _GIVE)
    size = MTLSize(width, height, channels_of(x.layout.channels))
    return at.made(MPSNNBilinearScaleNode(x.image, size), layout, node.title)


def _in_steps(at: Site, node: Node, x: Picture, factors: tuple[int, int], layout: Layout) -> Picture:
    """Linear with half-pixel centres by whole factors, of nodes that have gradients, as the scale's has none.

    Behind an edge of one pixel, upsampling by f has a result at each f-th of a pixel. Pixel o of what is wanted lies at
    ``o + f - (f - 1) / 2`` of these: on one of them for an odd f, and half way between two for an even one.
    """
    edge = MPSImageCoordinate(1, 1, 0)
    edges = MPSNNPadNode(x.image, edge, edge, MPSImageEdgeMode.CLAMP)
    steps = _upsampled(edges.result_image, *factors)
    edges.label, steps.label = f"{node.title} edges", f"{node.title} steps"
    sizes = [2 - factor % 2 for factor in factors]
    starts = [factor - factor // 2 for factor in factors]
    ends = [2 * f - start - (size - 1) for f, start, size in zip(factors, starts, sizes, strict=True)]
    made = MPSCNNPoolingAverageNode(steps.result_image, *sizes, 1, 1)
    made.padding_policy = ExplicitPadding(*(-each for each in (*starts, *ends)))
    return at.made(made, layout, node.title)


BUILDERS: dict[str, Builder] = {"Resize": resize, "Upsample": upsample}
