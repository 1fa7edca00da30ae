"""Enlarging between the centres of pixels that are squares, with its adjoint.

One axis, enlarged by f, linear interpolation at ``u = (i + 1/2) / f - 1/2 + offset``, the pixels of the edge repeated.
"""

from __future__ import annotations

from torch import Tensor

from openmps.ops.op import Kind, Op
from openmps.ops.resample.image_scale import ScaleFilter, Scaling, scale_image
from openmps.ops.resample.resample import resample_adjoint
from openmps.types import MPSImageEdgeMode


def interpolate_halves(x: Tensor, rows: Scaling, columns: Scaling) -> Tensor:
    """[N, C, H, W] to [N, C, rows.axis.result, columns.axis.result]; see the top of this file."""
    return scale_image(x, rows, columns, ScaleFilter.BILINEAR, MPSImageEdgeMode.CLAMP)


def interpolate_halves_gradient(gradient: Tensor, rows: Scaling, columns: Scaling) -> Tensor:
    """The exact adjoint of `interpolate_halves`: each gradient pixel, by its weights, where it was read."""
    down, across = (axis.taps(ScaleFilter.BILINEAR, MPSImageEdgeMode.CLAMP, gradient) for axis in (rows, columns))
    return resample_adjoint(gradient, down, across)


class InterpolateHalves(Op, of=interpolate_halves, kind=Kind.WINDOW):
    """`interpolate_halves` of an image."""

    rows: Scaling
    columns: Scaling


class InterpolateHalvesGradient(Op, of=interpolate_halves_gradient, kind=Kind.WINDOW):
    """`interpolate_halves_gradient` of a gradient."""

    rows: Scaling
    columns: Scaling
