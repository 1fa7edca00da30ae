"""What makes the data sources of a network that comes from a file and is to be trained."""

from __future__ import annotations

from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, described, number, store
from openmps.core.arrays import numbers
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.selectors import name_arguments
from openmps.training.data_sources import TrainableConvolutionDataSource
from openmps.training.image_normalization_sources import (
    TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource,
)
from openmps.training.normalization_sources import TrainableBatchNormalizationDataSource
from openmps.training.optimized import OptimizerFactory

Row = NDArray[np.float32]


@name_arguments
class TrainableDataSources(NamedAttributes):
    """Makes data sources that train their numbers, each with an optimizer of its own.

    ``openmps.formats.onnx.network(path, trainable=TrainableDataSources(lambda device: MPSNNOptimizerAdam(device)))``.
    ``momentum``, 0 to 1, is how far running statistics of batch normalizations move to those of a batch. None: as far
    as the model says of each layer, and 0.1 where it says nothing.
    """

    def __init__(self, optimizer: OptimizerFactory, *, momentum: float | None = None) -> None:
        if not callable(optimizer):
            rule, remedy = "must be a function of a device that gives an optimizer", "Pass optimizer_factory(…)"
            raise MPSTypeError("TrainableDataSources", "optimizer", rule, type(optimizer).__name__, remedy)
        store(self, "_optimizer", optimizer)
        given = None if momentum is None else number("TrainableDataSources", "momentum", momentum)
        if given is not None and not 0 <= given <= 1:
            raise MPSArgumentError("TrainableDataSources", "momentum", "must be 0 to 1, or None", momentum)
        store(self, "_momentum", given)

    def __repr__(self) -> str:
        return described(self, momentum=self._momentum)

    _optimizer: OptimizerFactory
    _momentum: float | None
    optimizer = Shown[OptimizerFactory]("_optimizer", "Makes the optimizer of each data source.")
    momentum = Shown[float | None](
        "_momentum", "How far running statistics move to those of a batch, 0 to 1; None: as the model says."
    )

    def with_momentum(self, momentum: float) -> Self:
        """The makers of layers whose model says how far their running statistics move: a momentum given here wins."""
        if self._momentum is not None:
            return self
        found = copy(self)
        store(found, "_momentum", number("TrainableDataSources", "momentum", momentum))
        return found

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
            epsilon=epsilon, momentum=0.1 if self._momentum is None else self._momentum, optimizer=self._optimizer,
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
