"""Bilinear resizing of images and of regions of them (MPSNNResize.h, macOS 10.14)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openmps.checks import Shown, flag, of_kind
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.configuration import Fixed, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import integer
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.ops.resample.resample import CropAndResize, Interpolate
from openmps.ops.resample.stretch import Corners, Stretch
from openmps.types import MPSRegion


class _Resizing(MPSCNNKernel):
    """A kernel whose result has a size of its own."""

    resize_width = Fixed[int]("Columns that the source, or a region of it, is resized to.")
    resize_height = Fixed[int]("Rows that the source, or a region of it, is resized to.")

    def __init__(self, device: MTLDevice, resize_width: int, resize_height: int) -> None:
        super().__init__(device)
        self._change(
            resize_width=integer(self.name, "resize_width", resize_width, 1),
            resize_height=integer(self.name, "resize_height", resize_height, 1),
        )

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        self._place(0, 0, 0, 0)
        channels = self._channels_read(0, shapes[0].extent.channels)
        return Extent(self.resize_width, self.resize_height, channels, self._images_to_make(shapes))


class MPSNNResizeBilinear(_Resizing):
    """The source in another size, by linear interpolation along each axis (MPSNNResize.h, macOS 10.14).

    ``Y[i] = (1 - w) X[k] + w X[k + 1]`` with k the whole and w the fractional part of the position u; n is the source's
    width or height, m `resize_width` or `resize_height`::

        u = i n / m + offset                                align_corners False
        u = i (n - 1) / (m - 1) + offset, offset if m = 1   align_corners True

    As in TensorFlow 1: without ``align_corners`` there is no shift by half a pixel (PyTorch, OpenCV and Core Image have
    one), and an image that shrinks is not smoothed first. Behind the last pixel there is the last pixel; what lies
    further outside, which only an offset or a larger clip rectangle reaches, is the edge mode's business.
    """

    align_corners = Fixed[bool](
        "Whether the centres of the corner pixels of source and result fall together. Default False."
    )

    def __init__(self, device: MTLDevice, resize_width: int, resize_height: int, align_corners: bool = False) -> None:
        super().__init__(device, resize_width, resize_height)
        self._change(align_corners=flag(self.name, "align_corners", align_corners))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        rows = Stretch.to(at.window.y, self.resize_height, self.align_corners)
        columns = Stretch.to(at.window.x, self.resize_width, self.align_corners)
        return Interpolate(rows, columns, at.edge_mode)(images[0])


_CORNERS = {"corners": Corners.CENTRES, "edges": Corners.EDGES, "steps": Corners.STEPS}
"""By the convention ``region_corners``."""


class MPSNNCropAndResizeBilinear(_Resizing):
    """Regions of every image, each resized by linear interpolation (MPSNNResize.h, macOS 10.14).

    Each image gives R = `number_of_regions` results: image b, region r is image ``b R + r`` of the result, an image
    object that holds R times as many images as the source, or a batch R times as long.

    Regions are `MPSRegion` in fractions of the source: 0 is the centre of its first pixel, 1 that of its last, as in
    ``tf.image.crop_and_resize``. Along each axis, from a = origin to b = origin + size, with m `resize_width` or
    `resize_height` and n the source's width or height, result pixel i shows the position::

        u = (a + i (b - a) / (m - 1)) (n - 1) + offset      m > 1
        u = (a + b) / 2 (n - 1) + offset                    m = 1

    and 0 where u is outside of 0 … n - 1, whatever the edge mode. Sizes below 0 turn the region round. z and depth of
    regions mean nothing here.
    """

    _results_per_image = Setting[int]()  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    number_of_regions = Shown[int]("_results_per_image", "Results of each image.")
    regions = Fixed[tuple[MPSRegion, ...]]("Where in the source the results come from.")

    def __init__(
        self,
        device: MTLDevice,
        resize_width: int,
        resize_height: int,
        number_of_regions: int,
        regions: Sequence[MPSRegion],
    ) -> None:
        """``regions`` is copied; the first ``number_of_regions`` are used."""
        super().__init__(device, resize_width, resize_height)
        self._results_per_image = integer(self.name, "number_of_regions", number_of_regions, 1)
        self._change(regions=self._checked(regions))

    def _checked(self, regions: object) -> tuple[MPSRegion, ...]:
        count = self._results_per_image
        if not isinstance(regions, Sequence):
            raise MPSTypeError(self.name, "regions", "must be a sequence of MPSRegion", type(regions).__name__)
        if len(regions) < count:
            raise MPSArgumentError(self.name, "regions", f"must be {count}, number_of_regions", len(regions))
        for index, region in enumerate(regions[:count]):
            of_kind(self.name, f"regions[{index}]", region, MPSRegion)
            if not all(map(math.isfinite, _numbers(region))):
                raise MPSArgumentError(self.name, f"regions[{index}]", "must be finite", region)
        return tuple(regions[:count])

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        regions = at.constant(np.array([_numbers(region) for region in self.regions], np.float64))
        corners = _CORNERS[self.conventions["region_corners"]]
        return CropAndResize((self.resize_height, self.resize_width), at.window, corners)(images[0], regions)


def _numbers(region: MPSRegion) -> tuple[float, float, float, float]:
    """Left, top, width and height."""
    return region.origin.x, region.origin.y, region.size.width, region.size.height
