"""How far Gaussians reach (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

import math

from openmps.checks import finite
from openmps.errors import MPSArgumentError

LARGEST_WINDOW = 2**20
"""Weights of a window along an axis: many more than a texture has pixels."""
_REACH = 3.7
"""In sigmas: what lies further out weighs 0.0002 of the whole."""


def gaussian_size(who: str, sigma: float) -> int:
    """Pixels along an axis of the window of a Gaussian.

    Raises:
        MPSArgumentError: ``sigma`` is not positive, not finite, or its window has more than a million pixels.
    """
    found, most = finite(who, "sigma", sigma), LARGEST_WINDOW / 2 / _REACH
    if not 0.0 < found < most:
        raise MPSArgumentError(who, "sigma", f"must be positive and below {most:.0f}", found)
    return 2 * math.ceil(_REACH * found) + 1
