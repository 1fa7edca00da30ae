"""MPSKernel, and the properties that every kernel on images has (MPSKernel.h, MPSCNNKernel.h, macOS 10.13)."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from openmps.core.image.allocator import MPSImageAllocator
from openmps.core.image.storage import Extent
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.kernel.arguments import channel_offset
from openmps.core.lifetime import check_is_device
from openmps.core.padding.policy import MPSNNDefaultPadding, MPSNNPadding
from openmps.errors import MPSTypeError
from openmps.ops.geometry import Axis, Window
from openmps.types import (
    MPSImageEdgeMode,
    MPSKernelOptions,
    MPSNNPaddingMethod,
    MPSOffset,
    MPSRectNoClip,
    MTLRegion,
)

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

ULONG_MAX = 2**64 - 1


_Kernel = TypeVar("_Kernel", bound="MPSKernel")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def decided_as_a_whole(
    encode: Callable[Concatenate[_Kernel, _Arguments], _Result],
) -> Callable[Concatenate[_Kernel, _Arguments], _Result]:
    """Make the encodes of one kernel in several threads wait for each other: they set offsets, and count encodes."""

    @wraps(encode)
    def locked(kernel: _Kernel, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with kernel._encoding:  # pyright: ignore[reportPrivateUsage]
            return encode(kernel, *arguments, **options)

    return locked


class MPSKernel:
    """The base of every kernel (MPSKernel.h, macOS 10.13).

    A kernel belongs to one device. Its properties are captured when it is encoded, so it can be changed or encoded
    again at once. ``label`` names it in errors and debug groups; ``options`` are `MPSKernelOptions`.

    Threads may encode one kernel, each to a command buffer of its own: every encode is decided as a whole. Those that
    also change properties take a `copy` each, or encodes may find what another thread has set.
    """

    label: str | None
    """A name for errors and debug groups."""
    options: MPSKernelOptions
    """Hints to the framework; checks are never skipped."""

    def __init__(self, device: MTLDevice) -> None:
        self.label = None
        self.options = MPSKernelOptions.NONE
        self._device = check_is_device(type(self).__name__, "device", device)
        self._encoding = RLock()

    @property
    def device(self) -> MTLDevice:
        """The device that the kernel runs on."""
        return self._device

    @property
    def name(self) -> str:
        """Class and label, as errors call the kernel."""
        return f"{type(self).__name__} {self.label!r}" if self.label else type(self).__name__

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
        twin.__setstate__(self.__getstate__())
        twin._device = device
        return twin

    def __copy__(self) -> Self:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encoding"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._encoding = RLock()

    def _unshare(self) -> None:
        """Give a fresh copy its own mutable parts, those in memory on its own device."""

    def __repr__(self) -> str:
        return f"<{self.name} on {self._device.name}>"


@dataclass(slots=True)
class SourceProperties:
    """How a kernel reads one of its sources."""

    offset: MPSOffset
    edge_mode: MPSImageEdgeMode = MPSImageEdgeMode.ZERO
    channel_offset: int = 0
    channel_max_count: int = ULONG_MAX
    kernel_width: int = 1
    kernel_height: int = 1
    stride_x: int = 1
    stride_y: int = 1
    dilation_x: int = 1
    dilation_y: int = 1

    def window(self, source: Extent, width: int, height: int) -> Window:
        """The source pixels that ``width`` x ``height`` result pixels read."""
        return Window(
            x=Axis(source.width, width, self.kernel_width, self.stride_x, self.dilation_x, self.offset.x),
            y=Axis(source.height, height, self.kernel_height, self.stride_y, self.dilation_y, self.offset.y),
        )


class KernelProperties(MPSKernel):
    """The properties of a kernel with one, two or many source images."""

    _default_padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)

    def __init__(self, device: MTLDevice, sources: int) -> None:
        super().__init__(device)
        self._sources = tuple(SourceProperties(MPSOffset(0, 0, 0)) for _ in range(sources))
        self._clip_rect = MPSRectNoClip
        self._destination_channel_offset = 0
        self._padding: MPSNNPadding = self._default_padding
        self._allocator: MPSImageAllocator = MPSTemporaryImage.default_allocator()

    def _unshare(self) -> None:
        self._sources = tuple(copying.copy(source) for source in self._sources)

    @property
    def clip_rect(self) -> MTLRegion:
        """The pixels and images of the destination that are written; cut to the destination. Default: all."""
        return self._clip_rect

    @clip_rect.setter
    def clip_rect(self, value: MTLRegion) -> None:
        if not isinstance(value, MTLRegion):
            raise MPSTypeError(self.name, "clip_rect", "must be an MTLRegion", type(value).__name__)
        self._clip_rect = value

    @property
    def destination_feature_channel_offset(self) -> int:
        """The first destination channel written, a multiple of 4. Default 0."""
        return self._destination_channel_offset

    @destination_feature_channel_offset.setter
    def destination_feature_channel_offset(self, value: int) -> None:
        self._destination_channel_offset = channel_offset(self.name, "destination_feature_channel_offset", value)

    @property
    def padding(self) -> MPSNNPadding:
        """The policy that sizes the results of encodes that return an image."""
        return self._padding

    @padding.setter
    def padding(self, value: MPSNNPadding) -> None:
        if not callable(getattr(value, "padding_method", None)):
            raise MPSTypeError(
                self.name, "padding", "must have a padding_method()", type(value).__name__, "Use MPSNNDefaultPadding"
            )
        self._padding = value

    @property
    def destination_image_allocator(self) -> MPSImageAllocator:
        """Makes the images that encodes return. Default: temporary images."""
        return self._allocator

    @destination_image_allocator.setter
    def destination_image_allocator(self, value: MPSImageAllocator) -> None:
        if not callable(getattr(value, "image", None)):
            raise MPSTypeError(
                self.name,
                "destination_image_allocator",
                "must have a method image(command_buffer, image_descriptor, kernel)",
                type(value).__name__,
            )
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
