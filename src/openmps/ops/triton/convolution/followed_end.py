"""The end of a block and the convolution of single pixels behind it, in one launch in Triton, of float16 images.

``y = rectifier(W x + b + residual)`` and ``z = rectifier'(V y + c)``, where a residual may be ``P r``: images are
matrices of a row for each pixel. A program makes all channels of ``y`` for some pixels, stores them and multiplies them
by ``V`` at once: ``y``, the largest image, is written and not read again. Where there is room for the weights, programs
keep them and go from pixels to pixels; elsewhere they read them as they need them, for some channels of ``y`` after the
others. Sums are float32; each result is rounded once, ``y`` before it is multiplied.
"""
# A kernel's parameters have no types in Python, and the checker must do without Triton.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportInvalidTypeForm=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from openmps.ops.geometry import empty_image
from openmps.ops.triton.ahead import Launched
from openmps.ops.triton.blocks import cdiv
from openmps.ops.triton.convolution.fused_convolution import rectified

described: Any = import_module("triton.tools.tensor_descriptor").TensorDescriptor
triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


class Tile(NamedTuple):
    """What a program computes at a time, and how."""

    pixels: int
    channels: int
    """Of ``y``."""
    warps: int
    stages: int
    programs: int = 0
    """Of a launch, which keep their weights; 0 where each has one tile."""


class Layer(NamedTuple):
    """A convolution of single pixels, and what stands behind it."""

    weights: Tensor
    """``[outputs, 1, 1, inputs]``, both powers of two."""
    biases: Tensor | None
    rectifier: tuple[str, float, float]


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _kept(
    x, weights, biases, r, weights_of_r, y, next_weights, next_biases, z, pixels, slope, limit, next_slope, next_limit,
    INPUTS: tl.constexpr, INPUTS_OF_R: tl.constexpr, OUTPUTS: tl.constexpr, NEXT: tl.constexpr,
    IS_PROJECTED: tl.constexpr, HAS_BIASES: tl.constexpr, RECTIFIER: tl.constexpr, HAS_NEXT_BIASES: tl.constexpr,
    NEXT_RECTIFIER: tl.constexpr, PIXELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles of pixels one after the other."""
    k, q, n = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS), tl.arange(0, NEXT)
    # Loaded in front of the loop, weights stay in shared memory.
    w = tl.load(weights + q[None, :] * INPUTS + k[:, None])
    v = tl.load(next_weights + n[None, :] * OUTPUTS + q[:, None])
    k_of_r, w_of_r = k, w
    if IS_PROJECTED:
        k_of_r = tl.arange(0, INPUTS_OF_R)
        w_of_r = tl.load(weights_of_r + q[None, :] * INPUTS_OF_R + k_of_r[:, None])
    for tile in tl.range(tl.program_id(0), tl.cdiv(pixels, PIXELS), tl.num_programs(0), num_stages=STAGES):
        p = tile * PIXELS + tl.arange(0, PIXELS)
        in_p, to = (p < pixels)[:, None], p[:, None] * OUTPUTS + q[None, :]
        total = tl.dot(tl.load(x + p[:, None] * INPUTS + k[None, :], in_p, 0.0), w)
        if IS_PROJECTED:
            total = tl.dot(tl.load(r + p[:, None] * INPUTS_OF_R + k_of_r[None, :], in_p, 0.0), w_of_r, total)
        else:
            total += tl.load(r + to, in_p, 0.0)
        if HAS_BIASES:
            total += tl.load(biases + q)[None, :]
        half = rectified(total, slope, limit, RECTIFIER).to(y.dtype.element_ty)
        tl.store(y + to, half, in_p)
        total = tl.dot(half, v)
        if HAS_NEXT_BIASES:
            total += tl.load(next_biases + n)[None, :]
        total = rectified(total, next_slope, next_limit, NEXT_RECTIFIER)
        tl.store(z + p[:, None] * NEXT + n[None, :], total, in_p)


@Launched
@triton.jit
def _streamed(
    x, weights, biases, r, y, next_weights, next_biases, z, slope, limit, next_slope, next_limit,
    OUTPUTS: tl.constexpr, NEXT: tl.constexpr, HAS_BIASES: tl.constexpr, RECTIFIER: tl.constexpr,
    HAS_NEXT_BIASES: tl.constexpr, NEXT_RECTIFIER: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A tile of pixels. Matrices come as descriptors: what is behind their last row is neither read nor written."""
    p = tl.program_id(0) * PIXELS
    e = x.load([p, 0])
    sums = tl.zeros([PIXELS, NEXT], tl.float32)
    for first in tl.range(0, OUTPUTS, CHANNELS, num_stages=STAGES):
        total = tl.dot(e, weights.load([first, 0]).T)
        if HAS_BIASES:
            total += tl.load(biases + first + tl.arange(0, CHANNELS))[None, :]
        total += r.load([p, first])
        half = rectified(total, slope, limit, RECTIFIER).to(y.dtype)
        y.store([p, first], half)
        sums = tl.dot(half, next_weights.load([0, first]).T, sums)
    if HAS_NEXT_BIASES:
        sums += tl.load(next_biases + tl.arange(0, NEXT))[None, :]
    z.store([p, 0], rectified(sums, next_slope, next_limit, NEXT_RECTIFIER).to(z.dtype))


def followed_end(
    x: Tensor, end: Layer, residual: Tensor, projection: Tensor | None, following: Layer, tile: Tile
) -> tuple[Tensor, Tensor]:
    """Both results for channels-last images without gaps; the residual as it is, or multiplied by a projection.

    Programs that do not keep their weights take no projection, and memory that begins at multiples of 16 bytes.
    """
    (outputs, *_, inputs), after = end.weights.shape, len(following.weights)
    y, z = (empty_image(x, channels, (x.shape[2], x.shape[3])) for channels in (outputs, after))
    pixels = y.numel() // outputs
    tiles, numbers = cdiv(pixels, tile.pixels), (*end.rectifier[1:], *following.rectifier[1:])
    kinds = end.biases is not None, end.rectifier[0], following.biases is not None, following.rectifier[0]
    biases, next_biases = _or(end.biases, y), _or(following.biases, y)
    if tile.programs:
        _kept[(min(tiles, tile.programs),)](
            x, end.weights, biases, residual, _or(projection, y), y, following.weights, next_biases, z, pixels,
            *numbers, inputs, residual.shape[1], outputs, after, projection is not None, *kinds, tile.pixels,
            tile.stages, num_warps=tile.warps,
        )  # fmt: skip
        return y, z
    some = tile.pixels, tile.channels
    _streamed[(tiles,)](
        _rows(x, tile.pixels, inputs), _blocks(end.weights, tile.channels, inputs), biases, _rows(residual, *some),
        _rows(y, *some), _blocks(following.weights, after, tile.channels), next_biases, _rows(z, tile.pixels, after),
        *numbers, outputs, after, *kinds, *some, tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return y, z


def _rows(image: Tensor, rows: int, columns: int) -> Any:
    """An image as a matrix of a row for each pixel, in such blocks."""
    return _blocks(image.permute(0, 2, 3, 1), rows, columns)


def _blocks(given: Tensor, rows: int, columns: int) -> Any:
    """Numbers without gaps as a matrix of as many columns as they have channels, in such blocks."""
    matrix = given.view(-1, given.shape[3])
    return described(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    return other if given is None else given
