"""Textures: formats, levels and slices, regions that the CPU replaces and reads, views, and what is refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice, MTLTexture
from openmps.types import MTLOrigin, MTLPixelFormat, MTLRegion, MTLSize, MTLStorageMode, MTLTextureType, NSRange

CPU = mps.mtl_device("cpu")
ARRAY = MTLTextureType.TYPE_2D_ARRAY
RGBA8, BGRA8, SRGB8 = MTLPixelFormat.RGBA8_UNORM, MTLPixelFormat.BGRA8_UNORM, MTLPixelFormat.RGBA8_UNORM_SRGB
STORED: dict[str, tuple[type[np.generic], int]] = {
    "R8_UNORM": (np.uint8, 1), "RG8_UNORM": (np.uint8, 2), "RGBA8_UNORM": (np.uint8, 4), "BGRA8_UNORM": (np.uint8, 4),
    "R8_UNORM_SRGB": (np.uint8, 1), "RG8_UNORM_SRGB": (np.uint8, 2), "RGBA8_UNORM_SRGB": (np.uint8, 4),
    "BGRA8_UNORM_SRGB": (np.uint8, 4), "R16_UNORM": (np.uint16, 1), "RG16_UNORM": (np.uint16, 2),
    "RGBA16_UNORM": (np.uint16, 4), "R16_FLOAT": (np.float16, 1), "RG16_FLOAT": (np.float16, 2),
    "RGBA16_FLOAT": (np.float16, 4), "R32_FLOAT": (np.float32, 1), "RG32_FLOAT": (np.float32, 2),
    "RGBA32_FLOAT": (np.float32, 4),
}  # fmt: skip


def region(x: int, y: int, width: int, height: int) -> MTLRegion:
    return MTLRegion(MTLOrigin(x, y, 0), MTLSize(width, height, 1))


def texture(device: MTLDevice = CPU, **values: Any) -> MTLTexture:
    return device.new_texture(mps.MTLTextureDescriptor(**{"width": 5, "height": 3, **values}))


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    if issubclass(dtype, np.floating):
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)  # type: ignore[arg-type]


def linear(value: int, bits: int) -> float:
    """The curve of sRGB (IEC 61966-2-1) for one stored number."""
    c = value / (2**bits - 1)
    return c / 12.92 if c <= 0.04045 else math.pow((c + 0.055) / 1.055, 2.4)


# --- formats ---------------------------------------------------------------------------------------------------------


def test_every_format_is_known() -> None:
    assert {each.name for each in MTLPixelFormat} - {"INVALID"} == set(STORED)


@in_one_test
@pytest.mark.parametrize("name", STORED)
def test_elements_and_numbers(name: str, mtl: MTLDevice, rng: np.random.Generator) -> None:
    """Bytes come back as they were; numbers are in the order red, green, blue, alpha, and linear."""
    dtype, components = STORED[name]
    given = elements(rng, (3, 5, components), dtype)
    found = texture(mtl, pixel_format=MTLPixelFormat[name])
    assert not found.is_allocated
    assert not found.get_bytes().any()
    found.replace_region(None, 0, given)
    read = found.get_bytes()
    assert (read.dtype, read.shape) == (np.dtype(dtype), (3, 5, components))
    np.testing.assert_array_equal(read, given)
    numbers = found.numpy()
    assert (numbers.dtype, numbers.shape) == (np.dtype(np.float32), (3, 5, components))
    np.testing.assert_array_equal(np.asarray(found), numbers)
    bits = 8 * np.dtype(dtype).itemsize
    for y, x, c in np.ndindex(3, 5, components):
        stored = given[y, x, 2 - c if name.startswith("BGRA") and c < 3 else c]
        if issubclass(dtype, np.floating):
            expected = float(stored)
        else:
            expected = linear(int(stored), bits) if "SRGB" in name and c < 3 else int(stored) / (2**bits - 1)
        assert abs(numbers[y, x, c] - expected) <= 1e-6


def test_what_it_is() -> None:
    found = texture(pixel_format=BGRA8, mipmap_level_count=3, storage_mode=MTLStorageMode.PRIVATE)
    found.label = "frame"
    said = (found.width, found.height, found.depth, found.array_length, found.mipmap_level_count, found.sample_count)
    assert said == (5, 3, 1, 1, 3, 1)
    assert (found.pixel_format, found.texture_type) == (BGRA8, MTLTextureType.TYPE_2D)
    assert (found.parent_texture, found.usage, found.device) == (None, mps.MTLTextureUsage.SHADER_READ, CPU)
    assert repr(found).startswith("<MTLTexture 'frame' 5x3 BGRA8_UNORM, 3 levels, PRIVATE, on ")
    assert "5x3 RGBA8_UNORM, 7 slices, SHARED" in repr(texture(texture_type=ARRAY, array_length=7))
    assert CPU.new_texture(found.descriptor()).descriptor() == found.descriptor()


# --- regions, levels, slices -----------------------------------------------------------------------------------------


def test_regions_of_levels_and_slices(mtl: MTLDevice, rng: np.random.Generator) -> None:
    """Against arrays of the same elements."""
    found = texture(mtl, width=9, height=6, mipmap_level_count=4, texture_type=ARRAY, array_length=3)
    sizes = [(6, 9), (3, 4), (1, 2), (1, 1)]
    expected = [np.zeros((3, *size, 4), np.uint8) for size in sizes]
    for level, (height, width) in enumerate(sizes):
        for index in range(3):
            x, y = int(rng.integers(width)), int(rng.integers(height))
            part = elements(rng, (height - y, width - x, 4), np.uint8)
            expected[level][index, y:, x:] = part
            found.replace_region(region(x, y, width - x, height - y), level, part, slice=index)
    for level in range(4):
        for index in range(3):
            np.testing.assert_array_equal(found.get_bytes(mipmap_level=level, slice=index), expected[level][index])
        np.testing.assert_array_equal(found.numpy(level), (expected[level] / 255).astype(np.float32))
    np.testing.assert_array_equal(found.get_bytes(region(2, 1, 4, 3), 0, 2), expected[0][2, 1:4, 2:6])


@pytest.mark.parametrize("pitch", [None, 8, 11])
def test_raw_bytes(pitch: int | None) -> None:
    """Rows as far apart as it is said; what lies between is not read."""
    found, rows = texture(width=4), np.arange(24, dtype=np.uint8).reshape(3, 8)
    wide = np.full((3, pitch or 8), 255, np.uint8)
    wide[:, :8] = rows
    found.replace_region(region(1, 0, 2, 3), 0, wide.tobytes(), pitch)
    np.testing.assert_array_equal(found.get_bytes()[:, 1:3].reshape(3, 8), rows)
    assert not found.get_bytes()[:, [0, 3]].any()


def test_all_levels_of_a_mipmapped_descriptor() -> None:
    make = mps.MTLTextureDescriptor.texture_2d_descriptor
    assert make(BGRA8, 640, 480, True).mipmap_level_count == 10
    assert make(BGRA8, 640, 480, False) == mps.MTLTextureDescriptor(pixel_format=BGRA8, width=640, height=480)


def test_contents_that_may_go() -> None:
    """EMPTY leaves zeros, and the memory where images may see it."""
    found = texture()
    assert found.allocated_size == 0
    found.replace_region(None, 0, np.ones((3, 5, 4), np.uint8))
    assert found.allocated_size == 60
    found.set_purgeable_state(mps.MPSPurgeableState.EMPTY)
    assert not found.get_bytes().any()


# --- views -----------------------------------------------------------------------------------------------------------


def test_views_share_memory(rng: np.random.Generator) -> None:
    whole = texture(width=8, height=8, mipmap_level_count=3, texture_type=ARRAY, array_length=4)
    view = whole.new_texture_view(SRGB8, None, range(1, 3), NSRange(2, 2))
    assert (view.width, view.height, view.mipmap_level_count, view.array_length) == (4, 4, 2, 2)
    assert (view.parent_texture, view.parent_relative_level, view.parent_relative_slice) == (whole, 1, 2)
    given = elements(rng, (2, 2, 4), np.uint8)
    view.replace_region(None, 1, given, slice=1)
    np.testing.assert_array_equal(whole.get_bytes(mipmap_level=2, slice=3), given)
    assert not whole.get_bytes(mipmap_level=2, slice=2).any()
    assert view.numpy(1)[1, 0, 0, 0] == pytest.approx(linear(given[0, 0, 0], 8), abs=1e-6)
    single = whole.new_texture_view(RGBA8, MTLTextureType.TYPE_2D, range(2, 3), range(3, 4))
    assert (single.texture_type, single.numpy().shape) == (MTLTextureType.TYPE_2D, (2, 2, 4))


def test_copies() -> None:
    """A copy sees the memory; a deep one has its own."""
    found = texture()
    found.replace_region(None, 0, np.ones((3, 5, 4), np.uint8))
    shallow, deep = copy.copy(found), copy.deepcopy(found)
    found.replace_region(None, 0, np.full((3, 5, 4), 2, np.uint8))
    assert (shallow.get_bytes().max(), deep.get_bytes().max()) == (2, 1)


# --- what is refused -------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"width": 0}, "width must be an integer of 1 to 16384, got 0"),
        ({"height": 16385}, "height must be an integer of 1 to 16384, got 16385"),
        ({"width": True}, "width must be an integer of 1 to 16384, got True"),
        ({"depth": 2}, "depth must be 1, got 2"),
        ({"sample_count": 4}, "sample_count must be 1, got 4"),
        ({"array_length": 2}, "array_length must be 1, got 2. Slices need the texture_type TYPE_2D_ARRAY"),
        ({"array_length": 2049, "texture_type": ARRAY}, "array_length must be an integer of 1 to 2048, got 2049"),
        ({"mipmap_level_count": 4}, "mipmap_level_count must be an integer of 1 to 3, got 4"),
        ({"texture_type": MTLTextureType.CUBE}, "texture_type must be _2D, _2D_ARRAY, got CUBE"),
        ({"pixel_format": MTLPixelFormat.INVALID}, "pixel_format must be R8_UNORM, .* got INVALID"),
        ({"storage_mode": MTLStorageMode.MEMORYLESS}, "storage_mode must be SHARED, MANAGED, PRIVATE, got MEMORYLESS"),
    ],
)
def test_descriptors_that_cannot_be(values: dict[str, Any], said: str) -> None:
    with pytest.raises(MPSArgumentError, match=rf"^MTLTexture: descriptor\.{said}"):
        texture(**values)


def test_more_than_the_memory() -> None:
    huge = {"pixel_format": MTLPixelFormat.RGBA32_FLOAT, "texture_type": ARRAY, "array_length": 2048}
    with pytest.raises(MPSArgumentError, match=r"^MTLTexture: descriptor must fit the \d+ bytes of memory"):
        texture(width=16384, height=16384, **huge)


@in_one_test
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.get_bytes(region(4, 0, 2, 1)), "region must lie in the 5x3 pixels of the level"),
        (lambda t: t.get_bytes(region(0, 1, 1, 1), 1), "region must lie in the 2x1 pixels of the level"),
        (lambda t: t.get_bytes(MTLRegion(MTLOrigin(0, 0, 1), MTLSize(1, 1, 1))), "region must have z 0 and depth 1"),
        (lambda t: t.get_bytes(region(0, 0, 0, 1)), "region must lie in"),
        (lambda t: t.get_bytes((0, 0)), "region must be an MTLRegion"),
        (lambda t: t.get_bytes(None, 2), "mipmap_level must be below 2, got 2"),
        (lambda t: t.get_bytes(None, 0, -1), "slice must be an integer of at least 0, got -1"),
        (lambda t: t.numpy(7), "mipmap_level must be below 2, got 7"),
        (lambda t: t.replace_region(None, 0, np.zeros((3, 5, 4))), "with_bytes must have .* uint8, got float64"),
        (lambda t: t.replace_region(None, 0, np.zeros((5, 3, 4), np.uint8)), r"with_bytes must be shaped \(3, 5, 4\)"),
        (lambda t: t.replace_region(None, 0, b"12"), "with_bytes must hold 60 bytes"),
        (lambda t: t.replace_region(None, 0, bytes(60), 19), "bytes_per_row must be an integer of at least 20"),
        (lambda t: t.replace_region(None, 0, bytes(61), 21), "with_bytes must hold 62 bytes, got 61"),
        (lambda t: t.replace_region(None, 0, np.zeros(60, np.uint8), 20), "bytes_per_row must be left out"),
        (lambda t: t.new_texture_view(BGRA8), "pixel_format must be RGBA8_UNORM, or differ from it in sRGB alone"),
        (lambda t: t.new_texture_view(71), "pixel_format must be RGBA8_UNORM, or"),
        (lambda t: t.new_texture_view(RGBA8, None, range(3)), "levels must select some of 2"),
        (lambda t: t.new_texture_view(RGBA8, None, None, range(1, 1)), "slices must select some of 1"),
        (lambda t: t.new_texture_view(RGBA8, None, 1), "levels must be an NSRange"),
        (lambda t: t.new_texture_view(RGBA8, MTLTextureType.CUBE), "texture_type must be _2D_ARRAY or _2D"),
    ],
)
def test_calls_that_are_refused(call: Any, said: str) -> None:
    found = texture(mipmap_level_count=2)
    found.label = "frame"
    with pytest.raises((MPSArgumentError, MPSTypeError), match=f"^MTLTexture 'frame': {said}"):
        call(found)


@pytest.mark.parametrize("method", ["get_bytes", "numpy", "replace_region"])
def test_private_memory(method: str) -> None:
    found = texture(storage_mode=MTLStorageMode.PRIVATE)
    with pytest.raises(MPSArgumentError, match=f"^MTLTexture: {method} needs memory that the CPU may touch"):
        getattr(found, method)(*((None, 0, bytes(60)) if method == "replace_region" else ()))


@pytest.mark.parametrize("name", ["usage", "cpu_cache_mode", "pixel_format"])
@pytest.mark.parametrize("value", ["a", 77, None])
def test_enumerations_are_checked_where_they_are_set(name: str, value: object) -> None:
    with pytest.raises(mps.MPSError, match=f"^MTLTextureDescriptor: {name} must "):
        setattr(mps.MTLTextureDescriptor(width=2, height=2), name, value)


@pytest.mark.parametrize(
    ("level", "shape"), [(0, (5, 4)), (0, (5, 3, 4)), (0, (3, 5, 3)), (0, (3, 5, 4, 1)), (1, (3, 5, 4))]
)
def test_put_takes_all_of_a_level_alone(mtl: MTLDevice, level: int, shape: tuple[int, ...]) -> None:
    made = texture(mtl, pixel_format=MTLPixelFormat.RGBA8_UNORM)
    with pytest.raises(MPSArgumentError, match="must be all of the level|must be below 1"):
        made.put(level, np.zeros(shape, np.uint8))
    made.put(0, np.full((3, 5, 4), 7, np.uint8))
    assert np.all(made.get_bytes() == 7)
