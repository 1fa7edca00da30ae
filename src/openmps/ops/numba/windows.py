"""Filters of windows, by compiled loops; see `openmps.ops.numba.table`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from openmps.ops.image.colour import Gray
from openmps.ops.image.library_form import Array, Run
from openmps.ops.image.separable import MeanBytes, Profile, Separable, SeparableBytes, Shape, sums_exactly
from openmps.ops.image.site import BYTES, FLOATS, LARGEST, Site
from openmps.ops.image.windows import Correlate
from openmps.ops.numba.colours import find_grays
from openmps.ops.numba.loop import PAIRS, are_compiled, bits, lines, loop, loops
from openmps.ops.numba.primitives import claim, finish, look, multiply_add, number, pair, store, wait
from openmps.types import MPSImageEdgeMode

_STRIP = 1024
"""Pixels of a row that are summed down and across while they lie in a core's cache."""
_MOST_TAPS = 129
"""Weights along an axis above which products with a matrix come sooner."""
_MOST_FLAT = 31
"""Those of a flat window, above which sums of sums come sooner."""
_MOST_WEIGHTS = 5 * 5
"""Those of a window above which OpenCV's own sums come as soon."""
_BAND = 16
"""Rows that are made at a time, for each that windows reach beyond them: these are widened twice."""


# --- sums with weights down and across -------------------------------------------------------------------------------


def _sum_down(
    x: Any, step: int, rows: int, row: int, left: int, width: int, weights: Any, clamps: Any, sums: Any
) -> None:
    """Sums of a row's columns, of numbers as far above and below it: four of each at a time where they are there."""
    here, tap, middle = x[row * step + left :][:width], 1, weights[0]
    if len(weights) < 5 or row < 4 or row + 4 >= rows:
        for column in range(width):
            sums[column] = number(here[column]) * middle
    while tap < len(weights):
        above, below = row - tap, row + tap
        if tap + 3 < len(weights) and above >= 3 and below + 3 < rows:
            place = above * step + left
            a, b = x[place:][:width], x[place - step :][:width]
            c, d = x[place - 2 * step :][:width], x[place - 3 * step :][:width]
            place = below * step + left
            e, f = x[place:][:width], x[place + step :][:width]
            g, h = x[place + 2 * step :][:width], x[place + 3 * step :][:width]
            one, two, three, four = weights[tap], weights[tap + 1], weights[tap + 2], weights[tap + 3]
            for column in range(width if tap == 1 else 0):
                total = multiply_add(pair(a[column], e[column]), one, number(here[column]) * middle)
                total = multiply_add(pair(b[column], f[column]), two, total)
                total = multiply_add(pair(c[column], g[column]), three, total)
                sums[column] = multiply_add(pair(d[column], h[column]), four, total)
            for column in range(width if tap > 1 else 0):
                total = multiply_add(pair(a[column], e[column]), one, sums[column])
                total = multiply_add(pair(b[column], f[column]), two, total)
                total = multiply_add(pair(c[column], g[column]), three, total)
                sums[column] = multiply_add(pair(d[column], h[column]), four, total)
            tap += 4
        else:
            one = weights[tap]
            if clamps or (above >= 0 and below < rows):
                a, e = x[max(above, 0) * step + left :][:width], x[min(below, rows - 1) * step + left :][:width]
                for column in range(width):
                    sums[column] = multiply_add(pair(a[column], e[column]), one, sums[column])
            elif above >= 0 or below < rows:
                a = x[(above if above >= 0 else below) * step + left :][:width]
                for column in range(width):
                    sums[column] = multiply_add(number(a[column]), one, sums[column])
            tap += 1


def _sum_across(whole: Any, margin: int, channels: int, count: int, weights: Any, total: Any) -> None:
    """Sums along a row that begins and ends with a margin, as `_sum_down`."""
    here, tap, middle = whole[margin:][:count], 1, weights[0]
    if len(weights) < 5:
        for column in range(count):
            total[column] = here[column] * middle
    while tap < len(weights):
        left, right, one = margin - tap * channels, margin + tap * channels, weights[tap]
        a, e = whole[left:][:count], whole[right:][:count]
        if tap + 3 < len(weights):
            b, c, d = (
                whole[left - channels :][:count],
                whole[left - 2 * channels :][:count],
                whole[left - 3 * channels :][:count],
            )
            f, g, h = (
                whole[right + channels :][:count],
                whole[right + 2 * channels :][:count],
                whole[right + 3 * channels :][:count],
            )
            two, three, four = weights[tap + 1], weights[tap + 2], weights[tap + 3]
            for column in range(count if tap == 1 else 0):
                sum_ = multiply_add(a[column] + e[column], one, here[column] * middle)
                sum_ = multiply_add(b[column] + f[column], two, sum_)
                sum_ = multiply_add(c[column] + g[column], three, sum_)
                total[column] = multiply_add(d[column] + h[column], four, sum_)
            for column in range(count if tap > 1 else 0):
                sum_ = multiply_add(a[column] + e[column], one, total[column])
                sum_ = multiply_add(b[column] + f[column], two, sum_)
                sum_ = multiply_add(c[column] + g[column], three, sum_)
                total[column] = multiply_add(d[column] + h[column], four, sum_)
            tap += 4
        else:
            for column in range(count):
                total[column] = multiply_add(a[column] + e[column], one, total[column])
            tap += 1


@loops(
    "T[::1], int64, S[::1], int64, int64, int64, int64, float32[::1], float32[::1], float32, boolean, int64",
    PAIRS,
    uses=(_sum_down, _sum_across),
)
def _weigh(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int,
    down: Any, across: Any, factor: Any, clamps: Any, strip: int,
) -> None:  # fmt: skip
    """Sums with weights down and across, of the middle and of two pixels as far from it each, times a factor."""
    margin = (len(across) - 1) * channels
    whole, total = np.empty(strip + 2 * margin, np.float32), np.empty(strip, np.float32)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            for begin in range(0, columns, strip):
                count = min(strip, columns - begin)
                left, right = max(begin - margin, 0), min(begin + count + margin, columns)
                before, width = left - begin + margin, right - left
                sums = whole[before:][:width]
                _sum_down(x, x_step, rows, row, left, width, down, clamps, sums)
                # What lies beyond the picture.
                for place in range(before):
                    whole[place] = sums[place % channels] if clamps else np.float32(0.0)
                for place in range(before + width, count + 2 * margin):
                    last_one = width - channels + (place - before - width) % channels
                    whole[place] = sums[last_one] if clamps else np.float32(0.0)
                _sum_across(whole, margin, channels, count, across, total)
                into = made[row * step + begin :][:count]
                for column in range(count):
                    store(into, column, total[column] * factor)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def _weighed(site: Site, down: Array, across: Array, factor: float) -> Run | None:
    """Sums with weights down and across, of which the middle one and those behind it are given."""
    if not are_compiled(site.formats) or not all(
        axis.size <= 2 * axis.source for axis in (site.window.y, site.window.x)
    ):
        return None
    weights, taps = (down.astype(np.float32), across.astype(np.float32)), len(down) + len(across)
    channels = site.result.channels

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        (x, step), into, rows, columns = lines(bits(given[0])), lines(bits(made)), len(made), made[0].size
        clamps = edge_mode == MPSImageEdgeMode.CLAMP
        weigh = _weigh[x.dtype.name, into.numbers.dtype.name]
        weigh.run(
            *(rows, made.size * taps // 4, x, step, *into, rows, columns, channels),
            *(*weights, factor, clamps, min(columns, _STRIP * channels)),
        )

    return run


def separable(site: Site) -> Run | None:
    """`Separable`, of floats as a rule."""
    op = site.ops[0]
    assert isinstance(op, Separable)
    if not _has_few_taps(site, op.profile):
        return None
    return _weighed(site, *_halves(op.profile, site.window.size), site.unit * site.scale)


def separable_bytes(site: Site) -> Run | None:
    """`SeparableBytes`, to floats or rounded once."""
    op = site.ops[0]
    assert isinstance(op, SeparableBytes)
    if not _has_few_taps(site, op.profile):
        return None
    return _weighed(site, *_halves(op.profile, site.window.size), site.scale / LARGEST)


def mean_bytes(site: Site) -> Run | None:
    """`MeanBytes` of triangles: float32 has all of their sums, which are rounded once."""
    op = site.ops[0]
    assert isinstance(op, MeanBytes)
    size = site.window.size
    if op.profile.shape is not Shape.TRIANGLE or not sums_exactly(op.profile, size) or max(size) > _MOST_TAPS:
        return None
    counts = [np.array(op.profile.counts(length)[length // 2 :]) for length in size]
    return _weighed(site, counts[0], counts[1], 1.0 / math.prod(map(math.prod, op.profile.spans(size))))


def _has_few_taps(site: Site, profile: Profile) -> bool:
    """Whether windows are small; flat ones are left to OpenCV where it takes the formats."""
    is_flat = profile.shape is Shape.FLAT
    is_left = is_flat and site.formats in ((BYTES, FLOATS), (FLOATS, FLOATS))
    return not is_left and max(site.window.size) <= (_MOST_FLAT if is_flat else _MOST_TAPS)


def _halves(profile: Profile, size: tuple[int, int]) -> tuple[Array, Array]:
    down, across = (
        np.full(length // 2 + 1, 1.0 / length)
        if profile.shape is Shape.FLAT
        else profile.weights(length, torch.empty(0)).numpy()[length // 2 :]
        for length in size
    )
    return down, across


# --- sums with any weights --------------------------------------------------------------------------------------------


def _widen(x: Any, begin: int, columns: int, channels: int, margin: int, clamps: Any, wide: Any) -> None:
    """A row as float32, with a margin on both sides."""
    row, middle = x[begin:][:columns], wide[margin:][:columns]
    for column in range(columns):
        middle[column] = number(row[column])
    for place in range(margin):
        last = columns - channels + place % channels
        wide[place] = middle[place % channels] if clamps else np.float32(0.0)
        wide[margin + columns + place] = middle[last] if clamps else np.float32(0.0)


def _sum_three(p: Any, q: Any, r: Any, channels: int, count: int, weights: Any, bias: Any, into: Any) -> None:
    """Sums over windows of 3 x 3 pixels of three rows."""
    a, b, c = p[:count], p[channels:][:count], p[2 * channels :][:count]
    d, e, f = q[:count], q[channels:][:count], q[2 * channels :][:count]
    g, h, i = r[:count], r[channels:][:count], r[2 * channels :][:count]
    one, two, three, four, five, six, seven, eight, nine = weights
    if one == three == seven == nine == np.float32(0.0):  # a cross: loads take longest
        for column in range(count):
            sum_ = multiply_add(look(b, column), two, bias)
            sum_ = multiply_add(look(d, column), four, sum_)
            sum_ = multiply_add(look(e, column), five, sum_)
            sum_ = multiply_add(look(f, column), six, sum_)
            store(into, column, multiply_add(look(h, column), eight, sum_))
        return
    for column in range(count):
        sum_ = multiply_add(look(a, column), one, bias)
        sum_ = multiply_add(look(b, column), two, sum_)
        sum_ = multiply_add(look(c, column), three, sum_)
        sum_ = multiply_add(look(d, column), four, sum_)
        sum_ = multiply_add(look(e, column), five, sum_)
        sum_ = multiply_add(look(f, column), six, sum_)
        sum_ = multiply_add(look(g, column), seven, sum_)
        sum_ = multiply_add(look(h, column), eight, sum_)
        store(into, column, multiply_add(look(i, column), nine, sum_))


def _sum_row(row: Any, channels: int, count: int, weights: Any, total: Any) -> None:
    """Add to sums those over a row of windows: five pixels at a time, then one."""
    tap = 0
    while tap < len(weights):
        a, one = row[tap * channels :][:count], weights[tap]
        if tap + 4 < len(weights):
            b, c = row[(tap + 1) * channels :][:count], row[(tap + 2) * channels :][:count]
            d, e = row[(tap + 3) * channels :][:count], row[(tap + 4) * channels :][:count]
            two, three, four, five = weights[tap + 1], weights[tap + 2], weights[tap + 3], weights[tap + 4]
            for column in range(count):
                sum_ = multiply_add(a[column], one, total[column])
                sum_ = multiply_add(b[column], two, sum_)
                sum_ = multiply_add(c[column], three, sum_)
                sum_ = multiply_add(d[column], four, sum_)
                total[column] = multiply_add(e[column], five, sum_)
            tap += 5
        else:
            for column in range(count):
                total[column] = multiply_add(a[column], one, total[column])
            tap += 1


@loops(
    "T[::1], int64, S[::1], int64, int64, int64, int64, float32[::1], int64, int64, float32, boolean",
    PAIRS,
    uses=(_widen, _sum_three, _sum_row),
)
def _correlate(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int,
    weights: Any, height: int, width: int, bias: Any, clamps: Any,
) -> None:  # fmt: skip
    """Sums over windows, and a bias; the rows that a window reads lie in a ring."""
    reach, margin = height // 2, width // 2 * channels
    span = columns + 2 * margin
    ring, total, place = np.empty(height * span, np.float32), np.empty(columns, np.float32), np.empty(height, np.int64)
    first, last = claim(claims)
    while first < last:
        for read in range(first - reach, last + reach):
            wide, row = ring[(read + reach) % height * span :][:span], read - reach
            if clamps or (read >= 0 and read < rows):
                _widen(x, min(max(read, 0), rows - 1) * x_step, columns, channels, margin, clamps, wide)
            else:
                wide[:] = np.float32(0.0)
            if row < first:
                continue
            for tap in range(height):
                place[tap] = (row + tap) % height * span
            into = made[row * step :][:columns]
            if height == 3 and width == 3:
                p, q, r = ring[place[0] :], ring[place[1] :], ring[place[2] :]
                _sum_three(p, q, r, channels, columns, weights, bias, into)
            else:
                total[:] = bias
                for tap in range(height):
                    _sum_row(ring[place[tap] :][:span], channels, columns, weights[tap * width :][:width], total)
                for column in range(columns):
                    store(into, column, total[column])
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def _sum_beside(row: Any, place: int, columns: int, channels: int, weights: Any, clamps: Any, total: Any) -> Any:
    """Add to a sum that over three pixels of a row around a place, some of which may lie beyond the row."""
    for tap in range(3):
        column = place + (tap - 1) * channels
        is_inside = column >= 0 and column < columns
        value = row[column if is_inside else place] if is_inside or clamps else np.float32(0.0)
        total = multiply_add(value, weights[tap], total)
    return total


@loop(
    *(
        "float32[::1]",
        "int64",
        "float32[::1]",
        "int64",
        "int64",
        "int64",
        "int64",
        "float32[::1]",
        "float32",
        "boolean",
    ),
    uses=(_sum_three, _sum_beside),
)
def _correlate_floats(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int,
    weights: Any, bias: Any, clamps: Any,
) -> None:  # fmt: skip
    """`_correlate` of floats with windows of 3 x 3, which are read where they lie."""
    nothing, count = np.zeros(columns, np.float32), max(0, columns - 2 * channels)
    first, last = claim(claims)
    while first < last:
        for row in range(first, last):
            into, here = made[row * step :][:columns], x[row * x_step :][:columns]
            above = x[max(row - 1, 0) * x_step :][:columns] if clamps or row > 0 else nothing
            below = x[min(row + 1, rows - 1) * x_step :][:columns] if clamps or row + 1 < rows else nothing
            _sum_three(above, here, below, channels, count, weights, bias, into[channels:])
            for index in range(columns - count):
                place = index if index < channels else index + count
                total = _sum_beside(above, place, columns, channels, weights[:3], clamps, bias)
                total = _sum_beside(here, place, columns, channels, weights[3:6], clamps, total)
                into[place] = _sum_beside(below, place, columns, channels, weights[6:], clamps, total)
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def correlate(site: Site) -> Run | None:
    """`Correlate` over few pixels: sums in float32, bytes rounded once."""
    op, (height, width), channels = site.ops[0], site.window.size, site.result.channels
    assert isinstance(op, Correlate)
    if not are_compiled(site.formats) or height * width > _MOST_WEIGHTS:
        return None
    factor, bias = np.float32(site.unit * site.scale), op.bias * site.scale

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        (x, step), into, rows, columns = lines(bits(given[0])), lines(bits(made)), len(made), made[0].size
        weights, clamps = np.ravel(given[1] * factor), edge_mode == MPSImageEdgeMode.CLAMP
        if x.dtype == made.dtype == np.float32 and len(weights) == 9 and height == 3:
            _correlate_floats.run(rows, made.size, x, step, *into, rows, columns, channels, weights, bias, clamps)
            return
        _correlate[x.dtype.name, into.numbers.dtype.name].run(
            *(rows, made.size, x, step, *into, rows, columns, channels, weights, height, width),
            *(bias, clamps),
            band=_BAND * (height // 2),
        )

    return run


# --- lengths of differences -------------------------------------------------------------------------------------------


def _widen_grays(
    x: Any, begin: int, count: int, channels: int, weights: Any, clamps: Any, numbers: Any, wide: Any
) -> None:
    """Gray values of a row, with one more on both sides."""
    row = x[begin:][: count * channels]
    for place in range(len(row)):
        numbers[place] = number(row[place])
    find_grays(numbers, channels, count, weights, wide[1:])
    wide[0] = wide[1] if clamps else np.float32(0.0)
    wide[count + 1] = wide[count] if clamps else np.float32(0.0)


def _differ(p: Any, q: Any, r: Any, step: int, count: int, factor: Any, into: Any) -> None:
    """Lengths of the two differences of Sobel's, over windows of 3 x 3 pixels of three rows."""
    a, b, c = p[:count], p[step:][:count], p[2 * step :][:count]
    d, f = q[:count], q[2 * step :][:count]
    g, h, i = r[:count], r[step:][:count], r[2 * step :][:count]
    two, infinity = np.float32(2.0), np.float32(np.inf)
    for column in range(count):
        low, high = look(c, column) - look(g, column), look(i, column) - look(a, column)
        across = low + high + two * (look(f, column) - look(d, column))
        down = low - high + two * (look(b, column) - look(h, column))
        length = np.sqrt(across * across + down * down)
        is_infinite = abs(across) == infinity or abs(down) == infinity  # though the other one be no number
        store(into, column, infinity if is_infinite else length * factor)


@loops(
    "T[::1], int64, S[::1], int64, int64, int64, int64, int64, float32[::1], float32, boolean",
    PAIRS,
    uses=(find_grays, _widen, _widen_grays, _differ),
)
def _sobel(
    claims: Any, x: Any, x_step: int, made: Any, step: int, rows: int, columns: int, channels: int, of: int,
    weights: Any, factor: Any, clamps: Any,
) -> None:  # fmt: skip
    """`_differ` of pixels of so many channels, or of gray values of pixels of others; three rows lie in a ring."""
    count, span = columns * channels, (columns + 2) * channels
    ring, numbers = np.empty(3 * span, np.float32), np.empty(columns * of, np.float32)
    first, last = claim(claims)
    while first < last:
        for read in range(first - 1, last + 1):
            wide, place = ring[(read + 1) % 3 * span :][:span], min(max(read, 0), rows - 1) * x_step
            if not clamps and (read < 0 or read >= rows):
                wide[:] = np.float32(0.0)
            elif of == channels:
                _widen(x, place, count, channels, channels, clamps, wide)
            else:
                _widen_grays(x, place, columns, of, weights, clamps, numbers, wide)
            row = read - 1
            if row >= first:
                p, q, r = ring[row % 3 * span :], ring[(row + 1) % 3 * span :], ring[(row + 2) % 3 * span :]
                _differ(p, q, r, channels, count, factor, made[row * step :][:count])
        finish(claims, last - first)
        first, last = claim(claims)
    wait(claims)


def sobel(site: Site) -> Run | None:
    """`GradientMagnitude`, also of the `Gray` value."""
    gray, of, channels = site.ops[0], site.sources[0].channels, site.result.channels
    if not are_compiled(site.formats) or (of != channels and not isinstance(gray, Gray)):
        return None
    weights = np.array(gray.weights if isinstance(gray, Gray) else (0.0,) * 3, np.float32)
    factor = np.float32(site.unit * site.scale)

    def run(library: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x, into, clamps = bits(given[0]), bits(made), edge_mode == MPSImageEdgeMode.CLAMP
        _sobel[x.dtype.name, into.dtype.name].run(
            *(len(made), x.size, *lines(x), *lines(into), *made.shape[:2], channels, of, weights, factor, clamps),
            band=_BAND,
        )

    return run
