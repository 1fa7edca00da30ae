"""Bilinear resizing of images and of regions of them (MPSNNResize.h, macOS 10.14)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.ops.resample import Stretch, crop_and_resize, interpolate
from openmps.types import MPSOffset, MPSRegion

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


def _count(who: str, argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MPSArgumentError(who, argument, "must be an integer of at least 1", repr(value))
    return value


class _Resizing(MPSCNNKernel):
    """A kernel whose result has a size of its own."""

    def __init__(self, device: MTLDevice, resize_width: int, resize_height: int) -> None:
        super().__init__(device)
        self._resize_width = _count(self.name, "resize_width", resize_width)
        self._resize_height = _count(self.name, "resize_height", resize_height)

    @property
    def resize_width(self) -> int:
        """Columns that the source, or a region of it, is resized to."""
        return self._resize_width

    @property
    def resize_height(self) -> int:
        """Rows that the source, or a region of it, is resized to."""
        return self._resize_height

    def _sized_by_policy(self, images: list[MPSImage]) -> MPSImageDescriptor:
        (image,), (source,) = images, self._sources
        source.offset = MPSOffset(0, 0, source.offset.z)
        channels = self._channels_read(0, image.feature_channels)
        return MPSImageDescriptor(
            image.feature_channel_format,
            self._resize_width,
            self._resize_height,
            channels,
            self._images_to_make(images),
        )


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

    def __init__(self, device: MTLDevice, resize_width: int, resize_height: int, align_corners: bool = False) -> None:
        super().__init__(device, resize_width, resize_height)
        self._align_corners = bool(align_corners)

    @property
    def align_corners(self) -> bool:
        """Whether the centres of the corner pixels of source and result fall together. Default False."""
        return self._align_corners

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        rows = Stretch.to(source.window.y, self._resize_height, self._align_corners)
        columns = Stretch.to(source.window.x, self._resize_width, self._align_corners)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return interpolate(values[0], rows, columns, source.edge_mode), None

        return operation


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
        self._results_per_image = _count(self.name, "number_of_regions", number_of_regions)
        self._regions = self._checked(regions)

    @property
    def number_of_regions(self) -> int:
        """Results of each image."""
        return len(self._regions)

    @property
    def regions(self) -> tuple[MPSRegion, ...]:
        """Where in the source the results come from."""
        return self._regions

    def _checked(self, regions: object) -> tuple[MPSRegion, ...]:
        count = self._results_per_image
        if not isinstance(regions, Sequence):
            raise MPSTypeError(self.name, "regions", "must be a sequence of MPSRegion", type(regions).__name__)
        if len(regions) < count:
            raise MPSArgumentError(self.name, "regions", f"must be {count}, number_of_regions", len(regions))
        for index, region in enumerate(regions[:count]):
            if not isinstance(region, MPSRegion):
                raise MPSTypeError(self.name, f"regions[{index}]", "must be an MPSRegion", type(region).__name__)
            if not all(map(math.isfinite, _numbers(region))):
                raise MPSArgumentError(self.name, f"regions[{index}]", "must be finite", region)
        return tuple(regions[:count])

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        size = (self._resize_height, self._resize_width)
        listed = torch.tensor([_numbers(region) for region in self._regions], dtype=torch.float64)
        regions = listed.to(self.device.torch_device)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return crop_and_resize(values[0], regions, size, source.window), None

        return operation


def _numbers(region: MPSRegion) -> tuple[float, float, float, float]:
    """Left, top, width and height."""
    return region.origin.x, region.origin.y, region.size.width, region.size.height
