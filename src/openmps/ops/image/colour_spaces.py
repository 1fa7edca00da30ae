"""Colours of one space as those of another (MPSImageConversion.h, CGColorSpace.h).

Components are made linear, colours go by a matrix 3 x 3 over the primaries' tristimulus values, and get the curve of
the other space. Curves go on beyond 0 … 1, below 0 by their mirror image. A grey value is the luminance seen by the
white of print, D50, as profiles have it; a grey becomes a colour of three equal components.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.ops.op import Kind, Op
from openmps.types import CGColorSpace

_Matrix = NDArray[np.floating[Any]]
_COLOURS = 3
_D65, _D50 = (0.3127, 0.3290), (0.3457, 0.3585)
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_BT709 = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
_P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))


def _decoded_srgb(x: Tensor) -> Tensor:
    return torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055).clamp_min(0.0) ** 2.4)


def _encoded_srgb(x: Tensor) -> Tensor:
    return torch.where(x <= 0.0031308, x * 12.92, 1.055 * x.clamp_min(0.0) ** (1.0 / 2.4) - 0.055)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _powered(exponent: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.pow(exponent)


class _Space(NamedTuple):
    """What a space is made of; curves are of magnitudes."""

    primaries: tuple[tuple[float, float], ...] | None = None
    """Places of red, green and blue in CIE's plane of 1931; None of grey. White is D65."""
    decode: Callable[[Tensor], Tensor] = _as_it_is
    encode: Callable[[Tensor], Tensor] = _as_it_is


_SPACES = {
    CGColorSpace.SRGB: _Space(_BT709, _decoded_srgb, _encoded_srgb),
    CGColorSpace.LINEAR_SRGB: _Space(_BT709),
    CGColorSpace.DISPLAY_P3: _Space(_P3, _decoded_srgb, _encoded_srgb),
    CGColorSpace.GENERIC_GRAY_GAMMA2_2: _Space(None, _powered(2.2), _powered(1.0 / 2.2)),
    CGColorSpace.LINEAR_GRAY: _Space(),
}


def _tristimulus(place: tuple[float, float]) -> _Matrix:
    x, y = place
    return np.array([x / y, 1.0, (1.0 - x - y) / y])


def _to_xyz(primaries: tuple[tuple[float, float], ...]) -> _Matrix:
    """Tristimulus values of linear colours: those of the primaries, so that all three are white."""
    columns = np.stack([_tristimulus(each) for each in primaries], 1)
    return columns * np.linalg.solve(columns, _tristimulus(_D65))


def _adapted() -> _Matrix:
    """Tristimulus values under D50 of those under D65, by Bradford's cones."""
    before, behind = (_BRADFORD @ _tristimulus(white) for white in (_D65, _D50))
    return np.linalg.inv(_BRADFORD) @ np.diag(behind / before) @ _BRADFORD


@cache
def matrix(source: CGColorSpace, result: CGColorSpace) -> _Matrix:
    """What linear components of one space are multiplied by: ``[components, components]``."""
    before, behind = _SPACES[source].primaries, _SPACES[result].primaries
    if before is None:
        return np.ones((1 if behind is None else _COLOURS, 1))
    if behind is None:
        return (_adapted() @ _to_xyz(before))[1:2]
    return np.linalg.solve(_to_xyz(behind), _to_xyz(before))


def convert_colour(x: Tensor, source: CGColorSpace, result: CGColorSpace) -> Tensor:
    """Colours ``[N, C, H, W]`` in another space; alpha behind three components stays, and none is behind a grey."""
    colours = x[:, : source.number_of_components]
    linear = _mirrored(_SPACES[source].decode, colours)
    factors = torch.from_numpy(matrix(source, result)).to(x)
    mixed = torch.einsum("oi,nihw->nohw", factors, linear) if source is not result else linear
    made = _mirrored(_SPACES[result].encode, mixed)
    rest = x[:, _COLOURS:] if source.number_of_components == result.number_of_components == _COLOURS else x[:, :0]
    return torch.cat([made, rest], 1)


def _mirrored(curve: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.copysign(curve(x.abs()), x)


class ConvertColour(Op, of=convert_colour, kind=Kind.REDUCTION):
    """`convert_colour` of a picture."""

    source: CGColorSpace
    result: CGColorSpace
