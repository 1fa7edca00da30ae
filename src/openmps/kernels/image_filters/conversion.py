"""Conversion of pictures between formats and kinds of alpha (MPSImageConversion.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.kernel.arguments import member
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.errors import MPSTypeError
from openmps.kernels.image_filters.gray import three_numbers
from openmps.metal.device import MTLDevice
from openmps.ops.elements import COMPONENTS
from openmps.ops.image.colour import ConvertAlpha
from openmps.ops.op import Value
from openmps.types import MPSAlphaType

_ALPHA_IS_ONE = MPSAlphaType.ALPHA_IS_ONE


class MPSImageConversion(MPSUnaryImageKernel):
    """The same picture in another format, with another kind of alpha (MPSImageConversion.h, macOS 10.13).

    Of a source with four channels, colour c and alpha a, with background b::

        from                 to ALPHA_IS_ONE      to NON_PREMULTIPLIED    to PREMULTIPLIED
        NON_PREMULTIPLIED    a c + (1 - a) b, 1   c, a                    a c, a
        PREMULTIPLIED        c + (1 - a) b, 1     c / a, a                c, a
        ALPHA_IS_ONE         c, 1                 c, 1                    c, 1

    c / a is 0 where a is 0. Of a source with fewer channels there is no alpha: the fourth channel of a destination is
    1. ``background_color`` is three numbers, zeros unless given; ``conversion_info`` must be None: colours stay in
    their space.

    Raises:
        MPSArgumentError: A kind of alpha is none; in an encode, an image has more than 4 channels.
        MPSTypeError: A conversion of colours is asked for, which there is not.
    """

    _is_by_rows = True
    _most_channels = COMPONENTS

    source_alpha = Fixed[MPSAlphaType]("What alpha is in the source. ALPHA_IS_ONE unless given.")
    destination_alpha = Fixed[MPSAlphaType]("What alpha is in the destination. ALPHA_IS_ONE unless given.")
    background_color = Fixed[tuple[float, float, float] | None](
        "What shows through where alpha becomes 1; None is black. Our addition.", None
    )
    conversion_info = Fixed[None]("The conversion of colours: none. Our addition.", None)

    def __init__(
        self,
        device: MTLDevice,
        src_alpha: MPSAlphaType = _ALPHA_IS_ONE,
        dest_alpha: MPSAlphaType = _ALPHA_IS_ONE,
        background_color: Sequence[float] | None = None,
        conversion_info: None = None,
    ) -> None:
        super().__init__(device)
        if conversion_info is not None:
            rule = "must be None: there is no conversion of colours"
            raise MPSTypeError(self.name, "conversion_info", rule, type(conversion_info).__name__)
        background = None
        if background_color is not None:
            background = three_numbers(self.name, "background_color", background_color)
        self._change(
            source_alpha=member(self.name, "src_alpha", MPSAlphaType, src_alpha),
            destination_alpha=member(self.name, "dest_alpha", MPSAlphaType, dest_alpha),
            background_color=background,
        )

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        channels, colours = at.sources[0].channels, at.read(images[0])
        if channels == COMPONENTS:
            background = self.background_color or (0.0, 0.0, 0.0)
            colours = ConvertAlpha(self.source_alpha, self.destination_alpha, background)(colours)
        return self._components(at, colours, channels)
