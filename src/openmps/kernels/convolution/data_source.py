"""MPSCNNConvolutionDataSource: where a convolution's weights come from (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.metal.memory import MTLBuffer
from openmps.types import MPSCNNWeightsQuantizationType, MPSDataType

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class MPSCNNConvolutionDataSource(Protocol):
    """Weights and biases of a convolution, read when a kernel is made or reloaded (MPSCNNConvolution.h, macOS 10.13).

    Checked structurally: any object with these methods will do. ``load()`` comes before the weights are read and
    ``purge()`` after, in pairs. Optional methods: ``update(command_buffer, gradient_state, source_state)``, which
    returns the new weights' state or None (on the device; on the CPU the command buffer is None and the result a bool);
    ``ranges_for_uint8_kernel()``, ``lookup_table_for_uint8_kernel()``, ``weights_quantization_type()``,
    ``copy(device=None)``.
    """

    def data_type(self) -> MPSDataType:
        """FLOAT32, FLOAT16, or UINT8 with ranges or a lookup table."""
        ...

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        """Shapes and parameters of the convolution."""
        ...

    def weights(self) -> Any:
        """OHWI numbers ``[O, rows, columns, I / groups]``; of a depthwise convolution ``[O, rows, columns]``."""
        ...

    def bias_terms(self) -> Any:
        """O float32 numbers, or None for zeros."""
        ...

    def load(self) -> bool:
        """Make the weights readable; False makes the kernel fail."""
        ...

    def purge(self) -> None:
        """The weights were read and may be given up."""
        ...

    def label(self) -> str | None:
        """A name for the kernel, or None."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """What a data source gave: float32 OHWI weights and biases, and the descriptor that they belong to."""

    descriptor: MPSCNNConvolutionDescriptor
    weights: NDArray[np.float32]
    biases: NDArray[np.float32] | None


_REQUIRED = ("data_type", "descriptor", "weights", "bias_terms", "load", "purge", "label")


def check_data_source(who: str, source: object) -> None:
    """Raise `MPSTypeError` unless ``source`` has the methods of a data source."""
    missing = [name for name in _REQUIRED if not callable(getattr(source, name, None))]
    if missing:
        raise MPSTypeError(
            who,
            "weights",
            f"must be a data source with the methods {', '.join(_REQUIRED)}",
            f"{type(source).__name__} without {', '.join(missing)}",
        )


def describe(who: str, source: MPSCNNConvolutionDataSource) -> MPSCNNConvolutionDescriptor:
    """The descriptor of a data source, a valid one of its own; loads and purges the source around the look."""
    _load(who, source)
    try:
        return _descriptor(who, source)
    finally:
        source.purge()


def _load(who: str, source: MPSCNNConvolutionDataSource) -> None:
    check_data_source(who, source)
    if not source.load():
        raise MPSArgumentError(
            who, "data source load()", "must return True", False, "The data source could not provide its weights"
        )


def _descriptor(who: str, source: MPSCNNConvolutionDataSource) -> MPSCNNConvolutionDescriptor:
    descriptor = source.descriptor()
    if not isinstance(descriptor, MPSCNNConvolutionDescriptor):
        raise MPSTypeError(
            who, "data source descriptor()", "must return an MPSCNNConvolutionDescriptor", type(descriptor).__name__
        )
    descriptor.validate(who)
    return descriptor.copy()


def load_weights(who: str, source: MPSCNNConvolutionDataSource) -> LoadedWeights:
    """Load, read and purge a data source."""
    _load(who, source)
    try:
        descriptor = _descriptor(who, source)
        weights = _weights(who, source, descriptor)
        biases = _biases(who, source.bias_terms(), descriptor.output_feature_channels)
    finally:
        source.purge()
    return LoadedWeights(descriptor, weights, biases)


def _weights(
    who: str, source: MPSCNNConvolutionDataSource, descriptor: MPSCNNConvolutionDescriptor
) -> NDArray[np.float32]:
    shape = descriptor.weight_shape()
    kind = source.data_type()
    decode = _DECODERS.get(kind)
    if decode is None:
        raise MPSArgumentError(
            who, "data source data_type()", f"must be one of {', '.join(k.name for k in _DECODERS)}", kind
        )
    array = elements(who, "data source weights()", source.weights(), _ELEMENTS[kind])
    if array.size != int(np.prod(shape)):
        raise MPSArgumentError(
            who,
            "data source weights()",
            f"must hold {int(np.prod(shape))} numbers, OHWI (inputs of one group) {shape}",
            f"{array.size} numbers, shape {array.shape}",
        )
    return np.array(decode(who, source, array.reshape(shape)), dtype=np.float32, order="C")


def elements(who: str, argument: str, data: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """Numbers of any kind, rounded to ``dtype``; raw bytes are elements of ``dtype``."""
    if isinstance(data, MTLBuffer):
        data = data.contents()
    if isinstance(data, torch.Tensor):
        data = data.detach().cpu().numpy()
    try:
        if isinstance(data, bytes | bytearray | memoryview):
            return np.frombuffer(data, dtype)
        array = np.asarray(data)
        if array.dtype == np.uint8 and dtype is not np.uint8:
            return np.ascontiguousarray(array).reshape(-1).view(dtype)
        return array.astype(dtype, casting="same_kind", copy=False)
    except (TypeError, ValueError) as fault:
        raise MPSTypeError(
            who, argument, f"must be numbers that fit {np.dtype(dtype).name}, or its raw bytes", type(data).__name__
        ) from fault


def _biases(who: str, data: Any, channels: int) -> NDArray[np.float32] | None:
    if data is None:
        return None
    array = np.array(elements(who, "data source bias_terms()", data, np.float32)).reshape(-1)
    if array.size != channels:
        raise MPSArgumentError(
            who, "data source bias_terms()", f"must hold one number an output channel, {channels}", array.size
        )
    return array


def _as_given(who: str, source: MPSCNNConvolutionDataSource, array: NDArray[Any]) -> NDArray[Any]:
    return array


def _dequantized(who: str, source: Any, array: NDArray[Any]) -> NDArray[Any]:
    """UInt8 weights: ``u / 255 (max - min) + min`` an output channel, or ``table[u]``."""
    quantization = _optional(source, "weights_quantization_type")
    ranges = _optional(source, "ranges_for_uint8_kernel")
    table = _optional(source, "lookup_table_for_uint8_kernel")
    if quantization is None:
        linear = ranges is not None
    else:
        linear = quantization == MPSCNNWeightsQuantizationType.LINEAR
    if linear and ranges is not None:
        limits = _row(who, "ranges_for_uint8_kernel()", ranges, 2 * array.shape[0]).reshape(-1, 2)
        low, high = limits[:, 0].reshape(-1, 1, 1, 1), limits[:, 1].reshape(-1, 1, 1, 1)
        return array / 255.0 * (high - low) + low
    if not linear and table is not None:
        return _row(who, "lookup_table_for_uint8_kernel()", table, 256)[array]
    raise MPSArgumentError(
        who,
        "data source",
        "of UINT8 weights must offer ranges_for_uint8_kernel() or lookup_table_for_uint8_kernel()",
        f"quantization type {quantization}",
    )


def _row(who: str, method: str, data: Any, count: int) -> NDArray[np.float64]:
    row = elements(who, f"data source {method}", data, np.float32).reshape(-1).astype(np.float64)
    if row.size != count:
        raise MPSArgumentError(who, f"data source {method}", f"must hold {count} numbers", row.size)
    return row


def _optional(source: Any, name: str) -> Any:
    method = getattr(source, name, None)
    return method() if callable(method) else None


_ELEMENTS: dict[MPSDataType, type[np.generic]] = {
    MPSDataType.FLOAT32: np.float32,
    MPSDataType.FLOAT16: np.float16,
    MPSDataType.UINT8: np.uint8,
}
_DECODERS: dict[MPSDataType, Callable[[str, Any, NDArray[Any]], NDArray[Any]]] = {
    MPSDataType.FLOAT32: _as_given,
    MPSDataType.FLOAT16: _as_given,
    MPSDataType.UINT8: _dequantized,
}
