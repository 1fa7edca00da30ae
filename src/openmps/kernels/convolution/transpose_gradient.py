"""MPSCNNConvolutionTransposeGradient (MPSCNNConvolution.h, macOS 10.15)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from openmps.core.kernel.gradient import GradientGeometry, GradientOperation
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.kernels.convolution.base import engine_groups
from openmps.kernels.convolution.gradient_base import ConvolutionGradientKernel
from openmps.kernels.convolution.state import MPSCNNConvolutionTransposeGradientState
from openmps.kernels.convolution.transpose import MPSCNNConvolutionTranspose, TransposePlacement, stuffed_window
from openmps.ops.convolution_transpose import convolution_transpose_gradient
from openmps.types import MPSDataType, MPSOffset


class MPSCNNConvolutionTransposeGradient(ConvolutionGradientKernel):
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

    _forward_kernels = (MPSCNNConvolutionTranspose,)
    _state_class = MPSCNNConvolutionTransposeGradientState
    _weight_types = (MPSDataType.FLOAT32,)

    def _configure(self, record: ForwardRecord) -> None:
        super()._configure(record)
        placed: TransposePlacement = record.parameters
        self.secondary_offset = MPSOffset(placed.offset.x, placed.offset.y, self.secondary_offset.z)
        self.kernel_offset_x, self.kernel_offset_y = placed.kernel_offset_x, placed.kernel_offset_y

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        wanted, as_float16 = self._wanted(states), self.weights_fp16
        parameters, groups = self.parameters, engine_groups(self._descriptor)
        window = stuffed_window(geometry.source, self.kernel_offset_x, self.kernel_offset_y)

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor | None, Any]:
            if not any(wanted):
                return None, None
            data, dw, db = convolution_transpose_gradient(
                gradient,
                source,
                parameters.used(as_float16),
                window,
                groups=groups,
                with_source=wanted[0],
                with_parameters=wanted[1],
            )
            return data, (dw, db) if wanted[1] else None

        return differentiate
