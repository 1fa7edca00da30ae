"""Statistics and reductions of pictures: worked examples, destinations, sharpness, misuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import UNORM8, Bench, finish, numbers
from helpers import assert_close, assert_digits
from openmps.errors import MPSArgumentError, MPSAttributeError, MPSTypeError

CPU = mps.mtl_device("cpu")
BENCH = Bench(CPU)
RAMP = np.arange(1.0, 13.0).reshape(1, 1, 3, 4)


def _of(kernel: Any, x: np.ndarray, size: tuple[int, int], channel_format: Any = None) -> np.ndarray:
    more = [] if channel_format is None else [channel_format]
    destination, command_buffer = BENCH.filled((1, x.shape[1], *size), 0.0, *more), BENCH.command_buffer()
    kernel.encode(command_buffer, BENCH.image(x, *more), destination)
    finish(command_buffer)
    return numbers(destination)


def test_statistics_of_a_ramp() -> None:
    assert _of(mps.MPSImageStatisticsMinAndMax(CPU), RAMP, (1, 2)).ravel().tolist() == [1, 12]
    assert _of(mps.MPSImageStatisticsMean(CPU), RAMP, (1, 1)).ravel().tolist() == [6.5]
    found = _of(mps.MPSImageStatisticsMeanAndVariance(CPU), RAMP, (1, 2))
    assert_digits(found.ravel(), [6.5, 11.9166667], 6)


def test_variances_of_pictures_far_from_zero() -> None:
    x = 1e4 + np.random.default_rng(0).random((1, 1, 64, 64)).astype(np.float32).astype(np.float64)
    x = x.astype(np.float32).astype(np.float64)
    found = _of(mps.MPSImageStatisticsMeanAndVariance(CPU), x, (1, 2))[0, 0, 0]
    assert_close(found[0] / x.mean(), 1.0, 1e-7)
    assert_close(found[1] / x.var(), 1.0, 1e-4)


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    x = np.random.default_rng(1).random((1, 1, 9, 8)).astype(np.float32).astype(np.float64)
    edges, found, command_buffer = BENCH.empty(x.shape), BENCH.empty((1, 1, 1, 2)), BENCH.command_buffer()
    mps.MPSImageLaplacian(CPU).encode(command_buffer, BENCH.image(x), edges)
    mps.MPSImageStatisticsMeanAndVariance(CPU).encode(command_buffer, edges, found)
    finish(command_buffer)
    around = np.pad(x[0, 0], 1)
    expected = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * x[0, 0]
    assert_close(numbers(found).ravel(), [expected.mean(), expected.var()], 1e-6)


def test_results_land_at_the_clip_rectangles_corner() -> None:
    """Row s of the source is the first of the results where the region begins there."""
    kernel = mps.MPSImageReduceRowSum(CPU)
    kernel.clip_rect_source = mps.MTLRegion(mps.MTLOrigin(1, 1, 0), mps.MTLSize(2, 9, 1))
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(1, 2, 0), mps.MTLSize(9, 9, 1))
    kernel.offset = mps.MPSOffset(1, 1, 0)  # not used
    found = _of(kernel, RAMP, (5, 3))[0, 0]
    assert found.tolist() == [[0, 0, 0], [0, 0, 0], [0, 13, 0], [0, 21, 0], [0, 0, 0]]
    region = kernel.source_region(mps.MTLSize(3, 5, 1))
    assert (region.origin.x, region.origin.y, region.size.width, region.size.height) == (1.0, 1.0, 2.0, 9.0)


def test_sums_of_bytes_are_cut_and_no_number_spreads() -> None:
    assert (_of(mps.MPSImageReduceColumnSum(CPU), np.ones((1, 2, 3, 4)), (1, 4), UNORM8) == 1.0).all()
    x = np.array([[1.0, math.nan], [2.0, 3.0]]).reshape(1, 1, 2, 2)
    for kind in ("Min", "Max", "Mean", "Sum"):
        found = _of(getattr(mps, f"MPSImageReduceRow{kind}")(CPU), x, (2, 1)).ravel()
        assert np.isnan(found).tolist() == [True, False]


def test_misuse() -> None:
    kernel = mps.MPSImageStatisticsMeanAndVariance(CPU)
    with pytest.raises(
        MPSArgumentError, match="destination_image must have 2x1 pixels for the result from clip_rect.o"
    ):
        _of(kernel, RAMP, (1, 1))
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(0, 0, 0), mps.MTLSize(1, 1, 1))
    with pytest.raises(MPSArgumentError, match="got 1x1 within clip_rect"):
        _of(kernel, RAMP, (4, 4))
    rows = mps.MPSImageReduceRowMax(CPU)
    with pytest.raises(MPSArgumentError, match="must have 1x3 pixels"):
        _of(rows, RAMP, (2, 1))
    rows.clip_rect_source = mps.MTLRegion(mps.MTLOrigin(4, 0, 0), mps.MTLSize(1, 1, 1))
    with pytest.raises(
        MPSArgumentError, match="^MPSImageReduceRowMax: clip_rect_source must overlap the source of 4x3"
    ):
        _of(rows, RAMP, (3, 1))
    with pytest.raises(MPSTypeError, match="^MPSImageReduceUnary: device makes no kernel of this base class"):
        mps.MPSImageReduceUnary(CPU)
    with pytest.raises((MPSAttributeError, AttributeError)):
        rows.weight = 2.0  # type: ignore[attr-defined]
