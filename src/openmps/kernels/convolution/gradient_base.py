"""What the gradients of convolution and of transposed convolution share: weights, options, the state's sums."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from openmps.core.data_source import copy_of
from openmps.core.kernel.encode import Plan
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTrainingWarning, MPSTypeError
from openmps.kernels.convolution.base import holds_other_than, reload_from_state
from openmps.kernels.convolution.data_source import WEIGHT_TYPES, MPSCNNConvolutionDataSource, describe
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, refuse_sub_pixels
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.versions import Held
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.types import MPSCNNConvolutionGradientOption, MPSDataType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_DATA = int(MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA)
_PARAMETERS = int(MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS)


class ConvolutionGradientKernel(MPSCNNGradientKernel):
    """A gradient kernel with the weights of a data source; parameter gradients are added to the state."""

    weights_fp16: bool
    """Whether the weights are rounded to float16, as `weights_fp16` of the forward kernel. Our addition."""

    _strides = range(1, 2**63)
    _weight_types: tuple[MPSDataType, ...] = WEIGHT_TYPES
    _state_class: ClassVar[type[MPSCNNConvolutionGradientState]] = MPSCNNConvolutionGradientState

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device)
        self._data_source = weights
        self._descriptor = describe(self.name, weights)
        refuse_sub_pixels(self.name, self._descriptor)
        self.label = weights.label()
        self._option = MPSCNNConvolutionGradientOption.ALL
        self._has_warned = False
        self.weights_fp16 = False
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
            self._weights = ConvolutionWeights.load(self.name, self.device, self._data_source, self._weight_types)
        return self._weights

    def share_parameters(self, weights: ConvolutionWeights) -> None:
        """Use the weights of the forward kernel, so that one reload serves both; for those who schedule kernels."""
        self._weights = weights

    @property
    def data_source(self) -> MPSCNNConvolutionDataSource:
        """The data source of the forward kernel."""
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
        """Groups of the forward kernel."""
        return self._descriptor.groups

    @property
    def gradient_option(self) -> MPSCNNConvolutionGradientOption:
        """Which gradients are computed: data, weights and bias, or ALL, the default.

        Parameter gradients alone leave the result image as it is; data gradients alone leave the state as it is.
        """
        return self._option

    @gradient_option.setter
    def gradient_option(self, value: MPSCNNConvolutionGradientOption) -> None:
        if isinstance(value, bool) or value not in range(4):
            rule = "must be GRADIENT_WITH_DATA, GRADIENT_WITH_WEIGHTS_AND_BIAS or ALL"
            raise MPSArgumentError(self.name, "gradient_option", rule, repr(value))
        self._option = MPSCNNConvolutionGradientOption(value)

    @property
    def is_state_modified(self) -> bool:
        """True: parameter gradients are added to the state."""
        return True

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again, at once (macOS 10.14; transposed 10.15)."""
        self.parameters.reload(self.name, self._data_source, self._weight_types)

    def reload_weights_and_biases(
        self,
        command_buffer: CommandBuffer | None = None,
        state: MPSCNNConvolutionWeightsAndBiasesState | None = None,
        *,
        data_source: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        """Take the weights of ``state`` when ``command_buffer`` runs; otherwise as for `MPSCNNConvolution`."""
        if command_buffer is None and state is None:
            self.reload_weights_and_biases_from_data_source()
            return
        reload_from_state(self, self.parameters, command_buffer, state)

    @property
    def weights_version(self) -> int:
        """As that of the forward kernel; 0 until the weights are read, at the first encode. Our addition."""
        return 0 if self._weights is None else self._weights.held.version

    def holds_stale_weights(self) -> bool:
        """As that of the forward kernel; False until the weights are read, at the first encode. Our addition."""
        held = self._weights
        return held is not None and holds_other_than(self.name, held, self._data_source, self._weight_types)

    def copy_over(
        self, device: MTLDevice, data_source: MPSCNNConvolutionDataSource, weights: ConvolutionWeights
    ) -> Self:
        """A copy whose data source and weights are there already; for those who schedule kernels."""
        twin = self._duplicate(device)
        super(ConvolutionGradientKernel, twin)._unshare()
        twin._data_source, twin._weights = data_source, weights
        return twin

    def _unshare(self) -> None:
        super()._unshare()
        self._data_source = copy_of(self._data_source, self.device)
        if self._weights is not None:
            self._weights = self._weights.copy(self.device, self._data_source)

    def _needed_channels(self, index: int, available: int) -> int:
        return self.source_image_feature_channels if index else self.source_gradient_feature_channels

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """The weights say how many channels there must be."""

    # --- options and the state --------------------------------------------------------------------------------------

    def _wanted(self, states: MPSStateBatch | None) -> tuple[bool, bool]:
        """Whether data and parameter gradients are computed; raises if there is no state for the latter."""
        option = int(self._option)
        wanted = bool(option & _DATA), bool(option & _PARAMETERS)
        if wanted[1]:
            self._gradient_state(states)
        return wanted

    def _gradient_state(self, states: MPSStateBatch | None) -> MPSCNNConvolutionGradientState:
        state = None if states is None else states.shared
        kind = self._state_class.__name__
        if not isinstance(state, MPSCNNConvolutionGradientState) or not isinstance(state.kernel, self._forward_kernels):
            raise MPSTypeError(
                self.name,
                "gradient_state",
                f"must be the one {kind} of the batch",
                "no state" if states is None else repr(states),
                "Pass the state that the forward encode made, or set gradient_option to GRADIENT_WITH_DATA",
            )
        mine, theirs = self._descriptor.weight_shape(), state.kernel.convolution_descriptor.weight_shape()
        if mine != theirs:
            raise MPSArgumentError(
                self.name,
                "gradient_state",
                f"must be of a convolution with weights {mine}",
                f"{theirs}, made by {state.kernel.name}",
                "Pass the state of the forward kernel of the same data source",
            )
        return state

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        """Where the parameter gradients go; warns if the weights are not those of the forward encode."""
        state = None if source_states is None else source_states.shared
        # The plan was made: there is a state that fits wherever one is needed.
        if not isinstance(state, MPSCNNConvolutionGradientState):
            return None
        if self._weights is None or state.weights_version in (None, self._weights.held.version):
            self._has_warned = False
        elif not self._has_warned:
            self._compare_versions(self._weights.held, state)
        return state.add(self.name, plan.images) if int(self._option) & _PARAMETERS else None

    def _compare_versions(self, held: Held, state: MPSCNNConvolutionGradientState) -> None:
        theirs = state.weights_version
        if theirs is None or held.lineage is not state.kernel.parameters.held.lineage:
            return
        self._has_warned = True
        relation = "older" if held.version < theirs else "newer"
        message = (
            f"{self.name}: holds version {held.version} of the weights, {relation} than version {theirs} that "
            f"{state.kernel.name} had in the forward encode: after each update reload both kernels, with "
            "reload_weights_and_biases_from_data_source() or reload_weights_and_biases(command_buffer, state)"
        )
        warnings.warn(message, MPSTrainingWarning, stacklevel=2)
