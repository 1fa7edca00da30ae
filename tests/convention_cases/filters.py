"""Conventions of image filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import Case, Subject, network, no_node, row_image
from mac_facts.fact import DEVICE, image
from oracles import conventions as oracle


def filtered(kernel: Any, source: mps.MPSImage, width: int, height: int = 1) -> Subject:
    """A filter over an image, into one of this size."""

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        destination = image(np.zeros((height, width, 1)))
        made.encode(command_buffer, source, destination)
        return [destination]

    return Subject(lambda: [kernel()], encode)


# --- windows, sums, statistics ----------------------------------------------------------------------------------------

_ROW = [1.0, 2.0, 3.0]
_WEIGHTS = [0, 0, 0, 0, 1, 2, 0, 0, 0]
_NUMBERS = [0.0, 1.0, 5.0, 2.0]
_FIELD = np.arange(1.0, 7.0).reshape(2, 3)
_IMPULSE = [0.0, 8.0, 0.0, 0.0]


def _shrunk(source: Any) -> Any:
    return mps.MPSNNLanczosScaleNode(source, mps.MTLSize(2, 1, 1))


# --- pyramids ---------------------------------------------------------------------------------------------------------


def _texture(levels: Sequence[float]) -> mps.MTLTexture:
    """Constant levels, the first of 4 x 4 pixels."""
    descriptor = mps.MTLTextureDescriptor.texture_2d_descriptor(mps.MTLPixelFormat.R32_FLOAT, 4, 4, True)
    texture = DEVICE.new_texture(descriptor)
    for level, value in enumerate(levels):
        side = 4 >> level
        texture.replace_region(None, level, np.full((side, side, 1), value, np.float32))
    return texture


def _pyramid() -> Subject:
    """The differences of a picture from the next smaller one, and the way back."""

    def make() -> Sequence[Any]:
        return [mps.MPSImageLaplacianPyramidSubtract(DEVICE), mps.MPSImageLaplacianPyramidAdd(DEVICE)]

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        found = [_texture([0.0, 0.0, 0.0]) for _ in made]
        for each, destination in zip(made, found, strict=True):
            each.encode(command_buffer, _texture([1.0, 1.0, 1.0]), destination)
        return [mps.MPSImage(texture=each) for each in found]

    return Subject(make, encode)


def _pyramids(reading: str) -> list[list[float]]:
    expanded = oracle.expanded([[1.0, 1.0], [1.0, 1.0]], 4, reading)
    smaller = 1.0 + oracle.expanded([[1.0]], 2, reading)
    return [list((1.0 - expanded).ravel()), list((1.0 + oracle.expanded(smaller, 4, reading)).ravel())]


# --- the guided filter ------------------------------------------------------------------------------------------------

_SOURCE, _GUIDANCE = [0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.5, 1.0, 1.0, 0.25]


def _guided() -> Subject:
    def make() -> Sequence[Any]:
        made = mps.MPSImageGuidedFilter(DEVICE, 3)
        made.epsilon = 0.25
        return [made]

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        results = [row_image([0.0] * len(_SOURCE)) for _ in range(2)]
        made.encode_regression(
            command_buffer,
            row_image(_SOURCE),
            row_image(_GUIDANCE),
            destination_coefficients_texture_a=results[0],
            destination_coefficients_texture_b=results[1],
        )
        return results

    return Subject(make, encode)


CASES: Mapping[str, Case] = {
    "convolution_flip": Case(
        {"as_written": [[5, 8, 3]], "flipped": [[1, 4, 7]]},
        filtered(lambda: mps.MPSImageConvolution(DEVICE, 3, 3, _WEIGHTS), row_image(_ROW), 3),
        no_node("MPSImageConvolution"),
    ),
    "image_variance": Case(
        {
            "population": [[np.mean(_NUMBERS), np.var(_NUMBERS)]],
            "sample": [[np.mean(_NUMBERS), np.var(_NUMBERS, ddof=1)]],
        },
        filtered(lambda: mps.MPSImageStatisticsMeanAndVariance(DEVICE), row_image(_NUMBERS), 2),
        no_node("MPSImageStatisticsMeanAndVariance"),
    ),
    "integral_pixel": Case(
        {"counted": [[1, 3, 6, 5, 12, 21]], "left_out": [[0, 0, 0, 0, 1, 3]]},
        filtered(lambda: mps.MPSImageIntegral(DEVICE), image(_FIELD[..., None]), 3, 2),
        no_node("MPSImageIntegral"),
    ),
    "pyramid_gain": Case(
        {each: _pyramids(each) for each in ("as_given", "fourfold")},
        _pyramid(),
        no_node("MPSImageLaplacianPyramidSubtract"),
    ),
    "guided_average": Case(
        {each: oracle.guided(_SOURCE, _GUIDANCE, 3, 0.25, each) for each in ("averaged", "own")},
        _guided(),
        no_node("MPSImageGuidedFilter"),
    ),
    "lanczos_window": Case(
        {each: [oracle.shrunk(_IMPULSE, 2, each)] for each in ("widened", "narrow")},
        filtered(lambda: mps.MPSImageLanczosScale(DEVICE), row_image(_IMPULSE), 2),
        network(_shrunk, row_image(_IMPULSE)),
    ),
}
