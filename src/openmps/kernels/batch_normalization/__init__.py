"""Batch normalization, its statistics and its gradients (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from openmps.kernels.batch_normalization.data_source import (
    MPSCNNBatchNormalizationDataSource as MPSCNNBatchNormalizationDataSource,
)
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalization as MPSCNNBatchNormalization
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalizationState as MPSCNNBatchNormalizationState
from openmps.kernels.batch_normalization.gradient import (
    MPSCNNBatchNormalizationGradient as MPSCNNBatchNormalizationGradient,
)
from openmps.kernels.batch_normalization.gradient import (
    MPSCNNBatchNormalizationStatisticsGradient as MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.batch_normalization.statistics import (
    MPSCNNBatchNormalizationStatistics as MPSCNNBatchNormalizationStatistics,
)
