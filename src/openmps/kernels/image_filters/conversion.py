"""Conversion of pictures between formats and kinds of alpha (MPSImageConversion.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.checks import of_kind
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.enumerated import member
from openmps.errors import MPSArgumentError
from openmps.kernels.image_filters.gray import three_numbers
from openmps.metal.device import MTLDevice
from openmps.ops.elements import COMPONENTS
from openmps.ops.image.colour import ConvertAlpha
from openmps.ops.image.colour_spaces import ConvertColour
from openmps.ops.image.readings import DividedByAlpha
from openmps.ops.op import Value
from openmps.types import CGColorConversionInfo, CGColorSpace, MPSAlphaType

_ALPHA_IS_ONE = MPSAlphaType.ALPHA_IS_ONE


class MPSImageConversion(MPSUnaryImageKernel):
    """The same picture in another format, with another kind of alpha (MPSImageConversion.h, macOS 10.13).

    Of a source with four channels, colour c and alpha a, with background b::

        from                 to ALPHA_IS_ONE      to NON_PREMULTIPLIED    to PREMULTIPLIED
        NON_PREMULTIPLIED    a c + (1 - a) b, 1   c, a                    a c, a
        PREMULTIPLIED        c + (1 - a) b, 1     c / a, a                c, a
        ALPHA_IS_ONE         c, 1                 c, 1                    c, 1

    c / a is 0 where a is 0. Of a source with fewer channels there is no alpha: the fourth channel of a destination is
    1. ``background_color`` is three numbers in the source's colour space, zeros unless given.

    With ``conversion_info`` straight colours, or those over the background, go to another colour space: a source in a
    space of grey has one channel, in others three or four; so has the destination. Curves go on beyond 0 … 1.

    Raises:
        MPSArgumentError: A kind of alpha is none; in an encode, an image has more than 4 channels, or not the channels
            of its colour space.
        MPSTypeError: ``conversion_info`` is something else.
    """

    _is_by_rows = True
    _most_channels = COMPONENTS

    source_alpha = Fixed[MPSAlphaType]("What alpha is in the source. ALPHA_IS_ONE unless given.")
    destination_alpha = Fixed[MPSAlphaType]("What alpha is in the destination. ALPHA_IS_ONE unless given.")
    background_color = Fixed[tuple[float, float, float] | None](
        "What shows through where alpha becomes 1; None is black. Our addition.", None
    )
    conversion_info = Fixed[CGColorConversionInfo | None](
        "From which colour space to which; None leaves colours as they are. Our addition.", None
    )

    def __init__(
        self,
        device: MTLDevice,
        src_alpha: MPSAlphaType = _ALPHA_IS_ONE,
        dest_alpha: MPSAlphaType = _ALPHA_IS_ONE,
        background_color: Sequence[float] | None = None,
        conversion_info: CGColorConversionInfo | None = None,
    ) -> None:
        super().__init__(device)
        if conversion_info is not None:
            of_kind(self.name, "conversion_info", conversion_info, CGColorConversionInfo)
        background = None
        if background_color is not None:
            background = three_numbers(self.name, "background_color", background_color)
        self._change(
            source_alpha=member(self.name, "src_alpha", MPSAlphaType, src_alpha),
            destination_alpha=member(self.name, "dest_alpha", MPSAlphaType, dest_alpha),
            background_color=background,
            conversion_info=conversion_info,
        )

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        channels, colours, info = at.sources[0].channels, at.read(images[0]), self.conversion_info
        source, result = self.source_alpha, self.destination_alpha
        if info is not None and source is not _ALPHA_IS_ONE and result is not _ALPHA_IS_ONE:
            result = MPSAlphaType.NON_PREMULTIPLIED
        if channels == COMPONENTS and (source is not result or source is _ALPHA_IS_ONE):
            colours = self._with_alpha(source, result, colours)
        if info is None:
            return self._components(at, colours, channels)
        for name, count, space in (
            ("source_image", channels, info.src), ("destination_image", at.target.channels, info.dst)
        ):  # fmt: skip
            self._check_channels(name, count, space)
        colours = ConvertColour(info.src, info.dst)(colours)
        components = info.dst.number_of_components
        made = channels if components == info.src.number_of_components else components
        if made == COMPONENTS and result is not self.destination_alpha:
            colours = ConvertAlpha(result, self.destination_alpha, (0.0, 0.0, 0.0))(colours)
        return self._components(at, colours, made)

    def _with_alpha(self, source: MPSAlphaType, result: MPSAlphaType, colours: Value) -> Value:
        """Colours with another kind of alpha, before any other space."""
        is_divided = (source, result) == (MPSAlphaType.PREMULTIPLIED, MPSAlphaType.NON_PREMULTIPLIED)
        if is_divided and self.conventions["unpremultiplied_zero"] == "nan":
            return DividedByAlpha()(colours)
        return ConvertAlpha(source, result, self.background_color or (0.0, 0.0, 0.0))(colours)

    def _check_channels(self, argument: str, channels: int, space: CGColorSpace) -> None:
        fitting = (1,) if space.number_of_components == 1 else (3, 4)
        if channels not in fitting:
            rule = f"must have {' or '.join(map(str, fitting))} feature channel(s), as its colours are {space.name}"
            raise MPSArgumentError(self.name, argument, rule, channels)
