"""Thresholds, arithmetic and conversion of pictures: the digits of the framework, borders of formulas, misuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import UNORM8, Bench, finish, numbers
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError

CPU = mps.mtl_device("cpu")
Space = mps.CGColorSpace
BENCH = Bench(CPU)
FLT_MAX = float(np.finfo(np.float32).max)


def _row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64).reshape(1, 1, 1, -1)


def _of(kernel: Any, *rows: np.ndarray, shape: tuple[int, ...] | None = None, channel_format: Any = None) -> Any:
    made = rows[0].shape if shape is None else shape
    destination = BENCH.empty(made, *([] if channel_format is None else [channel_format]))
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, *map(BENCH.image, rows), destination)
    finish(command_buffer)
    return numbers(destination)


def test_addition_as_a_device_computes_it() -> None:
    kernel = mps.MPSImageAdd(CPU)
    kernel.primary_scale = 2.0
    assert _of(kernel, _row(1, 2, 3, 4), _row(10, 20, 30, 40)).ravel().tolist() == [12, 24, 36, 48]


def test_arithmetic_defaults_and_what_is_beyond_numbers() -> None:
    kernel: Any = mps.MPSImageDivide(CPU)
    assert (kernel.primary_scale, kernel.secondary_scale, kernel.bias) == (1.0, 1.0, 0.0)
    assert (kernel.minimum_value, kernel.maximum_value) == (-FLT_MAX, FLT_MAX)
    assert kernel.primary_stride_in_pixels == kernel.secondary_stride_in_pixels == mps.MTLSize(1, 1, 1)
    found = _of(kernel, _row(1, -1, 0, 6), _row(0, 0, 0, 2)).ravel()
    assert found[:2].tolist() == [FLT_MAX, -FLT_MAX]
    assert math.isnan(found[2])
    assert found[3] == 3.0


@pytest.mark.parametrize(("strides", "expected"), [((0, 1), [[11, 11], [23, 23]]), ((1, 0), [[11, 12], [21, 22]])])
def test_strides_repeat_a_column_or_a_row(strides: tuple[int, int], expected: list[list[float]]) -> None:
    kernel = mps.MPSImageAdd(CPU)
    kernel.primary_stride_in_pixels = mps.MTLSize(*strides, 0)
    x = np.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)
    y = np.array([[10.0, 10], [20, 20]]).reshape(1, 1, 2, 2)
    assert _of(kernel, x, y)[0, 0].tolist() == expected


def test_strides_of_both_repeat_one_pixel() -> None:
    kernel = mps.MPSImageAdd(CPU)
    kernel.primary_stride_in_pixels = kernel.secondary_stride_in_pixels = mps.MTLSize(0, 0, 1)
    assert _of(kernel, _row(1, 2), _row(3, 4)).ravel().tolist() == [4, 4]


def test_a_threshold_is_strict_and_colours_become_gray() -> None:
    kernel = mps.MPSImageThresholdToZero(CPU, 0.5)
    assert kernel.transform == (0.299, 0.587, 0.114)
    assert _of(kernel, _row(0.5, 0.75, math.nan)).ravel().tolist() == [0.0, 0.75, 0.0]
    red = np.array([1.0, 0, 0, 0.25]).reshape(1, 4, 1, 1)
    found = _of(mps.MPSImageThresholdToZero(CPU, 0.25), red).ravel()
    np.testing.assert_allclose(found, [0.299, 0.299, 0.299, 1.0], rtol=1e-6)


def test_a_red_green_source_has_no_blue() -> None:
    kernel = mps.MPSImageThresholdTruncate(CPU, 2.0, [0.5, 0.25, 100.0])
    assert _of(kernel, np.ones((1, 2, 1, 1)), shape=(1, 1, 1, 1)).item() == 0.75


def test_conversion_defaults_and_formats() -> None:
    kernel = mps.MPSImageConversion(CPU)
    one = mps.MPSAlphaType.ALPHA_IS_ONE
    assert (kernel.source_alpha, kernel.destination_alpha, kernel.background_color) == (one, one, None)
    assert _of(kernel, _row(0.2, 1.5), channel_format=UNORM8).ravel().tolist() == [np.float32(51 / 255), 1.0]


def test_a_colour_without_alpha_is_black() -> None:
    kinds = mps.MPSAlphaType.PREMULTIPLIED, mps.MPSAlphaType.NON_PREMULTIPLIED
    found = _of(mps.MPSImageConversion(CPU, *kinds), np.array([0.0, 0.5, 0, 0]).reshape(1, 4, 1, 1))
    assert found.ravel().tolist() == [0.0, 0.0, 0.0, 0.0]


def _converted(src: Any, dst: Any, *colour: float, kinds: tuple[Any, Any] = (1, 1)) -> list[float]:
    kernel = mps.MPSImageConversion(CPU, *kinds, None, mps.CGColorConversionInfo(src, dst))
    made = 1 if dst.number_of_components == 1 else max(3, len(colour))
    pixel = np.array(colour).reshape(1, len(colour), 1, 1)
    return _of(kernel, pixel, shape=(1, made, 1, 1)).ravel().tolist()


@in_one_test
@pytest.mark.parametrize(
    ("src", "dst", "colour", "expected"),
    [
        (Space.DISPLAY_P3, Space.SRGB, (1, 0, 0), (1.0930, -0.2267, -0.1501)),  # as Core Graphics prints it
        (Space.SRGB, Space.DISPLAY_P3, (1, 0, 0), (0.9175, 0.2003, 0.1386)),  # as CSS Color 4 prints it
        (Space.SRGB, Space.LINEAR_SRGB, (0.5, 0.02, -0.5), (0.21404, 0.0015480, -0.21404)),
        (Space.LINEAR_SRGB, Space.SRGB, (0.21404, 0.0015480, 2.0), (0.5, 0.02, 1.35325)),
        (Space.SRGB, Space.LINEAR_GRAY, (0, 1, 0), (0.7169,)),  # of the profile's primaries
        (Space.SRGB, Space.GENERIC_GRAY_GAMMA2_2, (1, 1, 1), (1.0,)),
        (Space.GENERIC_GRAY_GAMMA2_2, Space.LINEAR_SRGB, (0.5,), (0.21764,) * 3),
        (Space.SRGB, Space.SRGB, (0.3, 0.6, 0.9), (0.3, 0.6, 0.9)),
    ],
)
def test_colours_of_other_spaces(src: Any, dst: Any, colour: tuple[float, ...], expected: tuple[float, ...]) -> None:
    np.testing.assert_allclose(_converted(src, dst, *colour), expected, atol=1.5e-4)


def test_straight_colours_are_converted() -> None:
    """A premultiplied colour is divided first, and multiplied behind."""
    kinds = mps.MPSAlphaType.PREMULTIPLIED, mps.MPSAlphaType.PREMULTIPLIED
    found = _converted(Space.SRGB, Space.LINEAR_SRGB, 0.25, 0.0, 0.5, 0.5, kinds=kinds)
    np.testing.assert_allclose(found, [0.10702, 0.0, 0.5, 0.5], atol=1e-5)
    copy = mps.MPSImageConversion(CPU, *kinds, None, mps.CGColorConversionInfo(0, Space.LINEAR_SRGB)).copy()
    assert copy.conversion_info == mps.CGColorConversionInfo(Space.SRGB, Space.LINEAR_SRGB)


@in_one_test
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mps.MPSImageThresholdBinary(CPU, math.nan, 1.0), "threshold_value must be a number"),
        (lambda: mps.MPSImageThresholdBinary(CPU, 0.5, 1.0, [1.0]), "_transform must be three numbers"),
        (lambda: mps.MPSImageConversion(CPU, 7), "src_alpha must be one of NON_PREMULTIPLIED"),
        (lambda: mps.MPSImageConversion(CPU, 0, 1, [1.0, math.inf, 0.0]), "background_color must be a finite number"),
        (lambda: mps.MPSImageConversion(CPU, 0, 1, None, object()), "conversion_info must be a CGColorConversionInfo"),
        (lambda: mps.CGColorConversionInfo("Adobe RGB", Space.SRGB), "src must be one of SRGB, LINEAR_SRGB, DISPLAY"),
        (lambda: _converted(Space.SRGB, Space.LINEAR_SRGB, 1.0), "source_image must have 3 or 4 feature channel"),
        (lambda: mps.MPSImageArithmetic(CPU), "device makes no kernel of this base class"),
        (lambda: setattr(mps.MPSImageAdd(CPU), "primary_stride_in_pixels", mps.MTLSize(2, 1, 1)), "must be 0"),
        (lambda: setattr(mps.MPSImageAdd(CPU), "secondary_stride_in_pixels", (1, 1, 1)), "must be an MTLSize"),
        (lambda: setattr(mps.MPSImageThresholdTruncate(CPU, 0.5), "transform", (1.0, 0.0, 0.0)), "transform"),
    ],
)  # fmt: skip
def test_misuse(call: Any, message: str) -> None:
    with pytest.raises((MPSArgumentError, MPSTypeError, AttributeError), match=message):
        call()


def test_limits_that_exclude_everything() -> None:
    kernel = mps.MPSImageAdd(CPU)
    kernel.minimum_value, kernel.maximum_value = 1.0, 0.0
    with pytest.raises(MPSArgumentError, match=r"^MPSImageAdd: minimum_value must not be above maximum_value, 0.0"):
        _of(kernel, _row(1.0), _row(1.0))
