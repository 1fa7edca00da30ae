"""Instance and group normalization (MPSCNNInstanceNormalization.h, macOS 10.13.4; MPSCNNGroupNormalization.h, 10.15).

Both normalize each image by itself; an instance is a group of one channel. One package holds both headers.
"""

from openmps.kernels.group_normalization.group import MPSCNNGroupNormalization as MPSCNNGroupNormalization
from openmps.kernels.group_normalization.group import (
    MPSCNNGroupNormalizationDataSource as MPSCNNGroupNormalizationDataSource,
)
from openmps.kernels.group_normalization.group import (
    MPSCNNGroupNormalizationGradient as MPSCNNGroupNormalizationGradient,
)
from openmps.kernels.group_normalization.group import (
    MPSCNNGroupNormalizationGradientState as MPSCNNGroupNormalizationGradientState,
)
from openmps.kernels.group_normalization.instance import MPSCNNInstanceNormalization as MPSCNNInstanceNormalization
from openmps.kernels.group_normalization.instance import (
    MPSCNNInstanceNormalizationDataSource as MPSCNNInstanceNormalizationDataSource,
)
from openmps.kernels.group_normalization.instance import (
    MPSCNNInstanceNormalizationGradient as MPSCNNInstanceNormalizationGradient,
)
from openmps.kernels.group_normalization.instance import (
    MPSCNNInstanceNormalizationGradientState as MPSCNNInstanceNormalizationGradientState,
)
