"""Instance and group normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from openmps.kernels import group_normalization as kernels
from oracles import group_normalization as oracle
from samples.sample import CLAMP, Array, CountedSource, GradientSample, Reading, Sample, Shape, configured, exact


class GammaAndBetaSource(CountedSource):
    """A data source over arrays that counts what is asked of it."""

    def __init__(self, channels: int, groups: int | None = None, gamma: Any = None, beta: Any = None) -> None:
        self.channels, self.groups, self.scales, self.shifts = channels, groups, gamma, beta

    def gamma(self) -> Any:
        self.check_loaded()
        return self.scales

    def beta(self) -> Any:
        self.check_loaded()
        return self.shifts

    def number_of_feature_channels(self) -> int:
        return self.channels

    def number_of_groups(self) -> Any:
        return self.groups


def scales_and_shifts(channels: int) -> tuple[Array, Array]:
    """Numbers of both signs that float32 holds exactly."""
    return exact(np.linspace(-1.5, 2.0, channels)), exact(np.linspace(1.0, -0.5, channels))


def _normalization(
    name: str, shape: Shape, groups: int, epsilon: float, plain: bool, kinds: tuple[Any, Any], properties: Any
) -> Sample:
    """``plain``: the data source has neither gamma nor beta."""
    channels = shape[0]
    gamma, beta = (np.ones(channels), np.zeros(channels)) if plain else scales_and_shifts(channels)
    kernel, gradient_kernel = kinds

    def make(device: Any) -> Any:
        source = GammaAndBetaSource(channels, groups, *((None, None) if plain else (gamma, beta)))
        return configured(kernel(device, source), {"epsilon": epsilon, **properties})

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return oracle.forward(sources[0], gamma, beta, *how[0], groups, epsilon)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> tuple[Array, Array, Array]:
        return oracle.gradient(g, sources[0], gamma, *how[0], groups, epsilon)

    def parameters(g: Array, sources: list[Array], how: list[Reading]) -> tuple[Array, Array]:
        _, for_gamma, for_beta = differentiate(g, sources, how)
        return for_gamma.sum(axis=0), for_beta.sum(axis=0)

    return Sample(
        name,
        make,
        (shape,),
        forward,
        (
            GradientSample(
                lambda device: gradient_kernel(device),
                lambda g, sources, how: differentiate(g, sources, how)[0],
                needs_state=True,
                parameters=parameters,
            ),
        ),
        traits=frozenset({"pointwise", "smooth", "across channels"}),
    )


def _instance(name: str, shape: Shape, epsilon: float = 1e-3, plain: bool = False, **properties: Any) -> Sample:
    kinds = kernels.MPSCNNInstanceNormalization, kernels.MPSCNNInstanceNormalizationGradient
    return _normalization(f"instance normalization {name}", shape, shape[0], epsilon, plain, kinds, properties)


def _group(
    name: str, shape: Shape, groups: int, epsilon: float = 1e-3, plain: bool = False, **properties: Any
) -> Sample:
    kinds = kernels.MPSCNNGroupNormalization, kernels.MPSCNNGroupNormalizationGradient
    return _normalization(f"group normalization {name}", shape, groups, epsilon, plain, kinds, properties)


INSTANCE_NORMALIZATIONS = [
    _instance("of 4 channels", (4, 3, 5)),
    _instance("of 1 channel, no gamma and beta", (1, 4, 4), plain=True),
    _instance("of 3 channels, large epsilon", (3, 5, 2), epsilon=2.0),
    _instance("of 5 channels, clamp", (5, 3, 3), edge_mode=CLAMP),
    _instance("of one pixel", (3, 1, 1), epsilon=4.0),
]
GROUP_NORMALIZATIONS = [
    _group("of 4 in 2", (4, 3, 4), 2),
    _group("of 5 in 1, clamp", (5, 2, 3), 1, edge_mode=CLAMP),
    _group("of 6 in 3, no gamma and beta", (6, 3, 3), 3, plain=True),
    _group("of 3 in 3", (3, 4, 3), 3, epsilon=0.5),
    _group("of 8 in 2, one pixel", (8, 1, 1), 2, epsilon=0.25),
    _group("of 1 in 1", (1, 3, 4), 1),
]
