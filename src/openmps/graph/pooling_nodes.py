"""Pooling nodes and their gradient nodes (MPSNNGraphNodes.h, macOS 10.13 and 10.13.4)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from openmps.checks import Shown, is_whole
from openmps.core.padding.policy import MPSNNPadding
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.nodes import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNGradientStateNode,
    MPSNNImageNode,
    MPSNNStateNode,
)


class _Sizes(NamedTuple):
    width: int
    height: int
    stride_x: int
    stride_y: int


class _Window:
    """Size and stride of a pooling window."""

    _window: _Sizes

    def _set_window(self, *window: int) -> None:
        if not all(is_whole(value, 1) for value in window):
            raise MPSArgumentError(type(self).__name__, "window and stride", "must be integers of at least 1", window)
        self._window = _Sizes(*window)

    kernel_width = Shown[int]("_window.width", "Columns of the window.")
    kernel_height = Shown[int]("_window.height", "Rows of the window.")
    stride_in_pixels_x = Shown[int]("_window.stride_x", "Columns from one window to the next.")
    stride_in_pixels_y = Shown[int]("_window.stride_y", "Rows from one window to the next.")


class MPSCNNPoolingNode(_Window, MPSNNFilterNode):
    """The base of pooling nodes (MPSNNGraphNodes.h, macOS 10.13). The edge mode of nodes is CLAMP.

    ``filter_size`` is a square window, the stride its size unless ``stride`` is given; or all four of ``kernel_width``,
    ``kernel_height``, ``stride_in_pixels_x`` and ``stride_in_pixels_y``.
    """

    _state_class = MPSNNGradientStateNode

    def __init__(
        self,
        source: MPSNNImageNode,
        filter_size: int | None = None,
        stride: int | None = None,
        *,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        stride_in_pixels_x: int | None = None,
        stride_in_pixels_y: int | None = None,
    ) -> None:
        super().__init__([source])
        width = filter_size if kernel_width is None else kernel_width
        height = filter_size if kernel_height is None else kernel_height
        if width is None or height is None:
            rule = "is needed, or kernel_width and kernel_height"
            raise MPSTypeError(type(self).__name__, "filter_size", rule, (width, height))
        stride_x, stride_y = _first(stride_in_pixels_x, stride, width), _first(stride_in_pixels_y, stride, height)
        self._set_window(width, height, stride_x, stride_y)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


class MPSCNNPoolingGradientNode(_Window, MPSNNGradientFilterNode):
    """The base of pooling gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNPoolingNode

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

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        state = self._result_states[0]
        return [MPSCNNPoolingMaxGradientNode(gradient, self.sources[0], state, *self._window, self.padding_policy)]


class MPSCNNPoolingMaxGradientNode(MPSCNNPoolingGradientNode):
    """The gradient of max pooling (MPSNNGraphNodes.h, macOS 10.13.4)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNPoolingMaxNode


class MPSCNNPoolingAverageNode(MPSCNNPoolingNode):
    """Average pooling (MPSNNGraphNodes.h, macOS 10.13)."""

    def _gradient_nodes(self, gradient: MPSNNImageNode) -> list[MPSNNGradientFilterNode]:
        state = self._result_states[0]
        return [MPSCNNPoolingAverageGradientNode(gradient, self.sources[0], state, *self._window, self.padding_policy)]


class MPSCNNPoolingAverageGradientNode(MPSCNNPoolingGradientNode):
    """The gradient of average pooling (MPSNNGraphNodes.h, macOS 10.13.4)."""

    _forward_class: ClassVar[type[MPSNNFilterNode]] = MPSCNNPoolingAverageNode
