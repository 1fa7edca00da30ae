"""Scales by compiled loops, where Numba is installed: the numbers of our own form, which the oracles judge."""

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
from openmps.kernels.image_scale import MPSImageBilinearScale, MPSImageLanczosScale
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSScaleTransform, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from pairs import pairs

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

FORMATS = UNORM8, FLOAT16, FLOAT32
KERNELS = MPSImageLanczosScale, MPSImageBilinearScale
TRANSFORMS = None, (0.4, 2.5), (-1.25, -0.5), (3.0, 1.0), (0.05, 0.07)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    yield from loops_of_any_picture(monkeypatch)


def picture(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape) / 255.0


def makes(kernel: Any, image: Any, shape: tuple[int, ...]) -> Callable[[Format], np.ndarray]:
    return lambda stored: encoded(kernel, [image], BENCH.filled(shape, 0.5, stored))


@in_one_test
@pytest.mark.parametrize(
    ("kind", "source", "result", "channels", "made", "transform", "edge"),
    pairs(KERNELS, FORMATS, FORMATS, (1, 2, 3, 4), (1, 2, 3, 4), TRANSFORMS, EDGES),
)
def test_formats_and_channels(
    kind: Any, source: Format, result: Format, channels: int, made: int, transform: Any, edge: MPSImageEdgeMode,
    runs: list[tuple[type, ...]],
) -> None:  # fmt: skip
    """Whole pictures and parts of them, from places that lie beyond the source."""
    kernel = kind(CPU)
    kernel.edge_mode = edge
    if transform is not None:
        kernel.scale_transform = MPSScaleTransform(*transform, 2.3, -1.1)
    moved = kernel.copy()
    moved.offset = MPSOffset(-9, 13, 0)
    moved.clip_rect = MTLRegion(MTLOrigin(3, 2, 0), MTLSize(20, 9, 2))
    image = BENCH.image(picture((2, channels, 21, 29)), source)
    formats = {source, result}
    may_be_left = kind is MPSImageBilinearScale and formats == {UNORM8} and edge == MPSImageEdgeMode.CLAMP
    for each in (kernel, moved):
        runs.clear()
        compare(makes(each, image, (2, made, 17, 41)), result)
        assert runs or may_be_left


@in_one_test
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("source", [(1, 1), (1, 300), (301, 1), (2, 3), (70, 66)], ids=str)
@pytest.mark.parametrize("result", [(1, 1), (1, 40), (33, 2), (90, 7)], ids=str)
@pytest.mark.parametrize("channels", [1, 5, 9])
def test_sizes(kind: Any, source: tuple[int, int], result: tuple[int, int], channels: int) -> None:
    """Also channels that are no texture's."""
    for edge in EDGES:
        kernel = kind(CPU)
        kernel.edge_mode = edge
        image = BENCH.image(picture((1, channels, *source)), FLOAT32)
        compare(makes(kernel, image, (1, channels, *result)), FLOAT32)


@pytest.mark.parametrize("edge", EDGES, ids=lambda each: each.name)
@pytest.mark.parametrize("least", [2.0**-16, -(2.0**-16)], ids=["least", "mirrored"])
def test_pictures_of_which_nothing_is_left(least: float, edge: MPSImageEdgeMode) -> None:
    """All pixels come together in one, and none lies under the others."""
    kernel = MPSImageLanczosScale(CPU)
    kernel.edge_mode, kernel.scale_transform = edge, MPSScaleTransform(least, least, 0.5, 0.5)
    image = BENCH.image(picture((1, 3, 40, 50)), UNORM8)
    for offset in (0, 100, 1000):
        kernel.offset = MPSOffset(offset, offset, 0)
        compare(makes(kernel, image, (1, 3, 4, 6)), FLOAT32)


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda each: each.name)
@pytest.mark.parametrize("size", [(17, 19), (80, 95)], ids=["less", "more"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stored_as", [FLOAT16, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KERNELS)
def test_numbers_that_are_none(
    kind: Any, stored_as: Format, channels: int, size: tuple[int, int], edge: MPSImageEdgeMode
) -> None:
    """They reach as far as windows do, and no channel reaches another one."""
    x = picture((1, channels, 40, 43)) - 0.5
    x[0, 0, 3, 5], x[0, -1, 39, 0], x[0, 0, 20, 42] = math.nan, math.inf, -math.inf
    kernel = kind(CPU)
    kernel.edge_mode = edge
    image = BENCH.image(x, stored_as)
    for result in (stored_as, FLOAT32):
        compare(makes(kernel, image, (1, channels, *size)), result)
    with own_forms():
        expected = encoded(kernel, [image], BENCH.empty((1, channels, *size), UNORM8))
    found = encoded(kernel, [image], BENCH.empty((1, channels, *size), UNORM8))
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("source", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", KERNELS)
def test_bits_are_the_same_for_any_number_of_threads(kind: Any, source: Format) -> None:
    image = BENCH.image(picture((2, 4, 67, 53)), source)
    found: list[np.ndarray] = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found += [encoded(kind(CPU), [image], BENCH.empty((2, 3, 41, 97), made)) for made in FORMATS]
    for index, each in enumerate(found):
        np.testing.assert_array_equal(each, found[index % len(FORMATS)])


@pytest.mark.parametrize("stored_as", FORMATS, ids=lambda each: each.name)
def test_scales_in_place(stored_as: Format, runs: list[tuple[type, ...]]) -> None:
    kernel = MPSImageLanczosScale(CPU)
    kernel.scale_transform = MPSScaleTransform(0.7, 1.3, 1.0, 0.0)
    image = BENCH.image(picture((1, 4, 31, 33)), stored_as)
    expected = encoded(kernel, [image], BENCH.empty((1, 4, 31, 33), stored_as))
    command_buffer = BENCH.command_buffer()
    assert kernel.encode(command_buffer, in_place_texture=image) is image
    command_buffer.commit()
    np.testing.assert_array_equal(image.read_bytes(), expected)
    assert len(runs) == 2


def test_numbers_of_float16_are_rounded_once(runs: list[tuple[type, ...]]) -> None:
    """Subnormal ones and those that are too large, too: a picture of the same size is as it was."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    finite = np.where(np.isfinite(bits), bits, 1.0).reshape(1, 1, 256, 256)
    kernel = MPSImageBilinearScale(CPU)
    found = encoded(kernel, [BENCH.image(finite, FLOAT16)], BENCH.empty(finite.shape, FLOAT16))
    np.testing.assert_array_equal(found.reshape(256, 256), finite[0, 0].astype(np.float16))
    some = np.random.default_rng(0).uniform(-7e4, 7e4, finite.shape).astype(np.float32)
    some[..., :100] *= np.float32(1e-10)
    found = encoded(kernel, [BENCH.image(some.astype(np.float64))], BENCH.empty(finite.shape, FLOAT16))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found.reshape(256, 256), some[0, 0].astype(np.float16))
    assert len(runs) == 2
