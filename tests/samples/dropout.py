"""Dropout."""

from __future__ import annotations

from openmps.kernels import dropout as kernels
from openmps.types import MTLSize
from oracles import dropout
from samples.sample import Array, GradientSample, Reading, Sample, Shape


def _dropout(keep: float, strides: tuple[int, int, int], shape: Shape) -> Sample:
    seed = 12345678901

    def mask(like: Array) -> Array:
        return dropout.mask(like.shape, keep, seed, 0, strides=strides)

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        region = how[0].region(sources[0])
        return dropout.forward(region, mask(region), keep)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        return how[0].back(dropout.forward(g, mask(g), keep), sources[0].shape)

    arguments = (keep, seed, MTLSize(*strides))
    return Sample(
        f"dropout {keep}, strides {strides}",
        lambda device: kernels.MPSCNNDropout(device, *arguments),
        (shape,),
        forward,
        (
            GradientSample(
                lambda device: kernels.MPSCNNDropoutGradient(device, *arguments),
                differentiate,
                needs_state=True,
            ),
        ),
        traits=frozenset({"pointwise", "affine", "one mask", *(["random"] if keep < 1 else [])}),
    )


DROPOUTS = [
    _dropout(0.5, (1, 1, 1), (5, 3, 4)),
    _dropout(0.8, (0, 0, 1), (8, 2, 3)),
    _dropout(0.3, (1, 1, 0), (3, 3, 3)),
    _dropout(0.5, (0, 1, 1), (1, 4, 5)),
    _dropout(1.0, (1, 1, 1), (4, 2, 2)),
]
