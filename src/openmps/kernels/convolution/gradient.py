"""MPSCNNConvolutionGradient and MPSCNNFullyConnectedGradient (MPSCNNConvolution.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.gradient_kernel import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.gradient_state import SourceRecord
from openmps.core.kernel import Plan
from openmps.core.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, describe
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.forward import (
    MPSCNNConvolution,
    copy_source,
    engine_groups,
    reload_from_state,
    whole_image_axis,
)
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.ops import convolution as ops
from openmps.ops.geometry import Window
from openmps.types import MPSCNNConvolutionGradientOption

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_DATA = MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA
_PARAMETERS = MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS


class MPSCNNConvolutionGradient(MPSCNNGradientKernel):
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

    gradient_option: MPSCNNConvolutionGradientOption
    """Which gradients are computed: data, weights and bias, or all."""
    serialize_weights_and_biases: bool
    """Has no effect: weights come from the data source (deprecated in the framework)."""

    _forward_kernels = (MPSCNNConvolution,)
    _strides = range(1, 2**63)

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device)
        self._data_source = weights
        self._descriptor = describe(self.name, weights)
        self.label = weights.label()
        self.gradient_option = MPSCNNConvolutionGradientOption.ALL
        self.serialize_weights_and_biases = False
        self._weights: ConvolutionWeights | None = None
        for source in self._sources:
            source.kernel_width, source.kernel_height = self._descriptor.kernel_width, self._descriptor.kernel_height
            source.stride_x = self._descriptor.stride_in_pixels_x
            source.stride_y = self._descriptor.stride_in_pixels_y
            source.dilation_x = self._descriptor.dilation_rate_x
            source.dilation_y = self._descriptor.dilation_rate_y

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The data source's descriptor."""
        return self._descriptor

    @property
    def parameters(self) -> ConvolutionWeights:
        """The weights on the device, read from the data source when first asked for."""
        if self._weights is None:
            self._weights = ConvolutionWeights.load(self.name, self.device, self._data_source)
        return self._weights

    def share_parameters(self, weights: ConvolutionWeights) -> None:
        """Use the weights of the forward kernel, so that one reload serves both; for those who schedule kernels."""
        self._weights = weights

    @property
    def data_source(self) -> MPSCNNConvolutionDataSource:
        """The data source of the forward convolution."""
        return self._data_source

    @property
    def source_gradient_feature_channels(self) -> int:
        """Channels of the incoming gradient: the forward output channels."""
        return self._descriptor.output_feature_channels

    @property
    def source_image_feature_channels(self) -> int:
        """Channels of the forward source."""
        return self._descriptor.input_feature_channels

    @property
    def groups(self) -> int:
        """Groups of the forward convolution."""
        return self._descriptor.groups

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel of a depthwise convolution; 0 for a regular one."""
        return self._descriptor.channel_multiplier

    @property
    def is_state_modified(self) -> bool:
        """True: parameter gradients are added to the state."""
        return True

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again, at once (MPSCNNConvolution.h, macOS 10.14)."""
        self.parameters.reload(self.name, self._data_source)

    def reload_weights_and_biases(
        self,
        command_buffer: CommandBuffer | None = None,
        state: MPSCNNConvolutionWeightsAndBiasesState | None = None,
        *,
        data_source: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        """Take the weights of ``state`` when ``command_buffer`` runs; otherwise as for `MPSCNNConvolution`."""
        if command_buffer is None or state is None:
            self.reload_weights_and_biases_from_data_source()
            return
        reload_from_state(self, self.parameters, command_buffer, state)

    def _unshare(self) -> None:
        super()._unshare()
        self._data_source = copy_source(self._data_source, self.device)
        if self._weights is not None:
            self._weights = self._weights.copy(self.device)

    def _needed_channels(self, index: int, available: int) -> int:
        return self.source_image_feature_channels if index else self.source_gradient_feature_channels

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """The weights say how many channels there must be."""

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        option = MPSCNNConvolutionGradientOption(self.gradient_option)
        wanted = bool(option & _DATA), bool(option & _PARAMETERS)
        if wanted[1]:
            self._gradient_state(states)
        weights, groups, edge_mode = self.parameters, engine_groups(self._descriptor), geometry.edge_mode
        together = geometry.source == geometry.data

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor | None, Any]:
            def run(window: Any, with_source: bool, with_parameters: bool) -> ops.ConvolutionGradients:
                return ops.convolution_gradient(
                    gradient, source, weights.weights, window, groups=groups, edge_mode=edge_mode,
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

    def _gradient_state(self, states: MPSStateBatch | None) -> MPSCNNConvolutionGradientState:
        state = None if states is None else states.shared
        if not isinstance(state, MPSCNNConvolutionGradientState):
            raise MPSTypeError(
                self.name,
                "gradient_state",
                "must be the one MPSCNNConvolutionGradientState of the batch",
                "no state" if states is None else repr(states),
                "Pass the state that the forward convolution's encode made, or set gradient_option to "
                "GRADIENT_WITH_DATA",
            )
        mine, theirs = self._descriptor.weight_shape(), state.convolution.convolution_descriptor.weight_shape()
        if mine != theirs:
            raise MPSArgumentError(
                self.name,
                "gradient_state",
                f"must be of a convolution with weights {mine}",
                f"{theirs}, made by {state.convolution.name}",
                "Pass the state of the forward convolution of the same data source",
            )
        return state

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        if not MPSCNNConvolutionGradientOption(self.gradient_option) & _PARAMETERS:
            return None
        return self._gradient_state(source_states).absorb


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
        option = MPSCNNConvolutionGradientOption(self.gradient_option)
        with_source, with_parameters = bool(option & _DATA), bool(option & _PARAMETERS)
        if with_parameters:
            self._gradient_state(states)
        weights = self.parameters

        def differentiate(gradient: Tensor, image: Tensor, saved: Any) -> tuple[Tensor | None, Any]:
            data, dw, db = ops.fully_connected_gradient(
                gradient, image, weights.weights, with_source=with_source, with_parameters=with_parameters
            )
            return data, (dw, db) if with_parameters else None

        return differentiate

    @staticmethod
    def _from_the_corner(geometry: GradientGeometry) -> GradientGeometry:
        """Offsets are ignored: the first window starts at pixel 0."""
        x, y = whole_image_axis(geometry.source.x), whole_image_axis(geometry.source.y)
        return replace(geometry, source=Window(x=x, y=y), data=Window(x=x, y=y))
