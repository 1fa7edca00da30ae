"""The gradient of a max pooling in front of a ReLU; see `ops.rewrite.table` for how it came there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops.geometry import Window
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.neuron import neuron_gradient
from openmps.ops.pooling.pooling import first_pixels, max_pooling_gradient
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RELU = MPSCNNNeuronType.RELU


class ReluPoolGradient(Op, kind=Kind.WINDOW):
    """The gradient of a max pooling in front of a ReLU: of a gradient, the pooled source, the source and the choice."""

    window: Window
    edge_mode: MPSImageEdgeMode
    slope: float

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """The mask on the pooled gradient, then to the places of the largest numbers.

        Where a window's maximum is exactly 0, the ReLU makes all of its pixels equal, and the first of them takes the
        gradient: it gets through where that pixel is 0 itself, and is lost where it is negative.
        """
        gradient, pooled, source, choice = operands
        if gradient.dtype == torch.float32:
            pooled, source = pooled.to(torch.float32), source.to(torch.float32)
        if self.slope == 0.0 and _may_hold_zero(pooled):
            pooled = torch.where(pooled == 0, first_pixels(source, self.window, self.edge_mode), pooled)
        masked = neuron_gradient(gradient, pooled, _RELU, self.slope, 0.0, 0.0)
        return max_pooling_gradient(masked, source, choice, self.window, self.edge_mode)


def _may_hold_zero(pooled: Tensor) -> bool:
    """Whether a number may be 0: a look that costs the CPU a sixth of the selection, and a GPU more than that."""
    return pooled.is_cuda or not float(pooled.abs().amin()) > 0.0
