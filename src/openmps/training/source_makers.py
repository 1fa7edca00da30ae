"""What makes the data sources of a network that comes from a file and is to be trained."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, described, number, store
from openmps.core.arrays import numbers
from openmps.errors import MPSTypeError
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.training.image_normalization_sources import (
    TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource,
)
from openmps.training.normalization_sources import TrainableBatchNormalizationDataSource
from openmps.training.optimized import OptimizerFactory

Row = NDArray[np.float32]


class TrainableDataSources(NamedAttributes):
    """Makes data sources that train their numbers, each with an optimizer of its own.

    ``openmps.formats.onnx.network(path, trainable=TrainableDataSources(lambda device: MPSNNOptimizerAdam(device)))``.
    ``momentum`` is how far running statistics of batch normalizations move to those of a batch.
    """

    def __init__(self, optimizer: OptimizerFactory, *, momentum: float = 0.1) -> None:
        if not callable(optimizer):
            rule, remedy = "must be a function of a device that gives an optimizer", "Pass optimizer_factory(…)"
            raise MPSTypeError("TrainableDataSources", "optimizer", rule, type(optimizer).__name__, remedy)
        store(self, "_optimizer", optimizer)
        store(self, "_momentum", number("TrainableDataSources", "momentum", momentum))

    def __repr__(self) -> str:
        return described(self, momentum=self._momentum)

    _optimizer: OptimizerFactory
    _momentum: float
    optimizer = Shown[OptimizerFactory]("_optimizer", "Makes the optimizer of each data source.")
    momentum = Shown[float]("_momentum", "How far running statistics move to those of a batch, 0 to 1.")

    def convolution(
        self, descriptor: MPSCNNConvolutionDescriptor, weights: Row, biases: Row | None, label: str
    ) -> TrainableConvolutionDataSource:
        """Of a convolution, a transposed one or a fully connected layer, from OHWI weights."""
        return TrainableConvolutionDataSource(descriptor, weights, biases, label, optimizer=self._optimizer)

    def batch_normalization(
        self, gamma: Row, beta: Row, mean: Row, variance: Row, epsilon: float, label: str
    ) -> TrainableBatchNormalizationDataSource:
        """Of a batch normalization."""
        count = numbers("TrainableDataSources", "gamma", gamma).size
        return TrainableBatchNormalizationDataSource(
            count, gamma, beta, mean, variance, label,
            epsilon=epsilon, momentum=self._momentum, optimizer=self._optimizer,
        )  # fmt: skip

    def instance_normalization(
        self, gamma: Row, beta: Row, epsilon: float, label: str
    ) -> TrainableInstanceNormalizationDataSource:
        """Of an instance normalization."""
        count = numbers("TrainableDataSources", "gamma", gamma).size
        return TrainableInstanceNormalizationDataSource(
            count, gamma, beta, label, epsilon=epsilon, optimizer=self._optimizer
        )

    def group_normalization(
        self, gamma: Row, beta: Row, groups: int, epsilon: float, label: str
    ) -> TrainableGroupNormalizationDataSource:
        """Of a group normalization."""
        count = numbers("TrainableDataSources", "gamma", gamma).size
        return TrainableGroupNormalizationDataSource(
            count, groups, gamma, beta, label, epsilon=epsilon, optimizer=self._optimizer
        )
