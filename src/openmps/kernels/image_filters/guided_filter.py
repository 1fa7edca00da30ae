"""The guided filter (MPSImageGuidedFilter.h, macOS 10.13.4 and 10.15.4)."""

from __future__ import annotations

from openmps.checks import finite, whole
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent
from openmps.core.kernel.arguments import single
from openmps.core.kernel.configuration import Fixed, KernelProperty
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel
from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.image.guided_filter import ChannelCoefficients, Coefficients, Reconstruction

_SOURCE, _GUIDE = Argument("source_texture", MPSImage), Argument("guidance_texture", MPSImage)
_WEIGHTS = Argument("weights_texture", MPSImage, is_optional=True)
_FORMS: dict[str, tuple[Argument, ...]] = {
    "regression": (
        _SOURCE, _GUIDE, _WEIGHTS, Argument("destination_coefficients_texture", MPSImage, is_result=True)
    ),
    "regression of channels": (
        _SOURCE, _GUIDE, _WEIGHTS,
        Argument("destination_coefficients_texture_a", MPSImage, is_result=True),
        Argument("destination_coefficients_texture_b", MPSImage, is_result=True),
    ),
    "reconstruction": (
        _GUIDE, Argument("coefficients_texture", MPSImage),
        Argument("destination_texture", MPSImage, is_result=True),
    ),
    "reconstruction of channels": (
        _GUIDE, Argument("coefficients_texture_a", MPSImage), Argument("coefficients_texture_b", MPSImage),
        Argument("destination_texture", MPSImage, is_result=True),
    ),
}  # fmt: skip
"""The arguments of each form of an encode."""
_COLOURS, _COEFFICIENTS = 3, 4


def _diameter(who: str, value: int) -> int:
    found = whole(who, "kernel_diameter", value)
    if found % 2 == 0:
        raise MPSArgumentError(who, "kernel_diameter", "must be odd", found)
    return found


class MPSImageGuidedFilter(OperandKernel):
    """Smooth a picture along the edges of another one (MPSImageGuidedFilter.h, macOS 10.13.4).

    The regression fits the source p, one channel, by a linear function of the guidance I, three, in every window of
    kernel_diameter x kernel_diameter pixels::

        a = (cov(I, I) + epsilon 1)^-1 cov(I, p)        b = mean(p) - a . mean(I)

    and gives the mean of a and b over the windows of each pixel, (a_r, a_g, a_b, b), or those of its own window by the
    convention ``guided_average``. Windows end at the picture's edge.
    Weights, one channel, weigh the pixels of means and covariances; where none has any, a and b are 0. The
    reconstruction is ``reconstruct_scale (a . I + b) + reconstruct_offset``; coefficients of a smaller picture are
    interpolated bilinearly. With two textures of coefficients each channel is fitted by its own channel of the guidance
    (macOS 10.15.4).

    Raises:
        MPSArgumentError: The diameter is even or not positive; in an encode, sizes or channels do not fit.
    """

    kernel_diameter = Fixed[int]("Rows and columns of the window.")
    epsilon = KernelProperty(
        0.01, not_negative, "What is added to variances: larger ones smooth more. Default 0.01, our choice."
    )
    reconstruct_scale = KernelProperty(1.0, finite, "Factor of the reconstruction. Default 1.")
    reconstruct_offset = KernelProperty(0.0, finite, "Added to the reconstruction. Default 0.")

    def __init__(self, device: MTLDevice, kernel_diameter: int) -> None:
        super().__init__(device)
        self._change(kernel_diameter=_diameter(self.name, kernel_diameter))

    def encode_regression(
        self,
        command_buffer: CommandBuffer,
        source_texture: MPSImage,
        guidance_texture: MPSImage,
        weights_texture: MPSImage | None = None,
        destination_coefficients_texture: MPSImage | None = None,
        *,
        destination_coefficients_texture_a: MPSImage | None = None,
        destination_coefficients_texture_b: MPSImage | None = None,
    ) -> None:
        """Record the fit; the weights may be None. Coefficients go to one texture, or a and b to one each."""
        sources = (source_texture, guidance_texture, weights_texture)
        pair = (destination_coefficients_texture_a, destination_coefficients_texture_b)
        name = "destination_coefficients_texture"
        self._encode_form("regression", command_buffer, sources, name, destination_coefficients_texture, pair)

    def encode_reconstruction(
        self,
        command_buffer: CommandBuffer,
        guidance_texture: MPSImage,
        coefficients_texture: MPSImage | None = None,
        destination_texture: MPSImage | None = None,
        *,
        coefficients_texture_a: MPSImage | None = None,
        coefficients_texture_b: MPSImage | None = None,
    ) -> None:
        """Record the picture that coefficients make of a guidance: those of one texture, or of one for a and b each."""
        pair = (coefficients_texture_a, coefficients_texture_b)
        self._encode_form(
            "reconstruction",
            command_buffer,
            (guidance_texture,),
            "coefficients_texture",
            coefficients_texture,
            pair,
            (destination_texture,),
        )

    def _encode_form(
        self,
        what: str,
        command_buffer: CommandBuffer,
        before: tuple[MPSImage | None, ...],
        name: str,
        one: MPSImage | None,
        pair: tuple[MPSImage | None, MPSImage | None],
        behind: tuple[MPSImage | None, ...] = (),
    ) -> None:
        """Encode one of the two forms: with the coefficients in one texture, or in two."""
        is_pair = pair != (None, None)
        if is_pair and one is not None:
            raise MPSTypeError(self.name, name, f"must not be given beside {name}_a and {name}_b")
        form = f"{what} of channels" if is_pair else what
        given = (*before, *(pair if is_pair else (one,)), *behind)
        images = [
            None if each is None else single(self.name, argument.name.removesuffix("_a").removesuffix("_b"), each)
            for argument, each in zip(_FORMS[form], given, strict=True)
        ]
        self._encode(command_buffer, *images, arguments=_FORMS[form], asked=form)

    def _lower(self, at: OperandContext) -> None:
        if at.asked.startswith("regression"):
            self._lower_regression(at)
        else:
            self._lower_reconstruction(at)

    def _lower_regression(self, at: OperandContext) -> None:
        by_channel = at.asked.endswith("channels")
        source: Extent = at.shape("source_texture").extent
        channels = source.channels if by_channel else 1
        results = [each.name for each in _FORMS[at.asked] if each.is_result]
        self._check(at, "source_texture", source, channels, or_more=not by_channel)
        self._check(at, "guidance_texture", source, channels if by_channel else _COLOURS, or_more=not by_channel)
        for name in results:
            self._check(at, name, source, channels if by_channel else _COEFFICIENTS)
        weights = None
        if at.has("weights_texture"):
            self._check(at, "weights_texture", source, 1, or_more=True)
            weights = at.numbers("weights_texture")
        fit = ChannelCoefficients if by_channel else Coefficients
        operands = at.numbers("source_texture"), at.numbers("guidance_texture"), weights
        is_averaged = self.conventions["guided_average"] == "averaged"
        made = fit(self.kernel_diameter, self.epsilon, is_averaged)(*operands)
        for name, value in zip(results, made if by_channel else (made,), strict=True):
            at.store(name, value)

    def _lower_reconstruction(self, at: OperandContext) -> None:
        by_channel = at.asked.endswith("channels")
        guide: Extent = at.shape("guidance_texture").extent
        sources = [each.name for each in _FORMS[at.asked][1:-1]]
        first: Extent = at.shape(sources[0]).extent
        if first.images != guide.images:
            raise MPSArgumentError(self.name, sources[0], f"must hold {guide.images} image(s)", first)
        if not by_channel and guide.channels < _COLOURS:
            raise MPSArgumentError(self.name, "guidance_texture", f"must have at least {_COLOURS} channels", guide)
        for name in sources:
            self._check(at, name, first, guide.channels if by_channel else _COEFFICIENTS)
        self._check(at, "destination_texture", guide, guide.channels if by_channel else 1)
        coefficients = [at.numbers(name) for name in sources]
        operands = (*coefficients, *[None] * (not by_channel))
        make = Reconstruction(self.reconstruct_scale, self.reconstruct_offset)
        at.store("destination_texture", make(at.numbers("guidance_texture"), *operands))

    def _check(self, at: OperandContext, name: str, like: Extent, channels: int, *, or_more: bool = False) -> None:
        """Raise unless an image has the size of another one, and so many channels."""
        found: Extent = at.shape(name).extent
        is_large = (found.width, found.height, found.images) == (like.width, like.height, like.images)
        if not is_large or (found.channels < channels if or_more else found.channels != channels):
            rule = f"must be {like.images} image(s) of {like.width}x{like.height} pixels with "
            rule += f"{'at least ' * or_more}{channels} feature channel(s)"
            raise MPSArgumentError(self.name, name, rule, found)
