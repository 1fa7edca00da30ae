"""Windows much larger than the source are cut to what can be read: to the same bits, and at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from helpers import assert_close, tensor
from in_one_test import in_one_test
from openmps.ops import geometry
from openmps.ops.geometry import Axis, Window
from openmps.ops.normalization import local_normalization as normalization
from openmps.ops.pooling import pooling
from openmps.types import MPSImageEdgeMode
from oracles import finite_difference

ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP
EDGES = [ZERO, CLAMP]


@pytest.fixture(autouse=True)
def _forget_cuts() -> Iterator[None]:
    yield
    Window.cut.cache_clear()


@pytest.fixture
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut whatever can be cut."""
    Window.cut.cache_clear()
    monkeypatch.setattr(geometry, "_FEW", 0)


def random_axis(rng: np.random.Generator, most: int, dilation: int = 1) -> Axis:
    strides = int(rng.choice([1, 4, 60]))
    source, result, size, stride, dilated = (int(rng.integers(1, n + 1)) for n in (6, 5, most, strides, dilation))
    offset = int(rng.integers(-most * dilation, most * dilation + 1) // rng.integers(1, 5))
    return Axis(source, result, size, stride, dilated, offset)


def sides(axis: Axis, index: int) -> tuple[list[int], bool, bool]:
    taps = axis.taps(index)
    inside = [tap for tap in taps if 0 <= tap < axis.source]
    return inside, taps[0] < 0, taps[-1] >= axis.source


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("alike", [False, True])
def test_a_cut_reads_the_same(alike: bool, rng: np.random.Generator) -> None:
    """The same pixels of the source, in order, and something beyond on the same sides, in each window."""
    changed = 0
    for _ in range(5000):
        axis = random_axis(rng, 30, 40)
        cut = axis.cut(alike=alike)
        changed += cut is not axis
        for index in range(axis.result):
            assert sides(cut, index) == sides(axis, index), (axis, cut)
        travel = (axis.result - 1) * min(axis.stride, axis.source + axis.extent)
        if not alike:
            assert cut.read <= 4 * (axis.source + travel + 1)
        elif axis.symmetric_padding(axis.extent // 2) is not None:
            assert cut.symmetric_padding(cut.extent // 2) == -cut.first
    assert changed > 1000


def test_small_windows_stay_as_they_are(rng: np.random.Generator) -> None:
    for _ in range(1000):
        axis = random_axis(rng, 12, 5)
        assert axis.read > 64 or axis.cut() is axis


@pytest.mark.parametrize("edge", EDGES)
def test_how_often_pixels_are_read(edge: MPSImageEdgeMode, device: torch.device, rng: np.random.Generator) -> None:
    like = torch.zeros(1, dtype=torch.float64, device=device)
    for _ in range(500):
        axis = random_axis(rng, 20)
        expected = np.zeros((axis.result, axis.source))
        for index in range(axis.result):
            for tap in axis.taps(index):
                if edge is CLAMP or 0 <= tap < axis.source:
                    expected[index, min(max(tap, 0), axis.source - 1)] += 1
        np.testing.assert_array_equal(axis.reads(edge, like).cpu().numpy(), expected)


# --- pooling ----------------------------------------------------------------------------------------------------------


def results(
    x: torch.Tensor, g: torch.Tensor, window: Window, edge: MPSImageEdgeMode, zero_pad: tuple[int, int]
) -> list[torch.Tensor]:
    """Every pooling of one window and its gradient, but for those that the window is too much for.

    Of integers, each of them is exact but for a last division or root; see `summed` for what is not.
    """
    largest, choice = pooling.max_pooling(x, window, edge)
    found = [
        largest,
        pooling.max_pooling_gradient(g, x, choice, window, edge),
        pooling.max_pooling_gradient(g, x, None, window, edge),
    ]
    if window.dilation == (1, 1):
        found += [
            pooling.average_pooling(x, window, edge, zero_pad),
            pooling.l2_norm_pooling(x, window, edge),
        ]
    return found


def summed(
    x: torch.Tensor, g: torch.Tensor, window: Window, edge: MPSImageEdgeMode, zero_pad: tuple[int, int]
) -> list[torch.Tensor]:
    """The gradients that are sums of rounded terms: quotients, and pixels divided by roots."""
    if window.dilation != (1, 1):
        return []
    return [
        pooling.average_pooling_gradient(g, window, edge, zero_pad),
        pooling.l2_norm_pooling_gradient(g, x, window, edge),
    ]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("dilation", [1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_cut_gives_the_same_bits(
    edge: MPSImageEdgeMode, dilation: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of every placement, some of them placed as libraries place theirs, with what is cut and without."""
    rng = np.random.default_rng(5)
    for number in range(60):
        axes = [random_axis(rng, 120 if dilation == 1 else 30, dilation) for _ in range(2)]
        if number % 3 == 0:  # as with a padding of half a window on both sides
            axes = [Axis(each.source, each.source, 2 * each.size + 1, 1, 1, 0) for each in axes]
        window = Window(*axes)
        # Small integers: however pixels, and copies of the edge, are added up, the sum is exact.
        x = tensor(rng.integers(-8, 9, size=(2, 3, *window.source)), dtype, device, "channels_last")
        g = tensor(rng.integers(-8, 9, size=(2, 3, *window.result)), dtype, device, "channels_last")
        zero_pad = (int(rng.integers(0, 70)), int(rng.integers(0, 3)))
        Window.cut.cache_clear()
        mine = results(x, g, window, edge, zero_pad)
        sums = summed(x, g, window, edge, zero_pad)
        with monkeypatch.context() as patch:
            patch.setattr(Window, "cut", lambda self, *, alike=False: self)
            whole = results(x, g, window, edge, zero_pad)
            others = summed(x, g, window, edge, zero_pad)
            magnitudes = summed(x.abs(), g.abs(), window, edge, zero_pad)
        # A pixel is in each window once at most; and the roundings of a term itself.
        apart = (window.y.result * window.x.result + 4) * torch.finfo(dtype).eps
        for one, other, most in zip(sums, others, magnitudes, strict=True):
            assert ((one - other).abs() <= apart * most).all(), window
        for index, (one, other) in enumerate(zip(mine, whole, strict=True)):
            assert torch.equal(one, other), (index, window)


SIDE = 20_000
HUGE = [(1, 0), (1, 9_000), (10**9, 0), (10**9, -(10**9))]


@in_one_test
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("offset", [0, -1, 3, -3 * 10**9, 10**9])
def test_windows_as_far_apart_as_can_be(edge: MPSImageEdgeMode, offset: int, device: torch.device) -> None:
    """One of them at most reads the source."""
    axis = Axis(4, 4, 3, 10**9, 1, offset)
    values = np.arange(16.0).reshape(1, 1, 4, 4) + 1
    pads = [[min(max(tap, -1), 4) for tap in axis.taps(index)] for index in range(4)]
    padded = np.pad(values, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="constant" if edge is ZERO else "edge")
    windows = np.array([[padded[0, 0][np.ix_(np.add(y, 1), np.add(x, 1))] for x in pads] for y in pads])
    window = Window(axis, axis)
    x = tensor(values, device=device)
    largest = pooling.max_pooling(x, window, edge)[0]
    np.testing.assert_array_equal(largest[0, 0].cpu().numpy(), windows.max((2, 3)))
    assert_close(pooling.l2_norm_pooling(x, window, edge)[0, 0], np.sqrt((windows**2).sum((2, 3))), 1e-12)
    if edge is ZERO:
        assert_close(pooling.average_pooling(x, window, edge)[0, 0], windows.mean((2, 3)), 1e-12)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("dilation", "offset"), HUGE)
def test_the_largest_windows_take_the_largest_of_all(
    edge: MPSImageEdgeMode, dilation: int, offset: int, device: torch.device, rng: np.random.Generator
) -> None:
    """Of every pixel, or of every pixel that a tap meets."""
    values = -1.0 - rng.random((1, 2, 4, 4))
    axis = Axis(4, 4, SIDE if dilation == 1 else 3, 1, dilation, offset)
    found, choice = pooling.max_pooling(tensor(values, device=device), Window(axis, axis), edge)
    expected = np.zeros((1, 2, 4, 4))
    for y in range(4) if edge is CLAMP else ():
        for x in range(4):
            rows, columns = ({min(max(tap, 0), 3) for tap in axis.taps(index)} for index in (y, x))
            expected[:, :, y, x] = values[:, :, sorted(rows)][:, :, :, sorted(columns)].max((2, 3))
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
    gradient = pooling.max_pooling_gradient(torch.ones_like(found), found, choice, Window(axis, axis), edge)
    assert float(gradient.sum()) == (32.0 if edge is CLAMP else 0.0)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_windows_add_up_what_there_is(
    edge: MPSImageEdgeMode, dtype: torch.dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """By how often each pixel is read, in float64."""
    values, slopes = rng.normal(size=(1, 2, 4, 3)), rng.normal(size=(1, 2, 4, 3))
    window = Window(Axis(3, 3, SIDE, offset=100), Axis(4, 4, SIDE - 1))
    x, g = tensor(values, dtype, device), tensor(slopes, dtype, device)
    rows, columns = (np.zeros((axis.result, axis.source)) for axis in (window.y, window.x))
    for counts, axis in ((rows, window.y), (columns, window.x)):
        for index in range(axis.result):
            taps = np.array(axis.taps(index))
            if edge is ZERO:
                taps = taps[(taps >= 0) & (taps < axis.source)]
            np.add.at(counts[index], np.clip(taps, 0, axis.source - 1), 1)
    norm = np.sqrt(np.einsum("yj,xi,ncji->ncyx", rows, columns, values**2))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert_close(pooling.l2_norm_pooling(x, window, edge), norm, tolerance)
    expected = values * np.einsum("yj,xi,ncyx->ncji", rows, columns, slopes / norm)
    assert_close(pooling.l2_norm_pooling_gradient(g, x, window, edge), expected, 10 * tolerance)
    inside, count = values.sum((2, 3), keepdims=True), SIDE * (SIDE - 1) if edge is ZERO else 12
    assert_close(pooling.average_pooling(x, window, edge), np.broadcast_to(inside / count, (1, 2, 4, 3)), tolerance)
    spread = np.broadcast_to(slopes.sum((2, 3), keepdims=True) / count, (1, 2, 4, 3))
    assert_close(pooling.average_pooling_gradient(g, window, edge), spread, tolerance)


# --- normalization ----------------------------------------------------------------------------------------------------

DIVISOR = normalization.Divisor(0.7, 0.6, 1.3)
CONTRAST = normalization.Contrast(0.8, 0.1, 1.2)


def normalized(x: torch.Tensor, g: torch.Tensor, window: Window, edge: MPSImageEdgeMode) -> list[torch.Tensor]:
    return [
        normalization.spatial_normalization(x, window, edge, DIVISOR),
        normalization.spatial_normalization_gradient(g, x, window, edge, DIVISOR),
        normalization.local_contrast_normalization(x, window, edge, DIVISOR, CONTRAST),
        normalization.local_contrast_normalization_gradient(g, x, window, edge, DIVISOR, CONTRAST),
    ]


@pytest.mark.parametrize("edge", EDGES)
def test_normalization_by_counts_is_that_by_pixels(
    edge: MPSImageEdgeMode, device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(100):
        axes = (random_axis(rng, 12) for _ in range(2))
        window = Window(*(Axis(each.source, each.result, each.size, offset=each.offset) for each in axes))
        x, g = (tensor(rng.normal(size=(2, 3, *size)), device=device) for size in (window.source, window.result))
        read = normalized(x, g, window, edge)
        with monkeypatch.context() as patch:
            patch.setattr(normalization, "_MANY", 0)
            for counted, expected in zip(normalized(x, g, window, edge), read, strict=True):
                assert_close(counted, expected, 1e-12)


@pytest.mark.parametrize("edge", EDGES)
def test_the_largest_windows_normalize(edge: MPSImageEdgeMode, device: torch.device, rng: np.random.Generator) -> None:
    """With ZERO nothing but the image counts, and N; the gradients are those of finite differences."""
    values = rng.normal(size=(1, 1, 3, 3)) * (SIDE if edge is ZERO else 1)
    window, taps = Window(Axis(3, 3, SIDE), Axis(3, 3, SIDE)), SIDE * SIDE
    x, g = tensor(values, device=device), tensor(rng.normal(size=(1, 1, 3, 3)), device=device)
    spatial, spatial_gradient, contrast, contrast_gradient = normalized(x, g, window, edge)
    if edge is ZERO:
        base = DIVISOR.delta + DIVISOR.alpha * (values**2).sum() / taps
        assert_close(spatial, values / base**DIVISOR.beta, 1e-12)
        mean = values.sum() / taps
        base = DIVISOR.delta + DIVISOR.alpha * ((values**2).sum() / taps - mean**2)
        expected = CONTRAST.pm + CONTRAST.ps * (values - CONTRAST.p0 * mean) / base**DIVISOR.beta
        assert_close(contrast, expected, 1e-12)
    for index, gradient in ((0, spatial_gradient), (2, contrast_gradient)):

        def loss(at: np.ndarray, index: int = index) -> float:
            return float((normalized(tensor(at, device=device), g, window, edge)[index] * g).sum())

        assert_close(gradient, finite_difference.gradient(loss, values), 1e-5)
