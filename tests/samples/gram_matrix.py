"""Gram matrices."""

from __future__ import annotations

from openmps.kernels import gram_matrix as kernels
from oracles import gram_matrix as oracle
from samples.sample import GradientSample, Sample, Shape


def _gram_matrix(shape: Shape, alpha: float) -> Sample:
    return Sample(
        f"Gram matrix of {shape}, alpha {alpha}",
        lambda device: kernels.MPSNNGramMatrixCalculation(device, alpha),
        (shape,),
        lambda sources, how: oracle.forward(sources[0], alpha),
        (
            GradientSample(
                lambda device: kernels.MPSNNGramMatrixCalculationGradient(device),
                lambda g, sources, how: oracle.gradient(g, sources[0], alpha),
                by_hand=lambda forward: {"alpha": forward.alpha},
            ),
        ),
        traits=frozenset({"smooth", "ignores offset"}),
    )


GRAM_MATRICES = [
    _gram_matrix(shape, alpha)
    for shape, alpha in (((3, 2, 4), 1.0), ((5, 3, 3), 1 / 9), ((1, 1, 1), -2.0), ((4, 1, 1), 0.5), ((8, 2, 5), 0.1))
]
