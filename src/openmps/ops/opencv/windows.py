"""Filters of windows, by OpenCV; see `openmps.ops.opencv.table`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from openmps.cpu.parts import run_parts
from openmps.ops.geometry import Window
from openmps.ops.image.library_form import Array, Run, bands
from openmps.ops.image.median import Median
from openmps.ops.image.order import Extreme
from openmps.ops.image.separable import MeanBytes, Profile, Separable, SeparableBytes, Shape
from openmps.ops.image.site import BYTES, FLOATS, Site
from openmps.ops.image.windows import Correlate
from openmps.ops.opencv import border_of
from openmps.types import MPSImageEdgeMode

_MOST_CHANNELS = 4
_FOURIER, _FOURIER_OF_BYTES = 11 * 11, 7 * 7
"""Weights of a window above which sums are made by Fourier transforms, to which all of a picture contributes: of
pictures stored as their sources are, and of floats made of bytes."""
_MOST_TAPS = 55
"""Weights along an axis above which products with a matrix come sooner."""
_SHARED = 1 << 20
"""Pixels from which on the library itself makes parts of a picture."""
_EXACT = 1 << 15
"""Weights of a mean up to which its float32 numbers round as the quotient does: none is nearer to a half than that."""


def _is_small(site: Site, *formats: tuple[Any, ...]) -> bool:
    return site.result.channels <= _MOST_CHANNELS and site.formats in formats


def is_shared(site: Site) -> bool:
    """Whether the library has several threads for a picture: where it is large, but for means of flat windows."""
    op = site.ops[0]
    is_flat = isinstance(op, MeanBytes) and op.profile.shape is Shape.FLAT
    return not is_flat and math.prod(site.size) >= _SHARED


def correlate(site: Site) -> Run | None:
    """`Correlate`: sums in float32, bytes rounded once."""
    op, (height, width) = site.ops[0], site.window.size
    assert isinstance(op, Correlate)
    most = _FOURIER_OF_BYTES if site.formats == (BYTES, FLOATS) else _FOURIER
    if not _is_small(site, (BYTES, BYTES), (BYTES, FLOATS), (FLOATS, FLOATS)) or height * width > most:
        return None
    factor, bias = np.float32(site.unit * site.scale), op.bias * site.scale

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        depth = -1 if given[0].dtype == made.dtype else cv2.CV_32F
        cv2.filter2D(given[0], depth, given[1] * factor, dst=made, delta=bias, borderType=border_of(cv2, edge_mode))

    return run


def sobel(site: Site) -> Run | None:
    """`GradientMagnitude` of floats, both differences in a cache.

    The library's roots differ by where a row lies among those that it is given, so that bands are always the same.
    """
    if not _is_small(site, (FLOATS, FLOATS)):
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        x = given[0]

        def make(band: tuple[slice, slice, slice]) -> None:
            read, rows, part = band
            across, down = (
                cv2.Sobel(x[read], cv2.CV_32F, *order, ksize=3, borderType=border_of(cv2, edge_mode))[part]
                for order in ((1, 0), (0, 1))
            )
            cv2.magnitude(across, down, magnitude=made[rows])

        run_parts(make, [*bands(len(x), x[0].size, 1)], torch.get_num_threads())

    return run


def separable(site: Site) -> Run | None:
    """`Separable` of floats."""
    op = site.ops[0]
    assert isinstance(op, Separable)
    if not _is_small(site, (FLOATS, FLOATS)) or not has_few_taps(site.window):
        return None
    down, across = weights_of(op.profile, site.window.size, 1.0)

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.sepFilter2D(given[0], -1, across, down, dst=made, borderType=border_of(cv2, edge_mode))

    return run


def separable_bytes(site: Site) -> Run | None:
    """`SeparableBytes`, to floats or rounded once."""
    op = site.ops[0]
    assert isinstance(op, SeparableBytes)
    if not _is_small(site, (BYTES, BYTES), (BYTES, FLOATS)) or not has_few_taps(site.window):
        return None
    return _weighed(op.profile, site.window.size, site.scale / 255.0)


def mean_bytes(site: Site) -> Run | None:
    """`MeanBytes`: flat windows as sums of whole numbers."""
    op, (height, width) = site.ops[0], site.window.size
    assert isinstance(op, MeanBytes)
    total = math.prod(math.prod(each) for each in op.profile.spans(site.window.size))
    if not _is_small(site, (BYTES, BYTES)) or total > _EXACT or not has_few_taps(site.window):
        return None
    if op.profile.shape is not Shape.FLAT:
        return _weighed(op.profile, site.window.size, 1.0)

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.blur(given[0], (width, height), dst=made, borderType=border_of(cv2, edge_mode))

    return run


def _weighed(profile: Profile, size: tuple[int, int], factor: float) -> Run:
    """Sums of bytes in float32, of weights whose sums are not 1: those the library would round to eight bits."""
    down, across = weights_of(profile, size, factor / 2)
    across *= 2

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        depth = -1 if given[0].dtype == made.dtype else cv2.CV_32F
        cv2.sepFilter2D(given[0], depth, across, down, dst=made, borderType=border_of(cv2, edge_mode))

    return run


def weights_of(profile: Profile, size: tuple[int, int], factor: float) -> tuple[Array, Array]:
    """Down and across, float32, with a factor of the sums."""
    height, width = (
        np.full(length, 1.0 / length)
        if profile.shape is Shape.FLAT
        else profile.weights(length, torch.empty(0)).numpy()
        for length in size
    )
    return (height * factor).astype(np.float32), width.astype(np.float32)


def has_few_taps(window: Window) -> bool:
    """Whether windows are neither large nor reach far beyond the source."""
    return all(axis.size <= min(_MOST_TAPS, 2 * axis.source) for axis in (window.y, window.x))


def median(site: Site) -> Run | None:
    """`Median`."""
    op = site.ops[0]
    assert isinstance(op, Median)
    if site.result.channels not in (1, 3, 4):
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        cv2.medianBlur(given[0], op.size, dst=made)

    return run


def extreme(site: Site) -> Run | None:
    """`Extreme` of bytes: of floats the library does not let NaN win."""
    op, size = site.ops[0], site.window.size
    assert isinstance(op, Extreme)
    if not _is_small(site, (BYTES, BYTES)) or not has_few_taps(site.window):
        return None

    def run(cv2: Any, given: list[Array], made: Array, edge_mode: MPSImageEdgeMode) -> None:
        choose: Callable[..., Any] = cv2.dilate if op.is_largest else cv2.erode
        choose(given[0], np.ones(size, np.uint8), dst=made, borderType=cv2.BORDER_REPLICATE)

    return run
