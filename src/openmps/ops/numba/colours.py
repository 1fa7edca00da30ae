"""Pixels of several channels: conversions, alpha, gray values, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openmps.ops.elements import COMPONENTS
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.library_form import Array, Run, in_parts
from openmps.ops.image.site import Site
from openmps.ops.image.threshold import Threshold, becomes
from openmps.ops.numba.loop import PAIRS, added_components, are_compiled, bits, lines, loops
from openmps.ops.numba.primitives import claim, finish, look, number, store, wait
from openmps.types import MPSAlphaType, MPSImageEdgeMode

_COPIED = 1 << 20
"""Numbers that are copied which are worth a thread."""
_STAY, _KEEP_ALPHA, _TIMES_ALPHA, _BY_ALPHA, _THRESHOLD = range(5)
"""What becomes of the numbers of a pixel: nothing; of colours by alpha; the threshold of their gray value."""


def put_components(
    total: Any, channels: int, into: Any, kept: int, count: int, factor: Any, added: Any, room: Any
) -> None:
    """Numbers of pixels, times a factor, as pixels of other channels, with others in the place of those that lack.

    These are put side by side in ``room`` before they are rounded: vectors are, without a branch.
    """
    if channels == kept:
        for place in range(count * kept):
            store(into, place, total[place] * factor)
        return
    for channel in range(kept):
        for pixel in range(count if channel < channels else 0):
            room[pixel * kept + channel] = total[pixel * channels + channel] * factor
        for pixel in range(count if channel >= channels else 0):
            room[pixel * kept + channel] = added[channel]
    for place in range(count * kept):
        store(into, place, room[place])


def _with_alpha(numbers: Any, count: int, kind: int, is_opaque: Any, background: Any) -> None:
    """Colours times alpha or divided by it, over a background; alpha 1."""
    if kind == 2:
        for pixel in range(count):
            alpha = numbers[4 * pixel + 3]
            for channel in range(3):
                numbers[4 * pixel + channel] *= alpha
    elif kind == 3:
        for pixel in range(count):
            alpha = numbers[4 * pixel + 3]
            for channel in range(3):
                colour = numbers[4 * pixel + channel] / alpha
                numbers[4 * pixel + channel] = np.float32(0.0) if alpha == np.float32(0.0) else colour
    if background[0] != 0.0 or background[1] != 0.0 or background[2] != 0.0:
        for pixel in range(count):
            rest = np.float32(1.0) - numbers[4 * pixel + 3]
            for channel in range(3):
                numbers[4 * pixel + channel] += rest * background[channel]
    if is_opaque:
        for pixel in range(count):
            numbers[4 * pixel + 3] = np.float32(1.0)


def find_grays(numbers: Any, channels: int, count: int, weights: Any, grays: Any) -> None:
    """Gray values of pixels, the number itself of one channel."""
    red, green, blue = weights
    if channels == 1:
        grays[:count] = numbers[:count]
    elif channels == 2:
        for pixel in range(count):
            grays[pixel] = numbers[2 * pixel] * red + numbers[2 * pixel + 1] * green
    elif channels == 3:
        for pixel in range(count):
            value = numbers[3 * pixel] * red + numbers[3 * pixel + 1] * green
            grays[pixel] = value + numbers[3 * pixel + 2] * blue
    else:
        for pixel in range(count):
            value = numbers[4 * pixel] * red + numbers[4 * pixel + 1] * green
            grays[pixel] = value + numbers[4 * pixel + 2] * blue


def _threshold(grays: Any, count: int, numbers: Any, keeps: Any) -> None:
    """One of two numbers, or the gray value itself."""
    limit, above, below = numbers
    keeps_above, keeps_below = keeps[0], keeps[1]
    for pixel in range(count):
        value = grays[pixel]
        high, low = value if keeps_above else above, value if keeps_below else below
        grays[pixel] = high if value > limit else low


def _spread(grays: Any, count: int, numbers: Any) -> None:
    """Gray values as colours whose alpha is 1."""
    for pixel in range(count):
        value, place = grays[pixel], 4 * pixel
        numbers[place], numbers[place + 1], numbers[place + 2] = value, value, value
        numbers[place + 3] = np.float32(1.0)


@loops(
    "T[::1], int64, S[::1], int64, int64, int64, int64, int64, float32, float32, float32[::1], "
    "float32[::1], float32[::1], boolean[::1]",
    PAIRS,
    uses=(put_components, _with_alpha, find_grays, _threshold, _spread),
)
def _make_pixels(
    claims: Any, x: Any, x_step: int, made: Any, step: int, columns: int, channels: int, kept: int, kind: int,
    largest: Any, factor: Any, added: Any, weights: Any, limits: Any, flags: Any,
) -> None:  # fmt: skip
    """Pixels of pixels, of a kind (`_STAY` and so on); weights are those of gray values, or a background."""
    strip = 1024  # pixels that lie in a core's cache
    numbers, grays = np.empty(strip * max(channels, 4), np.float32), np.empty(strip, np.float32)
    room = np.empty(strip * kept, np.float32)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            for begin in range(0, columns, strip):
                count = min(strip, columns - begin)
                some = x[row * x_step + begin * channels :][: count * channels]
                into = made[row * step + begin * kept :][: count * kept]
                for place in range(len(some)):
                    numbers[place] = number(some[place]) / largest
                if kind == 4:
                    find_grays(numbers, channels, count, weights, grays)
                    _threshold(grays, count, limits, flags)
                    if kept == 1:
                        put_components(grays, 1, into, 1, count, factor, added, room)
                    else:
                        _spread(grays, count, numbers)
                        put_components(numbers, 4, into, kept, count, factor, added, room)
                else:
                    if kind > 0:
                        _with_alpha(numbers, count, kind, flags[0], weights)
                    put_components(numbers, channels, into, kept, count, factor, added, room)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def _run(site: Site, kind: int, weights: Any, limits: Any, flags: Any) -> Run | None:
    if not are_compiled(site.formats):
        return None
    channels, kept, largest = site.sources[0].channels, site.result.channels, np.float32(round(1.0 / site.unit))
    with np.errstate(over="ignore"):  # a threshold beyond float32 is infinite
        numbers = [np.array(each, np.float32) for each in (weights, limits)]
    options = kind, largest, np.float32(site.scale), added_components(site), *numbers, np.array(flags, np.bool_)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into, (rows, columns) = bits(given[0]), bits(made), made.shape[:2]
        _make_pixels[x.dtype.name, into.dtype.name].run(
            rows, max(given[0].size, made.size), *lines(x), *lines(into), columns, channels, kept, *options
        )

    return run


def converted(site: Site) -> Run | None:
    """Pixels in another format, perhaps with other channels (`Components`); those that stay as they are are copied."""
    if site.ops or site.formats[0] is not site.formats[1]:
        return _run(site, _STAY, (0.0,) * 3, (0.0,) * 3, (False, False))

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        in_parts(lambda rows: np.copyto(made[rows], given[0][rows]), made, _COPIED)

    return run


def converted_alpha(site: Site) -> Run | None:
    """`ConvertAlpha`, perhaps with other channels behind it."""
    op = site.ops[0]
    assert isinstance(op, ConvertAlpha)
    straight, multiplied, opaque = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.PREMULTIPLIED, MPSAlphaType.ALPHA_IS_ONE
    is_same = op.source is op.result
    kind = _KEEP_ALPHA
    if op.source is straight and not is_same:
        kind = _TIMES_ALPHA
    elif (op.source, op.result) == (multiplied, straight):
        kind = _BY_ALPHA
    shows = op.result is opaque and not is_same
    background = op.background if shows else (0.0,) * 3
    return _run(site, kind, background, (0.0,) * 3, (opaque in (op.source, op.result), False))


def _threshold_row(
    x: Any, into: Any, limit: Any, above: Any, below: Any, keeps_above: Any, keeps_below: Any, largest: Any, factor: Any
) -> None:
    """`_threshold` of a row, stored. A loop without a choice but of numbers becomes one of vectors."""
    if keeps_above:
        for place in range(len(into)):
            value = number(look(x, place)) / largest
            store(into, place, (value if value > limit else below) * factor)
    elif keeps_below:
        for place in range(len(into)):
            value = number(look(x, place)) / largest
            store(into, place, (above if value > limit else value) * factor)
    else:
        for place in range(len(into)):
            value = number(look(x, place)) / largest
            store(into, place, (above if value > limit else below) * factor)


@loops(
    "T[::1], int64, S[::1], int64, int64, float32, float32, float32, boolean, boolean, float32, float32",
    PAIRS,
    uses=(_threshold_row,),
)
def _threshold_rows(
    claims: Any, x: Any, x_step: int, made: Any, step: int, columns: int, limit: Any, above: Any, below: Any,
    keeps_above: Any, keeps_below: Any, largest: Any, factor: Any,
) -> None:  # fmt: skip
    """`_threshold` of numbers of one channel, without a strip between."""
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            some, into = x[row * x_step :][:columns], made[row * step :][:columns]
            _threshold_row(some, into, limit, above, below, keeps_above, keeps_below, largest, factor)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def _thresholded_rows(site: Site, limits: Sequence[float], keeps: tuple[bool, bool]) -> Run | None:
    if not are_compiled(site.formats):
        return None
    with np.errstate(over="ignore"):  # a threshold beyond float32 is infinite
        numbers = [np.float32(each) for each in limits]
    options = *numbers, *keeps, np.float32(round(1.0 / site.unit)), np.float32(site.scale)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into, (rows, columns) = bits(given[0]), bits(made), made.shape[:2]
        _threshold_rows[x.dtype.name, into.dtype.name].run(rows, made.size, *lines(x), *lines(into), columns, *options)

    return run


def thresholded(site: Site) -> Run | None:
    """`Threshold` of the `Gray` value, in up to three channels; the fourth one is 1."""
    gray, op, spread = site.ops
    assert isinstance(gray, Gray)
    assert isinstance(op, Threshold)
    assert isinstance(spread, Spread)
    if max(site.sources[0].channels, spread.count) > COMPONENTS:
        return None
    above, below = becomes(op.how, op.limit, op.largest)
    limits = op.limit, above or 0.0, below or 0.0
    if site.sources[0].channels == spread.count == 1:
        return _thresholded_rows(site, limits, (above is None, below is None))
    return _run(site, _THRESHOLD, gray.weights, limits, (above is None, below is None))
