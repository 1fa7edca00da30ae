"""Filters of pictures on Float32 images, destination given (C, macOS 27.0, printed exactly)."""

from __future__ import annotations

from typing import Any

import numpy as np

import openmps as mps
from mac_facts.fact import DEVICE, Fact, encoded, image, row, set_up

SIXTEEN = np.arange(1, 17)
LAPLACIAN = row(3, 2, 1, -5, -4, 0, 0, -9, -8, 0, 0, -13, -29, -18, -19, -37)
COLOURS = np.array([[[0.25, 0.5, 0.75, 0.5], [1.0, 0.0, 2.0, 0.25]]], np.float32)


def _sum(**properties: Any) -> np.ndarray:
    kernel = set_up(mps.MPSImageAdd(DEVICE), **properties)
    return encoded(kernel, image([[1, 2], [3, 4]]), image([[10, 20], [30, 40]]))


def _laplacian(**properties: Any) -> np.ndarray:
    return encoded(set_up(mps.MPSImageLaplacian(DEVICE), **properties), image(SIXTEEN))


def _pyramid_window() -> np.ndarray:
    pyramid = mps.MPSImageGaussianPyramid(DEVICE)
    return row(pyramid.kernel_width, pyramid.kernel_height)


FACTS = [
    Fact("image-add", "a fresh sum", "A", row(11, 22, 33, 44), _sum),
    Fact("image-add-scale", "its primaryScale of 2", "A", row(12, 24, 36, 48), lambda: _sum(primary_scale=2.0)),
    Fact("laplacian", "a fresh Laplacian of 1..16", "A", LAPLACIAN, _laplacian),
    Fact("laplacian-bias", "its bias of 1", "A", LAPLACIAN + 1, lambda: _laplacian(bias=1.0)),
    Fact(
        "conversion",
        "a conversion without info, alpha is one, copies colours",
        "A",
        row(*COLOURS[..., :3].ravel()),
        lambda: encoded(mps.MPSImageConversion(DEVICE), image(COLOURS)).reshape(-1, 4)[:, :3].ravel(),
    ),
    Fact("pyramid-window", "a Gaussian pyramid's window", "A", row(5, 5), _pyramid_window),
]
