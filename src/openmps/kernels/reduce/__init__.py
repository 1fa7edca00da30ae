"""Reductions and local correlation (MPSNNReduce.h, macOS 10.13.4 to 10.15)."""

from openmps.kernels.reduce.binary import (
    MPSNNReduceBinary,
    MPSNNReduceFeatureChannelsAndWeightsMean,
    MPSNNReduceFeatureChannelsAndWeightsSum,
)
from openmps.kernels.reduce.local_correlation import MPSNNLocalCorrelation
from openmps.kernels.reduce.unary import (
    MPSNNReduceColumnMax,
    MPSNNReduceColumnMean,
    MPSNNReduceColumnMin,
    MPSNNReduceColumnSum,
    MPSNNReduceFeatureChannelsArgumentMax,
    MPSNNReduceFeatureChannelsArgumentMin,
    MPSNNReduceFeatureChannelsMax,
    MPSNNReduceFeatureChannelsMean,
    MPSNNReduceFeatureChannelsMin,
    MPSNNReduceFeatureChannelsSum,
    MPSNNReduceRowMax,
    MPSNNReduceRowMean,
    MPSNNReduceRowMin,
    MPSNNReduceRowSum,
    MPSNNReduceUnary,
)

__all__ = [
    "MPSNNLocalCorrelation",
    "MPSNNReduceBinary",
    "MPSNNReduceColumnMax",
    "MPSNNReduceColumnMean",
    "MPSNNReduceColumnMin",
    "MPSNNReduceColumnSum",
    "MPSNNReduceFeatureChannelsAndWeightsMean",
    "MPSNNReduceFeatureChannelsAndWeightsSum",
    "MPSNNReduceFeatureChannelsArgumentMax",
    "MPSNNReduceFeatureChannelsArgumentMin",
    "MPSNNReduceFeatureChannelsMax",
    "MPSNNReduceFeatureChannelsMean",
    "MPSNNReduceFeatureChannelsMin",
    "MPSNNReduceFeatureChannelsSum",
    "MPSNNReduceRowMax",
    "MPSNNReduceRowMean",
    "MPSNNReduceRowMin",
    "MPSNNReduceRowSum",
    "MPSNNReduceUnary",
]
