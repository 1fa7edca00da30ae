"""The padding policy of frameworks that give the padding of each side in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from openmps.checks import flag, of_kind, optional_flag, whole
from openmps.core.padding.geometry import Axis, Placement, window_extent
from openmps.core.padding.policy import checked_integer, set_edge_mode, unchanging_policies
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.selectors import name_arguments
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod, MPSOffset

# Same, because its suggestion exists even where the kernel is larger than the image.
_METHOD = MPSNNPaddingMethod.CUSTOM | MPSNNPaddingMethod.SIZE_SAME


@name_arguments
@dataclass(frozen=True)
class ExplicitPadding:
    """A policy with the padding of each side given in pixels, as in PyTorch, ONNX and Caffe.

    ::

        forward  D = floor((L + low + high - ke) / s) + 1     offset = ke // 2 - low
        reverse  D = (L - 1) * s + ke - low - high            kernel_offset = ke // 2 - (ke - 1 - low)

    ``low`` is left or top, ``high`` right or bottom; a negative number crops. ``ceil_mode`` rounds up instead, but the
    last window must start inside the source or its low padding. Reverse filters ignore it; PyTorch's
    ``output_padding`` is taken off ``right`` and ``bottom``.

    ``edge_mode`` is set on the kernel if given. ``count_include_pad`` is for average pooling: it sets the edge mode to
    clamp and ``zero_pad_size_x/y`` so that the padding counts in the divisor (True) or does not (False); kernels
    without a zero-pad size take the edge mode alone. On a gradient kernel the size and offsets stay as suggested,
    since they follow from the forward pass. Our addition to the framework's policies.
    """

    left: int
    top: int
    right: int
    bottom: int
    _: KW_ONLY
    ceil_mode: bool = False
    count_include_pad: bool | None = None
    edge_mode: MPSImageEdgeMode | None = None

    def __post_init__(self) -> None:
        for name in ("left", "top", "right", "bottom"):
            object.__setattr__(self, name, checked_integer("ExplicitPadding", name, getattr(self, name)))
        object.__setattr__(self, "ceil_mode", flag("ExplicitPadding", "ceil_mode", self.ceil_mode))
        if self.edge_mode is not None:
            of_kind("ExplicitPadding", "edge_mode", self.edge_mode, MPSImageEdgeMode)
        counts = optional_flag("ExplicitPadding", "count_include_pad", self.count_include_pad)
        object.__setattr__(self, "count_include_pad", counts)
        if counts is None:
            return
        if self.edge_mode not in (None, MPSImageEdgeMode.CLAMP):
            rule = "must be CLAMP or left out with count_include_pad"
            remedy = "Average pooling counts padding in its divisor only with edge mode CLAMP"
            raise MPSArgumentError("ExplicitPadding", "edge_mode", rule, self.edge_mode, remedy)
        object.__setattr__(self, "edge_mode", MPSImageEdgeMode.CLAMP)

    @classmethod
    def pytorch(
        cls,
        padding: int | Sequence[int],
        *,
        ceil_mode: bool = False,
        count_include_pad: bool | None = None,
        edge_mode: MPSImageEdgeMode | None = None,
    ) -> Self:
        """PyTorch's ``padding=p`` or ``padding=(height, width)``: the same on both sides of an axis."""
        down, across = _pads("ExplicitPadding.pytorch", padding, 2)
        return cls(
            across, down, across, down, ceil_mode=ceil_mode, count_include_pad=count_include_pad, edge_mode=edge_mode
        )

    @classmethod
    def onnx(
        cls,
        pads: Sequence[int],
        *,
        ceil_mode: bool = False,
        count_include_pad: bool | None = None,
        edge_mode: MPSImageEdgeMode | None = None,
    ) -> Self:
        """ONNX's ``pads`` of a two-dimensional operator: top, left, bottom, right."""
        top, left, bottom, right = _pads("ExplicitPadding.onnx", pads, 4)
        return cls(
            left, top, right, bottom, ceil_mode=ceil_mode, count_include_pad=count_include_pad, edge_mode=edge_mode
        )

    @classmethod
    def caffe_pooling(cls, pad: int | Sequence[int]) -> Self:
        """Caffe's pooling with ``pad`` or (``pad_h``, ``pad_w``): sizes round up, averages count the padding only.

        A Caffe convolution rounds down: use `pytorch` with its ``pad``.
        """
        return cls.pytorch(pad, ceil_mode=True, count_include_pad=True)

    def padding_method(self) -> MPSNNPaddingMethod:
        """Custom and same: same, because its suggestion exists even where the kernel is larger than the image."""
        return _METHOD

    def label(self) -> str:
        """The policy in words."""
        words = f"explicit: left {self.left}, top {self.top}, right {self.right}, bottom {self.bottom}"
        return words + (", ceil mode" if self.ceil_mode else "")

    def inverse(self) -> Self:
        """Itself: a gradient's size and offsets come from the forward pass."""
        return self

    def placement(
        self,
        source: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        *,
        axis: Axis = "x",
        is_backwards: bool = False,
    ) -> Placement:
        """Places the windows of one axis by the formulas of the class; raises `MPSArgumentError` where none fits."""
        is_reverse = flag("ExplicitPadding", "is_backwards", is_backwards)
        for name, value in (("source", source), ("kernel", kernel), ("stride", stride), ("dilation", dilation)):
            whole("ExplicitPadding.placement", name, value)
        place = self._place_reverse if is_reverse else self._place_forward
        extent = window_extent(kernel, dilation)
        placed = place(source, extent, stride, *self._sides(axis))
        if placed.result < 1:
            raise MPSArgumentError(
                f"ExplicitPadding ({self.label()})",
                "source width" if axis == "x" else "source height",
                f"leaves no result pixel for a window of {extent} pixels",
                f"{source} pixels",
                "Pad more, or use a smaller kernel or dilation",
            )
        return placed

    def _sides(self, axis: Axis) -> tuple[int, int]:
        return (self.left, self.right) if axis == "x" else (self.top, self.bottom)

    def _place_forward(self, source: int, extent: int, stride: int, low: int, high: int) -> Placement:
        room = source + low + high - extent
        result = (-(-room // stride) if self.ceil_mode else room // stride) + 1
        if self.ceil_mode and (result - 1) * stride >= source + low:
            result -= 1
        read = (result - 1) * stride + extent
        return Placement(result, extent // 2 - low, read, read - source, low)

    def _place_reverse(self, source: int, extent: int, stride: int, low: int, high: int) -> Placement:
        filled = (source - 1) * stride + 1
        before, missing = extent - 1 - low, 2 * (extent - 1) - low - high
        result = filled + missing - (extent - 1)
        return Placement(result, 0, filled + missing, missing, before, extent // 2 - before)

    def destination_image_descriptor(
        self,
        source_images: Sequence[Any],
        source_states: Sequence[Any] | None,
        for_kernel: Any,
        suggested_descriptor: Any,
    ) -> Any:
        """Sets the kernel's offsets (and edge mode, zero-pad sizes) and the descriptor's width and height."""
        prefix = self._prefix(for_kernel)
        if self.edge_mode is not None:
            set_edge_mode(self, for_kernel, self.edge_mode)
        if prefix and hasattr(for_kernel, "kernel_offset_x"):
            return suggested_descriptor  # a gradient kernel
        image: Any = source_images[0] if source_images else None
        if not hasattr(image, "width"):
            who, rule = f"ExplicitPadding ({self.label()})", "must begin with an image"
            raise MPSTypeError(who, "source_images", rule, type(image).__name__)
        x = self._place(image.width, for_kernel, prefix, "x", "width")
        y = self._place(image.height, for_kernel, prefix, "y", "height")
        old = getattr(for_kernel, f"{prefix}offset")
        setattr(for_kernel, f"{prefix}offset", MPSOffset(x.offset, y.offset, old.z))
        if for_kernel.is_backwards:
            for_kernel.kernel_offset_x, for_kernel.kernel_offset_y = x.kernel_offset, y.kernel_offset
        suggested_descriptor.width, suggested_descriptor.height = x.result, y.result
        return suggested_descriptor

    def _prefix(self, kernel: Any) -> str:
        """What stands before the names of a kernel's geometry: kernels with two sources place the primary one."""
        for prefix in ("", "primary_"):
            if hasattr(kernel, f"{prefix}kernel_width"):
                return prefix
        rule = "must have a window (kernel_width or primary_kernel_width)"
        remedy = "Use this policy for convolution and pooling"
        raise MPSTypeError(f"ExplicitPadding ({self.label()})", "for_kernel", rule, type(kernel).__name__, remedy)

    def _place(self, source: int, kernel: Any, prefix: str, axis: Axis, side: str) -> Placement:
        """The placement on one axis of a kernel, whose zero-pad size is set on the way."""
        placed = self.placement(
            source,
            getattr(kernel, f"{prefix}kernel_{side}"),
            getattr(kernel, f"{prefix}stride_in_pixels_{axis}"),
            getattr(kernel, f"{prefix}dilation_rate_{axis}"),
            axis=axis,
            is_backwards=kernel.is_backwards,
        )
        if self.count_include_pad is not None and hasattr(kernel, f"zero_pad_size_{axis}"):
            setattr(kernel, f"zero_pad_size_{axis}", self._zero_pad(source, placed, axis))
        return placed

    def _zero_pad(self, source: int, placed: Placement, axis: Axis) -> int:
        """The padding on both sides within which pixels count in the divisor."""
        if not self.count_include_pad:
            return 0
        low, high = self._sides(axis)
        counted = max(low, high, 0)
        end = placed.read - placed.before
        if min(end, source + counted) > source + max(high, 0):
            rule = "cannot count less padding after the image than before it once windows reach beyond the padding"
            got = f"{low} before, {high} after, windows to pixel {end - 1} of {source}"
            remedy = "Use ceil_mode=False, equal padding, or MPSNNPad before the pooling"
            raise MPSArgumentError(f"ExplicitPadding ({self.label()})", "count_include_pad", rule, got, remedy)
        return counted


unchanging_policies.add(ExplicitPadding)


def _pads(who: str, value: int | Sequence[int], count: int) -> list[int]:
    """``count`` pixel numbers; one number stands for all."""
    numbers = list(value) if isinstance(value, Sequence) else [value]
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count:
        raise MPSArgumentError(who, "padding", f"must be one number or {count}", numbers, "Give pixels for both axes")
    return [checked_integer(who, "padding", number) for number in numbers]
