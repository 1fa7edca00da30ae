"""Histograms, extremes and tables by compiled loops, where Numba is installed: the counts of our own forms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8
from filter_twins import BENCH, CPU, encoded, loops_of_any_picture, own_forms
from in_one_test import in_one_test
from openmps.kernels.image_filters.equalization import MPSImageHistogramEqualization
from openmps.kernels.image_filters.histogram import MPSImageHistogram
from openmps.ops import numba
from openmps.ops.image.histogram import histogram, normalized_histogram
from openmps.ops.image.statistics import min_and_max
from openmps.ops.numba import bins
from openmps.types import MPSImageFeatureChannelFormat as Format
from openmps.types import MPSImageHistogramInfo, MPSOffset, MTLOrigin, MTLRegion, MTLSize

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 3e38, 1e-45, 0.1, 0.7]
SPANS = [
    ((0.0,) * 4, (1.0,) * 4),
    ((-1.0, 0.1, 0.5, -3.0), (1.0, 0.7, 0.5000001, 1e30)),
    ((-math.inf, 0.0, -3e38, 1.0), (1.0, math.inf, 3e38, 1.1)),
]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    yield from loops_of_any_picture(monkeypatch)


def pictures(channels: int, size: tuple[int, int], images: int = 1) -> torch.Tensor:
    """Numbers of any kind among others, channels-last."""
    rng = np.random.default_rng(channels)
    x = rng.normal(0.3, 0.4, (images, *size, channels)).astype(np.float32)
    where = rng.integers(0, x.size, x.size // 5)
    x.reshape(-1)[where] = rng.choice(np.float32(NUMBERS), len(where))
    return torch.from_numpy(x).permute(0, 3, 1, 2)


def same(compute: Any, *given: Any) -> None:
    """By loops and without: to the bit."""
    found = compute(*given)
    with own_forms():
        expected = compute(*given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@in_one_test
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("entries", [1, 2, 256, 4096])
@pytest.mark.parametrize("spans", SPANS, ids=range(len(SPANS)))
@pytest.mark.parametrize("size", [(1, 1), (3, 80), (67, 121)], ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_counts(channels: int, size: tuple[int, int], spans: Any, entries: int, rounds: bool) -> None:
    """Of several pictures, of parts of them, of some channels; added to others, and from a number on."""
    x = pictures(channels, size, 2)
    for taken in {channels, min(channels, 3)}:
        low, high = (each[:taken] for each in spans)
        before = torch.arange(taken * entries, dtype=torch.int32).view(1, -1).view(torch.uint32)
        for least in ((0.0,) * taken, (0.3, -math.inf, math.nan, math.inf)[:taken]):
            for part in (x, x[:, :, : size[0] // 2 + 1, size[1] // 3 :], x.contiguous()):
                same(lambda *given: [histogram(*given)], part, before, entries, low, high, least, rounds)


@in_one_test
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("spans", SPANS[:2], ids=range(2))
@pytest.mark.parametrize("kind", ["numbers", "bytes", "none", "flat"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_normalized_counts(channels: int, kind: str, spans: Any, rounds: bool) -> None:
    x = pictures(channels, (41, 53), 2)
    if kind == "numbers":
        x = x.nan_to_num(nan=0.25, posinf=2.0, neginf=-2.0)
    elif kind == "flat":
        x = torch.full_like(x, 0.3)
    given = (x.clamp(0.1, 0.8) * 255.0).nan_to_num().to(torch.uint8) if kind == "bytes" else x
    taken = min(channels, 3)
    low, high = (each[:taken] for each in spans)
    same(normalized_histogram, given, None, 64, low, high, rounds)
    if kind == "bytes":  # as the numbers that they stand for
        numbers = given.to(torch.float32) / 255.0
        with own_forms():
            expected = normalized_histogram(numbers, None, 64, low, high, rounds)
        for one, other in zip(normalized_histogram(given, None, 64, low, high, rounds), expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


@in_one_test
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_extremes(channels: int, value: float, place: int) -> None:
    """Of each channel by itself, wherever they lie."""
    x = np.random.default_rng(0).normal(0.0, 1.0, (2, 40, 87, channels)).astype(np.float32)
    x.reshape(-1)[place] = value
    same(lambda: [min_and_max(torch.from_numpy(x).permute(0, 3, 1, 2))])


def test_counts_are_the_same_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    count = bins.counts
    monkeypatch.setattr(bins, "counts", lambda *given, **named: calls.append(1) or count(*given, **named))
    found: list[torch.Tensor] = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(histogram(pictures(4, (117, 67)), None, 16, (0.0,) * 4, (1.0,) * 4, (0.0,) * 4))
    for each in found:
        assert torch.equal(each, found[0])
    assert len(calls) == 3
    monkeypatch.setattr(numba, "LARGE", 1 << 20)
    histogram(pictures(4, (117, 67)), None, 16, (0.0,) * 4, (1.0,) * 4, (0.0,) * 4)
    assert len(calls) == 3


@in_one_test
@pytest.mark.parametrize("has_alpha", [False, True])
@pytest.mark.parametrize("result", [UNORM8, FLOAT16, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("source", [UNORM8, FLOAT16, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_tables(channels: int, source: Format, result: Format, has_alpha: bool, runs: list[tuple[type, ...]]) -> None:
    """Whole pictures and a part from another place, of which some lies beyond the source."""
    if has_alpha and channels < 4:
        return
    info = MPSImageHistogramInfo(16, has_alpha, (0.0, 0.1, -1.0, 0.3), (1.0, 0.7, 1.0, 0.9))
    x = pictures(channels, (33, 87), 2).clamp(-6e4, 6e4).numpy().astype(np.float64)
    if source is UNORM8:
        x = np.nan_to_num(x).clip(0.0, 1.0)
    image, counts = BENCH.image(x[:1], source), CPU.new_buffer(length=16 * 4 * 4)
    kernel = MPSImageHistogramEqualization(CPU, info)
    command_buffer = BENCH.command_buffer()
    MPSImageHistogram(CPU, info).encode(command_buffer, image, counts, 0)
    kernel.encode_transform(command_buffer, image, counts, 0)
    command_buffer.commit()
    for is_part in (False, True):
        if is_part:
            kernel.offset = MPSOffset(-3, 5, 0)
            kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(50, 31, 2))
        runs.clear()
        batch = BENCH.image(x, source)
        found = encoded(kernel, [batch], BENCH.filled(x.shape, 0.25, result))
        assert runs or source is UNORM8
        with own_forms():
            np.testing.assert_array_equal(found, encoded(kernel, [batch], BENCH.filled(x.shape, 0.25, result)))
