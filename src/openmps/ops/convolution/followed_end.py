"""The end of a block and the convolution of single pixels behind it, in one operation with both results.

``y = neuron(W' x + b' + residual)``, where the residual may be a projection ``P r``, and ``z = neuron'(V y + c)``:
where a kernel takes both, ``y`` is not read again to make ``z``. It equals `fused_convolution` or
`projected_convolution`, then `fused_convolution` of what that gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.fused_convolution import Fused, Prepared, fused_convolution, is_rectifier, named
from openmps.ops.convolution.library_convolution import regular
from openmps.ops.convolution.projected_convolution import projected_convolution
from openmps.ops.op import Kind, Op


class FollowedEnd(Op, kind=Kind.CONTRACTION, results=2, half=True):
    """The end of a block, and what the convolution behind it makes of it.

    The operands are an image and what `PrepareConvolution` gives, the image that is added, with a projection followed
    by its own, and what is prepared for the convolution behind them. ``rounds`` says whether that reads float16.
    """

    end: Fused
    projection: Fused | None
    following: Fused
    rounds: bool

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> tuple[Tensor, Tensor]:
        """See the class."""
        x, prepared, residual, *projecting, behind = operands
        of_residual: Prepared | None = projecting[0] if projecting else None
        if triton.runs_on(x.device):
            found = self._in_one_kernel(x, prepared, residual, of_residual, behind)
            if found is not None:
                return found
        if of_residual is None or self.projection is None:
            y = fused_convolution(x, prepared, residual, self.end)
        else:
            y = projected_convolution(x, prepared, residual, of_residual, self.end, self.projection)
        y = y.to(torch.float16) if self.rounds else y
        return y, fused_convolution(y, behind, None, self.following)

    def _in_one_kernel(
        self, x: Tensor, prepared: Prepared, residual: Tensor, of_residual: Prepared | None, behind: Prepared
    ) -> tuple[Tensor, Tensor] | None:
        convolutions = [each for each in (self.end, self.following, self.projection) if each is not None]
        is_known = all(is_rectifier(how.activation) and how.window.is_pixelwise for how in convolutions)
        of_x, of_y, of_r = prepared.weights, behind.weights, None if of_residual is None else of_residual.weights
        if not is_known or (of_residual is not None and of_residual.biases is not None):
            return None
        if not isinstance(of_x, Tensor) or not isinstance(of_y, Tensor) or not isinstance(of_r, Tensor | None):
            return None
        from openmps.ops.convolution.half_forms import followed_end
        from openmps.ops.triton.convolution.followed_end import Layer

        x, residual = (regular(each.contiguous(memory_format=torch.channels_last)) for each in (x, residual))
        end = Layer(of_x, prepared.biases, named(self.end.activation))
        return followed_end(x, end, residual, of_r, Layer(of_y, behind.biases, named(self.following.activation)))
