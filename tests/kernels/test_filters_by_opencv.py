"""Filters of pictures beside OpenCV, on the cases that the benchmark measures, where OpenCV is installed.

Many filters are OpenCV's own functions then, but with other steps or borders than the calls here. Known differences:
OpenCV rounds bytes in fixed point, continues pictures by their mirror image unless told otherwise,
and its Canny finds directions in whole numbers. Borders are the same in these cases; the rest `Case.apart` allows.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.filter_cases import CASES, INFO, RGBA8, Case, noisy
from bench.image_filters import Pair, far_apart

import openmps as mps
from in_one_test import in_one_test

CPU = mps.mtl_device("cpu")


@pytest.fixture(scope="module")
def cv2() -> Any:
    return pytest.importorskip("cv2", reason="OpenCV, of the extra 'filters', is not installed")


@in_one_test
@pytest.mark.parametrize("case", [case for case in CASES if case.apart < math.inf], ids=lambda case: case.name)
def test_opencv_makes_the_same_picture(case: Case, cv2: Any) -> None:
    """Of an uneven size, in which a filter of rows runs in several bands."""
    pair = Pair(case, CPU, cv2, 203, 331)
    found, expected = pair.results()
    assert far_apart(case, found, expected) <= case.few


def test_opencv_counts_the_same(cv2: Any) -> None:
    picture, device = noisy(53, 41, RGBA8), CPU
    counts = device.new_buffer(length=4 * 256 * 3)
    command_buffer = device.new_command_queue().command_buffer()
    mps.MPSImageHistogram(device, INFO).encode(command_buffer, mps.MPSImage.from_numpy(device, picture), counts, 0)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    expected = [cv2.calcHist([picture], [channel], None, [256], [0, 256]).ravel() for channel in range(3)]
    np.testing.assert_array_equal(counts.contents().view(np.uint32).reshape(3, 256), expected)
