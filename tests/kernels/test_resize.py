"""Resizing and regions: golden numbers, sizes, how results of many regions are laid out, misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, encode, finish, numbers, run
from helpers import assert_close, assert_digits
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.resize import MPSNNCropAndResizeBilinear, MPSNNResizeBilinear
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSOrigin, MPSRegion, MPSSize, MTLOrigin, MTLRegion, MTLSize
from oracles import resample as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")


def _line(bench: Bench, values: Any) -> Any:
    return bench.image(np.asarray(values, dtype=np.float64).reshape(1, 1, 1, -1))


def _region(x: float, y: float, width: float, height: float) -> MPSRegion:
    return MPSRegion(MPSOrigin(x, y, 0.0), MPSSize(width, height, 1.0))


@pytest.mark.parametrize(
    ("width", "align", "expected"),
    [
        (6, False, [0, 5, 10, 15, 20, 20]),
        (6, True, [0, 4, 8, 12, 16, 20]),
        (2, False, [0, 15]),
        (2, True, [0, 20]),
        (1, True, [0]),
        (3, False, [0, 10, 20]),
    ],
)
def test_golden_numbers(width: int, align: bool, expected: list[float], device: torch.device) -> None:
    bench = Bench.on(device)
    kernel = MPSNNResizeBilinear(bench.device, width, 1, align)
    assert_digits(run(bench, kernel, [_line(bench, [0, 10, 20])]).ravel(), expected, 5)


def test_properties() -> None:
    kernel = MPSNNResizeBilinear(CPU, 5, 7)
    assert (kernel.resize_width, kernel.resize_height, kernel.align_corners) == (5, 7, False)
    assert kernel.edge_mode is MPSImageEdgeMode.ZERO
    regions = [_region(0, 0, 1, 1), _region(0.5, 0.5, 0.1, 0.1)]
    crop = MPSNNCropAndResizeBilinear(CPU, 5, 7, 2, regions)
    kept = list(regions)
    regions.clear()
    assert crop.regions == tuple(kept)
    assert (crop.resize_width, crop.resize_height, crop.number_of_regions) == (5, 7, 2)
    assert MPSNNCropAndResizeBilinear(CPU, 5, 7, 1, kept).regions == (kept[0],)
    for each, name in ((kernel, "resize_width"), (kernel, "align_corners"), (crop, "regions")):
        with pytest.raises(AttributeError):
            setattr(each, name, 1)


def test_the_scale_is_that_of_the_sizes_given(device: torch.device) -> None:
    """Not that of the clip rectangle or of the destination; offset shifts the positions."""
    bench = Bench.on(device)
    kernel = MPSNNResizeBilinear(bench.device, 6, 1)
    kernel.offset = MPSOffset(1, 0, 0)
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 0, 0), MTLSize(3, 1, 1))
    destination, command_buffer = bench.filled((1, 1, 1, 9), -7.0), bench.command_buffer()
    kernel.encode(command_buffer, _line(bench, [0, 10, 20]), destination)
    finish(command_buffer)
    assert_digits(numbers(destination).ravel(), [-7, -7, 10, 15, 20, -7, -7, -7, -7], 5)


REGIONS = [(0.0, 0.0, 1.0, 1.0), (0.75, 0.5, -0.5, 0.25), (-0.25, 0.0, 1.0, 2.0)]


def _crop(bench: Bench, width: int = 4, height: int = 3) -> MPSNNCropAndResizeBilinear:
    listed = [_region(*each) for each in REGIONS]
    return MPSNNCropAndResizeBilinear(bench.device, width, height, len(listed), listed)


@pytest.mark.parametrize("kind", ["image", "batch", "images"])
@pytest.mark.parametrize("returns", [True, False])
def test_the_regions_of_an_image_follow_one_another(
    kind: str, returns: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """Image b, region r is image 3 b + r: of the object, or of the batch."""
    bench = Bench.on(device)
    x = rng.normal(size=(2, 5, 4, 6)).astype(np.float32).astype(np.float64)
    expected = oracle.crop_and_resize(x, REGIONS, (3, 4), Axis(3), Axis(4))
    sources = getattr(bench, kind)(x)
    kernel = _crop(bench)
    if returns:
        found = run(bench, kernel, [sources])
    else:
        destination = getattr(bench, kind)(np.zeros(expected.shape))
        command_buffer = bench.command_buffer()
        encode(kernel, command_buffer, [sources], destination)
        finish(command_buffer)
        found = numbers(destination)
    assert_close(found, expected, 1e-6)
    for b, r in ((0, 2), (1, 0), (1, 1)):
        one = oracle.crop_and_resize(x[b : b + 1], [REGIONS[r]], (3, 4), Axis(3), Axis(4))
        assert_close(found[3 * b + r : 3 * b + r + 1], one, 1e-6)


def test_the_descriptor_and_the_allocators(device: torch.device, rng: np.random.Generator) -> None:
    """An image gives one object of R images; a batch gives R times as many images, which an allocator may make."""
    bench = Bench.on(device)
    x = rng.normal(size=(2, 5, 4, 6))
    kernel = _crop(bench)
    assert kernel.destination_image_descriptor([bench.image(x)]).number_of_images == 6
    assert kernel.destination_image_descriptor([bench.image(x[:1])]).number_of_images == 3

    class OneByOne:
        made = 0

        def image(self, command_buffer: Any, image_descriptor: Any, kernel: Any) -> MPSImage:
            assert image_descriptor.number_of_images == 1
            self.made += 1
            return MPSImage(command_buffer.device, image_descriptor)

    expected = run(bench, kernel, [bench.batch(x)])
    kernel.destination_image_allocator = allocator = OneByOne()
    command_buffer = bench.command_buffer()
    found = kernel.encode_batch(command_buffer, bench.batch(x))
    finish(command_buffer)
    assert allocator.made == len(found) == 6
    np.testing.assert_array_equal(numbers(found), expected)


def test_some_images_of_an_object(device: torch.device, rng: np.random.Generator) -> None:
    """`clip_rect` counts images of the destination: six of them are the results of two sources."""
    bench = Bench.on(device)
    x = rng.normal(size=(4, 2, 4, 6)).astype(np.float32).astype(np.float64)
    kernel = _crop(bench)
    kernel.offset = MPSOffset(0, 0, 1)
    kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 2), MTLSize(2**32, 2**32, 7))
    destination, command_buffer = bench.filled((10, 2, 3, 4), -7.0), bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), destination)
    finish(command_buffer)
    found = numbers(destination)
    assert_close(found[2:8], oracle.crop_and_resize(x[1:3], REGIONS, (3, 4), Axis(3), Axis(4)), 1e-6)
    assert (found[[0, 1, 8, 9]] == -7.0).all()


def test_a_clip_rectangle_cuts_every_region(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = rng.normal(size=(1, 1, 4, 6)).astype(np.float32).astype(np.float64)
    kernel = _crop(bench)
    whole = run(bench, kernel, [bench.image(x)])
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 0, 0), MTLSize(3, 2, 3))
    destination, command_buffer = bench.filled((3, 1, 3, 5), -7.0), bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), destination)
    finish(command_buffer)
    expected = np.full((3, 1, 3, 5), -7.0)
    expected[:, :, :2, 1:4] = whole[:, :, :2, :3]
    assert_close(numbers(destination), expected, 1e-6)


def test_outside_is_zero_whatever_the_edge_mode(device: torch.device) -> None:
    bench = Bench.on(device)
    for edge in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
        kernel = MPSNNCropAndResizeBilinear(bench.device, 5, 1, 1, [_region(-0.5, 0.0, 2.0, 0.0)])
        kernel.edge_mode = edge
        assert_digits(run(bench, kernel, [_line(bench, [1, 2, 3])]).ravel(), [0, 1, 2, 3, 0], 6)


def test_golden_region(device: torch.device) -> None:
    """A corner of half the size, normalized by size - 1: of 5 columns the first 3, of 3 rows the first 2."""
    bench = Bench.on(device)
    kernel = MPSNNCropAndResizeBilinear(bench.device, 3, 2, 1, [_region(0.0, 0.0, 0.5, 0.5)])
    found = run(bench, kernel, [bench.image(np.arange(15.0).reshape(1, 1, 3, 5))])
    assert found.tolist() == [[[[0, 1, 2], [5, 6, 7]]]]


# --- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
def test_bad_sizes(value: Any) -> None:
    region = [_region(0, 0, 1, 1)]
    for name, arguments in (("resize_width", (value, 1)), ("resize_height", (1, value))):
        with pytest.raises(MPSArgumentError, match=f"^MPSNNResizeBilinear: {name} must be an integer of at least 1"):
            MPSNNResizeBilinear(CPU, *arguments)
        with pytest.raises(MPSArgumentError, match=f"^MPSNNCropAndResizeBilinear: {name} must be an integer"):
            MPSNNCropAndResizeBilinear(CPU, *arguments, 1, region)
    with pytest.raises(MPSArgumentError, match="^MPSNNCropAndResizeBilinear: number_of_regions must be an integer"):
        MPSNNCropAndResizeBilinear(CPU, 1, 1, value, region)


def test_bad_regions() -> None:
    make = lambda count, regions: MPSNNCropAndResizeBilinear(CPU, 2, 2, count, regions)  # noqa: E731
    who, good = "^MPSNNCropAndResizeBilinear: ", _region(0, 0, 1, 1)
    with pytest.raises(MPSArgumentError, match=who + "regions must be 2, number_of_regions, got 1"):
        make(2, [good])
    with pytest.raises(MPSTypeError, match=who + "regions must be a sequence of MPSRegion, got MPSRegion"):
        make(1, good)
    with pytest.raises(MPSTypeError, match=who + r"regions\[1\] must be an MPSRegion, got tuple"):
        make(2, [good, (0, 0, 1, 1)])
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(MPSArgumentError, match=who + r"regions\[0\] must be finite"):
            make(1, [_region(0, wrong, 1, 1)])


def test_destinations_of_another_length(device: torch.device) -> None:
    bench = Bench.on(device)
    kernel, x = _crop(bench), np.zeros((2, 1, 4, 6))
    for images in (2, 5, 7):
        rule = "destination_images must be 6 image.s., as many as 3 for each source"
        with pytest.raises(MPSArgumentError, match=rule):
            kernel.encode_batch(bench.command_buffer(), bench.batch(x), bench.batch(np.zeros((images, 1, 3, 4))))
    with pytest.raises(MPSArgumentError, match="must select at least one image"):
        kernel.encode(bench.command_buffer(), bench.image(x[:1]), bench.empty((2, 1, 3, 4)))
