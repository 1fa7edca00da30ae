"""Who keeps the weights of a model: data sources of fixed numbers, or those that a caller makes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters
from openmps.kernels.batch_normalization import MPSCNNBatchNormalizationDataSource
from openmps.kernels.convolution import MPSCNNConvolutionDataSource, MPSCNNConvolutionDescriptor
from openmps.kernels.group_normalization import (
    MPSCNNGroupNormalizationDataSource,
    MPSCNNInstanceNormalizationDataSource,
)

Row = NDArray[np.float32]


@runtime_checkable
class DataSources(Protocol):
    """Makes the data sources of a network that is trained."""

    def convolution(
        self, descriptor: MPSCNNConvolutionDescriptor, weights: NDArray[np.float32], biases: Row | None, label: str
    ) -> MPSCNNConvolutionDataSource:
        """Of a convolution, a transposed one or a fully connected layer, from OHWI weights."""
        ...

    def batch_normalization(
        self, gamma: Row, beta: Row, mean: Row, variance: Row, epsilon: float, label: str
    ) -> MPSCNNBatchNormalizationDataSource:
        """Of a batch normalization."""
        ...


@runtime_checkable
class ImageNormalizationSources(Protocol):
    """What `DataSources` may have besides, so that instance and group normalizations are trained, too."""

    def instance_normalization(
        self, gamma: Row, beta: Row, epsilon: float, label: str
    ) -> MPSCNNInstanceNormalizationDataSource:
        """Of an instance normalization."""
        ...

    def group_normalization(
        self, gamma: Row, beta: Row, groups: int, epsilon: float, label: str
    ) -> MPSCNNGroupNormalizationDataSource:
        """Of a group normalization."""
        ...


@runtime_checkable
class MomentumSources(Protocol):
    """What `DataSources` may have besides, so that running statistics move as a model says of each layer."""

    def with_momentum(self, momentum: float) -> DataSources:
        """The makers of layers whose running statistics move to those of a batch by ``momentum``, 0 to 1."""
        ...


class FixedSources:
    """Data sources of numbers that stay as they are."""

    def convolution(
        self, descriptor: MPSCNNConvolutionDescriptor, weights: NDArray[np.float32], biases: Row | None, label: str
    ) -> ArchivedConvolutionWeights:
        """Of a convolution, a transposed one or a fully connected layer."""
        return ArchivedConvolutionWeights(descriptor, weights, biases, label)

    def batch_normalization(
        self, gamma: Row, beta: Row, mean: Row, variance: Row, epsilon: float, label: str
    ) -> ArchivedNormalizationParameters:
        """Of a batch normalization."""
        return ArchivedNormalizationParameters(gamma, beta, mean, variance, epsilon, name=label)

    def instance_normalization(
        self, gamma: Row, beta: Row, epsilon: float, label: str
    ) -> ArchivedNormalizationParameters:
        """Of an instance normalization."""
        return ArchivedNormalizationParameters(gamma, beta, epsilon_value=epsilon, name=label)

    def group_normalization(
        self, gamma: Row, beta: Row, groups: int, epsilon: float, label: str
    ) -> ArchivedNormalizationParameters:
        """Of a group normalization."""
        return ArchivedNormalizationParameters(gamma, beta, epsilon_value=epsilon, groups=groups, name=label)
