"""Extremes of windows, dilation and erosion (MPSImageMorphology.h, macOS 10.13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import WindowedFilter
from openmps.core.kernel.lowering_context import LoweringContext, read
from openmps.kernels.image_filters.window_values import as_window, window_values
from openmps.metal.device import MTLDevice
from openmps.ops.image.order import Dilate, Extreme
from openmps.ops.image.threshold import Limited
from openmps.ops.op import Value
from openmps.types import MPSImageEdgeMode

_CLAMP = MPSImageEdgeMode.CLAMP


class MPSImageAreaMax(WindowedFilter):
    """The largest number of a window, channel by channel (MPSImageMorphology.h, macOS 10.13).

    Outside the source the nearest pixel counts, whatever `edge_mode` says. NaN in a window is the result.

    Raises:
        MPSArgumentError: A size is even or not positive.
    """

    _filters_bytes = True
    _is_by_rows = True
    _is_largest: ClassVar[bool] = True

    def __init__(self, device: MTLDevice, kernel_width: int, kernel_height: int) -> None:
        super().__init__(device)
        self._set_odd_window(kernel_width, kernel_height)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        found = Extreme(at.window, self._is_largest)(images[0])
        return self._components(at, found, at.sources[0].channels)


class MPSImageAreaMin(MPSImageAreaMax):
    """The smallest number of a window, channel by channel (MPSImageMorphology.h, macOS 10.13).

    Outside the source the nearest pixel counts, whatever `edge_mode` says. NaN in a window is the result.

    Raises:
        MPSArgumentError: A size is even or not positive.
    """

    _is_largest = False


class MPSImageDilate(WindowedFilter):
    """The largest of ``X - values`` over a window, channel by channel (MPSImageMorphology.h, macOS 10.13).

    ``Y[y, x] = max over v, u of (X[y + v - kernel_height / 2, x + u - kernel_width / 2] - values[v, u])``, ``values``
    row by row; they are copied. All zeros make it `MPSImageAreaMax`; infinity leaves a pixel of the window out. Outside
    the source the nearest pixel counts, whatever `edge_mode` says.

    Raises:
        MPSArgumentError: A size is even or not positive, there are not as many values as the window has, or one is NaN.
    """

    _is_by_rows = True
    _is_largest: ClassVar[bool] = True

    values = Fixed[tuple[float, ...]]("The values of the window, row by row. Our addition.")

    def __init__(
        self, device: MTLDevice, kernel_width: int, kernel_height: int, values: Sequence[float] | NDArray[Any]
    ) -> None:
        super().__init__(device)
        self._set_odd_window(kernel_width, kernel_height)
        given = window_values(self.name, "values", values, kernel_width, kernel_height, are_finite=False)
        self._change(values=given)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        image = self._components(at, images[0], at.sources[0].channels)  # first: values change those that it lacks, too
        if not any(self.values):
            return self._begun(Extreme(at.window, self._is_largest)(image))
        values = as_window(self.values, self.kernel_width, self.kernel_height)
        if self.conventions["structure_centre"] == "zero":
            values[self.kernel_height // 2, self.kernel_width // 2] = 0.0
        return self._begun(Dilate(self._is_largest)(read(image, at.window, _CLAMP), at.constant(values)))

    def _begun(self, extreme: Value) -> Value:
        """The extreme, and the number that the search begins from, by the convention 0 or 1."""
        if self.conventions["morphology_start"] == "infinite":
            return extreme
        return Limited(*((0.0, math.inf) if self._is_largest else (-math.inf, 1.0)))(extreme)


class MPSImageErode(MPSImageDilate):
    """The smallest of ``X + values`` over a window, channel by channel (MPSImageMorphology.h, macOS 10.13).

    The same values that dilate erode. All zeros make it `MPSImageAreaMin`; otherwise as `MPSImageDilate`.

    Raises:
        MPSArgumentError: A size is even or not positive, there are not as many values as the window has, or one is NaN.
    """

    _is_largest = False
