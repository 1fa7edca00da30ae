"""Filters of windows and of two pictures by compiled loops, where Numba is installed: the numbers of our own forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, FLOAT32, UNORM8
from filter_twins import BENCH, CPU, EDGES, compare, encoded, loops_of_any_picture, own_forms
from in_one_test import in_one_test
from openmps.kernels.image_filters import arithmetic, blur, convolution
from openmps.kernels.image_filters.convolution import MPSImageSobel
from openmps.kernels.image_filters.morphology import MPSImageAreaMax, MPSImageAreaMin
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from pairs import pairs

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

FORMATS = UNORM8, FLOAT16, FLOAT32
SIZES = [(1, 1), (1, 30), (31, 1), (2, 3), (33, 65)]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    yield from loops_of_any_picture(monkeypatch)


def picture(channels: int, size: tuple[int, int], stored_as: Format, *numbers: float) -> Any:
    """Noise with some of the numbers in it, negative ones where the format has them."""
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 256, (2, channels, *size)) / 255.0
    if stored_as is not UNORM8:
        x -= 0.5
    if numbers and stored_as is not UNORM8:
        where = rng.integers(0, x.size, max(2, x.size // 60))
        x.reshape(-1)[where] = rng.choice(numbers, len(where))
    return BENCH.image(x, stored_as)


def makes(kernel: Any, image: Any, shape: tuple[int, ...]) -> Callable[[Format], np.ndarray]:
    return lambda stored: encoded(kernel, [image], BENCH.filled(shape, 0.5, stored))


def moved(kernel: Any, edge: MPSImageEdgeMode) -> Any:
    """Of a part of the result, from another place, some of which lies beyond the source."""
    other = kernel.copy()
    other.edge_mode, other.offset = edge, MPSOffset(-3, 5, 0)
    other.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(29, 17, 2))
    return other


@in_one_test
@pytest.mark.parametrize(
    ("kind", "stored_as", "channels", "window", "size", "edge"),
    pairs(
        (MPSImageAreaMax, MPSImageAreaMin),
        FORMATS,
        (1, 2, 3, 4),
        [(1, 1), (3, 3), (5, 1), (1, 7), (9, 5), (63, 13)],
        SIZES,
        EDGES,
    ),
)
def test_extremes(
    kind: Any, stored_as: Format, channels: int, window: tuple[int, int], size: tuple[int, int],
    edge: MPSImageEdgeMode, runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    """To the bit; NaN wins."""
    kernel = kind(CPU, *window)
    image = picture(channels, size, stored_as, math.nan, math.inf, -math.inf, 0.0, 1.0)
    for each in (kernel, moved(kernel, edge)):
        runs.clear()
        found = makes(each, image, (2, channels, *size))(stored_as)
        assert runs
        with own_forms():
            np.testing.assert_array_equal(found, makes(each, image, (2, channels, *size))(stored_as))


@in_one_test
@pytest.mark.parametrize(
    ("source", "result", "channels", "made", "size", "edge"),
    pairs(FORMATS, FORMATS, (1, 2, 3, 4), (1, 2, 3, 4), SIZES, EDGES),
)
def test_sobel(
    source: Format, result: Format, channels: int, made: int, size: tuple[int, int], edge: MPSImageEdgeMode,
    runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    """Of channels, and of gray values where one is made of several."""
    kernel = MPSImageSobel(CPU, (0.2, -0.1, 0.8))
    kernel.edge_mode = edge
    image = picture(channels, size, source)
    for each in (kernel, moved(kernel, edge)):
        runs.clear()
        compare(makes(each, image, (2, made, *size)), result)
        assert runs or made not in (1, channels)


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # of our own form: NumPy tells of infinity - infinity
@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda each: each.name)
@pytest.mark.parametrize("made", [1, 3])
@pytest.mark.parametrize("numbers", [(math.nan,), (math.inf, -math.inf), (math.inf, math.nan), (1e4, -6e4)], ids=str)
@pytest.mark.parametrize("stored_as", [FLOAT16, FLOAT32], ids=lambda each: each.name)
def test_sobel_of_numbers_that_are_none(
    stored_as: Format, numbers: tuple[float, ...], made: int, edge: MPSImageEdgeMode
) -> None:
    kernel = MPSImageSobel(CPU)
    kernel.edge_mode = edge
    for channels in (made, 3):
        image = picture(channels, (40, 43), stored_as, *numbers)
        compare(makes(kernel, image, (2, made, 40, 43)), stored_as)


WEIGHTS = np.random.default_rng(2).normal(0.0, 0.3, (3, 3)).astype(np.float32)
CROSS = np.array([[0, 1, 0], [2, -4, 1], [0, 0.5, 0]], np.float32)
SUMS: list[Callable[[], Any]] = [
    lambda: blur.MPSImageGaussianBlur(CPU, 1.7),
    lambda: blur.MPSImageTent(CPU, 5, 9),
    lambda: blur.MPSImageBox(CPU, 5, 1),
    lambda: convolution.MPSImageConvolution(CPU, 3, 3, WEIGHTS),
    lambda: convolution.MPSImageConvolution(CPU, 3, 3, CROSS),
    lambda: convolution.MPSImageConvolution(CPU, 3, 1, WEIGHTS[0]),
]


@in_one_test
@pytest.mark.parametrize(
    ("make", "source", "result", "channels", "size", "edge"),
    pairs(SUMS, FORMATS, FORMATS, (1, 2, 3, 4, 6), SIZES, EDGES),
)
def test_sums_of_windows(
    make: Callable[[], Any], source: Format, result: Format, channels: int, size: tuple[int, int],
    edge: MPSImageEdgeMode, runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    kernel, image = make(), picture(channels, size, source)
    kernel.edge_mode = edge
    for each in (kernel, moved(kernel, edge)):
        runs.clear()
        compare(makes(each, image, (2, channels, *size)), result)
        # Windows that reach far beyond a picture are left to PyTorch, flat ones to OpenCV where it takes the formats.
        assert runs or min(size) < 33 or (isinstance(kernel, blur.MPSImageBox) and FLOAT16 not in (source, result))


@in_one_test
@pytest.mark.parametrize(
    ("name", "source", "result", "channels", "limits", "is_moved"),
    pairs(("Add", "Subtract", "Multiply", "Divide"), FORMATS, FORMATS, (1, 3, 4), [None, (0.1, 0.7)], [False, True]),
)
def test_arithmetic(
    name: str, source: Format, result: Format, channels: int, limits: tuple[float, float] | None, is_moved: bool,
    runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    kernel = getattr(arithmetic, f"MPSImage{name}")(CPU)
    kernel.primary_scale, kernel.secondary_scale, kernel.bias = 0.5, 1.5, 0.1
    if limits is not None:
        kernel.minimum_value, kernel.maximum_value = limits
    if is_moved:
        kernel.primary_offset, kernel.secondary_offset = MPSOffset(-3, 5, 0), MPSOffset(4, 0, 0)
    images = [picture(channels, (33, 65), source, *each) for each in ((math.inf, 0.0), (0.0, math.nan, -0.0))]
    runs.clear()
    compare(lambda stored: encoded(kernel, images, BENCH.filled((2, channels, 33, 65), 0.5, stored)), result)
    assert runs or {source, result} == {UNORM8}


@in_one_test
@pytest.mark.parametrize("stored_as", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["Sobel", "gray Sobel", "AreaMax"])
def test_bits_are_the_same_for_any_number_of_threads(name: str, stored_as: Format, runs: list[Any]) -> None:
    runs.clear()
    kernel: Any = MPSImageAreaMax(CPU, 5, 5) if name == "AreaMax" else MPSImageSobel(CPU)
    made, image = 1 if "gray" in name else 3, picture(3, (117, 67), stored_as)
    found: list[np.ndarray] = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(encoded(kernel, [image], BENCH.empty((2, made, 117, 67), stored_as)))
    for each in found:
        np.testing.assert_array_equal(each, found[0])
    assert len(runs) == 3


@in_one_test
@pytest.mark.parametrize("stored_as", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["Sobel", "AreaMax"])
def test_in_place(name: str, stored_as: Format) -> None:
    kernel: Any = MPSImageAreaMax(CPU, 5, 5) if name == "AreaMax" else MPSImageSobel(CPU)
    image = picture(3, (40, 43), stored_as)
    expected = encoded(kernel, [image], BENCH.empty((2, 3, 40, 43), stored_as))
    command_buffer = BENCH.command_buffer()
    assert kernel.encode(command_buffer, in_place_texture=image) is image
    command_buffer.commit()
    np.testing.assert_array_equal(image.read_bytes(), expected)
