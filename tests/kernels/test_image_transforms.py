"""Integral images, distances, Canny's edges and the guided filter: worked examples, SciPy, borders, misuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish, numbers
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from measured import note_error
from openmps.errors import MPSError
from oracles import image_filters as oracle

CPU = mps.mtl_device("cpu")
BENCH = Bench(CPU)


def _of(kernel: Any, x: np.ndarray) -> np.ndarray:
    """One channel of rows and columns, filtered."""
    image = BENCH.image(x.reshape(1, 1, *x.shape))
    destination, command_buffer = BENCH.empty((1, 1, *x.shape)), BENCH.command_buffer()
    kernel.encode(command_buffer, image, destination)
    finish(command_buffer)
    return numbers(destination)[0, 0]


def test_integrals_of_a_ramp_count_the_pixel_itself() -> None:
    ramp = np.arange(1.0, 13.0).reshape(3, 4)
    found = _of(mps.MPSImageIntegral(CPU), ramp)
    assert (found[0, 0], found[0, 3], found[2, 3]) == (1.0, 10.0, 78.0)
    assert _of(mps.MPSImageIntegralOfSquares(CPU), ramp)[2, 3] == 650.0


def test_sums_of_large_pictures_round_once() -> None:
    x = np.full((500, 500), np.float32(0.1)).astype(np.float64)
    assert_close(_of(mps.MPSImageIntegral(CPU), x)[-1, -1] / x.sum(), 1.0, 2.0**-24)


def test_distances_of_two_points() -> None:
    x = np.zeros((4, 5))
    x[1, 1], x[3, 4] = -1.0, math.nan
    expected = [
        [1.41421356, 1, 1.41421356, 2.23606798, 3], [1, 0, 1, 2, 2],
        [1.41421356, 1, 1.41421356, 1.41421356, 1], [2.23606798, 2, 2, 1, 0],
    ]  # fmt: skip
    assert_digits(_of(mps.MPSImageEuclideanDistanceTransform(CPU), x).ravel(), np.ravel(expected).tolist(), 6)
    assert np.isinf(_of(mps.MPSImageEuclideanDistanceTransform(CPU), np.zeros((2, 3)))).all()


@pytest.mark.parametrize("share", [0.5, 0.99, 0.9995])
def test_scipy_measures_the_same_distances(share: float) -> None:
    scipy = pytest.importorskip("scipy.ndimage")
    x = (np.random.default_rng(3).random((67, 91)) > share).astype(np.float64)
    assert x.any()
    assert_close(_of(mps.MPSImageEuclideanDistanceTransform(CPU), x), scipy.distance_transform_edt(x == 0), 1e-6)


def test_channels_that_the_source_lacks() -> None:
    """They read 0, alpha 1: nothing is set in them, or all is; and they have no edges."""
    found = {}
    for kernel in (mps.MPSImageEuclideanDistanceTransform(CPU), mps.MPSImageCanny(CPU)):
        destination, command_buffer = BENCH.empty((1, 4, 3, 3)), BENCH.command_buffer()
        kernel.encode(command_buffer, BENCH.filled((1, 1, 3, 3), 1.0), destination)
        finish(command_buffer)
        found[type(kernel).__name__] = numbers(destination)[0, :, 1, 1].tolist()
    assert found == {
        "MPSImageEuclideanDistanceTransform": [0.0, math.inf, math.inf, 0.0], "MPSImageCanny": [0.0, 0.0, 0.0, 0.0]
    }  # fmt: skip


def _step(height: float) -> np.ndarray:
    return np.repeat([[0.0] * 6 + [height] * 6], 9, axis=0)


def test_edges_of_steps() -> None:
    """The default thresholds are of unscaled differences: 2.0072 for a step of 1, on both of its sides."""
    kernel = mps.MPSImageCanny(CPU)
    assert (kernel.edge_mode, kernel.use_fast_mode) == (mps.MPSImageEdgeMode.CLAMP, True)
    assert (kernel.low_threshold, kernel.high_threshold, kernel.sigma) == (0.2, 0.4, math.sqrt(2.0))
    edges = _of(kernel, _step(1.0))
    assert set(np.unique(edges)) == {0.0, 1.0}
    assert (edges.sum(axis=1) == 1).all()
    assert edges[:, 5:7].sum() == 9
    assert _of(kernel, _step(0.4 / 2.0072 * 1.001)).any()
    assert not _of(kernel, _step(0.4 / 2.0072 * 0.999)).any()


def test_weak_edges_end_where_nothing_strong_joins_them() -> None:
    """A chain across the picture, from one strong row."""
    x = np.repeat(np.linspace(0.15, 0.6, 40)[:, None], 12, axis=1) * _step(1.0)[:1]
    kernel = mps.MPSImageCanny(CPU, sigma=0.5)
    kernel.low_threshold, kernel.high_threshold = 0.3, 1.9
    followed = _of(kernel, x)[:, 5:7].any(axis=1)
    assert followed.sum() > 25
    kernel.high_threshold = 9.0
    assert not _of(kernel, x).any()


# --- the guided filter -----------------------------------------------------------------------------------------------

FOUR = {"R": [0, 1, 1, 0], "G": [0, 0, 1, 1], "B": [0.5] * 4, "p": [0, 1, 1, 0]}


def _filtered(
    kernel: Any, p: np.ndarray, guide: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and the picture made of them; arrays are [channels, rows, columns]."""
    source, guidance = BENCH.image(p[None]), BENCH.image(guide[None])
    found, made = BENCH.empty((1, 4, *p.shape[1:])), BENCH.empty((1, 1, *guide.shape[1:]))
    command_buffer = BENCH.command_buffer()
    weighed = None if weights is None else BENCH.image(weights[None])
    kernel.encode_regression(command_buffer, source, guidance, weighed, found)
    kernel.encode_reconstruction(command_buffer, guidance, found, made)
    finish(command_buffer)
    return numbers(found)[0], numbers(made)[0, 0]


def test_the_example_is_averaged() -> None:
    kernel = mps.MPSImageGuidedFilter(CPU, 3)
    assert (kernel.kernel_diameter, kernel.epsilon) == (3, 0.01)
    assert (kernel.reconstruct_scale, kernel.reconstruct_offset) == (1.0, 0.0)
    kernel.epsilon = 0.1
    guide = np.array([FOUR["R"], FOUR["G"], FOUR["B"]]).reshape(3, 1, 4)
    found, made = _filtered(kernel, np.array(FOUR["p"], float).reshape(1, 1, 4), guide)
    assert_digits(found[0, 0], [0.6810295, 0.66994409, 0.66994409, 0.6810295], 6)
    assert_digits(found[1, 0], [0.06072874, 0, 0, -0.06072874], 6)
    assert_digits(found[3, 0], [0.16859456, 0.21765953, 0.21765953, 0.22932331], 6)
    assert_digits(made[0], [0.16859456, 0.88760362, 0.88760362, 0.16859456], 6)


@pytest.mark.parametrize("has_weights", [False, True])
def test_fits_by_loops(has_weights: bool) -> None:
    rng = np.random.default_rng(9)
    p, guide = rng.random((1, 6, 7)), rng.random((3, 6, 7))
    weights = np.where(rng.random((1, 6, 7)) > 0.3, rng.random((1, 6, 7)), 0.0) if has_weights else None
    if weights is not None:
        weights[0, :, :4] = 0.0  # windows without any
    kernel = mps.MPSImageGuidedFilter(CPU, 3)
    kernel.reconstruct_scale, kernel.reconstruct_offset = 2.0, -0.5
    found, made = _filtered(kernel, p, guide, weights)
    expected = oracle.guided(p[0], guide, np.ones((6, 7)) if weights is None else weights[0], 3, 0.01)
    assert_close(found, expected, 2e-6)
    assert_close(made, 2.0 * ((expected[:3] * guide).sum(axis=0) + expected[3]) - 0.5, 4e-6)
    note_error(type(kernel), "forward", torch.device("cpu"), found, expected)


def test_each_channel_by_its_own() -> None:
    rng = np.random.default_rng(10)
    p, guide = rng.random((2, 5, 6)), rng.random((2, 5, 6))
    a, b, made = (BENCH.empty((1, 2, 5, 6)) for _ in range(3))
    kernel, guidance, command_buffer = (
        mps.MPSImageGuidedFilter(CPU, 5),
        BENCH.image(guide[None]),
        BENCH.command_buffer(),
    )
    kernel.encode_regression(
        command_buffer, BENCH.image(p[None]), guidance, None,
        destination_coefficients_texture_a=a, destination_coefficients_texture_b=b,
    )  # fmt: skip
    kernel.encode_reconstruction(
        command_buffer, guidance, destination_texture=made, coefficients_texture_a=a, coefficients_texture_b=b
    )
    finish(command_buffer)
    for channel in range(2):
        expected = oracle.guided(p[channel], guide[channel : channel + 1], np.ones((5, 6)), 5, 0.01)
        assert_close([numbers(a)[0, channel], numbers(b)[0, channel]], expected, 2e-6)
        assert_close(numbers(made)[0, channel], expected[0] * guide[channel] + expected[1], 2e-6)


def test_coefficients_grow_bilinearly() -> None:
    small = np.zeros((4, 1, 2))
    small[3, 0] = [0.0, 1.0]  # b alone
    made, command_buffer = BENCH.empty((1, 1, 1, 8)), BENCH.command_buffer()
    kernel, guide = mps.MPSImageGuidedFilter(CPU, 3), BENCH.empty((1, 3, 1, 8))
    kernel.encode_reconstruction(command_buffer, guide, BENCH.image(small[None]), made)
    finish(command_buffer)
    assert numbers(made).ravel().tolist() == [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1]


def test_nothing_varies_and_nothing_is_added() -> None:
    kernel = mps.MPSImageGuidedFilter(CPU, 3)
    kernel.epsilon = 0.0
    found, made = _filtered(kernel, np.full((1, 3, 3), 0.5), np.ones((3, 3, 3)))
    assert (found[:3] == 0.0).all()
    assert (made == 0.5).all()


# --- misuse ----------------------------------------------------------------------------------------------------------


def _canny() -> Any:
    kernel = mps.MPSImageCanny(CPU)
    kernel.low_threshold = 0.5
    return kernel


def _moved() -> Any:
    kernel = mps.MPSImageEuclideanDistanceTransform(CPU)
    kernel.offset = mps.MPSOffset(4, 0, 0)
    return kernel


def _guided(**given: Any) -> Any:
    kernel, image = mps.MPSImageGuidedFilter(CPU, 3), BENCH.empty((1, 3, 4, 4))
    return kernel.encode_regression(BENCH.command_buffer(), image, image, **given)


_SQUARE = np.zeros((4, 4))
_MISUSE: dict[str, tuple[Callable[[], object], str]] = {
    "sigma": (lambda: mps.MPSImageCanny(CPU, sigma=-1.0), "^MPSImageCanny: sigma must be positive"),
    "weights": (lambda: mps.MPSImageCanny(CPU, [1.0]), "linear_to_gray_scale_transform must be three numbers"),
    "thresholds": (lambda: _of(_canny(), _SQUARE), "low_threshold must not be above high_threshold, 0.4"),
    "beside": (lambda: _of(_moved(), _SQUARE), "offset must leave a pixel of the result on the source"),
    "region": (lambda: _moved().source_region(mps.MTLSize(1, 1, 1)), "source_region cannot be told"),
    "diameter": (lambda: mps.MPSImageGuidedFilter(CPU, 4), "kernel_diameter must be odd, got 4"),
    "no result": (lambda: _guided(), "destination_coefficients_texture is needed"),
    "small": (
        lambda: _guided(destination_coefficients_texture=BENCH.empty((1, 4, 3, 4))),
        r"destination_coefficients_texture must be 1 image\(s\) of 4x4 pixels with 4 feature channel\(s\)",
    ),
    "both": (
        lambda: _guided(
            destination_coefficients_texture=BENCH.empty((1, 4, 4, 4)),
            destination_coefficients_texture_a=BENCH.empty((1, 3, 4, 4)),
        ),
        "destination_coefficients_texture must not be given beside",
    ),
}


@in_one_test
@pytest.mark.parametrize("name", _MISUSE)
def test_misuse(name: str) -> None:
    call, message = _MISUSE[name]
    with pytest.raises(MPSError, match=message):
        call()
