"""Element-wise arithmetic and comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.kernels import arithmetic as kernels
from openmps.types import MPSNNComparisonType
from oracles import arithmetic
from samples.sample import Array, GradientSample, Reading, Sample, Shape, configured

SIDES = ("primary", "secondary")


def _numbers(properties: dict[str, Any]) -> dict[str, float]:
    return {
        "p": properties.get("primary_scale", 1.0),
        "q": properties.get("secondary_scale", 1.0),
        "bias": properties.get("bias", 0.0),
        "minimum": properties.get("minimum_value", -arithmetic.FLT_MAX),
        "maximum": properties.get("maximum_value", arithmetic.FLT_MAX),
    }


def _read(sources: list[Array], how: list[Reading], properties: dict[str, Any]) -> list[Array]:
    """What each operand gives: the pixels read, of one channel where that serves them all."""
    regions = [reading.region(x) for x, reading in zip(sources, how, strict=True)]
    return [x[:, :1] if _one_channel(properties, side) else x for side, x in zip(SIDES, regions, strict=True)]


def _one_channel(properties: dict[str, Any], side: str) -> bool:
    return properties.get(f"{side}_stride_in_feature_channels", 1) == 0


def _scales(operation: str, index: int, forward: Any) -> dict[str, Any]:
    """The scales of a gradient kernel, and how the source that it is for was read if it cannot tell."""
    p, q = forward.primary_scale, forward.secondary_scale
    if operation != "multiply":
        return {"primary_scale": p if index == 0 else (-q if operation == "subtract" else q)}
    return {
        "primary_scale": p,
        "secondary_scale": q,
        "primary_edge_mode": getattr(forward, f"{SIDES[index]}_edge_mode"),
    }


def _arithmetic(operation: str, name: str, shapes: tuple[Shape, Shape], **properties: Any) -> Sample:
    numbers = _numbers(properties)
    kernel = getattr(kernels, f"MPSCNN{operation.capitalize()}")

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return arithmetic.forward(operation, *_read(sources, how, properties), **numbers)[0]

    def differentiate(index: int, g: Array, sources: list[Array], how: list[Reading]) -> Array:
        x, y = _read(sources, how, properties)
        _, mask = arithmetic.forward(operation, x, y, **numbers)
        # Every operand as large as the result: the sums over what was broadcast are the adjoint of the reading.
        x, y = np.broadcast_arrays(x, y)
        gradient = arithmetic.gradients(operation, g, x, y, numbers["p"], numbers["q"], mask)[index]
        shape = list(sources[index].shape)
        if _one_channel(properties, SIDES[index]):
            shape[1] = 1
            gradient = gradient.sum(axis=1, keepdims=True)
        found = how[index].back(gradient, shape)
        whole = np.zeros(sources[index].shape)
        whole[:, : found.shape[1]] = found
        return whole

    def backward(index: int) -> GradientSample:
        make = getattr(kernels, f"MPSCNN{operation.capitalize()}Gradient")
        return GradientSample(
            lambda device: make(device, is_secondary_source_filter=bool(index)),
            lambda g, sources, how: differentiate(index, g, sources, how),
            source=index,
            other=1 - index if operation == "multiply" else None,
            needs_state=clamped,
            by_hand=lambda kernel: _scales(operation, index, kernel),
        )

    clamped = "minimum_value" in properties or "maximum_value" in properties
    has_gradients = operation != "divide"
    return Sample(
        f"{operation} {name}",
        lambda device: configured(kernel(device), properties),
        shapes,
        forward,
        (backward(0), backward(1)) if has_gradients else (),
        "normal" if has_gradients else "positive",
        frozenset({"pointwise", *([] if clamped or not has_gradients else ["affine"])}),
    )


ONE_PIXEL = {"secondary_stride_in_pixels_x": 0, "secondary_stride_in_pixels_y": 0}


def _configurations(operation: str) -> list[Sample]:
    return [
        _arithmetic(operation, name, shapes, **properties)
        for name, shapes, properties in (
            ("plain", ((4, 3, 5), (4, 3, 5)), {}),
            (
                "scales and bias",
                ((5, 3, 2), (5, 3, 2)),
                {"primary_scale": 0.5, "secondary_scale": -2.0, "bias": 0.75},
            ),
            (
                "limits",
                ((3, 4, 4), (3, 4, 4)),
                {"primary_scale": 2.0, "minimum_value": -0.5, "maximum_value": 1.0},
            ),
            ("broadcast a pixel", ((8, 3, 4), (8, 1, 1)), {"secondary_scale": 3.0, **ONE_PIXEL}),
            ("broadcast a channel", ((1, 3, 4), (5, 3, 4)), {"primary_stride_in_feature_channels": 0}),
            (
                "broadcast a number",
                ((4, 2, 3), (1, 1, 1)),
                {**ONE_PIXEL, "secondary_stride_in_feature_channels": 0},
            ),
            ("broadcast a row", ((3, 1, 4), (3, 5, 4)), {"primary_stride_in_pixels_y": 0, "primary_scale": -1.5}),
            ("one pixel", ((1, 1, 1), (1, 1, 1)), {}),
        )
    ]


def _compare(comparison: MPSNNComparisonType, threshold: float, shapes: tuple[Shape, Shape], **more: Any) -> Sample:
    properties = {"comparison_type": comparison, "threshold": threshold, **more}
    name = comparison.name.lower().replace("_", " ")
    broadcast = " broadcast" if any("stride" in name for name in more) else ""
    return Sample(
        f"compare {name} within {threshold}{broadcast}",
        lambda device: configured(kernels.MPSNNCompare(device), properties),
        shapes,
        lambda sources, how: arithmetic.compare(name, *_read(sources, how, properties), threshold),
        traits=frozenset({"pointwise"}),
    )


ADDITIONS = _configurations("add")
SUBTRACTIONS = _configurations("subtract")
MULTIPLICATIONS = _configurations("multiply")
DIVISIONS = _configurations("divide")

Comparison = MPSNNComparisonType
COMPARISONS = [
    _compare(Comparison.LESS, 0.0, ((4, 3, 5), (4, 3, 5))),
    _compare(Comparison.EQUAL, 0.75, ((5, 3, 2), (5, 3, 2))),
    _compare(Comparison.NOT_EQUAL, 0.5, ((3, 4, 4), (3, 4, 4)), primary_scale=9.0, bias=3.0, maximum_value=0.5),
    _compare(Comparison.LESS_OR_EQUAL, 0.25, ((8, 3, 4), (8, 1, 1)), **ONE_PIXEL),
    _compare(Comparison.GREATER, 0.5, ((1, 3, 4), (5, 3, 4)), primary_stride_in_feature_channels=0),
    _compare(Comparison.GREATER_OR_EQUAL, 0.5, ((3, 1, 4), (3, 5, 4)), primary_stride_in_pixels_y=0),
]
