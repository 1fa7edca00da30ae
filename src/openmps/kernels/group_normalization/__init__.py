"""Instance and group normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4; MPSCNNGroupNormalization.h, 10.15).

Both normalize each image by itself; an instance is a group of one channel. One package holds both headers.
"""

from openmps.kernels.group_normalization.group import (
    MPSCNNGroupNormalization,
    MPSCNNGroupNormalizationDataSource,
    MPSCNNGroupNormalizationGradient,
    MPSCNNGroupNormalizationGradientState,
)
from openmps.kernels.group_normalization.instance import (
    MPSCNNInstanceNormalization,
    MPSCNNInstanceNormalizationDataSource,
    MPSCNNInstanceNormalizationGradient,
    MPSCNNInstanceNormalizationGradientState,
)

__all__ = [
    "MPSCNNGroupNormalization",
    "MPSCNNGroupNormalizationDataSource",
    "MPSCNNGroupNormalizationGradient",
    "MPSCNNGroupNormalizationGradientState",
    "MPSCNNInstanceNormalization",
    "MPSCNNInstanceNormalizationDataSource",
    "MPSCNNInstanceNormalizationGradient",
    "MPSCNNInstanceNormalizationGradientState",
]
