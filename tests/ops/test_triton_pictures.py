"""Regions with repeated edges, bytes, their counts, and colours, in Triton as without: on CUDA, or interpreted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.elements import Widen
from openmps.ops.geometry import Axis, Window, read
from openmps.ops.image import colour
from openmps.ops.image.integral import integral
from openmps.ops.image.statistics import byte_counts, mean_and_variance
from openmps.types import MPSAlphaType, MPSImageEdgeMode


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Tensor]], Tensor]:
    """What is made with Triton, which is what is made without."""

    def compare(make: Callable[[], Tensor]) -> Tensor:
        found = []
        for runs in (True, False):
            monkeypatch.setattr(triton, "runs_on", lambda device, runs=runs: runs)
            found.append(make())
        assert (found[0].dtype, found[0].shape) == (found[1].dtype, found[1].shape)
        assert torch.equal(*found)
        return found[0]

    return compare


def _image(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device) -> Tensor:
    images, channels, height, width = shape
    drawn = np.random.default_rng(0).integers(0, 256, (images, height, width, channels))
    return torch.from_numpy(drawn).to(place, dtype).permute(0, 3, 1, 2)


@pytest.mark.parametrize("offset", [-3, 0, 4, 30], ids=str)
@pytest.mark.parametrize(
    ("channels", "dtype"), [(4, torch.uint8), (2, torch.float16), (3, torch.float32), (1, torch.float64)], ids=str
)
def test_edges_are_repeated(
    channels: int, dtype: torch.dtype, offset: int, place: torch.device, both: Callable
) -> None:
    """By whole pixels of four bytes, and by numbers; on both sides, one side, and wholly outside."""
    x = _image((2, channels, 5, 6), dtype, place)
    window = Window(Axis(6, 8, 3, offset=offset), Axis(5, 4, 5, offset=2 - offset))
    found = both(lambda: read(x, window, MPSImageEdgeMode.CLAMP))
    assert found.is_contiguous(memory_format=torch.channels_last)
    rows, columns = (np.clip(np.arange(each.read) + each.first, 0, each.source - 1) for each in (window.y, window.x))
    np.testing.assert_array_equal(found.cpu().numpy(), x.cpu().numpy()[:, :, rows][..., columns])


def test_bytes_as_numbers(place: torch.device, both: Callable) -> None:
    stored = _image((2, 3, 20, 20), torch.uint8, place)
    found = both(lambda: Widen().run((True,), stored))
    np.testing.assert_array_equal(found.cpu().numpy(), stored.cpu().numpy().astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 4, 120, 150), (1, 1, 3, 5)], ids=str)
def test_counts_of_bytes(shape: tuple[int, ...], place: torch.device, both: Callable) -> None:
    """Of more pixels than a program counts, and of fewer than a block."""
    x = _image(shape, torch.uint8, place)
    count = min(3, shape[1])
    found = both(lambda: byte_counts(x, count)).cpu().numpy()
    for channel in range(count):
        np.testing.assert_array_equal(found[channel], np.bincount(x.cpu().numpy()[:, channel].ravel(), minlength=256))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_gray_values(channels: int, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    x = _image((2, channels, 30, 20), torch.float32, place)
    weights = 0.3, -0.6, 0.1
    numbers = x.cpu().double().numpy()
    terms = [numbers[:, each : each + 1] * weights[each] for each in range(min(channels, 3))]
    apart = np.abs(colour.gray(x, weights).cpu().numpy() - sum(terms))
    assert (apart <= 4 * 2.0**-24 * sum(map(np.abs, terms))).all()


def test_colours_times_alpha(place: torch.device, both: Callable) -> None:
    x = _image((2, 4, 30, 20), torch.float32, place) / 255.0
    kinds = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.PREMULTIPLIED
    found = both(lambda: colour.convert_alpha(x, *kinds, (0.0, 0.0, 0.0))).cpu().numpy()
    numbers = x.cpu().numpy()
    np.testing.assert_array_equal(found, np.concatenate([numbers[:, :3] * numbers[:, 3:], numbers[:, 3:]], 1))


@pytest.mark.parametrize("is_squared", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 20, 17), (1, 1, 300, 2)], ids=str)
def test_sums_of_rectangles(
    shape: tuple[int, ...], is_squared: bool, place: torch.device, both: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bands of few rows, and of as many as make few bands."""
    kernels = import_module("openmps.ops.triton.image.integral")
    monkeypatch.setattr(kernels, "_MOST_BANDS", 20)
    x = _image(shape, torch.float32, place)
    found = both(lambda: integral(x, is_squared)).cpu().numpy()
    numbers = x.cpu().numpy().astype(np.float64) ** (1 + is_squared)
    np.testing.assert_array_equal(found, numbers.cumsum(2).cumsum(3).astype(np.float32))


@pytest.mark.parametrize("images", [1, 2])
def test_mean_and_variance_of_bytes(images: int, place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "runs_on", lambda device: True)
    x = _image((images, 3, 20, 17), torch.uint8, place)
    for is_sample in (False, True):
        found, numbers = mean_and_variance(x, is_sample).cpu().numpy(), x.cpu().numpy() / 255.0
        expected = np.stack([numbers.mean((2, 3)), numbers.var((2, 3), ddof=int(is_sample))], 2)
        np.testing.assert_allclose(found[:, :, 0], expected, rtol=2.0**-23)
