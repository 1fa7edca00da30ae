"""Data sources that archives restore in the place of those that have no way to be archived: the numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.core.data_source import FLT_MIN, ArraySource
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import MPSCNNBinaryConvolution, MPSCNNConvolutionDescriptor
from openmps.types import MPSCNNWeightsQuantizationType, MPSDataType


@dataclass(eq=False)
class ArchivedConvolutionWeights(ArraySource):
    """The data source of a convolution that came out of an archive: its descriptor, weights and biases as arrays.

    ``precision`` is what the first data source asked to multiply with, FLOAT16 or FLOAT32, or None.
    """

    convolution_descriptor: MPSCNNConvolutionDescriptor
    weight_array: NDArray[Any]
    bias_array: NDArray[Any] | None
    name: str | None = None
    precision: MPSDataType | None = None

    def data_type(self) -> MPSDataType:
        """FLOAT32, or UINT32 for the words of binary weights."""
        return MPSDataType.UINT32 if self.weight_array.dtype == np.uint32 else MPSDataType.FLOAT32

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The convolution's descriptor."""
        return self.convolution_descriptor

    def weights(self) -> NDArray[Any]:
        """The weights, OHWI."""
        return self.weight_array

    def bias_terms(self) -> NDArray[Any] | None:
        """The biases, or None."""
        return self.bias_array

    def kernel_weights_data_type(self) -> MPSDataType | None:
        """The precision that the kernel multiplies with; None leaves it to the images."""
        return self.precision

    def label(self) -> str | None:
        """The layer's name."""
        return self.name


@dataclass(eq=False)
class ArchivedQuantizedWeights(ArraySource):
    """The data source of a convolution with weights of 8 bits: bytes, and what they stand for.

    Either ``range_array`` has the lowest and the highest weight of each output channel, ``[O, 2]``, or ``table_array``
    the 256 weights of all. The framework multiplies with such weights in float16.
    """

    convolution_descriptor: MPSCNNConvolutionDescriptor
    weight_array: NDArray[np.uint8]
    bias_array: NDArray[np.float32] | None
    range_array: NDArray[np.float32] | None = None
    table_array: NDArray[np.float32] | None = None
    name: str | None = None

    def data_type(self) -> MPSDataType:
        """UINT8."""
        return MPSDataType.UINT8

    def descriptor(self) -> MPSCNNConvolutionDescriptor:
        """The convolution's descriptor."""
        return self.convolution_descriptor

    def weights(self) -> NDArray[np.uint8]:
        """The bytes, OHWI."""
        return self.weight_array

    def bias_terms(self) -> NDArray[np.float32] | None:
        """The biases, or None."""
        return self.bias_array

    def weights_quantization_type(self) -> MPSCNNWeightsQuantizationType:
        """LINEAR with ranges, LOOKUP_TABLE with a table."""
        kinds = MPSCNNWeightsQuantizationType
        return kinds.LOOKUP_TABLE if self.range_array is None else kinds.LINEAR

    def ranges_for_uint8_kernel(self) -> NDArray[np.float32] | None:
        """The lowest and the highest weight of each output channel, or None."""
        return self.range_array

    def lookup_table_for_uint8_kernel(self) -> NDArray[np.float32] | None:
        """256 weights, or None."""
        return self.table_array

    def label(self) -> str | None:
        """The layer's name."""
        return self.name


@dataclass(eq=False)
class ArchivedNormalizationParameters(ArraySource):
    """The data source of a batch, instance or group normalization that came out of an archive."""

    gamma_array: NDArray[Any]
    beta_array: NDArray[Any]
    mean_array: NDArray[Any] | None = None
    variance_array: NDArray[Any] | None = None
    epsilon_value: float = FLT_MIN
    groups: int = 1
    name: str | None = None

    def number_of_feature_channels(self) -> int:
        """Channels of the images to be normalized."""
        return int(self.gamma_array.size)

    def number_of_groups(self) -> int:
        """Groups of a group normalization."""
        return self.groups

    def gamma(self) -> NDArray[Any]:
        """Scales."""
        return self.gamma_array

    def beta(self) -> NDArray[Any]:
        """Shifts."""
        return self.beta_array

    def mean(self) -> NDArray[Any] | None:
        """Means outside training."""
        return self.mean_array

    def variance(self) -> NDArray[Any] | None:
        """Variances outside training."""
        return self.variance_array

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Gamma, beta, and mean and variance where there are such, by these names."""
        rows = {
            "gamma": self.gamma_array, "beta": self.beta_array, "mean": self.mean_array, "variance": self.variance_array
        }  # fmt: skip
        return {name: array for name, array in rows.items() if array is not None}

    def epsilon(self) -> float:
        """Added to variances."""
        return self.epsilon_value

    def label(self) -> str | None:
        """The layer's name."""
        return self.name


def convolution_numbers(kernel: Any) -> ArchivedConvolutionWeights:
    """What a convolution computes with now, before folding and rounding: the kernel's own memory, not to be kept."""
    weights = kernel.parameters
    biases = None if weights.biases_buffer is None else _row(weights.biases_buffer)
    array = _row(weights.weights_buffer).reshape(weights.shape)
    name = _label(kernel.data_source, kernel)
    return ArchivedConvolutionWeights(weights.descriptor, array, biases, name, weights.precision)


def folded_numbers(kernel: Any) -> tuple[MPSCNNConvolutionDescriptor, NDArray[Any], NDArray[Any] | None]:
    """Descriptor, weights and biases of a convolution, batch normalization folded into both."""
    held = convolution_numbers(kernel)
    weights, biases, fold = held.weight_array, held.bias_array, held.convolution_descriptor.batch_normalization
    if fold is not None:
        weights = weights * fold.scale.reshape(-1, 1, 1, 1)
        biases = fold.shift if biases is None else biases * fold.scale + fold.shift
    return held.convolution_descriptor, weights, biases


def normalization_numbers(kernel: Any) -> ArchivedNormalizationParameters:
    """What a batch, instance or group normalization computes with now: the kernel's own memory, not to be kept."""
    name = _label(kernel.data_source, kernel)
    if isinstance(kernel, MPSCNNBatchNormalization):
        rows = [_row(buffer) for pair in (kernel.gamma_and_beta, kernel.mean_and_variance) for buffer in pair]
        return ArchivedNormalizationParameters(*rows, epsilon_value=kernel.epsilon, name=name)
    rows = [_row(kernel.numbers.gamma.buffer), _row(kernel.numbers.beta.buffer)]
    settings = kernel.settings
    return ArchivedNormalizationParameters(*rows, epsilon_value=settings.epsilon, groups=settings.groups, name=name)


class StandIns:
    """What one archive keeps of data sources: themselves, if they can be archived, or the numbers that kernels hold.

    Kernels that share a data source share what stands for it, as long as their numbers are the same. ``chosen`` has
    what is kept of some data sources of convolutions instead, by their `id`.
    """

    def __init__(self, chosen: Mapping[int, Any] | None = None) -> None:
        self._chosen = dict(chosen or {})
        self._made: dict[int, list[Any]] = {}
        self._sources: list[Any] = []

    def convolution(self, kernel: Any) -> Any:
        """For the data source of a convolution, a transposed one, or the gradient of one."""
        source = kernel.data_source
        if id(source) in self._chosen:
            return self._chosen[id(source)]
        if is_archivable(source):
            return source
        return self._shared(source, convolution_numbers(kernel))

    def weights(self, kernel: Any) -> Any:
        """For the weights of any convolution, those of one bit among them."""
        return self.binary(kernel) if isinstance(kernel, MPSCNNBinaryConvolution) else self.convolution(kernel)

    def binary(self, kernel: MPSCNNBinaryConvolution) -> ArchivedConvolutionWeights:
        """For the words of binary weights, whose kernels keep no data source. Biases are among the kernel's terms."""
        return ArchivedConvolutionWeights(kernel.convolution_descriptor, kernel.weight_words(), None, kernel.label)

    def normalization(self, kernel: Any) -> Any:
        """For the data source of a batch, instance or group normalization."""
        source = kernel.data_source
        if is_archivable(source):
            return source
        return self._shared(source, normalization_numbers(kernel))

    def _shared(self, source: Any, made: Any) -> Any:
        """``made``, or what an earlier kernel over the same data source has made, if it is the same."""
        if source is None:
            return made
        known = self._made.setdefault(id(source), [])
        self._sources.append(source)  # so that its id stays its own
        for other in known:
            if _is_same(other, made):
                return other
        known.append(made)
        return made


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        np.array_equal(value, vars(other)[name], equal_nan=True)
        if isinstance(value, np.ndarray)
        else name == "convolution_descriptor" or value == vars(other)[name]
        for name, value in vars(one).items()
    )


def _label(source: Any, kernel: Any) -> str | None:
    """The layer's name, by its data source where there is one: nodes may call the kernel otherwise."""
    return kernel.label if source is None else source.label()


def is_archivable(source: Any) -> bool:
    """Whether a data source is kept as it is."""
    return isinstance(source, SOURCES) or callable(getattr(source, "archived", None))


def _row(buffer: Any) -> NDArray[np.float32]:
    """A buffer's float32 numbers, where they lie if that is in the CPU's memory."""
    return buffer.tensor(torch.float32).cpu().numpy()


SOURCES: tuple[type, ...] = (ArchivedConvolutionWeights, ArchivedQuantizedWeights, ArchivedNormalizationParameters)
"""The data sources that archives themselves keep."""
