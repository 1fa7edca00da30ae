"""Windows by weights in Triton against sums in float64: on CUDA, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interpreter import triton_place
from openmps.ops import triton
from openmps.ops.image import separable, windows
from openmps.ops.image.separable import Profile, Shape

SHAPES = [(2, 1, 7, 9, 3, 5), (1, 4, 5, 300, 1, 4), (2, 3, 9, 6, 9, 1)]
"""Images, channels, rows and columns of a region, rows and columns of windows."""


def _sums(region: np.ndarray, weights: np.ndarray) -> np.ndarray:
    views = np.lib.stride_tricks.sliding_window_view(region.astype(np.float64), weights.shape, (2, 3))
    return np.einsum("nchwji,ji->nchw", views, weights)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return triton_place(monkeypatch)


def _region(shape: tuple[int, ...], place: torch.device, dtype: Any) -> torch.Tensor:
    drawn = np.random.default_rng(0).integers(0, 256, (shape[0], *shape[2:4], shape[1]))
    return torch.from_numpy(drawn).to(place, dtype).permute(0, 3, 1, 2)


def _check(found: torch.Tensor, expected: np.ndarray, magnitudes: np.ndarray, taps: int) -> None:
    assert (found.dtype, found.shape) == (torch.float32, expected.shape)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (np.abs(found.cpu().numpy() - expected) <= (taps + 1) * 2.0**-24 * magnitudes).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_of_any_weights(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> None:
    weights = np.random.default_rng(1).normal(size=shape[4:]).astype(np.float32)
    region = _region(shape, place, dtype)
    numbers = region.cpu().numpy()
    found = windows.correlate(region, torch.from_numpy(weights).to(place), -3.5)
    _check(found, _sums(numbers, weights) - 3.5, _sums(numbers, np.abs(weights)) + 3.5, weights.size)


@pytest.mark.parametrize("shape", [Shape.FLAT, Shape.TRIANGLE], ids=lambda each: each.name)
def test_whole_weights_bit_for_bit(shape: Shape, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    region, profile = _region((2, 3, 20, 23), place, torch.uint8), Profile(shape)
    found = separable.separable_bytes(region, (9, 5), profile)
    monkeypatch.setattr(triton, "runs_on", lambda device: False)
    assert torch.equal(found, separable.separable_bytes(region, (9, 5), profile))


def test_bells_of_bytes(place: torch.device) -> None:
    region, profile = _region((2, 4, 14, 16), place, torch.uint8), Profile(Shape.BELL, 1.3)
    down, across = (np.exp(-0.5 * (np.arange(-reach, reach + 1) / 1.3) ** 2) for reach in (5, 4))
    expected = _sums(region.cpu().numpy(), np.outer(down / down.sum(), across / across.sum()) / 255.0)
    found = separable.separable_bytes(region, (11, 9), profile)
    _check(found, expected, expected, 24)
