"""What kernels over feature vectors share, one vector a row of a matrix: how many of them, and of what length."""

from __future__ import annotations

from openmps.core.kernel.configuration import ULONG_MAX, KernelProperty, at_least
from openmps.core.kernel.matrices import PartsKernel
from openmps.core.kernel.operands import OperandContext


class FeatureVectors(PartsKernel):
    """A kernel over rows that are feature vectors."""

    source_number_of_feature_vectors = KernelProperty(
        ULONG_MAX, at_least(1), "Rows that are used, at most those there are. Default: all."
    )
    source_input_feature_channels = KernelProperty(
        ULONG_MAX, at_least(1), "Columns that are used, at most those there are. Default: all."
    )

    def _used(self, at: OperandContext, *names: str) -> tuple[int, int]:
        """Rows and columns that are used of all these sources."""
        most = [self._available(at, name) for name in names]
        rows = min(self.source_number_of_feature_vectors, *(each for each, _ in most))
        return rows, min(self.source_input_feature_channels, *(each for _, each in most))
