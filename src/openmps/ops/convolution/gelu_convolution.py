"""A convolution with GeLU behind it as one operation, where nobody reads what lies between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops.convolution.convolution import Contraction, convolution, multiplied
from openmps.ops.convolution.patch_convolution import GELU, small_convolution
from openmps.ops.geometry import Window
from openmps.ops.pointwise.neuron import Neuron, neuron
from openmps.types import MPSImageEdgeMode


class GeluConvolution(Contraction):
    """`convolution` of an image by weights and biases, which may be left out, rounded if it was stored so, then GeLU.

    Few channels are one kernel in Triton.
    """

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int
    allow_tf32: bool
    neuron: Neuron
    rounds: bool
    """Whether the convolution's result was stored as float16."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the class."""
        x, weights, biases = operands
        x, weights = multiplied(x, weights)
        if self.groups == 1 and (self.rounds or x.dtype == torch.float32) and not self._by_library(x):
            found = small_convolution(x, weights, biases, self.window, self.edge_mode, GELU)
            if found is not None:
                return found
        more: Any = {"groups": self.groups, "edge_mode": self.edge_mode, "allow_tf32": self.allow_tf32}
        y = convolution(x, weights, biases, self.window, **more)
        y = y.to(torch.float16) if self.rounds else y
        return neuron(y, self.neuron.function, self.neuron.a, self.neuron.b, self.neuron.c)

    def _by_library(self, x: Tensor) -> bool:
        """Whether factors are rounded to TF32."""
        return self.allow_tf32 and x.dtype == torch.float32
