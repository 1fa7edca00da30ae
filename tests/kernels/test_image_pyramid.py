"""Pyramids in the mip levels of textures: worked examples, loops, the way there and back, misuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import finish
from helpers import assert_close
from in_one_test import in_one_test
from measured import note_error
from openmps.errors import MPSError
from oracles import image_filters as oracle

CPU = mps.mtl_device("cpu")
QUEUE = CPU.new_command_queue()
R32, RGBA8 = mps.MTLPixelFormat.R32_FLOAT, mps.MTLPixelFormat.RGBA8_UNORM
ZERO, CLAMP = mps.MPSImageEdgeMode.ZERO, mps.MPSImageEdgeMode.CLAMP


def _texture(x: np.ndarray, levels: int | None = None, pixel_format: Any = R32) -> Any:
    """A texture with [rows, columns] numbers in level 0."""
    descriptor = mps.MTLTextureDescriptor.texture_2d_descriptor(pixel_format, x.shape[1], x.shape[0], True)
    descriptor.mipmap_level_count = levels or descriptor.mipmap_level_count
    texture = CPU.new_texture(descriptor)
    _put(texture, 0, x)
    return texture


def _put(texture: Any, level: int, x: np.ndarray) -> None:
    region = mps.MTLRegion(mps.MTLOrigin(), mps.MTLSize(x.shape[1], x.shape[0]))
    kind = np.float32 if texture.pixel_format is R32 else np.uint8
    texture.replace_region(region, level, np.ascontiguousarray(x.astype(kind)))


def _levels(texture: Any) -> list[np.ndarray]:
    return [texture.numpy(level)[..., 0].astype(np.float64) for level in range(texture.mipmap_level_count)]


def _run(kernel: Any, *given: Any, **named: Any) -> Any:
    command_buffer = QUEUE.command_buffer()
    found = kernel.encode(command_buffer, *given, **named)
    finish(command_buffer)
    assert command_buffer.error is None
    return found


RAMP = np.arange(1.0, 26.0).reshape(5, 5)


def test_the_example() -> None:
    for edge, expected in (
        (ZERO, [[2.01953125, 3.9375], [7.9375, 13]]),
        (CLAMP, [[3.25, 4.875], [11.375, 13]]),
    ):
        kernel, texture = mps.MPSImageGaussianPyramid(CPU), _texture(RAMP)
        kernel.edge_mode = edge
        kernel.offset = mps.MPSOffset(1, 1, 0)  # not used
        kernel.clip_rect = mps.MTLRegion(mps.MTLOrigin(), mps.MTLSize(1, 1))
        assert _run(kernel, in_place_texture=texture) is texture
        level0, level1, _ = _levels(texture)
        np.testing.assert_array_equal(level0, RAMP)
        np.testing.assert_array_equal(level1, expected)


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
def test_levels_by_loops(edge: Any) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 5)).astype(np.float32).astype(np.float64)
    x = rng.random((9, 12)).astype(np.float32).astype(np.float64)
    kernel = mps.MPSImageGaussianPyramid(CPU, 5, 3, weights)
    kernel.edge_mode = edge
    texture = _texture(x)
    _run(kernel, in_place_texture=texture)
    found = _levels(texture)
    assert [each.shape for each in found] == [(9, 12), (4, 6), (2, 3), (1, 1)]
    for level, smaller in pairwise(found):
        expected = oracle.decimate(level, weights, smaller.shape, int(edge))
        assert_close(smaller, expected, 2e-6)
        note_error(type(kernel), "forward", torch.device("cpu"), smaller, expected)


def test_bytes_are_rounded_at_every_level() -> None:
    x = np.random.default_rng(1).integers(0, 256, (8, 8))
    texture = _texture(np.repeat(x[..., None], 4, axis=2).reshape(8, 8, 4), 3, RGBA8)
    kernel = mps.MPSImageGaussianPyramid(CPU, 0.5)
    kernel.edge_mode = CLAMP
    _run(kernel, in_place_texture=texture)
    row = np.array([0, 0.25, 0.5, 0.25, 0])
    once = np.round(oracle.decimate(x / 255, np.outer(row, row), (4, 4), 1) * 255)
    twice = oracle.decimate(once / 255, np.outer(row, row), (2, 2), 1)
    assert np.abs(_levels(texture)[2] - twice).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("edge", [ZERO, CLAMP])
@pytest.mark.parametrize("shape", [(9, 12), (4, 7)])
def test_laplacians_by_loops_and_back(shape: tuple[int, int], edge: Any) -> None:
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(5, 3)).astype(np.float32).astype(np.float64)
    source = _texture(rng.random(shape), 3)
    gaussian = mps.MPSImageGaussianPyramid(CPU)
    _run(gaussian, in_place_texture=source)
    details, restored = _texture(np.zeros(shape), 3), _texture(np.zeros(shape), 2)
    there, back = (
        kind(CPU, kernel_width=3, kernel_height=5, weights=weights)
        for kind in (mps.MPSImageLaplacianPyramidSubtract, mps.MPSImageLaplacianPyramidAdd)
    )
    for kernel in (there, back):
        kernel.edge_mode, kernel.laplacian_bias, kernel.laplacian_scale = edge, 0.25, 2.0
    assert _run(there, source, details) is None
    levels, found = _levels(source), _levels(details)
    for level, smaller, detail in zip(levels, levels[1:], found, strict=False):
        expected = 0.25 + 2.0 * (level - oracle.expand(smaller, weights, level.shape, int(edge)))
        assert_close(detail, expected, 3e-6)
        note_error(type(there), "forward", torch.device("cpu"), detail, expected)
    assert not found[2].any()  # the caller copies the smallest level
    _put(details, 2, levels[2])
    _run(back, source_texture=details, destination_texture=restored)
    for made, level in zip(_levels(restored), levels, strict=False):
        assert_close(made, level, 3e-6)
        note_error(type(back), "forward", torch.device("cpu"), made, level)


def test_a_constant_keeps_three_fourths() -> None:
    """The filter is applied as it is: the levels' weights have no gain of 4."""
    source, details = _texture(np.ones((8, 8)), 2), _texture(np.zeros((8, 8)), 1)
    _put(source, 1, np.ones((4, 4)))
    kernel = mps.MPSImageLaplacianPyramidSubtract(CPU)
    kernel.edge_mode = CLAMP
    _run(kernel, source, details)
    assert (_levels(details)[0] == 0.75).all()


def test_defaults_copies_and_one_level() -> None:
    kernel = mps.MPSImageLaplacianPyramidAdd(CPU)
    assert (kernel.laplacian_bias, kernel.laplacian_scale, kernel.edge_mode) == (0.0, 1.0, ZERO)
    assert (kernel.kernel_width, kernel.kernel_height, kernel.center_weight) == (5, 5, None)
    row = np.array([1, 4, 6, 4, 1]) / 16
    assert kernel.weights == tuple(np.outer(row, row).ravel())
    gaussian, texture = copy.copy(mps.MPSImageGaussianPyramid(CPU, center_weight=0.5)), _texture(RAMP, 1)
    assert (gaussian.center_weight, gaussian.weights[12]) == (None, 0.25)  # the weights say it
    assert _run(gaussian, in_place_texture=texture) is texture
    np.testing.assert_array_equal(_levels(texture)[0], RAMP)


def test_in_place_asks_the_allocator() -> None:
    kernel, source = mps.MPSImageLaplacianPyramidSubtract(CPU), _texture(np.ones((8, 8)), 2)
    assert _run(kernel, in_place_texture=source) is None
    made = _texture(np.zeros((8, 8)), 1)
    assert _run(kernel, in_place_texture=source, fallback_copy_allocator=lambda *_: made) is made
    assert _levels(made)[0].any()


_MISUSE: dict[str, tuple[Callable[[], object], str]] = {
    "even": (lambda: mps.MPSImagePyramid(CPU, 2, 3, np.ones(6)), "kernel_width must be odd"),
    "alone": (lambda: mps.MPSImagePyramid(CPU, weights=np.ones(25)), "weights must be given with kernel_width"),
    "both": (lambda: mps.MPSImagePyramid(CPU, 0.5, 1, 1, [1.0]), "weights must be given with kernel_width and kernel_"),
    "scale": (
        lambda: setattr(mps.MPSImageLaplacianPyramidAdd(CPU), "laplacian_scale", 0.0),
        "laplacian_scale must not be 0",
    ),
    "no texture": (lambda: _run(mps.MPSImageGaussianPyramid(CPU)), "in_place_texture must be an MTLTexture"),
    "aside": (
        lambda: _run(
            mps.MPSImageGaussianPyramid(CPU), source_texture=_texture(RAMP), destination_texture=_texture(RAMP)
        ),
        "in_place_texture must be the only texture",
    ),
    "base": (lambda: _run(mps.MPSImageLaplacianPyramid(CPU)), "encode is not offered by this base class"),
    "levels": (
        lambda: _run(mps.MPSImageLaplacianPyramidSubtract(CPU), _texture(RAMP, 3), _texture(RAMP, 1)),
        r"destination_texture must have 2 level\(s\) at least",
    ),
}


@in_one_test
@pytest.mark.parametrize("name", _MISUSE)
def test_misuse(name: str) -> None:
    call, message = _MISUSE[name]
    with pytest.raises(MPSError, match=message):
        call()
