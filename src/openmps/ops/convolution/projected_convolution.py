"""Two convolutions in one operation, the second of which adds the result of the first: the end of a block.

``neuron(W' x + b' + P z)``, where ``P z`` has nothing behind it: where a kernel takes both, the image that it would be
is neither written nor read. It equals `fused_convolution` of each, whose image between is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.fused_convolution import Fused, Prepared, fused_convolution, is_rectifier, named
from openmps.ops.convolution.library_convolution import regular
from openmps.ops.op import Kind, Op


def projected_convolution(
    x: Tensor, prepared: Prepared, z: Tensor, other: Prepared, how: Fused, projection: Fused
) -> Tensor:
    """`fused_convolution` of ``x`` that adds that of ``z``, whose windows are single pixels inside it."""
    if triton.runs_on(x.device) and is_rectifier(how.activation):
        found = _in_one_kernel(x, prepared, z, other, how, projection)
        if found is not None:
            return found
    return fused_convolution(x, prepared, fused_convolution(z, other, None, projection), how)


def _in_one_kernel(
    x: Tensor, prepared: Prepared, z: Tensor, other: Prepared, how: Fused, projection: Fused
) -> Tensor | None:
    weights, of_z = prepared.weights, other.weights
    if not isinstance(weights, Tensor) or not isinstance(of_z, Tensor) or other.biases is not None:
        return None
    from openmps.ops.convolution.half_forms import half_convolution

    x, z = (regular(each.contiguous(memory_format=torch.channels_last)) for each in (x, z))
    where = how.window, how.edge_mode, named(how.activation)
    return half_convolution(x, weights, prepared.biases, None, *where, (z, of_z, projection.window))


class ProjectedConvolution(Op, kind=Kind.CONTRACTION, half=True):
    """`projected_convolution` of an image and of another one, each followed by what `PrepareConvolution` gives."""

    how: Fused
    projection: Fused

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        x, prepared, z, other = operands
        return projected_convolution(x, prepared, z, other, self.how, self.projection)
