"""Measures of pictures, and filters that see all of one, by OpenCV; see `openmps.ops.opencv.table`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from openmps.cpu.parts import run_parts
from openmps.ops.elements import decode
from openmps.ops.image.distance import Distances
from openmps.ops.image.integral import Integral
from openmps.ops.image.library_form import Array, Run, bands, in_parts, is_centred, parts
from openmps.ops.image.site import BYTES, FLOATS, LARGEST, Site
from openmps.ops.image.statistics import MeanAndVariance
from openmps.ops.reduce.reduce import PIXELS, Reduce, Reduction
from openmps.types import MPSImageEdgeMode

_MOST_CHANNELS = 4
_SUMMED = 1 << 20
"""Numbers whose sums are made by one thread."""
_ROUNDED = 1 << 18
"""Numbers that are rounded which are worth a thread."""


def moments(site: Site) -> Run | None:
    """`MeanAndVariance`: sums of whole numbers, or float64."""
    op = site.ops[0]
    assert isinstance(op, MeanAndVariance)
    if op.is_sample or not _is_measured(site):
        return None
    channels, largest = site.result.channels, LARGEST if site.formats[0] is BYTES else 1.0
    rows, share = _summed_rows(site)

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x = given[0]
        found: list[Any] = [None] * len(rows)

        def measure(part: int) -> None:
            found[part] = cv2.meanStdDev(x[rows[part]])

        run_parts(measure, range(len(rows)), torch.get_num_threads())
        # Numbers of Python: what NumPy does with so few takes as long as a part.
        each = [
            (part, *(numbers.ravel().tolist() for numbers in pair)) for part, pair in zip(share, found, strict=True)
        ]
        into = made.reshape(2, channels)
        for channel in range(channels):
            mean = sum([part * means[channel] for part, means, _ in each])
            squares = [part * (apart[channel] ** 2 + (means[channel] - mean) ** 2) for part, means, apart in each]
            into[:, channel] = mean / largest, sum(squares) / largest**2

    return run


def mean(site: Site) -> Run | None:
    """`Reduce` to the mean of all pixels: sums of whole numbers, or float64."""
    op, channels = site.ops[0], site.result.channels
    assert isinstance(op, Reduce)
    is_mean = (op.reduction, op.axis, op.weight) == (Reduction.MEAN, PIXELS, 1.0)
    if not is_mean or not _is_measured(site):
        return None
    largest = LARGEST if site.formats[0] is BYTES else 1.0
    rows, share = _summed_rows(site)

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        sums = np.zeros((len(rows), channels))

        def measure(part: int) -> None:
            sums[part] = np.multiply(cv2.mean(given[0][rows[part]])[:channels], share[part])

        run_parts(measure, range(len(rows)), torch.get_num_threads())
        made.reshape(channels)[...] = sums.sum(0) / largest

    return run


def _is_measured(site: Site) -> bool:
    """Whether the library sums numbers that are stored so, into floats."""
    return site.formats in ((BYTES, FLOATS), (FLOATS, FLOATS)) and site.result.channels <= _MOST_CHANNELS


def _summed_rows(site: Site) -> tuple[list[slice], list[float]]:
    """The rows whose sums are made at once, as many whatever there are of threads, and each one's share of all rows."""
    height, width = site.window.region
    rows = parts(height, height * width * site.result.channels // _SUMMED)
    return rows, [(each.stop - each.start) / height for each in rows]


def extremes(site: Site) -> Run | None:
    """`MinAndMax` of the bytes of one channel: of the first rows, and of all unless those have 0 and the largest."""
    if site.formats not in ((BYTES, BYTES), (BYTES, FLOATS)) or site.result.channels != 1:
        return None
    numbers = decode(torch.arange(256, dtype=torch.uint8), BYTES).numpy()

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x = given[0]
        first, _, _ = next(bands(len(x), x[0].size, 0))
        found = cv2.minMaxLoc(x[first])[:2]
        if found != (0.0, LARGEST) and first.stop < len(x):
            found = cv2.minMaxLoc(x)[:2]
        made[0] = found if made.dtype == np.uint8 else numbers[[int(each) for each in found]]

    return run


def integral(site: Site) -> Run | None:
    """`Integral` of floats; sums are float64."""
    op = site.ops[0]
    assert isinstance(op, Integral)
    if op.is_squared or op.leaves_out or site.formats != (FLOATS, FLOATS) or site.result.channels > 4:
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        sums = cv2.integral(given[0], sdepth=cv2.CV_64F)[1:, 1:]

        def round_(rows: slice) -> None:
            made[rows] = sums[rows]

        in_parts(round_, made, _ROUNDED)

    return run


def distances(site: Site) -> Run | None:
    """`Distances` in a picture of one channel, the whole of it; exact. A pixel alone the library takes for a number."""
    op = site.ops[0]
    assert isinstance(op, Distances)
    is_whole = is_centred(op.window) and site.result.channels == 1 and site.size != (1, 1)
    if not is_whole or site.formats not in ((BYTES, FLOATS), (FLOATS, FLOATS)):
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        is_far = cv2.compare(given[0], 0, cv2.CMP_EQ)
        if cv2.countNonZero(is_far) == is_far.size:
            made[...] = np.inf
        else:
            cv2.distanceTransform(is_far, cv2.DIST_L2, cv2.DIST_MASK_PRECISE, dst=made)

    return run
