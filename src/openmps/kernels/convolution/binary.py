"""MPSCNNBinaryConvolution and MPSCNNBinaryFullyConnected (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.data_source import loaded
from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.numbers import number
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.data_source import (
    MPSCNNConvolutionDataSource,
    check_data_source,
    descriptor_of,
    elements,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, sub_pixel_factor
from openmps.kernels.convolution.whole_image import WholeImageKernel
from openmps.metal.memory import MTLBuffer
from openmps.ops.binary_convolution import BinaryTerms, binary_convolution, binary_weights
from openmps.ops.neuron import neuron
from openmps.types import (
    MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNNeuronType,
    MPSDataType,
)

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice

_WORD_BITS = 32


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
    ) -> None:
        super().__init__(device)
        self._type = _member(self.name, "type", MPSCNNBinaryConvolutionType, type)
        self._flags = _member(self.name, "flags", MPSCNNBinaryConvolutionFlags, flags)
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
        weights = binary_weights(torch.from_numpy(bits), self._type)
        self._weights = weights.to(device.torch_device)
        self._terms = self._tensors(given)

    def _scaled(self, scale_value: float, given: dict[str, Any], biases: Any) -> dict[str, Any]:
        """The terms of the form with one scale: that scale, and the data source's biases."""
        mixed = [name for name, terms in given.items() if terms is not None]
        if mixed:
            rule = f"cannot be given together with {', '.join(mixed)}"
            raise MPSTypeError(self.name, "scale_value", rule, repr(scale_value), "Use one form of the constructor")
        row = np.full(self._outputs, number(self.name, "scale_value", scale_value), np.float32)
        return {"output_bias_terms": biases, "output_scale_terms": row}

    def _tensors(self, given: dict[str, Any]) -> BinaryTerms:
        """The terms on the device, each with one number a channel."""
        rows: dict[str, Tensor] = {}
        for name, terms in given.items():
            if terms is None:
                continue
            channels = self._inputs if name.startswith("input") else self._outputs
            row = np.array(elements(self.name, name, terms, np.float32)).reshape(-1)
            if row.size != channels:
                raise MPSArgumentError(self.name, name, f"must hold one number a channel, {channels}", row.size)
            rows[name.removesuffix("_terms")] = torch.from_numpy(row).to(self.device.torch_device)
        return BinaryTerms(**rows)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        if descriptor.groups != 1 or descriptor.channel_multiplier or sub_pixel_factor(descriptor) != 1:
            rule = "must have groups 1, not be depthwise and make no sub-pixels"
            raise MPSArgumentError(self.name, "descriptor", rule, repr(descriptor))
        source = self._sources[0]
        source.kernel_width, source.kernel_height = descriptor.kernel_width, descriptor.kernel_height
        source.stride_x, source.stride_y = descriptor.stride_in_pixels_x, descriptor.stride_in_pixels_y
        source.dilation_x, source.dilation_y = descriptor.dilation_rate_x, descriptor.dilation_rate_y
        self._inputs, self._outputs = descriptor.input_feature_channels, descriptor.output_feature_channels
        self._neuron = descriptor.fused_neuron_descriptor
        self._descriptor = descriptor

    @property
    def input_feature_channels(self) -> int:
        """Channels read."""
        return self._inputs

    @property
    def output_feature_channels(self) -> int:
        """Channels made."""
        return self._outputs

    # For those who extend the framework: what makes a kernel like this one, read back.

    @property
    def type(self) -> MPSCNNBinaryConvolutionType:
        """What is multiplied. Our addition."""
        return self._type

    @property
    def flags(self) -> MPSCNNBinaryConvolutionFlags:
        """Whether results are scaled by beta. Our addition."""
        return self._flags

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The descriptor that the kernel was made with. Our addition."""
        return self._descriptor

    @property
    def terms(self) -> BinaryTerms:
        """Biases and scales on the device; a ``scale_value`` and its biases are output terms. Our addition."""
        return self._terms

    def weight_words(self) -> NDArray[np.uint32]:
        """The weights as words ``[O][ky][kx][ceil(I / 32)]``, bits beyond the channels 0. Our addition."""
        bits = np.packbits((self._weights > 0).cpu().numpy(), axis=-1, bitorder="little")
        words = np.zeros((*bits.shape[:-1], -(-self._inputs // _WORD_BITS) * 4), np.uint8)
        words[..., : bits.shape[-1]] = bits
        return words.view("<u4").astype(np.uint32)

    def _unshare(self) -> None:
        super()._unshare()
        device = self.device.torch_device
        self._weights = self._weights.to(device)
        self._terms = BinaryTerms(*(None if row is None else row.to(device) for row in self._terms))

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self._inputs

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self._outputs

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        weights, terms, kind = self._weights, self._terms, self._type
        use_beta = self._flags is MPSCNNBinaryConvolutionFlags.USE_BETA_SCALING
        fused = self._neuron
        is_plain = fused is None or fused.neuron_type is MPSCNNNeuronType.NONE
        data = None if fused is None else fused.slopes(self.name, self._outputs, self.device.torch_device)

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            result = binary_convolution(
                values[0], weights, source.window, kind, terms=terms, use_beta=use_beta, edge_mode=source.edge_mode
            )
            if fused is None or is_plain:
                return result, None
            return neuron(result, fused.neuron_type, fused.a, fused.b, fused.c, data), None

        return operation


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


def _member(who: str, argument: str, kind: Any, value: Any) -> Any:
    """``value`` as a member of an enumeration."""
    try:
        return kind(value)
    except ValueError as fault:
        rule = f"must be one of {', '.join(member.name for member in kind)} of {kind.__name__}"
        raise MPSArgumentError(who, argument, rule, repr(value)) from fault


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
    words = _words(who, data)
    if words.size != np.prod(shape):
        rule = f"must hold {int(np.prod(shape))} words of 32 bits, one bit a channel, {shape}"
        raise MPSArgumentError(who, "data source weights()", rule, f"{words.size} words, shape {words.shape}")
    octets = np.ascontiguousarray(words.reshape(shape)).astype("<u4").view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=inputs, bitorder="little")


def _words(who: str, data: Any) -> NDArray[np.uint32]:
    """Words of 32 bits from integers of any type that holds them, or from raw bytes in the machine's order."""
    argument = "data source weights()"
    if isinstance(data, bytes | bytearray | memoryview | MTLBuffer):
        return elements(who, argument, data, np.uint32)
    try:
        array = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    except (TypeError, ValueError) as fault:
        raise MPSTypeError(who, argument, "must be integers of 32 bits", type(data).__name__) from fault
    if array.dtype == np.uint8:
        return elements(who, argument, array, np.uint32)
    if array.dtype.kind not in "iu":
        raise MPSTypeError(who, argument, "must be integers of 32 bits, or raw bytes", array.dtype)
    if array.size and (array.min() < -(2**31) or array.max() >= 2**32):
        raise MPSArgumentError(who, argument, "must fit 32 bits", f"{array.min()} to {array.max()}")
    # Signed numbers are taken for their bit patterns.
    return array.astype(np.uint32)
