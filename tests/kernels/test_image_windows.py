"""Filters of windows: worked examples, SciPy, sizes beyond the picture, what is no number, misuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import UNORM8, Bench, finish, numbers
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSError

CPU = mps.mtl_device("cpu")
BENCH = Bench(CPU)
RAMP = np.arange(1.0, 13.0).reshape(3, 4)
ZERO, CLAMP = mps.MPSImageEdgeMode.ZERO, mps.MPSImageEdgeMode.CLAMP
MODES = {ZERO: "constant", CLAMP: "nearest"}


def _of(kernel: Any, x: np.ndarray, channel_format: Any = mps.MPSImageFeatureChannelFormat.FLOAT32) -> np.ndarray:
    """One channel of rows and columns, filtered."""
    source = BENCH.image(x.reshape(1, 1, *x.shape), channel_format)
    destination, command_buffer = BENCH.empty((1, 1, *x.shape), channel_format), BENCH.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    return numbers(destination)[0, 0]


def _picture(height: int = 17, width: int = 23) -> np.ndarray:
    return np.random.default_rng(height).random((height, width)).astype(np.float32).astype(np.float64)


# --- the examples of the documentation -------------------------------------------------------------------------------


def test_weights_are_not_flipped() -> None:
    kernel = mps.MPSImageConvolution(CPU, 3, 3, [0, 0, 0, 0, 1, 2, 0, 0, 0])
    assert _of(kernel, RAMP).tolist() == [[5, 8, 11, 4], [17, 20, 23, 8], [29, 32, 35, 12]]
    kernel.edge_mode = CLAMP
    assert _of(kernel, RAMP)[:, 3].tolist() == [12, 24, 36]


def test_laplacian_as_a_device_computes_it() -> None:
    kernel = mps.MPSImageLaplacian(CPU)
    expected = np.array([[3, 2, 1, -5], [-4, 0, 0, -9], [-8, 0, 0, -13], [-29, -18, -19, -37]])
    x = np.arange(1.0, 17.0).reshape(4, 4)
    np.testing.assert_array_equal(_of(kernel, x), expected)
    kernel.bias = 1.0
    np.testing.assert_array_equal(_of(kernel, x), expected + 1)


def test_box_and_tent_of_a_ramp() -> None:
    assert_digits(_of(mps.MPSImageBox(CPU, 3, 1), RAMP)[0], [1, 2, 3, 2.3333], 4)
    tent = [[1.5, 2.5, 3.25, 2.8125], [4, 6, 7, 5.75], [4.5, 6.5, 7.25, 5.8125]]
    np.testing.assert_array_equal(_of(mps.MPSImageTent(CPU, 3, 3), RAMP), tent)
    point = np.zeros((3, 3))
    point[1, 1] = 1.0
    assert_close(_of(mps.MPSImageBox(CPU, 3, 3), point, UNORM8), np.full((3, 3), 28 / 255), 1e-7)


def test_a_gaussian_of_a_point() -> None:
    point = np.zeros((1, 9))
    point[0, 4] = 1.0
    kernel = mps.MPSImageGaussianBlur(CPU, 1.0)
    kernel.edge_mode = CLAMP
    assert_digits(_of(kernel, point)[0, 4:], [0.39894347, 0.24197145, 0.05399113, 0.00443186, 0.00013383], 7)


def test_a_gaussian_without_width_changes_nothing() -> None:
    np.testing.assert_array_equal(_of(mps.MPSImageGaussianBlur(CPU, 1e-200), RAMP), RAMP)
    np.testing.assert_array_equal(_of(mps.MPSImageGaussianBlur(CPU, 1e-200), RAMP[:1, :1]), RAMP[:1, :1])


def test_sobel_of_a_step() -> None:
    kernel = mps.MPSImageSobel(CPU)
    kernel.edge_mode = CLAMP
    assert _of(kernel, np.array([[0.0, 0, 1, 1]] * 3)).tolist() == [[0, 4, 4, 0]] * 3


def test_medians_of_a_ramp() -> None:
    kernel = mps.MPSImageMedian(CPU, 3)
    found = np.round(_of(kernel, RAMP / 255, UNORM8) * 255)
    assert found.tolist() == [[0, 2, 3, 0], [2, 6, 7, 4], [0, 6, 7, 0]]
    kernel.edge_mode = CLAMP
    found = np.round(_of(kernel, RAMP / 255, UNORM8) * 255)
    assert found.tolist() == [[2, 3, 4, 4], [5, 6, 7, 8], [9, 9, 10, 11]]
    assert (mps.MPSImageMedian.min_kernel_diameter(), mps.MPSImageMedian.max_kernel_diameter()) == (3, 9)


def test_dilation_and_erosion_take_the_same_values() -> None:
    point, values = np.zeros((3, 5)), [1, 0.5, 1, 0.5, 0, 0.5, 1, 0.5, 1]
    point[1, 2] = 1.0
    grown = np.array([[0, 0, 0.5, 0, 0], [0, 0.5, 1, 0.5, 0], [0, 0, 0.5, 0, 0]])
    np.testing.assert_array_equal(_of(mps.MPSImageDilate(CPU, 3, 3, values), point), grown)
    np.testing.assert_array_equal(_of(mps.MPSImageErode(CPU, 3, 3, values), 1.0 - point), 1.0 - grown)
    high = mps.MPSImageDilate(CPU, 1, 1, [2.0])
    assert _of(high, np.zeros((1, 1))).item() == -2.0  # from minus infinity on, not from 0


@pytest.mark.parametrize(
    ("kind", "lacking"), [("MPSImageDilate", [-0.25, -0.25, 0.75]), ("MPSImageErode", [0.25, 0.25, 1.25])]
)
def test_components_that_the_source_lacks_are_filtered_too(kind: str, lacking: list[float]) -> None:
    kernel = getattr(mps, kind)(CPU, 3, 1, [0.5, 0.25, 0.5])
    source, destination = BENCH.filled((1, 1, 2, 2), 0.5), BENCH.empty((1, 4, 2, 2))
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    assert numbers(destination)[0, 1:, 0, 0].tolist() == lacking


# --- SciPy -----------------------------------------------------------------------------------------------------------

_WEIGHTS = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32).astype(np.float64)
REFERENCES: dict[str, tuple[Callable[[], Any], Callable[[Any, np.ndarray, str], np.ndarray]]] = {
    "convolution": (
        lambda: mps.MPSImageConvolution(CPU, 3, 5, _WEIGHTS),
        lambda scipy, x, mode: scipy.correlate(x, _WEIGHTS, mode=mode),
    ),
    "box": (
        lambda: mps.MPSImageBox(CPU, 7, 3),
        lambda scipy, x, mode: scipy.uniform_filter(x, (3, 7), mode=mode),
    ),
    "Gaussian": (
        lambda: mps.MPSImageGaussianBlur(CPU, 1.7),
        lambda scipy, x, mode: scipy.gaussian_filter(x, 1.7, radius=7, mode=mode),
    ),
    "Sobel": (
        lambda: mps.MPSImageSobel(CPU),
        lambda scipy, x, mode: np.hypot(scipy.sobel(x, 0, mode=mode), scipy.sobel(x, 1, mode=mode)),
    ),
    "largest": (
        lambda: mps.MPSImageAreaMax(CPU, 5, 3),
        lambda scipy, x, mode: scipy.maximum_filter(x, (3, 5), mode="nearest"),
    ),
    "dilation": (
        lambda: mps.MPSImageDilate(CPU, 3, 5, _WEIGHTS),
        lambda scipy, x, mode: scipy.grey_dilation(x, structure=-_WEIGHTS[::-1, ::-1], mode="nearest"),
    ),
    "erosion": (
        lambda: mps.MPSImageErode(CPU, 3, 5, _WEIGHTS),
        lambda scipy, x, mode: scipy.grey_erosion(x, structure=-_WEIGHTS, mode="nearest"),
    ),
}
"""A filter, and the function of `scipy.ndimage` that it equals."""


@in_one_test
@pytest.mark.parametrize("edge", MODES, ids=lambda edge: edge.name)
@pytest.mark.parametrize("name", REFERENCES)
def test_scipy_agrees(name: str, edge: mps.MPSImageEdgeMode) -> None:
    scipy = pytest.importorskip("scipy.ndimage")
    make, reference = REFERENCES[name]
    kernel = make()
    kernel.edge_mode = edge
    assert_close(_of(kernel, _picture()), reference(scipy, _picture(), MODES[edge]), 3e-6)


# --- windows beyond pictures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", MODES, ids=lambda edge: edge.name)
@pytest.mark.parametrize("kind", ["MPSImageBox", "MPSImageTent", "MPSImageGaussianBlur"])
def test_windows_much_larger_than_the_picture(kind: str, edge: mps.MPSImageEdgeMode) -> None:
    """As one of a padded picture, which is larger than the window."""
    x, offset = _picture(4, 5), mps.MPSOffset(-30, 25, 0)
    kernel = getattr(mps, kind)(CPU, *([8.0] if kind == "MPSImageGaussianBlur" else [61, 61]))
    kernel.edge_mode = edge
    kernel.offset = offset
    found = _of(kernel, x)
    kernel.offset = mps.MPSOffset(170, 225, 0)
    padded = np.pad(x, 200, mode="edge" if edge is CLAMP else "constant")
    assert_close(found, _of(kernel, padded)[:4, :5], 2e-6)


def test_the_largest_windows_need_no_memory() -> None:
    x, huge = np.ones((3, 3)), 2**31 - 1
    box = mps.MPSImageBox(CPU, huge, huge)
    box.edge_mode = CLAMP
    assert_close(_of(box, x), x, 1e-6)
    x[1, 1] = 2.0
    assert (_of(mps.MPSImageAreaMax(CPU, huge, huge), x) == 2.0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stays_within_its_windows(value: float) -> None:
    x = np.ones((40, 40))
    x[20, 20] = value
    for kernel in (
        mps.MPSImageBox(CPU, 9, 9),
        mps.MPSImageTent(CPU, 9, 9),
        mps.MPSImageGaussianBlur(CPU, 1.0),
        mps.MPSImageConvolution(CPU, 9, 9, np.ones(81)),
    ):
        kernel.edge_mode = CLAMP
        found = np.isfinite(_of(kernel, x))
        assert not found[16:25, 16:25].any()
        assert found.sum() == 40 * 40 - 81


# --- properties and misuse -------------------------------------------------------------------------------------------


def test_regions_of_windows() -> None:
    """The clip rectangle's corner does not enter: the offset is defined there."""
    kernel = mps.MPSImageBox(CPU, 5, 3)
    kernel.offset = mps.MPSOffset(7, 0, 0)
    kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(4, 4, 0), mps.MTLSize(3, 100, 1))
    region = kernel.source_region(mps.MTLSize(10, 10, 1))
    assert (region.origin.x, region.origin.y, region.size.width, region.size.height) == (5.0, -1.0, 7.0, 8.0)


def test_integers_of_numpy_are_sizes() -> None:
    assert type(mps.MPSImageMedian(CPU, np.int64(5)).kernel_diameter) is int
    assert type(mps.MPSImageBox(CPU, np.uint8(5), np.int32(3)).kernel_width) is int


def test_arrays_are_copied() -> None:
    weights = np.ones((1, 3), np.float32)
    kernel = mps.MPSImageConvolution(CPU, 3, 1, weights)
    weights[:] = 0.0
    assert kernel.weights == (1.0, 1.0, 1.0)
    assert (kernel.kernel_width, kernel.kernel_height, kernel.bias) == (3, 1, 0.0)


_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "even": (lambda: mps.MPSImageBox(CPU, 2, 3), "^MPSImageBox: kernel_width must be odd, got 2"),
    "none": (lambda: mps.MPSImageAreaMin(CPU, 3, 0), "kernel_height must be an integer of at least 1"),
    "weights": (lambda: mps.MPSImageConvolution(CPU, 3, 1, [1, 2]), "weights must be 3 numbers, 1 rows of 3"),
    "turned": (lambda: mps.MPSImageConvolution(CPU, 3, 1, np.ones((3, 1))), "weights must be 3 numbers"),
    "infinite": (lambda: mps.MPSImageConvolution(CPU, 1, 1, [math.inf]), "weights must be finite"),
    "text": (lambda: mps.MPSImageConvolution(CPU, 1, 1, "a"), "weights must be float32 numbers"),
    "values": (lambda: mps.MPSImageDilate(CPU, 1, 1, [math.nan]), "values must be numbers, and no NaN"),
    "sigma": (lambda: mps.MPSImageGaussianBlur(CPU, 0.0), "sigma must be positive and below 141"),
    "large sigma": (lambda: mps.MPSImageGaussianBlur(CPU, 1e9), "sigma must be positive and below"),
    "large tent": (lambda: mps.MPSImageTent(CPU, 1, 2**20 + 1), "kernel_height must be at most 1048576"),
    "diameter": (lambda: mps.MPSImageMedian(CPU, 4), "kernel_diameter must be odd, and at least 3, got 4"),
    "one": (lambda: mps.MPSImageMedian(CPU, 1), "kernel_diameter must be odd, and at least 3, got 1"),
    "floats": (lambda: _of(mps.MPSImageMedian(CPU, 3), RAMP), "source_image must hold bytes, UNORM8, got FLOAT32"),
    "edge": (lambda: setattr(mps.MPSImageBox(CPU, 1, 1), "edge_mode", 2), "edge_mode must be ZERO or .* got MIRROR$"),
}


@in_one_test
@pytest.mark.parametrize("name", _REFUSED)
def test_misuse(name: str) -> None:
    call, message = _REFUSED[name]
    with pytest.raises(MPSError, match=message):
        call()


def test_gray_edges_of_many_channels() -> None:
    bench = Bench(CPU)
    many, gray = bench.empty((1, 5, 3, 3)), bench.empty((1, 1, 3, 3))
    rule = "must have at least 5 feature channels, as the source has: of more than 4 each is filtered by itself"
    remedy = r"Give it as many, or filter some of them: image.sub_image\(range\(4\)\)"
    with pytest.raises(MPSArgumentError, match=f"^MPSImageSobel: destination_image {rule}, got 1. {remedy}$"):
        mps.MPSImageSobel(CPU).encode(bench.command_buffer(), many, gray)
    mps.MPSImageSobel(CPU).encode(bench.command_buffer(), many.sub_image(range(4)), gray)


def test_edge_modes_say_their_default() -> None:
    """Also in the help of classes whose default is another one than most have."""
    for kind in (mps.MPSImageSobel, mps.MPSImageLanczosScale):
        assert "ZERO, the default unless the class says otherwise" in (kind.edge_mode.__doc__ or "")
    for make in (mps.MPSImageCanny, mps.MPSImageBilinearScale, mps.MPSImageLanczosScale):
        assert make(CPU).edge_mode is mps.MPSImageEdgeMode.CLAMP
        assert any("CLAMP unless set" in " ".join((base.__doc__ or "").split()) for base in make.__mro__)
