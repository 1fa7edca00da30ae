"""Numbers as a page shows them: histograms, and small pictures of feature maps and filters."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from math import ceil, isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.graph.run.trace import statistics_of

Array = NDArray[Any]
_BINS = 48
_MOST_MAPS = 16
_FEWEST_MAPS = 6
_SMALLEST, _LARGEST = 8, 72
"""Pixels of a side of a picture."""
_MOST_IMAGES = 4
_MOST_VALUES = 1024
_FILTERS, _INPUTS = 8, 4
"""Filters that are shown, and channels of each."""
_MATRIX = 48
"""Rows and columns of a picture of weights without windows."""


class Picture(NamedTuple):
    """A picture [height, width] or [height, width, 3], and what it is called."""

    name: str
    pixels: Array


def plain(number: float) -> float | None:
    """A number in five digits; None for what JSON has no word for."""
    return float(f"{number:.5g}") if np.isfinite(number) else None


def histogram(array: Array) -> dict[str, Any]:
    """How many numbers fall into each of equal steps from the least to the largest, of those that are finite."""
    found = statistics_of(array)
    finite = array[np.isfinite(array)]
    counts: list[int] = []
    deviation = 0.0
    if finite.size:
        # In float64: the range of large numbers is no number of theirs, and that of equal ones has no steps.
        places = finite.astype(np.float64) - found.least
        places *= _BINS / ((found.largest - found.least) or 1.0)
        counts = np.bincount(np.minimum(places.astype(np.int64), _BINS - 1).reshape(-1), minlength=_BINS).tolist()
        deviation = float(finite.std(dtype=np.float64))
    return {
        "count": int(array.size),
        "least": plain(found.least),
        "largest": plain(found.largest),
        "mean": plain(found.mean),
        "deviation": plain(deviation),
        "zeros": plain(found.zeros),
        "not_finite": found.not_finite,
        "bins": counts,
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def feature_maps(array: Array, budget: int) -> list[dict[str, Any]]:
    """Pictures of an image's channels, of the first images; ``budget`` is how many pixels all may take.

    Images of one pixel are lists of their channels.
    """
    images, height, width, channels = array.shape
    if height == width == 1:
        return [_listed(each.reshape(-1)) for each in array[:_MOST_IMAGES]]
    if channels == 3:
        side = _side(budget // 3, min(images, _MOST_IMAGES), height, width)
        return [_sheet([Picture("red, green, blue", reduced(each, side))], 3) for each in array[:_MOST_IMAGES]]
    wanted = min(channels, _MOST_MAPS)
    shown = min(images, _MOST_IMAGES)
    # Rather fewer images than pictures in which nothing can be seen.
    while shown > 1 and _side(budget, shown * wanted, height, width) < min(28, max(height, width)):
        shown -= 1
    if _side(budget, shown * wanted, height, width) < min(12, max(height, width)):
        wanted = min(channels, _FEWEST_MAPS)
    side = _side(budget, shown * wanted, height, width)
    return [
        _sheet([Picture(f"channel {place}", reduced(each[..., place], side)) for place in range(wanted)], channels)
        for each in array[:shown]
    ]


def filters(array: Array, budget: int) -> dict[str, Any] | None:
    """Pictures of convolution weights OHWI; None of what is none."""
    if array.ndim != 4 or not array.size:
        return None
    outputs, height, width, inputs = array.shape
    if height == width == 1:
        side = min(_MATRIX, isqrt(budget))
        rows, columns = (_spread(length, side) for length in (outputs, inputs))
        name = f"{len(rows)} of {outputs} outputs down, {len(columns)} of {inputs} inputs across"
        return _sheet([Picture(name, array[rows, 0, 0][:, columns])], 1, is_signed=True)
    if inputs == 3:
        count = min(outputs, 2 * _MOST_MAPS)
        side = _side(budget // 3, count, height, width)
        found = [Picture(f"filter {place}", reduced(array[place], side)) for place in range(count)]
        return _sheet(found, outputs)
    count, across = min(outputs, _FILTERS), min(inputs, _INPUTS)
    side = _side(budget, count * across, height, width)
    found = [
        Picture(f"filter {place}, input {channel}", reduced(array[place, ..., channel], side))
        for place in range(count)
        for channel in range(across)
    ]
    return _sheet(found, outputs * inputs, is_signed=True)


def picture_sheet(pixels: Array, side: int) -> dict[str, Any]:
    """A grey or coloured image [height, width, channels] of 0 to 255 as it is."""
    found = reduced(pixels if pixels.shape[2] == 3 else pixels[..., 0], side)
    return _sheet([Picture("image", found)], 1, limits=(0.0, 255.0))


def reduced(picture: Array, side: int) -> Array:
    """A picture whose sides are at most so long: the means of blocks."""
    step = ceil(max(picture.shape[:2]) / side)
    if step <= 1:
        return picture.astype(np.float32)
    rows, columns = (np.arange(0, length, step) for length in picture.shape[:2])
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(np.add.reduceat(picture.astype(np.float32), rows, 0), columns, 1)
    counts = np.outer(
        *(np.diff([*edges, length]) for edges, length in zip((rows, columns), picture.shape, strict=False))
    )
    return sums / counts.reshape(counts.shape + (1,) * (picture.ndim - 2))


def _side(budget: int, count: int, height: int, width: int) -> int:
    """The longest side of so many pictures alike within a number of pixels."""
    longest, shortest = max(height, width), min(height, width)
    side = isqrt(max(budget // max(count, 1), 1) * longest // shortest)
    return max(min(side, _LARGEST, longest), min(_SMALLEST, longest))


def _spread(length: int, most: int) -> Array:
    """Places all over a length, at most so many."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).astype(np.int64))


def _listed(values: Array) -> dict[str, Any]:
    return {"values": [plain(float(each)) for each in values[:_MOST_VALUES]], "of": int(values.size)}


def _sheet(
    pictures: Sequence[Picture], of: int, *, is_signed: bool = False, limits: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Pictures of one size as bytes, each over its own range unless given; signed ones over a range around zero."""
    height, width = pictures[0].pixels.shape[:2]
    parts: list[bytes] = []
    ranges: list[list[float | None]] = []
    for picture in pictures:
        pixels = picture.pixels.astype(np.float64)
        finite = pixels[np.isfinite(pixels)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        ranges.append([plain(low), plain(high)])
        if is_signed:
            high = max(abs(low), abs(high))
            low = -high
        low, high = limits or (low, high)
        scaled = (pixels - low) * (255 / (high - low)) if high > low else np.zeros_like(pixels)
        numbers = np.nan_to_num(scaled, nan=0.0, posinf=255, neginf=0).clip(0, 255)
        parts.append(numbers.round().astype(np.uint8).tobytes())
    return {
        "width": width,
        "height": height,
        "colours": pictures[0].pixels.ndim == 3,
        "signed": is_signed,
        "names": [picture.name for picture in pictures],
        "ranges": ranges,
        "of": of,
        "data": b64encode(b"".join(parts)).decode(),
    }
