"""Filters of pictures, whose destination is always given: how to make each, pictures that suit it, its oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from openmps.core.kernel.base import MPSKernel
from openmps.kernels.image_filters import arithmetic, conversion, threshold, transpose
from openmps.metal.device import MTLDevice
from openmps.types import MPSAlphaType, MPSImageEdgeMode
from oracles import image_filters as oracle
from oracles.geometry import Axis
from samples.sample import Array, Reading, configured

Forward = Callable[[list[Array], list[Reading], int], Array]
"""Sources, how they are read, channels of the destination: the result."""
SIZE = (6, 7)
"""Rows and columns of the pictures."""


@dataclass(frozen=True)
class FilterSample:
    """One configuration of a filter."""

    name: str
    make: Callable[[MTLDevice], Any]
    forward: Forward
    channels: tuple[int, ...] = (3,)
    """Those of each source."""
    made: int | None = None
    """Channels of the destination; as many as the first source has unless said."""
    works_in_place: bool = True
    result: tuple[int, int] | None = None
    """Rows and columns of the destination, where they are not those of the source."""
    is_placed: bool = True
    """Whether offset and clip rectangle choose pixels."""
    in_bytes: bool = True
    """Whether pictures of bytes give numbers that are of use."""
    edge: int | None = None
    """The edge mode that it has whatever is set."""
    tolerance: float = 2e-6

    @property
    def destination(self) -> tuple[int, int, int]:
        """Channels, rows and columns."""
        return (self.made or self.channels[0], *(self.result or SIZE))

    def sources(self, images: int = 1) -> list[Array]:
        """Pictures of 0 … 1, some of them 0 and 1, in steps that bytes have."""
        random = np.random.default_rng([*self.name.encode()])
        return [random.integers(0, 256, (images, count, *SIZE)) / 255.0 for count in self.channels]

    def readings(self, kernel: Any, height: int, width: int) -> list[Reading]:
        """How a kernel reads its sources for so many result pixels."""
        prefixes = ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)
        return [self._reading(kernel, prefix, height, width) for prefix in prefixes]

    def _reading(self, kernel: Any, prefix: str, height: int, width: int) -> Reading:
        offset, edge = getattr(kernel, f"{prefix}offset"), getattr(kernel, f"{prefix}edge_mode")
        strides = getattr(kernel, f"{prefix}stride_in_pixels", None)
        down, across = (1, 1) if strides is None else (strides.height, strides.width)
        rows = Axis(height, getattr(kernel, "kernel_height", 1), down, 1, offset.y)
        columns = Axis(width, getattr(kernel, "kernel_width", 1), across, 1, offset.x)
        return Reading(rows, columns, int(edge) if self.edge is None else self.edge)

    def __str__(self) -> str:
        return self.name


def _threshold(kind: str, channels: int, made: int, **values: Any) -> FilterSample:
    weights = values.get("linear_gray_color_transform") or oracle.GRAY

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        v = oracle.gray(how[0].region(sources[0]), weights)
        return oracle.spread(oracle.threshold(kind, v, 0.5, values.get("maximum_value", 0.0)), count)

    def make(device: MTLDevice) -> Any:
        return getattr(threshold, f"MPSImageThreshold{kind}")(device, threshold_value=0.5, **values)

    return FilterSample(f"threshold {kind} of {channels} channels to {made}", make, forward, (channels,), made)


THRESHOLDS: dict[type[MPSKernel], list[FilterSample]] = {
    threshold.MPSImageThresholdBinary: [
        _threshold("Binary", 1, 1, maximum_value=0.75),
        _threshold("Binary", 4, 4, maximum_value=1.0),
        _threshold("Binary", 2, 2, maximum_value=0.5, linear_gray_color_transform=[0.25, 0.75, 0.0]),
    ],
    threshold.MPSImageThresholdBinaryInverse: [_threshold("BinaryInverse", 3, 1, maximum_value=0.75)],
    threshold.MPSImageThresholdTruncate: [_threshold("Truncate", 1, 4), _threshold("Truncate", 4, 3)],
    threshold.MPSImageThresholdToZero: [_threshold("ToZero", 4, 4)],
    threshold.MPSImageThresholdToZeroInverse: [_threshold("ToZeroInverse", 1, 1)],
}


def _arithmetic(kind: str, channels: int = 4, **values: Any) -> FilterSample:
    scales = values.get("primary_scale", 1.0), values.get("secondary_scale", 1.0)

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x, y = (reading.region(source) for source, reading in zip(sources, how, strict=True))
        found = oracle.arithmetic(kind, x, y, scales, values.get("bias", 0.0))
        return np.clip(found, values.get("minimum_value", -np.inf), values.get("maximum_value", np.inf))

    return FilterSample(
        f"image {kind} {' '.join(values)}",
        lambda device: configured(getattr(arithmetic, f"MPSImage{kind}")(device), values),
        forward,
        (channels, channels),
        in_bytes=kind != "Divide",
    )


CLAMPED = {"primary_edge_mode": MPSImageEdgeMode.CLAMP, "secondary_edge_mode": MPSImageEdgeMode.CLAMP}
ARITHMETIC: dict[type[MPSKernel], list[FilterSample]] = {
    arithmetic.MPSImageAdd: [
        _arithmetic("Add"),
        _arithmetic("Add", 1, primary_scale=2.0, secondary_scale=-0.5, bias=0.25),
    ],
    arithmetic.MPSImageSubtract: [_arithmetic("Subtract", 3, minimum_value=-0.25, maximum_value=0.5)],
    arithmetic.MPSImageMultiply: [_arithmetic("Multiply", 5, primary_scale=0.5, bias=0.125)],
    arithmetic.MPSImageDivide: [_arithmetic("Divide", 2, secondary_scale=2.0, maximum_value=4.0, **CLAMPED)],
}


def _conversion(source: str, result: str, channels: int = 4, made: int | None = None, **values: Any) -> FilterSample:
    kinds = MPSAlphaType[source], MPSAlphaType[result]

    def forward(sources: list[Array], how: list[Reading], count: int) -> Array:
        x = how[0].region(sources[0])
        if channels == 4:
            x = oracle.convert_alpha(x, source, result, values.get("background_color", (0.0, 0.0, 0.0)))
        return oracle.textured(x, count)

    return FilterSample(
        f"conversion of {channels} channels from {source} to {result} {' '.join(values)} {made or ''}",
        lambda device: conversion.MPSImageConversion(device, *kinds, **values),
        forward,
        (channels,),
        made,
        in_bytes=source != "PREMULTIPLIED",  # a colour above its alpha has no byte
    )


_KINDS = ("NON_PREMULTIPLIED", "ALPHA_IS_ONE", "PREMULTIPLIED")
CONVERSIONS = [
    *(_conversion(source, result) for source in _KINDS for result in _KINDS),
    _conversion("NON_PREMULTIPLIED", "ALPHA_IS_ONE", background_color=(0.25, 0.5, 1.0)),
    _conversion("PREMULTIPLIED", "ALPHA_IS_ONE", 4, 2, background_color=(0.5, 0.0, 0.25)),
    _conversion("PREMULTIPLIED", "NON_PREMULTIPLIED", 1, 4),
]


def _transposed(sources: list[Array], how: list[Reading], count: int) -> Array:
    rows, columns, edge = how[0]
    turned = Reading(Axis(columns.result, offset=rows.offset), Axis(rows.result, offset=columns.offset), edge)
    return turned.region(sources[0]).transpose(0, 1, 3, 2)


TRANSPOSES = [
    FilterSample(
        "image transpose", transpose.MPSImageTranspose, _transposed, (4,), works_in_place=False, result=SIZE[::-1]
    ),
    FilterSample("image transpose of many channels", transpose.MPSImageTranspose, _transposed, (5,),
                 works_in_place=False, result=SIZE[::-1]),
]  # fmt: skip

FILTERS: dict[type[MPSKernel], list[FilterSample]] = {
    **THRESHOLDS,
    **ARITHMETIC,
    conversion.MPSImageConversion: CONVERSIONS,
    transpose.MPSImageTranspose: TRANSPOSES,
}
"""Every filter that makes a picture of pictures."""

ALL_FILTERS = [sample for samples in FILTERS.values() for sample in samples]
