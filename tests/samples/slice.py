"""Slices."""

from __future__ import annotations

from typing import Any

from openmps.kernels import slice as kernels
from samples.sample import CLAMP, Sample, Shape, configured


def _slice(name: str, shape: Shape, **properties: Any) -> Sample:
    return Sample(
        f"slice {name}",
        lambda device: configured(kernels.MPSNNSlice(device), properties),
        (shape,),
        lambda sources, how: how[0].region(sources[0]),
        traits=frozenset({"affine", "pointwise", "any channel"}),
    )


SLICES = [_slice("zero", (5, 3, 4)), _slice("clamp", (4, 4, 3), edge_mode=CLAMP), _slice("one pixel", (1, 1, 1))]
