"""Reading the data sources of a graph again (MPSNNGraph.h, ``reloadFromDataSources``, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution.weighted import WeightedKernel
from openmps.kernels.group_normalization.base import ImageNormalization

_RELOADS: dict[type, Callable[[Any], None]] = {
    WeightedKernel: lambda kernel: kernel.reload_weights_and_biases_from_data_source(),
    MPSCNNBatchNormalization: lambda kernel: kernel.reload_data_source(kernel.data_source),
    ImageNormalization: lambda kernel: kernel.reload_gamma_and_beta_from_data_source(),
}
"""How each kind of kernel with a data source reads it."""


def reload(kernels: Iterable[Any]) -> None:
    """Have each kernel read its data source; kernels that hold numbers together read it once."""
    read: set[int] = set()
    for kernel in kernels:
        for kind, read_again in _RELOADS.items():
            if isinstance(kernel, kind):
                owner = id(kernel.parameters) if isinstance(kernel, WeightedKernel) else id(kernel)
                if owner not in read:
                    read.add(owner)
                    read_again(kernel)
