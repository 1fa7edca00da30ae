"""Pixel formats of textures: what a pixel holds, and the numbers that its elements stand for, on the host.

Unorm ``u / (2^bits - 1)``; float as it is; colours of sRGB formats by that standard's curve (IEC 61966-2-1), so that
the numbers are linear. The fourth component, alpha, is stored linearly in all formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.types import NUMPY_DTYPES, MTLPixelFormat
from openmps.types import MPSImageFeatureChannelFormat as Format

_COLOURS = 3


class PixelLayout(NamedTuple):
    """What a pixel of a texture holds."""

    channel_format: Format
    components: int
    is_bgra: bool = False
    """Whether bytes come in the order blue, green, red, alpha."""
    is_srgb: bool = False
    """Whether colours are stored by the curve of sRGB; alpha never is."""


PIXEL_LAYOUTS: Final[Mapping[MTLPixelFormat, PixelLayout]] = {
    **{
        MTLPixelFormat[components + elements]: PixelLayout(channel_format, len(components))
        for components in ("R", "RG", "RGBA")
        for elements, channel_format in (
            ("8_UNORM", Format.UNORM8),
            ("16_UNORM", Format.UNORM16),
            ("16_FLOAT", Format.FLOAT16),
            ("32_FLOAT", Format.FLOAT32),
        )
    },
    MTLPixelFormat.R8_UNORM_SRGB: PixelLayout(Format.UNORM8, 1, is_srgb=True),
    MTLPixelFormat.RG8_UNORM_SRGB: PixelLayout(Format.UNORM8, 2, is_srgb=True),
    MTLPixelFormat.RGBA8_UNORM_SRGB: PixelLayout(Format.UNORM8, 4, is_srgb=True),
    MTLPixelFormat.BGRA8_UNORM: PixelLayout(Format.UNORM8, 4, is_bgra=True),
    MTLPixelFormat.BGRA8_UNORM_SRGB: PixelLayout(Format.UNORM8, 4, is_bgra=True, is_srgb=True),
}
"""The pixel formats that textures have here."""


def numbers_of(elements: NDArray[Any], layout: PixelLayout) -> NDArray[np.float32]:
    """The float32 numbers of elements, whose last axis is the components, in the order red, green, blue, alpha."""
    if elements.dtype.kind == "f":
        return elements.astype(np.float32)
    numbers = elements.astype(np.float32) / np.float32(np.iinfo(elements.dtype).max)
    if layout.is_srgb:
        colours = numbers[..., :_COLOURS].astype(np.float64)
        numbers[..., :_COLOURS] = np.where(
            colours <= 0.04045, colours / 12.92, ((np.maximum(colours, 0.04045) + 0.055) / 1.055) ** 2.4
        )
    return numbers


def elements_of(numbers: NDArray[np.floating[Any]], layout: PixelLayout) -> NDArray[Any]:
    """The elements that numbers are stored as: rounded once, to nearest; unorm clamps to [0, 1] and stores NaN as 0."""
    dtype = NUMPY_DTYPES[layout.channel_format]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # float16 stores what is too large as infinity
            return numbers.astype(dtype)
    values = np.clip(np.nan_to_num(numbers.astype(np.float64), nan=0.0), 0.0, 1.0)
    if layout.is_srgb:
        colours = values[..., :_COLOURS]
        values[..., :_COLOURS] = np.where(
            colours <= 0.0031308, 12.92 * colours, 1.055 * np.maximum(colours, 0.0031308) ** (1 / 2.4) - 0.055
        )
    return np.rint(values * (256**dtype.itemsize - 1)).astype(dtype)
