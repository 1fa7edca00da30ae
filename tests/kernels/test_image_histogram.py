"""Histograms, and pictures made of them: bins, buffers, regions, tables, NumPy, misuse."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import FLOAT16, FLOAT32, UNORM8, Bench, finish, numbers
from helpers import assert_close
from in_one_test import in_one_test
from measured import note_error, note_format
from openmps.errors import MPSError
from oracles import image_filters as oracle

CPU = mps.mtl_device("cpu")
BENCH = Bench(CPU)
Info = mps.MPSImageHistogramInfo
FOUR = np.array([0, 64, 128, 191, 255, 255]).reshape(1, 1, 2, 3) / 255.0


def _buffer(length: int, first: int = 0) -> Any:
    """Room for counts, each `first` before."""
    return CPU.new_buffer(data=np.full(length // 4, first, np.uint32))


def _counted(
    kernel: Any, x: np.ndarray, channel_format: Any = FLOAT32, *, offset: int = 0, first: int = 0
) -> np.ndarray:
    """Counts [channels, bins]."""
    info = kernel.histogram_info
    channels = x.shape[1] if info.histogram_for_alpha else min(3, x.shape[1])
    histogram = _buffer(offset + 4 * channels * info.number_of_histogram_entries, first)
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, BENCH.image(x, channel_format), histogram, offset)
    finish(command_buffer)
    return histogram.contents()[offset:].view(np.uint32).reshape(channels, -1).copy()


def _equalized(info: Any, x: np.ndarray, channel_format: Any = UNORM8) -> np.ndarray:
    """Counted, turned into a table and looked up in one command buffer."""
    source, result, command_buffer = (
        BENCH.image(x, channel_format),
        BENCH.empty(x.shape, channel_format),
        BENCH.command_buffer(),
    )
    histogram = _buffer(16 * info.number_of_histogram_entries)
    mps.MPSImageHistogram(CPU, info).encode(command_buffer, source, histogram, 0)
    kernel = mps.MPSImageHistogramEqualization(CPU, info)
    kernel.encode_transform(command_buffer, source, histogram, 0)
    kernel.encode(command_buffer, source, result)
    finish(command_buffer)
    return numbers(result)


def test_four_bins_of_six_bytes() -> None:
    assert _counted(mps.MPSImageHistogram(CPU, Info(4)), FOUR, UNORM8).tolist() == [[1, 1, 2, 2]]


def test_256_bins_hold_bytes_themselves() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 4, 9, 11))
    kernel = mps.MPSImageHistogram(CPU, Info(256, True))
    found = _counted(kernel, pixels / 255.0, UNORM8)
    for channel in range(4):
        np.testing.assert_array_equal(found[channel], np.bincount(pixels[0, channel].ravel(), minlength=256))
    note_format(type(kernel), "unorm8", torch.device("cpu"))


@pytest.mark.parametrize("channel_format", [FLOAT32, FLOAT16])
def test_bins_of_floats_by_loops_and_numpy(channel_format: Any) -> None:
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 9)).astype(np.float16).astype(np.float64)
    low, high, least = (-1.0, 0.0, -2.0, 0.0), (1.0, 0.5, 2.0, 1.0), (-0.5, -9.0, -math.inf, 0.0)
    kernel = mps.MPSImageHistogram(CPU, Info(8, False, low, high))
    kernel.min_pixel_threshold_value = least
    found = _counted(kernel, x, channel_format)
    np.testing.assert_array_equal(found, oracle.histogram(x, 8, low, high, least))
    note_error(type(kernel), "forward", torch.device("cpu"), found, oracle.histogram(x, 8, low, high, least))
    inside = x[0, 2][np.abs(x[0, 2]) < 2.0]
    edges = found[2] - np.histogram(inside, 8, (-2.0, 2.0))[0]  # NumPy leaves out what is beyond
    assert edges[1:-1].tolist() == [0] * 6
    assert edges.sum() == x[0, 2].size - inside.size


def test_counts_begin_anew_or_go_on_behind_an_offset() -> None:
    kernel = mps.MPSImageHistogram(CPU, Info(4))
    assert kernel.zero_histogram is True
    assert _counted(kernel, FOUR, offset=32, first=5).tolist() == [[1, 1, 2, 2]]
    kernel.zero_histogram = False
    assert _counted(kernel, FOUR, offset=32, first=5).tolist() == [[6, 6, 7, 7]]
    assert _counted(kernel, FOUR, first=2**32 - 1).tolist() == [[0, 0, 1, 1]]  # as uint32 does


def test_the_part_of_a_picture_and_what_is_no_number() -> None:
    kernel = mps.MPSImageHistogram(CPU, Info(2))
    kernel.clip_rect_source = mps.MTLRegion(mps.MTLOrigin(1, 1, 0), mps.MTLSize(9, 2, 1))
    x = np.array([[0, 0, 0], [0, 0.25, math.nan], [0, 0.75, -1], [0, 0, 0]]).reshape(1, 1, 4, 3)
    assert _counted(kernel, x).tolist() == [[1, 1]]  # the threshold of 0 leaves out what is below


def test_sizes() -> None:
    """A device gave 3072 bytes for the defaults."""
    kernel = mps.MPSImageHistogram(CPU, Info())
    Pixels = mps.MTLPixelFormat
    sizes = [kernel.histogram_size(each) for each in (Pixels.RGBA8_UNORM, Pixels.RG16_FLOAT, Pixels.R32_FLOAT)]
    assert sizes == [3072, 2048, 1024]
    assert mps.MPSImageNormalizedHistogram(CPU, Info(16, True)).histogram_size(Pixels.RGBA32_FLOAT) == 256


@pytest.mark.parametrize("images", [1, 2])
def test_a_normalized_histogram_spans_what_is_there(images: int) -> None:
    x = np.random.default_rng(2).normal(size=(images, 2, 5, 6)).astype(np.float32).astype(np.float64)
    x[:, 1] = 0.5
    info = Info(8, False, (-1.0, 0.0, 0.0, 0.0), (9.0, 1.0, 1.0, 1.0))
    kernel, extremes, histogram = mps.MPSImageNormalizedHistogram(CPU, info), BENCH.empty((1, 2, 1, 2)), _buffer(64)
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, BENCH.image(x), extremes, histogram, 0)
    finish(command_buffer)
    found = np.stack([x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))], axis=1)
    np.testing.assert_array_equal(numbers(extremes)[0, :, 0], found)
    counts = histogram.contents().view(np.uint32).reshape(2, 8)
    low, high = (max(found[0, 0], -1.0),), (found[0, 1],)
    expected = oracle.histogram(x[:, :1], 8, low, high, (-math.inf,))
    np.testing.assert_array_equal(counts[:1], expected)
    assert counts[1].tolist() == [30 * images, *[0] * 7]
    note_error(type(kernel), "forward", torch.device("cpu"), counts[:1], expected)


def test_equalization_of_four_levels() -> None:
    found = np.round(_equalized(Info(4), FOUR) * 255).ravel().tolist()
    assert found == [42, 85, 170, 170, 255, 255]


def test_equalization_by_loops_leaves_alpha() -> None:
    x = np.random.default_rng(3).beta(2, 5, (1, 4, 12, 13)).astype(np.float32).astype(np.float64)
    expected = oracle.equalize(x[:, :3], 64)
    found = _equalized(Info(64), x, FLOAT32)
    assert_close(found[:, :3], expected, 1e-6)
    np.testing.assert_array_equal(found[:, 3], x[:, 3])
    note_error(mps.MPSImageHistogramEqualization, "forward", torch.device("cpu"), found[:, :3], expected)


def test_an_empty_histogram_changes_nothing() -> None:
    kernel, image = mps.MPSImageHistogramEqualization(CPU, Info(256)), BENCH.image(FOUR, UNORM8)
    result, command_buffer = BENCH.empty(FOUR.shape, UNORM8), BENCH.command_buffer()
    kernel.encode_transform(command_buffer, image, _buffer(1024), 0)
    kernel.encode(command_buffer, image, result)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(result), numbers(image))


def _specified(x: np.ndarray, have: list[int], want: list[int]) -> np.ndarray:
    kernel = mps.MPSImageHistogramSpecification(CPU, Info(len(have)))
    buffers = [CPU.new_buffer(data=np.array([0, *counts], np.uint32)) for counts in (have, want)]
    image, result, command_buffer = BENCH.image(x), BENCH.empty(x.shape), BENCH.command_buffer()
    kernel.encode_transform(command_buffer, image, buffers[0], 4, buffers[1], 4)
    kernel.encode(command_buffer, image, result)
    finish(command_buffer)
    return numbers(result)


def test_specification_of_four_levels() -> None:
    levels = (np.arange(4) / 4).reshape(1, 1, 1, 4)
    assert_close(_specified(levels, [1, 1, 2, 2], [3, 0, 1, 2]).ravel(), [0, 0, 2 / 3, 1], 1e-6)
    assert_close(_specified(levels, [1, 1, 2, 2], [1, 1, 2, 2]).ravel(), np.arange(4) / 3, 1e-6)
    assert_close(_specified(levels, [0, 0, 0, 0], [1, 1, 2, 2]).ravel(), np.arange(4) / 3, 1e-6)


def test_specification_by_loops() -> None:
    rng = np.random.default_rng(4)
    have, want = (rng.integers(0, 9, 16) for _ in range(2))
    x = rng.random((1, 1, 5, 6)).astype(np.float32).astype(np.float64)
    expected = oracle.specify(x, have, want)
    found = _specified(x, have.tolist(), want.tolist())
    assert_close(found, expected, 1e-6)
    note_error(mps.MPSImageHistogramSpecification, "forward", torch.device("cpu"), found, expected)


def test_histograms_are_read_when_the_work_runs_and_copies_have_no_table() -> None:
    kernel, image = mps.MPSImageHistogramEqualization(CPU, Info(4)), BENCH.image(FOUR, UNORM8)
    histogram, result, command_buffer = _buffer(16), BENCH.empty(FOUR.shape, UNORM8), BENCH.command_buffer()
    kernel.encode_transform(command_buffer, image, histogram, 0)
    kernel.encode(command_buffer, image, result)
    histogram.contents().view(np.uint32)[:] = [1, 1, 2, 2]
    finish(command_buffer)
    assert np.round(numbers(result) * 255).ravel().tolist() == [42, 85, 170, 170, 255, 255]
    with pytest.raises(MPSError, match="^MPSImageHistogramEqualization: encode needs a transform"):
        copy.copy(kernel).encode(BENCH.command_buffer(), image, result)
    assert kernel.encode(BENCH.command_buffer(), in_place_texture=image) is None
    with pytest.raises(MPSError, match=r"source_image must have a histogram for 1 channel\(s\)"):
        kernel.encode(BENCH.command_buffer(), BENCH.empty((1, 2, 2, 2)), BENCH.empty((1, 2, 2, 2)))


def _refused(call: Callable[[Any, Any], object], buffer: Any = None, channels: int = 1) -> Callable[[], object]:
    room = buffer or _buffer(64)
    return lambda: call(BENCH.command_buffer(), (BENCH.empty((1, channels, 2, 2)), room))


HISTOGRAM, EQUALIZATION = mps.MPSImageHistogram(CPU, Info(4)), mps.MPSImageHistogramEqualization(CPU, Info(4))
SPECIFICATION = mps.MPSImageHistogramSpecification(CPU, Info(4))
_MISUSE: dict[str, tuple[Callable[[], object], str]] = {
    "entries": (lambda: Info(5), "number_of_histogram_entries must be a power of two, got 5"),
    "bounds": (lambda: Info(4, False, (0, 0, 0, 0), (1, 1, 0, 1)), "max_pixel_value must be above min_pixel_value"),
    "three": (lambda: Info(4, False, (0, 0, 0)), "min_pixel_value must be four real numbers"),
    "infinite": (lambda: Info(4, False, (0, 0, 0, 0), (1, 1, 1, math.inf)), "max_pixel_value must be finite"),
    "flag": (lambda: Info(4, "no"), "histogram_for_alpha must be True or False"),  # type: ignore[arg-type]
    "info": (lambda: mps.MPSImageHistogram(CPU, 256), "histogram_info must be an MPSImageHistogramInfo"),  # type: ignore[arg-type]
    "threshold": (lambda: setattr(HISTOGRAM, "min_pixel_threshold_value", (1, 2)), "must be four numbers"),
    "offset": (_refused(lambda b, o: HISTOGRAM.encode(b, *o, 4)), "histogram_offset must be a multiple of 32"),
    "small": (_refused(lambda b, o: HISTOGRAM.encode(b, *o, 64)), "histogram must hold 16 bytes from the offset on"),
    "no buffer": (_refused(lambda b, o: HISTOGRAM.encode(b, o[0], [1], 0)), "histogram must be an MTLBuffer"),  # type: ignore[arg-type]
    "channels": (_refused(lambda b, o: HISTOGRAM.encode(b, *o, 0), None, 5), "source_texture must have at most 4"),
    "table": (_refused(lambda b, o: EQUALIZATION.encode_transform(b, *o, 2)), "_offset must be a multiple of 4"),
    "desired": (
        _refused(lambda b, o: SPECIFICATION.encode_transform(b, *o, 0, _buffer(8), 0)),
        "MPSImageHistogramSpecification: desired_histogram must hold 16 bytes",
    ),
    "extremes": (
        _refused(lambda b, o: mps.MPSImageNormalizedHistogram(CPU, Info(4)).encode(b, o[0], o[0], o[1], 0)),
        "minmax_texture must be one image of 2x1 pixels",
    ),
    "format": (lambda: HISTOGRAM.histogram_size(mps.MTLPixelFormat.INVALID), "source_format must be the format"),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", _MISUSE)
def test_misuse(name: str) -> None:
    call, message = _MISUSE[name]
    with pytest.raises(MPSError, match=message):
        call()


def test_a_region_beside_the_source() -> None:
    kernel = mps.MPSImageHistogram(CPU, Info(4))
    kernel.clip_rect_source = mps.MTLRegion(mps.MTLOrigin(2, 0, 0), mps.MTLSize(1, 1, 1))
    with pytest.raises(MPSError, match="^MPSImageHistogram: clip_rect_source must overlap the source of 2x2 pixels"):
        kernel.encode(BENCH.command_buffer(), BENCH.empty((1, 1, 2, 2)), _buffer(64), 0)


def test_alpha_of_three_channels_is_refused() -> None:
    """Their format has four components, which `histogram_size` counts."""
    with pytest.raises(
        mps.MPSArgumentError, match="source_texture must have 4 feature channels, as histogram_for_alpha"
    ):
        _counted(mps.MPSImageHistogram(CPU, Info(4, True)), np.zeros((1, 3, 2, 2)))
