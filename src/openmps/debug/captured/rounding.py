"""How far rounding takes a layer's result: a bound for each number, from the layer itself with its operands rounded.

The formats of a device say how numbers are rounded, not in which order they are added. So operands are moved by one
rounding each, up or down at random, some times: the spread of the results is what roundings of that size make of this
very layer, whatever it computes. A number is explained where it lies within a few spreads and one step of its format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from openmps.debug.captured.layers import NOTHING, WEIGHTS, Change, Layer
from openmps.types import MPSImageFeatureChannelFormat

_FLOAT16, _FLOAT32 = MPSImageFeatureChannelFormat.FLOAT16, MPSImageFeatureChannelFormat.FLOAT32
_RUNS = 8
_SPREADS = 3.0
"""Spreads that are explained. Roundings are spread evenly up to the largest, 0.4 of it on average: these are seven."""
_ROUNDINGS = {_FLOAT16: (2.0**-11, 2.0**-25), _FLOAT32: (2.0**-18, 2.0**-149)}
"""The largest rounding of an operand, of its magnitude and at least; of float32 six bits are left to fast functions."""
_STEPS = {
    MPSImageFeatureChannelFormat.UNORM8: (0.0, 1 / 255),
    MPSImageFeatureChannelFormat.UNORM16: (0.0, 1 / 65_535),
    _FLOAT16: (2.0**-10, 2.0**-24),
    _FLOAT32: (2.0**-23, 2.0**-149),
}
"""From a number to its neighbour in a format: of its magnitude and at least."""
_UNORM = (MPSImageFeatureChannelFormat.UNORM8, MPSImageFeatureChannelFormat.UNORM16)
_SEED = 11


class Precision(NamedTuple):
    """How a device rounds."""

    result: MPSImageFeatureChannelFormat
    """What the layer's result is stored as."""
    images: MPSImageFeatureChannelFormat
    """What it computes with at least, float16 or float32: what images are stored as that it does not show."""
    weights: MPSImageFeatureChannelFormat
    """What weights of convolutions are rounded to."""

    def of(self, parameter: str | None) -> MPSImageFeatureChannelFormat:
        """What an operand is rounded to: a parameter by its name, an image by none."""
        return self.weights if parameter in WEIGHTS else self.images


class Expected(NamedTuple):
    """What a layer gives here, and how far a device's numbers may be from it, each ``[N, C, H, W]``."""

    numbers: Tensor
    bound: Tensor


def operand_format(stored: Iterable[MPSImageFeatureChannelFormat]) -> MPSImageFeatureChannelFormat:
    """The coarsest format of floats that a device computes with, by what it stores."""
    return _FLOAT16 if _FLOAT16 in stored else _FLOAT32


def expected(layer: Layer, precision: Precision, change: Change = NOTHING) -> Expected:
    """Run a layer, and say what rounding explains."""
    generator = torch.Generator().manual_seed(_SEED)
    exact = _reached(layer.run(change), precision.result)
    given, rest = {**layer.given, **change.given}, replace(change, given={})
    squares = torch.zeros_like(exact, dtype=torch.float64)
    for _ in range(_RUNS):
        moved = {
            value: _moved(each, precision.of(layer.parameters.get(value)), generator) for value, each in given.items()
        }
        found = layer.run(rest, moved, lambda _, each: _moved(each, precision.images, generator))
        errors = _reached(found, precision.result).double() - exact.double()
        squares += errors.nan_to_num_(0.0, 0.0, 0.0).square_()
    spread = (squares / _RUNS).sqrt_()
    # By chance the spread of one number may be small: it is no smaller than is usual in its channel.
    usual = spread.square().mean((2, 3), keepdim=True).sqrt_()
    return Expected(exact, _SPREADS * torch.maximum(spread, usual) + _step(exact, precision.result))


def _step(numbers: Tensor, channel_format: MPSImageFeatureChannelFormat) -> Tensor:
    """An error of rounding to a format, whichever way that goes."""
    relative, least = _STEPS[channel_format]
    return (numbers.double().abs().nan_to_num_(0.0, 0.0, 0.0) * relative).clamp_(min=least)


def _reached(numbers: Tensor, channel_format: MPSImageFeatureChannelFormat) -> Tensor:
    """Numbers as far as a format reaches, not rounded."""
    return numbers.clamp(0.0, 1.0) if channel_format in _UNORM else numbers


def _moved(numbers: Tensor, channel_format: MPSImageFeatureChannelFormat, generator: torch.Generator) -> Tensor:
    """Numbers moved by one rounding each, up or down."""
    if not numbers.is_floating_point():
        return numbers
    relative, least = _ROUNDINGS[channel_format]
    signs = torch.randint(0, 2, numbers.shape, generator=generator).to(numbers) * 2 - 1
    return numbers + signs * (numbers.abs() * relative).clamp_(min=least)


def explained(found: Tensor, wanted: Expected) -> Tensor:
    """Which numbers are explained; NaN and infinity by the same alone."""
    error = (found.double() - wanted.numbers.double()).abs()
    same = (found == wanted.numbers) | (found.isnan() & wanted.numbers.isnan())
    return same | (error <= wanted.bound)


def share_of_bound(found: Tensor, wanted: Expected) -> float:
    """The largest error over its bound: 1 and less is explained."""
    error = (found.double() - wanted.numbers.double()).abs() / wanted.bound
    error[explained(found, wanted) & ~error.isfinite()] = 0.0
    return float(error.nan_to_num_(float("inf"), float("inf")).max())
