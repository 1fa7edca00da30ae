"""Element-wise arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.kernels import arithmetic as kernels
from oracles import arithmetic
from samples.sample import Array, GradientSample, Reading, Sample, Shape, configured


def _add(name: str, shapes: tuple[Shape, Shape], **properties: Any) -> Sample:
    numbers = {
        "p": properties.get("primary_scale", 1.0),
        "q": properties.get("secondary_scale", 1.0),
        "bias": properties.get("bias", 0.0),
        "minimum": properties.get("minimum_value", -arithmetic.FLT_MAX),
        "maximum": properties.get("maximum_value", arithmetic.FLT_MAX),
    }

    def broadcast(side: str) -> bool:
        return properties.get(f"{side}_stride_in_feature_channels", 1) == 0

    def read(sources: list[Array], how: list[Reading]) -> list[Array]:
        regions = [reading.region(x) for x, reading in zip(sources, how, strict=True)]
        return [x[:, :1] if broadcast(side) else x for side, x in zip(("primary", "secondary"), regions, strict=True)]

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return arithmetic.forward("add", *read(sources, how), **numbers)[0]

    def differentiate(index: int, g: Array, sources: list[Array], how: list[Reading]) -> Array:
        x, y = read(sources, how)
        _, mask = arithmetic.forward("add", x, y, **numbers)
        # Every operand as large as the result: the sums over what was broadcast are the adjoint of the reading.
        x, y = np.broadcast_arrays(x, y)
        gradient = arithmetic.gradients("add", g, x, y, numbers["p"], numbers["q"], mask)[index]
        shape = list(sources[index].shape)
        if broadcast(("primary", "secondary")[index]):
            shape[1] = 1
            gradient = gradient.sum(axis=1, keepdims=True)
        found = how[index].back(gradient, shape)
        whole = np.zeros(sources[index].shape)
        whole[:, : found.shape[1]] = found
        return whole

    clamped = "minimum_value" in properties or "maximum_value" in properties
    return Sample(
        f"add {name}",
        lambda device: configured(kernels.MPSCNNAdd(device), properties),
        shapes,
        forward,
        tuple(
            GradientSample(
                lambda device, second=bool(index): kernels.MPSCNNAddGradient(device, second),
                lambda g, sources, how, index=index: differentiate(index, g, sources, how),
                source=index,
                needs_state=clamped,
            )
            for index in range(2)
        ),
        traits=frozenset({"pointwise", *([] if clamped else ["affine"])}),
    )


ADDITIONS = [
    _add("plain", ((4, 3, 5), (4, 3, 5))),
    _add("scales and bias", ((5, 3, 2), (5, 3, 2)), primary_scale=0.5, secondary_scale=-2.0, bias=0.75),
    _add("limits", ((3, 4, 4), (3, 4, 4)), primary_scale=2.0, minimum_value=-0.5, maximum_value=1.0),
    _add(
        "broadcast a pixel",
        ((8, 3, 4), (8, 1, 1)),
        secondary_scale=3.0,
        secondary_stride_in_pixels_x=0,
        secondary_stride_in_pixels_y=0,
    ),
    _add("broadcast a channel", ((1, 3, 4), (5, 3, 4)), primary_stride_in_feature_channels=0),
    _add(
        "broadcast a number",
        ((4, 2, 3), (1, 1, 1)),
        secondary_stride_in_pixels_x=0,
        secondary_stride_in_pixels_y=0,
        secondary_stride_in_feature_channels=0,
    ),
    _add("broadcast a row", ((3, 1, 4), (3, 5, 4)), primary_stride_in_pixels_y=0, primary_scale=-1.5),
    _add("one pixel", ((1, 1, 1), (1, 1, 1))),
]
