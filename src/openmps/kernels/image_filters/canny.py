"""Canny's edges (MPSImageConvolution.h, macOS 11)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from openmps.checks import flag
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError
from openmps.kernels.image_filters.gray import GRAY_WEIGHTS, gray_weights
from openmps.kernels.image_filters.reach import gaussian_size
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Axis, Window
from openmps.ops.image.canny import Canny
from openmps.ops.image.colour import Gray
from openmps.ops.image.readings import SOBEL_SHARE
from openmps.ops.image.separable import Profile, Separable, Shape
from openmps.ops.op import Value
from openmps.types import MPSImageEdgeMode


class MPSImageCanny(MPSUnaryImageKernel):
    """1 on edges one pixel wide, else 0 (MPSImageConvolution.h, macOS 11).

    The picture is blurred by a Gaussian of `sigma`, as `MPSImageGaussianBlur` does; of it G is the length of Sobel's
    two differences, not scaled. Pixels stay where G is largest along the gradient, to the nearest 45 degrees: above
    that of the neighbour up or left, not below the other. Strong ones, G above `high_threshold`, are edges, and so are
    weak ones, G above `low_threshold`, that a chain of weak neighbours joins to a strong one.

    Of each channel; of the gray value ``color_transform . (R, G, B)`` where the destination has one channel and the
    source has several. Channels that the source lacks have no edges. All of the source is looked at, whatever part of
    the result is written. Outside the source `edge_mode` decides, which is CLAMP unless set.

    Raises:
        MPSArgumentError: ``sigma`` is refused by `MPSImageGaussianBlur`; in an encode, the low threshold is above the
            high one.
    """

    high_threshold = KernelProperty(0.4, not_negative, "What strong edges are above. Default 0.4.")
    low_threshold = KernelProperty(0.2, not_negative, "What weak edges are above. Default 0.2.")
    use_fast_mode = KernelProperty(
        True, flag, "Whether weak edges may end early; they are followed to their end. Default True."
    )
    sigma = Fixed[float]("The standard deviation of the blur, in pixels; the root of 2 unless given.")
    color_transform = Fixed[tuple[float, float, float]](
        "Weights of red, green and blue in the gray value; 0.299, 0.587, 0.114 unless given.", GRAY_WEIGHTS
    )

    def __init__(
        self,
        device: MTLDevice,
        linear_to_gray_scale_transform: Sequence[float] | None = None,
        sigma: float = math.sqrt(2.0),
    ) -> None:
        super().__init__(device)
        weights = gray_weights(self.name, "linear_to_gray_scale_transform", linear_to_gray_scale_transform)
        gaussian_size(self.name, sigma)
        self._change(color_transform=weights, sigma=float(sigma))
        is_clamp = self.conventions["canny_edge"] == "clamp"
        self.edge_mode = MPSImageEdgeMode.CLAMP if is_clamp else MPSImageEdgeMode.ZERO

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        if self.low_threshold > self.high_threshold:
            rule = f"must not be above high_threshold, {self.high_threshold}"
            raise MPSArgumentError(self.name, "low_threshold", rule, self.low_threshold)
        image, channels, extent = images[0], at.sources[0].channels, at.sources[0].extent
        if at.target.channels == 1 < channels:
            image, channels = Gray(self.color_transform)(image), 1
        size = gaussian_size(self.name, self.sigma)
        whole = Window(Axis(extent.width, extent.width, size), Axis(extent.height, extent.height, size))
        blurred = Separable(whole, at.edge_mode, Profile(Shape.BELL, self.sigma))(image)
        unit = SOBEL_SHARE if self.conventions["canny_scale"] == "quarter" else 1.0
        edges = Canny(
            self.low_threshold / unit, self.high_threshold / unit, at.edge_mode, self.conventions["canny_thinning"]
        )(blurred)
        return self._components(at, at.read(edges), channels, alpha=0.0)
