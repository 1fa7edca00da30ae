"""The end of a block and the convolution of single pixels behind it, in one launch in Triton, of float16 images.

``y = rectifier(W x + b + residual)`` and ``z = rectifier'(V y + c)``, where a residual may be ``P r``: images are
matrices of a row for each pixel. A program keeps its weights and goes from pixels to pixels. It makes all channels of
``y`` for some pixels, stores them and multiplies them by ``V`` at once: ``y``, the largest image, is written and not
read again. Sums are float32; each result is rounded once, ``y`` before it is multiplied.
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

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


class Tile(NamedTuple):
    """What a program computes at a time, and how."""

    pixels: int
    warps: int
    stages: int
    programs: int
    """Of a launch."""


class Layer(NamedTuple):
    """A convolution of single pixels, and what stands behind it."""

    weights: Tensor
    """``[outputs, 1, 1, inputs]``, both powers of two."""
    biases: Tensor | None
    rectifier: tuple[str, float, float]


@Launched
@triton.jit(do_not_specialize=["pixels"])
def _followed_end(
    x, weights, biases, r, weights_of_r, y, next_weights, next_biases, z, pixels, slope, limit, next_slope, next_limit,
    INPUTS: tl.constexpr, INPUTS_OF_R: tl.constexpr, OUTPUTS: tl.constexpr, NEXT: tl.constexpr,
    HAS_BIASES: tl.constexpr, IS_PROJECTED: tl.constexpr, RECTIFIER: tl.constexpr, HAS_NEXT_BIASES: tl.constexpr,
    NEXT_RECTIFIER: tl.constexpr, PIXELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
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


def followed_end(
    x: Tensor, end: Layer, residual: Tensor, projection: Tensor | None, following: Layer, tile: Tile
) -> tuple[Tensor, Tensor]:
    """Both results for channels-last images without gaps; the residual as it is, or multiplied by a projection."""
    (outputs, *_, inputs), after = end.weights.shape, len(following.weights)
    y, z = (empty_image(x, channels, (x.shape[2], x.shape[3])) for channels in (outputs, after))
    pixels = y.numel() // outputs
    _followed_end[(min(cdiv(pixels, tile.pixels), tile.programs),)](
        x, end.weights, _or(end.biases, y), residual, _or(projection, y), y, following.weights,
        _or(following.biases, y), z, pixels, *end.rectifier[1:], *following.rectifier[1:], inputs, residual.shape[1],
        outputs, after, end.biases is not None, projection is not None, end.rectifier[0], following.biases is not None,
        following.rectifier[0], tile.pixels, tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return y, z


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    return other if given is None else given
