"""The warning when a graph runs with weights that other kernels of its data sources have left behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from openmps.core.weight_versions import Held, HoldsWeights
from openmps.errors import MPSTrainingWarning


class StaleWeights:
    """What the kernels of one graph hold; convolutions of one data source hold it together."""

    def __init__(self, kernels: Iterable[Any]) -> None:
        owners: dict[Held, Any] = {}
        for kernel in kernels:
            if isinstance(kernel, HoldsWeights):
                for held in kernel.held_weights:
                    owners.setdefault(held, kernel)
        self._owners = owners
        self._has_warned = False

    def warn(self) -> None:
        """Name the kernels whose data source has newer numbers, at the first encode that uses the old ones."""
        for held in self._owners:
            if held.version < held.lineage.latest:
                break
        else:
            self._has_warned = False
            return
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(self._message(), MPSTrainingWarning, stacklevel=2)

    def _message(self) -> str:
        names = dict.fromkeys(kernel.name for held, kernel in self._owners.items() if held.is_stale)
        return (
            f"{', '.join(names)}: another graph or kernel of the same data source was given newer weights: call "
            "reload_from_data_sources() before the encode, with a data source that brings the new weights; where the "
            "old ones are meant, give this graph a data source of its own"
        )

    def names(self) -> list[str]:
        """The kernels that hold other numbers than their data sources give now, or older ones than another kernel."""
        kernels = {id(kernel): kernel for kernel in self._owners.values()}
        behind = {id(kernel) for held, kernel in self._owners.items() if held.is_stale}
        return [each.name for key, each in kernels.items() if key in behind or each.holds_stale_weights()]
