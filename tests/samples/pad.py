"""Padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.kernels import pad as kernels
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode
from oracles import pad
from samples.sample import Array, GradientSample, Reading, Sample, Shape, configured


def _pad(
    name: str,
    shape: Shape,
    before: tuple[int, int, int],
    after: tuple[int, int, int],
    edge: MPSImageEdgeMode,
    fill: Any = 0.0,
) -> Sample:
    """``before`` and ``after``: x, y, channel; ``fill`` one value or one a channel."""
    array = None if isinstance(fill, float) else np.asarray(fill, np.float32)
    properties = {"edge_mode": edge} | ({"fill_value": fill} if isinstance(fill, float) else {})
    sizes = (MPSImageCoordinate(*before), MPSImageCoordinate(*after))
    channels = (before[2], after[2])

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return pad.pad(sources[0], how[0].rows, how[0].columns, channels, int(edge), fill)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        return pad.gradient(g, sources[0].shape, how[0].rows, how[0].columns, channels, int(edge))

    return Sample(
        f"pad {name}",
        lambda device: configured(kernels.MPSNNPad(device, *sizes, fill_value_array=array), properties),
        (shape,),
        forward,
        (GradientSample(kernels.MPSNNPadGradient, differentiate, needs_state=before[2] > 0),),
        traits=frozenset({"affine", "all edge modes", "any channel", "own channels"}),
    )


_Edge = MPSImageEdgeMode
PADS = [
    _pad("zero", (3, 4, 5), (1, 2, 0), (3, 0, 0), _Edge.ZERO),
    _pad("zero, channels", (5, 3, 2), (0, 1, 3), (1, 0, 2), _Edge.ZERO),
    _pad("clamp", (4, 3, 3), (2, 1, 0), (3, 0, 0), _Edge.CLAMP),
    _pad("clamp, channels", (3, 2, 3), (2, 0, 2), (0, 1, 1), _Edge.CLAMP),
    _pad("mirror, often", (3, 3, 4), (7, 1, 0), (2, 5, 0), _Edge.MIRROR),
    _pad("mirror, channels", (3, 3, 1), (1, 2, 2), (1, 0, 3), _Edge.MIRROR),
    _pad("mirror with edge, often", (4, 3, 2), (5, 0, 0), (3, 4, 0), _Edge.MIRROR_WITH_EDGE),
    _pad("mirror with edge, channels", (3, 2, 2), (1, 1, 2), (0, 1, 3), _Edge.MIRROR_WITH_EDGE),
    _pad("constant", (4, 3, 5), (1, 0, 0), (2, 2, 0), _Edge.CONSTANT, 0.75),
    _pad("constant by channel", (3, 3, 2), (1, 1, 1), (0, 2, 2), _Edge.CONSTANT, [0.5, -1.0, 2.0, 0.25, 1.5, 3.0]),
    _pad("nothing", (1, 1, 1), (0, 0, 0), (0, 0, 0), _Edge.MIRROR),
]
