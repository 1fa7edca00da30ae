"""Pooling nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openmps.checks import Shown, is_whole
from openmps.core.padding.policy import MPSNNPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode


class _Sizes(NamedTuple):
    width: int
    height: int
    stride_x: int
    stride_y: int
    dilation_x: int = 1
    dilation_y: int = 1


class _Window:
    """Size and stride of a pooling window."""

    _window: _Sizes

    def _set_window(self, *window: int) -> None:
        if not all(is_whole(value, 1) for value in window):
            what = "window, stride and dilation" if len(window) > 4 else "window and stride"
            raise MPSArgumentError(type(self).__name__, what, "must be integers of at least 1", window)
        self._window = _Sizes(*window)

    def _choose_window(
        self, positional: Sequence[int | None], named: Mapping[str, int | None], others: Sequence[int | None], more: str
    ) -> None:
        """Take all sizes in the framework's order, or those given by name and ``others`` for the rest.

        ``more`` says what may be given where ``filter_size`` is missing.
        """
        who = type(self).__name__
        if positional and len(positional) != len(named):
            rule = f"must be {len(named)} behind the source, {', '.join(named)}, where there are many"
            raise MPSTypeError(who, "arguments", rule, len(positional))
        twice = [name for name, value in named.items() if value is not None]
        if positional and twice:
            raise MPSTypeError(who, " and ".join(twice), "must not be given twice", positional)
        by_name = (other if size is None else size for size, other in zip(named.values(), others, strict=True))
        sizes = tuple(positional or by_name)
        window = [each for each in sizes if each is not None]
        if len(window) < len(sizes):
            raise MPSTypeError(who, "filter_size", f"is needed, or {more}", sizes)
        self._set_window(*window)

    kernel_width = Shown[int]("_window.width", "Columns of the window.")
    kernel_height = Shown[int]("_window.height", "Rows of the window.")
    stride_in_pixels_x = Shown[int]("_window.stride_x", "Columns from one window to the next.")
    stride_in_pixels_y = Shown[int]("_window.stride_y", "Rows from one window to the next.")


class _Dilated(_Window):
    """A window whose pixels lie apart."""

    dilation_rate_x = Shown[int]("_window.dilation_x", "Columns from one pixel of the window to the next.")
    dilation_rate_y = Shown[int]("_window.dilation_y", "Rows from one pixel of the window to the next.")


class MPSCNNPoolingNode(_Window, MPSNNFilterNode):
    """The base of pooling nodes (MPSNNGraphNodes.h, macOS 10.13). The edge mode of nodes is CLAMP.

    ``filter_size`` is a square window, the stride its size unless ``stride`` is given; or all four of ``kernel_width``,
    ``kernel_height``, ``stride_in_pixels_x`` and ``stride_in_pixels_y``, in this order or by name.
    """

    def __init__(
        self,
        source: MPSNNImageNode,
        filter_size: int | None = None,
        stride: int | None = None,
        *more: int,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        stride_in_pixels_x: int | None = None,
        stride_in_pixels_y: int | None = None,
    ) -> None:
        super().__init__([source])
        named = {
            "kernel_width": kernel_width, "kernel_height": kernel_height,
            "stride_in_pixels_x": stride_in_pixels_x, "stride_in_pixels_y": stride_in_pixels_y,
        }  # fmt: skip
        width, height = (filter_size if each is None else each for each in (kernel_width, kernel_height))
        others = (width, height, *((width, height) if stride is None else (stride, stride)))
        positional = (filter_size, stride, *more) if more else ()
        self._choose_window(positional, named, others, "kernel_width and kernel_height")


class MPSCNNPoolingGradientNode(_Window, MPSNNGradientFilterNode):
    """The base of pooling gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int,
        stride_in_pixels_y: int,
        padding_policy: MPSNNPadding | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self._set_window(kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        if padding_policy is not None:
            self.padding_policy = padding_policy


class MPSCNNPoolingMaxNode(MPSCNNPoolingNode):
    """Max pooling (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNPoolingMaxGradientNode(MPSCNNPoolingGradientNode):
    """The gradient of max pooling (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNPoolingAverageNode(MPSCNNPoolingNode):
    """Average pooling (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNPoolingAverageGradientNode(MPSCNNPoolingGradientNode):
    """The gradient of average pooling (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNPoolingL2NormNode(MPSCNNPoolingNode):
    """Pooling by the L2 norm (MPSNNGraphNodes.h, macOS 10.13)."""


class MPSCNNPoolingL2NormGradientNode(MPSCNNPoolingGradientNode):
    """The gradient of pooling by the L2 norm (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNDilatedPoolingMaxNode(_Dilated, MPSNNFilterNode):
    """Max pooling over pixels that lie apart (MPSNNGraphNodes.h, macOS 10.13). The edge mode of nodes is CLAMP.

    ``filter_size`` alone is window, stride and dilation rate in one; ``stride`` and ``dilation_rate`` may be given too;
    or all six of ``kernel_width``, ``kernel_height``, ``stride_in_pixels_x``, ``stride_in_pixels_y``,
    ``dilation_rate_x`` and ``dilation_rate_y``, in this order or by name.
    """

    def __init__(
        self,
        source: MPSNNImageNode,
        filter_size: int | None = None,
        stride: int | None = None,
        dilation_rate: int | None = None,
        *more: int,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        stride_in_pixels_x: int | None = None,
        stride_in_pixels_y: int | None = None,
        dilation_rate_x: int | None = None,
        dilation_rate_y: int | None = None,
    ) -> None:
        super().__init__([source])
        named = {
            "kernel_width": kernel_width, "kernel_height": kernel_height,
            "stride_in_pixels_x": stride_in_pixels_x, "stride_in_pixels_y": stride_in_pixels_y,
            "dilation_rate_x": dilation_rate_x, "dilation_rate_y": dilation_rate_y,
        }  # fmt: skip
        step, rate = (filter_size if each is None else each for each in (stride, dilation_rate))
        others = (filter_size, filter_size, step, step, rate, rate)
        positional = (filter_size, stride, dilation_rate, *more) if more else ()
        self._choose_window(positional, named, others, f"all of {', '.join(named)}")


class MPSCNNDilatedPoolingMaxGradientNode(_Dilated, MPSCNNPoolingGradientNode):
    """The gradient of max pooling over pixels that lie apart (MPSNNGraphNodes.h, macOS 10.13.4)."""

    def __init__(
        self,
        source_gradient: MPSNNImageNode,
        source_image: MPSNNImageNode,
        gradient_state: MPSNNStateNode,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int,
        stride_in_pixels_y: int,
        dilation_rate_x: int,
        dilation_rate_y: int,
    ) -> None:
        window = (kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y)
        super().__init__(source_gradient, source_image, gradient_state, *window)
        self._set_window(*window, dilation_rate_x, dilation_rate_y)
