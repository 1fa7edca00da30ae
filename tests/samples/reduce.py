"""Reductions, and local correlation."""

from __future__ import annotations

from typing import Any

from openmps.core.kernel.base import MPSKernel
from openmps.kernels import reduce as kernels
from openmps.types import MTLOrigin, MTLRegion, MTLSize
from oracles import reduce
from samples.sample import CLAMP, Array, Sample, Shape, configured

TRAITS = frozenset({"ignores offset", "across channels"})
EVERYTHING = 2**64 - 1

AXES = {
    "Row": reduce.COLUMNS,
    "Column": reduce.ROWS,
    "FeatureChannels": reduce.CHANNELS,
}
"""A reduction of rows leaves one number a row: it runs over the columns."""

OPERATIONS = {
    "Min": "min",
    "Max": "max",
    "Mean": "mean",
    "Sum": "sum",
    "ArgumentMin": "argument min",
    "ArgumentMax": "argument max",
}

REDUCTIONS = [
    (axis, operation)
    for axis in AXES
    for operation in OPERATIONS
    if axis == "FeatureChannels" or not operation.startswith("Argument")
]


def region(x: int, y: int, width: int, height: int) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, 0), MTLSize(width, height, EVERYTHING))


def _part(properties: dict[str, Any], name: str, x: Array) -> Array:
    """What a region selects of a source."""
    chosen = properties.get(name)
    if chosen is None:
        return x
    rows = range(chosen.origin.y, min(x.shape[2], chosen.origin.y + chosen.size.height))
    columns = range(chosen.origin.x, min(x.shape[3], chosen.origin.x + chosen.size.width))
    return reduce.Part(rows, columns).of(x)


def _unary(axis: str, operation: str, name: str, shape: Shape, **properties: Any) -> Sample:
    kernel = getattr(kernels, f"MPSNNReduce{axis}{operation}")
    factor = properties.get("weight", 1.0)

    def forward(sources: list[Array], how: Any) -> Array:
        part = _part(properties, "clip_rect_source", sources[0])
        return factor * reduce.reduce(OPERATIONS[operation], AXES[axis], part)

    return Sample(
        f"reduce {axis} {operation} {name}",
        lambda device: configured(kernel(device), properties),
        (shape,),
        forward,
        traits=TRAITS,
    )


def _unary_samples(axis: str, operation: str) -> list[Sample]:
    weight = {"weight": -0.5} if (axis, operation) == ("FeatureChannels", "Sum") else {}
    return [
        _unary(axis, operation, "plain", (5, 4, 3)),
        _unary(axis, operation, "in a region", (8, 5, 6), clip_rect_source=region(1, 2, 3, 9), **weight),
    ]


UNARY: dict[type[MPSKernel], list[Sample]] = {
    getattr(kernels, f"MPSNNReduce{axis}{operation}"): _unary_samples(axis, operation) for axis, operation in REDUCTIONS
}
"""The samples of every reduction of one image."""


def _weighted(kind: str, oracle: str, name: str, shapes: tuple[Shape, Shape], *arguments: Any, **more: Any) -> Sample:
    kernel = getattr(kernels, f"MPSNNReduceFeatureChannelsAndWeights{kind}")
    names = ("primary_source_clip_rect", "secondary_source_clip_rect")

    def forward(sources: list[Array], how: Any) -> Array:
        features, weights = (_part(more, name, x) for name, x in zip(names, sources, strict=True))
        return reduce.weighted(oracle, features, weights)

    return Sample(
        f"reduce channels and weights {oracle} {name}",
        lambda device: configured(kernel(device, *arguments), more),
        shapes,
        forward,
        traits=TRAITS,
    )


def _weightings(kind: str, oracle: str, *arguments: Any) -> list[Sample]:
    regions = {"primary_source_clip_rect": region(1, 0, 3, 4), "secondary_source_clip_rect": region(2, 2, 9, 4)}
    return [
        _weighted(kind, oracle, "plain", ((5, 4, 3), (5, 4, 3)), *arguments),
        _weighted(kind, oracle, "one pixel of weights", ((4, 3, 5), (4, 1, 1)), *arguments),
        _weighted(kind, oracle, "in regions", ((3, 4, 6), (3, 6, 5)), *arguments, **regions),
    ]


WEIGHTED_MEANS = _weightings("Mean", "mean")
WEIGHTED_SUMS = [*_weightings("Sum", "sum"), *_weightings("Sum", "by non-zero", True)]


def _correlation(
    name: str, shapes: tuple[Shape, Shape], window: tuple[int, int], stride: tuple[int, int], **more: Any
) -> Sample:
    """``window`` and ``stride`` along y and x."""
    names = ("primary_source_clip_rect", "secondary_source_clip_rect")

    def forward(sources: list[Array], how: Any) -> Array:
        a, b = (_part(more, name, x) for name, x in zip(names, sources, strict=True))
        return reduce.local_correlation(a, b, window, stride, int(more.get("secondary_edge_mode", 0)))

    return Sample(
        f"local correlation {name}",
        lambda device: configured(
            kernels.MPSNNLocalCorrelation(device, window[1], window[0], stride[1], stride[0]), more
        ),
        shapes,
        forward,
        traits=TRAITS,
    )


CORRELATIONS = [
    _correlation("plain", ((4, 4, 5), (4, 4, 5)), (1, 2), (1, 1)),
    _correlation("strides", ((5, 7, 6), (5, 7, 6)), (2, 1), (2, 3)),
    _correlation("clamp", ((3, 4, 5), (3, 6, 4)), (2, 2), (1, 2), secondary_edge_mode=CLAMP),
    _correlation("no window", ((8, 3, 4), (8, 3, 4)), (0, 0), (1, 1)),
    _correlation(
        "in regions",
        ((4, 5, 6), (4, 7, 8)),
        (1, 1),
        (1, 1),
        primary_source_clip_rect=region(1, 1, 4, 9),
        secondary_source_clip_rect=region(2, 3, 5, 2),
    ),
]
