"""MPSKernel, and the properties that every kernel on images has (MPSKernel.h, MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from openmps.checks import KnownAttributes, Labelled, Shown, value_text
from openmps.convention import Conventions
from openmps.core.image.allocator import TEMPORARY
from openmps.core.image.image import MPSImageAllocator
from openmps.core.kernel.arguments import channel_offset, clip_rectangle
from openmps.core.kernel.configuration import (
    FARTHEST,
    Configuration,
    Configured,
    KernelProperty,
    SourceProperties,
    at_least,
    chosen_conventions,
)
from openmps.core.lifetime import check_is_device, check_is_open
from openmps.core.padding.policy import MPSNNDefaultPadding, MPSNNPadding
from openmps.errors import MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.metal.version import Version
from openmps.selectors import Elsewhere, name_arguments, name_calls
from openmps.types import MPSKernelOptions, MPSNNPaddingMethod, MPSRectNoClip

_positive = at_least(1, FARTHEST)


@name_arguments
class MPSKernel(KnownAttributes, Labelled, Configured):
    """The base of every kernel (MPSKernel.h, macOS 10.13).

    A kernel belongs to one device. Its properties are captured when it is encoded, so it can be changed or encoded
    again at once. ``label`` names it in errors and debug groups; ``options`` are `MPSKernelOptions`.

    Threads may encode one kernel, each to a command buffer of its own. Those that also change properties take a `copy`
    each, or encodes may find what another thread has set.
    """

    options: MPSKernelOptions
    """Hints to the framework; checks are never skipped."""

    _shown: ClassVar[Sequence[str]] = ()
    """Properties beside those of the configuration that say what a kernel does."""
    encodeToCommandBuffer = Elsewhere("encode")  # noqa: N815
    encode_to_command_buffer = Elsewhere("encode")
    encodeBatchToCommandBuffer = Elsewhere("encode_batch")  # noqa: N815
    encode_batch_to_command_buffer = Elsewhere("encode_batch")

    _is_abstract: ClassVar[bool] = False
    """Whether the framework has no initializer of the very class that says so."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name_arguments(cls)
        name_calls(cls, "encode", command_buffer=check_is_open)

    def __init__(self, device: MTLDevice) -> None:
        if "_is_abstract" in vars(type(self)) and self._is_abstract:
            rule = "makes no kernel of this base class"
            raise MPSTypeError(type(self).__name__, "device", rule, None, "Make one of its subclasses")
        self._property_version = Version()
        self.options = MPSKernelOptions.NONE
        self._device = check_is_device(type(self).__name__, "device", device)
        self._configuration = Configuration(type(self), device.torch_device.type, values=chosen_conventions())

    device = Shown[MTLDevice]("_device", "The device that the kernel runs on.")

    def copy(self, device: MTLDevice | None = None) -> Self:
        """A kernel with the same properties, on ``device`` or on the same one; neither follows the other later.

        Weights and other numbers are taken as they are now, without waiting for queued work. What counts encodes (the
        masks of a dropout, an optimizer's time step, a generator of random numbers) goes on from the same point. A data
        source is copied if it has ``copy(device)``, ``copy()`` or ``__copy__()``, and shared otherwise.

        Threads that change a kernel's properties take a copy each; see `MPSKernel`.
        """
        twin = self._duplicate(self._device if device is None else check_is_device(self.name, "device", device))
        twin._unshare()
        return twin

    def _duplicate(self, device: MTLDevice) -> Self:
        """A kernel on ``device`` that still shares every mutable part."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._device = device
        twin._configuration = self._configuration.moved(device.torch_device.type)
        return twin

    def noting(self, conventions: Conventions) -> Self:
        """The same kernel, all parts shared, which asks these conventions; for those who plan with it."""
        twin = self._duplicate(self._device)
        twin._property_version = Version()
        twin._follow(conventions)
        return twin

    def _draft(self, configuration: Configuration) -> Self:
        """A kernel for planning: it has properties and a name, and nothing else that a plan could depend on."""
        draft = type(self).__new__(type(self))
        draft._property_version = Version()
        draft.label, draft._device, draft._configuration = self.label, self._device, configuration
        return draft

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.copy()

    def _unshare(self) -> None:
        """Give a fresh copy its own mutable parts, those in memory on its own device."""

    def __repr__(self) -> str:
        shown = {name: getattr(self, name, None) for name in self._shown}
        own = [f"{name} {value_text(value)}" for name, value in shown.items() if value is not None]
        said = ", ".join([*self._configuration.said(), *own])
        return f"<{self.name}{': ' if said else ''}{said} on {self._device.name}>"


class KernelProperties(MPSKernel):
    """The properties of a kernel with one, two or many source images."""

    _default_padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)

    clip_rect = KernelProperty(
        MPSRectNoClip,
        clip_rectangle,
        "The pixels and images of the destination that are written; cut to the destination. Default: all.",
    )
    destination_feature_channel_offset = KernelProperty[int](
        0, channel_offset, "The first destination channel written, a multiple of 4. Default 0."
    )

    def __init__(self, device: MTLDevice, sources: int = 1) -> None:
        super().__init__(device)
        self._configuration = self._configuration.reading((SourceProperties(),) * sources)
        self._padding: MPSNNPadding = self._default_padding
        self._allocator: MPSImageAllocator = TEMPORARY

    def _draft(self, configuration: Configuration) -> Self:
        """See `MPSKernel`; with the policy that sizes results."""
        draft = super()._draft(configuration)
        draft._padding = self._padding
        return draft

    def _set_window(self, width: int, height: int, stride_x: int, stride_y: int) -> None:
        """Give every source a window; all four numbers are at least 1."""
        self._change_sources(
            kernel_width=_positive(self.name, "kernel_width", width),
            kernel_height=_positive(self.name, "kernel_height", height),
            stride_x=_positive(self.name, "stride_in_pixels_x", stride_x),
            stride_y=_positive(self.name, "stride_in_pixels_y", stride_y),
        )

    def _set_dilation(self, dilation_x: int, dilation_y: int) -> None:
        """Give every source's window a distance between taps; both numbers are at least 1."""
        self._change_sources(
            dilation_x=_positive(self.name, "dilation_rate_x", dilation_x),
            dilation_y=_positive(self.name, "dilation_rate_y", dilation_y),
        )

    @property
    def padding(self) -> MPSNNPadding:
        """The policy that sizes the results of encodes that return an image."""
        return self._padding

    @padding.setter
    def padding(self, value: MPSNNPadding) -> None:
        if not callable(getattr(value, "padding_method", None)):
            rule = "must have a padding_method()"
            raise MPSTypeError(self.name, "padding", rule, type(value).__name__, "Use MPSNNDefaultPadding")
        self._padding = value
        self._property_version.advance()

    @property
    def destination_image_allocator(self) -> MPSImageAllocator:
        """Makes the images that encodes return. Default: temporary images."""
        return self._allocator

    @destination_image_allocator.setter
    def destination_image_allocator(self, value: MPSImageAllocator) -> None:
        if not callable(getattr(value, "image", None)):
            rule = "must have a method image(command_buffer, image_descriptor, kernel)"
            raise MPSTypeError(self.name, "destination_image_allocator", rule, type(value).__name__)
        self._allocator = value

    @property
    def is_backwards(self) -> bool:
        """Whether strides enlarge the result (transposed kernels) instead of shrinking it."""
        return False

    @property
    def is_state_modified(self) -> bool:
        """Whether an encode writes the state that it takes."""
        return False

    def is_result_state_reused_across_batch(self) -> bool:
        """Whether one state serves all images of a batch."""
        return False

    def append_batch_barrier(self) -> bool:
        """Whether dependants may start only after the whole batch went through."""
        return False
