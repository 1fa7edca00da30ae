"""Thresholds of pictures (MPSImageThreshold.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from openmps.checks import number
from openmps.core.image.storage import Shape
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import SourceRecord
from openmps.kernels.image_filters.gray import GRAY_WEIGHTS, gray_weights
from openmps.metal.device import MTLDevice
from openmps.ops.elements import COMPONENTS, Components
from openmps.ops.image.colour import Gray, Spread
from openmps.ops.image.readings import ThresholdColours
from openmps.ops.image.threshold import Threshold, ThresholdBytes, Thresholding, bytes_of_threshold
from openmps.ops.op import Value


class _Threshold(MPSUnaryImageKernel):
    """What the five thresholds share.

    v is the number of a source of one channel, else the gray value of `transform`. A destination of several channels
    gets the result in red, green and blue, and 1 in alpha; by the convention ``threshold_destination`` in red alone, by
    ``threshold_colours`` colours stay what they are.
    """

    _filters_bytes = True
    _is_by_rows = True
    _most_channels = COMPONENTS
    _thresholding: ClassVar[Thresholding]
    _keeps_own: ClassVar[bool] = False
    """Whether a result may be a number of the source."""

    def _takes_stored(self, records: tuple[SourceRecord, ...], shapes: tuple[Shape, ...], destination: Shape) -> bool:
        is_gray = records[0].channels == 1 == destination.extent.channels
        return is_gray and super()._takes_stored(records, shapes, destination)

    threshold_value = Fixed[float]("What v is compared with: equal is not above it.")
    transform = Fixed[tuple[float, float, float]](
        "Weights of red, green and blue in the gray value; 0.299, 0.587, 0.114 unless given.", GRAY_WEIGHTS
    )

    def _set(
        self, threshold_value: float, transform: Sequence[float] | None, maximum_value: float | None = None
    ) -> None:
        weights = gray_weights(self.name, "linear_gray_color_transform", transform)
        self._change(threshold_value=number(self.name, "threshold_value", threshold_value), transform=weights)
        if maximum_value is not None:
            self._change(maximum_value=number(self.name, "maximum_value", maximum_value))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        largest: float = getattr(self, "maximum_value", 0.0)
        if at.as_stored:
            bounds = bytes_of_threshold(self.threshold_value, largest)
            return ThresholdBytes(self._thresholding, *bounds)(at.read(images[0]))
        region, channels = at.read(images[0]), at.target.channels
        value = Gray(self.transform)(region)
        keeps_colours = self._keeps_own and min(channels, at.sources[0].channels) > 2
        if keeps_colours and self.conventions["threshold_colours"] == "channels":
            is_cut = self._thresholding is Thresholding.TRUNCATE
            is_kept_above = self._thresholding is Thresholding.TO_ZERO
            colours = ThresholdColours(self.threshold_value, is_cut, is_kept_above)(value, region)
            return colours if channels == COMPONENTS - 1 else Components(channels)(colours)
        found = Threshold(self._thresholding, self.threshold_value, largest)(value)
        fills_red = channels > 1 and self.conventions["threshold_destination"] == "red"
        return (Components if fills_red else Spread)(channels)(found)


class _Binary(_Threshold):
    """A threshold whose result has two values."""

    maximum_value = Fixed[float]("The value that is not 0.")

    def __init__(
        self,
        device: MTLDevice,
        threshold_value: float,
        maximum_value: float,
        linear_gray_color_transform: Sequence[float] | None = None,
    ) -> None:
        super().__init__(device)
        self._set(threshold_value, linear_gray_color_transform, maximum_value)


class _Cut(_Threshold):
    """A threshold whose result has v itself on one side."""

    _keeps_own = True

    def __init__(
        self, device: MTLDevice, threshold_value: float, linear_gray_color_transform: Sequence[float] | None = None
    ) -> None:
        super().__init__(device)
        self._set(threshold_value, linear_gray_color_transform)


class MPSImageThresholdBinary(_Binary):
    """`maximum_value` where v > `threshold_value`, else 0 (MPSImageThreshold.h, macOS 10.13).

    v is the number of a source of one channel, else ``transform . (R, G, B)``. A destination of several channels gets
    the result in red, green and blue, and 1 in alpha.

    Raises:
        MPSArgumentError: In an encode, a source or a destination has more than 4 channels.
    """

    _thresholding = Thresholding.BINARY


class MPSImageThresholdBinaryInverse(_Binary):
    """0 where v > `threshold_value`, else `maximum_value` (MPSImageThreshold.h, macOS 10.13).

    v and the channels are those of `MPSImageThresholdBinary`.
    """

    _thresholding = Thresholding.BINARY_INVERSE


class MPSImageThresholdTruncate(_Cut):
    """`threshold_value` where v > `threshold_value`, else v (MPSImageThreshold.h, macOS 10.13).

    v and the channels are those of `MPSImageThresholdBinary`: of colours the gray value is stored.
    """

    _thresholding = Thresholding.TRUNCATE


class MPSImageThresholdToZero(_Cut):
    """v where v > `threshold_value`, else 0 (MPSImageThreshold.h, macOS 10.13).

    v and the channels are those of `MPSImageThresholdBinary`: of colours the gray value is stored.
    """

    _thresholding = Thresholding.TO_ZERO


class MPSImageThresholdToZeroInverse(_Cut):
    """0 where v > `threshold_value`, else v (MPSImageThreshold.h, macOS 10.13).

    v and the channels are those of `MPSImageThresholdBinary`: of colours the gray value is stored.
    """

    _thresholding = Thresholding.TO_ZERO_INVERSE
