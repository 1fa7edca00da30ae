"""MPSCNNConvolutionGradient and MPSCNNFullyConnectedGradient (MPSCNNConvolution.h, macOS 10.13.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.kernel.gradient import GradientGeometry, GradientOperation
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.base import engine_groups
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.forward import MPSCNNConvolution
from openmps.kernels.convolution.gradient_base import ConvolutionGradientKernel
from openmps.kernels.convolution.whole_image import whole_image_axis
from openmps.ops import convolution as ops
from openmps.ops.geometry import Window

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSCNNConvolutionGradient(ConvolutionGradientKernel):
    """The derivative of a convolution (MPSCNNConvolution.h, macOS 10.13.4).

    With X the forward source, G the gradient of its result and ``v = sy y + o.y - ky/2 + dy j`` (u likewise)::

        dX[c, v, u]    = sum over q, j, i, y, x of W[q][j][i][c] G[q, y, x]
        dW[q][j][i][c] = sum over n, y, x of G[n, q, y, x] X[n, c, v, u]
        db[q]          = sum over n, y, x of G[n, q, y, x]

    dX is the result; dW and db are added into the `MPSCNNConvolutionGradientState`: sums over the batch, never means.
    The weights are the data source's, read at the first encode; after an update reload this kernel too. With a
    destination given, `secondary_offset` is the forward offset (the macOS 10.14 reading) and `kernel_offset_x`,
    `kernel_offset_y` place dX.
    """

    serialize_weights_and_biases: bool
    """Has no effect: weights come from the data source (deprecated in the framework)."""

    _forward_kernels = (MPSCNNConvolution,)

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device, weights)
        self.serialize_weights_and_biases = False

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel of a depthwise convolution; 0 for a regular one."""
        return self._descriptor.channel_multiplier

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        wanted, as_float16 = self._wanted(states), self.weights_fp16
        parameters, groups, edge_mode = self.parameters, engine_groups(self._descriptor), geometry.edge_mode
        together = geometry.source == geometry.data

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor | None, Any]:
            def run(window: Any, with_source: bool, with_parameters: bool) -> ops.ConvolutionGradients:
                return ops.convolution_gradient(
                    gradient, source, parameters.used(as_float16), window, groups=groups, edge_mode=edge_mode,
                    with_source=with_source, with_parameters=with_parameters,
                )  # fmt: skip

            if together or not all(wanted):
                window = geometry.source if wanted[1] else geometry.data
                data, dw, db = run(window, *wanted)
            else:
                data = run(geometry.data, True, False).source
                _, dw, db = run(geometry.source, False, True)
            return data, (dw, db) if wanted[1] else None

        return differentiate


class MPSCNNFullyConnectedGradient(MPSCNNConvolutionGradient):
    """The derivative of a fully connected layer (MPSCNNConvolution.h, macOS 10.13.4).

    ``dX[c, y, x] = sum_q W[q][y][x][c] G[q]``, ``dW[q][y][x][c] = sum_n G[n, q] X[n, c, y, x]``, ``db = sum_n G``.
    """

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        source = sources[1].extent
        whole = (self._descriptor.kernel_width, self._descriptor.kernel_height) == (source.width, source.height)
        if not whole:
            return super()._gradient(self._from_the_corner(geometry), sources, states)
        if geometry.source.result != (1, 1):
            rows, columns = geometry.source.result
            raise MPSArgumentError(
                self.name, self._source_arguments[0], "must have 1x1 pixels", f"{columns}x{rows} pixels"
            )
        with_source, with_parameters = self._wanted(states)
        parameters, as_float16 = self.parameters, self.weights_fp16

        def differentiate(gradient: Tensor, image: Tensor, saved: Any) -> tuple[Tensor | None, Any]:
            weights = parameters.used(as_float16)
            data, dw, db = ops.fully_connected_gradient(
                gradient, image, weights, with_source=with_source, with_parameters=with_parameters
            )
            return data, (dw, db) if with_parameters else None

        return differentiate

    @staticmethod
    def _from_the_corner(geometry: GradientGeometry) -> GradientGeometry:
        """Offsets are ignored: the first window starts at pixel 0."""
        x, y = whole_image_axis(geometry.source.x), whole_image_axis(geometry.source.y)
        return replace(geometry, source=Window(x=x, y=y), data=Window(x=x, y=y))
