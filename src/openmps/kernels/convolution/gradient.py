"""The gradients of convolutions, fully connected and transposed ones (MPSCNNConvolution.h, macOS 10.13.4 and 10.15)."""

from __future__ import annotations

from dataclasses import replace

from openmps.checks import Shown
from openmps.core.image.storage import Target
from openmps.core.kernel.lowering_context import GradientGeometry, GradientLoweringContext
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.forward import MPSCNNConvolution
from openmps.kernels.convolution.gradient_base import ConvolutionGradientKernel
from openmps.kernels.convolution.transpose import (
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradientState,
    TransposePlacement,
    stuffed_window,
)
from openmps.kernels.convolution.whole_image import whole_image_axis
from openmps.metal.device import MTLDevice
from openmps.ops.convolution.convolution import ConvolutionGradient, FullyConnectedGradient
from openmps.ops.convolution.convolution_transpose import ConvolutionTransposeGradient
from openmps.ops.geometry import Window
from openmps.ops.op import Value
from openmps.types import MPSDataType, MPSImageEdgeMode, MPSOffset


class MPSCNNConvolutionGradient(ConvolutionGradientKernel, of=MPSCNNConvolution):
    """The derivative of a convolution (MPSCNNConvolution.h, macOS 10.13.4).

    With X the forward source, G the gradient of its result and ``v = sy y + o.y - ky/2 + dy j`` (u likewise)::

        dX[c, v, u]    = sum over q, j, i, y, x of W[q][j][i][c] G[q, y, x]
        dW[q][j][i][c] = sum over n, y, x of G[n, q, y, x] X[n, c, v, u]
        db[q]          = sum over n, y, x of G[n, q, y, x]

    dX is the result; dW and db are added into the `MPSCNNConvolutionGradientState`: sums over the batch, never means.
    The weights are the data source's, read at the first encode; after an update reload this kernel too. With a
    destination given, `secondary_offset` is the forward offset (the macOS 10.14 reading), or by the convention
    ``secondary_offset`` the first tap's place (that of 16.5), and `kernel_offset_x`, `kernel_offset_y` place dX.
    """

    serialize_weights_and_biases: bool
    """Has no effect: weights come from the data source (deprecated in the framework)."""

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device, weights)
        self.serialize_weights_and_biases = False

    channel_multiplier = Shown[int](
        "_descriptor.channel_multiplier",
        "Output channels an input channel of a depthwise convolution; 0 for a regular one.",
    )

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        x, y = record.sources[0].window.x, record.sources[0].window.y
        back = self._first_tap(x.extent), self._first_tap(y.extent)
        offset = self.secondary_offset
        self.secondary_offset = MPSOffset(offset.x - back[0], offset.y - back[1], offset.z)

    def _placement(self, records: tuple[SourceRecord, ...], target: Target) -> GradientGeometry:
        """Windows are placed by their centres."""
        geometry = super()._placement(records, target)
        x, y = (
            replace(axis, offset=axis.offset + self._first_tap(axis.extent))
            for axis in (geometry.source.x, geometry.source.y)
        )
        return replace(geometry, source=Window(x=x, y=y))

    def _first_tap(self, extent: int) -> int:
        """How far in front of a window's centre its secondary offset counts from."""
        return extent // 2 if self.conventions["secondary_offset"] == "first_tap" else 0

    def _gradients(
        self, at: GradientLoweringContext, gradient: Value, source: Value, weights: Value
    ) -> tuple[Value, Value, Value]:
        """By two placements, where the data gradient lands elsewhere, or reads other edges, than the sums."""
        edge_mode, groups = at.edge_mode, self._shape.groups
        clamped = self.conventions["clamp_gradient"] if edge_mode is MPSImageEdgeMode.CLAMP else "adjoint"
        of_data = edge_mode if clamped == "adjoint" else MPSImageEdgeMode.ZERO
        of_sums = MPSImageEdgeMode.ZERO if clamped == "zeros" else edge_mode
        data, *sums = ConvolutionGradient(at.geometry.source, of_sums, groups)(gradient, source, weights)
        if at.geometry.data != at.geometry.source or of_data is not of_sums:
            data, *_ = ConvolutionGradient(at.geometry.data, of_data, groups)(gradient, source, weights)
        return data, *sums


class MPSCNNFullyConnectedGradient(MPSCNNConvolutionGradient):
    """The derivative of a fully connected layer (MPSCNNConvolution.h, macOS 10.13.4).

    ``dX[c, y, x] = sum_q W[q][y][x][c] G[q]``, ``dW[q][y][x][c] = sum_n G[n, q] X[n, c, y, x]``, ``db = sum_n G``.
    """

    def _placement(self, records: tuple[SourceRecord, ...], target: Target) -> GradientGeometry:
        """Offsets are ignored where the source is larger: the first window starts at pixel 0."""
        geometry = super()._placement(records, target)
        if self._is_whole(records[1]):
            return geometry
        corner = Window(x=whole_image_axis(geometry.source.x), y=whole_image_axis(geometry.source.y))
        return GradientGeometry(corner, corner, geometry.edge_mode)

    def _is_whole(self, source: SourceRecord) -> bool:
        """Whether the kernel is as large as the source."""
        return self._shape.weights[1:3] == (source.extent.height, source.extent.width)

    def _gradients(
        self, at: GradientLoweringContext, gradient: Value, source: Value, weights: Value
    ) -> tuple[Value, Value, Value]:
        if not self._is_whole(at.sources[1]):
            return super()._gradients(at, gradient, source, weights)
        rows, columns = at.window.result
        if (rows, columns) != (1, 1):
            rule = "must have 1x1 pixels"
            raise MPSArgumentError(self.name, self._source_arguments[0], rule, f"{columns}x{rows} pixels")
        return FullyConnectedGradient()(gradient, source, weights)


class MPSCNNConvolutionTransposeGradient(ConvolutionGradientKernel, of=MPSCNNConvolutionTranspose):
    """The derivative of a transposed convolution (MPSCNNConvolution.h, macOS 10.15).

    With G the gradient of the result, 0 outside its pixels, Z the zero-filled source and T as in
    `MPSCNNConvolutionTranspose`, columns like rows::

        dX[c, v, u]    = sum over q, j, i of W[q][j][i][c] G[q, sy v - T.y + ky/2 - dy j, sx u - T.x + kx/2 - dx i]
        dW[q][j][i][c] = sum over n, y, x of G[n, q, y, x] Z[n, c, y + T.y - ky/2 + dy j, x + T.x - kx/2 + dx i]
        db[q]          = sum over n, y, x of G[n, q, y, x]

    dX is the result; dW and db are added into the `MPSCNNConvolutionTransposeGradientState`: sums over the batch, never
    means. The data source must give FLOAT32 weights. With a destination given, `secondary_offset` and
    `kernel_offset_x`, `kernel_offset_y` are the forward kernel's offset and kernel offsets, and `primary_offset` is the
    first gradient pixel used, to which they belong.
    """

    _state_class = MPSCNNConvolutionTransposeGradientState
    _weight_types = (MPSDataType.FLOAT32,)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        placed: TransposePlacement = record.parameters
        self.secondary_offset = MPSOffset(placed.offset.x, placed.offset.y, self.secondary_offset.z)
        self.kernel_offset_x, self.kernel_offset_y = placed.kernel_offset_x, placed.kernel_offset_y

    def _gradients(
        self, at: GradientLoweringContext, gradient: Value, source: Value, weights: Value
    ) -> tuple[Value, Value, Value]:
        window = stuffed_window(at.window, self.kernel_offset_x, self.kernel_offset_y)
        return ConvolutionTransposeGradient(window, self._shape.groups)(gradient, source, weights)
