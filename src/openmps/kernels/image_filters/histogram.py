"""Histograms of pictures (MPSImageHistogram.h, macOS 10.13 and 10.14)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from openmps.checks import flag, listed, number
from openmps.convention import Conventions
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Shape
from openmps.core.kernel.arguments import clip_rectangle, single
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel
from openmps.core.vector import MPSVector
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.kernels.image_filters.histogram_buffers import (
    COUNT,
    HISTOGRAM_ALIGNMENT,
    channels_counted,
    check_info,
    counts_in,
)
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.ops.elements import COMPONENTS, Crop
from openmps.ops.image.histogram import Histogram, NormalizedHistogram
from openmps.ops.op import Value
from openmps.types import MPSImageFeatureChannelFormat, MPSImageHistogramInfo, MPSRectNoClip, MTLPixelFormat

_SOURCE = Argument("source_texture", MPSImage)
_COUNTS = Argument("histogram", MPSVector, (COUNT,), is_result=True)


def _four(who: str, argument: str, values: object) -> tuple[float, ...]:
    found = tuple(number(who, argument, value) for value in listed(who, argument, values, "number"))  # pyright: ignore[reportArgumentType]
    if len(found) != 4:
        rule = "must be four numbers, for red, green, blue and alpha"
        raise MPSArgumentError(who, argument, rule, f"{len(found)} number(s)")
    return found


def channels_of(who: str, source_format: MTLPixelFormat) -> int:
    """Components of a pixel format."""
    found = member(who, "source_format", MTLPixelFormat, source_format)
    components = found.name.partition("_")[0].rstrip("0123456789")
    if found is MTLPixelFormat.INVALID:
        raise MPSArgumentError(who, "source_format", "must be the format of a picture", found.name)
    return len(components)


def rounds(conventions: Conventions) -> bool:
    """Whether numbers are rounded to bins, by a convention."""
    return conventions["histogram_bins"] == "rounded"


class _Counting(OperandKernel):
    """What both histograms share."""

    histogram_info = Fixed[MPSImageHistogramInfo]("The bins, and what they span.")
    clip_rect_source = KernelProperty(
        MPSRectNoClip,
        clip_rectangle,
        "The pixels of the source that are counted, cut to it; z must be 0. Default: all.",
    )
    zero_histogram = KernelProperty(
        True, flag, "Whether the counts in the buffer begin anew; else they go on. Default True."
    )

    def __init__(self, device: MTLDevice, histogram_info: MPSImageHistogramInfo) -> None:
        super().__init__(device)
        self._change(histogram_info=check_info(self.name, histogram_info))

    def histogram_size(self, source_format: MTLPixelFormat) -> int:
        """Bytes of the histogram of pictures of this format."""
        channels = channels_counted(
            self.name, "source_format", self.histogram_info, channels_of(self.name, source_format)
        )
        return 4 * channels * self.histogram_info.number_of_histogram_entries

    def _counts(self, image: MPSImage, histogram: object, offset: object) -> MPSVector:
        """The part of a buffer that the counts of a picture take."""
        info = self.histogram_info
        if info.histogram_for_alpha and image.feature_channels == COMPONENTS - 1:
            rule = "must have 4 feature channels, as histogram_for_alpha is set"
            remedy = "Convert it to 4 channels, or leave alpha out"
            raise MPSArgumentError(self.name, "source_texture", rule, image.feature_channels, remedy)
        channels = channels_counted(self.name, "source_texture", info, image.feature_channels)
        count = channels * info.number_of_histogram_entries
        return counts_in(self.name, "histogram", histogram, offset, count, HISTOGRAM_ALIGNMENT)

    def _part(self, at: OperandContext) -> Value:
        """The numbers of `clip_rect_source`."""
        shape: Shape = at.shape("source_texture")
        clip, extent = self.clip_rect_source, shape.extent
        width = min(clip.size.width, extent.width - clip.origin.x)
        height = min(clip.size.height, extent.height - clip.origin.y)
        if width < 1 or height < 1 or clip.origin.z:
            rule = f"must overlap the source of {extent.width}x{extent.height} pixels, its z must be 0"
            raise MPSArgumentError(self.name, "clip_rect_source", rule, clip)
        is_bytes = shape.number_format is MPSImageFeatureChannelFormat.UNORM8  # counted as they are stored
        numbers = (at.elements if is_bytes else at.numbers)("source_texture")
        is_whole = (width, height) == (extent.width, extent.height)
        return numbers if is_whole else Crop(clip.origin.y, clip.origin.x, height, width)(numbers)

    def _before(self, at: OperandContext) -> Value | None:
        return None if self.zero_histogram else at.elements("histogram")

    def _spans(self, at: OperandContext) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The bounds of each channel that is counted."""
        info, shape = self.histogram_info, at.shape("source_texture")
        channels = channels_counted(self.name, "source_texture", info, shape.extent.channels)
        return info.min_pixel_value[:channels], info.max_pixel_value[:channels]


class MPSImageHistogram(_Counting):
    """How many numbers of each channel are in each bin (MPSImageHistogram.h, macOS 10.13).

    With n bins over ``min_pixel_value`` … ``max_pixel_value`` of the channel, a number v is in bin
    ``floor((v - min) / (max - min) n)``; what is beyond the bounds counts in the first and the last bin. The buffer
    gets n uint32 numbers for each of red, green and blue, and for alpha if it is asked for. Images of one object are
    counted together. NaN is not counted.

    Raises:
        MPSArgumentError: In an encode, the buffer is too small, its offset no multiple of 32, the clip rectangle beside
            the source, or the source has more than 4 channels, or 3 where alpha is asked for: their format has 4.
    """

    _arguments = (_SOURCE, _COUNTS)

    min_pixel_threshold_value = KernelProperty[tuple[float, ...]](
        (0.0, 0.0, 0.0, 0.0), _four, "The least number of each channel that is counted. Default 0."
    )

    def encode(
        self, command_buffer: CommandBuffer, source_texture: MPSImage, histogram: MTLBuffer, histogram_offset: int
    ) -> None:
        """Record the count into the buffer, from a byte on, a multiple of 32."""
        source = single(self.name, "source_texture", source_texture)
        self._encode(command_buffer, source, self._counts(source, histogram, histogram_offset))

    def _lower(self, at: OperandContext) -> None:
        low, high = self._spans(at)
        least = self._least(low, high)
        count = Histogram(self.histogram_info.number_of_histogram_entries, low, high, least, rounds(self.conventions))
        at.store_elements("histogram", count(self._part(at), self._before(at)))

    def _least(self, low: Sequence[float], high: Sequence[float]) -> tuple[float, ...]:
        """The least number of each channel that is counted: as given, or of numbers that are cut to the bounds."""
        given = self.min_pixel_threshold_value[: len(low)]
        if self.conventions["histogram_threshold"] == "before":
            return given
        spans = zip(given, low, high, strict=True)
        return tuple(
            -math.inf if least <= first else math.inf if least > last else least for least, first, last in spans
        )


class MPSImageNormalizedHistogram(_Counting):
    """A histogram that spans the numbers that are there (MPSImageHistogram.h, macOS 10.13).

    The smallest and the largest number of each channel are found first, and returned in ``minmax_texture`` at (0, 0)
    and (1, 0). Bins span from one to the other, but not beyond the bounds of `histogram_info`, as those of
    `MPSImageHistogram`. A picture of one colour is in the first bin. NaN makes both extremes NaN.

    Raises:
        MPSArgumentError: In an encode, as `MPSImageHistogram`; or the texture of the extremes is not 2 x 1 pixels with
            the channels of the source.
    """

    _arguments = (_SOURCE, Argument("minmax_texture", MPSImage, is_result=True), _COUNTS)

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_texture: MPSImage,
        minmax_texture: MPSImage,
        histogram: MTLBuffer,
        histogram_offset: int,
    ) -> None:
        """Record the count into the buffer, from a byte on, a multiple of 32."""
        source = single(self.name, "source_texture", source_texture)
        extremes = single(self.name, "minmax_texture", minmax_texture)
        self._encode(command_buffer, source, extremes, self._counts(source, histogram, histogram_offset))

    def _lower(self, at: OperandContext) -> None:
        found, source = at.shape("minmax_texture").extent, at.shape("source_texture").extent
        if (found.width, found.height, found.images, found.channels) != (2, 1, 1, source.channels):
            rule = f"must be one image of 2x1 pixels with {source.channels} feature channel(s)"
            raise MPSArgumentError(self.name, "minmax_texture", rule, found)
        spans, is_rounded = self._spans(at), rounds(self.conventions)
        count = NormalizedHistogram(self.histogram_info.number_of_histogram_entries, *spans, is_rounded)
        extremes, counts = count(self._part(at), self._before(at))
        at.store("minmax_texture", extremes)
        at.store_elements("histogram", counts)
