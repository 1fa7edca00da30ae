"""Integral images (MPSImageIntegral.h, macOS 10.13)."""

from __future__ import annotations

from openmps.convention import Conventions
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.metal.device import MTLDevice
from openmps.ops.image.integral import Integral
from openmps.ops.op import Value


class MPSImageIntegral(MPSUnaryImageKernel):
    """Each pixel is the sum of all above and to the left, itself too (MPSImageIntegral.h, macOS 10.13).

    ``Y[y, x] = sum of X[offset.y + j, offset.x + i] over j <= y, i <= x``, channel by channel, counted from the corner
    of the clip rectangle. Outside the source ZERO adds nothing, CLAMP its edge again. Sums are float64, and rounded
    once: store them as float32, as unorm formats are cut at 1. By the convention ``integral_pixel`` a pixel leaves out
    its own row and column.
    """

    _works_in_place = False

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Integral(False, _leaves_out(self.conventions))(self._pixels(at, images))


class MPSImageIntegralOfSquares(MPSUnaryImageKernel):
    """Each pixel is the sum of the squares of all above and to the left, itself too (MPSImageIntegral.h, macOS 10.13).

    As `MPSImageIntegral`, of squared numbers.
    """

    _works_in_place = False

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Integral(True, _leaves_out(self.conventions))(self._pixels(at, images))


def _leaves_out(conventions: Conventions) -> bool:
    """Whether a pixel does not count itself, nor its row and column."""
    return conventions["integral_pixel"] == "left_out"
