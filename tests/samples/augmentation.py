"""Augmentation of training images."""

from __future__ import annotations

from typing import Any

from openmps.kernels import augmentation as kernels
from openmps.types import MPSImageEdgeMode
from oracles import augmentation as oracle
from samples.sample import Array, Reading, Sample, Shape, configured

_SEED = 98765432109


def _augmentation(shape: Shape, **properties: Any) -> Sample:
    def forward(sources: list[Array], how: list[Reading]) -> Array:
        said = {**properties, "padding_mode": int(properties.get("padding_mode", 0))}
        return oracle.augmented(how[0].region(sources[0]), _SEED, **said)

    return Sample(
        f"augmentation of {shape}, {', '.join(f'{name} {value}' for name, value in properties.items())}",
        lambda device: configured(kernels.ImageAugmentation(device, _SEED), properties),
        (shape,),
        forward,
        domain="unit",
        traits=frozenset({"random", *(["resampled"] if {"translation", "rotation"} & {*properties} else [])}),
    )


def _mix_up(shape: Shape, alpha: float) -> Sample:
    return Sample(
        f"mix-up of {shape}, alpha {alpha}",
        lambda device: kernels.MixUp(device, alpha, _SEED),
        (shape,),
        lambda sources, how: oracle.mixed(how[0].region(sources[0]), alpha, _SEED),
        domain="unit",
        traits=frozenset({"random"}),
    )


_ZERO, _CLAMP, _MIRROR = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP, MPSImageEdgeMode.MIRROR

AUGMENTATIONS = [
    _augmentation((3, 5, 6), flips=True, crop=2, cut_out=3),
    _augmentation((1, 6, 5), crop=9, padding_mode=_MIRROR),
    _augmentation((5, 4, 7), flips=True, translation=1, padding_mode=_MIRROR),
    _augmentation((2, 7, 6), flips=True, crop=1, rotation=30.0, padding_mode=_ZERO),
    _augmentation(
        (2, 5, 5), crop=1, padding_mode=_CLAMP, brightness=0.25, contrast=1.0, mean=(0.5, 0.25),
        standard_deviation=(0.25, 2.0), cut_out=2,
    ),
]  # fmt: skip
MIX_UPS = [_mix_up((3, 4, 5), 1.0), _mix_up((10, 1, 1), 0.2)]
