"""Scaling of pictures against float64 loops, Pillow and PyTorch."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import LAYOUTS, TOLERANCE, array, assert_close, tensor
from openmps.ops import geometry
from openmps.ops.resample.image_scale import ScaleFilter, Scaling, scale_image
from openmps.types import MPSImageEdgeMode
from oracles import image_scale as oracle
from oracles.geometry import CLAMP, ZERO, Axis
from pairs import dealt

KINDS = {ScaleFilter.BILINEAR: "bilinear", ScaleFilter.LANCZOS: "lanczos"}
MAPS = [
    # result, scale, translation, offset
    (7, 1.4, 0.0, 0),
    (3, 0.6, 0.0, 0),
    (5, 1.0, 0.0, 0),
    (4, 0.3, 0.7, 1),
    (6, -1.2, 5.5, 0),
    (4, 2.5, -3.25, -2),
    (3, 1.0, 40.0, 0),
    (3, 0.05, 0.0, 0),
    (2, 0.001, 0.0, 0),
    (2, 1e-3, 1e9, 0),
]


def _scaling(source: int, how: tuple[int, float, float, int]) -> Scaling:
    result, scale, translation, offset = how
    return Scaling(geometry.Axis(source, result, offset=offset), scale, translation)


@functools.cache
def _matrix(source: int, how: tuple[int, float, float, int], kind: str, edge: int) -> np.ndarray:
    result, scale, translation, offset = how
    return oracle.axis_matrix(Axis(result, offset=offset), source, scale, translation, kind, edge)


@pytest.mark.parametrize(
    ("shape", "kind", "edge", "dtype"),
    dealt(
        [[(2, 3, 5, 6), (1, 4, 1, 1), (3, 1, 2, 9), (1, 5, 8, 3)], [*KINDS]],
        [[ZERO, CLAMP], [torch.float64, torch.float32]],
    ),
    ids=str,
)
def test_equals_loops(shape, kind, edge: int, dtype, device: torch.device, rng: np.random.Generator) -> None:
    x = rng.normal(size=shape)
    for number, (down, across) in enumerate(itertools.product(MAPS, MAPS[:4])):
        layout = LAYOUTS[number % len(LAYOUTS)]
        rows, columns = _scaling(shape[2], down), _scaling(shape[3], across)
        found = scale_image(tensor(x, dtype, device, layout), rows, columns, kind, MPSImageEdgeMode(edge))
        assert found.dtype == dtype
        matrices = (_matrix(shape[2], down, KINDS[kind], edge), _matrix(shape[3], across, KINDS[kind], edge))
        assert_close(found, oracle.scale(x, *matrices), max(1e-11, TOLERANCE[dtype]), f"{down}, {across}")


def _fitted(source: tuple[int, int], result: tuple[int, int]) -> tuple[Scaling, Scaling]:
    rows, columns = (Scaling(geometry.Axis(n, m), m / n) for n, m in zip(source, result, strict=True))
    return rows, columns


@pytest.mark.parametrize("result", [(5, 7), (40, 31), (20, 20), (3, 50)], ids=str)
def test_lanczos_equals_pillow(result: tuple[int, int], device: torch.device, rng: np.random.Generator) -> None:
    """Pillow leaves pixels outside out of the sum, so it is given an image that has been continued."""
    image = pytest.importorskip("PIL.Image")
    height, width, margin = 20, 24, 30
    x = rng.random(size=(height, width)).astype(np.float32)
    continued = np.pad(x, margin, mode="edge")
    box = (margin, margin, margin + width, margin + height)
    expected = image.fromarray(continued).resize(result[::-1], image.Resampling.LANCZOS, box=box)
    rows, columns = _fitted((height, width), result)
    values = tensor(x[None, None], torch.float32, device)
    found = scale_image(values, rows, columns, ScaleFilter.LANCZOS, MPSImageEdgeMode.CLAMP)
    assert_close(array(found)[0, 0], np.asarray(expected, dtype=np.float64), 2e-6)


@pytest.mark.parametrize("result", [(5, 7), (40, 31), (20, 20), (1, 50)], ids=str)
def test_bilinear_equals_pytorch(result: tuple[int, int], device: torch.device) -> None:
    x = torch.rand(2, 3, 20, 24, dtype=torch.float64, device=device)
    rows, columns = _fitted((20, 24), result)
    expected = functional.interpolate(x, size=result, mode="bilinear", align_corners=False)
    found = scale_image(x, rows, columns, ScaleFilter.BILINEAR, MPSImageEdgeMode.CLAMP)
    assert_close(found, expected, 1e-13)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_even_pictures_stay_even(kind: ScaleFilter, device: torch.device) -> None:
    """The weights add up to 1, at the borders, too."""
    x = torch.full((1, 1, 9, 13), 0.625, dtype=torch.float64, device=device)
    for result in ((3, 5), (9, 13), (31, 40)):
        found = scale_image(x, *_fitted((9, 13), result), kind, MPSImageEdgeMode.CLAMP)
        assert_close(found, np.full((1, 1, *result), 0.625), 1e-14)


def test_no_images(device: torch.device) -> None:
    x = torch.zeros(0, 3, 4, 5, device=device)
    found = scale_image(x, *_fitted((4, 5), (2, 9)), ScaleFilter.LANCZOS, MPSImageEdgeMode.ZERO)
    assert found.shape == (0, 3, 2, 9)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("scale", [0.3, 1.7, -0.8])
def test_the_region_told_is_the_region_read(kind: ScaleFilter, scale: float, device: torch.device) -> None:
    """Pixels outside of it change nothing, and it is no larger than what is looked at."""
    axis = Scaling(geometry.Axis(200, 6, offset=3), scale, 0.37 - 100 * scale)
    begin, end = (int(side) for side in axis.region(kind))
    one = Scaling(geometry.Axis(1, 1), 1.0)
    x = torch.zeros(1, 1, 1, 200, dtype=torch.float64, device=device)
    x[..., :begin] = float("nan")
    x[..., end:] = float("nan")
    taps = axis.taps(kind, MPSImageEdgeMode.CLAMP, x)
    read = sorted(set(taps.index.flatten().tolist()))
    assert read[0] <= begin
    assert read[-1] >= end - 1
    found = scale_image(x.nan_to_num(1e9), one, axis, kind, MPSImageEdgeMode.CLAMP)
    assert float(found.abs().max()) == 0.0
