"""Scaling of pictures: transforms, clip rectangles, edges, formats, batches, regions, misuse."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from encoding import FLOAT16, UNORM8, Bench, finish, numbers
from helpers import assert_close
from in_one_test import in_one_test
from measured import note_error
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.image_scale import (
    MPSImageBilinearScale,
    MPSImageLanczosScale,
    MPSImageScale,
)
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSImageEdgeMode,
    MPSOffset,
    MPSRectNoClip,
    MPSScaleTransform,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)
from oracles import image_scale as oracle
from oracles.geometry import Axis

CPU = mtl_device("cpu")
KINDS = {MPSImageBilinearScale: "bilinear", MPSImageLanczosScale: "lanczos"}
TOLERANCE = 1e-5
ZERO, CLAMP = MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP


def _scaled(
    x: np.ndarray, kind: Any, size: tuple[int, int], transform: MPSScaleTransform, offset=(0, 0), edge: int = 1
) -> np.ndarray:
    """The oracle: rows and columns of `size`; `offset` x, y."""
    rows = oracle.axis_matrix(
        Axis(size[0], offset=offset[1]), x.shape[2], transform.scale_y, transform.translate_y, KINDS[kind], edge
    )
    columns = oracle.axis_matrix(
        Axis(size[1], offset=offset[0]), x.shape[3], transform.scale_x, transform.translate_x, KINDS[kind], edge
    )
    return oracle.scale(x, rows, columns)


def _picture(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.random(size=shape).astype(np.float32).astype(np.float64)


def _encoded(bench: Bench, kernel: Any, source: Any, destination: Any) -> np.ndarray:
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    return numbers(destination)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults(kind: Any) -> None:
    kernel = kind(CPU)
    assert isinstance(kernel, MPSImageScale)
    assert isinstance(kernel, MPSUnaryImageKernel)
    assert kernel.scale_transform is None
    assert kernel.edge_mode is CLAMP
    assert kernel.offset == MPSOffset(0, 0, 0)
    assert kernel.clip_rect == MPSRectNoClip
    assert MPSUnaryImageKernel(CPU).edge_mode is ZERO


@in_one_test
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(4, 5), (9, 3), (20, 31), (1, 1), (7, 6)])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_the_whole_source_fits_the_destination(
    kind: Any, size: tuple[int, int], channels: int, device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    x = _picture(rng, 1, channels, 7, 6)
    found = _encoded(bench, kind(bench.device), bench.image(x), bench.empty((1, channels, *size)))
    fitted = MPSScaleTransform(size[1] / 6, size[0] / 7)
    expected = _scaled(x, kind, size, fitted)
    assert_close(found, expected, TOLERANCE)
    note_error(kind, "forward", device, found, expected)


@in_one_test
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize(
    "transform",
    [
        MPSScaleTransform(1.0, 1.0, 0.0, 0.0),
        MPSScaleTransform(0.5, 0.75, 1.5, -2.0),
        MPSScaleTransform(2.5, 1.2, -3.0, 4.25),
        MPSScaleTransform(-1.0, 0.4, 6.0, 0.0),
    ],
    ids=str,
)
def test_transforms(
    kind: Any, edge: MPSImageEdgeMode, transform: MPSScaleTransform, device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    x = _picture(rng, 1, 3, 7, 6)
    kernel = kind(bench.device)
    kernel.scale_transform, kernel.edge_mode = transform, edge
    assert kernel.scale_transform == transform
    found = _encoded(bench, kernel, bench.image(x), bench.empty((1, 3, 8, 9)))
    assert_close(found, _scaled(x, kind, (8, 9), transform, edge=int(edge)), TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_make_the_whole(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """The header's use of translations: they are in pixels of the destination, from the clip rectangle's corner."""
    bench = Bench.on(device)
    x = _picture(rng, 1, 3, 7, 6)
    source, destination = bench.image(x), bench.empty((1, 3, 10, 14))
    kernel = kind(bench.device)
    whole = _encoded(bench, kernel, source, bench.empty((1, 3, 10, 14)))
    command_buffer = bench.command_buffer()
    for top, left in ((0, 0), (0, 9), (4, 0), (4, 9)):
        kernel.clip_rect = MTLRegion(MTLOrigin(left, top, 0), MTLSize(5 if left else 9, 6 if top else 4, 1))
        kernel.scale_transform = MPSScaleTransform(14 / 6, 10 / 7, -left, -top)
        kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    assert_close(numbers(destination), whole, 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_transform_the_clip_rectangles_corner_shows_the_sources(
    kind: Any, device: torch.device, rng: np.random.Generator
) -> None:
    """The scale is that of the whole destination; `offset` moves the source under the corner."""
    bench = Bench.on(device)
    x = _picture(rng, 1, 2, 7, 6)
    kernel = kind(bench.device)
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(4, 5, 1))
    kernel.offset = MPSOffset(1, -2, 0)
    found = _encoded(bench, kernel, bench.image(x), bench.filled((1, 2, 10, 14), -7.0))
    expected = np.full((1, 2, 10, 14), -7.0)
    expected[:, :, 1:6, 2:6] = _scaled(x, kind, (5, 4), MPSScaleTransform(14 / 6, 10 / 7), offset=(1, -2))
    assert_close(found, expected, TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_is_planned_for_each_size_of_the_destination(kind: Any, rng: np.random.Generator) -> None:
    """By turns, and by kernels with equal properties, which share their plans; planning leaves no trace."""
    bench = Bench(CPU)
    x = _picture(rng, 1, 2, 7, 6)
    kernels, source = [kind(CPU), kind(CPU)], bench.image(x)
    for width in (9, 4, 9):
        for kernel in kernels:
            before = dict(vars(kernel))
            found = _encoded(bench, kernel, source, bench.empty((1, 2, 5, width)))
            expected = _scaled(x, kind, (5, width), MPSScaleTransform(width / 6, 5 / 7))
            assert_close(found, expected, TOLERANCE)
            del before["_configuration"]
            assert {name: value for name, value in vars(kernel).items() if name in before} == before


@pytest.mark.parametrize("kind", KINDS)
def test_many_images(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """A batch, an object of many images and single images give the same."""
    bench = Bench.on(device)
    x = _picture(rng, 3, 4, 7, 6)
    kernel = kind(bench.device)
    expected = np.concatenate(
        [_encoded(bench, kernel, bench.image(x[i : i + 1]), bench.empty((1, 4, 5, 9))) for i in range(3)]
    )
    assert_close(_encoded(bench, kernel, bench.image(x), bench.empty((3, 4, 5, 9))), expected, 2e-6)
    destination, command_buffer = bench.batch(np.zeros((3, 4, 5, 9))), bench.command_buffer()
    assert kernel.encode_batch(command_buffer, bench.batch(x), destination) is None
    finish(command_buffer)
    assert_close(numbers(destination), expected, 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_textures_are_images(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = _picture(rng, 1, 4, 7, 6)
    kernel = kind(bench.device)
    expected = _encoded(bench, kernel, bench.image(x), bench.empty((1, 4, 3, 4)))
    destination, command_buffer = bench.empty((1, 4, 3, 4)), bench.command_buffer()
    kernel.encode(command_buffer, source_texture=bench.image(x), destination_texture=destination)
    finish(command_buffer)
    np.testing.assert_array_equal(numbers(destination), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_formats_round_once(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """Bytes are clamped: Lanczos rings beyond 0 and 1."""
    bench = Bench.on(device)
    x = np.round(rng.random(size=(1, 4, 7, 6)))
    exact = _scaled(x, kind, (11, 13), MPSScaleTransform(13 / 6, 11 / 7))
    found = _encoded(bench, kind(bench.device), bench.image(x, UNORM8), bench.empty((1, 4, 11, 13), UNORM8))
    assert np.abs(found - np.clip(exact, 0, 1)).max() <= 0.5 / 255 + 1e-6
    assert (exact.max() > 1.01) == (kind is MPSImageLanczosScale)
    found = _encoded(bench, kind(bench.device), bench.image(x), bench.empty((1, 4, 11, 13), FLOAT16))
    assert_close(found, exact, 2.0**-11 * 1.01)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_later_changes(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = _picture(rng, 1, 4, 7, 6)
    kernel = kind(bench.device)
    kernel.scale_transform = transform = MPSScaleTransform(0.5, 0.5, 0.25, 0.0)
    destination, command_buffer = bench.empty((1, 4, 5, 5)), bench.command_buffer()
    twin = copy.copy(kernel)
    twin.encode(command_buffer, bench.image(x), destination)
    twin.scale_transform, twin.offset, twin.edge_mode = None, MPSOffset(3, 3, 0), ZERO
    finish(command_buffer)
    assert_close(numbers(destination), _scaled(x, kind, (5, 5), transform), TOLERANCE)
    assert (kernel.scale_transform, kernel.offset, kernel.edge_mode) == (transform, MPSOffset(0, 0, 0), CLAMP)


@pytest.mark.parametrize(
    ("kind", "transform", "clip", "x", "y"),
    [
        (MPSImageBilinearScale, MPSScaleTransform(1, 2), MPSRectNoClip, (0, 10), (-1, 11)),
        (MPSImageBilinearScale, MPSScaleTransform(2, 1, -8, -3), MPSRectNoClip, (3, 10), (3, 23)),
        (
            MPSImageBilinearScale,
            MPSScaleTransform(1, 1),
            MTLRegion(MTLOrigin(6, 0, 0), MTLSize(9, 3, 1)),
            (5, 9),
            (0, 3),
        ),
        (MPSImageLanczosScale, MPSScaleTransform(1, 0.5), MPSRectNoClip, (-2, 12), (-5, 45)),
    ],
)
def test_the_region_read(kind: Any, transform: Any, clip: Any, x: Any, y: Any) -> None:
    """Of a destination of ten columns and twenty rows, from edge to edge of pixels."""
    kernel = kind(CPU)
    kernel.scale_transform, kernel.clip_rect = transform, clip
    kernel.offset = MPSOffset(5, 0, 0) if clip is not MPSRectNoClip else MPSOffset(0, 0, 0)
    region = kernel.source_region(MTLSize(10, 20, 1))
    assert (region.origin.x, region.origin.x + region.size.width) == x
    assert (region.origin.y, region.origin.y + region.size.height) == y


# --- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_that_are_none(kind: Any) -> None:
    kernel = kind(CPU)
    with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: scale_transform must be an MPSScaleTransform or None"):
        kernel.scale_transform = (1, 1, 0, 0)
    for wrong in (
        MPSScaleTransform(0.0, 1.0),
        MPSScaleTransform(1.0, float("nan")),
        MPSScaleTransform(1.0, 1.0, float("inf")),
        MPSScaleTransform(1e-30, 1.0),
        MPSScaleTransform(1.0, -1e-5),
    ):
        with pytest.raises(MPSArgumentError, match=f"^{kind.__name__}: scale_transform must be finite, its scales not"):
            kernel.scale_transform = wrong
    assert kernel.scale_transform is None


def test_images_that_are_missing_or_wrong() -> None:
    bench = Bench(CPU)
    kernel = MPSImageLanczosScale(CPU)
    kernel.label = "l"
    image, command_buffer = bench.empty((1, 4, 3, 3)), bench.command_buffer()
    with pytest.raises(MPSTypeError, match="^MPSImageLanczosScale 'l': destination_image must be an MPSImage"):
        kernel.encode(command_buffer, image)
    with pytest.raises(MPSTypeError, match="^MPSImageLanczosScale 'l': source_texture must be an MPSImage"):
        kernel.encode(command_buffer, source_texture=7, destination_image=image)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^MPSImageLanczosScale 'l': source_image must not be given beside source_t"):
        kernel.encode(command_buffer, image, bench.empty((1, 4, 3, 3)), source_texture=image)
    with pytest.raises(MPSArgumentError, match="^MPSImageLanczosScale 'l': destination_image must not share memory"):
        kernel.encode(command_buffer, image, image)
    with pytest.raises(MPSArgumentError, match="^MPSImageLanczosScale 'l': destination_image must have at least 5"):
        kernel.encode(command_buffer, bench.empty((1, 5, 3, 3)), bench.empty((1, 3, 3, 3)))
    with pytest.raises(MPSArgumentError, match="^MPSImageLanczosScale 'l': edge_mode must be ZERO or CLAMP"):
        kernel.edge_mode = MPSImageEdgeMode.MIRROR
    with pytest.raises(MPSTypeError, match="^MPSImageLanczosScale 'l': offset must be an MPSOffset"):
        kernel.offset = (0, 0)  # type: ignore[assignment]


def test_regions_that_cannot_be_told() -> None:
    kernel = MPSImageBilinearScale(CPU)
    with pytest.raises(MPSArgumentError, match="^MPSImageBilinearScale: scale_transform must be set to tell"):
        kernel.source_region(MTLSize(2, 2, 1))
    kernel.scale_transform = MPSScaleTransform(1, 1)
    kernel.clip_rect = MTLRegion(MTLOrigin(5, 0, 0), MTLSize(1, 1, 1))
    with pytest.raises(MPSArgumentError, match="^MPSImageBilinearScale: clip_rect must overlap the destination of 2x2"):
        kernel.source_region(MTLSize(2, 2, 1))
    with pytest.raises(MPSTypeError, match="^MPSImageBilinearScale: destination_size must be an MTLSize"):
        kernel.source_region((2, 2))  # type: ignore[arg-type]
    for base in (MPSUnaryImageKernel(CPU), MPSImageScale(CPU)):
        with pytest.raises(MPSTypeError, match="source_region is not offered by this base class"):
            base.source_region(MTLSize(2, 2, 1))
