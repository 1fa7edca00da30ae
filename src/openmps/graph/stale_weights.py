"""The warning when a graph runs with weights that other kernels of its data sources have left behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from openmps.errors import MPSTrainingWarning
from openmps.kernels.convolution.weighted import WeightedKernel


class StaleWeights:
    """What the kernels of one graph hold; kernels of one data source hold it together."""

    def __init__(self, kernels: Iterable[Any]) -> None:
        owners: dict[int, WeightedKernel] = {}
        for kernel in kernels:
            if isinstance(kernel, WeightedKernel):
                owners.setdefault(id(kernel.parameters), kernel)
        self._owners = list(owners.values())
        self._held = [kernel.parameters.held for kernel in self._owners]
        self._has_warned = False

    def warn(self) -> None:
        """Name the kernels whose data source has newer weights, at the first encode that uses the old ones."""
        had_warned = self._has_warned
        self._has_warned = any(held.is_stale for held in self._held)
        if had_warned or not self._has_warned:
            return
        names = [kernel.name for kernel in self._owners if kernel.parameters.held.is_stale]
        message = (
            f"{', '.join(names)}: another graph or kernel of the same data source was given newer weights: call "
            "reload_from_data_sources() before the encode, with a data source that brings the new weights; where the "
            "old ones are meant, give this graph a data source of its own"
        )
        warnings.warn(message, MPSTrainingWarning, stacklevel=2)

    def names(self) -> list[str]:
        """The kernels that hold other numbers than their data sources give now. Reads both."""
        return [kernel.name for kernel in self._owners if kernel.holds_stale_weights()]
