"""Enlarging, resizing and regions against exact loops, PyTorch, printed numbers; gradients as adjoints."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, inner, tensor
from in_one_test import in_one_test
from openmps.ops.geometry import Axis as GeometryAxis
from openmps.ops.geometry import Window
from openmps.ops.resample import aligned_interpolation
from openmps.ops.resample import resample as ops
from openmps.ops.resample.stretch import Stretch
from openmps.types import MPSImageEdgeMode
from oracles import resample as oracle
from oracles.geometry import CLAMP, ZERO, Axis
from pairs import dealt
from placements import window

DTYPES = [torch.float64, torch.float32]
SHAPES = [(2, 4, 3, 5), (1, 3, 1, 1), (3, 1, 4, 1), (1, 5, 2, 6), (0, 4, 3, 2)]
PLACES = [(0, 0), (1, -1), (-2, 3), (-20, 0), (0, 30)]
"""Offsets of rows and columns."""


@pytest.fixture(params=["PyTorch's kernels", "taps"])
def _either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of interpolation."""
    if request.param == "taps":
        monkeypatch.setattr(aligned_interpolation, "takes", lambda *_: False)


def _axes(shape, factors, offsets, spare: int) -> tuple[Axis, Axis]:
    """Whole results, or `spare` pixels less."""
    heights = [max(1, n * f - spare) for n, f in zip(shape[2:], factors, strict=True)]
    return Axis(heights[0], offset=offsets[0]), Axis(heights[1], offset=offsets[1])


def _stretches(shape, rows: Axis, columns: Axis, whole, align: bool) -> tuple[Stretch, Stretch]:
    place = window(rows, columns, shape[2], shape[3])
    return Stretch.to(place.y, whole[0], align), Stretch.to(place.x, whole[1], align)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_enlarging_equals_loops(shape, edge: int, dtype, device: torch.device, rng: np.random.Generator) -> None:
    x, mode = rng.normal(size=shape), MPSImageEdgeMode(edge)
    for number, (factors, offsets, spare) in enumerate(
        itertools.product([(1, 1), (2, 2), (3, 1), (1, 4)], PLACES, [0, 1, 3])
    ):
        rows, columns = _axes(shape, factors, offsets, spare)
        place, layout = window(rows, columns, shape[2], shape[3]), LAYOUTS[number % len(LAYOUTS)]
        matrices = oracle.nearest(shape, rows, columns, factors, edge)
        what = f"{factors} at {offsets}, {spare} less"
        found = ops.enlarge(tensor(x, dtype, device, layout), place, factors, mode)
        assert found.dtype == dtype
        assert_close(found, oracle.apply(x, *matrices), 0.0 if dtype == torch.float64 else 1e-6, what)
        g = rng.normal(size=tuple(found.shape))
        back = ops.enlarge_gradient(tensor(g, dtype, device, layout), place, factors, mode)
        assert_close(back, oracle.apply_adjoint(g, *matrices), TOLERANCE[dtype], f"gradient, {what}")


@in_one_test
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factors", [(2, 2), (1, 4), (8, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("spare", [0, 1])
def test_enlarging_by_torch_equals_copies(
    factors: tuple[int, int],
    spare: int,
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = tensor(rng.normal(size=(2, 5, 37, 51)), dtype, device, "channels_last")
    axes = [GeometryAxis(side, side * factor - spare) for side, factor in zip((51, 37), factors[::-1], strict=True)]
    if device.type == "cpu":
        assert ops._is_enlarged_by_torch(x, factors) == (factors != (3, 2))
    found = ops.enlarge(x, Window(*axes), factors, MPSImageEdgeMode.ZERO)
    monkeypatch.setattr(ops, "_is_enlarged_by_torch", lambda *_: False)
    wanted = ops.enlarge(x, Window(*axes), factors, MPSImageEdgeMode.ZERO)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize(
    ("shape", "edge", "align", "dtype"), dealt([SHAPES, [ZERO, CLAMP], [False, True]], [DTYPES]), ids=str
)
def test_interpolation_equals_loops(
    shape, edge: int, align: bool, dtype, device: torch.device, rng: np.random.Generator
) -> None:
    """By whole factors and by any ratio, larger and smaller, inside and outside."""
    x, mode = rng.normal(size=shape), MPSImageEdgeMode(edge)
    wholes = [(2 * shape[2], 3 * shape[3]), (shape[2], shape[3]), (7, 4), (1, 5), (2, 1)]
    for number, (whole, offsets, spare) in enumerate(itertools.product(wholes, PLACES, [0, 1, 3])):
        rows = Axis(max(1, whole[0] - spare), offset=offsets[0])
        columns = Axis(max(1, whole[1] - spare), offset=offsets[1])
        matrices = oracle.linear(shape, rows, columns, whole, align, edge)
        stretches, layout = _stretches(shape, rows, columns, whole, align), LAYOUTS[number % len(LAYOUTS)]
        what = f"{whole} at {offsets}, {spare} less"
        found = ops.interpolate(tensor(x, dtype, device, layout), *stretches, mode)
        assert found.dtype == dtype
        assert_close(found, oracle.apply(x, *matrices), TOLERANCE[dtype], what)
        g = rng.normal(size=tuple(found.shape))
        back = ops.interpolate_gradient(tensor(g, dtype, device, layout), *stretches, mode)
        assert_close(back, oracle.apply_adjoint(g, *matrices), TOLERANCE[dtype], f"gradient, {what}")


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_adjoint_identity(edge: int, align: bool, device: torch.device, rng: np.random.Generator) -> None:
    mode, shape = MPSImageEdgeMode(edge), (2, 3, 4, 5)
    x = rng.normal(size=shape)
    for offsets in PLACES:
        rows, columns = _axes(shape, (3, 2), offsets, 1)
        stretches = _stretches(shape, rows, columns, (12, 10), align)
        y = ops.interpolate(tensor(x, device=device), *stretches, mode)
        g = rng.normal(size=tuple(y.shape))
        back = ops.interpolate_gradient(tensor(g, device=device), *stretches, mode)
        assert abs(inner(y, g) - inner(back, x)) <= 1e-11 * float(np.abs(g).sum())


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("size", [(3, 5), (6, 10), (7, 4), (1, 1), (2, 9)])
def test_aligned_corners_equal_pytorch(size: tuple[int, int], device: torch.device) -> None:
    x = torch.rand(2, 3, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    rows, columns = Axis(size[0]), Axis(size[1])
    stretches = _stretches(x.shape, rows, columns, size, True)
    expected = functional.interpolate(x, size=size, mode="bilinear", align_corners=True)
    assert_close(ops.interpolate(x.detach(), *stretches, MPSImageEdgeMode.ZERO), expected, 1e-13)
    g = torch.rand_like(expected)
    expected.backward(g)
    assert_close(ops.interpolate_gradient(g, *stretches, MPSImageEdgeMode.ZERO), x.grad, 1e-13)


def test_enlarging_equals_pytorch(device: torch.device) -> None:
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    place = window(Axis(8), Axis(15), 4, 5)
    expected = functional.interpolate(x, scale_factor=(2, 3), mode="nearest")
    assert_close(ops.enlarge(x.detach(), place, (2, 3), MPSImageEdgeMode.ZERO), expected, 0.0)
    g = torch.rand_like(expected)
    expected.backward(g)
    assert_close(ops.enlarge_gradient(g, place, (2, 3), MPSImageEdgeMode.ZERO), x.grad, 1e-13)


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize(
    ("align", "expected", "of_ones"),
    [(False, [0, 5, 10, 15, 20, 20], [1.5, 2, 2.5]), (True, [0, 4, 8, 12, 16, 20], [1.8, 2.4, 1.8])],
)
def test_printed_numbers(align: bool, expected: list[float], of_ones: list[float], device: torch.device) -> None:
    stretches = _stretches((1, 1, 1, 3), Axis(1), Axis(6), (1, 6), align)
    x = tensor([[[[0.0, 10.0, 20.0]]]], device=device)
    assert_digits(ops.interpolate(x, *stretches, MPSImageEdgeMode.ZERO), expected, 12)
    ones = torch.ones(1, 1, 1, 6, dtype=torch.float64, device=device)
    assert_digits(ops.interpolate_gradient(ones, *stretches, MPSImageEdgeMode.ZERO), of_ones, 12)


def test_whole_factors_and_taps_agree(
    device: torch.device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's kernels, the results of one phase at once, and gathering pixel by pixel."""
    x = tensor(rng.normal(size=(2, 3, 5, 6)), device=device)
    for offsets, spare in itertools.product([(0, 0), (1, 2)], [0, 1, 2, 5]):
        rows = Axis(15 - 3 * offsets[0] - spare, offset=offsets[0])
        columns = Axis(24 - 4 * offsets[1] - spare, offset=offsets[1])
        stretches = _stretches(x.shape, rows, columns, (15, 24), False)
        assert all(stretch.has_phases for stretch in stretches)
        y = ops.interpolate(x, *stretches, MPSImageEdgeMode.ZERO)
        g = torch.rand_like(y)
        back = ops.interpolate_gradient(g, *stretches, MPSImageEdgeMode.ZERO)
        with monkeypatch.context() as patch:
            patch.setattr(aligned_interpolation, "takes", lambda *_: False)
            assert_close(ops.interpolate(x, *stretches, MPSImageEdgeMode.ZERO), y, 1e-14)
            assert_close(ops.interpolate_gradient(g, *stretches, MPSImageEdgeMode.ZERO), back, 1e-14)
            patch.setattr(Stretch, "has_phases", False)
            assert_close(ops.interpolate(x, *stretches, MPSImageEdgeMode.ZERO), y, 1e-14)
            assert_close(ops.interpolate_gradient(g, *stretches, MPSImageEdgeMode.ZERO), back, 1e-14)


@pytest.mark.usefixtures("_either")
def test_large_images_keep_their_precision(device: torch.device, rng: np.random.Generator) -> None:
    """Positions are exact: in float32 those of column 4000 would be off by ten thousandths of a pixel."""
    shape = (1, 1, 1, 4000)
    x = rng.normal(size=shape)
    stretches = _stretches(shape, Axis(1), Axis(6007), (1, 6007), True)
    found = ops.interpolate(tensor(x, torch.float32, device), *stretches, MPSImageEdgeMode.ZERO)
    where = np.arange(6007) * 3999 / 6006
    assert_close(array(found).ravel(), np.interp(where, np.arange(4000), x.ravel()), 1e-6)


def test_pytorchs_kernels_take_positions_that_float32_tells() -> None:
    """And none that read before the first pixel or beyond the one behind the last."""
    x = torch.zeros(1, 1, 1, 1)

    def takes(source: int, result: int, whole: int, *, align: bool, offset: int = 0) -> bool:
        axis = window(Axis(1), Axis(result, offset=offset), 1, source).x
        stretch = Stretch.to(axis, whole, align)
        return aligned_interpolation.takes(x, Stretch.to(window(Axis(1), Axis(1), 1, 1).y, 1, align), stretch)

    assert takes(56, 112, 112, align=True)
    assert takes(4000, 8000, 8000, align=False)
    assert not takes(4000, 6007, 6007, align=True)
    assert takes(10, 18, 20, align=False, offset=1)
    assert not takes(10, 20, 20, align=False, offset=1)
    assert not takes(10, 20, 20, align=False, offset=-1)


# --- regions ---------------------------------------------------------------------------------------------------------

REGIONS = [
    [0.0, 0.0, 1.0, 1.0],
    [0.2, 0.1, 0.5, 0.7],
    [1.0, 0.9, -1.0, -0.5],
    [-0.5, 0.3, 2.0, 0.4],
    [0.5, 0.5, 0.0, 0.0],
    [0.3, 0.7, 0.7, 0.3],
]


@in_one_test
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(4, 3), (1, 5), (6, 1), (2, 2)])
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_regions_equal_loops(shape, size, dtype, device: torch.device, rng: np.random.Generator) -> None:
    x, regions = rng.normal(size=shape), tensor(REGIONS, device=device)
    for layout, (y, u), spare in itertools.product(LAYOUTS, [(0, 0), (1, -1)], [0, 1]):
        rows, columns = Axis(max(1, size[0] - spare), offset=y), Axis(max(1, size[1] - spare), offset=u)
        place = window(rows, columns, shape[2], shape[3])
        found = ops.crop_and_resize(tensor(x, dtype, device, layout), regions, size, place)
        assert found.dtype == dtype
        assert_close(found, oracle.crop_and_resize(x, REGIONS, size, rows, columns), TOLERANCE[dtype])


def test_the_whole_region_is_the_image_with_aligned_corners(device: torch.device) -> None:
    x = torch.rand(2, 3, 5, 4, dtype=torch.float64, device=device)
    whole = tensor([[0.0, 0.0, 1.0, 1.0]], device=device)
    found = ops.crop_and_resize(x, whole, (7, 9), window(Axis(7), Axis(9), 5, 4))
    assert_close(found, functional.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True), 1e-13)


def test_regions_up_to_the_last_pixel_lose_none_by_rounding(device: torch.device) -> None:
    """0.1 + 0.9 and the like are not 1 in binary: the last pixel is still inside."""
    x = torch.ones(1, 1, 100, 100, dtype=torch.float64, device=device)
    regions = tensor([[a / 10, a / 10, 1.0 - a / 10, 1.0 - a / 10] for a in range(10)], device=device)
    found = ops.crop_and_resize(x, regions, (11, 11), window(Axis(11), Axis(11), 100, 100))
    assert_close(found, torch.ones_like(found), 1e-13)


@pytest.mark.parametrize("poison", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_rows_of_a_table_and_taps_agree(edge: int, poison: float, rng: np.random.Generator) -> None:
    """Numbers that are not finite, too, and places where nothing is read."""
    values = rng.normal(size=(2, 3, 4, 5))
    values[0, :, 0, 0] = poison
    x = tensor(values, torch.float32)
    rows, columns = (torch.from_numpy(rng.uniform(-2.0, 6.0, (2, 2, 7, 3))) for _ in range(2))
    rows[0, 0, 0, 0] = np.nan
    expected = array(ops._sample_by_taps(x, rows, columns, MPSImageEdgeMode(edge)))
    found = array(ops.sample(x, rows, columns, MPSImageEdgeMode(edge)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
