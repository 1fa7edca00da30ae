"""MPSCNNConvolutionDataSource: where a convolution's weights come from (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from openmps.core.arrays import elements, in_shape, row
from openmps.core.data_source import check_methods, loaded, optional
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.types import MPSCNNConvolutionWeightsLayout, MPSCNNWeightsQuantizationType, MPSDataType


@runtime_checkable
class MPSCNNConvolutionDataSource(Protocol):
    """Weights and biases of a convolution, read when a kernel is made or reloaded (MPSCNNConvolution.h, macOS 10.13).

    Checked structurally: any object with these methods will do. ``load()`` comes before the weights are read and
    ``purge()`` after, in pairs. Optional methods: ``update(command_buffer, gradient_state, source_state)``, which
    returns the new weights' state or None (on the device; on the CPU the command buffer is None and the result a bool);
    ``ranges_for_uint8_kernel()``, ``lookup_table_for_uint8_kernel()``, ``weights_quantization_type()``,
    ``copy(device=None)``; ``weights_layout()``, which can only be OHWI (macOS 10.15); ``kernel_weights_data_type()``,
    the precision that the kernel multiplies with, FLOAT16 or FLOAT32 (macOS 11).

    UINT8 and FLOAT16 weights are multiplied with as float16. FLOAT32 weights are too where
    ``kernel_weights_data_type()`` returns FLOAT16, or is missing and the images are FLOAT16; else as they are. The
    framework rounds them for all images where the method is missing. A kernel's `weights_fp16` can say otherwise.
    """

    def data_type(self) -> MPSDataType:
        """FLOAT32, FLOAT16, or UINT8 with ranges or a lookup table; where ``weights()`` is an array, its own type."""
        ...

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        """Shapes and parameters of the convolution."""
        ...

    def weights(self) -> Any:
        """OHWI numbers ``[O, rows, columns, I / groups]``; of a depthwise convolution ``[O, rows, columns]``.

        Those of float64 are rounded to FLOAT32.
        """
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
    """What a data source gave: float32 OHWI weights and biases, and the descriptor that they belong to.

    ``precision`` is what the kernel has to multiply with, FLOAT16 or FLOAT32; None if the source leaves it open.
    """

    descriptor: MPSCNNConvolutionDescriptor
    weights: NDArray[np.float32]
    biases: NDArray[np.float32] | None
    precision: MPSDataType | None = None


WEIGHT_TYPES = (MPSDataType.FLOAT32, MPSDataType.FLOAT16, MPSDataType.UINT8)
"""The types of weights that a convolution takes."""
_FLOAT16 = MPSDataType.FLOAT16
_REQUIRED = ("data_type", "descriptor", "weights", "bias_terms", "load", "purge", "label")


def check_data_source(who: str, source: object) -> None:
    """Raise `MPSTypeError` unless ``source`` has the methods of a data source."""
    check_methods(who, "weights", source, _REQUIRED)


def is_data_source(value: object) -> bool:
    """Whether something gives weights, though it may lack a method."""
    return callable(getattr(value, "weights", None)) and callable(getattr(value, "descriptor", None))


def describe(who: str, source: MPSCNNConvolutionDataSource) -> MPSCNNConvolutionDescriptor:
    """The descriptor of a data source, a valid one of its own; loads and purges the source around the look."""
    check_data_source(who, source)
    with loaded(who, source):
        return descriptor_of(who, source)


def descriptor_of(who: str, source: MPSCNNConvolutionDataSource) -> MPSCNNConvolutionDescriptor:
    """A copy of the descriptor that a loaded data source gives, which must be valid."""
    descriptor = source.descriptor()
    if not isinstance(descriptor, MPSCNNConvolutionDescriptor):
        rule = "must return an MPSCNNConvolutionDescriptor"
        raise MPSTypeError(who, "data source descriptor()", rule, type(descriptor).__name__)
    descriptor.validate(who)
    return descriptor.copy()


def load_weights(
    who: str, source: MPSCNNConvolutionDataSource, kinds: tuple[MPSDataType, ...] = WEIGHT_TYPES
) -> LoadedWeights:
    """Load, read and purge a data source, whose weights must be of one of some types."""
    check_data_source(who, source)
    with loaded(who, source):
        descriptor = descriptor_of(who, source)
        kind = _kind(who, source, kinds)
        _check_layout(who, source)
        weights = _weights(who, source, descriptor, kind)
        biases = _biases(who, source.bias_terms(), descriptor.output_feature_channels)
        precision = _precision(who, source, kind)
    return LoadedWeights(descriptor, weights, biases, precision)


def _kind(who: str, source: MPSCNNConvolutionDataSource, kinds: tuple[MPSDataType, ...]) -> MPSDataType:
    kind = source.data_type()
    if kind not in kinds:
        names = ", ".join(each.name for each in kinds)
        rule = f"must be {'one of ' if len(kinds) > 1 else ''}{names}"
        raise MPSArgumentError(who, "data source data_type()", rule, kind, "Convert the weights first")
    return kind


def _check_layout(who: str, source: MPSCNNConvolutionDataSource) -> None:
    layout = optional(who, source, "weights_layout")
    if layout not in (None, MPSCNNConvolutionWeightsLayout.OHWI):
        raise MPSArgumentError(who, "data source weights_layout()", "must be OHWI, the only layout there is", layout)


def _precision(who: str, source: MPSCNNConvolutionDataSource, kind: MPSDataType) -> MPSDataType | None:
    """What the kernel has to multiply with: float16 for weights that are no float32, else what the source asks for."""
    asked = optional(who, source, "kernel_weights_data_type")
    allowed = (_FLOAT16, MPSDataType.FLOAT32) if kind == MPSDataType.FLOAT32 else (_FLOAT16,)
    if asked is not None and asked not in allowed:
        rule = f"must be {' or '.join(each.name for each in allowed)} for weights of {kind.name}"
        raise MPSArgumentError(who, "data source kernel_weights_data_type()", rule, asked)
    return asked if kind == MPSDataType.FLOAT32 else _FLOAT16


def _weights(
    who: str, source: MPSCNNConvolutionDataSource, descriptor: MPSCNNConvolutionDescriptor, kind: MPSDataType
) -> NDArray[np.float32]:
    shape = descriptor.weight_shape()
    decode = _DECODERS[kind]
    argument = "data source weights()"
    array = elements(who, argument, _of_type(who, argument, source.weights(), kind), _ELEMENTS[kind])
    return np.array(decode(who, source, in_shape(who, argument, array, shape)), dtype=np.float32, order="C")


def _biases(who: str, data: Any, channels: int) -> NDArray[np.float32] | None:
    if data is None:
        return None
    argument, rule = "data source bias_terms()", f"must hold one number an output channel, {channels}"
    given = _of_type(who, argument, data, MPSDataType.FLOAT32)
    return row(who, argument, elements(who, argument, given, np.float32), channels, rule)


def _of_type(who: str, argument: str, data: Any, kind: MPSDataType) -> Any:
    """What a data source gives, unless it is an array of another width than an app would read it with."""
    found = str(getattr(data, "dtype", "")).removeprefix("torch.")
    if found in _OTHER_WIDTHS.get(kind, ()):
        says = "data_type() says" if argument.endswith("weights()") else "biases always are"
        rule = f"must be numbers of {kind.name.lower()}, as {says}: an app reads the bytes as that"
        raise MPSTypeError(
            who, argument, rule, f"an array of {found}", f"Convert them: array.astype('{kind.name.lower()}')"
        )
    return data


def _as_given(who: str, source: MPSCNNConvolutionDataSource, array: NDArray[Any]) -> NDArray[Any]:
    return array


def _dequantized(who: str, source: Any, array: NDArray[Any]) -> NDArray[Any]:
    """UInt8 weights: ``u / 255 (max - min) + min`` an output channel, or ``table[u]``.

    A source without a quantization type (macOS 10.13) goes by the method that it has, ranges first.
    """
    kind = optional(who, source, "weights_quantization_type")
    ways = [_DEQUANTIZERS[kind]] if kind in _DEQUANTIZERS else list(_DEQUANTIZERS.values())
    for method, dequantize in ways:
        data = optional(who, source, method)
        if data is not None:
            return dequantize(who, f"{method}()", data, array)
    rule = f"of UINT8 weights must offer {' or '.join(f'{method}()' for method, _ in ways)}"
    raise MPSArgumentError(who, "data source", rule, f"quantization type {getattr(kind, 'name', kind)}")


def _linear(who: str, method: str, data: Any, array: NDArray[Any]) -> NDArray[Any]:
    limits = _pairs(who, method, data, array.shape[0])
    low, high = limits[:, 0].reshape(-1, 1, 1, 1), limits[:, 1].reshape(-1, 1, 1, 1)
    return array / 255.0 * (high - low) + low


def _looked_up(who: str, method: str, data: Any, array: NDArray[Any]) -> NDArray[Any]:
    return _table(who, method, data, 256)[array]


def _table(who: str, method: str, data: Any, count: int) -> NDArray[np.float64]:
    argument = f"data source {method}"
    array = elements(who, argument, data, np.float32)
    return row(who, argument, array, count, f"must hold {count} numbers").astype(np.float64)


def _pairs(who: str, method: str, data: Any, count: int) -> NDArray[np.float64]:
    """Rows of a minimum and a maximum, also as numbers in a row."""
    array = elements(who, f"data source {method}", data, np.float32)
    is_of_pairs = array.shape == (count, 2)
    return _table(who, method, array.reshape(-1) if is_of_pairs else array, 2 * count).reshape(-1, 2)


_DEQUANTIZERS: dict[Any, tuple[str, Callable[[str, str, Any, NDArray[Any]], NDArray[Any]]]] = {
    MPSCNNWeightsQuantizationType.LINEAR: ("ranges_for_uint8_kernel", _linear),
    MPSCNNWeightsQuantizationType.LOOKUP_TABLE: ("lookup_table_for_uint8_kernel", _looked_up),
}
_ELEMENTS: dict[MPSDataType, type[np.generic]] = {
    MPSDataType.FLOAT32: np.float32,
    MPSDataType.FLOAT16: np.float16,
    MPSDataType.UINT8: np.uint8,
}
_OTHER_WIDTHS = {MPSDataType.FLOAT32: ("float16",), MPSDataType.FLOAT16: ("float32", "float64")}
"""Types of arrays that are none of a data type; of Python's own float64 nobody takes the bytes for float32."""
_DECODERS: dict[MPSDataType, Callable[[str, Any, NDArray[Any]], NDArray[Any]]] = {
    MPSDataType.FLOAT32: _as_given,
    MPSDataType.FLOAT16: _as_given,
    MPSDataType.UINT8: _dequantized,
}
