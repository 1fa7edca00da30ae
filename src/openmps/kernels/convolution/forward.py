"""MPSCNNConvolution and MPSCNNFullyConnected (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.encode import Operation
from openmps.core.lifetime import check_is_device
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.base import ConvolutionKernel, engine_groups
from openmps.kernels.convolution.data_source import LoadedWeights, MPSCNNConvolutionDataSource, elements
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, sub_pixel_factor
from openmps.kernels.convolution.state import MPSCNNConvolutionGradientState
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.kernels.convolution.whole_image import WholeImageKernel
from openmps.ops import convolution as ops
from openmps.ops.convolution_half import convolution_half
from openmps.types import MPSCNNConvolutionFlags, MPSCNNNeuronType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSCNNConvolution(ConvolutionKernel):
    """Convolution, a correlation without turning the kernel (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q, y, x] = neuron(b[q] + sum_{j,i,c} W[q][j][i][c] X[c, sy y + o.y - ky/2 + dy j, sx x + o.x - kx/2 + dx i])``
    with halves of the dilated kernel size, c over the input channels of q's group, reads outside per edge mode, and
    batch normalization folded in before the neuron. Weights are OHWI: ``MPSCNNConvolution(device, weights=source)``
    reads an `MPSCNNConvolutionDataSource`; the older form takes a descriptor, an array and biases.
    Reads exactly `input_feature_channels` channels from `source_feature_channel_offset` on; more may be there.
    Depthwise and sub-pixel convolutions are asked for by their descriptors; a sub-pixel convolution leaves no state,
    since it has no gradient.
    """

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
        given = None
        if weights is None:
            loaded = self._given(convolution_descriptor, kernel_weights, bias_terms)
            given = ConvolutionWeights(check_is_device(type(self).__name__, "device", device), loaded)
        super().__init__(device, weights, given)

    def _given(self, descriptor: Any, weights: Any, biases: Any) -> LoadedWeights:
        who = type(self).__name__
        if not isinstance(descriptor, MPSCNNConvolutionDescriptor) or weights is None:
            raise MPSTypeError(
                who,
                "arguments",
                "must be weights=<data source>, or convolution_descriptor and kernel_weights",
                f"{type(descriptor).__name__}, {type(weights).__name__}",
            )
        descriptor.validate(who)
        shape = descriptor.weight_shape()
        array = elements(who, "kernel_weights", weights, np.float32)
        if array.size != int(np.prod(shape)):
            raise MPSArgumentError(who, "kernel_weights", f"must hold {int(np.prod(shape))} numbers", array.size)
        row = None if biases is None else np.array(elements(who, "bias_terms", biases, np.float32)).reshape(-1)
        if row is not None and row.size != shape[0]:
            raise MPSArgumentError(who, "bias_terms", f"must hold {shape[0]} numbers", row.size)
        return LoadedWeights(descriptor.copy(), np.array(array.reshape(shape), np.float32, order="C"), row)

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def data_source(self) -> MPSCNNConvolutionDataSource | None:
        """The data source, if the kernel was made with one."""
        return self._data_source

    @property
    def channel_multiplier(self) -> int:
        """Output channels an input channel of a depthwise convolution; 0 for a regular one."""
        return self.convolution_descriptor.channel_multiplier

    @property
    def sub_pixel_scale_factor(self) -> int:
        """Enlargement by sub-pixel convolution; 1, none, without it."""
        return sub_pixel_factor(self.convolution_descriptor)

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

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def make_state(self) -> MPSNNGradientState | None:
        """A new state for the gradients of one batch; None of a sub-pixel convolution, which has none."""
        return MPSCNNConvolutionGradientState(self.device, self) if self.sub_pixel_scale_factor == 1 else None

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        descriptor.width *= self.sub_pixel_scale_factor
        descriptor.height *= self.sub_pixel_scale_factor

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        """The windows of the plain convolution, of which sub-pixels are made."""
        factor = self.sub_pixel_scale_factor
        return super()._source_record(index, extent, -(-width // factor), -(-height // factor))

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        convolve, finish, factor = self._convolution(source), self._finish(), self.sub_pixel_scale_factor

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            result = finish(convolve(values[0]))
            return result if factor == 1 else ops.sub_pixels(result, factor, target.height, target.width), None

        return operation

    def _convolution(self, source: SourceRecord) -> Callable[[Tensor], Tensor]:
        """The sums and biases of one encode, with its properties as they stand."""
        parameters, groups, as_float16 = self._weights, engine_groups(self.convolution_descriptor), self.weights_fp16
        window, edge_mode, allow_tf32 = source.window, source.edge_mode, self._allows_tf32()

        def sum_in_half(image: Tensor) -> Tensor:
            return convolution_half(
                image, parameters.used(as_float16), parameters.biases, window, groups=groups, edge_mode=edge_mode
            )

        def convolve(image: Tensor) -> Tensor:
            return ops.convolution(
                image,
                parameters.used(as_float16),
                parameters.biases,
                window,
                groups=groups,
                edge_mode=edge_mode,
                allow_tf32=allow_tf32,
            )

        return sum_in_half if self._sums_in_half() else convolve


class MPSCNNFullyConnected(WholeImageKernel, MPSCNNConvolution):
    """A fully connected layer (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q] = neuron(b[q] + sum_{y,x,c} W[q][y][x][c] X[c, y, x])``: the kernel is as large as the source and the result
    is 1x1. The flattened source runs through rows, columns, channels. `offset` is ignored; stride and groups must be 1.
    A source larger than the kernel is convolved without padding.
    """

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        plain = (
            descriptor.stride_in_pixels_x,
            descriptor.stride_in_pixels_y,
            descriptor.dilation_rate_x,
            descriptor.dilation_rate_y,
            descriptor.groups,
        )
        if any(value != 1 for value in plain) or descriptor.channel_multiplier or sub_pixel_factor(descriptor) != 1:
            raise MPSArgumentError(
                self.name,
                "descriptor",
                "must have stride, dilation and groups 1, not be depthwise and make no sub-pixels",
                repr(descriptor),
            )
        super()._read_descriptor(descriptor)

    def _convolution(self, source: SourceRecord) -> Callable[[Tensor], Tensor]:
        extent = source.extent
        if (extent.width, extent.height) != (self.kernel_width, self.kernel_height) or self._sums_in_half():
            return super()._convolution(source)
        parameters, as_float16 = self._weights, self.weights_fp16

        def multiply(image: Tensor) -> Tensor:
            return ops.fully_connected(image, parameters.used(as_float16), parameters.biases)

        return multiply
