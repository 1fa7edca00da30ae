"""MPSCNNConvolutionTransposeGradient (MPSCNNConvolution.h, macOS 10.15)."""

from __future__ import annotations

from openmps.core.kernel.lowering_context import GradientLoweringContext
from openmps.core.state.gradient import ForwardRecord
from openmps.kernels.convolution.gradient_base import ConvolutionGradientKernel
from openmps.kernels.convolution.transpose import (
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradientState,
    TransposePlacement,
    stuffed_window,
)
from openmps.ops.convolution.convolution_transpose import ConvolutionTransposeGradient
from openmps.ops.op import Value
from openmps.types import MPSDataType, MPSOffset


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
