"""Scaling of pictures (MPSImageKernel.h and MPSImageResampling.h, macOS 10.13)."""

from __future__ import annotations

import math

from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Axis
from openmps.ops.op import Value
from openmps.ops.resample.image_scale import ScaleFilter, ScaleImage, Scaling
from openmps.types import MPSImageEdgeMode, MPSOrigin, MPSRegion, MPSScaleTransform, MPSSize, MTLSize

_LEAST_SCALE = 2.0**-16
"""Less than a pixel of the largest images: a filter that widens as an image shrinks must not widen without end."""


def _transform(who: str, argument: str, value: MPSScaleTransform | None) -> MPSScaleTransform | None:
    if value is None:
        return None
    if not isinstance(value, MPSScaleTransform):
        raise MPSTypeError(who, argument, "must be an MPSScaleTransform or None", type(value).__name__)
    numbers = (value.scale_x, value.scale_y, value.translate_x, value.translate_y)
    if not all(map(math.isfinite, numbers)) or min(abs(value.scale_x), abs(value.scale_y)) < _LEAST_SCALE:
        rule = f"must be finite, its scales not 0 but at least {_LEAST_SCALE} in magnitude"
        raise MPSArgumentError(who, argument, rule, value)
    return value


class MPSImageScale(MPSUnaryImageKernel):
    """The base of filters that resize pictures (MPSImageResampling.h, macOS 10.13).

    Pixels are squares, as with textures: pixel k reaches from k to k + 1, its centre is k + 1/2. Result pixel i,
    counted from the corner of the clip rectangle, shows the source around the position u of its centre::

        u + 1/2 = (i + 1/2 - translate) / scale + offset

    along each axis, with `scale_transform` or, where that is None, ``scale = destination size / source size`` and no
    translation. Outside the source `edge_mode` decides, which is CLAMP unless set, not ZERO as of other kernels: so
    borders do not darken.
    """

    scale_transform = KernelProperty[MPSScaleTransform | None](
        None,
        _transform,
        """``destination position = source position * scale + translate``, from the corner of the clip rectangle.

        Scales may be negative, which turns the image round, but not less than 1/65536 in magnitude. Default None: the
        whole source fills the destination.
        """,
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)
        self.edge_mode = MPSImageEdgeMode.CLAMP

    @property
    def _filter(self) -> ScaleFilter | None:
        """What weighs source pixels; None for this base class."""
        return None

    def source_region(self, destination_size: MTLSize) -> MPSRegion:
        """The region of the source that an encode into a destination of this size reads, by `scale_transform`.

        Raises:
            MPSArgumentError: There is no `scale_transform`: the region is the whole source then, whatever its size.
        """
        kind, transform = self._filter, self.scale_transform
        if kind is None:
            raise MPSTypeError(self.name, "source_region", "is not offered by this base class", None, "Use a filter")
        size = self._written_size(destination_size)
        if transform is None:
            rule = "must be set to tell the region: without it the whole source is read"
            raise MPSArgumentError(self.name, "scale_transform", rule, None)
        x, y = Axis(1, size.width, offset=self.offset.x), Axis(1, size.height, offset=self.offset.y)
        columns, rows = self._scalings(transform, x, y)
        (left, right), (top, bottom) = columns.region(kind), rows.region(kind)
        return MPSRegion(MPSOrigin(left, top, 0.0), MPSSize(right - left, bottom - top, 1.0))

    def _lower(self, at: LoweringContext, *images: Value) -> Value | None:
        kind = self._filter
        if kind is None:
            return super()._lower(at, *images)
        source = at.sources[0].extent
        whole = at.target if self.scale_transform is None and self._fills_clip(at) else at.destination
        fitted = MPSScaleTransform(whole.width / source.width, whole.height / source.height)
        columns, rows = self._scalings(self.scale_transform or fitted, at.window.x, at.window.y)
        made = ScaleImage(rows, columns, kind, at.edge_mode)(images[0])
        return self._components(at, made, at.sources[0].channels)

    def _fills_clip(self, at: LoweringContext) -> bool:
        """Whether the source fills the clip rectangle, where that is not all of the destination."""
        is_part = (at.target.width, at.target.height) != (at.destination.width, at.destination.height)
        return is_part and self.conventions["scale_base"] == "clip"

    def _scalings(self, transform: MPSScaleTransform, x: Axis, y: Axis) -> tuple[Scaling, Scaling]:
        """Columns and rows."""
        return (
            Scaling(x, transform.scale_x, transform.translate_x),
            Scaling(y, transform.scale_y, transform.translate_y),
        )


class MPSImageBilinearScale(MPSImageScale):
    """Linear interpolation between the two nearest pixels of each axis (MPSImageResampling.h, macOS 10.13).

    ``Y = (1 - w) X[k] + w X[k + 1]`` with k the whole and w the fractional part of u, as a texture is sampled. An image
    that shrinks to less than half shows some of its pixels and leaves others out; Lanczos takes all into account.
    """

    @property
    def _filter(self) -> ScaleFilter:
        return ScaleFilter.BILINEAR


class MPSImageLanczosScale(MPSImageScale):
    """Lanczos resampling with three lobes (MPSImageResampling.h, macOS 10.13).

    Along each axis, over all source pixels k with ``|d| < 3``::

        Y = sum of L(d) X[k] / sum of L(d)        d = (k - u) / max(1, 1 / |scale|)
        L(d) = sin(pi d) / (pi d) * sin(pi d / 3) / (pi d / 3)

    The window widens as the image shrinks, so that no smoothing is needed before; its negative lobes ring at sharp
    edges and can leave 0 … 1. The header names the method but neither lobes nor weights: these are those of other
    libraries, Pillow's LANCZOS for one, which differs at borders alone, where it leaves pixels outside out of the sum.
    By the convention ``lanczos_window`` the window never widens.
    """

    @property
    def _filter(self) -> ScaleFilter:
        is_narrow = self.conventions["lanczos_window"] == "narrow"
        return ScaleFilter.NARROW_LANCZOS if is_narrow else ScaleFilter.LANCZOS
