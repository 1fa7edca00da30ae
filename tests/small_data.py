"""Images of 4 x 4 pixels of two classes, for runs of a second."""

from __future__ import annotations

import numpy as np

from openmps.training.dataset import Dataset


def stripes(count: int) -> Dataset:
    """Rows of stripes, and noise."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(count).integers(0, 55, (count, 4, 4, 1))
    images[labels == 0, ::2] += 200
    return Dataset(images.astype(np.uint8), labels, ("rows", "noise"), "stripes")


def rows_and_columns(count: int, name: str = "stripes") -> Dataset:
    """Horizontal and vertical stripes with noise."""
    labels = np.arange(count) % 2
    plain = np.zeros((2, 4, 4, 1))
    plain[0, ::2], plain[1, :, ::2] = 200, 200
    images = plain[labels] + np.random.default_rng(count).integers(0, 55, (count, 4, 4, 1))
    return Dataset(images.astype(np.uint8), labels, ("rows", "columns"), name)


def noise(count: int) -> Dataset:
    """Noise in both classes: there is nothing to learn."""
    images = np.random.default_rng(count).integers(0, 255, (count, 4, 4, 1)).astype(np.uint8)
    return Dataset(images, np.arange(count) % 2, ("even", "odd"), "noise")
