"""Spatial, local contrast and cross-channel normalization.

Their gradient kernels are made with the default parameters: they take the sample's from the state, or by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openmps.kernels import normalization as kernels
from oracles import local_normalization as oracle
from samples.sample import BOTTOM_RIGHT, CLAMP, VALID, Array, GradientSample, Reading, Sample, Shape, configured

_DIVISOR = ("alpha", "beta", "delta")
_CONTRAST = ("p0", "pm", "ps")


def _taken(names: Sequence[str], kernel: Any) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in names}


def _over_pixels(
    name: str, pair: tuple[Any, Any], functions: tuple[Any, Any], groups: Any, size: int, shape: Shape, properties: Any
) -> Sample:
    kernel, gradient = pair
    forward, backward = functions
    defaults = _DEFAULTS[kernel]
    parameters = [tuple(float(properties.get(each, defaults[each])) for each in group) for group in groups]
    names = [each for group in groups for each in group]

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        return backward(g, sources[0], *how[0], *parameters)

    return Sample(
        name,
        lambda device: configured(kernel(device, size, size), properties),
        (shape,),
        lambda sources, how: forward(sources[0], *how[0], *parameters),
        (
            GradientSample(
                lambda device: gradient(device, size, size),
                differentiate,
                by_hand=lambda forward: _taken(names, forward),
            ),
        ),
        traits=frozenset({"smooth"} if "padding" in properties else {"smooth", "pointwise"}),
    )


_DEFAULTS: dict[Any, dict[str, float]] = {
    kernels.MPSCNNSpatialNormalization: {"alpha": 1.0, "beta": 5.0, "delta": 1.0},
    kernels.MPSCNNLocalContrastNormalization: {
        "alpha": 0.0, "beta": 0.5, "delta": 1 / 1024, "p0": 1.0, "pm": 0.0, "ps": 1.0,
    },
}  # fmt: skip


def _spatial(name: str, size: int, shape: Shape, **properties: Any) -> Sample:
    pair = kernels.MPSCNNSpatialNormalization, kernels.MPSCNNSpatialNormalizationGradient
    functions = oracle.spatial, oracle.spatial_gradient
    return _over_pixels(f"spatial normalization {name}", pair, functions, (_DIVISOR,), size, shape, properties)


def _contrast(name: str, size: int, shape: Shape, **properties: Any) -> Sample:
    pair = kernels.MPSCNNLocalContrastNormalization, kernels.MPSCNNLocalContrastNormalizationGradient
    functions = oracle.local_contrast, oracle.local_contrast_gradient
    groups = (_DIVISOR, _CONTRAST)
    return _over_pixels(f"local contrast normalization {name}", pair, functions, groups, size, shape, properties)


def _cross_channel(name: str, size: int, shape: Shape, **properties: Any) -> Sample:
    defaults = {"alpha": 1.0, "beta": 5.0, "delta": 1.0}
    divisor = tuple(float({**defaults, **properties}[each]) for each in _DIVISOR)

    def differentiate(g: Array, sources: list[Array], how: list[Reading]) -> Array:
        found = oracle.cross_channel_gradient(g, how[0].region(sources[0]), size, divisor)
        return how[0].back(found, sources[0].shape)

    return Sample(
        f"cross-channel normalization {name}",
        lambda device: configured(kernels.MPSCNNCrossChannelNormalization(device, size), properties),
        (shape,),
        lambda sources, how: oracle.cross_channel(how[0].region(sources[0]), size, divisor),
        (
            GradientSample(
                lambda device: kernels.MPSCNNCrossChannelNormalizationGradient(device, size),
                differentiate,
                by_hand=lambda forward: _taken(_DIVISOR, forward),
            ),
        ),
        traits=frozenset({"smooth", "pointwise", "across channels"}),
    )


SPATIAL_NORMALIZATIONS = [
    _spatial("3x3, defaults", 3, (4, 5, 6)),
    _spatial("2x2, zero", 2, (3, 4, 5), alpha=2, beta=0.75, delta=0.5),
    _spatial("5x5, clamp", 5, (5, 4, 3), alpha=0.5, beta=1.5, delta=2, edge_mode=CLAMP),
    _spatial("4x4, bottom right, clamp", 4, (8, 6, 4), beta=0.5, padding=BOTTOM_RIGHT, edge_mode=CLAMP),
    _spatial("3x3, valid", 3, (1, 5, 6), beta=0.75, padding=VALID),
    _spatial("one pixel", 3, (1, 1, 1), beta=0.75),
]
CONTRAST_NORMALIZATIONS = [
    _contrast("3x3, defaults", 3, (4, 5, 6)),
    _contrast("3x3, unit variance", 3, (3, 4, 5), alpha=1, delta=0.25),
    _contrast("2x2, clamp", 2, (5, 4, 3), alpha=0.75, beta=1.5, delta=1, p0=0.5, pm=-0.25, ps=2, edge_mode=CLAMP),
    _contrast("5x5, bottom right", 5, (8, 6, 4), alpha=1, delta=0.5, ps=-0.5, padding=BOTTOM_RIGHT),
    _contrast("4x4, valid", 4, (1, 6, 7), alpha=2, beta=0.25, delta=1, padding=VALID),
    _contrast("one pixel", 3, (1, 1, 1), alpha=1, delta=0.5),
]
CROSS_CHANNEL_NORMALIZATIONS = [
    _cross_channel("5, defaults", 5, (8, 3, 4)),
    _cross_channel("4, AlexNet's exponent", 4, (5, 4, 3), alpha=0.5, beta=0.75, delta=2),
    _cross_channel("1", 1, (3, 2, 2), beta=0.5, delta=0.5),
    _cross_channel("9, more than channels", 9, (4, 1, 5), alpha=2, beta=0.75),
    _cross_channel("3, one pixel", 3, (1, 1, 1), beta=1.5),
]
EXTREME_NORMALIZATIONS = [
    _spatial("9x9, larger than the image", 9, (3, 2, 3), beta=0.75),
    _spatial("8x8, larger than the image, clamp", 8, (3, 2, 3), beta=0.75, edge_mode=CLAMP),
    _contrast("9x9, larger than the image", 9, (3, 2, 3), alpha=1, delta=0.5),
    _contrast("8x8, larger than the image, clamp", 8, (3, 2, 3), alpha=1, delta=0.5, edge_mode=CLAMP),
    _cross_channel("40, more than channels", 40, (3, 2, 3), beta=0.75),
]
"""Windows larger than what they move over."""
