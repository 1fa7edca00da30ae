"""Windows over strips of rows, in Triton: what NumPy makes of them in float64; on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from interpreter import triton_place

Array = np.ndarray
SIZES = [((3, 3), (-1, -1)), ((1, 5), (0, -2)), ((4, 1), (-6, 2)), ((5, 3), (2, -7)), ((1, 1), (0, (1 << 30) + 3))]
"""Rows and columns of windows, and where the first begins: around pixels, beyond the edges, far from them."""
PICTURES = [(torch.uint8, torch.uint8, 4), (torch.uint8, torch.float32, 4), (torch.float32, torch.float32, 1)]
PICTURES += [(torch.uint8, torch.uint8, 1), (torch.float32, torch.uint8, 3), (torch.uint8, torch.uint8, 2)]
MADE = 9, 10
"""Rows and columns of results: several strips and blocks, the last ones cut."""


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = import_module("openmps.ops.triton.image.strips")
    monkeypatch.setattr(module, "_BLOCK", 4)
    monkeypatch.setattr(module, "_LINES", (8, 4, 4))
    monkeypatch.setattr(module, "_FEW_LINES", (4, 4))
    # Four words a thread for pictures as small as those here, too.
    monkeypatch.setattr(module, "_MANY_PROGRAMS", 0)
    return module


def _drawn(dtype: torch.dtype, channels: int, place: torch.device, first: int = 0, wide: int = 9) -> torch.Tensor:
    """Two pictures of 8 x 9 pixels, some numbers behind a multiple of 16 bytes."""
    count = 2 * channels * 8 * wide
    drawn = np.random.default_rng(channels).integers(0, 256, count)
    memory = torch.zeros(count + first, dtype=dtype, device=place)
    memory[first:] = torch.from_numpy(drawn).to(place, dtype) / (1 if dtype == torch.uint8 else 255)
    return memory[first:].view(2, 8, wide, channels).permute(0, 3, 1, 2)


def _neighbours(
    x: torch.Tensor, size: tuple[int, int], corner: tuple[int, int], *, clamps: bool, like: tuple[int, int] = MADE
) -> Array:
    """The pixels of each window, float64 ``[N, C, H, W, rows, columns]``."""
    numbers = x.cpu().numpy().astype(np.float64)
    places = [
        first + np.arange(made)[:, None] + np.arange(length)
        for first, made, length in zip(corner, like, size, strict=True)
    ]
    inside = [np.clip(each, 0, length - 1) for each, length in zip(places, numbers.shape[2:], strict=True)]
    rows, columns = inside[0][:, None, :, None], inside[1][None, :, None, :]
    found = numbers[:, :, rows, columns]
    if not clamps:
        is_there = [mine == its for mine, its in zip(places, inside, strict=True)]
        found = found * (is_there[0][:, None, :, None] & is_there[1][None, :, None, :])
    return found


def _check(launches: Any, made: torch.Tensor, expected: Array, largest: int) -> None:
    launches.now()
    found = made.cpu().numpy()
    if largest:
        assert np.abs(found.astype(int) - np.round(np.clip(expected, 0, 1) * largest)).max() <= 1
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def _each(
    place: torch.device,
) -> list[tuple[torch.Tensor, torch.Tensor, tuple[int, int], tuple[int, int], bool, float]]:
    """Sources and results of all formats, windows, edges in turn, and what an element of the source is."""
    return [
        (
            _drawn(source, channels, place, first),
            torch.full((2, *MADE, channels), 77, dtype=result, device=place).permute(0, 3, 1, 2),
            *SIZES[(number + turn) % len(SIZES)],
            (number + turn) % 3 > 0,
            1 / 255 if source == torch.uint8 else 1.0,
        )
        for number, (source, result, channels) in enumerate(PICTURES)
        for turn, first in (((0, 0), (1, 8), (2, 3)) if number == 0 else ((number, 0),))
    ]


def test_sums_by_the_weights_of_all_pixels(strips: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = triton_place(monkeypatch)
    for x, made, size, corner, clamps, unit in _each(place):
        weights = np.random.default_rng(0).normal(0, 0.3, size).astype(np.float32) * np.float32(unit)
        largest = 255 if made.dtype == torch.uint8 else 0
        taps = torch.from_numpy(weights).to(place)
        launches = strips.weighed(x, made, size, corner, taps, bias=0.1, clamps=clamps, largest=largest)
        expected = (_neighbours(x, size, corner, clamps=clamps) * weights.astype(np.float64)).sum((4, 5)) + 0.1
        _check(launches, made, expected, largest)


def test_sums_by_weights_down_and_across(strips: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = triton_place(monkeypatch)
    for x, made, size, corner, clamps, unit in _each(place):
        down, across = (np.random.default_rng(length).random(length).astype(np.float32) for length in size)
        largest, given = 255 if made.dtype == torch.uint8 else 0, (tuple(down.tolist()), tuple(across.tolist()))
        factor = unit / float(down.sum() * across.sum())
        launches = strips.both(x, made, size, corner, given, factor=factor, clamps=clamps, largest=largest)
        weights = down[:, None].astype(np.float64) * across
        expected = (_neighbours(x, size, corner, clamps=clamps) * weights).sum((4, 5)) * factor
        _check(launches, made, expected, largest)


@pytest.mark.parametrize(("makes", "choose"), [(1, np.max), (2, np.min)], ids=["largest", "smallest"])
def test_extremes(makes: int, choose: Callable[..., Array], strips: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = triton_place(monkeypatch)
    for x, made, size, corner, _, _ in _each(place):
        if x.dtype == made.dtype:
            strips.both(x, made, size, corner, ((1.0,) * size[0], (1.0,) * size[1]), makes=makes).now()
            expected = choose(_neighbours(x, size, corner, clamps=True), axis=(4, 5))
            np.testing.assert_array_equal(made.cpu().numpy(), expected.astype(made.cpu().numpy().dtype))


@pytest.mark.parametrize("clamps", [True, False], ids=["repeats", "zeros"])
@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.uint8, 4), (torch.uint8, 1), (torch.float32, 1), (torch.float32, 3)], ids=str
)
def test_blocks_whose_windows_are_within_a_row(
    dtype: torch.dtype, channels: int, clamps: bool, strips: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that reach beyond its ends: sums of windows, of columns and rows, and the largest."""
    place, size, corner, like = triton_place(monkeypatch), (3, 5), (-1, -3), (4, 43)
    x = _drawn(dtype, channels, place, wide=47)
    made = torch.full((2, *like, channels), 77, dtype=dtype, device=place).permute(0, 3, 1, 2)
    unit, largest = (1 / 255, 255) if dtype == torch.uint8 else (1.0, 0)
    found = _neighbours(x, size, corner, clamps=clamps, like=like)
    weights = np.random.default_rng(0).normal(0, 0.3, size).astype(np.float32) * np.float32(unit)
    taps = torch.from_numpy(weights).to(place)
    launches = strips.weighed(x, made, size, corner, taps, bias=0.1, clamps=clamps, largest=largest)
    _check(launches, made, (found * weights.astype(np.float64)).sum((4, 5)) + 0.1, largest)
    given = (0.25, 0.5, 0.25), (0.1, 0.2, 0.4, 0.2, 0.1)
    launches = strips.both(x, made, size, corner, given, factor=unit, clamps=clamps, largest=largest)
    _check(launches, made, (found * np.outer(*given)).sum((4, 5)) * unit, largest)
    if clamps:
        strips.both(x, made, size, corner, given, makes=1).now()
        np.testing.assert_array_equal(made.cpu().numpy(), found.max((4, 5)).astype(made.cpu().numpy().dtype))


def test_bytes_by_small_and_large_weights(strips: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that cancel or vanish: bytes are read as the smallest floats there are."""
    place = triton_place(monkeypatch)
    x = _drawn(torch.uint8, 4, place)
    made = torch.zeros((2, *MADE, 4), dtype=torch.uint8, device=place).permute(0, 3, 1, 2)
    for scale in (1e-30, 1e-6, 1.0, 1e20):
        weights = np.array([[-1.0, 0.5, 1.0]], np.float32) * np.float32(scale)
        launches = strips.weighed(
            x, made, (1, 3), (0, -1), torch.from_numpy(weights).to(place), bias=0.5, clamps=True, largest=255
        )
        expected = (_neighbours(x, (1, 3), (0, -1), clamps=True) * weights.astype(np.float64)).sum((4, 5)) + 0.5
        _check(launches, made, expected, 255)


@pytest.mark.parametrize(
    ("shape", "lines", "expected"),
    [
        ((1, 1080, 1920), 16, (16, 2)),
        ((1, 720, 1280), 8, (8, 2)),
        ((1, 3024, 4032), 96, (16, 4)),
        ((1, 20, 30), 8, (8, 2)),
    ],
    ids=str,
)
def test_strips_are_as_long_as_leaves_enough_of_them(
    shape: tuple[int, int, int], lines: int, expected: tuple[int, int]
) -> None:
    strips: Any = import_module("openmps.ops.triton.image.strips")
    images, height, width = shape
    made = torch.empty((images, height, width, 4), dtype=torch.uint8).permute(0, 3, 1, 2)
    cut = strips._cut(made, made, 9, 18)
    assert (cut.is_packed, cut.pixels, cut.lines) == (True, 4, lines)
    few = strips._cut(made, made, 3, 9)
    assert (few.lines, few.pixels) == expected
    taller = [strips._cut(made, made, *each).pixels for each in ((10, 11), (7, 49), (5, 25))]
    assert taller == [2, 2, few.pixels]
    assert cut.grid == (-(-height // lines), -(-width // 128))
