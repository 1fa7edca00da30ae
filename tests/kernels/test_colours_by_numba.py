"""Conversions and thresholds by compiled loops, where Numba is installed: the numbers of our own forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8
from filter_twins import BENCH, CPU, EDGES, compare, encoded, loops_of_any_picture
from in_one_test import in_one_test
from openmps.kernels.image_filters import conversion, threshold
from openmps.types import MPSAlphaType, MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from pairs import pairs

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

FORMATS = UNORM8, FLOAT16, FLOAT32
CHANNELS = 1, 2, 3, 4
NAMES = "Binary", "BinaryInverse", "Truncate", "ToZero", "ToZeroInverse"
NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    yield from loops_of_any_picture(monkeypatch)


def picture(channels: int, stored_as: Format) -> Any:
    """Numbers of any kind among others; opaque pixels, and those of which nothing shows."""
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 256, (2, channels, 21, 1043)) / 255.0
    x[:, -1, :, ::7], x[:, -1, :, 3::7] = 0.0, 1.0
    if stored_as is not UNORM8:
        where = rng.integers(0, x.size, x.size // 9)
        x.reshape(-1)[where] = rng.choice(NUMBERS, len(where))
    return BENCH.image(x, stored_as)


def makes(kernel: Any, image: Any, channels: int) -> Callable[[Format], np.ndarray]:
    return lambda stored: encoded(kernel, [image], BENCH.filled((2, channels, 21, 1043), 0.5, stored))


def moved(kernel: Any, edge: MPSImageEdgeMode) -> Any:
    """Of a part of the result, from another place, some of which lies beyond the source."""
    other = kernel.copy()
    other.edge_mode, other.offset = edge, MPSOffset(-3, 5, 0)
    other.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(1031, 17, 2))
    return other


@in_one_test
@pytest.mark.parametrize(
    ("source", "result", "of", "into", "channels", "made", "background", "edge"),
    pairs(FORMATS, FORMATS, [*MPSAlphaType], [*MPSAlphaType], CHANNELS, CHANNELS, [None, (0.3, 0.0, 0.9)], EDGES),
)
def test_conversions(
    source: Format, result: Format, of: MPSAlphaType, into: MPSAlphaType, channels: int, made: int, background: Any,
    edge: MPSImageEdgeMode, runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    kernel, image = conversion.MPSImageConversion(CPU, of, into, background), picture(channels, source)
    for each in (kernel, moved(kernel, edge)):
        runs.clear()
        compare(makes(each, image, made), result)
        assert runs


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # of our own form: NumPy tells of infinity - infinity
@in_one_test
@pytest.mark.parametrize(
    ("name", "source", "result", "channels", "made", "limit", "edge"),
    pairs(NAMES, FORMATS, FORMATS, CHANNELS, CHANNELS, (-0.5, 0.4321, 1.0, 3e38), EDGES),
)
def test_thresholds(
    name: str, source: Format, result: Format, channels: int, made: int, limit: float, edge: MPSImageEdgeMode,
    runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    largest = (0.7,) if "Binary" in name else ()
    kernel = getattr(threshold, f"MPSImageThreshold{name}")(CPU, limit, *largest, (0.2, -0.1, 0.8))
    image = picture(channels, source)
    is_left = channels == made == 1 and source is result is UNORM8  # to OpenCV, or PyTorch
    for each in (kernel, moved(kernel, edge)):
        runs.clear()
        compare(makes(each, image, made), result)
        assert runs or is_left


@in_one_test
@pytest.mark.parametrize("stored_as", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_as_it_is(channels: int, stored_as: Format, runs: list[tuple[type, ...]]) -> None:
    """To the bit, NaN and infinities too, by any number of threads."""
    runs.clear()
    premultiplied = MPSAlphaType.PREMULTIPLIED
    kernel, image = conversion.MPSImageConversion(CPU, premultiplied, premultiplied), picture(channels, stored_as)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found = encoded(kernel, [image], BENCH.empty((2, channels, 21, 1043), stored_as))
        np.testing.assert_array_equal(found, image.read_bytes())
    assert len(runs) == 3


def test_bits_are_the_same_for_any_number_of_threads() -> None:
    straight, premultiplied = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.PREMULTIPLIED
    kernels = [
        conversion.MPSImageConversion(CPU, premultiplied, straight),
        conversion.MPSImageConversion(CPU, straight, MPSAlphaType.ALPHA_IS_ONE, (0.1, 0.2, 0.3)),
        threshold.MPSImageThresholdTruncate(CPU, 0.4),
    ]
    for kernel in kernels:
        for stored_as in FORMATS:
            image, found = picture(4, stored_as), list[np.ndarray]()
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(encoded(kernel, [image], BENCH.empty((2, 3, 21, 1043), stored_as)))
            for each in found:
                np.testing.assert_array_equal(each, found[0])


@in_one_test
@pytest.mark.parametrize("stored_as", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("how", ["convert", "threshold", "copy"])
def test_in_place(how: str, stored_as: Format, runs: list[tuple[type, ...]]) -> None:
    runs.clear()
    straight, opaque = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.ALPHA_IS_ONE
    kernel: Any = threshold.MPSImageThresholdToZero(CPU, 0.3)
    if how != "threshold":
        kernel = conversion.MPSImageConversion(CPU, straight, straight if how == "copy" else opaque)
    image = picture(4, stored_as)
    expected = encoded(kernel, [image], BENCH.empty((2, 4, 21, 1043), stored_as))
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, in_place_texture=image)
    command_buffer.commit()
    np.testing.assert_array_equal(image.read_bytes(), expected)
    assert len(runs) == 2
