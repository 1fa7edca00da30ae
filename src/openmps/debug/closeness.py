"""What tests of a network compare images with; fixtures for pytest are in ``openmps.pytest_plugin``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite
from openmps.core.arrays import real_numbers
from openmps.debug.comparing import magnitude, relative_errors
from openmps.errors import MPSArgumentError
from openmps.tables import short, table

_WHO = "openmps.debug.assert_images_close"
_RULE = "must be an image, a batch of images or an array of numbers"
_HEADINGS = ("numbers", "error", "at most", "")


def assert_images_close(found: Any, expected: Any, at_most: float | Mapping[float, float]) -> None:
    """Fail unless images are close, by percentiles of their errors. Our addition.

    Images, batches of them, arrays and tensors are compared number by number; shapes must be the same. An error is
    ``|found - expected|`` over the largest magnitude of either, as `openmps.debug.compare` has it; where one of two
    numbers is not finite and the other is something else, it is infinite. ``at_most`` is the largest error allowed, or
    one for each of some percentiles: with ``{99: 1e-3, 100: 1e-2}`` 99 of 100 numbers may err by 0.001 and none by
    more than 0.01. Without 100 the largest error is not looked at, which may then even be infinite.

    Raises:
        AssertionError: They are not close, or have other shapes. It has a table of the percentiles and names the place
            of the largest error.
        MPSTypeError: One of them is no image and no array of numbers.
        MPSError: One of them is an image that cannot be read, as `MPSImage.numpy` says it.
        MPSArgumentError: A percentile is not within 0 to 100, an error is negative, or there is none.
    """
    __tracebackhide__ = True  # pytest shows the caller's line, and not these
    limits = _limits(at_most)
    mine = real_numbers(_WHO, "found", found, _RULE)
    theirs = real_numbers(_WHO, "expected", expected, _RULE)
    if mine.shape != theirs.shape:
        raise AssertionError(f"images must have the shape {theirs.shape}, got {mine.shape}")
    errors = relative_errors(mine, theirs)
    percentiles = [float(each) for each in np.percentile(errors, list(limits), method="higher")]
    if any(error > most for error, most in zip(percentiles, limits.values(), strict=True)):
        raise AssertionError(_report(mine, theirs, errors, dict(zip(limits, percentiles, strict=True)), limits))


def _limits(at_most: float | Mapping[float, float]) -> dict[float, float]:
    """The largest error allowed for each percentile, in rising order."""
    given = at_most if isinstance(at_most, Mapping) else {100.0: at_most}
    found = {finite(_WHO, "at_most", key): finite(_WHO, f"at_most[{key}]", most) for key, most in given.items()}
    if not found:
        raise MPSArgumentError(_WHO, "at_most", "must name a percentile", "an empty mapping", "Write {100: 1e-3}")
    for percentile, most in found.items():
        if not 0 <= percentile <= 100:
            raise MPSArgumentError(_WHO, "at_most", "must be errors by percentiles from 0 to 100", percentile)
        if most < 0:
            raise MPSArgumentError(_WHO, f"at_most[{percentile:g}]", "must be 0 or more", most)
    return dict(sorted(found.items()))


def _report(
    found: NDArray[Any],
    expected: NDArray[Any],
    errors: NDArray[np.float64],
    percentiles: Mapping[float, float],
    limits: Mapping[float, float],
) -> str:
    rows = [
        (f"{key:g} %", f"{error:.1e}", f"{limits[key]:.1e}", "too much" if error > limits[key] else "")
        for key, error in percentiles.items()
    ]
    place = tuple(int(each) for each in np.unravel_index(int(errors.argmax()), found.shape))
    scale = max(magnitude(found), magnitude(expected))
    return "\n".join(
        [
            f"images of shape {found.shape} differ; errors are shares of {short(scale)}, the largest magnitude:",
            table(_HEADINGS, rows, (True, True, True, False)),
            f"the largest is at {list(place)}: {short(found[place])}, expected {short(expected[place])}",
        ]
    )
