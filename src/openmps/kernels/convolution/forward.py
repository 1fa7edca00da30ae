"""MPSCNNConvolution and MPSCNNFullyConnected (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from openmps.checks import MaybeNone, Shown
from openmps.core.arrays import elements, in_shape, row
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.lifetime import check_is_device
from openmps.core.state.gradient import MPSNNGradientState, SourceRecord
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.base import ConvolutionGradientState, ConvolutionKernel
from openmps.kernels.convolution.data_source import (
    LoadedWeights,
    MPSCNNConvolutionDataSource,
    check_data_source,
    is_data_source,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, sub_pixel_factor
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.kernels.convolution.whole_image import WholeImageKernel
from openmps.metal.device import MTLDevice
from openmps.ops.convolution.convolution import Convolution, FullyConnected, SubPixels
from openmps.ops.convolution.convolution_half import ConvolutionHalf
from openmps.ops.op import Value
from openmps.selectors import takes
from openmps.types import MPSCNNConvolutionFlags, MPSCNNNeuronType


class MPSCNNConvolutionGradientState(ConvolutionGradientState):
    """The parameter gradients of one batch through a convolution (MPSCNNConvolution.h, macOS 10.13.4).

    Made by the convolution's ``result_state…`` methods, filled in by the gradient kernel: sums over the batch and all
    pixels. One object serves the whole batch, encoded at once or in pieces, and no other: once all images it was made
    for have their gradients, another encode with it raises `MPSLifetimeError`; make a new state for the next batch.

    The gradients are the state's resources 0 and 1. They are there when the command buffer of the gradient encode has
    completed; before that the CPU sees zeros or the sums of the pieces that have run. They live as long as the state
    does, or whoever holds a buffer; those of a temporary state are private to the device and go with its last read.

    >>> import numpy as np, openmps as mps
    >>> device = mps.mtl_device("cpu")
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> x = mps.MPSImage.from_numpy(device, np.float32([3, 4]).reshape(1, 2, 1))
    >>> source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.ones((1, 1, 1, 1)))
    >>> convolution = mps.MPSCNNConvolution(device, weights=source)
    >>> y, state = convolution.encode(command_buffer, x, destination_state_is_temporary=False)
    >>> slope = mps.MPSCNNConvolutionGradient(device, weights=source).encode(command_buffer, y, x, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.gradient_for_weights.contents().view(np.float32)
    array([25.], dtype=float32)
    """

    @property
    def convolution(self) -> MPSCNNConvolution | None:
        """The convolution that made the state; of a transposed convolution's state its counterpart, if it has one."""
        return cast("MPSCNNConvolution", self.kernel)


class MPSCNNConvolution(ConvolutionKernel[MPSCNNConvolutionGradientState], leaves=MPSCNNConvolutionGradientState):
    """Convolution, a correlation without turning the kernel (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q, y, x] = neuron(b[q] + sum_{j,i,c} W[q][j][i][c] X[c, sy y + o.y - ky/2 + dy j, sx x + o.x - kx/2 + dx i])``
    with halves of the dilated kernel size, c over the input channels of q's group, reads outside per edge mode, and
    batch normalization folded in before the neuron. Weights are OHWI: ``MPSCNNConvolution(device, weights=source)``
    reads an `MPSCNNConvolutionDataSource`; the older form takes a descriptor, an array and biases.
    Reads exactly `input_feature_channels` channels from `source_feature_channel_offset` on; more may be there.
    Depthwise and sub-pixel convolutions are asked for by their descriptors; a sub-pixel convolution leaves no state,
    since it has no gradient.
    """

    data_source = Shown[MPSCNNConvolutionDataSource | MaybeNone](
        "_data_source", "The data source, if the kernel was made with one."
    )
    sub_pixel_scale_factor = Shown[int](
        "_shape.sub_pixels", "Enlargement by sub-pixel convolution; 1, none, without it."
    )
    neuron = Shown[Any]("convolution_descriptor.neuron", "The neuron kernel of the descriptor (deprecated).")

    @overload
    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource, /) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        convolution_descriptor: MPSCNNConvolutionDescriptor | None = None,
        kernel_weights: NDArray[Any] | Sequence[float] | None = None,
        bias_terms: NDArray[Any] | Sequence[float] | None = None,
        flags: MPSCNNConvolutionFlags = MPSCNNConvolutionFlags.NONE,
        *,
        weights: MPSCNNConvolutionDataSource | None = None,
    ) -> None: ...
    @takes({"device": object, "weights": is_data_source})
    def __init__(
        self,
        device: MTLDevice,
        convolution_descriptor: MPSCNNConvolutionDescriptor | MPSCNNConvolutionDataSource | None = None,
        kernel_weights: NDArray[Any] | Sequence[float] | None = None,
        bias_terms: NDArray[Any] | Sequence[float] | None = None,
        flags: MPSCNNConvolutionFlags = MPSCNNConvolutionFlags.NONE,
        *,
        weights: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        given = None
        if weights is None:
            loaded = _arrays(type(self).__name__, convolution_descriptor, kernel_weights, bias_terms)
            given = ConvolutionWeights(check_is_device(type(self).__name__, "device", device), loaded)
        super().__init__(device, weights, given)

    # --- properties -------------------------------------------------------------------------------------------------

    channel_multiplier = Shown[int](
        "convolution_descriptor.channel_multiplier",
        "Output channels an input channel of a depthwise convolution; 0 for a regular one.",
    )

    @property
    def neuron_type(self) -> MPSCNNNeuronType:
        """Type of the fused neuron."""
        return self.convolution_descriptor.neuron_type()

    @property
    def neuron_parameter_a(self) -> float:
        """Parameter a of the fused neuron; 1 without one."""
        fused = self.fused_neuron_descriptor
        return self._missing_parameter() if fused is None else fused.a

    @property
    def neuron_parameter_b(self) -> float:
        """Parameter b of the fused neuron; 1 without one."""
        fused = self.fused_neuron_descriptor
        return self._missing_parameter() if fused is None else fused.b

    @property
    def neuron_parameter_c(self) -> float:
        """Parameter c of the fused neuron; 1 without one."""
        fused = self.fused_neuron_descriptor
        return self._missing_parameter() if fused is None else fused.c

    def _missing_parameter(self) -> float:
        """What stands for the parameters of a neuron that there is not."""
        return 1.0 if self.conventions["missing_neuron"] == "one" else 0.0

    # --- planning and encoding ----------------------------------------------------------------------------------------

    def make_state(self) -> MPSNNGradientState | None:
        """A new state for the gradients of one batch; None of a sub-pixel convolution, which has none."""
        return MPSCNNConvolutionGradientState(self._device, self) if self._shape.sub_pixels == 1 else None

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: Any) -> Extent:
        factor = self._shape.sub_pixels
        return extent._replace(width=extent.width * factor, height=extent.height * factor)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        """The windows of the plain convolution, of which sub-pixels are made."""
        factor = self._shape.sub_pixels
        return super()._source_record(index, extent, -(-width // factor), -(-height // factor))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        result, factor = super()._lower(at, *images), self._shape.sub_pixels
        return result if factor == 1 else SubPixels(factor, at.target.height, at.target.width)(result)

    def _contract(self, at: LoweringContext, image: Value, weights: Value, biases: Value | None) -> Value:
        if self._sums_in_half():
            return ConvolutionHalf(at.window, at.edge_mode, self._shape.groups)(image, weights, biases)
        return Convolution(at.window, at.edge_mode, self._shape.groups, self._allows_tf32())(image, weights, biases)


def _arrays(who: str, descriptor: Any, weights: Any, biases: Any) -> LoadedWeights:
    """What the older constructor was given, in the form of what a data source gives."""
    if not isinstance(descriptor, MPSCNNConvolutionDescriptor) or weights is None:
        if weights is None and not isinstance(descriptor, MPSCNNConvolutionDescriptor | None):
            check_data_source(who, descriptor)  # it was meant to be one
        rule = "must be weights=<data source>, or convolution_descriptor and kernel_weights"
        raise MPSTypeError(who, "arguments", rule, f"{type(descriptor).__name__}, {type(weights).__name__}")
    descriptor.validate(who)
    shape = descriptor.weight_shape()
    array = in_shape(who, "kernel_weights", elements(who, "kernel_weights", weights, np.float32), shape)
    rule = f"must hold {shape[0]} numbers"
    added = biases
    if biases is not None:
        added = row(who, "bias_terms", elements(who, "bias_terms", biases, np.float32), shape[0], rule)
    return LoadedWeights(descriptor.copy(), np.array(array, np.float32, order="C"), added)


class MPSCNNFullyConnected(WholeImageKernel, MPSCNNConvolution):
    """A fully connected layer (MPSCNNConvolution.h, macOS 10.13).

    ``Y[q] = neuron(b[q] + sum_{y,x,c} W[q][y][x][c] X[c, y, x])``: the kernel is as large as the source and the result
    is 1x1. The flattened source runs through rows, columns, channels. `offset` is ignored; stride and groups must be 1.
    A source larger than the kernel is convolved without padding.
    """

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        d = descriptor
        plain = (d.stride_in_pixels_x, d.stride_in_pixels_y, d.dilation_rate_x, d.dilation_rate_y, d.groups)
        if any(value != 1 for value in plain) or descriptor.channel_multiplier or sub_pixel_factor(descriptor) != 1:
            rule = "must have stride, dilation and groups 1, not be depthwise and make no sub-pixels"
            raise MPSArgumentError(self.name, "descriptor", rule, repr(descriptor))
        super()._read_descriptor(descriptor)

    def _sized(self, shapes: tuple[Shape, ...]) -> Extent:
        found, inputs = shapes[0].extent, self.input_feature_channels
        if found.width < self.kernel_width or found.height < self.kernel_height:
            needed = f"{self.kernel_width}x{self.kernel_height}x{inputs}"
            rule = f"must be {needed} (width x height x feature channels), as the weights are, or larger"
            got = f"{found.width}x{found.height}x{found.channels}"
            remedy = "Describe weights of one pixel with all channels, or reshape the image before"
            raise MPSArgumentError(self.name, "source_image", rule, got, remedy)
        return super()._sized(shapes)

    def _contract(self, at: LoweringContext, image: Value, weights: Value, biases: Value | None) -> Value:
        extent = at.sources[0].extent
        if (extent.width, extent.height) != (self.kernel_width, self.kernel_height) or self._sums_in_half():
            return super()._contract(at, image, weights, biases)
        return FullyConnected()(image, weights, biases)
