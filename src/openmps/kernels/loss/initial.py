"""MPSNNInitialGradient: where the gradient of an image with itself starts (MPSCNNLoss.h, macOS 10.15)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from openmps.core.image.storage import Target
from openmps.core.kernel.encode import Operation
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSStateBatch
from openmps.ops.geometry import empty_image


class MPSNNInitialGradient(MPSCNNKernel):
    """Y = 1 everywhere, in an image like the source: dX/dX (MPSCNNLoss.h, macOS 10.15).

    The start of the gradients of any image: what follows multiplies by its own derivatives.
    """

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        channels, size = target.channels, (target.height, target.width)

        def operation(values: tuple[Tensor, ...], _: Any) -> tuple[Tensor, None]:
            return empty_image(values[0], channels, size).fill_(1.0), None

        return operation
