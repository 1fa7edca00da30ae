"""Pictures of images for notebooks: PNG files, written by the format's specification alone."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from openmps.errors import MPSError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KINDS = {1: 0, 3: 2, 4: 6}
"""PNG's types of colours by channels: grey, red green blue, and those with opacity."""
_GAP, _GREY = 1, 128
_MOST_TILES = 64
_LARGEST, _SMALLEST = 512, 64
"""Pixels of a tile's longer side: larger ones lose pixels, and pixels of smaller ones become squares."""


def png_of(numbers: Callable[[], NDArray[np.float32]]) -> bytes | None:
    """Images ``[H, W, C]`` or ``[N, H, W, C]`` as a PNG, several as a sheet; None where they cannot be read now.

    Of 1, 3 or 4 channels they are shown in grey or in colours, of others each channel in grey. Numbers from 0 to 1 are
    shown as they are, others from their least, black, to their largest, white; what is not finite is black.
    """
    try:
        found = numbers()
    except MPSError:  # temporary, or of a command buffer that is not done
        return None
    images = found if found.ndim == 4 else found[np.newaxis]
    if not images.size:
        return None
    if images.shape[3] not in _KINDS:
        images = images.transpose(0, 3, 1, 2).reshape(-1, *images.shape[1:3], 1)
    return png(_sheet([_sized(each) for each in _bytes(images[:_MOST_TILES])]))


def png(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> bytes:
    """Pixels ``[H, W, C]`` of 1, 3 or 4 channels, of 8 or 16 bits, as a file."""
    height, width, channels = pixels.shape
    elements = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">"))
    rows = np.zeros((height, 1 + width * channels * pixels.itemsize), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = elements.reshape(height, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, _KINDS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bytes(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    finite = images[np.isfinite(images)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    scaled = (images.astype(np.float64) - low) / (high - low or 1.0)
    return np.rint(255 * np.clip(np.where(np.isfinite(images), scaled, 0.0), 0.0, 1.0)).astype(np.uint8)


def _sized(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A tile that is neither so small nor so large that nothing is seen of it."""
    longest = max(image.shape[:2])
    step, factor = -(-longest // _LARGEST), max(1, _SMALLEST // longest)
    return image[::step, ::step].repeat(factor, 0).repeat(factor, 1)


def _sheet(tiles: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Tiles of one size in rows, with lines between."""
    if len(tiles) == 1:
        return tiles[0]
    height, width, channels = tiles[0].shape
    across = math.ceil(math.sqrt(len(tiles)))
    down = -(-len(tiles) // across)
    sheet = np.full((down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, channels), _GREY, np.uint8)
    for place, tile in enumerate(tiles):
        top, left = place // across * (height + _GAP), place % across * (width + _GAP)
        sheet[top : top + height, left : left + width] = tile
    return sheet
