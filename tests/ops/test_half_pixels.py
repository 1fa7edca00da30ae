"""Enlarging between centres of square pixels, against a matrix for each axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from openmps.ops.geometry import Axis
from openmps.ops.resample.half_pixels import interpolate_halves, interpolate_halves_gradient
from openmps.ops.resample.image_scale import Scaling


def _matrix(source: int, result: int, factor: int, offset: int) -> np.ndarray:
    """The weights of each result pixel."""
    found = np.zeros((result, source))
    for i in range(result):
        place = (i + 0.5) / factor - 0.5 + offset
        low = math.floor(place)
        for pixel, weight in ((low, 1 - (place - low)), (low + 1, place - low)):
            found[i, min(max(pixel, 0), source - 1)] += weight
    return found


@pytest.mark.parametrize(("factors", "offsets"), [((2, 3), (0, 0)), ((1, 4), (1, -1)), ((5, 2), (-2, 3))])
def test_halves(factors: tuple[int, int], offsets: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    sizes, results = (3, 4), (7, 9)
    down, across = (_matrix(*each) for each in zip(sizes, results, factors, offsets, strict=True))
    rows, columns = (
        Scaling(Axis(source, result, offset=offset), float(factor))
        for source, result, factor, offset in zip(sizes, results, factors, offsets, strict=True)
    )
    x, g = rng.normal(size=(2, 3, *sizes)), rng.normal(size=(2, 3, *results))
    found = interpolate_halves(torch.from_numpy(x), rows, columns).numpy()
    np.testing.assert_allclose(found, down @ x @ across.T, atol=1e-12)
    back = interpolate_halves_gradient(torch.from_numpy(g), rows, columns).numpy()
    np.testing.assert_allclose(back, down.T @ g @ across, atol=1e-12)
