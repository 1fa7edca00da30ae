"""Batch normalization, its statistics and its gradients (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from openmps.kernels.batch_normalization.data_source import MPSCNNBatchNormalizationDataSource
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalization
from openmps.kernels.batch_normalization.gradient import (
    MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.batch_normalization.state import MPSCNNBatchNormalizationState
from openmps.kernels.batch_normalization.statistics import MPSCNNBatchNormalizationStatistics

__all__ = [
    "MPSCNNBatchNormalization",
    "MPSCNNBatchNormalizationDataSource",
    "MPSCNNBatchNormalizationGradient",
    "MPSCNNBatchNormalizationState",
    "MPSCNNBatchNormalizationStatistics",
    "MPSCNNBatchNormalizationStatisticsGradient",
]
