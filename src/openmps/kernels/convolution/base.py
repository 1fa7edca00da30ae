"""What convolution and transposed convolution share: weights, channels, the fused neuron, precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from openmps.core.data_source import copy_of
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.encode import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTrainingWarning, MPSTypeError
from openmps.kernels.convolution.data_source import (
    WEIGHT_TYPES,
    MPSCNNConvolutionDataSource,
    check_data_source,
    load_weights,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.versions import Held
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.ops.neuron import neuron
from openmps.types import MPSCNNNeuronType, MPSDataType, MPSNNConvolutionAccumulatorPrecisionOption

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_HALF = MPSNNConvolutionAccumulatorPrecisionOption.HALF
_FLOAT = MPSNNConvolutionAccumulatorPrecisionOption.FLOAT


class ConvolutionKernel(MPSCNNKernel):
    """A kernel with one source image and the weights of a data source."""

    weights_fp16: bool
    """Whether numbers are those of float16 hardware: weights rounded to float16 once, after folding, and sums rounded
    to float16 after each product where `accumulator_precision_option` is HALF, which is slow. Default False: weights as
    the data source gives them, sums in single precision. Our addition."""

    _weight_types: tuple[MPSDataType, ...] = WEIGHT_TYPES

    def __init__(
        self, device: MTLDevice, source: MPSCNNConvolutionDataSource | None, parameters: ConvolutionWeights | None
    ) -> None:
        super().__init__(device)
        self._data_source = source
        self._accumulator = _FLOAT
        self._has_warned = False
        self.weights_fp16 = False
        if parameters is None:
            check_data_source(self.name, source)
            assert source is not None
            self.label = source.label()
            parameters = ConvolutionWeights.load(self.name, device, source, self._weight_types)
        self._weights = parameters
        self._read_descriptor(parameters.descriptor)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        source = self._sources[0]
        source.kernel_width, source.kernel_height = descriptor.kernel_width, descriptor.kernel_height
        source.stride_x, source.stride_y = descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y
        source.dilation_x, source.dilation_y = descriptor.dilation_rate_x, descriptor.dilation_rate_y

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def accumulator_precision_option(self) -> MPSNNConvolutionAccumulatorPrecisionOption:
        """Precision of sums (macOS 10.13.4). Default FLOAT.

        Sums are single precision at least either way; HALF lets a GPU round float32 factors to 10 bits (TF32), which is
        several times as fast. With `weights_fp16` HALF gives a float16 accumulator's numbers instead, slowly.
        """
        return self._accumulator

    @accumulator_precision_option.setter
    def accumulator_precision_option(self, value: MPSNNConvolutionAccumulatorPrecisionOption) -> None:
        if value not in (_HALF, _FLOAT):
            raise MPSArgumentError(self.name, "accumulator_precision_option", "must be HALF or FLOAT", repr(value))
        self._accumulator = MPSNNConvolutionAccumulatorPrecisionOption(value)

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The descriptor that the kernel was made with."""
        return self._weights.descriptor

    @property
    def parameters(self) -> ConvolutionWeights:
        """The weights on the device; for those who extend the framework."""
        return self._weights

    def share_parameters(self, weights: ConvolutionWeights) -> None:
        """Use another kernel's weights, so that one reload serves both; for those who schedule kernels."""
        self._weights = weights

    @property
    def input_feature_channels(self) -> int:
        """Channels read."""
        return self.convolution_descriptor.input_feature_channels

    @property
    def output_feature_channels(self) -> int:
        """Output channels of the weights; those of the result image, unless sub-pixels are made of them."""
        return self.convolution_descriptor.output_feature_channels

    @property
    def groups(self) -> int:
        """Groups that input and output channels are divided into."""
        return self.convolution_descriptor.groups

    @property
    def fused_neuron_descriptor(self) -> MPSNNNeuronDescriptor | None:
        """The neuron applied to the result, or None."""
        return self.convolution_descriptor.fused_neuron_descriptor

    def is_result_state_reused_across_batch(self) -> bool:
        """True: the parameter gradients are sums over the batch."""
        return True

    # --- weights ----------------------------------------------------------------------------------------------------

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again, at once; queued work is not waited for (macOS 10.14; transposed 10.15)."""
        if self._data_source is None:
            raise MPSArgumentError(
                self.name, "data_source", "is needed to reload", None, "Make the kernel with weights=<data source>"
            )
        self._weights.reload(self.name, self._data_source, self._weight_types)

    def reload_weights_and_biases(
        self,
        command_buffer: CommandBuffer | None = None,
        state: MPSCNNConvolutionWeightsAndBiasesState | None = None,
        *,
        data_source: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        """Take the weights of ``state`` when ``command_buffer`` runs; takes one read of a temporary state.

        Called with ``data_source`` (deprecated, the argument is not looked at) or with nothing, reads the kernel's own
        data source at once.
        """
        if command_buffer is None and state is None:
            self.reload_weights_and_biases_from_data_source()
            return
        reload_from_state(self, self._weights, command_buffer, state)

    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, result_state_can_be_temporary: bool = False
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A copy of the weights as they are when ``command_buffer`` runs: float32, OHWI, before folding and rounding.

        ``biases`` of the state is None if the convolution has none.
        """
        check_command_buffer(self.name, command_buffer, self.device)
        state = self._weights.empty_state(command_buffer if result_state_can_be_temporary else None)
        command_buffer.record(f"{self.name} export", self._weights.giver(state))
        return state

    @property
    def weights_version(self) -> int:
        """Number of the weights that the kernel holds, counted over all kernels of its data source. Our addition.

        1 at first; each change that a kernel of the data source is given begins a new version, and kernels that are
        given the same one agree. Follows encodes and reloads as the program makes them, not as they run.
        """
        return self._weights.held.version

    def holds_stale_weights(self) -> bool:
        """Whether the weights or biases held are other numbers than the data source gives now. Our addition.

        Reads the data source, and the weights as they are in memory: call it when the command buffers are done. True
        also where the kernel was trained on the device and its data source does not bring the weights back. Always
        False without a data source.
        """
        return holds_other_than(self.name, self._weights, self._data_source, self._weight_types)

    def copy_over(
        self, device: MTLDevice, data_source: MPSCNNConvolutionDataSource, weights: ConvolutionWeights
    ) -> Self:
        """A copy whose data source and weights are there already; for those who schedule kernels."""
        twin = self._duplicate(device)
        super(ConvolutionKernel, twin)._unshare()
        twin._data_source, twin._weights = data_source, weights
        return twin

    def _unshare(self) -> None:
        super()._unshare()
        if self._data_source is not None:
            self._data_source = copy_of(self._data_source, self.device)
        self._weights = self._weights.copy(self.device, self._data_source)

    # --- states -----------------------------------------------------------------------------------------------------

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        held = self._weights.held
        if held.version == held.lineage.latest:
            self._has_warned = False
        elif held.is_stale and not self._has_warned:
            self._has_warned = True
            _warn_of_stale_weights(self.name, held)
        state = None if destination_states is None else destination_states.shared
        if isinstance(state, MPSCNNConvolutionGradientState):
            state.begin(self.name, plan.images, held.version)
        return super()._keeper(plan, source_states, destination_states)

    # --- for the encode path's hooks --------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self.input_feature_channels

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.convolution_descriptor.result_channels

    def _sums_in_half(self) -> bool:
        """Whether this encode gives the numbers of a float16 accumulator."""
        if self._accumulator is _HALF and self._weights.precision is MPSDataType.FLOAT32:
            raise MPSArgumentError(
                self.name,
                "accumulator_precision_option",
                "must be FLOAT where the data source's kernel_weights_data_type() is FLOAT32",
                self._accumulator.name,
                "Set it to FLOAT, or return FLOAT16",
            )
        return self.weights_fp16 and self._accumulator is _HALF

    def _allows_tf32(self) -> bool:
        return self._accumulator is _HALF

    def _finish(self) -> Callable[[Tensor], Tensor]:
        """The fused neuron as it stands, or the identity."""
        fused = self.fused_neuron_descriptor
        if fused is None or fused.neuron_type is MPSCNNNeuronType.NONE:
            return _identity
        data = fused.slopes(self.name, self.output_feature_channels, self.device.torch_device)
        kind, a, b, c = fused.neuron_type, fused.a, fused.b, fused.c

        def finish(result: Tensor) -> Tensor:
            return neuron(result, kind, a, b, c, data)

        return finish


def _warn_of_stale_weights(who: str, held: Held) -> None:
    message = (
        f"{who}: holds version {held.version} of the weights, and another kernel of the same data source was given "
        f"version {held.lineage.latest}: after each update reload every kernel, with "
        "reload_weights_and_biases_from_data_source() or reload_weights_and_biases(command_buffer, state)"
    )
    warnings.warn(message, MPSTrainingWarning, stacklevel=2)


def _identity(result: Tensor) -> Tensor:
    return result


def engine_groups(descriptor: MPSCNNConvolutionDescriptor) -> int:
    """Groups as the engine counts them: a depthwise convolution has one an input channel."""
    return descriptor.input_feature_channels if descriptor.channel_multiplier else descriptor.groups


def reload_from_state(kernel: Any, parameters: ConvolutionWeights, command_buffer: Any, state: Any) -> None:
    """Record that ``parameters`` take a state's numbers, and count the read."""
    if not isinstance(state, MPSCNNConvolutionWeightsAndBiasesState):
        raise MPSTypeError(
            kernel.name,
            "state",
            "must be an MPSCNNConvolutionWeightsAndBiasesState",
            type(state).__name__,
            "Pass the state of the new weights, or call reload_weights_and_biases_from_data_source()",
        )
    check_command_buffer(kernel.name, command_buffer, kernel.device)
    state.check_usable(kernel.name, "state", command_buffer)
    command_buffer.record(f"{kernel.name} reload", parameters.taker(kernel.name, state))
    state.count_read()


def holds_other_than(
    who: str,
    parameters: ConvolutionWeights,
    source: MPSCNNConvolutionDataSource | None,
    kinds: tuple[MPSDataType, ...],
) -> bool:
    """Whether a data source gives other numbers now than ``parameters`` holds."""
    return source is not None and not parameters.equal(load_weights(who, source, kinds))
