"""MPSCNNBinaryConvolution and MPSCNNBinaryFullyConnected (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from numbers import Real
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import Shown, number
from openmps.core.arrays import elements, in_shape, real_numbers, row
from openmps.core.data_source import loaded
from openmps.core.kernel.activation import activated, neuron_parameters
from openmps.core.kernel.configuration import Fixed, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.neuron import NeuronParameters
from openmps.core.state.batch import MPSStateBatch
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, check_data_source, descriptor_of
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, sub_pixel_factor
from openmps.kernels.convolution.whole_image import WholeImageKernel
from openmps.metal.device import MTLBuffer, MTLDevice
from openmps.ops.convolution.binary_convolution import BinaryConvolution, BinaryTerms, Border, binary_weights
from openmps.ops.op import Value
from openmps.runtime.binding import Binding, HeldTensor
from openmps.selectors import takes
from openmps.types import MPSCNNBinaryConvolutionFlags, MPSCNNBinaryConvolutionType, MPSDataType
from openmps.types import MPSCNNBinaryConvolutionFlags as Flags
from openmps.types import MPSCNNBinaryConvolutionType as Kind

_WORD_BITS = 32
_TERMS = ("output_bias_terms", "output_scale_terms", "input_bias_terms", "input_scale_terms")


_BORDERS = {"zeros": Border.NUMBERS, "zero_bits": Border.ZERO_BITS, "nothing": Border.NOTHING}
"""By the convention ``binary_border``."""


class MPSCNNBinaryConvolution(MPSCNNKernel):
    """Convolution with weights of one bit (MPSCNNConvolution.h, macOS 10.13).

    With E the source, continued beyond its edges by `edge_mode`, and ``t = (E + input_bias) * input_scale``::

        BINARY_WEIGHTS  S = sum_{j,i,c} (B ? 1 : -1) t[c]
        XNOR            S = sum_{j,i,c} (B == bit(t[c])) ? 1 : -1           bit(t) = not (t < 0)
        AND             S = sum_{j,i,c} (B and bit(t[c])) ? 1 : 0
        Y[q] = neuron(S output_scale[q] beta + output_bias[q])

    over the taps of an `MPSCNNConvolution`. Beyond an edge of mode ZERO the number is 0 before bias, scale and bit, so
    that its bit is 1 if there are no input terms. ``beta`` is 1, or with the flag USE_BETA_SCALING the sum over the
    window of the mean of |t| over the channels, 0 beyond an edge of mode ZERO, divided by the number of taps.

    ``convolution_data`` is an `MPSCNNConvolutionDataSource` of UINT32 words ``[O][ky][kx][ceil(I / 32)]``: channel c is
    bit c % 32, counted from the lowest, of word c // 32; bits beyond I do not matter. With ``scale_value`` that number
    scales all channels and the data source's biases are added; else the four arrays say, None standing for biases 0 and
    scales 1, and the source's biases are not looked at. Batch normalization of the descriptor is not folded in.
    There is no gradient. Reads exactly `input_feature_channels` channels.

    Raises:
        MPSArgumentError: The words or terms have another number, the type is not UINT32, or there are groups.
        MPSTypeError: ``convolution_data`` is no data source, or both forms are mixed.
    """

    _takes_all_channels = True
    _neuron = Setting[NeuronParameters | None]()
    _given_terms = Setting[tuple[str, ...]]()
    """Which of the terms there are."""

    input_feature_channels = Fixed[int]("Channels read.")
    output_feature_channels = Fixed[int]("Channels made.")
    type = Fixed[MPSCNNBinaryConvolutionType]("What is multiplied. Our addition.")
    flags = Fixed[MPSCNNBinaryConvolutionFlags]("Whether results are scaled by beta. Our addition.")
    terms = Shown[BinaryTerms](
        "_terms", "Biases and scales on the device; a ``scale_value`` and its biases are output terms. Our addition."
    )

    @overload
    def __init__(
        self,
        device: MTLDevice,
        convolution_data: MPSCNNConvolutionDataSource,
        scale_value: float,
        type: MPSCNNBinaryConvolutionType,
        flags: MPSCNNBinaryConvolutionFlags = MPSCNNBinaryConvolutionFlags.NONE,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        convolution_data: MPSCNNConvolutionDataSource,
        output_bias_terms: Any,
        output_scale_terms: Any,
        input_bias_terms: Any,
        input_scale_terms: Any,
        type: MPSCNNBinaryConvolutionType,
        flags: MPSCNNBinaryConvolutionFlags = MPSCNNBinaryConvolutionFlags.NONE,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        convolution_data: MPSCNNConvolutionDataSource,
        output_bias_terms: Any = None,
        output_scale_terms: Any = None,
        input_bias_terms: Any = None,
        input_scale_terms: Any = None,
        *,
        type: MPSCNNBinaryConvolutionType,
        flags: MPSCNNBinaryConvolutionFlags = MPSCNNBinaryConvolutionFlags.NONE,
        scale_value: float | None = None,
    ) -> None: ...
    @takes(
        {"device": object, "convolution_data": object, "scale_value": Real, "type": Kind},
        {"device": object, "convolution_data": object, "scale_value": Real, "type": Kind, "flags": Flags},
        {"device": object, "convolution_data": object, **dict.fromkeys(_TERMS, object), "type": Kind},
        {"device": object, "convolution_data": object, **dict.fromkeys(_TERMS, object), "type": Kind, "flags": Flags},
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        convolution_data: MPSCNNConvolutionDataSource,
        output_bias_terms: Any = None,
        output_scale_terms: Any = None,
        input_bias_terms: Any = None,
        input_scale_terms: Any = None,
        *,
        type: MPSCNNBinaryConvolutionType,
        flags: MPSCNNBinaryConvolutionFlags = MPSCNNBinaryConvolutionFlags.NONE,
        scale_value: float | None = None,
    ) -> None:
        super().__init__(device)
        kinds = (("type", MPSCNNBinaryConvolutionType, type), ("flags", MPSCNNBinaryConvolutionFlags, flags))
        for name, kind, value in kinds:
            rule = f"must be one of {', '.join(each.name for each in kind)} of {kind.__name__}"
            self._change(**{name: member(self.name, name, kind, value, rule)})
        check_data_source(self.name, convolution_data)
        self.label = convolution_data.label()
        given = {
            "output_bias_terms": output_bias_terms,
            "output_scale_terms": output_scale_terms,
            "input_bias_terms": input_bias_terms,
            "input_scale_terms": input_scale_terms,
        }
        descriptor, bits, biases = _load(self.name, convolution_data)
        self._read_descriptor(descriptor)
        if scale_value is not None:
            given = self._scaled(scale_value, given, biases)
        weights = binary_weights(torch.from_numpy(bits), self.type)
        self._weights = weights.to(device.torch_device)
        self._terms = self._tensors(given)
        self._given_terms = tuple(name for name, row in self._terms._asdict().items() if row is not None)

    def _scaled(self, scale_value: float, given: dict[str, Any], biases: Any) -> dict[str, Any]:
        """The terms of the form with one scale: that scale, and the data source's biases."""
        mixed = [name for name, terms in given.items() if terms is not None]
        if mixed:
            rule = f"cannot be given together with {', '.join(mixed)}"
            raise MPSTypeError(self.name, "scale_value", rule, repr(scale_value), "Use one form of the constructor")
        row = np.full(self.output_feature_channels, number(self.name, "scale_value", scale_value), np.float32)
        return {"output_bias_terms": biases, "output_scale_terms": row}

    def _tensors(self, given: dict[str, Any]) -> BinaryTerms:
        """The terms on the device, each with one number a channel."""
        rows: dict[str, Tensor] = {}
        for name, terms in given.items():
            if terms is None:
                continue
            channels = self.input_feature_channels if name.startswith("input") else self.output_feature_channels
            given_row = elements(self.name, name, terms, np.float32)
            numbers = row(self.name, name, given_row, channels, f"must hold one number a channel, {channels}")
            rows[name.removesuffix("_terms")] = torch.from_numpy(numbers).to(self.device.torch_device)
        return BinaryTerms(**rows)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        if descriptor.groups != 1 or descriptor.channel_multiplier or sub_pixel_factor(descriptor) != 1:
            rule = "must have groups 1, not be depthwise and make no sub-pixels"
            raise MPSArgumentError(self.name, "descriptor", rule, repr(descriptor))
        d, fused = descriptor, descriptor.fused_neuron_descriptor
        self._set_window(d.kernel_width, d.kernel_height, d.stride_in_pixels_x, d.stride_in_pixels_y)
        self._set_dilation(d.dilation_rate_x, d.dilation_rate_y)
        inputs, outputs = d.input_feature_channels, d.output_feature_channels
        self._change(input_feature_channels=inputs, output_feature_channels=outputs)
        self._neuron = None if fused is None else neuron_parameters(self.name, "fused_neuron_descriptor", fused)
        self._descriptor = descriptor

    # For those who extend the framework: what makes a kernel like this one, read back.

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """A copy of the descriptor that the kernel was made with. Our addition."""
        return self._descriptor.copy()

    def weight_words(self) -> NDArray[np.uint32]:
        """The weights as words ``[O][ky][kx][ceil(I / 32)]``, bits beyond the channels 0. Our addition."""
        bits = np.packbits((self._weights > 0).cpu().numpy(), axis=-1, bitorder="little")
        words = np.zeros((*bits.shape[:-1], -(-self.input_feature_channels // _WORD_BITS) * 4), np.uint8)
        words[..., : bits.shape[-1]] = bits
        return words.view("<u4").astype(np.uint32)

    def _unshare(self) -> None:
        super()._unshare()
        device = self.device.torch_device
        self._weights = self._weights.to(device)
        self._terms = BinaryTerms(*(None if row is None else row.to(device) for row in self._terms))

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self.input_feature_channels

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.output_feature_channels

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        use_beta = self.flags is MPSCNNBinaryConvolutionFlags.USE_BETA_SCALING
        border = Border.NUMBERS
        if self.type is not MPSCNNBinaryConvolutionType.BINARY_WEIGHTS and at.window.leaves_source:
            border = _BORDERS[self.conventions["binary_border"]]
        convolve = BinaryConvolution(at.window, at.edge_mode, self.type, use_beta, border)
        terms = [at.buffer(name) if name in self._given_terms else None for name in BinaryTerms._fields]
        result = convolve(*images, at.buffer("weights"), *terms)
        return activated(at, self, result, self._neuron, self.output_feature_channels)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Binding:
        return HeldTensor(self._weights if name == "weights" else getattr(self._terms, name))


class MPSCNNBinaryFullyConnected(WholeImageKernel, MPSCNNBinaryConvolution):
    """A fully connected layer with weights of one bit (MPSCNNConvolution.h, macOS 10.13).

    As `MPSCNNBinaryConvolution` with a kernel as large as the source and a result of 1x1. `offset` is ignored; stride
    and dilation must be 1. A source larger than the kernel is convolved without padding.
    """

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        super()._read_descriptor(descriptor)
        source = self._sources[0]
        if (source.stride_x, source.stride_y, source.dilation_x, source.dilation_y) != (1, 1, 1, 1):
            rule = "must have stride and dilation 1"
            raise MPSArgumentError(self.name, "descriptor", rule, repr(descriptor), "Use MPSCNNBinaryConvolution")


# --- the data source -------------------------------------------------------------------------------------------------


def _load(
    who: str, source: MPSCNNConvolutionDataSource
) -> tuple[MPSCNNConvolutionDescriptor, NDArray[np.uint8], NDArray[np.float32] | None]:
    """The descriptor, the weights as bits ``[O, ky, kx, I]`` and the biases of a data source."""
    with loaded(who, source):
        descriptor = descriptor_of(who, source)
        if source.data_type() is not MPSDataType.UINT32:
            rule = "must be UINT32: binary weights are words of 32 bits"
            raise MPSArgumentError(who, "data source data_type()", rule, repr(source.data_type()))
        bits, given = _bits(who, source.weights(), descriptor), source.bias_terms()
        # The numbers are the caller's to change after purge.
        biases = None if given is None else np.array(elements(who, "data source bias_terms()", given, np.float32))
    return descriptor, bits, biases


def _bits(who: str, data: Any, descriptor: MPSCNNConvolutionDescriptor) -> NDArray[np.uint8]:
    inputs = descriptor.input_feature_channels
    outputs, height, width = descriptor.output_feature_channels, descriptor.kernel_height, descriptor.kernel_width
    shape = (outputs, height, width, -(-inputs // _WORD_BITS))
    words = in_shape(who, "data source weights()", _words(who, data), shape, "words of 32 bits")
    octets = np.ascontiguousarray(words).astype("<u4").view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=inputs, bitorder="little")


def _words(who: str, data: Any) -> NDArray[np.uint32]:
    """Words of 32 bits from integers of any type that holds them, or from raw bytes in the machine's order."""
    argument = "data source weights()"
    if isinstance(data, bytes | bytearray | MTLBuffer):
        return elements(who, argument, data, np.uint32)
    array = real_numbers(who, argument, data, "must be integers of 32 bits, or raw bytes")
    if array.dtype == np.uint8:
        return elements(who, argument, array, np.uint32)
    if array.dtype.kind not in "iu":
        raise MPSTypeError(who, argument, "must be integers of 32 bits, or raw bytes", array.dtype)
    if array.size and (array.min() < -(2**31) or array.max() >= 2**32):
        raise MPSArgumentError(who, argument, "must fit 32 bits", f"{array.min()} to {array.max()}")
    # Signed numbers are taken for their bit patterns.
    return array.astype(np.uint32)
