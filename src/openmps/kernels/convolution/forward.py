"""MPSCNNConvolution and MPSCNNFullyConnected (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.gradient_state import MPSNNGradientState, SourceRecord
from openmps.core.kernel import Operation
from openmps.core.kernel_checks import check_command_buffer
from openmps.core.neuron_descriptor import MPSNNNeuronDescriptor
from openmps.core.padding import MPSNNDefaultPadding
from openmps.core.state import MPSStateBatch
from openmps.core.storage import Extent, Target
from openmps.core.unary_kernel import MPSCNNKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.data_source import (
    LoadedWeights,
    MPSCNNConvolutionDataSource,
    check_data_source,
    elements,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
)
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.ops import convolution as ops
from openmps.ops.geometry import Axis, Window
from openmps.ops.neuron import neuron
from openmps.types import (
    MPSCNNConvolutionFlags,
    MPSCNNNeuronType,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
)

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSCNNConvolution(MPSCNNKernel):
    """Convolution, a correlation without turning the kernel (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q, y, x] = neuron(b[q] + sum_{j,i,c} W[q][j][i][c] X[c, sy y + o.y - ky/2 + dy j, sx x + o.x - kx/2 + dx i])``
    with halves of the dilated kernel size, c over the input channels of q's group, reads outside per edge mode, and
    batch normalization folded in before the neuron. Weights are OHWI: ``MPSCNNConvolution(device, weights=source)``
    reads an `MPSCNNConvolutionDataSource`; the older form takes a descriptor, an array and biases.
    Reads exactly `input_feature_channels` channels from `source_feature_channel_offset` on; more may be there.
    """

    accumulator_precision_option: MPSNNConvolutionAccumulatorPrecisionOption
    """Precision of sums: always at least single, whatever is asked for."""

    _gradient_state_class = MPSCNNConvolutionGradientState

    def __init__(
        self,
        device: MTLDevice,
        convolution_descriptor: MPSCNNConvolutionDescriptor | None = None,
        kernel_weights: NDArray[Any] | Sequence[float] | None = None,
        bias_terms: NDArray[Any] | Sequence[float] | None = None,
        flags: MPSCNNConvolutionFlags = MPSCNNConvolutionFlags.NONE,
        *,
        weights: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        super().__init__(device)
        self.accumulator_precision_option = MPSNNConvolutionAccumulatorPrecisionOption.FLOAT
        self._data_source = weights
        if weights is not None:
            check_data_source(self.name, weights)
            self.label = weights.label()
            self._weights = ConvolutionWeights.load(self.name, device, weights)
        else:
            self._weights = ConvolutionWeights(device, self._given(convolution_descriptor, kernel_weights, bias_terms))
        self._read_descriptor(self._weights.descriptor)

    def _given(self, descriptor: Any, weights: Any, biases: Any) -> LoadedWeights:
        if not isinstance(descriptor, MPSCNNConvolutionDescriptor) or weights is None:
            raise MPSTypeError(
                self.name,
                "arguments",
                "must be weights=<data source>, or convolution_descriptor and kernel_weights",
                f"{type(descriptor).__name__}, {type(weights).__name__}",
            )
        descriptor.validate(self.name)
        shape = descriptor.weight_shape()
        array = elements(self.name, "kernel_weights", weights, np.float32)
        if array.size != int(np.prod(shape)):
            raise MPSArgumentError(self.name, "kernel_weights", f"must hold {int(np.prod(shape))} numbers", array.size)
        row = None if biases is None else np.array(elements(self.name, "bias_terms", biases, np.float32)).reshape(-1)
        if row is not None and row.size != shape[0]:
            raise MPSArgumentError(self.name, "bias_terms", f"must hold {shape[0]} numbers", row.size)
        return LoadedWeights(descriptor.copy(), np.array(array.reshape(shape), np.float32, order="C"), row)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        source = self._sources[0]
        source.kernel_width, source.kernel_height = descriptor.kernel_width, descriptor.kernel_height
        source.stride_x, source.stride_y = descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y
        source.dilation_x, source.dilation_y = descriptor.dilation_rate_x, descriptor.dilation_rate_y

    # --- properties -------------------------------------------------------------------------------------------------

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
    def data_source(self) -> MPSCNNConvolutionDataSource | None:
        """The data source, if the kernel was made with one."""
        return self._data_source

    @property
    def input_feature_channels(self) -> int:
        """Channels read."""
        return self.convolution_descriptor.input_feature_channels

    @property
    def output_feature_channels(self) -> int:
        """Channels made."""
        return self.convolution_descriptor.output_feature_channels

    @property
    def groups(self) -> int:
        """Groups that input and output channels are divided into."""
        return self.convolution_descriptor.groups

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel of a depthwise convolution; 0 for a regular one."""
        return self.convolution_descriptor.channel_multiplier

    @property
    def sub_pixel_scale_factor(self) -> int:
        """Enlargement by sub-pixel convolution: 1, none."""
        return 1

    @property
    def fused_neuron_descriptor(self) -> MPSNNNeuronDescriptor | None:
        """The neuron applied to the result, or None."""
        return self.convolution_descriptor.fused_neuron_descriptor

    @property
    def neuron(self) -> Any:
        """The neuron kernel of the descriptor (deprecated)."""
        return self.convolution_descriptor.neuron

    @property
    def neuron_type(self) -> MPSCNNNeuronType:
        """Type of the fused neuron."""
        return self.convolution_descriptor.neuron_type()

    @property
    def neuron_parameter_a(self) -> float:
        """Parameter a of the fused neuron; 1 without one."""
        return 1.0 if self.fused_neuron_descriptor is None else self.fused_neuron_descriptor.a

    @property
    def neuron_parameter_b(self) -> float:
        """Parameter b of the fused neuron; 1 without one."""
        return 1.0 if self.fused_neuron_descriptor is None else self.fused_neuron_descriptor.b

    @property
    def neuron_parameter_c(self) -> float:
        """Parameter c of the fused neuron; 1 without one."""
        return 1.0 if self.fused_neuron_descriptor is None else self.fused_neuron_descriptor.c

    def is_result_state_reused_across_batch(self) -> bool:
        """True: the parameter gradients are sums over the batch."""
        return True

    # --- weights ----------------------------------------------------------------------------------------------------

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again, at once; queued work is not waited for (MPSCNNConvolution.h, macOS 10.14)."""
        if self._data_source is None:
            raise MPSArgumentError(
                self.name, "data_source", "is needed to reload", None, "Make the kernel with weights=<data source>"
            )
        self._weights.reload(self.name, self._data_source)

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
        if command_buffer is None or state is None:
            self.reload_weights_and_biases_from_data_source()
            return
        reload_from_state(self, self._weights, command_buffer, state)

    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, result_state_can_be_temporary: bool = False
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A copy of the weights as they are when ``command_buffer`` runs: float32, OHWI, before any folding.

        ``biases`` of the state is None if the convolution has none.
        """
        check_command_buffer(self.name, command_buffer, self.device)
        state = self._weights.empty_state()
        if result_state_can_be_temporary:
            state.make_temporary(command_buffer)
        parameters = self._weights
        command_buffer.record(f"{self.name} export", lambda: parameters.give(state))
        return state

    def _unshare(self) -> None:
        super()._unshare()
        self._weights = self._weights.copy(self.device)
        if self._data_source is not None:
            self._data_source = copy_source(self._data_source, self.device)

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self.input_feature_channels

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.output_feature_channels

    def make_state(self) -> MPSNNGradientState:
        """A new state for the gradients of one batch."""
        return MPSCNNConvolutionGradientState(self.device, self)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        parameters, groups, finish = self._weights, engine_groups(self.convolution_descriptor), self._finish()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            result = ops.convolution(
                values[0],
                parameters.weights,
                parameters.biases,
                source.window,
                groups=groups,
                edge_mode=source.edge_mode,
            )
            return finish(result), None

        return operation

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


def _identity(result: Tensor) -> Tensor:
    return result


def engine_groups(descriptor: MPSCNNConvolutionDescriptor) -> int:
    """Groups as the engine counts them: a depthwise convolution has one an input channel."""
    return descriptor.input_feature_channels if descriptor.channel_multiplier else descriptor.groups


def copy_source(source: Any, device: MTLDevice) -> Any:
    """A data source's own copy, ``copy(device)`` or ``copy()``, if it offers one, else the source itself."""
    make = getattr(source, "copy", None)
    if not callable(make):
        return source
    try:
        inspect.signature(make).bind(device)
    except TypeError:
        return make()
    return make(device)


def reload_from_state(kernel: Any, parameters: ConvolutionWeights, command_buffer: CommandBuffer, state: Any) -> None:
    """Record that ``parameters`` take a state's numbers, and count the read."""
    if not isinstance(state, MPSCNNConvolutionWeightsAndBiasesState):
        raise MPSTypeError(
            kernel.name, "state", "must be an MPSCNNConvolutionWeightsAndBiasesState", type(state).__name__
        )
    check_command_buffer(kernel.name, command_buffer, kernel.device)
    state.check_usable(kernel.name, "state", command_buffer)
    parameters.check_state(kernel.name, state)
    command_buffer.record(f"{kernel.name} reload", lambda: parameters.take(state))
    state.count_read()


def whole_image_axis(axis: Axis) -> Axis:
    """A fully connected layer's axis: the offset is ignored and the window starts at pixel 0."""
    return replace(axis, offset=axis.extent // 2)


class MPSCNNFullyConnected(MPSCNNConvolution):
    """A fully connected layer (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q] = neuron(b[q] + sum_{y,x,c} W[q][y][x][c] X[c, y, x])``: the kernel is as large as the source and the result
    is 1x1. The flattened source runs through rows, columns, channels. `offset` is ignored; stride and groups must be 1.
    A source larger than the kernel is convolved without padding.
    """

    _default_padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        plain = (
            descriptor.stride_in_pixels_x,
            descriptor.stride_in_pixels_y,
            descriptor.dilation_rate_x,
            descriptor.dilation_rate_y,
            descriptor.groups,
        )
        if any(value != 1 for value in plain) or descriptor.channel_multiplier:
            raise MPSArgumentError(
                self.name, "descriptor", "must have stride, dilation and groups 1, not be depthwise", repr(descriptor)
            )
        super()._read_descriptor(descriptor)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        window = Window(x=whole_image_axis(record.window.x), y=whole_image_axis(record.window.y))
        return replace(record, window=window)

    def _writable(self, destination: Extent, sources: tuple[Extent, ...]) -> Extent:
        source, clip = sources[0], self._clip_rect.origin
        width, height = source.width - self.kernel_width + 1, source.height - self.kernel_height + 1
        if width < 1 or height < 1:
            raise MPSArgumentError(
                self.name,
                "source_image",
                f"must be as large as the kernel, {self.kernel_width}x{self.kernel_height} pixels",
                f"{source.width}x{source.height}",
                "Make the kernel's width and height those of the image that it sees",
            )
        return replace(
            destination, width=min(destination.width, clip.x + width), height=min(destination.height, clip.y + height)
        )

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        extent = sources[0].extent
        if (extent.width, extent.height) != (self.kernel_width, self.kernel_height):
            return super()._operation(sources, target, states)
        parameters, finish = self._weights, self._finish()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            return finish(ops.fully_connected(values[0], parameters.weights, parameters.biases)), None

        return operation
